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
/// Of host 2.
const HOST: u32 = 9;
const S: u64 = 1_000_000_000;

/// The number of the nth process of host 2.
fn process(nth: u32) -> u32 {
    (HOST << PROCESS_SHIFT) + nth
}

/// A client of a new agent, which watches `p` on host 2 and was told by the agent before that it is up.
struct Watcher {
    engine: Engine,
    session: ClientSession,
    seq: u64,
    now: u64,
    watch: u32,
}

impl Watcher {
    fn of(told: u32) -> Self {
        Self::of_host(2, told)
    }

    fn of_host(host: u16, told: u32) -> Self {
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
        let former = Command::Former { client: CLIENT, watch, slot: 0, incarnation: told, timeout_ns };
        assert!(matches!(engine.command(super::super::tests::now(), former), Reply::Done));
        Self { engine, session: session.expect("mapped"), seq: 0, now: raw_ns(), watch }
    }

    /// Host 2 is heard, and says that these processes called `p` are up.
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
        // Only what formers are told is looked at here.
        while self.engine.detector.poll_event().is_some() {}
    }

    /// Host 2 says that it has named all its processes.
    fn hears_that_all_are_named(&mut self) {
        self.seq += 1;
        let mut bytes = [0; PAYLOAD_MAX];
        let mut packet = Builder::heartbeat(&mut bytes, 2, HOST, self.seq).expect("room");
        // To this very incarnation, which it listens to.
        packet.push_ack(Ack { incarnation: OWN, seq_low: 1 }).expect("room");
        packet.all_named().expect("room");
        let len = packet.finish();
        assert!(self.engine.detector.handle_packet(self.now, self.now, 0, &bytes[..len]).is_ok());
    }

    /// What the client is told for so long, at each look.
    fn told(&mut self, ns: u64) -> Vec<(u32, EventRecord)> {
        let mut told = Vec::new();
        let until = self.now + ns;
        while self.now < until {
            self.hears(&[]);
            self.engine.deliver_former_ends(at(self.now));
            let mut bytes = [0; EVENT_MAX];
            while let Some(bytes) = self.session.pop_inbox(&mut bytes).expect("whole") {
                let record = EventRecord::split(bytes).expect("a record").0;
                told.push((record.watch, record));
            }
        }
        told
    }

    fn awaits(&self) -> usize {
        self.engine.formers.open.len()
    }
}

#[test]
fn successor_that_came_while_the_agent_was_away_ends_its_predecessor_once() {
    let mut watcher = Watcher::of(process(1));
    watcher.hears(&[(4, process(2))]);
    let told = watcher.told(3 * S);
    let expected = EventRecord { kind: kind::VERDICT, watch: watcher.watch, host: 2, ..EventRecord::default() };
    let expected = EventRecord { incarnation: process(1), ..expected }.with_reason(Reason::Exited(-1));
    let of =
        |record: &EventRecord| (record.kind, record.host, record.slot, record.incarnation, record.reason, record.code);
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!((told[0].0, of(&told[0].1)), (watcher.watch, of(&expected)));
    assert_eq!(watcher.awaits(), 0);
}

#[test]
fn process_that_is_still_there_is_not_ended_by_its_number() {
    // The host has numbered more than 4096: by its number the process is of the host's next life, or of one much later.
    for nth in [1, 4095, 4096, 4097, 3 * 4096 + 5] {
        let mut watcher = Watcher::of(process(nth));
        watcher.hears(&[(0, process(nth))]);
        let told = watcher.told(3 * S);
        assert!(told.is_empty() && watcher.awaits() == 0, "{nth}: {told:?}");
    }
}

#[test]
fn process_of_a_host_that_is_up_and_says_nothing_of_it_is_waited_for() {
    let mut watcher = Watcher::of(process(1));
    let told = watcher.told(3 * S);
    assert!(told.is_empty() && watcher.awaits() == 1, "{told:?}");
    // An earlier process of that name is no successor.
    let mut watcher = Watcher::of(process(5));
    watcher.hears(&[(4, process(2))]);
    let told = watcher.told(3 * S);
    assert!(told.is_empty() && watcher.awaits() == 1, "{told:?}");
}

#[test]
fn process_of_another_life_of_its_host_is_over() {
    let mut watcher = Watcher::of((HOST - 1) << PROCESS_SHIFT | 1);
    let told = watcher.told(3 * S);
    assert!(told.len() == 1 && watcher.awaits() == 0, "{told:?}");
    assert_eq!(told[0].1.reason, EventRecord::default().with_reason(Reason::HostSilent).reason);
}

#[test]
fn process_that_its_host_names_no_more_has_ended() {
    let mut watcher = Watcher::of(process(1));
    // Others are named, its slot among them, for as long as that takes.
    watcher.hears(&[]);
    assert!(watcher.told(20 * S).is_empty() && watcher.awaits() == 1);
    watcher.hears_that_all_are_named();
    let told = watcher.told(S);
    assert!(told.len() == 1 && watcher.awaits() == 0, "{told:?}");
    assert_eq!(told[0].1.reason, EventRecord::default().with_reason(Reason::Exited(-1)).reason);
}

#[test]
fn process_of_a_host_that_names_it_last_lives() {
    for nth in [1, 4097, 3 * 4096 + 5] {
        let mut watcher = Watcher::of(process(nth));
        assert!(watcher.told(20 * S).is_empty(), "its roster takes long");
        watcher.hears(&[(63, process(nth))]);
        watcher.hears_that_all_are_named();
        let told = watcher.told(20 * S);
        assert!(told.is_empty() && watcher.awaits() == 0, "{nth}: {told:?}");
    }
}

/// A host that has numbered so many processes in one life that the number of one no longer tells of which life it is.
#[test]
fn process_beyond_the_joins_of_a_life_lives_until_its_host_has_named_all() {
    for nth in [OF_A_LIFE, OF_A_LIFE + 5, MOST_OF_A_LIFE - 1] {
        let mut watcher = Watcher::of(process(nth));
        assert!(watcher.told(20 * S).is_empty(), "{nth}: its roster takes long");
        watcher.hears(&[(63, process(nth))]);
        watcher.hears_that_all_are_named();
        let told = watcher.told(20 * S);
        assert!(told.is_empty() && watcher.awaits() == 0, "{nth}: {told:?}");
        // Without it in the roster, or with its successor there, it is over.
        let silent = EventRecord::default().with_reason(Reason::HostSilent).reason;
        for named in [&[][..], &[(4, process(nth + 1))]] {
            let mut watcher = Watcher::of(process(nth));
            watcher.hears(named);
            if named.is_empty() {
                assert!(watcher.told(20 * S).is_empty(), "{nth}");
                watcher.hears_that_all_are_named();
            }
            let told = watcher.told(3 * S);
            assert!(told.len() == 1 && told[0].1.reason == silent && watcher.awaits() == 0, "{nth}: {told:?}");
        }
    }
}

/// Of host 1, whose agent is this one.
const OWN: u32 = 7;

/// Joins this host under the name that is watched.
fn joins(watcher: &mut Watcher) -> (u8, u32) {
    let name = Name::new(b"p").expect("a name");
    let joined =
        watcher.engine.command(super::super::tests::now(), Command::Join { client: CLIENT, name, beat_timeout_ns: 0 });
    let Reply::Joined(Ok(joined)) = joined else { panic!("{joined:?}") };
    while watcher.engine.detector.poll_event().is_some() {}
    (joined.slot, joined.incarnation)
}

/// What is told of a process of this host that an agent before has told to be up: when, in s, its number, and why.
fn told_of_own(watcher: &mut Watcher, until_s: u64) -> Vec<(u64, u32, u8)> {
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
fn process_of_this_host_is_over_with_its_life_once_its_program_had_time_to_join_again() {
    let former = (OWN - 1) << PROCESS_SHIFT | 1;
    let silent = EventRecord::default().with_reason(Reason::HostSilent).reason;
    let mut watcher = Watcher::of_host(1, former);
    // Twice the longest timeout, in which others may have granted it leases.
    assert_eq!(told_of_own(&mut watcher, 200), [(120, former, silent)]);
    assert_eq!(watcher.awaits(), 0);
    // Its program is alive and comes late: told as a new process, not as an exit.
    let (_, again) = joins(&mut watcher);
    assert!(is_newer(again, former));
    assert_eq!(told_of_own(&mut watcher, 200), []);
}

/// Numbers of processes come round after 12 days.
const DAYS: [u32; 8] = [1, 6, 7, 9, 12, 13, 20, 365];

#[test]
fn process_of_this_host_is_no_exit_however_long_the_agent_before_had_run() {
    let silent = EventRecord::default().with_reason(Reason::HostSilent).reason;
    for days in DAYS {
        let former = OWN.wrapping_sub(days * 86_400) << PROCESS_SHIFT | 1;
        let mut watcher = Watcher::of_host(1, former);
        assert_eq!(told_of_own(&mut watcher, 200), [(120, former, silent)], "{days} days");
        // Its program is back before.
        let mut watcher = Watcher::of_host(1, former);
        let again = joins(&mut watcher).1;
        assert_eq!(told_of_own(&mut watcher, 200), [(120, former, silent)], "{days} days, now {again}");
    }
}

#[test]
fn process_of_a_host_that_began_anew_is_no_exit_however_long_its_agent_before_had_run() {
    let silent = EventRecord::default().with_reason(Reason::HostSilent).reason;
    for days in DAYS {
        let former = HOST.wrapping_sub(days * 86_400) << PROCESS_SHIFT | 1;
        let mut watcher = Watcher::of(former);
        // Its program has joined again, and the host has named all.
        watcher.hears(&[(0, process(1))]);
        watcher.hears_that_all_are_named();
        let told = watcher.told(3 * S);
        assert!(told.len() == 1 && told[0].1.reason == silent, "{days} days: {told:?}");
    }
}

#[test]
fn process_of_this_host_that_is_up_or_was_told_is_not_ended_by_its_former() {
    let mut watcher = Watcher::of_host(1, OWN << PROCESS_SHIFT | 1);
    assert_eq!(joins(&mut watcher).1, OWN << PROCESS_SHIFT | 1);
    assert_eq!((told_of_own(&mut watcher, 200), watcher.awaits()), (vec![], 0));
}

#[test]
fn process_of_this_host_whose_place_was_given_away_has_ended() {
    let told = OWN << PROCESS_SHIFT | 1;
    let mut watcher = Watcher::of_host(1, told);
    let name = Name::new(b"q").expect("a name");
    let other =
        watcher.engine.command(super::super::tests::now(), Command::Join { client: CLIENT, name, beat_timeout_ns: 0 });
    assert!(matches!(other, Reply::Joined(Ok(_))));
    let exited = EventRecord::default().with_reason(Reason::Exited(-1)).reason;
    assert_eq!(told_of_own(&mut watcher, 8), [(0, told, exited)]);
}

/// Numbers come round, and this agent has given out one so far.
#[test]
fn process_of_this_host_with_a_number_that_was_not_given_out_yet_is_of_a_life_before() {
    let former = OWN << PROCESS_SHIFT | 2;
    let mut watcher = Watcher::of_host(1, former);
    assert_eq!(joins(&mut watcher).1, OWN << PROCESS_SHIFT | 1);
    let silent = EventRecord::default().with_reason(Reason::HostSilent).reason;
    assert_eq!(told_of_own(&mut watcher, 200), [(120, former, silent)]);
}

#[test]
fn formers_of_many_watches_are_looked_at_in_turns() {
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
fn numbers_of_processes_go_round() {
    for number in [0, 1, 4096, u32::MAX - 4095, u32::MAX] {
        assert!(is_newer(number.wrapping_add(1), number) && !is_newer(number, number.wrapping_add(1)));
        assert!(is_newer(number.wrapping_add(1 << 20), number) && !is_newer(number, number));
    }
}

#[test]
fn end_that_a_new_watch_is_told_at_once_is_for_that_watch_alone() {
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
    let mut told = Vec::new();
    while let Some(bytes) = session.pop_inbox(&mut bytes).expect("whole") {
        let record = EventRecord::split(bytes).expect("a record").0;
        told.push((record.kind, record.watch));
    }
    // Another watch of the same process, which was asked for and not told `up` yet, would take it for its own.
    assert_eq!(told, [(kind::UP, monitored.watch), (kind::VERDICT, monitored.watch)]);
}
