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
