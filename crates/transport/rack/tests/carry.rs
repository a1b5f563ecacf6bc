// SPDX-License-Identifier: Apache-2.0
//! Connections of the kernel's TCP that go on through memory, at whatever byte the windows come.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use fide_rack::{
    carry::{Incoming, Outgoing, both},
    shm::{Bells, ShmWindow},
    window::{Bell, WORD, Window},
};
use proptest::prelude::*;

/// Small, so that rings are often full.
const WORDS: usize = 1024;
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

type Memory = ShmWindow<WORDS>;
type Half = (Incoming<Memory>, Outgoing<Memory>);

fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [here, listener.accept().unwrap().0]
}

fn windows() -> [Arc<Memory>; 2] {
    let [one, other] = Memory::pair().unwrap();
    let [bells, bells_of_other] = Bells::pair().unwrap();
    [Arc::new(one.with_bells(bells)), Arc::new(other.with_bells(bells_of_other))]
}

fn bytes(count: usize, seed: u8) -> Vec<u8> {
    (0..count).map(|at| (at as u8).wrapping_mul(31).wrapping_add(seed) ^ (at >> 8) as u8).collect()
}

fn read(incoming: &mut Incoming<Memory>, socket: &TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        if let Some(count) = incoming.try_read(socket, into)? {
            return Ok(count);
        }
        assert!(incoming.wait(socket, LIMIT)?, "nothing comes");
    }
}

fn write(outgoing: &mut Outgoing<Memory>, socket: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match outgoing.try_write(socket, bytes)? {
            Some(count) => bytes = &bytes[count..],
            None => assert!(outgoing.wait(socket, LIMIT)?, "no room comes"),
        }
    }
    Ok(())
}

/// Writes all, and has the window from a byte on; then it ends.
fn writes(
    mut outgoing: Outgoing<Memory>,
    socket: &TcpStream,
    window: &Arc<Memory>,
    all: &[u8],
    from: usize,
    piece: usize,
) {
    let mut at = 0;
    for piece in all.chunks(piece) {
        if at <= from && from < at + piece.len() {
            outgoing.attach(Arc::clone(window));
        }
        write(&mut outgoing, socket, piece).unwrap();
        at += piece.len();
    }
    outgoing.ends();
    socket.shutdown(Shutdown::Write).unwrap();
}

/// Reads until the end, and has the window from a byte on. Whether it came through the ring in the end.
fn reads(
    mut incoming: Incoming<Memory>,
    socket: &TcpStream,
    window: &Arc<Memory>,
    from: usize,
    piece: usize,
) -> (Vec<u8>, bool) {
    let (mut got, mut buffer, mut has_it) = (Vec::new(), vec![0; piece], false);
    loop {
        if !has_it && got.len() >= from {
            incoming.attach(Arc::clone(window));
            has_it = true;
        }
        match read(&mut incoming, socket, &mut buffer).unwrap() {
            0 => return (got, incoming.is_on_ring()),
            count => got.extend_from_slice(&buffer[..count]),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    /// Both ways at once; each half gets the window at another byte, or never.
    #[test]
    fn all_bytes_come_in_order_wherever_each_half_changes_over(
        count in 1..60_000_usize,
        from in prop::array::uniform4(0..90_000_usize),
        pieces in prop::array::uniform4(1..9000_usize),
        seed in any::<u8>(),
    ) {
        let (sockets, windows) = (connection(), windows());
        let all = [bytes(count, seed), bytes(count / 2 + 1, !seed)];
        let got = thread::scope(|scope| {
            let ends = [0, 1].map(|end| {
                let (incoming, outgoing) = both();
                let (socket, window, sent) = (&sockets[end], &windows[end], &all[end]);
                scope.spawn(move || writes(outgoing, socket, window, sent, from[end], pieces[end]));
                scope.spawn(move || reads(incoming, socket, window, from[2 + end], pieces[2 + end]))
            });
            ends.map(|end| end.join().unwrap())
        });
        let [(of_other, _), (of_one, _)] = got;
        prop_assert!(of_one == all[0] && of_other == all[1], "{} and {}", of_one.len(), of_other.len());
    }
}

/// Both ends have their windows from the beginning: nothing goes over TCP.
fn on_ring() -> ([TcpStream; 2], [Arc<Memory>; 2], [Half; 2]) {
    let (sockets, windows) = (connection(), windows());
    let mut halves = [both(), both()];
    for ((incoming, _), window) in halves.iter_mut().zip(&windows) {
        incoming.attach(Arc::clone(window));
    }
    for ((_, outgoing), window) in halves.iter_mut().zip(&windows) {
        outgoing.attach(Arc::clone(window));
    }
    (sockets, windows, halves)
}

#[test]
fn nothing_goes_over_tcp_once_both_have_the_window() {
    let (sockets, _windows, [(_, mut out), (mut into, _)]) = on_ring();
    write(&mut out, &sockets[0], b"hello").unwrap();
    let mut got = [0; 8];
    assert_eq!(read(&mut into, &sockets[1], &mut got).unwrap(), 5);
    assert!(out.is_on_ring() && into.is_on_ring());
    sockets[1].set_nonblocking(true).unwrap();
    assert_eq!((&sockets[1]).read(&mut got).unwrap_err().kind(), io::ErrorKind::WouldBlock);
}

/// As a program that is killed leaves its connection: the kernel closes the socket, and nobody says anything in the memory.
#[test]
fn what_a_program_wrote_before_it_died_is_read_and_then_the_end() {
    let ([here, there], _windows, [(_, mut out), (mut into, mut back)]) = on_ring();
    write(&mut out, &here, &bytes(3000, 7)).unwrap();
    let reads = thread::spawn(move || {
        let (mut got, mut buffer) = (Vec::new(), [0; 700]);
        loop {
            match read(&mut into, &there, &mut buffer).unwrap() {
                0 => return (got, there),
                count => got.extend_from_slice(&buffer[..count]),
            }
        }
    });
    thread::sleep(Duration::from_millis(20));
    drop(here);
    let (got, there) = reads.join().unwrap();
    assert_eq!(got, bytes(3000, 7));
    // A writer that waits for room sees it, too.
    let why = write(&mut back, &there, &[0; 100_000]).unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::ConnectionReset);
}

/// It writes no more, and reads on.
#[test]
fn writer_waits_for_an_end_that_only_reads() {
    let ([here, there], _windows, [(mut into, mut out), (_, mut back)]) = on_ring();
    out.ends();
    here.shutdown(Shutdown::Write).unwrap();
    while back.try_write(&there, &[7; 4000]).unwrap().is_some() {}
    assert!(!back.wait(&there, Some(Duration::from_millis(5))).unwrap());
    while into.try_read(&here, &mut [0; 4000]).unwrap().is_some() {}
    assert!(back.wait(&there, LIMIT).unwrap());
    assert!(back.try_write(&there, &[7; 4000]).unwrap().is_some());
}

#[test]
fn end_that_rings_for_ever_holds_nobody_up() {
    let ([here, there], windows, [(_, mut out), (mut into, _)]) = on_ring();
    while out.try_write(&here, &[7; 4000]).unwrap().is_some() {}
    let rings = |window: &Memory, is_over: &AtomicBool| {
        while !is_over.load(Relaxed) {
            window.ring(Bell::Message);
            window.ring(Bell::Room);
        }
    };
    let is_over = AtomicBool::new(false);
    let soon = Some(Duration::from_millis(20));
    thread::scope(|scope| {
        scope.spawn(|| rings(&windows[1], &is_over));
        let waited = out.wait(&here, soon);
        is_over.store(true, Relaxed);
        assert!(!waited.unwrap());
    });
    while into.try_read(&there, &mut [0; 4000]).unwrap().is_some() {}
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| rings(&windows[0], &is_over));
        let waited = into.wait(&there, soon);
        is_over.store(true, Relaxed);
        assert!(!waited.unwrap());
    });
}

#[test]
fn end_of_a_writer_is_read_after_all_it_wrote() {
    let ([here, there], _windows, [(_, mut out), (mut into, _)]) = on_ring();
    write(&mut out, &here, b"the last words").unwrap();
    out.ends();
    let mut got = [0; 100];
    assert_eq!(read(&mut into, &there, &mut got).unwrap(), 14);
    assert_eq!(read(&mut into, &there, &mut got).unwrap(), 0);
    assert_eq!(read(&mut into, &there, &mut got).unwrap(), 0, "and again");
}

#[test]
fn connection_without_windows_is_tcps() {
    let [here, there] = connection();
    let ((_, mut out), (mut into, _)) = (both(), both());
    write(&mut out, &here, b"hello").unwrap();
    let mut got = [0; 8];
    assert_eq!(read(&mut into, &there, &mut got).unwrap(), 5);
    drop(here);
    assert_eq!(read(&mut into, &there, &mut got).unwrap(), 0);
}

/// Of the other end's words.
const OVER_TCP_AT: usize = 4 * WORD;

#[test]
fn other_end_that_lies_about_what_it_wrote_over_tcp_is_named() {
    let (sockets, windows) = (connection(), windows());
    let (mut into, _) = both::<Memory>();
    let mut got = [0; 8];
    (&sockets[0]).write_all(b"hello").unwrap();
    assert_eq!(read(&mut into, &sockets[1], &mut got).unwrap(), 5);
    into.attach(Arc::clone(&windows[1]));
    windows[0].publish(OVER_TCP_AT, 1 + 4);
    let why = read(&mut into, &sockets[1], &mut got).unwrap_err();
    assert!(why.kind() == io::ErrorKind::InvalidData && why.to_string().contains("fewer bytes"), "{why}");
    // More than it wrote, and the end of TCP.
    windows[0].publish(OVER_TCP_AT, 1 + 6);
    sockets[0].shutdown(Shutdown::Write).unwrap();
    let why = read(&mut into, &sockets[1], &mut got).unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn other_end_that_goes_on_over_tcp_is_named() {
    let ([here, there], _windows, [(_, mut out), (mut into, _)]) = on_ring();
    write(&mut out, &here, b"hello").unwrap();
    let mut got = [0; 8];
    assert_eq!(read(&mut into, &there, &mut got).unwrap(), 5);
    (&here).write_all(b"more").unwrap();
    let why = read(&mut into, &there, &mut got).unwrap_err();
    assert!(why.kind() == io::ErrorKind::InvalidData && why.to_string().contains("goes on over TCP"), "{why}");
}

#[test]
fn waits_end_in_time() {
    let ([here, there], _windows, [(_, mut out), (mut into, _)]) = on_ring();
    let soon = Some(Duration::from_millis(5));
    assert!(!into.wait(&there, soon).unwrap());
    let mut written = 0;
    while let Some(count) = out.try_write(&here, &[7; 4000]).unwrap() {
        written += count;
    }
    assert!(written > WORDS * WORD / 2, "{written}: as much as there is room for");
    assert!(!out.wait(&here, soon).unwrap());
    // Once it is read there is room for the rest.
    let mut read = 0;
    while let Some(count) = into.try_read(&there, &mut [0; 1000]).unwrap() {
        read += count;
    }
    assert_eq!(read, written);
    assert!(out.wait(&here, LIMIT).unwrap());
    assert!(out.try_write(&here, &[7; 4000]).unwrap().is_some());
    let [here, there] = connection();
    let (mut into, mut out) = both::<Memory>();
    assert!(!into.wait(&there, soon).unwrap());
    while out.try_write(&here, &[7; 65_536]).unwrap().is_some() {}
    assert!(!out.wait(&here, soon).unwrap());
}
