// SPDX-License-Identifier: Apache-2.0
//! The loop, turn by turn, without sockets and without a kernel's programs.

use std::{os::fd::AsFd, sync::Arc};

use fide_agent_api::event::{EVENT_MAX, EventRecord, kind};
use fide_agent_api::session::{AgentSession, ClientSession};
use fide_agent_api::table::AliveTable;
use fide_detector::{Config, Member, Policy, ProcessState, Role, Trust};
use fide_lane::{Outlet, Terms};
use fide_net::{jitter::HostKind, pace::Ready};
use fide_types::{ClientSet, MAX_PLANES, host_index};
use fide_wire::{Ack, Builder, Key, Name, PIGGYBACK_MAX, Scheme};
use rustix::event::EventfdFlags;

use super::{
    bells::{RINGS_ALL_MAX, RINGS_MAX},
    ports::TOKEN_DOORBELL,
    *,
};
use crate::{
    clock::{HostClocks, Look},
    command::{Channel, Command, Memory, Reply},
    config,
};

/// The time now.
pub(super) fn now() -> Now {
    HostClocks.now()
}

/// A moment of the detector's clock.
pub(super) fn at(raw_ns: u64) -> Now {
    Now { mono_ns: raw_ns, raw_ns }
}

fn eventfd() -> std::os::fd::OwnedFd {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("a descriptor")
}

pub(super) fn engine() -> (Engine, Arc<Exchange>) {
    engine_of(1)
}

/// The engine of one of two hosts, with incarnation 7.
pub(super) fn engine_of(me: HostId) -> (Engine, Arc<Exchange>) {
    let name = |text: &str| Name::new(text.as_bytes()).expect("a name");
    let other = 3 - me;
    let monitors: HostSet = [other].into_iter().collect();
    let member =
        |id, text, of: u16| Member { id, name: name(text), role: Role::Voter, monitors: [of].into_iter().collect() };
    let config = Config {
        me,
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
        me,
        members: 2,
        monitors,
        heartbeat_ns: config.heartbeat_ns,
        timeouts: Timeouts {
            trust: config::Trust::Network,
            heartbeat_ns: config.heartbeat_ns,
            kind: HostKind::Shared,
            own_lateness_ns: 0,
            poll_ns: 0,
            fixed: true,
        },
        detector: Detector::new(config, now().raw_ns).expect("a detector"),
        senders: Vec::new(),
        trees: false,
        salvage: false,
        receivers: vec![None],
        polled: Vec::new(),
        poll_ns: 0,
        kernel: None,
        table: AliveTable::create(me, 2, 7, "h1", now().mono_ns).expect("a table"),
        names: vec![fide_agent_api::table::name_bytes("h1"), fide_agent_api::table::name_bytes("h2")],
        keys: Keys::from(Key([7; 16])),
        plain: Keys::from(Key([7; 16])),
        shape: Shape { trust: 1, policy: 1, members: 2, cluster: 0, list: 0 },
        name: name(["h1", "h2"][host_index(me)]),
        exchange: exchange.clone(),
        mode: Mode::Sleep,
        own_lateness_max_ns: 0,
        own_lateness_stored_ns: 0,
        votes: None,
        clock: Clock::begin(),
    };
    (Engine::new(now(), parts).expect("an engine"), exchange)
}

pub(super) fn memory() -> Box<Memory> {
    let region = AgentSession::create().expect("memory");
    Box::new(Memory { region, channel: Channel::Inbox(eventfd()), doorbell: eventfd() })
}

#[test]
fn session_of_many_watches_ends_over_several_turns() {
    let (mut engine, _exchange) = engine();
    assert!(engine.add_session(3, memory(), 0).is_none());
    assert!(engine.add_session(4, memory(), 0).is_none());
    let monitor = |client| Command::Monitor { client, host: 2, name: None, wanted: fide_detector::Wanted::default() };
    for client in std::iter::repeat_n(3, 5 * FORGOTTEN_PER_TURN).chain([4]) {
        assert!(matches!(engine.command(now(), monitor(client)), Reply::Monitored(Ok(_))));
    }
    engine.closing = Some(3);
    let mut turns = 1;
    loop {
        let before = engine.watches.len();
        engine.busy_turn = false;
        engine.commands(&mut HostClocks);
        assert!(before - engine.watches.len() <= FORGOTTEN_PER_TURN);
        if engine.closing.is_none() {
            break;
        }
        assert!(engine.busy_turn, "the next turn begins at once");
        turns += 1;
    }
    assert!(turns > 5 && engine.sessions.get(3).is_none());
    assert_eq!(
        (engine.watches.len(), engine.watches.clients(ProcessRef::of_host(2))),
        (1, ClientSet::only(4)),
        "of the other"
    );
}

#[test]
fn process_that_no_longer_beats_is_not_stalled() {
    for comes_back in [false, true] {
        let (mut engine, _exchange) = engine();
        assert!(engine.add_session(0, memory(), 0).is_none());
        let name = Name::new(b"beater").expect("a name");
        let joined = engine.command(now(), Command::Join { client: 0, name, beat_timeout_ns: 1_000_000 });
        let Reply::Joined(Ok(joined)) = joined else { panic!("{joined:?}") };
        let state = |engine: &Engine| engine.detector.process(1, joined.slot).expect("joined").state;
        let later = now().raw_ns + 10_000_000_000;
        engine.watch_beats(at(later));
        assert_eq!(state(&engine), ProcessState::Stalled);
        // Its session is over; it comes back without beats, or not at all.
        assert!(engine.end_session(0).is_some());
        if comes_back {
            assert!(engine.add_session(1, memory(), 0).is_none());
            let adopted = engine.command(now(), Command::Adopt { slot: joined.slot, client: 1, beat_timeout_ns: 0 });
            assert!(matches!(adopted, Reply::Adopted(Some(_))));
        }
        engine.watch_beats(at(later + 1));
        assert_eq!(state(&engine), ProcessState::Alive, "comes back: {comes_back}");
    }
}

#[test]
fn closed_and_replaced_memory_is_handed_back() {
    let (mut engine, _exchange) = engine();
    assert!(engine.add_session(0, memory(), 0).is_none());
    match engine.command(now(), Command::OpenSession { client: 0, memory: memory() }) {
        Reply::Closed(Some(_)) => {}
        other => panic!("{other:?}"),
    }
    assert!(matches!(engine.end_session(0), Some(Some(_))));
    assert!(matches!(engine.end_session(0), Some(None)), "there is none any more");
}

/// Heartbeat `seq` of the other host, which has answered this one.
pub(super) fn heartbeat(
    engine: &mut Engine,
    incarnation: u32,
    seq: u64,
    now: u64,
    fill: impl FnOnce(&mut Builder<'_>),
) -> bool {
    let mut bytes = [0; PAYLOAD_MAX];
    let other = 3 - engine.facts.me;
    let mut builder = Builder::heartbeat(&mut bytes, other, incarnation, seq).expect("room");
    builder.push_ack(Ack { incarnation: 7, seq_low: 0 }).expect("room");
    fill(&mut builder);
    let len = builder.finish();
    engine.detector.handle_packet(now, now, 0, &bytes[..len]).is_ok()
}

/// Hosts 1 and 2 have declared each other dead: host 2 has to begin again.
fn excluded() -> (Engine, Arc<Exchange>) {
    const TIMEOUT_NS: u64 = 60_000_000_000;
    let (mut engine, exchange) = engine_of(2);
    let mut now = now().raw_ns;
    assert!(heartbeat(&mut engine, 9, 1, now, |_| {}));
    engine.detector.tick(now);
    // Never later than a heartbeat, so that the host does not count itself stalled.
    for _ in 0..400 {
        now += TIMEOUT_NS / 200;
        engine.detector.tick(now);
    }
    let names_it = |packet: &mut Builder<'_>| assert_eq!(packet.excluded([(2, 7)].into_iter()), Ok(1));
    assert!(!heartbeat(&mut engine, 9, 2, now, names_it), "it is dead");
    assert!(engine.detector.is_excluded());
    (engine, exchange)
}

#[test]
fn loop_requests_generation_and_sees_it_stored() {
    let (mut engine, exchange) = engine();
    let config = Config { policy: Policy::Majority, ..engine.detector.config().clone() };
    engine.detector = Detector::new(config, now().raw_ns).expect("a detector");
    engine.detector.keeps_generations_up_to(0);
    engine.turn(&mut HostClocks);
    assert_eq!(exchange.generation_asked(), 0, "nobody was heard");
    let none = fide_wire::ViewRepr::steady(fide_wire::ViewId::NONE);
    assert!(heartbeat(&mut engine, 9, 1, now().raw_ns, |packet| packet.view(&none).expect("room")));
    engine.turn(&mut HostClocks);
    assert_eq!(exchange.generation_asked(), 9, "of a view that both may found");
    let is_rung = |fd| rustix::io::read(fd, &mut [0u8; 8]).is_ok();
    assert!(is_rung(exchange.control_fd()) && !is_rung(exchange.engine_fd()));
    exchange.keep_generation(9);
    assert!(is_rung(exchange.engine_fd()));
    engine.turn(&mut HostClocks);
    exchange.keep_generation(8);
    assert_eq!(
        (exchange.generation_kept(), is_rung(exchange.control_fd()), is_rung(exchange.engine_fd())),
        (9, false, false)
    );
}

#[test]
fn exclusion_is_visible_despite_a_full_record_queue() {
    let (mut engine, exchange) = excluded();
    let before = exchange.records_lost();
    let record = crate::command::Record { now_ns: 1, event: fide_detector::Event::Fenced { lease_until_ns: 1 } };
    while exchange.records_lost() == before {
        exchange.note(record);
    }
    engine.turn(&mut HostClocks);
    assert!(exchange.is_excluded() && exchange.records_lost() > before + 1);
    let incarnation = 8;
    assert!(matches!(engine.command(now(), Command::Restart { incarnation }), Reply::Done));
    assert!(!exchange.is_excluded());
}

#[test]
fn excluded_or_put_back_agent_repeats_nothing_during_takeover() {
    let (mut engine, exchange) = excluded();
    engine.turn(&mut HostClocks);
    engine.freeze(now());
    let before = engine.repeat.count();
    let mut bytes = [0; PAYLOAD_MAX];
    let len = Builder::heartbeat(&mut bytes, 2, 7, 1).expect("room").finish();
    engine.repeat.keep(&bytes[..len]);
    engine.repeat.begin(0);
    for _ in 0..3 {
        engine.turn(&mut HostClocks);
    }
    assert_eq!(engine.repeat.count(), before);
    engine.thaw();
    let incarnation = 3;
    let lower = engine.command(now(), Command::Restart { incarnation });
    assert!(matches!(lower, Reply::NotBegun(fide_detector::RestartError::Incarnation { .. })), "{lower:?}");
    assert!(exchange.is_excluded(), "as before");
}

#[test]
fn exclusion_is_visible_after_takeover() {
    let (mut engine, _) = excluded();
    let frozen = engine.freeze(now());
    let (mut next, exchange) = engine_of(2);
    next.detector = frozen.detector().expect("it was just written");
    next.resume(now(), frozen, Vec::new());
    assert!(!exchange.is_excluded(), "its record went to the agent before");
    let stops = exchange.clone();
    let stop = std::thread::spawn(move || stops.call(Command::Stop).is_ok());
    next.run().expect("stopped");
    assert!(stop.join().expect("no panic") && exchange.is_excluded());
}

/// Host 1, whose client 3 watches host 2 and has no room left for a record; host 2 is alive.
fn full_ring() -> (Engine, ClientSession) {
    let (mut engine, _exchange) = engine();
    let memory = memory();
    let client = ClientSession::map(rustix::io::dup(memory.region.as_fd()).expect("a descriptor")).expect("memory");
    assert!(engine.add_session(3, memory, 0).is_none());
    let wanted = fide_detector::Wanted::default();
    let watched = engine.command(now(), Command::Monitor { client: 3, host: 2, name: None, wanted });
    assert!(matches!(watched, Reply::Monitored(Ok(_))));
    let begun = now().raw_ns;
    assert!(heartbeat(&mut engine, 9, 1, begun, |_| {}));
    engine.detector.tick(begun);
    assert!(!engine.deliver_events(now(), EVENTS_PER_TURN));
    while engine.deliver(3, EventRecord::of_host(kind::PATH_LOST, 2), &[]) {}
    assert_eq!(client.lost(), 1, "the record that found no room");
    (engine, client)
}

/// The number of ends among the records that the client reads now.
fn ends(client: &mut ClientSession) -> usize {
    let (mut bytes, mut ends) = ([0; EVENT_MAX], 0);
    while let Some(bytes) = client.pop_inbox(&mut bytes).expect("an honest agent") {
        let (record, _) = EventRecord::split(bytes).expect("a record");
        ends += usize::from(record.kind == kind::VERDICT);
    }
    ends
}

/// Host 2 says goodbye.
fn leaves(engine: &mut Engine, seq: u64) {
    assert!(heartbeat(engine, 9, seq, now().raw_ns, |packet| packet.goodbye().expect("room")));
    engine.detector.tick(now().raw_ns);
    engine.deliver_events(now(), EVENTS_PER_TURN);
}

#[test]
fn host_end_is_delivered_once_a_full_ring_has_room() {
    let (mut engine, mut client) = full_ring();
    leaves(&mut engine, 2);
    engine.retry_undelivered(now());
    engine.retry_undelivered(now());
    assert_eq!(ends(&mut client), 0, "there was no room");
    for expected in [1, 0] {
        engine.retry_undelivered(now());
        assert_eq!(ends(&mut client), expected, "once");
    }
    assert_eq!(client.lost(), 1, "late, and not lost");
}

#[test]
fn undeliverable_end_counts_as_lost() {
    let (mut engine, client) = full_ring();
    leaves(&mut engine, 2);
    // It comes back before the client has made room.
    assert!(heartbeat(&mut engine, 10, 1, now().raw_ns, |_| {}));
    engine.detector.tick(now().raw_ns);
    engine.deliver_events(now(), EVENTS_PER_TURN);
    assert_eq!(client.lost(), 3, "the end, and that it is up again");
    let (mut engine, client) = full_ring();
    leaves(&mut engine, 2);
    engine.freeze(now());
    assert_eq!(client.lost(), 2, "a takeover");
}

#[test]
fn takeover_delivers_pending_events_first() {
    let (mut engine, _exchange) = engine();
    // More events than one turn delivers.
    for round in 0..u32::try_from(EVENTS_PER_TURN).expect("few") {
        assert!(heartbeat(&mut engine, 9 + round, 1, now().raw_ns, |_| {}));
        engine.detector.tick(now().raw_ns);
    }
    engine.freeze(now());
    assert!(engine.detector.poll_event().is_none());
}

/// Client 3 never reads, and watches as many programs of this host as it likes; client 4 watches the last
/// one.
#[test]
fn client_that_does_not_read_delays_no_ends_for_others() {
    const PROGRAMS: u8 = 40;
    let (mut engine, _exchange) = engine();
    assert!(engine.add_session(0, memory(), 0).is_none());
    let mut clients = [3, 4].map(|client| {
        let memory = memory();
        let session =
            ClientSession::map(rustix::io::dup(memory.region.as_fd()).expect("a descriptor")).expect("memory");
        assert!(engine.add_session(client, memory, 0).is_none());
        session
    });
    let mut slots = Vec::new();
    for n in 0..PROGRAMS {
        let name = Name::new(format!("p{n}").as_bytes()).expect("a name");
        let joined = engine.command(now(), Command::Join { client: 0, name, beat_timeout_ns: 0 });
        let Reply::Joined(Ok(joined)) = joined else { panic!("{joined:?}") };
        slots.push(joined.slot);
        for client in if n + 1 == PROGRAMS { vec![3, 4] } else { vec![3] } {
            let wanted = fide_detector::Wanted::default();
            let watched = engine.command(now(), Command::Monitor { client, host: 1, name: Some(name), wanted });
            assert!(matches!(watched, Reply::Monitored(Ok(_))));
        }
    }
    engine.deliver_events(now(), EVENTS_PER_TURN);
    for client in [3, 4] {
        while engine.deliver(client, EventRecord::of_host(kind::PATH_LOST, 2), &[]) {}
    }
    for slot in slots {
        engine.detector.process_changed(now().raw_ns, slot, ProcessState::Exited(0), now().mono_ns).expect("it ran");
    }
    engine.deliver_events(now(), EVENTS_PER_TURN);
    assert_eq!(ends(&mut clients[1]), 0, "there was no room");
    engine.retry_undelivered(now());
    assert_eq!(ends(&mut clients[1]), 1);
    assert_eq!(clients[1].lost(), 1, "of the noise");
}

/// The loop turns for a ring, but its rate is bounded, for one program and for many together.
#[test]
fn muted_clients_are_heard_again_after_a_period() {
    let (mut engine, _exchange) = engine();
    let bells: Vec<_> = (0..8u8)
        .map(|client| {
            let memory = memory();
            let bell = memory.doorbell.try_clone().expect("a descriptor");
            assert!(engine.add_session(client, memory, 0).is_none());
            bell
        })
        .collect();
    let mut ready = Ready::default();
    let mut rings = |engine: &mut Engine, clients: usize| {
        let mut heard = 0;
        for bell in bells[..clients].iter().cycle().take(3 * clients * RINGS_MAX as usize) {
            rustix::io::write(bell, &1u64.to_ne_bytes()).expect("rung");
            engine.ports.waiter.wait(now().mono_ns, &mut ready).expect("a wait");
            for client in ready.tokens().filter_map(|token| token.checked_sub(TOKEN_DOORBELL)) {
                engine.rung(u8::try_from(client).expect("a client"));
                // A bell with rings left in it rings once when it is heard again.
                heard += u32::from(client < clients as u64);
            }
        }
        heard
    };
    let (begun, period_ns) = (now().raw_ns, engine.facts.heartbeat_ns);
    assert_eq!((rings(&mut engine, 1), rings(&mut engine, 1)), (RINGS_MAX, 0));
    assert_eq!(engine.counters.bells_muted, 1);
    engine.hear_bells(at(begun));
    // A client is muted only after a ring that was heard.
    let most = RINGS_ALL_MAX + 8;
    let all = rings(&mut engine, 8);
    assert!((RINGS_ALL_MAX..most).contains(&all), "{all}");
    engine.hear_bells(at(begun + period_ns - 1));
    assert_eq!(rings(&mut engine, 8), 0, "the period is not over");
    engine.hear_bells(at(begun + period_ns));
    assert_eq!(rings(&mut engine, 1), RINGS_MAX);
    assert!(engine.close_session(0).is_some());
    engine.hear_bells(at(begun + 2 * period_ns));
    assert_eq!(rings(&mut engine, 1), 0, "its session is over");
}

/// Clocks that stand where a test sets them.
struct Manual {
    now: Now,
    /// How long the machine has been suspended so far.
    asleep_ns: u64,
}

impl Clocks for Manual {
    fn now(&mut self) -> Now {
        self.now
    }

    fn look(&mut self) -> (Look, bool) {
        let Now { mono_ns, raw_ns } = self.now;
        let boot_ns = mono_ns + self.asleep_ns;
        let look = Look {
            mono_ns,
            boot_ns,
            mono_after_ns: mono_ns,
            tsc: 0,
            raw_ns,
            tsc_after: 0,
            mono_last_ns: mono_ns,
            marker: None,
        };
        (look, true)
    }
}

#[test]
fn turn_uses_the_time_that_it_is_given() {
    let (mut engine, _exchange) = engine();
    let begun = now();
    let mut clocks = Manual { now: begun, asleep_ns: 0 };
    engine.clock = Clock::new(&clocks.look().0, false);
    let mut sent = Vec::new();
    for step in 0..40u64 {
        let later_ns = step * engine.facts.heartbeat_ns / 10;
        clocks.now = Now { mono_ns: begun.mono_ns + later_ns, raw_ns: begun.raw_ns + later_ns };
        engine.turn(&mut clocks);
        sent.push(engine.detector.counters().heartbeats_sent);
    }
    assert_eq!(sent.last(), Some(&4), "one in each period: {sent:?}");
    assert_eq!(engine.clock.doubts.suspended, 0);
    clocks.asleep_ns = 5_000_000_000;
    engine.turn(&mut clocks);
    assert_eq!((engine.clock.doubts.suspended, engine.clock.doubts.suspended_ns), (1, 5_000_000_000));
}

/// A clock that advances by a step each time it is read.
struct Ticking {
    now_ns: u64,
    step_ns: u64,
}

impl Clocks for Ticking {
    fn now(&mut self) -> Now {
        self.now_ns += self.step_ns;
        at(self.now_ns)
    }

    fn look(&mut self) -> (Look, bool) {
        Manual { now: self.now(), asleep_ns: 0 }.look()
    }
}

#[test]
fn each_lane_keeps_its_period_despite_slow_others() {
    const PERIOD_NS: u64 = 1_000_000;
    const STEP_NS: u64 = 100_000;
    let (mut engine, _exchange) = engine();
    let memory = memory();
    let mut session =
        ClientSession::map(rustix::io::dup(memory.region.as_fd()).expect("a descriptor")).expect("memory");
    assert!(engine.add_session(3, memory, 0).is_none());
    let begun_ns = now().mono_ns;
    let terms = Terms { packet_max_bytes: 200, period_ns: PERIOD_NS, scheme: Scheme::Chunks26 };
    for handle in 0..4u8 {
        let lane = crate::lane::Lane {
            name: Name::new(format!("l{handle}").as_bytes()).expect("a name"),
            outlet: Outlet::new(handle, 1, terms, begun_ns),
            trees: [const { None }; MAX_PLANES],
            clients: ClientSet::only(3),
            counters: Arc::default(),
        };
        assert!(engine.open_lane(handle, Box::new(lane)).is_none());
        session.push_lane(handle, 7, b"first").expect("room");
    }
    let mut clocks = Ticking { now_ns: begun_ns + 10 * PERIOD_NS, step_ns: STEP_NS };
    engine.serve_lanes(&mut clocks);
    let sent = |engine: &Engine| engine.lanes.views().flatten().map(|lane| lane.sent.packets).sum::<u64>();
    assert_eq!(sent(&engine), 4);
    let last_ns = clocks.now_ns;
    (0..4u8).for_each(|handle| session.push_lane(handle, 7, b"second").expect("room"));
    // The last lane has waited less than a period after the first one left.
    engine.serve_lanes(&mut Ticking { now_ns: last_ns - 3 * STEP_NS + PERIOD_NS, step_ns: 0 });
    assert_eq!(sent(&engine), 5, "the first alone is due again");
}
