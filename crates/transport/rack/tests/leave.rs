// SPDX-License-Identifier: Apache-2.0
//! Connections that go back to TCP, as their programs hand them to others.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use fide_rack::{end::End, shm::ShmWindow, window::Bell};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, poll};

/// Small, so that rings are often full.
const WORDS: usize = 1024;

type Memory = ShmWindow<WORDS>;

struct Side {
    end: End<Memory>,
    socket: TcpStream,
}

fn limit() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn sides(has_memory: [bool; 2]) -> [Side; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut windows = Memory::pair().unwrap().map(Memory::silent).into_iter();
    let mut has_memory = has_memory.into_iter();
    [here, listener.accept().unwrap().0].map(|socket| {
        socket.set_nodelay(true).unwrap();
        let (end, window) = (End::new().unwrap(), windows.next().unwrap());
        if has_memory.next().unwrap() {
            assert!(end.attach(window).unwrap());
        }
        Side { end, socket }
    })
}

fn bytes(count: usize, seed: u8) -> Vec<u8> {
    (0..count).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8).collect()
}

impl Side {
    fn leaves(&self) -> bool {
        self.end.leave(&self.socket).unwrap()
    }

    fn reads(&self, into: &mut [u8]) -> Option<usize> {
        self.end.read(&self.socket, into, false).unwrap()
    }

    /// As a program does that knows nothing of the window.
    fn reads_tcp(&self, into: &mut [u8]) -> Option<usize> {
        self.socket.set_nonblocking(true).unwrap();
        let read = (&self.socket).read(into);
        self.socket.set_nonblocking(false).unwrap();
        match read {
            Err(why) if why.kind() == io::ErrorKind::WouldBlock => None,
            read => Some(read.unwrap()),
        }
    }

    fn exact(&self, count: usize) -> Vec<u8> {
        let (mut got, mut at) = (vec![0; count], 0);
        while at < count {
            match self.reads(&mut got[at..]) {
                Some(more) => at += more,
                None => assert!(self.end.wait(&self.socket, Bell::Message, limit()).unwrap(), "nothing comes"),
            }
        }
        got
    }
}

#[test]
fn end_leaves_and_the_other_one_follows() {
    let [here, there] = sides([true; 2]);
    assert_eq!(here.end.write(&here.socket, b"before").unwrap(), Some(6));
    assert!(here.leaves() && here.end.is_leaving() && here.leaves());
    (&here.socket).write_all(b" and behind").unwrap();
    assert!(there.end.is_leaving() && !there.end.follow(&there.socket).unwrap(), "the ring is still to be read");
    assert_eq!(there.exact(17), b"before and behind");
    assert_eq!(there.end.write(&there.socket, b"back").unwrap(), Some(4));
    assert!(there.end.follow(&there.socket).unwrap());
    assert_eq!(here.reads_tcp(&mut [0; 8]), Some(4));
    drop(here);
    let until = limit().unwrap();
    while there.reads(&mut [0; 8]) != Some(0) {
        assert!(Instant::now() < until, "no end comes");
    }
}

/// Of a message a part, and the others, by a call of the other end or as it is woken; and then its end.
#[test]
fn what_was_not_read_is_sent_once_more() {
    let mut got = [0; 64];
    let [here, there] = sides([true; 2]);
    for piece in [&b"first and "[..], b"second and ", b"third"] {
        assert_eq!(there.end.write(&there.socket, piece).unwrap(), Some(piece.len()));
    }
    assert_eq!(here.exact(5), b"first");
    assert!(here.leaves());
    assert_eq!(here.reads_tcp(&mut got), None, "it does nothing by itself");
    assert_eq!(there.end.write(&there.socket, b" and more").unwrap(), Some(9));
    let count = here.reads_tcp(&mut got).unwrap();
    assert_eq!(&got[..count], b" and second and third and more");

    let [here, there] = sides([true; 2]);
    thread::scope(|scope| {
        let reads = scope.spawn(|| there.exact(2));
        assert_eq!(there.end.write(&there.socket, b"request").unwrap(), Some(7));
        there.end.shut(&there.socket).unwrap();
        thread::sleep(Duration::from_millis(20));
        assert!(here.leaves());
        here.socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let mut got = Vec::new();
        (&here.socket).read_to_end(&mut got).unwrap();
        assert_eq!(got, b"request", "and the end");
        (&here.socket).write_all(b"ok").unwrap();
        assert_eq!(reads.join().unwrap(), b"ok");
    });
}

/// None of them is a byte of the program, whether it comes before the end has left, or the other end has not taken it by then.
#[test]
fn bytes_that_wake_are_no_bytes_of_the_program() {
    let [here, there] = sides([true; 2]);
    for side in [&here, &there] {
        side.end.arms(Bell::Message);
    }
    assert_eq!(here.end.write(&here.socket, b"a").unwrap(), Some(1));
    assert_eq!(there.end.write(&there.socket, b"b").unwrap(), Some(1));
    assert_eq!(here.exact(1), b"b");
    assert!(here.leaves());
    assert_eq!(here.reads_tcp(&mut [0; 8]), None, "it was taken");
    (&here.socket).write_all(b"c").unwrap();
    assert_eq!(there.exact(2), b"ac");
    // It still sleeps, as it seems.
    here.end.arms(Bell::Message);
    assert_eq!(there.end.write(&there.socket, b"d").unwrap(), Some(1));
    let mut got = [0; 8];
    while here.socket.peek(&mut got).unwrap() == 0 {}
    assert_eq!((here.reads_tcp(&mut got), got[0]), (Some(1), b'd'));
}

/// They are taken in parts, and are before what the program reads.
#[test]
fn many_bytes_that_wake_are_taken_before_the_program_reads_on() {
    let [here, there] = sides([true; 2]);
    for _ in 0..200 {
        there.end.arms(Bell::Message);
        assert_eq!(here.end.write(&here.socket, b"x").unwrap(), Some(1));
    }
    assert_eq!(there.exact(200), [b'x'; 200]);
    assert!(here.leaves());
    (&here.socket).write_all(b"behind").unwrap();
    assert_eq!(there.exact(6), b"behind");
}

/// One that sleeps as the other end leaves is woken by TCP's bytes, and says so.
#[test]
fn end_that_sleeps_follows() {
    let [here, there] = sides([true; 2]);
    thread::scope(|scope| {
        let reads = scope.spawn(|| there.exact(3));
        thread::sleep(Duration::from_millis(20));
        assert!(here.leaves());
        (&here.socket).write_all(b"abc").unwrap();
        assert_eq!(reads.join().unwrap(), b"abc");
    });
    assert_eq!(there.end.is_ready(Bell::Message).unwrap(), None, "the socket says it");
    assert_eq!(there.end.is_ready(Bell::Room).unwrap(), None);
    assert_eq!(there.end.count().unwrap(), 0);
}

#[test]
fn end_leaves_also_where_the_other_one_has_no_memory_or_has_ended() {
    let mut got = [0; 8];
    let [here, there] = sides([true, false]);
    assert_eq!(there.end.write(&there.socket, b"tcp").unwrap(), Some(3));
    assert!(here.leaves());
    assert_eq!(here.reads_tcp(&mut got), Some(3));
    let [window, _] = Memory::pair().unwrap();
    assert!(there.end.attach(window).unwrap(), "it comes late, and is not used");
    assert_eq!(there.end.write(&there.socket, b"more").unwrap(), Some(4));
    assert_eq!(here.reads_tcp(&mut got), Some(4));

    let [here, there] = sides([true; 2]);
    here.end.shut(&here.socket).unwrap();
    assert!(here.leaves(), "TCP says so as well");
    assert_eq!(there.end.write(&there.socket, b"x").unwrap(), Some(1));
    assert_eq!((there.reads(&mut got), here.reads_tcp(&mut got)), (Some(0), Some(1)));
    here.end.sleeps();
    let [here, _there] = sides([true; 2]);
    here.end.sleeps();
    assert!(!here.leaves(), "another thread sleeps");
}

/// Nobody would send it once more, whether the other end's program has closed it or has died.
#[test]
fn end_stays_where_bytes_are_unread_and_the_other_one_is_gone() {
    for closes in [true, false] {
        let [here, there] = sides([true; 2]);
        assert_eq!(there.end.write(&there.socket, b"answer").unwrap(), Some(6));
        if closes {
            there.end.close(&there.socket);
        }
        drop(there);
        assert!(!here.leaves(), "closes: {closes}");
        assert_eq!(here.exact(6), b"answer");
        assert!(here.leaves());
        here.socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        assert_eq!((&here.socket).read(&mut [0; 8]).unwrap(), 0);
    }
}

/// What wakes and is not taken is no reason for the kernel to reset the connection.
#[test]
fn close_of_one_whose_other_end_has_left_is_no_reset() {
    for writes in [true, false] {
        let [here, there] = sides([true; 2]);
        if writes {
            assert_eq!(there.end.write(&there.socket, b"answer").unwrap(), Some(6));
        }
        assert!(here.leaves());
        there.end.close(&there.socket);
        drop(there);
        let (mut got, mut seen) = (Vec::new(), [PollFd::new(&here.socket, PollFlags::IN)]);
        here.socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (&here.socket).read_to_end(&mut got).unwrap();
        assert_eq!(got, if writes { &b"answer"[..] } else { b"" });
        assert_eq!(poll(&mut seen, None), Ok(1));
        assert!(!seen[0].revents().contains(PollFlags::ERR), "writes: {writes}");
    }
}

/// As of one whose child has been forked meanwhile, and has begun another program.
#[test]
fn close_of_one_that_others_may_have_sends_what_was_not_read() {
    let [here, there] = sides([true; 2]);
    assert_eq!(there.end.write(&there.socket, b"answer").unwrap(), Some(6));
    there.end.shared();
    assert!(here.leaves());
    there.end.close(&there.socket);
    drop(there);
    let mut got = Vec::new();
    (&here.socket).read_to_end(&mut got).unwrap();
    assert_eq!(got, b"answer");
}

/// Writes until TCP has no room, and goes over to the ring then.
fn stuffed() -> ([Side; 2], usize) {
    let ([here, there], windows) = (sides([false; 2]), Memory::pair().unwrap().map(Memory::silent));
    let (mut count, mut full) = (0, 0);
    // The kernel makes room for more as the other one's takes what came.
    while full < 5 {
        let more = there.end.write(&there.socket, &[7; 100_000]).unwrap();
        full = if more.is_none() { full + 1 } else { 0 };
        count += more.unwrap_or(0);
        thread::sleep(Duration::from_millis(1));
    }
    for (side, window) in [&here, &there].into_iter().zip(windows) {
        assert!(side.end.attach(window).unwrap());
    }
    ([here, there], count)
}

/// It is not counted: else a byte of the program would be taken for it.
#[test]
fn byte_that_is_to_wake_and_has_no_room_is_no_byte_of_the_program() {
    let ([here, there], count) = stuffed();
    assert_eq!(there.end.write(&there.socket, b"ring").unwrap(), Some(4));
    assert!(there.leaves());
    assert_eq!(here.exact(count), vec![7; count]);
    (&there.socket).write_all(b"behind").unwrap();
    assert_eq!(here.exact(10), b"ringbehind");
}

/// Its reader is a program that is begun just then.
#[test]
fn what_was_not_read_waits_for_room() {
    for waits in [true, false] {
        let ([here, there], count) = stuffed();
        assert_eq!(there.end.write(&there.socket, b"ring").unwrap(), Some(4));
        assert!(here.leaves());
        // As a rule there is none; the kernel may make some late.
        let begun = there.end.write(&there.socket, b"behind").unwrap().unwrap_or(0);
        thread::scope(|scope| {
            // By a write, or as it waits for an answer.
            let goes_on = scope.spawn(|| {
                if waits {
                    return there.exact(2);
                }
                let mut rest = &b"behind"[begun..];
                while !rest.is_empty() {
                    match there.end.write(&there.socket, rest).unwrap() {
                        Some(more) => rest = &rest[more..],
                        None => assert!(there.end.wait(&there.socket, Bell::Room, limit()).unwrap(), "no room"),
                    }
                }
                b"ok".to_vec()
            });
            thread::sleep(Duration::from_millis(250));
            let (mut got, all) = (Vec::new(), if waits { 4 + begun } else { 10 });
            here.socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            (&here.socket).take((count + all) as u64).read_to_end(&mut got).unwrap();
            assert_eq!(&got[count..], &b"ringbehind"[..all]);
            (&here.socket).write_all(b"ok").unwrap();
            assert_eq!(goes_on.join().unwrap(), b"ok");
        });
    }
}

/// The byte that wakes is left for all of them, and nobody is to wait for another one to take it.
#[test]
fn all_threads_that_wait_as_the_other_end_leaves_go_on() {
    let [here, there] = sides([true; 2]);
    assert_eq!(here.end.write(&here.socket, b"x").unwrap(), Some(1));
    assert_eq!(there.exact(1), b"x");
    thread::scope(|scope| {
        let reads = [0, 1].map(|_| scope.spawn(|| there.exact(1)));
        thread::sleep(Duration::from_millis(20));
        assert!(here.leaves());
        for byte in [b"a", b"b"] {
            (&here.socket).write_all(byte).unwrap();
            thread::sleep(Duration::from_millis(5));
        }
        let mut got = reads.map(|reads| reads.join().unwrap()).concat();
        got.sort_unstable();
        assert_eq!(got, b"ab");
    });
}

/// One thread writes more than TCP has room for, and the other one is to read before the other end reads on.
#[test]
fn thread_that_waits_for_room_does_not_keep_another_one_from_reading() {
    let [here, there] = sides([true; 2]);
    assert_eq!(here.end.write(&here.socket, b"x").unwrap(), Some(1));
    assert_eq!(there.exact(1), b"x");
    let all = bytes(20_000_000, 3);
    thread::scope(|scope| {
        let reads = scope.spawn(|| there.exact(4));
        let writes = scope.spawn(|| {
            let mut rest = &all[..];
            while !rest.is_empty() {
                match there.end.write(&there.socket, rest).unwrap() {
                    Some(more) => rest = &rest[more..],
                    None => assert!(there.end.wait(&there.socket, Bell::Room, None).unwrap()),
                }
            }
        });
        thread::sleep(Duration::from_millis(20));
        assert!(here.leaves());
        // Until it waits for TCP.
        thread::sleep(Duration::from_millis(100));
        (&here.socket).write_all(b"stop").unwrap();
        assert_eq!(reads.join().unwrap(), b"stop");
        let mut got = vec![0; all.len()];
        (&here.socket).read_exact(&mut got).unwrap();
        writes.join().unwrap();
        assert!(got == all);
    });
}

/// Both ends go on by turns of reads and writes, of many lengths, and leave the rings at any of them, one or both.
fn talks(side: &Side, sent: &[u8], count: usize, pieces: &[usize], leaves_at: Option<usize>, fills: bool) -> Vec<u8> {
    let (mut got, mut at, mut turn, mut has_left, mut idle) = (Vec::new(), 0, 0, false, 0_u32);
    let mut buffer = vec![0; 20_000];
    let until = limit().unwrap();
    while at < sent.len() || got.len() < count {
        assert!(Instant::now() < until, "{at} of {} written, {} of {count} read", sent.len(), got.len());
        let piece = pieces[turn % pieces.len()];
        turn += 1;
        if leaves_at.is_some_and(|leaves_at| turn > leaves_at) && !has_left {
            has_left = side.leaves();
        }
        let rest = &sent[at..][..piece.min(sent.len() - at)];
        let wrote = if rest.is_empty() {
            0
        } else if has_left {
            side.socket.set_nonblocking(true).unwrap();
            let wrote = (&side.socket).write(rest).unwrap_or(0);
            side.socket.set_nonblocking(false).unwrap();
            wrote
        } else if fills && turn % 2 == 0 {
            let mut fill = |into: *mut u8, len: usize| {
                let len = len.min(rest.len());
                // SAFETY: so many bytes may be written there.
                unsafe { into.copy_from_nonoverlapping(rest.as_ptr(), len) };
                Ok(len)
            };
            match side.end.fill(&side.socket, rest.len(), &mut fill) {
                Err(why) if why.kind() == io::ErrorKind::Unsupported => {
                    side.end.write(&side.socket, rest).unwrap().unwrap_or(0)
                }
                filled => filled.unwrap().unwrap_or(0),
            }
        } else {
            side.end.write(&side.socket, rest).unwrap().unwrap_or(0)
        };
        at += wrote;
        let most = piece.min(buffer.len());
        let read = if has_left { side.reads_tcp(&mut buffer[..most]) } else { side.reads(&mut buffer[..most]) };
        assert_ne!(read, Some(0), "the end, after {} of {count}", got.len());
        got.extend_from_slice(&buffer[..read.unwrap_or(0)]);
        idle = if wrote > 0 || read.is_some() { 0 } else { idle + 1 };
        if idle > 3 {
            // A sleep, by which bytes come that wake.
            let soon = Some(Instant::now() + Duration::from_millis(1));
            let bell = if turn % 3 == 0 && at < sent.len() { Bell::Room } else { Bell::Message };
            if has_left {
                thread::yield_now();
            } else {
                side.end.wait(&side.socket, bell, soon).unwrap();
            }
        }
    }
    got
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn all_bytes_come_in_order_wherever_an_end_leaves(
        counts in prop::array::uniform2(1..60_000_usize),
        pieces in prop::array::uniform2(prop::collection::vec(1..9000_usize, 1..5)),
        small in prop::array::uniform2(any::<bool>()),
        leaves_at in prop::array::uniform2(prop::option::of(0..300_usize)),
        late in prop::array::uniform2(any::<bool>()),
        fills in any::<bool>(),
        seed in any::<u8>(),
    ) {
        let all = [bytes(counts[0], seed), bytes(counts[1], !seed)];
        let pieces = [0, 1].map(|end| match small[end] {
            true => pieces[end].iter().map(|piece| piece % 100 + 1).collect(),
            false => pieces[end].clone(),
        });
        let sides = sides([true, !late[1]]);
        let are_done = AtomicUsize::new(0);
        let got = thread::scope(|scope| {
            let are_done = &are_done;
            let talks = [0, 1].map(|end| {
                let (side, pieces, all) = (&sides[end], &pieces[end], &all);
                scope.spawn(move || {
                    let got = talks(side, &all[end], all[1 - end].len(), pieces, leaves_at[end], fills);
                    are_done.fetch_add(1, Ordering::Relaxed);
                    // As a program that goes on to use it.
                    let until = limit().unwrap();
                    while are_done.load(Ordering::Relaxed) < 2 && Instant::now() < until {
                        let _ = side.end.follow(&side.socket).unwrap();
                        thread::sleep(Duration::from_millis(1));
                    }
                    got
                })
            });
            talks.map(|talks| talks.join().unwrap())
        });
        prop_assert!(got[0] == all[1] && got[1] == all[0], "{} and {}", got[0].len(), got[1].len());
    }
}
