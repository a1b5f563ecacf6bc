// SPDX-License-Identifier: Apache-2.0
//! Notices: the receive program notifies exactly the waiting clients, once.

use std::os::fd::AsFd;

use fide_agent_api::event::{EventRecord, FLAG_DIRECT, kind};
use fide_agent_api::session::{AgentSession, ClientSession, SESSION_BYTES};
use fide_shm::region::Mapping;
use fide_wire::{HOST_SLOT, PIGGYBACK_MAX, ProcessState, Roster};
use rustix::{fs::FallocateFlags, mm::Advice};

use super::rig::{ClientRing, INCARNATION, KEY, Rig, XDP_DROP, frame, notice, notice_of, run};
use crate::intf::{ADMIT_DEAD, Admit, PACKET_NOTICE, PACKET_UNADMITTED};
use crate::{ClientRings, Notified};
use fide_types::{HostId, MAX_CLIENTS, ProcessRef, Reason};

const PROCESS: u32 = 3;
const SLOT: u8 = 2;
/// The process that is watched.
const SUBJECT: ProcessRef = ProcessRef::new(1, SLOT);

/// The agent's own record of the same death.
fn verdict(host: HostId, slot: u8, incarnation: u32) -> Vec<u8> {
    let record = EventRecord { kind: kind::VERDICT, host, slot, incarnation, ..EventRecord::default() };
    let mut bytes = [0; fide_agent_api::event::EVENT_MAX];
    record.with_reason(Reason::Killed(9)).encode(&[], &mut bytes).expect("small").to_vec()
}

fn record(bytes: &[u8]) -> EventRecord {
    let (record, data) = EventRecord::split(bytes).expect("a record");
    assert!(data.is_empty());
    record
}

#[test]
fn root_death_notifies_directly_and_once() {
    let Some(mut rig) = Rig::new() else { return };
    let mut rings = [0, 5, 63].map(|client| ClientRing::open(&rig, client));
    let mut stranger = ClientRing::open(&rig, 7);
    rig.receive.begin_watch(SUBJECT, PROCESS, 1 << 0 | 1 << 5 | 1 << 63, 4);
    for plane in [1, 0, 1, 0] {
        assert_eq!(rig.run(&notice(1, SLOT, PROCESS, 4, plane)), XDP_DROP);
    }
    let news = rig.wakes();
    assert_eq!(news.len(), 4, "the agent reads all of them");
    assert!(news.iter().all(|(wake, _)| wake.detail == PACKET_NOTICE));
    for ring in &mut rings {
        let records = ring.take();
        assert_eq!(records.len(), 1);
        let verdict = record(&records[0]);
        assert_eq!((verdict.kind, verdict.host, verdict.slot, verdict.incarnation), (kind::VERDICT, 1, SLOT, PROCESS));
        assert_eq!(
            (verdict.reason, verdict.code, verdict.seq, verdict.at_ns),
            (fide_types::process::reason::KILLED, 9, 42, 123_456_789)
        );
        assert_eq!((verdict.plane, verdict.flags, verdict.watch, verdict.data_len), (1, FLAG_DIRECT, 0, 0));
        assert_eq!(verdict.rx_ns, news[0].0.ns);
    }
    assert!(stranger.take().is_empty());
    assert_eq!(rig.receive.stats().notified_directly, 1);
    assert_eq!(rig.receive.notify_watch(SUBJECT, &verdict(1, SLOT, PROCESS)), Notified::Before);
    assert!(rings.iter_mut().all(|ring| ring.take().is_empty()));
}

#[test]
fn root_agent_notified_first() {
    let Some(mut rig) = Rig::new() else { return };
    let mut ring = ClientRing::open(&rig, 1);
    rig.receive.begin_watch(SUBJECT, PROCESS, 1 << 1, 0);
    let mine = verdict(1, SLOT, PROCESS);
    assert_eq!(rig.receive.notify_watch(SUBJECT, &mine), Notified::Yes);
    rig.run(&notice(1, SLOT, PROCESS, 0, 0));
    assert_eq!(ring.take(), std::slice::from_ref(&mine));
    assert_eq!(rig.receive.notify_watch(SUBJECT, &mine), Notified::Before);
    assert_eq!(rig.receive.stats().notified_directly, 0);
    assert_eq!(
        rig.receive.notify_watch(SUBJECT, &verdict(1, SLOT, PROCESS + 1)),
        Notified::Nobody,
        "another incarnation"
    );
    // The next process in that slot is a new notification.
    rig.receive.begin_watch(SUBJECT, PROCESS + 1, 1 << 1, 0);
    rig.run(&notice(1, SLOT, PROCESS, 0, 0));
    assert!(ring.take().is_empty(), "an old notice says nothing of the new one");
    rig.run(&notice(1, SLOT, PROCESS + 1, 0, 0));
    assert_eq!(record(&ring.take()[0]).incarnation, PROCESS + 1);
}

#[test]
fn root_each_reason_and_only_ends() {
    let Some(mut rig) = Rig::new() else { return };
    let mut ring = ClientRing::open(&rig, 0);
    let states = [
        (ProcessState::Exited(3), Some(Reason::Exited(3))),
        (ProcessState::Exited(-1), Some(Reason::Exited(-1))),
        (ProcessState::Killed(11), Some(Reason::Killed(11))),
        (ProcessState::Left, None),
        (ProcessState::Stalled, None),
        (ProcessState::Alive, None),
    ];
    for (incarnation, (state, reason)) in (1u32..).zip(states) {
        rig.receive.begin_watch(ProcessRef::new(5, 63), incarnation, 1, 0);
        let roster = Roster { slot: 63, state, name: None, incarnation, pb_seq: 0, at_ns: 1 };
        rig.run(&notice_of(5, 0, &roster));
        let notices: Vec<_> = ring.take();
        let expected: Vec<_> = reason
            .map(|reason| EventRecord { kind: kind::VERDICT, ..EventRecord::default() }.with_reason(reason))
            .into_iter()
            .map(|record| (record.reason, record.code))
            .collect();
        let notices: Vec<_> = notices.iter().map(|bytes| (record(bytes).reason, record(bytes).code)).collect();
        assert_eq!(notices, expected, "{state:?}");
        assert_eq!(rig.wakes().len(), 1, "{state:?} reaches the agent");
    }
}

#[test]
fn root_piggybacks_come_before_the_verdict() {
    let Some(mut rig) = Rig::new() else { return };
    let mut ring = ClientRing::open(&rig, 0);
    rig.receive.begin_watch(SUBJECT, PROCESS, 1, 0);
    rig.receive.watch_piggyback(SUBJECT, 8);
    rig.run(&notice(1, SLOT, PROCESS, 9, 0));
    assert!(ring.take().is_empty(), "the ninth is still on its way");
    assert_eq!(rig.wakes().len(), 1, "the agent brings the two in order");
    rig.receive.watch_piggyback(SUBJECT, 9);
    rig.run(&notice(1, SLOT, PROCESS, 9, 1));
    assert_eq!(ring.take().len(), 1);
}

#[test]
fn root_forged_foreign_and_broken_notices_notify_nobody() {
    let Some(mut rig) = Rig::new() else { return };
    let mut ring = ClientRing::open(&rig, 0);
    rig.receive.begin_watch(SUBJECT, PROCESS, 1, 0);
    let good = notice(1, SLOT, PROCESS, 0, 0);
    for bit in 0..good.len() * 8 {
        let mut forged = good.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        rig.run(&forged);
    }
    assert_eq!(rig.receive.stats().bad_tag, good.len() as u64 * 8);
    assert!(rig.wakes().is_empty());

    let resealed = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut payload = good.clone();
        change(&mut payload);
        fide_wire::seal(&mut payload, 0, &KEY);
        payload
    };
    let malformed = [
        resealed(&|p| p.push(0)),
        resealed(&|p| p.truncate(55)),
        resealed(&|p| p[7] = 2),
        resealed(&|p| p[6] = 1),
        resealed(&|p| p[28] = 2),
        resealed(&|p| p[29] = 64),
        resealed(&|p| p[29] = HOST_SLOT),
        resealed(&|p| p[30] = 23),
    ];
    for payload in &malformed {
        rig.run(payload);
    }
    assert_eq!(rig.receive.stats().malformed, malformed.len() as u64);
    assert!(rig.wakes().is_empty());

    rig.run(&notice(1, SLOT, PROCESS + 1, 0, 0));
    rig.run(&notice(1, SLOT, PROCESS - 1, 0, 0));
    rig.run(&notice(1, SLOT + 1, PROCESS, 0, 0));
    rig.run(&notice(2, SLOT, PROCESS, 0, 0));
    assert_eq!(rig.wakes().len(), 4, "nobody waits for these, the agent reads them");
    // Of a host incarnation that is over, or not yet admitted.
    for (incarnation, flags) in [(INCARNATION, ADMIT_DEAD), (INCARNATION - 1, 0), (INCARNATION + 1, 0)] {
        rig.receive.admit(1, Admit { incarnation, flags, timeout_ns: 0 });
        rig.run(&good);
    }
    assert!(rig.wakes().iter().all(|(wake, _)| wake.detail == PACKET_UNADMITTED));
    assert!(ring.take().is_empty());
    assert_eq!(rig.receive.stats().notified_directly, 0);
    rig.receive.admit(1, Admit { incarnation: INCARNATION, flags: 0, timeout_ns: 0 });
    rig.run(&good);
    assert_eq!(ring.take().len(), 1, "and the true notice is delivered");
}

#[test]
fn root_a_full_ring_is_remembered_and_hurts_nobody_else() {
    let Some(mut rig) = Rig::new() else { return };
    let (mut full, mut other) = (ClientRing::open(&rig, 3), ClientRing::open(&rig, 4));
    let filler = verdict(9, 9, 9);
    let mut filled = 0;
    while rig.receive.notify_client(3, &filler) == Notified::Yes {
        filled += 1;
        assert!(filled < 10_000, "a ring has a bound");
    }
    assert_eq!(rig.receive.notify_client(3, &filler), Notified::RingFull);
    rig.receive.begin_watch(SUBJECT, PROCESS, 1 << 3 | 1 << 4, 0);
    rig.run(&notice(1, SLOT, PROCESS, 0, 0));
    assert_eq!(other.take().len(), 1);
    let stats = rig.receive.stats();
    assert_eq!((stats.client_ring_full, stats.notified_directly), (1, 0));
    assert_eq!(
        rig.receive.notify_watch(SUBJECT, &verdict(1, SLOT, PROCESS)),
        Notified::Before,
        "the retry goes client by client"
    );

    assert_eq!(rig.receive.take_undelivered(SUBJECT), 1 << 3);
    assert_eq!(rig.receive.take_undelivered(SUBJECT), 0, "taken");
    rig.receive.mark_undelivered(SUBJECT, 1 << 3);
    assert_eq!(rig.receive.take_undelivered(SUBJECT), 1 << 3);
    assert_eq!(full.take().len(), filled);
    assert_eq!(rig.receive.notify_client(3, &verdict(1, SLOT, PROCESS)), Notified::Yes);
    assert_eq!(full.take().len(), 1);

    // One that does not wait any more is owed nothing.
    rig.receive.mark_undelivered(SUBJECT, 1 << 3);
    assert!(rig.receive.watch_client(SUBJECT, 3, false), "notified before");
    assert_eq!(rig.receive.take_undelivered(SUBJECT), 0);
}

#[test]
fn root_clients_come_and_go() {
    let Some(mut rig) = Rig::new() else { return };
    let (mut one, mut two) = (ClientRing::open(&rig, 1), ClientRing::open(&rig, 2));
    rig.receive.begin_watch(SUBJECT, PROCESS, 1 << 1, 0);
    assert!(!rig.receive.watch_client(SUBJECT, 2, true));
    assert!(!rig.receive.watch_client(SUBJECT, 1, false));
    rig.run(&notice(1, SLOT, PROCESS, 0, 0));
    assert_eq!((one.take().len(), two.take().len()), (0, 1));
    assert!(rig.receive.watch_client(SUBJECT, 1, true), "a newcomer is notified by the agent");

    // A ring that is gone is owed, not an error; what is in it stays readable.
    assert_eq!(rig.receive.notify_client(2, &verdict(1, SLOT, 1)), Notified::Yes);
    rig.receive.client_rings().expect("rings").close(2);
    assert_eq!(rig.receive.notify_client(2, &verdict(1, SLOT, 1)), Notified::Nobody);
    assert_eq!(two.take().len(), 1);
    rig.receive.begin_watch(SUBJECT, PROCESS + 1, 1 << 2, 0);
    rig.run(&notice(1, SLOT, PROCESS + 1, 0, 0));
    assert_eq!(rig.receive.take_undelivered(SUBJECT), 1 << 2);
}

/// A hole that is punched keeps whoever touches that memory waiting.
#[test]
fn root_session_memory_has_no_holes() {
    let Some(_rig) = Rig::new() else { return };
    let memory = ClientRings::memory(SESSION_BYTES).expect("memory");
    let again = || memory.try_clone().expect("descriptor");
    let mut agent = AgentSession::create_in(again()).expect("mapped");
    let mut client = ClientSession::map(again()).expect("mapped");
    client.push_outbox(3, b"kept").expect("room");
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    assert!(rustix::fs::fallocate(&memory, hole, 0, 4096).is_err());
    assert!(rustix::fs::ftruncate(&memory, 0).is_err());
    let mapping = Mapping::new(memory.as_fd(), 0, SESSION_BYTES, true).expect("mapped");
    // SAFETY: pages of this mapping, into which nothing refers.
    assert!(unsafe { rustix::mm::madvise(mapping.as_ptr().cast(), 4096, Advice::LinuxRemove) }.is_err());
    let mut buffer = [0; PIGGYBACK_MAX];
    assert_eq!(agent.pop_outbox(&mut buffer), Ok(Some((3, &b"kept"[..]))));
    let small = ClientRings::memory(4096).expect("memory");
    assert!(AgentSession::create_in(small).is_err(), "it is too small");
}

#[test]
fn root_sixty_four_clients() {
    let Some(rig) = Rig::new() else { return };
    let mut rings: Vec<_> = (0..MAX_CLIENTS as u8).map(|client| ClientRing::open(&rig, client)).collect();
    rig.receive.begin_watch(ProcessRef::new(1, 0), PROCESS, u64::MAX, 0);
    rig.run(&notice(1, 0, PROCESS, 0, 0));
    rig.run(&notice(1, 0, PROCESS, 0, 1));
    let counts: Vec<usize> = rings.iter_mut().map(|ring| ring.take().len()).collect();
    assert_eq!(counts, vec![1; MAX_CLIENTS]);
    assert_eq!(rig.receive.stats().notified_directly, 1);
}

/// The program and the agent at the same time: whichever comes first, each client is notified once.
#[test]
fn root_race_notifies_once() {
    const DEATHS: u32 = 2_000;
    let Some(mut rig) = Rig::new() else { return };
    let mut ring = ClientRing::open(&rig, 0);
    let program = rig.receive.program().try_clone_to_owned().expect("a descriptor");
    let (go, processes) = std::sync::mpsc::sync_channel::<u32>(0);
    let (done, is_done) = std::sync::mpsc::sync_channel::<()>(0);
    let mut mine = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for process in processes {
                run(std::os::fd::AsFd::as_fd(&program), &frame(&notice(1, SLOT, process, 0, 0)));
                done.send(()).expect("awaited");
            }
        });
        for process in 1..=DEATHS {
            rig.receive.begin_watch(SUBJECT, process, 1, 0);
            go.send(process).expect("taken");
            mine += u32::from(rig.receive.notify_watch(SUBJECT, &verdict(1, SLOT, process)) == Notified::Yes);
            is_done.recv().expect("done");
            let records = ring.take();
            assert_eq!(records.len(), 1, "process {process}");
            assert_eq!(record(&records[0]).incarnation, process);
            let _ = rig.wakes();
        }
        drop(go);
    });
    assert_eq!(rig.receive.stats().notified_directly, u64::from(DEATHS - mine));
}

#[test]
fn root_records_of_every_length_arrive_whole() {
    let Some(mut rig) = Rig::new() else { return };
    let mut ring = ClientRing::open(&rig, 0);
    for len in 48..=crate::intf::EVENT_MAX {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + len) as u8).collect();
        assert_eq!(rig.receive.notify_client(0, &bytes), Notified::Yes);
        assert_eq!(ring.take(), [bytes]);
    }
    assert_eq!(rig.receive.notify_client(0, &[1; 47]), Notified::Nobody, "shorter than a header");
    assert_eq!(rig.receive.notify_client(64, &[1; 48]), Notified::Nobody, "no such client");
    assert!(ring.take().is_empty());
}
