// SPDX-License-Identifier: Apache-2.0
//! Counts allocations: none once a connection has been used for a while, with losses, redundancy and repetitions.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    collections::VecDeque,
};

use fide_pace::{
    packet::TAG_LEN,
    seal::{PACKETS, Sealer, Suite},
    transport::{Algorithm, Arrival, Config, Transport},
};

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system allocator, whose contract is the same; the counter is a
// constant-initialised thread local that does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from `System.alloc` with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MS: u64 = 1_000_000;
/// A turn of the test, and how long a packet is on its way.
const TURN_NS: u64 = MS / 4;
const DELAY_NS: u64 = 10 * MS;

/// What a call allocates.
fn counted<R>(count: &mut u64, call: impl FnOnce() -> R) -> R {
    let before = COUNT.get();
    let result = call();
    *count += COUNT.get() - before;
    result
}

struct Packet {
    comes_ns: u64,
    number: u64,
    plain: Vec<u8>,
}

/// Allocations in each of ten times 5 s, and messages that came, of a flow over a path that loses each twentieth packet.
fn drive(config: Config) -> (Vec<u64>, usize) {
    let mut ends = [(); 2].map(|()| Transport::new(0, config, 2 * DELAY_NS / 1000));
    let mut paths = [(); 2].map(|()| VecDeque::<Packet>::new());
    let (mut plain, mut came, mut sent, mut counts) = (vec![0; 1500], 0, 0_u64, Vec::new());
    for _ in 0..10 {
        let mut count = 0;
        for _ in 0..5000 * MS / TURN_NS {
            sent += 1;
            let now_ns = sent * TURN_NS;
            if sent.is_multiple_of(4) {
                let _ = counted(&mut count, || ends[0].send(now_ns, &[7; 900], None));
            }
            for at in 0..2 {
                while let Some(packet) = paths[1 - at].pop_front_if(|packet| packet.comes_ns <= now_ns) {
                    let opened =
                        counted(&mut count, || ends[at].open(now_ns, packet.number, &packet.plain, Arrival::default()));
                    opened.expect("a packet of the other end");
                }
                counted(&mut count, || ends[at].timeout(now_ns));
                while let Some(written) = counted(&mut count, || ends[at].write(now_ns, &mut plain)) {
                    if written.number % 20 != 7 {
                        let plain = plain[..written.len].to_vec();
                        paths[at].push_back(Packet { comes_ns: now_ns + DELAY_NS, number: written.number, plain });
                    }
                }
            }
            while let Some(message) = counted(&mut count, || ends[1].poll_message(now_ns)) {
                came += 1;
                counted(&mut count, || ends[1].recycle(message));
            }
        }
        counts.push(count);
    }
    (counts, came)
}

#[test]
fn connection_in_use_allocates_nothing() {
    for algorithm in [Algorithm::XPace, Algorithm::Level] {
        // Sent again; and with redundancy, as there is no time for that.
        for deadline_ns in [100 * MS, 25 * MS] {
            let config = Config { algorithm, deadline_ns, queue_max: 20, residual_loss: 0.005, ..Config::default() };
            let (counts, came) = drive(config);
            assert!(came > 40_000, "{came} of 50,000 messages");
            // Until then each place of the rings is used for the first time.
            assert_eq!(counts[8..], [0; 2], "{algorithm:?}, {deadline_ns} ns: {counts:?}");
        }
    }
}

/// Also while keys change, packets of the former one come late, and others are forged with numbers of any key.
#[test]
fn packets_are_sealed_and_opened_without_allocations() {
    for suite in [Suite::ChaCha20Poly1305, Suite::Aes256Gcm] {
        let (mut here, mut there) = (Sealer::new(suite, [1; 32], [2; 32]), Sealer::new(suite, [2; 32], [1; 32]));
        let (mut count, mut opened) = (0, [0; 1400]);
        for number in (PACKETS - 50..PACKETS + 50).chain((1 << 32) - 50..(1 << 32) + 50) {
            let (mut packet, mut late) = ([7; 1400], [8; 1400]);
            let plain_len = packet.len() - TAG_LEN;
            counted(&mut count, || {
                assert_eq!(here.seal(number - 49, &mut late, plain_len), Some(1400));
                assert_eq!(here.seal(number + 100, &mut packet, plain_len), Some(1400));
                assert_eq!(there.open(number + 100, &packet, &mut opened), Some(plain_len));
                assert_eq!(there.open(number + 100 + 9 * PACKETS, &packet, &mut opened), None);
                assert_eq!(there.open(number - 49, &late, &mut opened), Some(plain_len));
            });
        }
        assert_eq!(count, 0, "{suite:?}");
    }
}
