// SPDX-License-Identifier: Apache-2.0
use super::*;
use fide_agent_api::event::kind;

fn granted(watch: u32, state: PeerState) -> MonitorOk {
    MonitorOk { watch, host_id: 2, timeout_us: 900, pbsize: 100, state, slot: 5, incarnation: 7 }
}

fn registry(watches: &[u32]) -> Registry {
    let mut registry = Registry::default();
    for watch in watches {
        registry.add_monitor("db@beta", Wanted::default(), granted(*watch, PeerState::Unknown));
    }
    registry
}

fn record(kind: u32, watch: u32, incarnation: u32) -> EventRecord {
    EventRecord { kind, watch, host: 2, slot: 5, incarnation, ..Default::default() }
}

fn feed(registry: &mut Registry, record: EventRecord, data: &[u8]) -> Vec<Event> {
    let mut delivered = Vec::new();
    registry.feed(&record, record.decode(data).unwrap(), |event| delivered.push(event));
    delivered
}

fn monitors(events: &[Event]) -> Vec<u32> {
    events
        .iter()
        .map(|event| match event {
            Event::Verdict(verdict) => verdict.monitor.0,
            Event::Up { monitor, .. } | Event::Piggyback { monitor, .. } => monitor.0,
            other => panic!("{other:?}"),
        })
        .collect()
}

fn verdict(watch: u32, incarnation: u32, reason: Reason) -> EventRecord {
    record(kind::VERDICT, watch, incarnation).with_reason(reason)
}

#[test]
fn verdict_is_delivered_once_by_either_path() {
    let mut registry = registry(&[11, 12]);
    assert_eq!(monitors(&feed(&mut registry, record(kind::UP, 11, 7), b"db@beta")), [1]);
    assert_eq!(monitors(&feed(&mut registry, record(kind::UP, 12, 7), b"db@beta")), [2]);
    assert_eq!(feed(&mut registry, record(kind::UP, 12, 7), b"db@beta"), []);
    let direct = EventRecord { flags: FLAG_DIRECT, ..verdict(0, 7, Reason::Killed(9)) };
    let delivered = feed(&mut registry, direct, b"");
    assert_eq!(monitors(&delivered), [1, 2], "without a watch id it is for all who watch");
    let Event::Verdict(first) = &delivered[0] else { panic!() };
    assert_eq!((&*first.target, first.reason, first.evidence.direct), ("db@beta", Reason::Killed(9), true));
    assert_eq!(first.evidence.at_ns, None);
    assert_eq!(feed(&mut registry, verdict(11, 7, Reason::HostSilent), b""), []);
    assert_eq!(feed(&mut registry, direct, b""), []);
    assert_eq!((registry.duplicates, registry.unknown), (4, 0));
    assert_eq!(registry.newest(MonitorId(1)), Some((2, 5, 7, true)));
}

#[test]
fn direct_verdict_needs_the_exact_incarnation() {
    let mut registry = registry(&[11]);
    assert_eq!(feed(&mut registry, verdict(0, 7, Reason::Killed(9)), b""), [], "never seen up");
    feed(&mut registry, record(kind::UP, 11, 8), b"");
    assert_eq!(feed(&mut registry, verdict(0, 7, Reason::Killed(9)), b""), [], "of the one before");
    let host = EventRecord { slot: fide_types::HOST_SLOT, ..verdict(0, 8, Reason::HostSilent) };
    assert_eq!(feed(&mut registry, host, b""), []);
    assert_eq!(registry.unknown, 3);
    assert_eq!(registry.newest(MonitorId(1)), Some((2, 5, 8, false)));
}

#[test]
fn reports_of_older_processes_by_a_new_agent_are_dropped() {
    let mut registry = registry(&[11]);
    assert_eq!(feed(&mut registry, record(kind::UP, 11, 0x5003), b"").len(), 1);
    // Another watch of the same monitor: the agent is a new one.
    registry.monitors.get_mut(&1).unwrap().register(granted(12, PeerState::Unknown));
    let former = |record: EventRecord| EventRecord { slot: 6, ..record };
    assert_eq!(feed(&mut registry, former(record(kind::UP, 12, 0x5001)), b""), [], "its successor was delivered");
    assert_eq!(feed(&mut registry, former(verdict(12, 0x5001, Reason::Left)), b""), []);
    assert_eq!(registry.open(1), Some((5, 0x5003)), "what the next agent has to know");
    assert_eq!(feed(&mut registry, record(kind::UP, 12, 0x5003), b""), [], "as before");
    assert_eq!(feed(&mut registry, verdict(12, 0x5003, Reason::Killed(9)), b"").len(), 1);
    // The numbers of another life say nothing about the order.
    assert_eq!(feed(&mut registry, record(kind::UP, 12, 0x4001), b"").len(), 1);
}

/// A new agent that has heard only a machine that was put back names a process older than the last one
/// delivered.
#[test]
fn older_process_in_a_new_agents_reply_stays_unknown() {
    let mut registry = registry(&[11]);
    assert_eq!(feed(&mut registry, record(kind::UP, 11, 0x5003), b"").len(), 1);
    let former = MonitorOk { incarnation: 0x5001, ..granted(12, PeerState::Alive) };
    registry.monitors.get_mut(&1).unwrap().register(former);
    assert_eq!(feed(&mut registry, record(kind::UP, 12, 0x5001), b""), []);
    assert_eq!(registry.open(1), Some((5, 0x5003)));
}

#[test]
fn reply_to_monitor_makes_an_incarnation_known() {
    let mut registry = Registry::default();
    registry.add_monitor("db@beta", Wanted::default(), granted(11, PeerState::Alive));
    assert_eq!(feed(&mut registry, verdict(0, 7, Reason::Exited(3)), b"").len(), 1);
}

#[test]
fn verdict_with_watch_id_is_believed_without_up() {
    let mut registry = registry(&[11]);
    assert_eq!(feed(&mut registry, verdict(11, 9, Reason::HostSilent), b"").len(), 1);
    assert_eq!(feed(&mut registry, verdict(99, 9, Reason::HostSilent), b""), [], "somebody else's watch");
    assert_eq!(registry.unknown, 1);
}

#[test]
fn stalls_come_and_go_until_the_end() {
    let mut registry = registry(&[11]);
    let mut deliver = |reason| feed(&mut registry, verdict(11, 7, reason), b"").len();
    assert_eq!(deliver(Reason::Recovered), 0);
    assert_eq!(deliver(Reason::Stalled), 1);
    assert_eq!(deliver(Reason::Stalled), 0);
    assert_eq!(deliver(Reason::Recovered), 1);
    assert_eq!(deliver(Reason::Stalled), 1);
    assert_eq!(deliver(Reason::Killed(6)), 1);
    assert_eq!(deliver(Reason::Recovered), 0);
    assert_eq!(deliver(Reason::Killed(6)), 0);
}

#[test]
fn piggybacks_are_delivered_once_and_never_after_death() {
    let mut registry = registry(&[11]);
    feed(&mut registry, record(kind::UP, 11, 7), b"");
    let mut deliver = |seq| feed(&mut registry, EventRecord { seq, ..record(kind::PIGGYBACK, 0, 7) }, b"hi").len();
    assert_eq!([deliver(1), deliver(3), deliver(2), deliver(3), deliver(1)], [1, 1, 1, 0, 0]);
    assert_eq!([deliver(200), deliver(136), deliver(137), deliver(137)], [1, 0, 1, 0], "64 numbers are remembered");
    feed(&mut registry, verdict(0, 7, Reason::Killed(9)), b"");
    assert_eq!(feed(&mut registry, EventRecord { seq: 201, ..record(kind::PIGGYBACK, 0, 7) }, b"zombie"), []);
}

#[test]
fn only_the_last_incarnations_are_remembered() {
    let mut registry = registry(&[11]);
    for incarnation in 1..=SUBJECTS_MAX as u32 + 1 {
        assert_eq!(feed(&mut registry, record(kind::UP, 11, incarnation), b"").len(), 1);
    }
    assert_eq!(feed(&mut registry, verdict(0, 1, Reason::Left), b""), []);
    assert_eq!(feed(&mut registry, verdict(0, 2, Reason::Left), b"").len(), 1);
}

#[test]
fn events_of_own_processes_find_them_by_slot() {
    let mut registry = Registry::default();
    let id = registry.add_process("me", 0, 0, JoinOk { slot: 5, incarnation: 1, pbsize: 10 });
    let request = EventRecord { code: 64, ..record(kind::MONITOR_REQ, 0, 0) };
    let delivered = feed(&mut registry, request, b"you@gamma");
    let expected = Event::MonitorRequest { process: id, watcher_host_id: 2, watcher: "you@gamma".into(), pbsize: 64 };
    assert_eq!(delivered, [expected]);
    let change = EventRecord { code: 20, ..record(kind::PBSIZE_CHANGED, 0, 0) };
    assert_eq!(feed(&mut registry, change, b""), [Event::PbsizeChanged { process: id, pbsize: 20 }]);
    assert_eq!(registry.processes[&id.0].granted.pbsize, 20);
    assert_eq!(feed(&mut registry, EventRecord { slot: 6, ..change }, b""), []);
    assert_eq!(registry.unknown, 1);
}
