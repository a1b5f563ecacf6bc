// SPDX-License-Identifier: Apache-2.0
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use rustix::{
    io::ioctl_fionread,
    net::{RecvFlags, recv},
};

use super::*;
use crate::shm::ShmWindow;

fn attached() -> ([End<ShmWindow<128>>; 2], [TcpStream; 2]) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    let ends = ShmWindow::<128>::pair().unwrap().map(|window| {
        let end = End::new().unwrap();
        assert!(end.attach(window).unwrap());
        end
    });
    (ends, [socket, other])
}

/// As by the handler of a signal that has interrupted a write.
#[test]
fn what_is_read_in_the_middle_of_a_write_is_not_lost_and_wakes() {
    let (ends, [socket, other]) = attached();
    assert_eq!(ends[1].write(&other, b"hello").unwrap(), Some(5));
    assert_eq!(ends[0].write(&socket, b"hello").unwrap(), Some(5));
    ends[1].arms(Bell::Room);
    let (_held, _) = ends[0].of().outgoing.lock.hold();
    assert_eq!(ends[0].read(&socket, &mut [0; 8], false).unwrap(), Some(5));
    assert_eq!(other.peek(&mut [0; 8]).unwrap(), 1);
}

/// Of two that sleep the last one, and a number of a sleep that comes meanwhile.
#[test]
fn nobody_is_woken_once_all_are() {
    let (ends, [socket, other]) = attached();
    socket.set_nonblocking(true).unwrap();
    let write = |_: &str| ends[1].write(&other, b"x").unwrap();
    let woken = || recv(&socket, &mut [0; 8], RecvFlags::DONTWAIT).map_or(0, |(_, count)| count);
    for _ in 0..2 {
        ends[0].sleeps();
        ends[0].arms(Bell::Message);
    }
    ends[0].woke();
    write("one sleeps");
    assert_eq!(woken(), 1);
    ends[0].arms(Bell::Message);
    ends[0].woke();
    write("nobody does");
    assert_eq!(woken(), 0);
    ends[0].sleeps();
    ends[0].arms(Bell::Message);
    ends[0].window.get().unwrap().sleeps_no_more(Bell::Message, ends[0].of().turn.load(Ordering::Relaxed) - 1);
    write("another sleeps since");
    assert_eq!(woken(), 1);
}

/// All came over TCP and was read, and nobody has looked for more since: what wakes is not taken for bytes of the program.
#[test]
fn what_wakes_is_taken_also_by_one_who_only_writes() {
    let (ends, [socket, other]) = attached();
    assert_eq!(ends[0].write(&socket, b"x").unwrap(), Some(1));
    ends[0].sleeps();
    ends[0].arms(Bell::Room);
    assert_eq!(ends[1].read(&other, &mut [0; 8], false).unwrap(), Some(1));
    assert_eq!(socket.peek(&mut [0; 8]).unwrap(), 1);
    assert!(ends[0].hears(&socket).unwrap());
    socket.set_nonblocking(true).unwrap();
    assert!(socket.peek(&mut [0; 8]).is_err());
}

/// It was killed, and so has said nothing in the window.
#[test]
fn write_fails_once_the_end_of_a_program_that_died_was_seen() {
    let (ends, [socket, other]) = attached();
    assert_eq!(ends[0].write(&socket, b"x").unwrap(), Some(1));
    drop(other);
    let read = || ends[0].read(&socket, &mut [0; 8], false).unwrap();
    let waits = || std::thread::sleep(Duration::from_millis(1));
    assert_eq!(
        (0..1000).find_map(|_| read().or_else(|| {
            waits();
            None
        })),
        Some(0)
    );
    let writes = |_| {
        waits();
        ends[0].write(&socket, b"x").err()
    };
    let why = (0..500).find_map(writes).map(|why| why.kind());
    assert!(matches!(why, Some(io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)), "{why:?}");
}

/// What wakes and is not taken would be a reset for the other end: also if there is much of it, and if the other processes that have had
/// this end are gone without a word.
#[test]
fn what_wakes_is_taken_before_a_close() {
    for is_shared in [false, true] {
        let (ends, [socket, other]) = attached();
        assert_eq!(ends[1].write(&other, b"x").unwrap(), Some(1));
        assert_eq!(ends[0].read(&socket, &mut [0; 8], false).unwrap(), Some(1));
        if is_shared {
            ends[0].shared();
        }
        std::io::Write::write_all(&mut &other, &[0; 1000]).unwrap();
        while ioctl_fionread(&socket).unwrap() < 1000 {}
        ends[0].close(&socket);
        drop(socket);
        let mut seen = [0; 8];
        while let Err(why) = other.peek(&mut seen) {
            assert_eq!(why.kind(), io::ErrorKind::WouldBlock);
        }
        assert!(other.take_error().unwrap().is_none());
    }
}

/// Another process has it, alone: what comes to this one late is not taken.
#[test]
fn what_this_process_has_closed_is_not_attached() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let end = End::<ShmWindow<64>>::new().unwrap();
    end.shared();
    end.close(&socket);
    assert!(end.is_lone());
    let [window, _] = ShmWindow::pair().unwrap();
    assert!(!end.attach(window).unwrap() && !end.is_attached());
}

/// A thread that comes back from a wait after another one has closed the connection, whose descriptor is the next one's by then.
#[test]
fn what_this_process_has_closed_leaves_the_next_socket_alone() {
    let (ends, [socket, _other]) = attached();
    let (_, [mut next_other, next]) = attached();
    std::io::Write::write_all(&mut next_other, b"hello").unwrap();
    // Another process has it, too, or none.
    for is_shared in [true, false] {
        let end = &ends[usize::from(is_shared)];
        if is_shared {
            end.shared();
        }
        end.close(&socket);
        let closed = |error: io::Error| assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        closed(end.read(&next, &mut [0; 8], false).unwrap_err());
        closed(end.hears(&next).unwrap_err());
        closed(end.write(&next, b"x").unwrap_err());
        closed(end.shut(&next).unwrap_err());
        closed(end.wait(&next, Bell::Message, None).unwrap_err());
        assert_eq!(next.peek(&mut [0; 8]).unwrap(), 5);
    }
    next_other.set_nonblocking(true).unwrap();
    assert!(next_other.peek(&mut [0; 8]).is_err(), "nothing is sent");
}

/// What is left to others does not wait for threads of a process that is gone, and what a process has of its parent is not its own.
#[test]
fn who_leaves_an_end_to_others_sleeps_for_it_no_more() {
    let (ends, [socket, _other]) = attached();
    let sleepers = || ends[0].of().sleepers.load(Ordering::Relaxed);
    ends[0].shared();
    ends[0].sleeps();
    ends[0].sleeps();
    ends[0].woke();
    ends[0].close(&socket);
    assert_eq!(sleepers(), 0);
    ends[0].woke();
    assert_eq!(sleepers(), 0, "it comes to say so later");
    ends[0].sleeps();
    ends[0].is_forked();
    ends[0].woke();
    assert_eq!(sleepers(), 1, "that one is the parent's");
}

/// A sleep with the number of the one before would not be woken from.
#[test]
fn numbers_of_sleeps_differ_also_as_they_begin_anew() {
    let end = End::<ShmWindow<64>>::new().unwrap();
    end.of().turn.store(u32::MAX - 3, Ordering::Relaxed);
    assert_eq!([(); 6].map(|()| end.next_turn()), [u32::MAX - 2, u32::MAX - 1, u32::MAX, 1, 2, 3]);
}

/// Its sender has lost its core as soon as the byte was sent, to the one that it wakes. Left there, that one could not sleep.
#[test]
fn what_wakes_is_taken_also_before_it_is_counted() {
    let (ends, [socket, other]) = attached();
    assert_eq!(ends[1].write(&other, b"x").unwrap(), Some(1));
    assert_eq!(ends[0].read(&socket, &mut [0; 8], false).unwrap(), Some(1));
    std::io::Write::write_all(&mut &other, &[0]).unwrap();
    assert_eq!(socket.peek(&mut [0; 8]).unwrap(), 1);
    ends[0].sleeps();
    assert!(ends[0].hears(&socket).unwrap());
    ends[0].woke();
    assert_eq!(ioctl_fionread(&socket).unwrap(), 0);
    // Then it is counted, and the ends go on, and back to TCP.
    crate::carry::leave::counts(ends[1].window.get().unwrap());
    ends[0].arms(Bell::Message);
    assert_eq!(ends[1].write(&other, b"hello").unwrap(), Some(5));
    assert_eq!(socket.peek(&mut [0; 8]).unwrap(), 1);
    assert_eq!(ends[0].read(&socket, &mut [0; 8], false).unwrap(), Some(5));
    assert!(ends[0].leave(&socket).unwrap());
    assert!(ends[1].follow(&other).unwrap());
}
