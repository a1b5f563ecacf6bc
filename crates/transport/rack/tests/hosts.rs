// SPDX-License-Identifier: Apache-2.0
//! Connections between two hosts: programs with the kernel's sockets, that end, refuse, and die; and a link that is cut.

mod hosted;

use std::{
    fs::File,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use fide_rack::{meet::ask::Told, pci::Side};
use hosted::{Host, LEN, LIMIT, Program, bytes, monitor, rack, rack_of, settings, until};

#[test]
fn connections_between_hosts_go_over_the_link_and_end() {
    for (partitions, has_two_threads) in [(1, false), (2, false), (1, true)] {
        let rack = rack_of("127.0.0.1", partitions, has_two_threads);
        rack.stands();
        let connections: Vec<_> = (0..4).map(|_| rack.carried()).collect();
        until("each partition has as many", || {
            let loads = rack.hosts.each_ref().map(|host| host.monitor().view().links[0].partitions.clone());
            loads.iter().flatten().all(|partition| partition.connections == 4 / partitions).then_some(())
        });
        thread::scope(|threads| {
            for (seed, [here, there]) in connections.iter().enumerate() {
                threads.spawn(move || {
                    for turn in 0..20 {
                        let all = there.reads(50_000).unwrap();
                        assert!(all == bytes(50_000, (seed * 100 + turn) as u64));
                        there.writes(&all[..3]).unwrap();
                    }
                });
                threads.spawn(move || {
                    for turn in 0..20 {
                        let all = bytes(50_000, (seed * 100 + turn) as u64);
                        here.writes(&all).unwrap();
                        assert_eq!(here.reads(3).unwrap(), all[..3]);
                    }
                });
            }
        });
        let sent: u64 = rack.hosts[0].monitor().view().links[0].partitions.iter().map(|of| of.sent_bytes).sum();
        assert_eq!(sent, 4 * 20 * 50_000);
        for [here, there] in connections {
            here.writes(b"the last").unwrap();
            let _asks = here.closes();
            assert_eq!(there.reads(8).unwrap(), b"the last");
            assert_eq!(there.read(&mut [0; 8]).unwrap(), 0);
            drop(there.closes());
        }
        until("nothing is kept", || (rack.connections() == 0).then_some(()));
    }
}

/// Two that send much have begun in one partition.
#[test]
fn connections_go_to_a_partition_that_sends_less() {
    let rack = rack_of("127.0.0.1", 2, false);
    rack.stands();
    let connections: Vec<_> = (0..4).map(|_| rack.carried()).collect();
    let sent = || rack.hosts[0].monitor().view().links[0].partitions.iter().map(|of| of.sent_bytes).collect::<Vec<_>>();
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        // Each second one is in the same partition.
        for [here, there] in connections.iter().step_by(2) {
            let is_over = &is_over;
            threads.spawn(move || {
                for number in 0.. {
                    let all = bytes(30_000, number);
                    here.writes(&all).unwrap();
                    if is_over.load(SeqCst) {
                        return here.end.shut(&here.socket).unwrap();
                    }
                }
            });
            threads.spawn(move || {
                for number in 0.. {
                    match there.reads(30_000) {
                        Ok(got) => assert!(got == bytes(30_000, number)),
                        Err(why) => return assert_eq!(why.kind(), io::ErrorKind::UnexpectedEof),
                    }
                }
            });
        }
        let begun = Instant::now();
        while sent().iter().any(|sent| *sent < 1 << 20) && begun.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(10));
        }
        is_over.store(true, SeqCst);
    });
    assert!(sent().iter().all(|sent| *sent >= 1 << 20), "{:?}", sent());
    for [here, there] in &connections {
        there.writes(b"back").unwrap();
        assert_eq!(here.reads(4).unwrap(), b"back");
    }
    drop(connections);
    until("nothing is kept", || (rack.connections() == 0).then_some(()));
}

/// Bytes over TCP before and while memory comes.
#[test]
fn what_went_over_tcp_comes_first() {
    let rack = rack();
    let [mut here, mut there] = rack.connection();
    here.writes(b"over TCP, ").unwrap();
    there.attaches();
    here.writes(b"as well, ").unwrap();
    here.attaches();
    here.writes(b"over the link").unwrap();
    assert_eq!(there.reads(32).unwrap(), b"over TCP, as well, over the link");
    there.writes(b"back").unwrap();
    assert_eq!(here.reads(4).unwrap(), b"back");
}

/// As the kernel does it: what was written is read, and then the end.
#[test]
fn program_that_dies_is_the_end_of_its_connections() {
    let rack = rack();
    let [here, there] = rack.carried();
    let all = bytes(100_000, 1);
    here.writes(&all).unwrap();
    // All that the kernel closes of one that is killed.
    drop(here);
    assert!(there.reads(100_000).unwrap() == all);
    assert_eq!(there.read(&mut [0; 8]).unwrap(), 0);
    until("it is no longer carried at its host", || {
        (rack.hosts[0].monitor().view().links[0].partitions[0].connections == 0).then_some(())
    });
    until("its peer sees that nobody reads", || there.writes(&[0; 1000]).err());
}

/// It is never given memory, or does not take it: TCP goes on, and its end is seen.
#[test]
fn program_that_does_not_take_its_memory_keeps_to_tcp() {
    let rack = rack();
    for who in 0..4 {
        let [mut here, mut there] = rack.connection();
        match who {
            // The server's program takes back its question, or closes, before the client's has its memory.
            0 => there.asks.cancel(there.asked).unwrap(),
            1 => {
                there.attaches();
                there.end.close(&there.socket);
                let Program { socket, asks, .. } = there;
                drop(socket);
                assert_eq!(here.read(&mut [0; 8]).unwrap(), 0);
                drop(asks);
                continue;
            }
            // The client's has it, and lets it go.
            2 => {
                there.attaches();
                assert!(matches!(here.asks.told().unwrap(), Some(Told::Paired { .. })));
            }
            // The client's closes with its memory still on the way.
            _ => {
                there.attaches();
                here.writes(b"hello").unwrap();
                thread::sleep(Duration::from_millis(20));
                here.asks.cancel(here.asked).unwrap();
                here.end.close(&here.socket);
                let Program { socket, asks, .. } = here;
                drop(socket);
                assert_eq!(there.reads(5).unwrap(), b"hello");
                assert_eq!(there.read(&mut [0; 8]).unwrap(), 0);
                drop(asks);
                continue;
            }
        }
        here.writes(b"hello").unwrap();
        assert_eq!(there.reads(5).unwrap(), b"hello");
        there.writes(b"hello, too").unwrap();
        assert_eq!(here.reads(10).unwrap(), b"hello, too");
        let Program { socket, asks, end, asked } = here;
        if who == 0 {
            // As its question still waits.
            asks.cancel(asked).unwrap();
        }
        end.close(&socket);
        drop(socket);
        assert_eq!(there.read(&mut [0; 8]).unwrap(), 0, "{who}");
        (here, there) = <(Program, Program)>::from(rack.carried());
        drop((here, there, asks));
    }
    until("nothing is kept", || (rack.connections() == 0).then_some(()));
}

/// Those with other addresses are not told to the other host.
#[test]
fn connections_to_others_are_not_offered() {
    let rack = rack_of("127.0.0.2", 1, false);
    rack.stands();
    let [here, there] = rack.connection();
    until("both wait", || rack.hosts.iter().all(|host| host.monitor().waiting() == 1).then_some(()));
    thread::sleep(Duration::from_millis(50));
    assert!(rack.hosts.iter().all(|host| host.monitor().view().links[0].waiting == 0));
    drop((here, there));
}

/// Nor are those within a host, whatever the other one is said to have: it would be the other end of them.
#[test]
fn connections_within_a_host_are_not_offered() {
    // That by which the kernel would go to another host, if it has one.
    let own = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        Ok(socket.local_addr()?.ip())
    });
    let rack = rack_of("0.0.0.0/0", 1, false);
    rack.stands();
    for address in own.into_iter().chain([Ipv4Addr::LOCALHOST.into()]) {
        let listener = TcpListener::bind((address, 0)).unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let there = listener.accept().unwrap().0;
        let _programs = [Program::new(&rack.hosts[0], here), Program::new(&rack.hosts[1], there)];
        until("both wait", || rack.hosts.iter().all(|host| host.monitor().waiting() == 1).then_some(()));
        thread::sleep(Duration::from_millis(50));
        assert!(rack.hosts.iter().all(|host| host.monitor().view().links[0].waiting == 0), "{address}");
    }
}

/// The other host's monitor ends, or is gone without a word; and a new one comes.
#[test]
fn connections_are_reset_as_a_monitor_ends_and_new_ones_go_over_the_next_one() {
    let mut rack = rack();
    for end in [1, 0] {
        let [here, there] = rack.carried();
        here.writes(b"hello").unwrap();
        assert_eq!(there.reads(5).unwrap(), b"hello");
        rack.hosts[end].monitor = None;
        for program in [&here, &there] {
            let why = program.read(&mut [0; 8]).unwrap_err();
            assert_eq!(why.kind(), io::ErrorKind::ConnectionReset, "{end}");
        }
        let side = [Side::First, Side::Second][end];
        let again = monitor(&rack.hosts[end].path, &rack.memory, side, settings("127.0.0.0/8", 1, false));
        rack.hosts[end].monitor = Some(again);
        rack.stands();
    }
    let [here, there] = rack.carried();
    here.writes(b"again").unwrap();
    assert_eq!(there.reads(5).unwrap(), b"again");
}

/// The memory is taken away, and comes back, again and again, while numbers go over it: no wrong one is ever read.
#[test]
fn link_that_is_cut_gives_no_wrong_byte() {
    let rack = rack();
    let mut carried = 0_u64;
    for cut in 0..10 {
        rack.stands();
        let mut programs = rack.connection();
        // Cut in the middle of anything: of being given memory, too.
        let is_early = cut % 3 == 2;
        if !is_early {
            programs.iter_mut().rev().for_each(Program::attaches);
        }
        let [here, there] = programs;
        thread::scope(|threads| {
            threads.spawn(|| {
                for number in 0_u64.. {
                    if here.writes(&number.to_le_bytes()).is_err() {
                        return;
                    }
                }
            });
            let reads = threads.spawn(|| {
                for number in 0_u64.. {
                    match there.reads(8) {
                        Ok(got) => assert_eq!(got, number.to_le_bytes(), "cut {cut}"),
                        Err(_) => return number,
                    }
                }
                0
            });
            thread::sleep(Duration::from_millis(20));
            let gone = rack.memory.with_extension("gone");
            std::fs::rename(&rack.memory, &gone).unwrap();
            if cut % 2 == 0 {
                // As a bridge that loses what is written.
                let memory = File::options().write(true).open(&gone).unwrap();
                let zeros = vec![0; 64 << 10];
                for at in (0..LEN).step_by(zeros.len() * 3) {
                    let _ = std::os::unix::fs::FileExt::write_all_at(&memory, &zeros, at);
                }
            }
            if is_early {
                thread::sleep(Duration::from_millis(20));
                let _ = here.socket.shutdown(std::net::Shutdown::Both);
            }
            carried += reads.join().unwrap();
            let _ = there.socket.shutdown(std::net::Shutdown::Both);
            until("it falls", || (!rack.hosts.iter().any(Host::is_up)).then_some(()));
            std::fs::rename(&gone, &rack.memory).unwrap();
        });
    }
    assert!(carried > 0);
    rack.stands();
    let [here, there] = rack.carried();
    here.writes(b"at last").unwrap();
    assert_eq!(there.reads(7).unwrap(), b"at last");
}

/// A NAT, or a hostile host, names addresses of a connection that is another one.
#[test]
fn ends_that_are_not_of_one_connection_are_not_paired() {
    let rack = rack();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // It has not kept the first segment.
    let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let there: (TcpStream, SocketAddr) = listener.accept().unwrap();
    let programs = [Program::new(&rack.hosts[0], here), Program::new(&rack.hosts[1], there.0)];
    let waits = |host: &Host| host.monitor().waiting() == 1 && host.monitor().view().links[0].waiting == 1;
    until("both wait", || rack.hosts.iter().all(waits).then_some(()));
    thread::sleep(Duration::from_millis(20));
    assert!(rack.hosts.iter().all(waits));
    let [mut here, mut there] = programs.map(|program| program.socket);
    here.write_all(b"TCP").unwrap();
    let mut got = [0; 3];
    there.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"TCP");
}
