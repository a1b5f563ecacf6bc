// SPDX-License-Identifier: Apache-2.0
use std::os::fd::AsFd;

use fide_agent_api::event::EVENT_MAX;
use fide_agent_api::session::ClientSession;
use fide_sys::clock::raw_ns;
use fide_wire::{Ack, Builder, Name, PAYLOAD_MAX, ProcessState, Roster};

use super::{
    super::tests::{at, engine, heartbeat, memory},
    *,
};
use crate::command::{Command, Reply};

const CLIENT: u8 = 3;
/// Incarnation of host 2.
const HOST: u32 = 9;
const S: u64 = 1_000_000_000;

/// The number of the nth process of host 2.
fn process(nth: u32) -> u32 {
    (HOST << PROCESS_SHIFT) + nth
}

/// A client of a new agent. It watches `p` on host 2, which the agent before reported up.
struct Watcher {
    engine: Engine,
    session: ClientSession,
    seq: u64,
    now: u64,
    watch: u32,
}

impl Watcher {
    fn of(reported: u32) -> Self {
        Self::of_host(2, reported)
    }

    fn of_host(host: HostId, reported: u32) -> Self {
        let (mut engine, _) = engine();
        let memory = memory();
        let session = ClientSession::map(memory.region.as_fd().try_clone_to_owned().expect("a descriptor"));
        assert!(engine.add_session(CLIENT, memory, 0).is_none());
        let wanted = fide_detector::Wanted::default();
        let name = Some(Name::new(b"p").expect("a name"));
        let watch =
            match engine.command(super::super::tests::now(), Command::Monitor { client: CLIENT, host, name, wanted }) {
                Reply::Monitored(Ok(monitored)) => monitored.watch,
                other => panic!("{other:?}"),
            };
        let timeout_ns = 60 * S;
        let former = Command::Former { client: CLIENT, watch, slot: 0, incarnation: reported, timeout_ns };
        assert!(matches!(engine.command(super::super::tests::now(), former), Reply::Done));
        Self { engine, session: session.expect("mapped"), seq: 0, now: raw_ns(), watch }
    }

    /// A heartbeat of host 2 arrives, naming these processes called `p` as up.
    fn hears(&mut self, processes: &[(u8, u32)]) {
        self.seq += 1;
        self.now += S / 100;
        let (seq, now) = (self.seq, self.now);
        assert!(heartbeat(&mut self.engine, HOST, seq, now, |packet| {
            for (slot, incarnation) in processes {
                let name = Some(Name::new(b"p").expect("a name"));
                let (slot, incarnation, state) = (*slot, *incarnation, ProcessState::Alive);
                packet.roster(&Roster { slot, state, name, incarnation, pb_seq: 0, at_ns: 1 }).expect("room");
            }
        }));
        self.engine.detector.tick(now);
        // These tests read only events for formers.
        while self.engine.detector.poll_event().is_some() {}
    }

    /// Host 2 reports that it has named all its processes.
    fn hears_that_all_are_named(&mut self) {
        self.seq += 1;
        let mut bytes = [0; PAYLOAD_MAX];
        let mut packet = Builder::heartbeat(&mut bytes, 2, HOST, self.seq).expect("room");
        // To this very incarnation, which host 2 hears.
        packet.push_ack(Ack { incarnation: OWN, seq_low: 1 }).expect("room");
        packet.all_named().expect("room");
        let len = packet.finish();
        assert!(self.engine.detector.handle_packet(self.now, self.now, 0, &bytes[..len]).is_ok());
    }

    /// The records that the client gets during this time.
    fn delivered(&mut self, ns: u64) -> Vec<(u32, EventRecord)> {
        let mut delivered = Vec::new();
        let until = self.now + ns;
        while self.now < until {
            self.hears(&[]);
            self.engine.deliver_former_ends(at(self.now));
            let mut bytes = [0; EVENT_MAX];
            while let Some(bytes) = self.session.pop_inbox(&mut bytes).expect("whole") {
                let record = EventRecord::split(bytes).expect("a record").0;
                delivered.push((record.watch, record));
            }
        }
        delivered
    }

    fn awaits(&self) -> usize {
        self.engine.formers.open.len()
    }
}

#[test]
fn successor_ends_its_predecessor_once() {
    let mut watcher = Watcher::of(process(1));
    watcher.hears(&[(4, process(2))]);
    let delivered = watcher.delivered(3 * S);
    let expected = EventRecord { kind: kind::VERDICT, watch: watcher.watch, host: 2, ..EventRecord::default() };
    let expected = EventRecord { incarnation: process(1), ..expected }.with_reason(Reason::Exited(-1));
    let of =
        |record: &EventRecord| (record.kind, record.host, record.slot, record.incarnation, record.reason, record.code);
    assert_eq!(delivered.len(), 1, "{delivered:?}");
    assert_eq!((delivered[0].0, of(&delivered[0].1)), (watcher.watch, of(&expected)));
    assert_eq!(watcher.awaits(), 0);
}

#[test]
fn live_process_is_not_ended_by_its_number() {
    // The host has numbered more than 4096: by its number the process is of the host's next life, or of one
    // much later.
    for nth in [1, 4095, 4096, 4097, 3 * 4096 + 5] {
        let mut watcher = Watcher::of(process(nth));
        watcher.hears(&[(0, process(nth))]);
        let delivered = watcher.delivered(3 * S);
        assert!(delivered.is_empty() && watcher.awaits() == 0, "{nth}: {delivered:?}");
    }
}

#[test]
fn process_not_named_yet_is_waited_for() {
    let mut watcher = Watcher::of(process(1));
    let delivered = watcher.delivered(3 * S);
    assert!(delivered.is_empty() && watcher.awaits() == 1, "{delivered:?}");
    // An earlier process of that name is no successor.
    let mut watcher = Watcher::of(process(5));
    watcher.hears(&[(4, process(2))]);
    let delivered = watcher.delivered(3 * S);
    assert!(delivered.is_empty() && watcher.awaits() == 1, "{delivered:?}");
}

#[test]
fn process_of_another_life_of_its_host_is_over() {
    let mut watcher = Watcher::of((HOST - 1) << PROCESS_SHIFT | 1);
    let delivered = watcher.delivered(3 * S);
    assert!(delivered.len() == 1 && watcher.awaits() == 0, "{delivered:?}");
    assert_eq!(delivered[0].1.reason, EventRecord::default().with_reason(Reason::HostSilent).reason);
}

#[test]
fn process_no_longer_named_by_its_host_has_ended() {
    let mut watcher = Watcher::of(process(1));
    // Others are named, its slot among them, for as long as that takes.
    watcher.hears(&[]);
    assert!(watcher.delivered(20 * S).is_empty() && watcher.awaits() == 1);
    watcher.hears_that_all_are_named();
    let delivered = watcher.delivered(S);
    assert!(delivered.len() == 1 && watcher.awaits() == 0, "{delivered:?}");
    assert_eq!(delivered[0].1.reason, EventRecord::default().with_reason(Reason::Exited(-1)).reason);
}

#[test]
fn process_named_last_by_its_host_lives() {
    for nth in [1, 4097, 3 * 4096 + 5] {
        let mut watcher = Watcher::of(process(nth));
        assert!(watcher.delivered(20 * S).is_empty(), "its roster takes long");
        watcher.hears(&[(63, process(nth))]);
        watcher.hears_that_all_are_named();
        let delivered = watcher.delivered(20 * S);
        assert!(delivered.is_empty() && watcher.awaits() == 0, "{nth}: {delivered:?}");
    }
}

/// The host has numbered so many processes in one life that a process number does not identify a life any
/// more.
#[test]
fn process_with_a_high_number_lives_until_all_are_named() {
    for nth in [OF_A_LIFE, OF_A_LIFE + 5, MOST_OF_A_LIFE - 1] {
        let mut watcher = Watcher::of(process(nth));
        assert!(watcher.delivered(20 * S).is_empty(), "{nth}: its roster takes long");
        watcher.hears(&[(63, process(nth))]);
        watcher.hears_that_all_are_named();
        let delivered = watcher.delivered(20 * S);
        assert!(delivered.is_empty() && watcher.awaits() == 0, "{nth}: {delivered:?}");
        // Without it in the roster, or with its successor there, it is over.
        let silent = EventRecord::default().with_reason(Reason::HostSilent).reason;
        for named in [&[][..], &[(4, process(nth + 1))]] {
            let mut watcher = Watcher::of(process(nth));
            watcher.hears(named);
            if named.is_empty() {
                assert!(watcher.delivered(20 * S).is_empty(), "{nth}");
                watcher.hears_that_all_are_named();
            }
            let delivered = watcher.delivered(3 * S);
            assert!(
                delivered.len() == 1 && delivered[0].1.reason == silent && watcher.awaits() == 0,
                "{nth}: {delivered:?}"
            );
        }
    }
}

/// Incarnation of host 1, whose agent is this one.
const OWN: u32 = 7;

/// A process of this host joins under the watched name.
fn joins(watcher: &mut Watcher) -> (u8, u32) {
    let name = Name::new(b"p").expect("a name");
    let joined =
        watcher.engine.command(super::super::tests::now(), Command::Join { client: CLIENT, name, beat_timeout_ns: 0 });
    let Reply::Joined(Ok(joined)) = joined else { panic!("{joined:?}") };
    while watcher.engine.detector.poll_event().is_some() {}
    (joined.slot, joined.incarnation)
}

/// Verdicts on a process of this host that an agent before reported up: when, in s, its number, and why.
fn verdicts_on_own(watcher: &mut Watcher, until_s: u64) -> Vec<(u64, u32, u8)> {
    let begun = watcher.now;
    let mut all = Vec::new();
    for s in (0..until_s).step_by(4) {
        watcher.now = begun + s * S;
        watcher.engine.deliver_former_ends(at(watcher.now));
        let mut bytes = [0; EVENT_MAX];
        while let Some(bytes) = watcher.session.pop_inbox(&mut bytes).expect("whole") {
            let record = EventRecord::split(bytes).expect("a record").0;
            if record.kind == kind::VERDICT {
                all.push((s, record.incarnation, record.reason));
            }
        }
    }
    all
}

#[test]
fn own_process_of_an_earlier_life_ends_after_time_to_rejoin() {
    let former = (OWN - 1) << PROCESS_SHIFT | 1;
    let silent = EventRecord::default().with_reason(Reason::HostSilent).reason;
    let mut watcher = Watcher::of_host(1, former);
    // Twice the longest timeout, in which others may have granted it leases.
    assert_eq!(verdicts_on_own(&mut watcher, 200), [(120, former, silent)]);
    assert_eq!(watcher.awaits(), 0);
    // Its program is alive and comes late: reported as a new process, not as an exit.
    let (_, again) = joins(&mut watcher);
    assert!(is_newer(again, former));
    assert_eq!(verdicts_on_own(&mut watcher, 200), []);
}

/// Numbers of processes come round after 12 days.
const DAYS: [u32; 8] = [1, 6, 7, 9, 12, 13, 20, 365];

#[test]
fn own_former_process_is_no_exit_after_any_run_time() {
    let silent = EventRecord::default().with_reason(Reason::HostSilent).reason;
    for days in DAYS {
        let former = OWN.wrapping_sub(days * 86_400) << PROCESS_SHIFT | 1;
        let mut watcher = Watcher::of_host(1, former);
        assert_eq!(verdicts_on_own(&mut watcher, 200), [(120, former, silent)], "{days} days");
        // Its program comes back earlier.
        let mut watcher = Watcher::of_host(1, former);
        let again = joins(&mut watcher).1;
        assert_eq!(verdicts_on_own(&mut watcher, 200), [(120, former, silent)], "{days} days, now {again}");
    }
}

#[test]
fn former_process_of_a_restarted_host_is_no_exit_after_any_run_time() {
    let silent = EventRecord::default().with_reason(Reason::HostSilent).reason;
    for days in DAYS {
        let former = HOST.wrapping_sub(days * 86_400) << PROCESS_SHIFT | 1;
        let mut watcher = Watcher::of(former);
        // Its program has joined again, and the host has named all.
        watcher.hears(&[(0, process(1))]);
        watcher.hears_that_all_are_named();
        let delivered = watcher.delivered(3 * S);
        assert!(delivered.len() == 1 && delivered[0].1.reason == silent, "{days} days: {delivered:?}");
    }
}

#[test]
fn own_live_process_is_not_ended_by_its_former() {
    let mut watcher = Watcher::of_host(1, OWN << PROCESS_SHIFT | 1);
    assert_eq!(joins(&mut watcher).1, OWN << PROCESS_SHIFT | 1);
    assert_eq!((verdicts_on_own(&mut watcher, 200), watcher.awaits()), (vec![], 0));
}

#[test]
fn own_process_whose_slot_was_reused_has_ended() {
    let reported = OWN << PROCESS_SHIFT | 1;
    let mut watcher = Watcher::of_host(1, reported);
    let name = Name::new(b"q").expect("a name");
    let other =
        watcher.engine.command(super::super::tests::now(), Command::Join { client: CLIENT, name, beat_timeout_ns: 0 });
    assert!(matches!(other, Reply::Joined(Ok(_))));
    let exited = EventRecord::default().with_reason(Reason::Exited(-1)).reason;
    assert_eq!(verdicts_on_own(&mut watcher, 8), [(0, reported, exited)]);
}

/// Numbers wrap around, and this agent has given out one so far.
#[test]
fn own_process_with_unused_number_is_of_an_earlier_life() {
    let former = OWN << PROCESS_SHIFT | 2;
    let mut watcher = Watcher::of_host(1, former);
    assert_eq!(joins(&mut watcher).1, OWN << PROCESS_SHIFT | 1);
    let silent = EventRecord::default().with_reason(Reason::HostSilent).reason;
    assert_eq!(verdicts_on_own(&mut watcher, 200), [(120, former, silent)]);
}

#[test]
fn formers_are_checked_in_turns() {
    let mut watcher = Watcher::of(process(1));
    watcher.hears(&[(0, process(1))]);
    for n in 1..WATCHES_MAX {
        let name = Some(Name::new(format!("q{n}").as_bytes()).expect("a name"));
        let wanted = fide_detector::Wanted::default();
        let watched = watcher
            .engine
            .command(super::super::tests::now(), Command::Monitor { client: CLIENT, host: 2, name, wanted });
        let Reply::Monitored(Ok(granted)) = watched else { panic!("{n}: {watched:?}") };
        let incarnation = process(2 + u32::try_from(n).expect("few"));
        watcher.engine.note_former(CLIENT, granted.watch, 0, incarnation, 60 * S);
        // All of them are gone, with their watches.
        watcher.engine.watches.remove(CLIENT, granted.watch);
    }
    let mut looks = 0;
    while watcher.awaits() > 0 {
        let before = watcher.awaits();
        watcher.now += LOOK_NS;
        watcher.engine.deliver_former_ends(at(watcher.now));
        assert!((1..=FORMERS_PER_LOOK).contains(&(before - watcher.awaits())), "{before}");
        looks += 1;
    }
    assert_eq!(looks, WATCHES_MAX.div_ceil(FORMERS_PER_LOOK));
}

#[test]
fn process_numbers_wrap_around() {
    for number in [0, 1, 4096, u32::MAX - 4095, u32::MAX] {
        assert!(is_newer(number.wrapping_add(1), number) && !is_newer(number, number.wrapping_add(1)));
        assert!(is_newer(number.wrapping_add(1 << 20), number) && !is_newer(number, number));
    }
}

#[test]
fn known_end_is_delivered_only_to_the_new_watch() {
    let mut watcher = Watcher::of(process(1));
    watcher.hears(&[(4, process(1))]);
    let Watcher { engine, session, now, .. } = &mut watcher;
    assert!(heartbeat(engine, HOST, 9, *now + 1, |packet| {
        let name = Some(Name::new(b"p").expect("a name"));
        let (slot, incarnation, state) = (4, process(1), ProcessState::Exited(3));
        packet.roster(&Roster { slot, state, name, incarnation, pb_seq: 0, at_ns: 2 }).expect("room");
    }));
    let mut bytes = [0; EVENT_MAX];
    while session.pop_inbox(&mut bytes).expect("whole").is_some() {}
    let wanted = fide_detector::Wanted::default();
    let name = Some(Name::new(b"p").expect("a name"));
    let Reply::Monitored(Ok(monitored)) =
        engine.command(super::super::tests::now(), Command::Monitor { client: CLIENT, host: 2, name, wanted })
    else {
        panic!("no watch");
    };
    let mut delivered = Vec::new();
    while let Some(bytes) = session.pop_inbox(&mut bytes).expect("whole") {
        let record = EventRecord::split(bytes).expect("a record").0;
        delivered.push((record.kind, record.watch));
    }
    // Another watch of the same process, not notified of `up` yet, would take the end for its own.
    assert_eq!(delivered, [(kind::UP, monitored.watch), (kind::VERDICT, monitored.watch)]);
}
