// SPDX-License-Identifier: Apache-2.0
//! What programs of two hosts do at an unlucky moment, or to get at others' bytes; and many connections that do anything at once.

mod hosted;

use std::{
    io::{self, Read},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use fide_rack::{
    meet::ask::{Asks, Told},
    window::Bell,
};
use fide_sys::tcp::keeps_syn;
use hosted::{Program, bytes, rack, rack_of, until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Whether an answer comes within so many milliseconds.
fn is_answered(asks: &Asks, within_ms: i64) -> bool {
    let within = Timespec { tv_sec: within_ms / 1000, tv_nsec: within_ms % 1000 * 1_000_000 };
    poll(&mut [PollFd::new(asks, PollFlags::IN)], Some(&within)) == Ok(1)
}

/// As a program that may not use it.
fn drops_memory(asks: &Asks) {
    let told = asks.told().unwrap();
    assert!(matches!(told, Some(Told::Paired { .. })), "{told:?}");
}

/// A process that was forked has the connection, and is killed; its parent, which has that to the monitor, lives on.
#[test]
fn end_of_a_forked_process_is_seen_while_its_parent_lives() {
    let rack = rack();
    let [here, there] = rack.carried();
    here.writes(b"last").unwrap();
    let Program { asks, end, socket, .. } = here;
    drop((end, socket));
    assert_eq!(there.reads(4).unwrap(), b"last");
    assert_eq!(there.read(&mut [0; 8]).unwrap(), 0);
    drop(asks);
}

/// It has begun another program meanwhile, which has not said that it has nothing to do with the connection.
#[test]
fn close_of_one_that_has_begun_another_program_is_seen() {
    let rack = rack();
    let [here, there] = rack.carried();
    here.end.shared();
    here.writes(b"last").unwrap();
    let Program { asks, end, socket, .. } = here;
    end.close(&socket);
    drop((end, socket));
    assert_eq!(there.reads(4).unwrap(), b"last");
    assert_eq!(there.read(&mut [0; 8]).unwrap(), 0);
    drop(asks);
}

#[test]
fn memory_that_is_refused_is_no_end_and_its_connection_outlives_the_link() {
    let mut rack = rack();
    let [here, mut there] = rack.connection();
    there.attaches();
    assert!(is_answered(&here.asks, 10_000));
    drops_memory(&here.asks);
    thread::sleep(Duration::from_millis(300));
    assert!(!there.end.is_ended());
    here.writes(b"alive").unwrap();
    assert_eq!(there.reads(5).unwrap(), b"alive");
    rack.hosts[0].monitor = None;
    here.writes(b"still").unwrap();
    assert_eq!(there.reads(5).unwrap(), b"still");
}

#[test]
fn memory_that_is_not_taken_as_the_link_is_lost_leaves_the_connection_with_tcp() {
    let mut rack = rack();
    let [mut here, mut there] = rack.connection();
    there.attaches();
    thread::sleep(Duration::from_millis(100));
    rack.hosts[1].monitor = None;
    thread::sleep(Duration::from_millis(100));
    here.writes(b"hello").unwrap();
    assert_eq!(there.reads(5).unwrap(), b"hello");
    // It takes it late.
    here.attaches();
    here.writes(b"again").unwrap();
    assert_eq!(there.reads(5).unwrap(), b"again");
}

#[test]
fn server_that_ends_its_half_before_the_client_has_its_memory_reads_on() {
    let rack = rack();
    let [mut here, mut there] = rack.connection();
    there.attaches();
    thread::sleep(Duration::from_millis(50));
    there.end.shut(&there.socket).unwrap();
    here.attaches();
    thread::sleep(Duration::from_millis(50));
    assert_eq!(here.read(&mut [0; 8]).unwrap(), 0);
    let request = bytes(300_000, 5);
    thread::scope(|threads| {
        threads.spawn(|| here.writes(&request).unwrap());
        // As poll for POLLOUT asks, and a read with a writer that sleeps.
        let _ = there.end.is_ready(Bell::Room);
        assert!(there.reads(300_000).unwrap() == request);
    });
    assert_eq!(here.read(&mut [0; 8]).unwrap(), 0);
}

/// An offer is made and withdrawn before the other host's program can be told.
#[test]
fn offer_that_is_withdrawn_at_once_keeps_nobody_from_ending() {
    let rack = rack();
    let mut kept = Vec::new();
    for turn in 0..60 {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        keeps_syn(&listener).unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut there = Program::new(&rack.hosts[1], listener.accept().unwrap().0);
        thread::sleep(Duration::from_millis(3));
        let here = Program::new(&rack.hosts[0], here);
        thread::sleep(Duration::from_micros(450 + turn % 20 * 30));
        here.asks.cancel(here.asked).unwrap();
        if !is_answered(&there.asks, 20) {
            continue;
        }
        there.attaches();
        thread::sleep(Duration::from_millis(3));
        there.end.close(&there.socket);
        let Program { socket, asks, end, .. } = there;
        drop((socket, end));
        kept.push(asks);
        here.socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!((&here.socket).read(&mut [0; 8]).unwrap(), 0, "turn {turn}");
    }
}

/// The clock by which two ends are known to be one is the same in each namespace, on some kernels.
#[test]
fn root_socket_with_the_same_addresses_in_another_namespace_gets_nothing() {
    let rack = rack();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    keeps_syn(&listener).unwrap();
    let victim = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = Program::new(&rack.hosts[1], listener.accept().unwrap().0);
    let (from, to) = (victim.local_addr().unwrap(), victim.peer_addr().unwrap());
    let elsewhere = thread::spawn(move || {
        // SAFETY: it leaves files and directories as they are.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        assert!(up.success());
        let listener = TcpListener::bind(to).unwrap();
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None).unwrap();
        rustix::net::bind(&socket, &from).unwrap();
        rustix::net::connect(&socket, &to).unwrap();
        let accepted = listener.accept().unwrap().0;
        (TcpStream::from(socket), accepted)
    });
    let (fake, _accepted): (TcpStream, TcpStream) = elsewhere.join().unwrap();
    let thief = Program::new(&rack.hosts[0], fake);
    until("both wait", || rack.hosts.iter().all(|host| host.monitor().waiting() == 1).then_some(()));
    assert!(!is_answered(&server.asks, 100) && !is_answered(&thief.asks, 0));
    // The true one does.
    let mut client = Program::new(&rack.hosts[0], victim);
    let mut server = server;
    server.attaches();
    client.attaches();
    client.writes(b"hello").unwrap();
    assert_eq!(server.reads(5).unwrap(), b"hello");
    let _: SocketAddr = from;
}

/// Its parent was given memory, did not take it, and has gone.
#[test]
fn process_that_was_forked_asks_again() {
    let rack = rack();
    let [_here, there] = rack.connection();
    let Program { asks, socket, .. } = there;
    assert!(is_answered(&asks, 10_000));
    drops_memory(&asks);
    // Until its monitor has seen that.
    thread::sleep(Duration::from_millis(400));
    let child = Program::new(&rack.hosts[1], socket);
    assert!(is_answered(&child.asks, 10_000));
}

/// A client that waits for an answer while it sends: what wakes one of its threads is no byte for the other one.
#[test]
fn both_threads_of_a_program_are_woken_and_read_no_byte_that_wakes() {
    for has_two_threads in [false, true] {
        let rack = rack_of("127.0.0.0/8", 1, has_two_threads);
        rack.stands();
        for turn in 0..12_u64 {
            let [here, there] = rack.carried();
            let all = bytes(700_000, turn);
            thread::scope(|threads| {
                threads.spawn(|| here.writes(&all).unwrap());
                threads.spawn(|| {
                    assert!(there.reads(700_000).unwrap() == all);
                    there.writes(b"answer").unwrap();
                });
                assert_eq!(here.reads(6).unwrap(), b"answer", "turn {turn}");
            });
        }
    }
}

/// What one end of a connection does: it writes in pieces, ends its half, and reads what comes until the end.
fn talks(program: &Program, send: &[u8], expect: &[u8], piece: usize, naps: usize) -> Result<(), String> {
    thread::scope(|threads| {
        let writes = threads.spawn(|| -> io::Result<()> {
            for part in send.chunks(piece) {
                program.writes(part)?;
                if naps == 0 {
                    thread::sleep(Duration::from_micros(30));
                }
            }
            program.end.shut(&program.socket)
        });
        let (mut got, mut buffer) = (Vec::new(), vec![0; 30_000]);
        let read = loop {
            match program.read(&mut buffer) {
                Ok(0) => break Ok(()),
                Ok(count) => got.extend_from_slice(&buffer[..count]),
                Err(why) => break Err(why),
            }
            if naps == 1 {
                thread::sleep(Duration::from_micros(100));
            }
        };
        let written = writes.join().unwrap();
        if written.is_ok() && read.is_ok() && got == expect {
            return Ok(());
        }
        let is_right = expect.starts_with(&got);
        Err(format!("wrote {written:?}, read {read:?}: {} of {} bytes, right: {is_right}", got.len(), expect.len()))
    })
}

/// Both ways at once, of any lengths, some before the memory comes, in two partitions.
#[test]
fn many_connections_that_do_anything_carry_their_bytes() {
    let rack = rack_of("127.0.0.0/8", 2, false);
    rack.stands();
    let (until_at, wrong) = (Instant::now() + Duration::from_secs(3), AtomicU32::new(0));
    thread::scope(|threads| {
        for lane in 0..8_u64 {
            let (rack, wrong) = (&rack, &wrong);
            threads.spawn(move || {
                let mut state = lane * 1_000_003 + 17;
                let mut random = || {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    usize::try_from(state >> 33).unwrap()
                };
                while Instant::now() < until_at {
                    let [mut here, mut there] = rack.connection();
                    let first = [bytes(random() % 3 * 5000, 1), bytes(random() % 3 * 5000, 2)];
                    here.writes(&first[0]).unwrap();
                    there.writes(&first[1]).unwrap();
                    there.attaches();
                    if random() % 3 != 0 {
                        here.attaches();
                    }
                    let sent = [bytes(random() % 600_000, 3), bytes(random() % 4 * 100_000, 4)];
                    let naps = random() % 3;
                    let pieces = [random() % 40_000 + 100, random() % 40_000 + 100];
                    let expect = [[&first[1][..], &sent[1]].concat(), [&first[0][..], &sent[0]].concat()];
                    let results = thread::scope(|threads| {
                        let one = threads.spawn(|| talks(&here, &sent[0], &expect[0], pieces[0], naps));
                        let other = talks(&there, &sent[1], &expect[1], pieces[1], naps);
                        [one.join().unwrap(), other]
                    });
                    if results.iter().any(Result::is_err) {
                        wrong.fetch_add(1, SeqCst);
                        println!(
                            "lane {lane}, over the link {}, pieces {pieces:?}: {results:?}",
                            here.end.is_attached()
                        );
                        return;
                    }
                    drop((here.closes(), there.closes()));
                }
            });
        }
    });
    assert_eq!(wrong.into_inner(), 0);
    until("nothing is kept", || (rack.connections() == 0).then_some(()));
}
