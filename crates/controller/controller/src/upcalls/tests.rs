// SPDX-License-Identifier: Apache-2.0

use super::*;
use proptest::prelude::*;
use std::time::Duration;

fn peer(name: &str) -> Identity {
    Identity::host(name).unwrap()
}

fn numbers(batch: &Batch) -> Vec<u64> {
    batch.events.iter().map(|event| event.number).collect()
}

#[test]
fn events_are_delivered_until_acknowledged() {
    let (mut upcalls, a) = (Upcalls::default(), peer("a"));
    assert!(upcalls.pending(a).is_empty());
    for n in 1..=3 {
        assert_eq!(upcalls.push(a, format!("{n}")), Ok(n));
    }
    assert_eq!(numbers(&upcalls.pending(a)), [1, 2, 3]);
    assert_eq!(upcalls.acknowledge(a, 2), Ok(true));
    assert_eq!(numbers(&upcalls.pending(a)), [3]);
    // A peer that restarted and forgot what it had is given the rest.
    assert_eq!(upcalls.acknowledge(a, 0), Ok(false));
    assert_eq!(numbers(&upcalls.pending(a)), [3]);
    assert_eq!(upcalls.acknowledge(a, 4), Err(UpcallError::NeverSent { after: 4, last: 3 }));
    assert_eq!(upcalls.acknowledge(peer("b"), 1), Err(UpcallError::NeverSent { after: 1, last: 0 }));
    upcalls.forget(a);
    assert_eq!(upcalls.peers().count(), 0);
}

#[test]
fn oldest_events_are_dropped_at_the_bound_and_reported_lost() {
    let (mut upcalls, a) = (Upcalls::default(), peer("a"));
    for _ in 0..EVENTS_MAX + 10 {
        upcalls.push(a, "x".into()).unwrap();
    }
    assert_eq!(upcalls.pending(a).lost, Some((1, 10)));
    assert_eq!(upcalls.pending(a).events[0].number, 11);
    upcalls.acknowledge(a, 4).unwrap();
    assert_eq!(upcalls.pending(a).lost, Some((5, 10)));
    upcalls.acknowledge(a, 10).unwrap();
    assert_eq!(upcalls.pending(a).lost, None);
    assert_eq!(numbers(&upcalls.pending(a)).len(), BATCH_MAX);
    // Bytes are bounded too.
    let too_long = upcalls.push(a, "x".repeat(EVENT_BYTES_MAX + 1));
    assert_eq!(too_long, Err(UpcallError::TooLong { bytes: EVENT_BYTES_MAX + 1 }));
    for _ in 0..QUEUE_BYTES_MAX / EVENT_BYTES_MAX + 5 {
        upcalls.push(a, "x".repeat(EVENT_BYTES_MAX)).unwrap();
    }
    let batch = upcalls.pending(a);
    assert!(batch.lost.is_some_and(|(first, last)| first == 11 && last > EVENTS_MAX as u64));
    assert_eq!(batch.events.len(), BATCH_BYTES_MAX / EVENT_BYTES_MAX);
}

#[test]
fn peers_that_never_ask_do_not_fill_the_snapshot() {
    let mut upcalls = Upcalls::default();
    let quiet: Vec<Identity> = (0..2 * ALL_BYTES_MAX / QUEUE_BYTES_MAX).map(|n| peer(&format!("q{n}"))).collect();
    let asks = peer("asks");
    upcalls.push(asks, "x".into()).unwrap();
    let long = "x".repeat(EVENT_BYTES_MAX);
    for _ in 0..QUEUE_BYTES_MAX / EVENT_BYTES_MAX {
        quiet.iter().for_each(|peer| drop(upcalls.push(*peer, long.clone())));
    }
    // The peer with few events keeps them; the one with many gets the lost numbers.
    assert_eq!((upcalls.pending(asks).lost, upcalls.pending(asks).events.len()), (None, 1));
    assert!(quiet.iter().all(|peer| upcalls.pending(*peer).lost.is_some()));
    let bytes = postcard::to_allocvec(&upcalls).unwrap().len();
    assert!(bytes < crate::store::SNAPSHOT_MAX * 3 / 4 && bytes > ALL_BYTES_MAX / 2, "{bytes}");
    // Acknowledged and forgotten events make room.
    for peer in &quiet {
        let last = upcalls.pending(*peer).events[0].number;
        upcalls.acknowledge(*peer, last).unwrap();
        upcalls.forget(*peer);
    }
    assert_eq!(upcalls.bytes, 1);
}

proptest! {
    /// With events, lost answers and restarts at any time, the peer sees each number once and in order, or
    /// as lost.
    #[test]
    fn each_event_is_seen_once_in_order_or_reported_lost(
        steps in prop::collection::vec((0..400usize, any::<bool>(), any::<bool>()), 1..60),
    ) {
        let (mut upcalls, a) = (Upcalls::default(), peer("a"));
        let (mut stored, mut pushed, mut seen) = (upcalls.clone(), 0u64, 0u64);
        for (push, answer_lost, restart) in steps {
            for _ in 0..push {
                pushed = upcalls.push(a, format!("{}", pushed + 1)).unwrap();
                // Stored as the shell does it: events at once, acknowledgements by and by.
                stored.push(a, format!("{pushed}")).unwrap();
            }
            if restart {
                upcalls = postcard::from_bytes(&postcard::to_stdvec(&stored).unwrap()).unwrap();
            }
            upcalls.acknowledge(a, seen).unwrap();
            let batch = upcalls.pending(a);
            if answer_lost {
                continue;
            }
            if let Some((first, last)) = batch.lost {
                prop_assert_eq!(first, seen + 1);
                seen = last;
            }
            for event in &batch.events {
                prop_assert_eq!(event.number, seen + 1);
                prop_assert_eq!(&event.body, &event.number.to_string());
                seen = event.number;
            }
        }
        prop_assert!(seen <= pushed);
        while !{ upcalls.acknowledge(a, seen).unwrap(); upcalls.pending(a).is_empty() } {
            let batch = upcalls.pending(a);
            seen = batch.events.last().map_or(seen, |event| event.number).max(batch.lost.map_or(0, |lost| lost.1));
        }
        prop_assert_eq!(seen, pushed);
    }
}

#[tokio::test]
async fn poller_is_woken_by_an_event_and_by_the_end() {
    let (board, a) = (Board::default(), peer("a"));
    assert_eq!(board.poll(a, 0, Duration::ZERO).await, Err(Closed::NotServing));
    board.open(Upcalls::default());
    assert!(board.poll(a, 0, Duration::from_millis(1)).await.unwrap().is_empty());
    let waiting = tokio::spawn({
        let board = board.clone();
        async move { board.poll(a, 0, Duration::from_secs(600)).await }
    });
    tokio::task::yield_now().await;
    board.publish(peer("b"), "other".into()).unwrap();
    board.publish(a, "mine".into()).unwrap();
    assert_eq!(waiting.await.unwrap().unwrap().events, [Upcall { number: 1, body: "mine".into() }]);
    // Asked again it comes again; acknowledged it is gone, and the acknowledgement is there to be stored,
    // once.
    assert_eq!(numbers(&board.poll(a, 0, Duration::ZERO).await.unwrap()), [1]);
    assert!(board.take_unstored().is_empty());
    assert!(board.poll(a, 1, Duration::ZERO).await.unwrap().is_empty());
    assert_eq!(board.take_unstored(), [(a, 1)]);
    assert!(board.take_unstored().is_empty());
    let waiting = tokio::spawn({
        let board = board.clone();
        async move { board.poll(a, 1, Duration::from_secs(600)).await }
    });
    tokio::task::yield_now().await;
    board.close();
    assert_eq!(waiting.await.unwrap(), Err(Closed::NotServing));
}
