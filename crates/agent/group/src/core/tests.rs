// SPDX-License-Identifier: Apache-2.0

use std::{cell::RefCell, collections::VecDeque, convert::Infallible, rc::Rc};

use fide_agreement::{Hsuc, group};
use fide_client::{Evidence, MonitorId, Reason, Verdict};

use super::*;
use crate::{Config, Key, Versions, hsuc, packet::Sender};

/// What happened, in order: an event of the agent was taken, or packets were.
type Order = Rc<RefCell<Vec<&'static str>>>;

struct FakeAgent {
    order: Order,
    events: VecDeque<Event>,
    watched_again: Vec<u16>,
}

impl Agent for FakeAgent {
    type Error = Infallible;

    fn poll_event(&mut self) -> Result<Option<Event>, Infallible> {
        let event = self.events.pop_front();
        if event.is_some() {
            self.order.borrow_mut().push("event");
        }
        Ok(event)
    }

    fn lease(&self) -> Lease {
        Lease { now_ns: 1, until_ns: 2 }
    }

    fn is_heard_by(&self, _: u16) -> bool {
        true
    }

    fn piggyback(&mut self, _: &[u8]) -> bool {
        true
    }

    fn watch_again(&mut self, host: HostId) -> Result<Option<u32>, Infallible> {
        self.watched_again.push(host);
        Ok(None)
    }
}

struct FakePort(Order);

impl Port for FakePort {
    fn receive(&mut self, _: impl FnMut(Result<Opened<'_>, PacketError>)) {
        self.0.borrow_mut().push("packets");
    }

    fn push(&mut self, _: HostSet, _: &[u8], _: &dyn Fn(u16) -> usize) {}

    fn begin(&mut self, _: u16, _: bool) {}

    fn flush(&mut self, _: &dyn Fn(u16) -> usize) {}
}

/// The fault with which the only test of this process is run.
#[cfg(feature = "planted")]
const ARMED: &str = "FIDE_PLANTED";

fn core() -> Core<Hsuc> {
    #[cfg(feature = "planted")]
    if let Ok(name) = std::env::var(ARMED) {
        planted::arm(Planted::ALL.iter().find(|fault| format!("{fault:?}") == name).copied());
    }
    let key = "00112233445566778899aabbccddeeff".parse::<Key>().unwrap();
    let config = Config::new("g", &["a", "b", "c"], key, "/", hsuc(4));
    let config = group::Config {
        group: 7,
        me: 1,
        incarnation: 10,
        hosts: HostSet::first(3),
        setting: config.setting,
        tail_max: config.tail_max,
        transfer: config.transfer(),
    };
    Core::new(config, true, 3_000_000).unwrap()
}

fn world(events: impl IntoIterator<Item = Event>) -> (Order, FakeAgent, FakePort) {
    let order = Order::default();
    let agent = FakeAgent { order: Rc::clone(&order), events: events.into_iter().collect(), watched_again: Vec::new() };
    (Rc::clone(&order), agent, FakePort(order))
}

fn evidence(host_id: u16, slot: u8, incarnation: u32) -> Evidence {
    Evidence { host_id, slot, incarnation, seq: 0, rx_ns: 0, at_ns: None, plane: 0, direct: false }
}

fn up(host: HostId, incarnation: u32) -> Event {
    Event::Up { monitor: MonitorId(1), target: "g@b".into(), evidence: evidence(host, 0, incarnation) }
}

fn ended(host: HostId, incarnation: u32) -> Event {
    let (monitor, reason) = (MonitorId(1), Reason::Exited(0));
    Event::Verdict(Verdict { monitor, target: "g@b".into(), reason, evidence: evidence(host, 0, incarnation) })
}

#[test]
fn packets_wait_for_all_events_of_the_agent() {
    for count in [1, EVENTS_PER_TURN, EVENTS_PER_TURN + 1, 5 * EVENTS_PER_TURN + 3] {
        let (order, mut agent, mut port) = world((0..count).map(|_| Event::Fenced));
        let mut core = core();
        core.before_wait(5, &mut agent, &mut port);
        // Only the first poll finds the agent's descriptor readable.
        core.after_wait(&mut agent, &mut port, true, true).unwrap();
        let mut turns = 1;
        while core.due_ns() == 0 {
            core.after_wait(&mut agent, &mut port, false, true).unwrap();
            turns += 1;
            assert!(turns < 20, "the member is busy for ever");
        }
        let mut want = vec!["event"; count];
        want.push("packets");
        assert_eq!(*order.borrow(), want, "{count} events");
    }
}

/// In a process of its own, as a fault is armed for a whole process.
#[cfg(feature = "planted")]
#[test]
fn planted_faults_of_the_turns_order_are_found() {
    let faults = [
        ("TakesPacketsFirst", "packets_wait_for_all_events_of_the_agent"),
        // In the simulator the others refuse what such a member would do.
        ("AsksTheNewAgent", "processes_unknown_to_a_new_agent_are_not_dead"),
    ];
    for (fault, test) in faults {
        let run = |fault: &str| {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", &format!("core::tests::{test}")]).env(ARMED, fault).output().unwrap()
        };
        let well = run("none");
        let said = String::from_utf8_lossy(&well.stdout).into_owned();
        assert!(well.status.success() && said.contains("1 passed"), "without a fault: {said}");
        assert!(!run(fault).status.success(), "{fault} is not found");
    }
}

#[test]
fn events_per_turn_are_bounded() {
    let (_, mut agent, mut port) = world((0..3 * EVENTS_PER_TURN).map(|_| Event::Fenced));
    core().after_wait(&mut agent, &mut port, true, true).unwrap();
    assert_eq!(agent.events.len(), 2 * EVENTS_PER_TURN);
}

#[test]
fn watches_begin_anew_only_after_all_events() {
    let events = std::iter::once(Event::Lost { count: 1 }).chain((0..EVENTS_PER_TURN).map(|_| Event::Fenced));
    let (_, mut agent, mut port) = world(events);
    let mut core = core();
    core.after_wait(&mut agent, &mut port, true, false).unwrap();
    assert!(agent.watched_again.is_empty(), "what is still to come is older");
    core.after_wait(&mut agent, &mut port, false, false).unwrap();
    assert_eq!(agent.watched_again, [2, 3]);
}

/// The new agent has not heard yet which processes are up.
#[test]
fn processes_unknown_to_a_new_agent_are_not_dead() {
    let events = [up(2, 5), Event::Lost { count: 1 }, Event::Reattached { resumed: false }];
    let (_, mut agent, mut port) = world(events);
    let mut core = core();
    core.after_wait(&mut agent, &mut port, true, false).unwrap();
    assert!(core.is_excluded() && agent.watched_again.is_empty(), "{:?}", agent.watched_again);
}

/// A packet of a process comes. Whether its sender is known to be up.
fn heard(core: &mut Core<Hsuc>, process: u32, incarnation: u32) -> bool {
    core.liveness.note_packet(Sender { host: 2, process, incarnation }, Spoken::default(), &mut core.group)
}

fn hears(core: &mut Core<Hsuc>, events: impl IntoIterator<Item = Event>) {
    let (_, mut agent, mut port) = world(events);
    core.after_wait(&mut agent, &mut port, true, false).unwrap();
}

#[test]
fn late_report_of_a_former_process_changes_nothing() {
    let mut core = core();
    let (old, new) = (7 << 12 | 1, 7 << 12 | 2);
    hears(&mut core, [up(2, new)]);
    assert!(heard(&mut core, new, 31));
    hears(&mut core, [up(2, old), ended(2, old)]);
    assert!(heard(&mut core, new, 31) && core.liveness.is_member(2, new), "it is up");
    assert!(!heard(&mut core, old, 30));
    // Nor does it once the successor has ended.
    hears(&mut core, [ended(2, new), up(2, old)]);
    assert!(!core.liveness.is_up(2));
}

#[test]
fn process_of_a_later_agent_life_is_up_after_numbers_wrapped() {
    // Days later, numbers are lower.
    for (before, after) in [(7 << 12 | 3, 8 << 12 | 1), (800 << 12 | 1, 7 << 12 | 1), (u32::MAX, 1 << 12 | 1)] {
        let mut core = core();
        hears(&mut core, [up(2, before), ended(2, before), up(2, after)]);
        assert!(core.liveness.is_up(2) && heard(&mut core, after, 31), "{before:x} {after:x}");
    }
}

#[test]
fn process_without_a_common_version_is_no_member() {
    let mut core = core();
    core.set_spoken(Spoken { service: Versions::up_to(2), ..Spoken::default() });
    let hear = |core: &mut Core<Hsuc>, newest, process| {
        let spoken = Spoken { service: Versions::up_to(newest), ..Spoken::default() };
        core.liveness.note_packet(Sender { host: 2, process, incarnation: 30 + process }, spoken, &mut core.group)
    };
    assert_eq!(core.liveness.common(), (2, 2), "nobody else is there");
    // Its packet comes before the agent's report.
    assert!(!hear(&mut core, 4, 1));
    hears(&mut core, [up(2, 1)]);
    assert!(!hear(&mut core, 4, 1) && !core.liveness.is_member(2, 1));
    assert_eq!(
        core.liveness.refused().map(|(host, spoken)| (host, spoken.service.newest)).collect::<Vec<_>>(),
        [(2, 4)]
    );
    assert_eq!(core.liveness.common(), (2, 2), "it is never let in");
    // The next process of that host has said nothing yet, then speaks the former version, and the next one.
    hears(&mut core, [ended(2, 1), up(2, 2)]);
    assert_eq!((core.liveness.refused().count(), core.liveness.common()), (0, (1, 1)));
    assert!(hear(&mut core, 1, 2) && core.liveness.is_member(2, 2));
    assert_eq!(core.liveness.common(), (2, 1));
    hears(&mut core, [ended(2, 2), up(2, 3)]);
    assert!(hear(&mut core, 3, 3));
    assert_eq!(core.liveness.common(), (2, 2));
    // A packet of the former one comes late.
    hear(&mut core, 1, 2);
    assert!(hear(&mut core, 3, 3));
    assert_eq!(core.liveness.common(), (2, 2));
}
