// SPDX-License-Identifier: Apache-2.0
//! Every interleaving of the lock-free algorithms:
//! `RUSTFLAGS="--cfg loom" cargo test -p fide-shm --test loom --release`.
#![cfg(loom)]

use fide_shm::{
    seqlock::SeqLock,
    spsc::{Consumer, Producer, PushError, RingRef},
    swap::Swap,
};
use loom::{
    sync::{Arc, atomic::AtomicU64},
    thread,
};

#[test]
fn seqlock_never_tears() {
    loom::model(|| {
        let lock = Arc::new(SeqLock::<2>::default());
        let writer = {
            let lock = Arc::clone(&lock);
            thread::spawn(move || {
                lock.write(&[1, 1]);
                lock.write(&[2, 2]);
            })
        };
        if let Some([a, b]) = lock.read() {
            assert_eq!(a, b);
        }
        writer.join().unwrap();
        assert_eq!(lock.read(), Some([2, 2]));
    });
}

struct Memory {
    tail: AtomicU64,
    head: AtomicU64,
    full: AtomicU64,
    words: Vec<AtomicU64>,
}

impl Memory {
    fn ring(&self) -> RingRef<'_> {
        RingRef::new(&self.tail, &self.head, &self.full, &self.words)
    }
}

#[test]
fn spsc_keeps_order_and_bytes_through_a_wrap() {
    loom::model(|| {
        let memory = Arc::new(Memory {
            tail: AtomicU64::new(0),
            head: AtomicU64::new(0),
            full: AtomicU64::new(0),
            words: (0..4).map(|_| AtomicU64::new(0)).collect(),
        });
        let writer = {
            let memory = Arc::clone(&memory);
            thread::spawn(move || {
                let ring = memory.ring();
                let mut producer = Producer::attach(ring).unwrap();
                let mut pushed = 0;
                for tag in 1..=3u32 {
                    match producer.push(ring, tag, &u64::from(tag).to_le_bytes()) {
                        Ok(()) => pushed = tag,
                        Err(PushError::Full) => break,
                        Err(other) => panic!("{other}"),
                    }
                }
                pushed
            })
        };
        let ring = memory.ring();
        let mut consumer = Consumer::attach(ring).unwrap();
        let mut last = 0;
        let mut out = [0; 8];
        let mut take = |consumer: &mut Consumer| {
            if let Some((tag, len)) = consumer.pop(ring, &mut out).unwrap() {
                assert_eq!((tag, len), (last + 1, 8));
                assert_eq!(u64::from_le_bytes(out), u64::from(tag));
                last = tag;
            }
            last
        };
        take(&mut consumer);
        take(&mut consumer);
        let pushed = writer.join().unwrap();
        while take(&mut consumer) < pushed {}
    });
}

#[test]
fn swap_never_shows_a_freed_value() {
    loom::model(|| {
        let cell = Arc::new(Swap::new(AtomicU64::new(1)));
        let reader = {
            let cell = Arc::clone(&cell);
            thread::spawn(move || {
                cell.with(|v| {
                    let seen = v.load(loom::sync::atomic::Ordering::Relaxed);
                    assert!(seen == 1 || seen == 2);
                })
            })
        };
        cell.replace(AtomicU64::new(2));
        reader.join().unwrap();
        cell.with(|v| assert_eq!(v.load(loom::sync::atomic::Ordering::Relaxed), 2));
    });
}
