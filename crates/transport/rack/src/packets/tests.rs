// SPDX-License-Identifier: Apache-2.0

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::shm::ShmWindow;

const WORDS: usize = 64;
const MOST: usize = (WORDS * WORD - BEFORE) / 2 - 2 * WORD;

/// A ring of short packets fills, stays full, is not asked for, and begins.
const PACKETS_UNTIL_WELL: u32 = 100 + FULL_MAX + LOOKS_MAX;

/// A packet that says its number, as far as it has room.
fn packet(number: u64, len: usize) -> Vec<u8> {
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

/// Both ends look until nothing changes: they have answered each other.
fn settle(windows: &[ShmWindow<WORDS>; 2], outbox: &mut Outbox, inbox: &mut Inbox) {
    for _ in 0..3 {
        while inbox.receive(&windows[1], &mut [0; MOST]).is_some() {}
        outbox.answers(&windows[0]);
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(usize),
    Receive,
    /// A process ends, and another one goes on.
    NewOutbox,
    NewInbox,
    /// Somebody writes a word into the part that the inbox, or the outbox, reads.
    Garble(usize, usize, u64),
}

fn steps(garbles: bool) -> impl Strategy<Value = Vec<Step>> {
    let word = prop_oneof![any::<u64>(), 0..2000_u64, Just(0)];
    let step = prop_oneof![
        8 => (0..=MOST).prop_map(Step::Send),
        8 => Just(Step::Receive),
        1 => Just(Step::NewOutbox),
        1 => Just(Step::NewInbox),
        u32::from(garbles) * 2 => (0..2_usize, 0..WORDS, word).prop_map(|(end, at, word)| Step::Garble(end, at, word)),
    ];
    prop::collection::vec(step, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whole, in order and once, whenever either end begins anew; and then all goes on.
    #[test]
    fn packets_come_whole_and_in_order_or_not_at_all(steps in steps(false)) {
        let windows = ShmWindow::<WORDS>::pair().unwrap();
        let (mut outbox, mut inbox, mut numbers) = (Outbox::new(&windows[0], 10), Inbox::new(&windows[1], 20), 1000);
        let (mut waiting, mut sent) = (VecDeque::new(), 0_u64);
        let mut number = || {
            numbers += 1000;
            numbers
        };
        for step in steps {
            match step {
                Step::Send(len) => {
                    sent += 1;
                    let of = packet(sent, len);
                    if outbox.send(&windows[0], &of).is_ok() {
                        waiting.push_back(of);
                    }
                }
                Step::Receive => {
                    let mut got = [0; MOST];
                    if let Some(count) = inbox.receive(&windows[1], &mut got) {
                        // Those of a ring that began anew are lost, and no others.
                        let at = waiting.iter().position(|of: &Vec<u8>| of == &got[..count]);
                        prop_assert!(at.is_some(), "{count} bytes that were not sent, or came before");
                        waiting.drain(..=at.unwrap());
                    }
                }
                Step::NewOutbox => outbox = Outbox::new(&windows[0], number()),
                Step::NewInbox => inbox = Inbox::new(&windows[1], number()),
                Step::Garble(..) => unreachable!(),
            }
        }
        settle(&windows, &mut outbox, &mut inbox);
        prop_assert_eq!(outbox.send(&windows[0], b"goes on"), Ok(()));
        let mut got = [0; MOST];
        prop_assert_eq!(inbox.receive(&windows[1], &mut got), Some(7));
        prop_assert_eq!(&got[..7], b"goes on");
        prop_assert_eq!((outbox.sent().broken, inbox.received().broken), (0, 0), "nobody was at fault");
    }

    /// Whatever somebody writes, no call does harm; and all goes on once nobody does.
    #[test]
    fn a_broken_end_costs_packets_only(steps in steps(true)) {
        let windows = ShmWindow::<WORDS>::pair().unwrap();
        let (mut outbox, mut inbox) = (Outbox::new(&windows[0], 10), Inbox::new(&windows[1], 20));
        let mut numbers = 1000;
        for step in steps {
            numbers += 1000;
            match step {
                Step::Send(len) => _ = outbox.send(&windows[0], &vec![7; len]),
                Step::Receive => _ = inbox.receive(&windows[1], &mut [0; 50]),
                Step::NewOutbox => outbox = Outbox::new(&windows[0], numbers),
                Step::NewInbox => inbox = Inbox::new(&windows[1], numbers),
                // What an end reads, the other one's window writes.
                Step::Garble(end, at, word) => windows[1 - end].publish(at * WORD, word),
            }
        }
        // What was overwritten is found out, by sending and looking alone.
        let comes = (0..PACKETS_UNTIL_WELL).any(|_| {
            let _ = outbox.send(&windows[0], b"again");
            let mut got = [0; MOST];
            std::iter::from_fn(|| inbox.receive(&windows[1], &mut got).map(|len| got[..len] == *b"again")).take(40).any(|is| is)
        });
        prop_assert!(comes);
        // Each begins anew, as a process that is started again.
        let mut outbox = Outbox::new(&windows[0], u64::MAX - 1);
        let mut inbox = Inbox::new(&windows[1], u64::MAX - 1);
        settle(&windows, &mut outbox, &mut inbox);
        prop_assert_eq!(outbox.send(&windows[0], b"goes on"), Ok(()));
        prop_assert_eq!(inbox.receive(&windows[1], &mut [0; MOST]), Some(7));
    }
}

#[test]
fn packets_that_nobody_reads_are_dropped_and_counted() {
    let windows = ShmWindow::<WORDS>::pair().unwrap();
    let mut outbox = Outbox::new(&windows[0], 1);
    assert_eq!(outbox.send(&windows[0], b"early"), Err(Dropped::Unheard));
    let mut inbox = Inbox::new(&windows[1], 1);
    settle(&windows, &mut outbox, &mut inbox);
    // It stops here.
    let full = (0..1000).map(|_| outbox.send(&windows[0], &[7; 40])).find(Result::is_err);
    assert_eq!(full, Some(Err(Dropped::Full)));
    assert_eq!(outbox.send(&windows[0], &[7; 40]), Err(Dropped::Full));
    let sent = outbox.sent().sent;
    assert_eq!(outbox.sent(), Sent { sent, unheard: 1, full: 2, ..Sent::default() });
    // It goes on with what was kept.
    let got = std::iter::from_fn(|| inbox.receive(&windows[1], &mut [0; MOST])).count();
    assert_eq!(got as u64, sent);
    assert_eq!(outbox.send(&windows[0], &[7; 40]), Ok(()));
}

/// As somebody overwrites each word once, or a device is reset.
#[test]
fn words_that_were_overwritten_are_written_again() {
    let windows = ShmWindow::<WORDS>::pair().unwrap();
    let (mut outbox, mut inbox) = (Outbox::new(&windows[0], 1), Inbox::new(&windows[1], 1));
    settle(&windows, &mut outbox, &mut inbox);
    for word in [0, 1, 77, u64::MAX] {
        for (end, at) in [0, 1].into_iter().flat_map(|end| (0..WORDS).map(move |at| (end, at))) {
            windows[end].publish(at * WORD, word);
            let comes = (0..PACKETS_UNTIL_WELL).find(|_| {
                let _ = outbox.send(&windows[0], b"again");
                inbox.receive(&windows[1], &mut [0; MOST]) == Some(5)
            });
            assert!(comes.is_some(), "word {at} of end {end} is {word}");
            settle(&windows, &mut outbox, &mut inbox);
        }
    }
}

/// Windows as long as an agent's, and looks as often: a host of which a few heartbeats are lost is not taken for dead.
#[test]
fn word_that_was_overwritten_costs_a_few_heartbeats() {
    const LONG: usize = (32 << 10) / WORD;
    const LOST_MAX: u32 = 4;
    let windows = ShmWindow::<LONG>::pair().unwrap();
    let (mut outbox, mut inbox) = (Outbox::new(&windows[0], 1), Inbox::new(&windows[1], 1));
    let mut number = 0;
    let mut comes = || {
        number += 1;
        let (of, mut got) = (packet(number, 150), [0; 200]);
        let is_sent = outbox.send(&windows[0], &of).is_ok();
        (0..4).fold(false, |comes, _| {
            outbox.answers(&windows[0]);
            comes | (inbox.receive(&windows[1], &mut got) == Some(150) && is_sent && got[..150] == of)
        })
    };
    while !comes() {}
    let ring = (16..LONG).step_by(61);
    for word in [0, 1, 77, 8192, u64::MAX] {
        for (end, at) in [0, 1].into_iter().flat_map(|end| (0..16).chain(ring.clone()).map(move |at| (end, at))) {
            windows[end].publish(at * WORD, word);
            let lost = (0..1000).find(|_| comes());
            // The next ones come there.
            let more = (0..300).filter(|_| !comes()).count();
            assert!(
                lost.is_some_and(|lost| lost <= LOST_MAX) && more <= LOST_MAX as usize,
                "word {at} of end {end} is {word}: {lost:?} {more}"
            );
        }
    }
}

/// As a device is reset while one host is off.
#[test]
fn words_that_were_overwritten_before_the_ends_have_met_are_written_again() {
    for (word, end, at) in [0, 1, u64::MAX].into_iter().flat_map(|word| (0..32).map(move |at| (word, at / 16, at % 16)))
    {
        let windows = ShmWindow::<WORDS>::pair().unwrap();
        let mut outbox = Outbox::new(&windows[0], 1);
        windows[end].publish(at * WORD, word);
        let mut inbox = Inbox::new(&windows[1], 1);
        settle(&windows, &mut outbox, &mut inbox);
        let comes = (0..4).any(|_| {
            let _ = outbox.send(&windows[0], b"first");
            inbox.receive(&windows[1], &mut [0; MOST]) == Some(5)
        });
        assert!(comes, "word {at} of end {end} is {word}");
    }
}

/// The reader has stopped, and what lies in the ring is of no use to one that goes on.
#[test]
fn ring_that_stays_full_begins_anew() {
    let windows = ShmWindow::<WORDS>::pair().unwrap();
    let (mut outbox, mut inbox) = (Outbox::new(&windows[0], 1), Inbox::new(&windows[1], 1));
    settle(&windows, &mut outbox, &mut inbox);
    while outbox.send(&windows[0], b"old") != Err(Dropped::Unheard) {}
    assert_eq!(outbox.sent().full, u64::from(FULL_MAX));
    assert_eq!(inbox.receive(&windows[1], &mut [0; MOST]), None);
    assert_eq!(outbox.send(&windows[0], b"recent"), Ok(()));
    assert_eq!(inbox.receive(&windows[1], &mut [0; MOST]), Some(6));
}

/// It would write its packets over those that an inbox still reads, which has not seen it yet.
#[test]
fn outbox_that_begins_anew_waits_until_it_is_asked_itself() {
    let windows = ShmWindow::<WORDS>::pair().unwrap();
    let (mut outbox, mut inbox) = (Outbox::new(&windows[0], 1), Inbox::new(&windows[1], 1));
    settle(&windows, &mut outbox, &mut inbox);
    let mut next = Outbox::new(&windows[0], 1000);
    assert_eq!(next.send(&windows[0], b"early"), Err(Dropped::Unheard));
    assert_eq!(inbox.receive(&windows[1], &mut [0; MOST]), None);
    assert_eq!(next.send(&windows[0], b"asked"), Ok(()));
    assert_eq!(inbox.receive(&windows[1], &mut [0; MOST]), Some(5));
}

/// How far the one before has read says nothing of the ring that begins.
#[test]
fn inbox_that_begins_anew_has_read_nothing() {
    let windows = ShmWindow::<WORDS>::pair().unwrap();
    let (mut outbox, mut inbox) = (Outbox::new(&windows[0], 1), Inbox::new(&windows[1], 1));
    settle(&windows, &mut outbox, &mut inbox);
    let mut got = [0; MOST];
    // Until it has said how far it has read.
    for number in 0..20 {
        assert_eq!(outbox.send(&windows[0], &packet(number, 40)), Ok(()));
        assert_eq!(inbox.receive(&windows[1], &mut got), Some(40));
        if windows[0].poll(TOLD_AT) != 0 {
            break;
        }
    }
    assert_ne!(windows[0].poll(TOLD_AT), 0);
    inbox = Inbox::new(&windows[1], 1000);
    settle(&windows, &mut outbox, &mut inbox);
    let sent = (0..100).take_while(|number| outbox.send(&windows[0], &packet(*number, 40)).is_ok()).count() as u64;
    for number in 0..sent {
        assert_eq!(inbox.receive(&windows[1], &mut got), Some(40));
        assert_eq!(got[..40], packet(number, 40), "packet {number} of {sent}");
    }
    assert_eq!((outbox.sent().broken, inbox.received().broken), (0, 0));
}

#[test]
fn packet_that_is_too_long_for_the_ring_or_the_buffer() {
    let windows = ShmWindow::<WORDS>::pair().unwrap();
    let (mut outbox, mut inbox) = (Outbox::new(&windows[0], 1), Inbox::new(&windows[1], 1));
    settle(&windows, &mut outbox, &mut inbox);
    let why = Dropped::TooLong { len: MOST + 1, most: MOST };
    assert_eq!(outbox.send(&windows[0], &[7; MOST + 1]), Err(why));
    assert_eq!(outbox.send(&windows[0], &[7; MOST]), Ok(()));
    assert_eq!(outbox.send(&windows[0], &[8; 3]), Ok(()));
    // The buffer is full, and the next packet is the next one.
    assert_eq!(inbox.receive(&windows[1], &mut [0; 5]), Some(5));
    let mut next = [0; 5];
    assert_eq!(inbox.receive(&windows[1], &mut next), Some(3));
    assert_eq!(next, [8, 8, 8, 0, 0]);
}

/// A broken index, or header, is found once: then the ring begins anew.
#[test]
fn what_is_broken_begins_anew() {
    let windows = ShmWindow::<WORDS>::pair().unwrap();
    let (mut outbox, mut inbox) = (Outbox::new(&windows[0], 1), Inbox::new(&windows[1], 1));
    settle(&windows, &mut outbox, &mut inbox);
    windows[1].publish(TOLD_AT, 9);
    let broken = (0..1000).map(|_| outbox.send(&windows[0], &[7; 40])).find(Result::is_err);
    assert!(matches!(broken, Some(Err(Dropped::Broken(_)))), "{broken:?}");
    settle(&windows, &mut outbox, &mut inbox);
    windows[0].publish(BEFORE, u64::MAX);
    assert_eq!(inbox.receive(&windows[1], &mut [0; MOST]), None);
    settle(&windows, &mut outbox, &mut inbox);
    assert_eq!(outbox.send(&windows[0], b"goes on"), Ok(()));
    assert_eq!(inbox.receive(&windows[1], &mut [0; MOST]), Some(7));
    assert_eq!((outbox.sent().broken, inbox.received().broken), (1, 1));
}
