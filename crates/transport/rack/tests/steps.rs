// SPDX-License-Identifier: Apache-2.0
//! Others act between any two steps of an end: the other end, as it is or hostile, and other threads of the same end.

mod meddled;

use std::{
    cell::{Cell, RefCell},
    io::{self, Read, Write},
    net::TcpStream,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use fide_rack::window::{Bell, WORD};
use fide_shm::region::Mapped;
use meddled::{
    LEAVES_AT, Memory, Numbers, OVER_TCP_AT, READS_NO_MORE_AT, RING_AT, STEPS, Side, Step, WORDS, attached, hooks,
    once, pair, settles, sides, unhooks,
};
use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Waits until another thread is there, or a while: it may be held up by a lock.
fn is_reached(place: &AtomicBool) -> bool {
    let until = Instant::now() + Duration::from_millis(30);
    while !place.load(SeqCst) && Instant::now() < until {
        thread::yield_now();
    }
    place.load(SeqCst)
}

/// Reads what is there, also before it is looked at, until nothing is.
fn reads_all(side: &Side, looks: bool) -> Vec<u8> {
    let (mut got, mut piece) = (Vec::new(), [0; 64]);
    loop {
        let mut before = [0; 64];
        let looked = if looks { side.end.read(&side.socket, &mut before, true).unwrap() } else { None };
        let read = side.read(&mut piece).unwrap();
        if let Some(looked) = looked {
            assert!(read.is_some_and(|read| piece[..read].starts_with(&before[..looked])), "{looked}: {read:?}");
        }
        match read {
            None => return got,
            Some(0) => panic!("an end after {} bytes", got.len()),
            Some(read) => got.extend_from_slice(&piece[..read]),
        }
    }
}

/// The same, with what the other end does at a step of it; and once more.
fn reads_all_while(side: &Side, looks: bool, at: usize, does: impl Fn() + 'static) -> Vec<u8> {
    hooks(
        1,
        once(at, move || {
            does();
            settles();
        }),
    );
    let mut got = reads_all(side, looks);
    unhooks();
    got.extend(reads_all(side, looks));
    got
}

/// The writer goes over to the ring between any two steps of a reader that it wakes: the byte that wakes is neither read nor taken
/// for the end.
#[test]
fn change_over_in_the_middle_of_a_read_is_no_end() {
    for (over_tcp, looks) in [(0, false), (8, false), (0, true), (8, true)] {
        for at in 0..2 * STEPS {
            let ([here, there], _) = attached(over_tcp);
            there.end.arms(Bell::Message);
            let writes = Arc::clone(&here);
            let mut got =
                reads_all_while(&there, looks, at, move || assert_eq!(writes.write(b"hello").unwrap(), Some(5)));
            here.write(b", and more").unwrap();
            got.extend(reads_all(&there, looks));
            let is_all = got[over_tcp..] == *b"hello, and more" || got[over_tcp..] == *b", and more";
            assert!(is_all, "step {at} of a read after {over_tcp} bytes over TCP: {got:?}");
            here.end.shut(&here.socket).unwrap();
            assert_eq!(there.read(&mut [0; 8]).unwrap(), Some(0));
        }
    }
}

/// An end writes no more, and the window of the other one comes between any two of its steps, or the other way round. What can wake
/// nobody is not waited for: a half of TCP is closed, or the other end writes through the ring, but not both.
#[test]
fn no_half_of_tcp_is_closed_where_it_has_to_wake() {
    for is_first in [true, false] {
        let (mut over_tcp, mut by_ring) = (0, 0);
        for at in 0..STEPS {
            let ([here, there], [of_here, of_there]) = (sides(), pair());
            assert!(here.end.attach(of_here).unwrap());
            let (shuts, attaches, window) = (Arc::clone(&here), Arc::clone(&there), Cell::new(Some(of_there)));
            let shut: Rc<dyn Fn()> = Rc::new(move || shuts.end.shut(&shuts.socket).unwrap());
            let attach: Rc<dyn Fn()> = Rc::new(move || _ = attaches.end.attach(window.take().unwrap()).unwrap());
            let (one, other, end) = if is_first { (shut, attach, 0) } else { (attach, shut, 1) };
            let (in_between, is_done) = (Rc::clone(&other), Rc::new(Cell::new(false)));
            let done = Rc::clone(&is_done);
            hooks(
                end,
                once(at, move || {
                    in_between();
                    done.set(true);
                }),
            );
            one();
            unhooks();
            if !is_done.get() {
                other();
            }
            // Also once it looks again.
            let _ = here.read(&mut [0; 8]).unwrap();
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let is_closed = poll(&mut [PollFd::new(&there.socket, PollFlags::RDHUP)], Some(&now)).unwrap() > 0;
            let is_on_ring = there.end.is_ready(Bell::Room).unwrap().is_some();
            assert!(is_closed != is_on_ring, "step {at}: closed {is_closed}, on the ring {is_on_ring}");
            (over_tcp, by_ring) = (over_tcp + u32::from(is_closed), by_ring + u32::from(is_on_ring));
            assert_eq!(there.read(&mut [0; 8]).unwrap(), Some(0));
            assert_eq!(there.write(b"more").unwrap(), Some(4));
            settles();
            assert_eq!(here.read(&mut [0; 8]).unwrap(), Some(4));
            if !is_done.get() {
                break;
            }
        }
        assert!(over_tcp > 0 && by_ring > 0, "{over_tcp} and {by_ring}");
    }
}

/// An end that has only closed its half of TCP, and never has the window, reads what it is sent and nothing else.
#[test]
fn full_socket_whose_other_end_writes_no_more_gets_no_byte_that_was_not_written() {
    let ([here, there], [_, window]) = (sides(), pair());
    here.end.shut(&here.socket).unwrap();
    assert!(there.end.attach(window).unwrap());
    let all: Vec<u8> = (0..8_000_000_u32).map(|at| (at % 251 + 1) as u8).collect();
    let sent = all.clone();
    let writes = thread::spawn(move || {
        let mut rest = &sent[..];
        while !rest.is_empty() {
            rest = &rest[there.write(rest).unwrap().unwrap_or(0)..];
        }
    });
    let (mut got, mut piece) = (Vec::new(), vec![0; 10_000]);
    while let Ok(count @ 1..) = (&here.socket).read(&mut piece) {
        got.extend_from_slice(&piece[..count]);
    }
    writes.join().unwrap();
    let first = got.iter().zip(&all).position(|(got, sent)| got != sent);
    assert!(got == all, "{} of {} bytes, other ones from {first:?} on", got.len(), all.len());
}

/// A thread that is to sleep for room, and stops right before it polls, having seen that there is none.
struct Sleeper {
    is_about_to: Arc<AtomicBool>,
    goes_on: Arc<AtomicBool>,
    thread: thread::JoinHandle<io::Result<bool>>,
}

impl Sleeper {
    fn begins(side: &Arc<Side>) -> Self {
        let (is_about_to, goes_on) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (side, at, until) = (Arc::clone(side), Arc::clone(&is_about_to), Arc::clone(&goes_on));
        let thread = thread::spawn(move || {
            let mut has_said = false;
            hooks(1, move |step| {
                has_said |= matches!(step, Step::WillSleep(_));
                // The last one of a look.
                if has_said && step == Step::Poll(READS_NO_MORE_AT) {
                    at.store(true, SeqCst);
                    while !until.load(SeqCst) {
                        thread::yield_now();
                    }
                }
            });
            side.end.wait(&side.socket, Bell::Room, None)
        });
        Self { is_about_to, goes_on, thread }
    }

    /// It polls, and sees that there is room now.
    fn ends(self) -> bool {
        self.goes_on.store(true, SeqCst);
        for _ in 0..10_000 {
            if self.thread.is_finished() {
                break;
            }
            settles();
        }
        self.thread.is_finished() && self.thread.join().unwrap().unwrap()
    }
}

/// A thread reads without a wait, and another one comes to sleep for room between any two of its steps: the byte that wakes the
/// second one is left for it.
#[test]
fn one_who_reads_does_not_take_what_wakes_one_who_comes_to_sleep_meanwhile() {
    for at in 0..STEPS {
        let ([here, there], _) = attached(0);
        here.write(b"on the ring").unwrap();
        assert_eq!(reads_all(&there, false), b"on the ring");
        there.fill();
        let sleeper = Rc::new(RefCell::new(None));
        let (begins, sleeps, makes_room) = (Rc::clone(&sleeper), Arc::clone(&there), Arc::clone(&here));
        hooks(
            1,
            once(at, move || {
                let sleeper = begins.borrow_mut().insert(Sleeper::begins(&sleeps)).is_about_to.clone();
                is_reached(&sleeper);
                reads_all(&makes_room, false);
                settles();
            }),
        );
        assert_eq!(there.read(&mut [0; 8]).unwrap(), None);
        unhooks();
        let sleeper: Option<Sleeper> = sleeper.take();
        let Some(sleeper) = sleeper else { return assert!(at > 1, "{at} steps") };
        assert!(sleeper.ends(), "step {at}: it sleeps, and there is room");
    }
}

/// The same, where bytes that came over TCP are read, and what wakes comes behind them.
#[test]
fn one_who_reads_over_tcp_does_not_take_what_wakes_another() {
    for at in 0..STEPS {
        let ([here, there], _) = attached(8);
        there.fill();
        let sleeper = Sleeper::begins(&there);
        while !sleeper.is_about_to.load(SeqCst) {
            thread::yield_now();
        }
        let (makes_room, is_made) = (Arc::clone(&here), Rc::new(Cell::new(false)));
        let made = Rc::clone(&is_made);
        hooks(
            1,
            once(at, move || {
                made.set(true);
                reads_all(&makes_room, false);
                settles();
            }),
        );
        assert_eq!(there.read(&mut [0; 100]).unwrap(), Some(8), "step {at}");
        unhooks();
        if !is_made.get() {
            reads_all(&here, false);
        }
        assert!(sleeper.ends(), "step {at}: it sleeps, and there is room");
        if !is_made.get() {
            return assert!(at > 1, "{at} steps");
        }
    }
}

/// The socket is full of what was written before there was a ring, so that no byte that wakes can leave: it leaves later.
#[test]
fn byte_that_wakes_and_has_no_room_is_sent_with_the_next_call() {
    let ([here, there], windows) = (sides(), pair());
    let (mut count, mut full) = (0, 0);
    // The kernel makes room for more as the other one's takes what came.
    while full < 5 {
        let more = there.write(&[7; 100_000]).unwrap();
        full = if more.is_none() { full + 1 } else { 0 };
        count += more.unwrap_or(0);
        settles();
    }
    for (side, window) in [&here, &there].into_iter().zip(windows) {
        assert!(side.end.attach(window).unwrap());
    }
    here.fill();
    here.end.arms(Bell::Room);
    assert_eq!(there.read(&mut [0; 100]).unwrap(), Some(100));
    while count > 0 {
        count -= here.read(&mut vec![0; count]).unwrap().unwrap_or(0);
    }
    let wakes = || here.socket.peek(&mut [0; 8]);
    here.socket.set_nonblocking(true).unwrap();
    assert_eq!(wakes().unwrap_err().kind(), io::ErrorKind::WouldBlock);
    assert_eq!(there.read(&mut [0; 100]).unwrap(), Some(100));
    settles();
    assert_eq!(wakes().unwrap(), 1);
}

/// The other end leaves between any two steps of a read that its bytes of TCP are read by, and what it writes then comes behind them.
#[test]
fn end_that_leaves_in_the_middle_of_a_read_is_followed() {
    for over_tcp in [8, 40] {
        for at in 0..2 * STEPS {
            let ([here, there], _) = attached(over_tcp);
            there.end.arms(Bell::Message);
            let writes = Arc::clone(&here);
            let got = reads_all_while(&there, false, at, move || {
                assert_eq!(writes.write(b"ring").unwrap(), Some(4));
                assert!(writes.end.leave(&writes.socket).unwrap());
                (&writes.socket).write_all(b", behind").unwrap();
            });
            let is_all = got[over_tcp..] == *b"ring, behind" || got.len() == over_tcp;
            assert!(is_all, "step {at} of a read after {over_tcp} bytes over TCP: {got:?}");
        }
    }
}

/// One that has written nothing through the ring leaves, and the other one asks and looks right before it goes over.
#[test]
fn two_that_leave_at_once_lose_nothing() {
    let ([here, there], _) = attached(1);
    assert_eq!(there.write(b"unread").unwrap(), Some(6));
    let places = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let [is_about_to, goes_on, is_done] = places.each_ref().map(Arc::clone);
    let other = thread::spawn(move || {
        hooks(1, move |step| {
            if step == Step::Publish(LEAVES_AT) && !is_about_to.swap(true, SeqCst) {
                while !goes_on.load(SeqCst) {
                    thread::yield_now();
                }
            }
        });
        let has_left = there.end.leave(&there.socket).unwrap();
        is_done.store(true, SeqCst);
        has_left
    });
    while !places[0].load(SeqCst) {
        thread::yield_now();
    }
    hooks(0, move |step| {
        if step == Step::Publish(OVER_TCP_AT) {
            places[1].store(true, SeqCst);
            is_reached(&places[2]);
        }
    });
    let has_left = here.end.leave(&here.socket).unwrap();
    unhooks();
    assert!(!other.join().unwrap() || !has_left, "nobody sends what was not read");
}

/// The other end closes between any two steps of one that leaves: what that one has not read is sent once more, or it stays.
#[test]
fn close_as_the_other_end_leaves_loses_nothing() {
    for at in 0..3 * STEPS {
        let ([here, there], _) = attached(0);
        assert_eq!((here.write(b"x").unwrap(), there.write(b"answer").unwrap()), (Some(1), Some(6)));
        assert_eq!(reads_all(&there, false), b"x");
        let closes = Rc::new(RefCell::new(None));
        let (closing, of) = (Rc::clone(&closes), Cell::new(Some(there)));
        hooks(
            0,
            once(at, move || {
                let (there, is_done) = (of.take().unwrap(), Arc::new(AtomicBool::new(false)));
                let done = Arc::clone(&is_done);
                *closing.borrow_mut() = Some(thread::spawn(move || {
                    there.end.close(&there.socket);
                    drop(there);
                    done.store(true, SeqCst);
                }));
                is_reached(&is_done);
            }),
        );
        let has_left = here.end.leave(&here.socket).unwrap();
        unhooks();
        let closing: Option<thread::JoinHandle<()>> = closes.take();
        let Some(closing) = closing else { return assert!(at > 5) };
        closing.join().unwrap();
        let mut got = Vec::new();
        if has_left {
            (&here.socket).read_to_end(&mut got).unwrap();
        } else {
            // What was sent once more all the same is none of the program's.
            let mut into = [0; 4];
            loop {
                match here.read(&mut into).unwrap() {
                    Some(0) => break,
                    read => got.extend_from_slice(&into[..read.unwrap_or(0)]),
                }
            }
        }
        assert_eq!(got, b"answer", "step {at}, has left: {has_left}");
    }
}

/// The other end, which writes whatever it likes.
struct Hostile {
    memory: Arc<Mapped<Memory>>,
    socket: TcpStream,
    numbers: Numbers,
}

impl Hostile {
    fn acts(&mut self) {
        let numbers = &mut self.numbers;
        let value = match numbers.below(8) {
            0 => 0,
            1 => 1,
            // A header that could be one, or an index.
            2 | 3 => numbers.next() % 500,
            4 => numbers.next() % 100 * 8,
            5 => (1 << 32) | (numbers.next() % 500),
            6 => u64::MAX - numbers.next() % 100,
            _ => numbers.next() << 8 | numbers.next() & 255,
        };
        match numbers.below(20) {
            // Seldom, as it is the end.
            0 if numbers.below(20) == 0 => self.memory.get().parts[0][1 + numbers.below(2)].store(value, SeqCst),
            1 => {
                let count = numbers.below(70);
                let _ = (&self.socket).write(&[7; 70][..count]);
            }
            2 => self.memory.get().sleepers[0][numbers.below(2)].store(value as u32, SeqCst),
            3..6 => self.memory.get().parts[0][[0, 3, 4, 6, 7, 8, 9, 10][numbers.below(8)]].store(value, SeqCst),
            // Often where the ring begins: that is where it is read.
            6..12 => self.memory.get().parts[0][RING_AT / WORD + numbers.below(8)].store(value, SeqCst),
            _ => {
                self.memory.get().parts[0][RING_AT / WORD + numbers.below(WORDS - RING_AT / WORD)].store(value, SeqCst)
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    /// Whatever the other end writes, also between any two steps: each call returns, of bytes no more than it was asked for, and nothing
    /// is read or written where it may not be ([`Steps`]). What is said to be ready is so, lest a program try again for ever.
    #[test]
    fn hostile_end_does_no_harm(seed in any::<u64>(), over_tcp in 0..2_usize, meddles in prop_oneof![Just(0), 0..40_usize]) {
        let ([here, there], memory) = attached(over_tcp * 100);
        let socket = there.socket.try_clone().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut numbers = Numbers(seed);
        let hostile = Rc::new(RefCell::new(Hostile { memory, socket, numbers: Numbers(!seed) }));
        let steps = Rc::new(Cell::new(0));
        let (of_hook, count) = (Rc::clone(&hostile), Rc::clone(&steps));
        hooks(0, move |_| {
            count.set(count.get() + 1);
            assert!(count.get() < 5000, "a call without an end");
            let mut hostile = of_hook.borrow_mut();
            if hostile.numbers.below(40) < meddles {
                hostile.acts();
            }
        });
        for _ in 0..200 {
            steps.set(0);
            hostile.borrow_mut().acts();
            let (mut into, bell) = (vec![0; numbers.below(300)], [Bell::Message, Bell::Room][numbers.below(2)]);
            match numbers.below(12) {
                0..4 => {
                    let leaves = numbers.below(3) == 0;
                    let read = here.end.read(&here.socket, &mut into, leaves);
                    if let Ok(Some(count)) = read {
                        prop_assert!(count <= into.len());
                    }
                    if read.is_ok_and(|read| read.is_none()) && meddles == 0 {
                        prop_assert_ne!(here.end.is_ready(Bell::Message).unwrap(), Some(true), "leaves: {}", leaves);
                    }
                }
                4..7 => {
                    let written = here.write(&into);
                    if let Ok(Some(count)) = written {
                        prop_assert!(count <= into.len());
                    }
                    if written.is_ok_and(|written| written.is_none()) && meddles == 0 {
                        prop_assert_ne!(here.end.is_ready(Bell::Room).unwrap(), Some(true));
                    }
                }
                7 => _ = here.end.count().unwrap(),
                8 => _ = here.end.wait(&here.socket, bell, Some(Instant::now())),
                9 => here.end.arms(bell),
                10 => _ = (here.end.seems_ready(bell), here.end.is_ended()),
                _ if numbers.below(30) == 0 => _ = here.end.shut(&here.socket),
                _ => {
                    here.end.sleeps();
                    let _ = here.end.hears(&here.socket);
                    here.end.woke();
                }
            }
        }
        here.end.close(&here.socket);
        unhooks();
    }
}
