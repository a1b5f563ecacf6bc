// SPDX-License-Identifier: Apache-2.0
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

struct Memory {
    tail: AtomicU64,
    head: AtomicU64,
    full: AtomicU64,
    words: Vec<AtomicU64>,
}

impl Memory {
    fn new(words: usize) -> Self {
        let zero = || AtomicU64::new(0);
        Self { tail: zero(), head: zero(), full: zero(), words: (0..words).map(|_| zero()).collect() }
    }

    fn ring(&self) -> RingRef<'_> {
        RingRef::new(&self.tail, &self.head, &self.full, &self.words)
    }
}

#[test]
fn full_is_refused_and_counted_then_room_comes_back() {
    let memory = Memory::new(8);
    let ring = memory.ring();
    let mut producer = Producer::attach(ring).unwrap();
    let mut consumer = Consumer::attach(ring).unwrap();
    for tag in 0..4 {
        producer.push(ring, tag, b"12345678").unwrap();
    }
    assert_eq!(producer.push(ring, 4, b""), Err(PushError::Full));
    assert_eq!(producer.push(ring, 4, b"x"), Err(PushError::Full));
    assert_eq!(ring.refused(), 2);
    let mut out = [0; 64];
    assert_eq!(consumer.pop(ring, &mut out), Ok(Some((0, 8))));
    producer.push(ring, 4, b"x").unwrap();
    assert_eq!(producer.push(ring, 5, &[0; 57]), Err(PushError::TooLong { len: 57, limit: 56 }));
    for tag in 1..5 {
        assert_eq!(consumer.pop(ring, &mut out).unwrap().unwrap().0, tag);
    }
    assert!(consumer.is_empty(ring));
    assert_eq!(consumer.pop(ring, &mut out), Ok(None));
}

#[test]
fn another_process_can_take_an_end_over() {
    let memory = Memory::new(16);
    let ring = memory.ring();
    Producer::attach(ring).unwrap().push(ring, 1, b"before").unwrap();
    Producer::attach(ring).unwrap().push(ring, 2, b"after").unwrap();
    let mut out = [0; 64];
    assert_eq!(Consumer::attach(ring).unwrap().pop(ring, &mut out), Ok(Some((1, 6))));
    assert_eq!(Consumer::attach(ring).unwrap().pop(ring, &mut out), Ok(Some((2, 5))));
    assert_eq!(&out[..5], b"after");
}

#[test]
fn broken_is_for_good() {
    let memory = Memory::new(8);
    let ring = memory.ring();
    let mut consumer = Consumer::attach(ring).unwrap();
    memory.tail.store(9, Ordering::Relaxed);
    let mut out = [0; 64];
    let broken = Broken::Positions { distance: 9, capacity: 8 };
    assert_eq!(consumer.pop(ring, &mut out), Err(broken));
    memory.tail.store(0, Ordering::Relaxed);
    assert_eq!(consumer.pop(ring, &mut out), Err(broken));
    memory.tail.store(9, Ordering::Relaxed);
    assert!(Consumer::attach(ring).is_err());
    assert!(Producer::attach(ring).is_err());
}

#[test]
fn a_hostile_consumer_cannot_make_the_producer_overrun() {
    let memory = Memory::new(8);
    let ring = memory.ring();
    let mut producer = Producer::attach(ring).unwrap();
    producer.push(ring, 0, &[0; 56]).unwrap();
    memory.head.store(100, Ordering::Relaxed);
    assert!(matches!(producer.push(ring, 0, b"x"), Err(PushError::Broken(Broken::Positions { .. }))));
}

#[test]
fn two_threads_pass_records_in_order() {
    const COUNT: u32 = 100_000;
    let memory = Memory::new(64);
    let ring = memory.ring();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut producer = Producer::attach(ring).unwrap();
            let mut tag = 0;
            while tag < COUNT {
                let bytes = [tag as u8; 40];
                match producer.push(ring, tag, &bytes[..(tag % 41) as usize]) {
                    Ok(()) => tag += 1,
                    Err(PushError::Full) => std::thread::yield_now(),
                    Err(other) => panic!("{other}"),
                }
            }
        });
        let mut consumer = Consumer::attach(ring).unwrap();
        let mut out = [0; 64];
        let mut expected = 0;
        while expected < COUNT {
            match consumer.pop(ring, &mut out).unwrap() {
                Some((tag, len)) => {
                    assert_eq!((tag, len), (expected, (expected % 41) as usize));
                    assert!(out[..len].iter().all(|b| *b == expected as u8));
                    expected += 1;
                }
                None => std::thread::yield_now(),
            }
        }
    });
}

proptest! {
    /// Against a queue: same records, same order, `Full` exactly when the words run out.
    #[test]
    fn behaves_like_a_bounded_queue(steps in prop::collection::vec((any::<bool>(), 0usize..70), 1..200)) {
        let memory = Memory::new(16);
        let ring = memory.ring();
        let (mut producer, mut consumer) = (Producer::attach(ring).unwrap(), Consumer::attach(ring).unwrap());
        let mut model: VecDeque<(u32, Vec<u8>)> = VecDeque::new();
        let mut out = [0; 256];
        for (n, (push, len)) in steps.into_iter().enumerate() {
            if push {
                let bytes = vec![n as u8; len];
                let used: usize = model.iter().map(|(_, b)| 1 + b.len().div_ceil(8)).sum();
                let fits = used + 1 + len.div_ceil(8) <= 16;
                prop_assert_eq!(producer.push(ring, n as u32, &bytes), if fits { Ok(()) } else { Err(PushError::Full) });
                if fits { model.push_back((n as u32, bytes)); }
            } else {
                let got = consumer.pop(ring, &mut out).unwrap().map(|(tag, len)| (tag, out[..len].to_vec()));
                prop_assert_eq!(got, model.pop_front());
            }
        }
    }

    /// A writer that scribbles anything anywhere: bounded work, no panic, nothing beyond `out`.
    #[test]
    fn a_hostile_writer_only_hurts_itself(
        words in prop::collection::vec(any::<u64>(), 16),
        small in prop::collection::vec(0u64..200, 16),
        use_small in any::<u16>(),
        tails in prop::collection::vec(prop_oneof![any::<u64>(), 0u64..40], 1..40),
    ) {
        let memory = Memory::new(16);
        let ring = memory.ring();
        let mut consumer = Consumer::attach(ring).unwrap();
        for i in 0..16 {
            memory.words[i].store(if use_small >> i & 1 == 1 { small[i] } else { words[i] }, Ordering::Relaxed);
        }
        let mut out = [0; 48];
        for tail in tails {
            memory.tail.store(tail, Ordering::Relaxed);
            for _ in 0..17 {
                match consumer.pop(ring, &mut out) {
                    Ok(Some((_, len))) => prop_assert!(len <= out.len()),
                    Ok(None) => break,
                    Err(broken) => {
                        prop_assert_eq!(consumer.pop(ring, &mut out), Err(broken));
                        break;
                    }
                }
            }
        }
    }
}
