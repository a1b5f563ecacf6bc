// SPDX-License-Identifier: Apache-2.0
//! The loop, turn by turn, without sockets and without a kernel's programs.

use std::sync::Arc;

use fide_detector::{Config, Member, Policy, Role, Trust};
use fide_lane::jitter::HostKind;
use fide_shm::{session::AgentSession, table::AliveTable};
use fide_wire::{Key, Name, PIGGYBACK_MAX};
use rustix::event::EventfdFlags;

use super::*;
use crate::{
    command::{Channel, Command, Memory, Reply},
    config,
};

fn eventfd() -> std::os::fd::OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor")
}

fn engine() -> (Engine, Arc<Exchange>) {
    let name = |text: &str| Name::new(text.as_bytes()).expect("a name");
    let monitors: HostSet = [2u16].into_iter().collect();
    let member =
        |id, text, of: u16| Member { id, name: name(text), role: Role::Voter, monitors: [of].into_iter().collect() };
    let config = Config {
        me: 1,
        incarnation: 7,
        members: vec![member(1, "h1", 2), member(2, "h2", 1)],
        planes: 1,
        heartbeat_ns: 1_000_000_000,
        trust: Trust::Network,
        policy: Policy::Network,
        timeout_ns: 60_000_000_000,
        stall_slack_ns: 0,
        drift_ppm: fide_detector::config::DRIFT_PPM,
        piggyback_max: PIGGYBACK_MAX,
        payload_max: PAYLOAD_MAX,
    };
    let exchange = Exchange::new().expect("an exchange");
    let parts = Parts {
        me: 1,
        members: 2,
        monitors,
        heartbeat_ns: config.heartbeat_ns,
        timeouts: Timeouts {
            trust: config::Trust::Network,
            heartbeat_ns: config.heartbeat_ns,
            kind: HostKind::Shared,
            own_lateness_ns: 0,
            fixed: true,
        },
        detector: Detector::new(config, raw_ns()).expect("a detector"),
        senders: Vec::new(),
        trees: false,
        salvage: false,
        receivers: vec![None],
        kernel: None,
        table: AliveTable::create(1, 2, 7, "h1", now_ns()).expect("a table"),
        names: vec![fide_shm::table::name_bytes("h1"), fide_shm::table::name_bytes("h2")],
        keys: Keys::from(Key([7; 16])),
        plain: Keys::from(Key([7; 16])),
        shape: Shape { trust: 1, policy: 1, members: 2, cluster: 0, list: 0 },
        name: name("h1"),
        exchange: exchange.clone(),
        mode: Mode::Sleep,
        own_lateness_max_ns: 0,
        votes: None,
        clock: Clock::begin(),
    };
    (Engine::new(parts).expect("an engine"), exchange)
}

fn memory() -> Box<Memory> {
    let region = AgentSession::create().expect("memory");
    Box::new(Memory { region, channel: Channel::Inbox(eventfd()), doorbell: eventfd() })
}

#[test]
fn a_session_of_many_watches_ends_over_several_turns() {
    let (mut engine, _exchange) = engine();
    assert!(engine.add_session(3, memory(), 0).is_none());
    assert!(engine.add_session(4, memory(), 0).is_none());
    let monitor = |client| Command::Monitor { client, host: 2, name: None, wanted: fide_detector::Wanted::default() };
    for client in std::iter::repeat_n(3, 5 * FORGOTTEN_PER_TURN).chain([4]) {
        assert!(matches!(engine.command(monitor(client)), Reply::Monitored(Ok(_))));
    }
    engine.closing = Some(3);
    let mut turns = 1;
    loop {
        let before = engine.watches.len();
        engine.busy_turn = false;
        engine.commands();
        assert!(before - engine.watches.len() <= FORGOTTEN_PER_TURN);
        if engine.closing.is_none() {
            break;
        }
        assert!(engine.busy_turn, "the next turn begins at once");
        turns += 1;
    }
    assert!(turns > 5 && engine.sessions[3].is_none());
    assert_eq!((engine.watches.len(), engine.watches.clients(2, fide_wire::HOST_SLOT)), (1, 1 << 4), "of the other");
}

#[test]
fn what_is_closed_or_replaced_is_freed_by_others() {
    let (mut engine, _exchange) = engine();
    assert!(engine.add_session(0, memory(), 0).is_none());
    match engine.command(Command::OpenSession { client: 0, memory: memory() }) {
        Reply::Closed(Some(_)) => {}
        other => panic!("{other:?}"),
    }
    assert!(matches!(engine.end_session(0), Some(Some(_))));
    assert!(matches!(engine.end_session(0), Some(None)), "there is none any more");
}
