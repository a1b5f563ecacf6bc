// SPDX-License-Identifier: Apache-2.0
//! What connections between two hosts promise, whatever the proxies and the programs do when.

mod linked;

use std::{
    io::{self, Read, Write},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    thread,
    time::Duration,
};

use fide_rack::{
    link::{App, Slices, Turn},
    stream::halves,
    window::{WORD, Window},
};
use linked::{Between, LINK_WORDS, between, proxies, stream};
use proptest::prelude::*;

type Reads = fide_rack::stream::ReadHalf<fide_rack::shm::ShmWindow<{ linked::WORDS }>>;

const AT_ONCE: Option<Duration> = Some(Duration::ZERO);

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    (0..count as u64).map(|at| ((at ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// What is written to, and read from, one end of a connection.
#[derive(Default)]
struct Way {
    sent: Vec<u8>,
    got: Vec<u8>,
    /// The reader has seen the end.
    is_ended: bool,
}

impl Way {
    fn check(&self) {
        assert!(self.sent.starts_with(&self.got), "{} of {} bytes, or others", self.got.len(), self.sent.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Some connections of programs that call the crate, in slices of any length: each carries its bytes, and its end.
    #[test]
    fn each_connection_carries_its_bytes(
        slice in 100..70_000_usize,
        steps in prop::collection::vec((0..4_u8, 0..3_usize, 0..2_usize, 1..40_000_usize), 1..200),
    ) {
        let mut proxies = proxies(Slices { bytes: slice, ..Slices::default() });
        let mut programs = Vec::new();
        let mut ends: Vec<_> = (0..3).map(|connection| {
            let (windows, both) = stream(&mut proxies, connection);
            programs.push(both);
            windows.map(|window| {
                let (mut reads, mut writes) = halves(window);
                reads.set_timeout(AT_ONCE);
                writes.set_timeout(AT_ONCE);
                (reads, Some(writes))
            })
        }).collect();
        let mut ways: [[Way; 2]; 3] = Default::default();
        let read = |ways: &mut [[Way; 2]; 3], ends: &mut Vec<[(Reads, _); 2]>, connection: usize, end: usize, count| {
            let mut buffer = vec![0; count];
            let way = &mut ways[connection][1 - end];
            match ends[connection][end].0.read(&mut buffer) {
                Ok(0) => way.is_ended = true,
                Ok(count) => way.got.extend_from_slice(&buffer[..count]),
                Err(why) => assert_eq!(why.kind(), io::ErrorKind::WouldBlock),
            }
            way.check();
        };
        for (step, connection, end, count) in steps {
            match step {
                0 => {
                    let more = bytes(count, ways[connection][end].sent.len() as u64);
                    if let Some(writes) = &mut ends[connection][end].1 {
                        match writes.write(&more) {
                            Ok(count) => ways[connection][end].sent.extend_from_slice(&more[..count]),
                            Err(why) => prop_assert_eq!(why.kind(), io::ErrorKind::WouldBlock),
                        }
                    }
                }
                1 => read(&mut ways, &mut ends, connection, end, count),
                2 => _ = proxies[end].turn().unwrap(),
                _ if count % 16 == 0 => ends[connection][end].1 = None,
                _ => _ = proxies[end].turn().unwrap(),
            }
        }
        for end in ends.iter_mut().flatten() {
            end.1 = None;
        }
        for _ in 0..4000 {
            proxies.iter_mut().for_each(|proxy| _ = proxy.turn().unwrap());
            for connection in 0..3 {
                for end in 0..2 {
                    read(&mut ways, &mut ends, connection, end, 20_000);
                }
            }
        }
        for way in ways.iter().flatten() {
            prop_assert!(way.is_ended && way.got.len() == way.sent.len(), "{} of {}", way.got.len(), way.sent.len());
        }
        drop(ends);
        for _ in 0..20 {
            proxies.iter_mut().for_each(|proxy| _ = proxy.turn().unwrap());
        }
        prop_assert!(programs.iter().flatten().all(linked::Program::has_carried));
        prop_assert!(proxies.iter().all(|proxy| proxy.tx.is_empty()));
    }

    /// One that does not read holds up nobody else, and nothing of it is lost.
    #[test]
    fn who_does_not_read_holds_up_nobody_else(count in 1..400_000_usize) {
        let mut proxies = proxies(Slices::default());
        let ([here, there], _) = stream(&mut proxies, 1);
        let ([here2, there2], _) = stream(&mut proxies, 2);
        let ((_r1, mut slow), (mut reads_late, _w1)) = (halves(here), halves(there));
        let ((_r2, mut quick), (mut reads, _w2)) = (halves(here2), halves(there2));
        slow.set_timeout(AT_ONCE);
        let all = bytes(count, 3);
        let mut sent = 0;
        for turn in 0..2000_u32 {
            if let Ok(more) = slow.write(&all[sent..]) {
                sent += more;
            }
            quick.write_all(&turn.to_le_bytes()).unwrap();
            for _ in 0..3 {
                proxies.iter_mut().for_each(|proxy| _ = proxy.turn().unwrap());
            }
            let mut got = [0; 4];
            reads.set_timeout(AT_ONCE);
            reads.read_exact(&mut got).unwrap();
            prop_assert_eq!(got, turn.to_le_bytes());
        }
        let mut got = Vec::new();
        reads_late.set_timeout(AT_ONCE);
        slow.set_timeout(AT_ONCE);
        while got.len() < all.len() {
            if let Ok(more) = slow.write(&all[sent..]) {
                sent += more;
            }
            proxies.iter_mut().for_each(|proxy| _ = proxy.turn().unwrap());
            let mut piece = [0; 10_000];
            if let Ok(more) = reads_late.read(&mut piece) {
                got.extend_from_slice(&piece[..more]);
            }
        }
        prop_assert!(got == all);
    }

    /// The other proxy writes anything into the link, or the cable loses it: the link is cut, or nothing has changed.
    #[test]
    fn link_that_is_meddled_with_gives_no_wrong_byte(
        writes in prop::collection::vec((0..LINK_WORDS, prop_oneof![any::<u64>(), 0..5000_u64]), 1..50),
    ) {
        let mut proxies = proxies(Slices::default());
        let ([here, there], _) = stream(&mut proxies, 1);
        let ((_r, mut sends), (mut reads, _w)) = (halves(here), halves(there));
        sends.set_timeout(AT_ONCE);
        reads.set_timeout(AT_ONCE);
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        for (at, word) in writes {
            let more = bytes(700, sent.len() as u64);
            if let Ok(count) = sends.write(&more) {
                sent.extend_from_slice(&more[..count]);
            }
            let first = proxies[0].turn();
            // Mostly near to where something lies.
            let at = if at % 2 == 0 { at % 4000 } else { at };
            proxies[0].link.publish(at * WORD, word);
            let second = proxies[1].turn();
            let mut piece = [0; 3000];
            while let Ok(count @ 1..) = reads.read(&mut piece) {
                got.extend_from_slice(&piece[..count]);
            }
            prop_assert!(sent.starts_with(&got));
            if first.is_err() || second.is_err() {
                break;
            }
        }
    }

    /// Connections that begin over TCP, with ends of which each does anything at any time, and get their windows at any time, the server's first.
    #[test]
    fn connection_goes_over_at_any_byte_and_ends(
        steps in prop::collection::vec((0..6_u8, 0..2_usize, 1..3000_usize), 1..120),
        over_tcp in prop::collection::vec((0..2_usize, 1..2000_usize), 0..4),
        ends_by in 0..3_u8,
    ) {
        let mut proxies = proxies(Slices { bytes: 1000, ahead: 3 });
        let Between { ends, sockets, mut windows, programs } = between();
        sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
        let mut ways: [Way; 2] = Default::default();
        let write = |ways: &mut [Way; 2], end: usize, count| {
            let more = bytes(count, ways[end].sent.len() as u64);
            if let Some(count) = ends[end].write(&sockets[end], &more).unwrap() {
                ways[end].sent.extend_from_slice(&more[..count]);
            }
        };
        let read = |ways: &mut [Way; 2], end: usize| {
            let mut piece = [0; 1500];
            let way = &mut ways[1 - end];
            match ends[end].read(&sockets[end], &mut piece, false).unwrap() {
                Some(0) => way.is_ended = true,
                Some(count) => way.got.extend_from_slice(&piece[..count]),
                None => {}
            }
            way.check();
        };
        for (end, count) in over_tcp {
            write(&mut ways, end, count);
        }
        let mut is_open = false;
        for (step, end, count) in steps {
            match step {
                0 | 1 => write(&mut ways, end, count),
                2 => read(&mut ways, end),
                3 if windows[1].is_some() => {
                    prop_assert!(ends[1].attach(windows[1].take().unwrap()).unwrap());
                }
                // The server has it.
                3 if !is_open => {
                    is_open = true;
                    proxies[1].adds(7, &programs[1]);
                    programs[0].opens();
                    proxies[0].adds(7, &programs[0]);
                }
                4 if is_open && windows[0].is_some() => {
                    prop_assert!(ends[0].attach(windows[0].take().unwrap()).unwrap());
                }
                _ => _ = proxies[end].turn().unwrap(),
            }
        }
        let turns = |proxies: &mut [linked::Proxy; 2], ways: &mut [Way; 2]| {
            for _ in 0..400 {
                proxies.iter_mut().for_each(|proxy| _ = proxy.turn().unwrap());
                read(ways, 0);
                read(ways, 1);
            }
        };
        turns(&mut proxies, &mut ways);
        for way in &ways {
            prop_assert_eq!(way.got.len(), way.sent.len());
        }
        // It ends by itself, by both halves, or as its program dies.
        let has_ring = windows[0].is_none();
        match ends_by {
            0 => ends[0].close(&sockets[0]),
            1 => ends[0].shut(&sockets[0]).unwrap(),
            _ => programs[0].dies(),
        }
        if ends_by == 0 || !has_ring {
            rustix::net::shutdown(&sockets[0], rustix::net::Shutdown::Write).unwrap();
        }
        for _ in 0..400 {
            proxies.iter_mut().for_each(|proxy| _ = proxy.turn().unwrap());
            read(&mut ways, 1);
        }
        if has_ring || ends_by != 2 {
            prop_assert!(ways[0].is_ended && ways[0].got.len() == ways[0].sent.len());
        }
    }
}

/// Threads that sleep, and proxies with a thread each: nobody sleeps for good, and all comes.
#[test]
fn programs_that_sleep_are_woken() {
    const COUNT: u32 = 300;
    let mut proxies = proxies(Slices::default());
    let Between { ends, sockets, windows, programs } = between();
    proxies[1].adds(7, &programs[1]);
    programs[0].opens();
    proxies[0].adds(7, &programs[0]);
    let [here, there] = windows.map(Option::unwrap);
    assert!(ends[1].attach(there).unwrap() && ends[0].attach(here).unwrap());
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        for proxy in &mut proxies {
            let is_over = &is_over;
            threads.spawn(move || {
                while !is_over.load(SeqCst) {
                    if proxy.turn().unwrap() == Turn::Idle {
                        thread::sleep(Duration::from_micros(50));
                    }
                }
            });
        }
        let reads = |end: usize, into: &mut [u8]| {
            let mut at = 0;
            while at < into.len() {
                match ends[end].read(&sockets[end], &mut into[at..], false).unwrap() {
                    Some(count) => at += count,
                    None => _ = ends[end].wait(&sockets[end], fide_rack::window::Bell::Message, None).unwrap(),
                }
            }
        };
        let writes = |end: usize, from: &[u8]| {
            let mut at = 0;
            while at < from.len() {
                match ends[end].write(&sockets[end], &from[at..]).unwrap() {
                    Some(count) => at += count,
                    None => _ = ends[end].wait(&sockets[end], fide_rack::window::Bell::Room, None).unwrap(),
                }
            }
        };
        threads.spawn(move || {
            for number in 0..COUNT {
                let mut got = vec![0; 8 + number as usize % 7 * 20_000];
                reads(1, &mut got);
                assert!(got == bytes(got.len(), number.into()), "{number}");
                if number % 3 == 0 {
                    thread::sleep(Duration::from_micros(500));
                }
                writes(1, &got[..8]);
            }
        });
        for number in 0..COUNT {
            let all = bytes(8 + number as usize % 7 * 20_000, number.into());
            writes(0, &all);
            let mut got = [0; 8];
            reads(0, &mut got);
            assert_eq!(got, all[..8]);
        }
        is_over.store(true, SeqCst);
    });
}

/// The end of a socket says less than the rings have: its proxy has died.
#[test]
fn end_of_a_socket_before_that_of_the_ring_is_a_reset() {
    let mut proxies = proxies(Slices::default());
    let Between { ends, sockets, windows, programs } = between();
    proxies[1].adds(7, &programs[1]);
    programs[0].opens();
    proxies[0].adds(7, &programs[0]);
    let [here, there] = windows.map(Option::unwrap);
    assert!(ends[1].attach(there).unwrap() && ends[0].attach(here).unwrap());
    let turns = |proxies: &mut [linked::Proxy; 2]| {
        (0..20).for_each(|_| proxies.iter_mut().for_each(|proxy| _ = proxy.turn().unwrap()));
    };
    assert_eq!(ends[0].write(&sockets[0], b"carried").unwrap(), Some(7));
    turns(&mut proxies);
    assert_eq!(ends[0].write(&sockets[0], b"not carried").unwrap(), Some(11));
    rustix::net::shutdown(&sockets[0], rustix::net::Shutdown::Write).unwrap();
    let mut got = [0; 20];
    assert_eq!(ends[1].read(&sockets[1], &mut got, false).unwrap(), Some(7));
    let until = std::time::Instant::now() + Duration::from_secs(10);
    let why = loop {
        match ends[1].read(&sockets[1], &mut got, false) {
            Ok(None) if std::time::Instant::now() < until => thread::sleep(Duration::from_millis(1)),
            read => break read.unwrap_err(),
        }
    };
    assert_eq!(why.kind(), io::ErrorKind::ConnectionReset);
}

/// The partitions of one host, and connections on the way between them.
struct Host {
    parts: Vec<linked::Proxy>,
    sends: Vec<(usize, fide_rack::link::tx::Sends<linked::Program>)>,
    gets: Arrived,
}

struct Arrived(Vec<(usize, fide_rack::link::rx::Gets<linked::Program>)>, usize);

impl fide_rack::link::rx::Moves<linked::Program> for Arrived {
    fn gives(&mut self, to: usize, gets: fide_rack::link::rx::Gets<linked::Program>) {
        self.0.push((to, gets));
    }

    fn takes(&mut self, connection: u32) -> Option<fide_rack::link::rx::Gets<linked::Program>> {
        let at = self.0.iter().position(|(to, gets)| *to == self.1 && gets.connection() == connection)?;
        Some(self.0.swap_remove(at).1)
    }
}

impl Host {
    fn turn(&mut self, part: usize, is_tx: bool) {
        let proxy = &mut self.parts[part];
        if is_tx {
            // A thread that has not looked into its inbox yet takes them later.
            let mut at = 0;
            while at < self.sends.len() {
                if self.sends[at].0 == part { proxy.tx.takes(self.sends.swap_remove(at).1) } else { at += 1 }
            }
            proxy.tx.turn(&*proxy.link, |to, sends| self.sends.push((to, sends))).unwrap();
        } else {
            self.gets.1 = part;
            proxy.rx.turn(&*proxy.link, &mut self.gets).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whatever the threads of the partitions do when: nothing is lost or changes its place, and all ends.
    #[test]
    fn connections_go_to_other_partitions_at_any_byte(
        steps in prop::collection::vec((0..6_u8, 0..2_usize, 0..2_usize, 0..2_usize, 1..20_000_usize), 1..250),
    ) {
        let [first, second] = linked::partitions();
        let mut hosts = [first, second].map(|parts| Host { parts, sends: Vec::new(), gets: Arrived(Vec::new(), 0) });
        let mut programs = Vec::new();
        let mut ends: Vec<_> = (0..2).map(|connection| {
            hosts.each_mut().map(|host| {
                let (theirs, program) = linked::program();
                host.parts[connection as usize].adds(connection, &program);
                programs.push(program);
                let (mut reads, mut writes) = halves(theirs);
                reads.set_timeout(AT_ONCE);
                writes.set_timeout(AT_ONCE);
                (reads, Some(writes))
            })
        }).collect();
        let mut ways: [[Way; 2]; 2] = Default::default();
        let read = |ways: &mut [[Way; 2]; 2], ends: &mut Vec<[(Reads, _); 2]>, connection: usize, end: usize| {
            let mut buffer = [0; 20_000];
            let way = &mut ways[connection][1 - end];
            match ends[connection][end].0.read(&mut buffer) {
                Ok(0) => way.is_ended = true,
                Ok(count) => way.got.extend_from_slice(&buffer[..count]),
                Err(why) => assert_eq!(why.kind(), io::ErrorKind::WouldBlock),
            }
            way.check();
        };
        for (step, connection, end, part, count) in steps {
            match step {
                0 | 1 => {
                    let more = bytes(count, ways[connection][end].sent.len() as u64);
                    if let Some(writes) = &mut ends[connection][end].1
                        && let Ok(count) = writes.write(&more)
                    {
                        ways[connection][end].sent.extend_from_slice(&more[..count]);
                    }
                }
                2 => read(&mut ways, &mut ends, connection, end),
                3 => {
                    hosts[end].parts[part].tx.counts();
                    hosts[end].parts[part].tx.moves(1 - part, u64::MAX);
                }
                4 => hosts[end].turn(part, true),
                _ => hosts[end].turn(part, false),
            }
        }
        for end in ends.iter_mut().flatten() {
            end.1 = None;
        }
        for turn in 0..3000_usize {
            for host in &mut hosts {
                for part in 0..2 {
                    host.turn(part, turn % 3 != 0);
                    host.turn(part, turn % 2 != 0);
                }
            }
            for connection in 0..2 {
                (0..2).for_each(|end| read(&mut ways, &mut ends, connection, end));
            }
        }
        for way in ways.iter().flatten() {
            prop_assert!(way.is_ended && way.got.len() == way.sent.len(), "{} of {}", way.got.len(), way.sent.len());
        }
        drop(ends);
        for turn in 0..60 {
            for host in &mut hosts {
                (0..2).for_each(|part| host.turn(part, turn % 2 == 0));
            }
        }
        prop_assert!(programs.iter().all(linked::Program::has_carried));
        prop_assert!(hosts.iter().flat_map(|host| &host.parts).all(|part| part.tx.is_empty()));
    }
}
