// SPDX-License-Identifier: Apache-2.0
//! Connections of the kernel's TCP that go on through memory, at whatever byte the windows come.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use fide_rack::{
    end::End,
    shm::ShmWindow,
    window::{Bell, WORD, Window},
};
use proptest::prelude::*;

/// Small, so that rings are often full.
const WORDS: usize = 1024;

type Memory = ShmWindow<WORDS>;

/// An end with its socket.
struct Side {
    end: End<Memory>,
    socket: TcpStream,
}

fn limit() -> Option<Instant> {
    Some(Instant::now() + Duration::from_secs(20))
}

fn soon() -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(5))
}

fn sides() -> [Side; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [here, listener.accept().unwrap().0].map(|socket| {
        socket.set_nodelay(true).unwrap();
        Side { end: End::new().unwrap(), socket }
    })
}

fn windows() -> [Memory; 2] {
    Memory::pair().unwrap().map(Memory::silent)
}

/// Nothing goes over TCP.
fn on_ring() -> [Side; 2] {
    let sides = sides();
    for (side, window) in sides.iter().zip(windows()) {
        assert!(side.end.attach(window).unwrap());
    }
    sides
}

fn bytes(count: usize, seed: u8) -> Vec<u8> {
    (0..count).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8).collect()
}

impl Side {
    fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(count) = self.end.read(&self.socket, into, false)? {
                return Ok(count);
            }
            assert!(self.end.wait(&self.socket, Bell::Message, limit())?, "nothing comes");
        }
    }

    fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.end.write(&self.socket, bytes)? {
                Some(count) => bytes = &bytes[count..],
                None => assert!(self.end.wait(&self.socket, Bell::Room, limit())?, "no room comes"),
            }
        }
        Ok(())
    }

    fn read_to_end(&self, piece: usize) -> io::Result<Vec<u8>> {
        let (mut got, mut buffer) = (Vec::new(), vec![0; piece]);
        loop {
            match self.read(&mut buffer)? {
                0 => return Ok(got),
                count => got.extend_from_slice(&buffer[..count]),
            }
        }
    }

    fn fill(&self) -> usize {
        let mut written = 0;
        while let Some(count) = self.end.write(&self.socket, &[7; 4000]).unwrap() {
            written += count;
        }
        written
    }

    fn drain(&self) -> usize {
        let mut read = 0;
        while let Some(count) = self.end.read(&self.socket, &mut [0; 1000], false).unwrap() {
            read += count;
        }
        read
    }

    /// What came over TCP, and is not taken by the ring.
    fn over_tcp(&self) -> io::Result<usize> {
        self.socket.set_nonblocking(true)?;
        let read = (&self.socket).read(&mut [0; 8]);
        self.socket.set_nonblocking(false)?;
        read
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Both ways at once, by two threads of each end; each end gets its window after it has written some bytes, or never.
    #[test]
    fn all_bytes_come_in_order_wherever_each_end_changes_over(
        count in 1..60_000_usize,
        from in prop::array::uniform2(0..90_000_usize),
        pieces in prop::array::uniform4(1..9000_usize),
        seed in any::<u8>(),
    ) {
        let all = [bytes(count, seed), bytes(count / 2 + 1, !seed)];
        let sides = sides();
        let got = thread::scope(|scope| {
            let reads = [0, 1].map(|end| {
                let side = &sides[end];
                scope.spawn(move || side.read_to_end(pieces[2 + end]).unwrap())
            });
            for (end, window) in windows().into_iter().enumerate() {
                let (side, sent) = (&sides[end], &all[end]);
                scope.spawn(move || {
                    let (mut at, mut window) = (0, Some(window));
                    for piece in sent.chunks(pieces[end]) {
                        if at >= from[end] && let Some(window) = window.take() {
                            assert!(side.end.attach(window).unwrap());
                        }
                        side.write(piece).unwrap();
                        at += piece.len();
                    }
                    side.end.shut(&side.socket).unwrap();
                });
            }
            reads.map(|reads| reads.join().unwrap())
        });
        prop_assert!(got[0] == all[1] && got[1] == all[0], "{} and {}", got[0].len(), got[1].len());
    }
}

#[test]
fn nothing_goes_over_tcp_once_both_have_the_window() {
    let [here, there] = on_ring();
    here.write(b"hello").unwrap();
    let mut got = [0; 8];
    assert_eq!(there.end.count().unwrap(), 5);
    assert_eq!(there.end.read(&there.socket, &mut got[..3], true).unwrap(), Some(3), "only looked at");
    assert_eq!(there.read(&mut got).unwrap(), 5);
    assert_eq!(there.over_tcp().unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

/// Whoever polls the socket, by whatever call, is woken, and once for each sleep.
#[test]
fn one_byte_over_tcp_wakes_who_sleeps() {
    let [here, there] = on_ring();
    there.end.arms(Bell::Message);
    here.write(b"hello").unwrap();
    here.write(b"hello").unwrap();
    assert_eq!(there.over_tcp().unwrap(), 1);
    here.write(b"hello").unwrap();
    assert_eq!(there.over_tcp().unwrap_err().kind(), io::ErrorKind::WouldBlock, "it does not sleep");
    there.end.arms(Bell::Message);
    here.write(b"hello").unwrap();
    // Read with what came, and not taken for a part of it.
    assert_eq!(there.drain(), 20);
    assert_eq!(there.over_tcp().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    here.fill();
    here.end.arms(Bell::Room);
    there.drain();
    assert_eq!(here.over_tcp().unwrap(), 1);
}

/// As a program that is killed leaves its connection: the kernel closes the socket, and nobody says anything in the memory.
#[test]
fn what_a_program_wrote_before_it_died_is_read_and_then_the_end() {
    let [here, there] = on_ring();
    here.write(&bytes(3000, 7)).unwrap();
    thread::scope(|scope| {
        let reads = scope.spawn(|| there.read_to_end(700));
        let writes = scope.spawn(|| there.write(&[0; 100_000]));
        thread::sleep(Duration::from_millis(20));
        drop(here);
        assert_eq!(reads.join().unwrap().unwrap(), bytes(3000, 7));
        assert_eq!(writes.join().unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    });
}

/// One that never waits is told, too.
#[test]
fn writer_that_does_not_wait_sees_that_the_other_end_has_died() {
    let [here, there] = on_ring();
    here.fill();
    drop(there);
    let until = limit();
    while here.end.write(&here.socket, &[7; 4000]).map_err(|why| why.kind()) != Err(io::ErrorKind::ConnectionReset) {
        assert!(Instant::now() < until.unwrap(), "no error comes");
    }
}

/// Others sleep, so that a byte that woke them is left: the end is behind it.
#[test]
fn end_behind_a_byte_that_is_left_is_seen() {
    let [here, there] = on_ring();
    there.end.sleeps();
    there.end.arms(Bell::Message);
    here.write(b"hello").unwrap();
    assert_eq!(there.read(&mut [0; 8]).unwrap(), 5);
    assert_eq!(there.end.read(&there.socket, &mut [0; 8], false).unwrap(), None);
    drop(here);
    let until = limit();
    while there.end.read(&there.socket, &mut [0; 8], false).unwrap() != Some(0) {
        assert!(Instant::now() < until.unwrap(), "no end comes");
    }
    there.end.woke();
}

/// A thread writes, and one reads, while a third one attaches the window.
#[test]
fn window_that_comes_while_others_read_and_write_mixes_nothing_up() {
    for _ in 0..200 {
        let sides = sides();
        let sent = bytes(20_000, 1);
        thread::scope(|scope| {
            let reads = [0, 1].map(|end| {
                let side = &sides[end];
                scope.spawn(move || side.read_to_end(300).unwrap())
            });
            for side in &sides {
                let sent = &sent;
                scope.spawn(move || {
                    sent.chunks(100).for_each(|piece| side.write(piece).unwrap());
                    side.end.shut(&side.socket).unwrap();
                });
            }
            for (side, window) in sides.iter().zip(windows()) {
                // It comes too late, if that is done before.
                let _ = scope.spawn(move || side.end.attach(window).unwrap());
            }
            for got in reads {
                assert!(got.join().unwrap() == sent);
            }
        });
    }
}

/// Also one that had said before that it writes no more.
#[test]
fn death_of_an_end_that_only_read_is_seen_by_who_writes() {
    let [here, there] = on_ring();
    here.end.shut(&here.socket).unwrap();
    assert_eq!(there.read(&mut [0; 8]).unwrap(), 0);
    thread::scope(|scope| {
        let writes = scope.spawn(|| there.write(&[0; 100_000]));
        thread::sleep(Duration::from_millis(20));
        drop(here);
        assert_eq!(writes.join().unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn writer_waits_for_an_end_that_only_reads() {
    let [here, there] = on_ring();
    here.end.shut(&here.socket).unwrap();
    assert_eq!(here.end.write(&here.socket, b"more").unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    there.fill();
    assert!(!there.end.wait(&there.socket, Bell::Room, soon()).unwrap());
    here.drain();
    assert!(there.end.wait(&there.socket, Bell::Room, limit()).unwrap());
    assert!(there.end.write(&there.socket, &[7; 4000]).unwrap().is_some());
}

/// It has closed its half of TCP before the other end had the window, so that it can wake nobody.
#[test]
fn writer_waits_for_an_end_that_ended_before_it_had_the_window() {
    let ([here, there], [window_here, window_there]) = (sides(), windows());
    assert!(here.end.attach(window_here).unwrap());
    here.end.shut(&here.socket).unwrap();
    assert!(there.end.attach(window_there).unwrap());
    thread::scope(|scope| {
        scope.spawn(|| there.write(&bytes(50_000, 3)).unwrap());
        thread::sleep(Duration::from_millis(20));
        let mut got = vec![0; 50_000];
        let mut at = 0;
        while at < got.len() {
            at += here.read(&mut got[at..]).unwrap();
        }
        assert_eq!(got, bytes(50_000, 3));
    });
    assert_eq!(there.read(&mut [0; 8]).unwrap(), 0);
}

#[test]
fn end_that_wakes_for_ever_holds_nobody_up() {
    let [here, there] = on_ring();
    here.fill();
    let wakes = |from: &Side, is_over: &AtomicBool| {
        while !is_over.load(Relaxed) {
            (&from.socket).write_all(&[0; 100]).unwrap();
        }
    };
    for (bell, waits, other) in [(Bell::Room, &here, &there), (Bell::Message, &there, &here)] {
        if bell == Bell::Message {
            there.drain();
        }
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| wakes(other, &is_over));
            let until = Some(Instant::now() + Duration::from_millis(20));
            let waited = waits.end.wait(&waits.socket, bell, until);
            is_over.store(true, Relaxed);
            // So that the other one is not stuck in its write.
            while waits.over_tcp().is_ok() {}
            assert!(!waited.unwrap());
        });
    }
}

/// A thread that reads and one that writes sleep for the same socket.
#[test]
fn one_who_sleeps_does_not_take_what_wakes_another() {
    let [here, there] = on_ring();
    here.fill();
    thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut got = [0; 8];
            (here.read(&mut got).unwrap(), got)
        });
        let writes = scope.spawn(|| here.write(&[7; 30_000]).unwrap());
        for _ in 0..40_000 / 1000 {
            thread::sleep(Duration::from_micros(500));
            let _ = there.end.read(&there.socket, &mut [0; 1000], false).unwrap();
        }
        there.drain();
        there.write(b"hello").unwrap();
        assert_eq!(reads.join().unwrap().0, 5);
        while !writes.is_finished() {
            there.drain();
        }
    });
}

#[test]
fn end_of_a_writer_is_read_after_all_it_wrote() {
    let [here, there] = on_ring();
    here.write(b"the last words").unwrap();
    here.end.shut(&here.socket).unwrap();
    let mut got = [0; 100];
    assert_eq!(there.read(&mut got).unwrap(), 14);
    assert_eq!(there.read(&mut got).unwrap(), 0);
    assert_eq!(there.read(&mut got).unwrap(), 0, "and again");
}

#[test]
fn connection_without_windows_is_tcps() {
    let [here, there] = sides();
    here.write(b"hello").unwrap();
    let mut got = [0; 8];
    assert_eq!(there.end.is_ready(Bell::Message).unwrap(), None);
    assert_eq!(there.read(&mut got).unwrap(), 5);
    drop(here);
    assert_eq!(there.read(&mut got).unwrap(), 0);
}

/// One that only one end has changes nothing.
#[test]
fn window_that_one_end_has_is_not_used() {
    let [here, there] = sides();
    let [window, _] = windows();
    assert!(here.end.attach(window).unwrap());
    here.write(b"hello").unwrap();
    there.write(b"hello, too").unwrap();
    let mut got = [0; 16];
    assert_eq!((there.read(&mut got).unwrap(), here.read(&mut got).unwrap()), (5, 10));
    here.end.shut(&here.socket).unwrap();
    assert_eq!(there.read(&mut got).unwrap(), 0);
}

#[test]
fn window_is_not_taken_where_it_could_not_be_used() {
    let [here, there] = sides();
    let [one, other] = windows();
    here.end.shared();
    assert!(!here.end.attach(one).unwrap(), "another process has the end, and would not see it");
    here.end.left();
    there.end.shut(&there.socket).unwrap();
    assert!(!there.end.attach(other).unwrap(), "nothing could wake the other end");
    let [one, other] = windows();
    assert!(here.end.attach(one).unwrap());
    assert!(!here.end.attach(other).unwrap(), "it has one");
}

/// Of the other end's words.
const OVER_TCP_AT: usize = 4 * WORD;

#[test]
fn other_end_that_lies_about_what_it_wrote_over_tcp_is_named() {
    let ([here, there], [liar, window]) = (sides(), windows());
    let mut got = [0; 8];
    here.write(b"hello").unwrap();
    assert_eq!(there.read(&mut got).unwrap(), 5);
    assert!(there.end.attach(window).unwrap());
    liar.publish(OVER_TCP_AT, 1 + 4);
    let why = there.read(&mut got).unwrap_err();
    assert!(why.kind() == io::ErrorKind::InvalidData && why.to_string().contains("fewer bytes"), "{why}");
    // More than it wrote, and the end of TCP.
    liar.publish(OVER_TCP_AT, 1 + 6);
    here.end.shut(&here.socket).unwrap();
    let why = there.read(&mut got).unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn waits_end_in_time() {
    let [here, there] = on_ring();
    assert!(!there.end.wait(&there.socket, Bell::Message, soon()).unwrap());
    let written = here.fill();
    assert!(written > WORDS * WORD / 2, "{written}: as much as there is room for");
    assert!(!here.end.wait(&here.socket, Bell::Room, soon()).unwrap());
    // Once it is read there is room for the rest.
    assert_eq!(there.drain(), written);
    assert!(here.end.wait(&here.socket, Bell::Room, limit()).unwrap());
    assert!(here.end.write(&here.socket, &[7; 4000]).unwrap().is_some());
    let [here, there] = sides();
    assert!(!there.end.wait(&there.socket, Bell::Message, soon()).unwrap());
    while here.end.write(&here.socket, &[7; 65_536]).unwrap().is_some() {}
    assert!(!here.end.wait(&here.socket, Bell::Room, soon()).unwrap());
}
