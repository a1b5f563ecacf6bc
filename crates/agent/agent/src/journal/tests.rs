// SPDX-License-Identifier: Apache-2.0
use fide_detector::HostSet;

use super::*;

fn evidence() -> Evidence {
    Evidence {
        observer: 1,
        via: Via::Roster,
        decided_ns: 0,
        last_seq: 0,
        last_rx_ns: [0; 2],
        timeout_ns: 0,
        at_ns: 0,
        own_stalls: 0,
        withheld: 0,
        votes: HostSet::EMPTY,
        superseded_by: 0,
        piggybacks_lost: 0,
    }
}

fn verdict(host: HostId, slot: u8, reason: Reason) -> Record {
    let verdict = Verdict { id: 1, host, slot, incarnation: 1, reason, evidence: evidence() };
    Record { now_ns: 0, event: Event::Verdict(verdict) }
}

fn up(host: HostId, slot: u8, name: &str) -> Record {
    Record { now_ns: 0, event: Event::Up { host, slot, incarnation: 1, name: name.parse().expect("a name") } }
}

fn count(journal: &Journal, host: HostId) -> usize {
    journal.entries().filter(|entry| about(&entry.record.event) == host).count()
}

#[test]
fn flapping_programs_displace_no_deaths() {
    let mut journal = Journal::new("h1");
    journal.add(up(2, 0, "redis"));
    let death = journal.add(verdict(2, 0, Reason::Killed(9))).id.clone();
    let silence = journal.add(verdict(3, HOST_SLOT, Reason::HostSilent)).id.clone();
    for slot in 0..64 {
        journal.add(up(1, slot, &format!("flaps{slot}")));
    }
    for n in 0..3_000u32 {
        let kind = if n / 64 % 2 == 0 { Reason::Stalled } else { Reason::Recovered };
        journal.add(verdict(1, (n % 64) as u8, kind));
    }
    assert!(journal.find(&death).is_some() && journal.find(&silence).is_some());
    assert_eq!(journal.entries().count(), 3 + 64 + KEPT[Shelf::Changes as usize]);
}

#[test]
fn programs_that_join_and_end_take_the_place_of_their_own_past() {
    let mut journal = Journal::new("h1");
    journal.add(up(2, 0, "redis"));
    let death = journal.add(verdict(2, 0, Reason::Killed(9))).id.clone();
    // Of the same host, but under another name.
    journal.add(up(1, 5, "postgres"));
    let near = journal.add(verdict(1, 5, Reason::Exited(1))).id.clone();
    for _ in 0..1_100 {
        journal.add(up(1, 7, "again"));
        journal.add(verdict(1, 7, Reason::Exited(0)));
    }
    assert!(journal.find(&death).is_some() && journal.find(&near).is_some());
    // Under ever new names what happened on other hosts is kept.
    for n in 0..1_100 {
        journal.add(up(1, 7, &format!("n{n}")));
        journal.add(verdict(1, 7, Reason::Exited(0)));
    }
    assert!(journal.find(&death).is_some());
    assert_eq!(count(&journal, 2), 2);
    assert_eq!(count(&journal, 1), KEPT[Shelf::Ends as usize] + KEPT[Shelf::Joins as usize] - 2);
}

#[test]
fn last_entries_of_all_kinds_come_in_order() {
    let mut journal = Journal::new("h1");
    for n in 0..50 {
        journal.add(up(1, n, "a"));
        journal.add(verdict(2, HOST_SLOT, Reason::HostSilent));
        journal.add(verdict(1, n, Reason::Stalled));
    }
    let seqs: Vec<u64> = journal.last(0, None).iter().map(|entry| entry.seq).collect();
    assert_eq!(seqs, (51..=150).collect::<Vec<_>>());
    assert_eq!(journal.last(140, Some("up")).iter().map(|entry| entry.seq).collect::<Vec<_>>(), [142, 145, 148]);
    assert!(journal.range().starts_with("h1-1 to h1-150"));
}

#[test]
fn log_is_not_filled_by_programs_that_flap() {
    let mut journal = Journal::new("h1");
    let at = |now_ns| Record { now_ns, ..verdict(1, 0, Reason::Stalled) };
    let logged = (0..1000).filter(|n| journal.may_log(&at(n * 1_000_000)).is_some()).count();
    assert_eq!(logged, (LOGGED_AT_ONCE + LOGGED_PER_SECOND - 1) as usize);
    assert_eq!(journal.may_log(&verdict(1, 0, Reason::Killed(9))), Some(0));
    assert_eq!(journal.may_log(&at(60_000_000_000)), Some(99), "since the last one");
}
