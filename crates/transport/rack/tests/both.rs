// SPDX-License-Identifier: Apache-2.0
//! Both ends of a connection do anything, each also between any two steps of the other one, and their windows come at any time: all
//! bytes come in order, then the end, and whoever sleeps is woken. So it is with the handlers of signals, which interrupt a call.

mod meddled;

use std::{
    cell::RefCell,
    io,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed, mpsc},
    thread,
    time::Duration,
};

use fide_rack::window::Bell;
use meddled::{Memory, Numbers, Side, Steps, hears, hooks, pair, settles, sides, unhooks};
use proptest::prelude::*;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::ioctl_fionread,
};

/// The same one whenever it is asked for.
fn byte(end: usize, at: usize) -> u8 {
    (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ (end as u8) << 7
}

#[derive(Default)]
struct State {
    windows: [Option<Steps>; 2],
    /// Bytes that each end has written, and has read.
    written: [usize; 2],
    read: [usize; 2],
    /// It writes no more, and has read the end.
    has_shut: [bool; 2],
    has_end: [bool; 2],
    /// It has found nothing after it said that it sleeps; so many bytes over TCP were unread.
    sleeps: [[Option<u64>; 2]; 2],
    /// What it does, that the handler of a signal may interrupt.
    does: [Does; 2],
    /// A handler runs.
    handles: [bool; 2],
    /// It writes through the ring: before, what a handler reads may be told late.
    is_on_ring: [bool; 2],
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Does {
    Reads,
    Writes,
    #[default]
    Others,
}

struct Both {
    sides: [Arc<Side>; 2],
    state: RefCell<State>,
}

impl Both {
    fn reads(&self, end: usize, count: usize, leaves: bool) {
        let mut piece = vec![0; count];
        let side = &self.sides[end];
        let (before, has_ended) = {
            let state = self.state.borrow();
            (state.read[end], state.has_end[end])
        };
        let read = side
            .end
            .read(&side.socket, &mut piece, leaves)
            .or_else(|why| self.is_interrupted(end, &why).then_some(None).ok_or(why))
            .unwrap_or_else(|why| panic!("end {end} at {before}: {why}"));
        let mut state = self.state.borrow_mut();
        match read {
            Some(0) => {
                assert!(state.has_shut[1 - end], "an end of end {end} at {before}");
                state.has_end[end] = true;
            }
            Some(read) => {
                assert!(!has_ended, "something after the end");
                let is_right = (before..).zip(&piece[..read]).all(|(at, got)| *got == byte(1 - end, at));
                assert!(is_right, "end {end}: {read} other bytes at {before}");
                state.read[end] += if leaves { 0 } else { read };
            }
            None => {}
        }
    }

    fn writes(&self, end: usize, count: usize) {
        let at = self.state.borrow().written[end];
        let bytes: Vec<u8> = (at..at + count).map(|at| byte(end, at)).collect();
        let written = self.sides[end].write(&bytes).or_else(|why| match self.is_interrupted(end, &why) {
            true => Ok(None),
            false => Err(why),
        });
        let mut state = self.state.borrow_mut();
        match written {
            Ok(Some(written)) => state.written[end] += written,
            Ok(None) => {}
            Err(why) => assert!(why.kind() == io::ErrorKind::BrokenPipe && state.has_shut[end], "end {end}: {why}"),
        }
    }

    /// The call is that of a handler, and what it interrupted has the lock.
    fn is_interrupted(&self, end: usize, why: &io::Error) -> bool {
        why.kind() == io::ErrorKind::WouldBlock && self.state.borrow().handles[end]
    }

    fn does(&self, end: usize, does: Does) {
        self.state.borrow_mut().does[end] = does;
    }

    fn acts(&self, end: usize, numbers: &mut Numbers) {
        self.awakes(end);
        let side = &self.sides[end];
        match numbers.below(40) {
            0..14 => {
                self.does(end, Does::Reads);
                self.reads(end, 1 + numbers.below(400), numbers.below(4) == 0);
            }
            14..28 => {
                self.does(end, Does::Writes);
                self.writes(end, numbers.below(400));
            }
            28..36 => {
                let bell = [Bell::Message, Bell::Room][numbers.below(2)];
                if side.end.is_ready(Bell::Message).unwrap().is_none() {
                    // Bytes that are unread are not only those that wake.
                    self.does(end, Does::Reads);
                }
                side.end.sleeps();
                let unread = ioctl_fionread(&side.socket).unwrap();
                side.end.arms(bell);
                let ready = side.end.is_ready(bell).unwrap();
                if ready == Some(false) || ready.is_none() && bell == Bell::Message {
                    self.state.borrow_mut().sleeps[end][bell as usize] = Some(unread);
                } else {
                    side.end.woke();
                }
            }
            36 if numbers.below(10) == 0 => self.shuts(end),
            36 | 37 => self.attaches(end),
            38 => assert!(side.end.count().unwrap() <= self.state.borrow().written[1 - end] + 400),
            _ => {
                side.end.sleeps();
                let _ = side.end.hears(&side.socket).unwrap();
                side.end.woke();
            }
        }
        self.does(end, Does::Others);
    }

    /// The end does something else than to sleep.
    fn awakes(&self, end: usize) {
        let sleeps = std::mem::take(&mut self.state.borrow_mut().sleeps[end]);
        sleeps.into_iter().flatten().for_each(|_| self.sides[end].end.woke());
    }

    /// The handler of a signal, which interrupts what the same thread does with the end.
    fn handles(&self, end: usize, numbers: &mut Numbers) {
        let (side, does) = (&self.sides[end], self.state.borrow().does[end]);
        self.state.borrow_mut().handles[end] = true;
        let bell = [Bell::Message, Bell::Room][numbers.below(2)];
        // What was read, and written, is counted in the order of these calls.
        match numbers.below(6) {
            0 if does != Does::Reads && self.state.borrow().is_on_ring[end] => {
                self.reads(end, 1 + numbers.below(400), numbers.below(4) == 0)
            }
            1 if does != Does::Writes => self.writes(end, numbers.below(400)),
            2 => _ = side.end.is_ready(bell),
            3 => side.end.arms(bell),
            4 => _ = (side.end.seems_ready(bell), side.end.count()),
            _ => {
                side.end.sleeps();
                let _ = side.end.hears(&side.socket);
                side.end.woke();
            }
        }
        self.state.borrow_mut().handles[end] = false;
    }

    fn attaches(&self, end: usize) {
        // It has not said that it sleeps where the other one sees it.
        self.awakes(end);
        let window = self.state.borrow_mut().windows[end].take();
        if let Some(window) = window {
            self.sides[end].end.attach(window).unwrap();
        }
    }

    fn shuts(&self, end: usize) {
        if !std::mem::replace(&mut self.state.borrow_mut().has_shut[end], true) {
            self.sides[end].end.shut(&self.sides[end].socket).unwrap();
        }
    }

    /// Whoever sleeps is woken, if what it sleeps for has come: by something new, also where something else was unread.
    fn is_woken(&self) {
        for end in [0, 1] {
            self.state.borrow_mut().is_on_ring[end] = self.sides[end].end.is_ready(Bell::Room).unwrap().is_some();
        }
        for (end, bell) in [0, 1].into_iter().flat_map(|end| [(end, Bell::Message), (end, Bell::Room)]) {
            let side = &self.sides[end];
            let Some(unread) = self.state.borrow().sleeps[end][bell as usize] else { continue };
            if side.end.is_ready(bell).unwrap() != Some(true) {
                continue;
            }
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let is_woken = || {
                let has_end = poll(&mut [PollFd::new(&side.socket, PollFlags::RDHUP)], Some(&now)) == Ok(1);
                has_end || ioctl_fionread(&side.socket).unwrap() > unread
            };
            let is_ever = (0..1000).any(|_| {
                is_woken() || {
                    settles();
                    false
                }
            });
            assert!(is_ever, "end {end} sleeps on, by {bell:?}");
        }
    }

    /// All that was written is read, and the end.
    fn ends(&self) {
        for end in [0, 1] {
            self.shuts(end);
        }
        for end in [0, 1] {
            for _ in 0..1000 {
                if self.state.borrow().has_end[end] {
                    break;
                }
                self.reads(end, 300, false);
                if self.state.borrow().read[end] == 0 {
                    settles();
                }
            }
            let state = self.state.borrow();
            assert!(
                state.has_end[end] && state.read[end] == state.written[1 - end],
                "end {end} has read {:?}",
                state.read
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn all_comes_in_order_whatever_both_ends_do_at_once(seed in any::<u64>(), meddles in 0..30_usize, comes in 0..60_usize) {
        let state = State { windows: pair().map(Some), ..State::default() };
        let both = Rc::new(Both { sides: sides(), state: RefCell::new(state) });
        let mut numbers = Numbers(seed);
        for turn in 0..300 {
            if turn == comes {
                // Right now: as a window that the other end has, too, is of use.
                [0, 1].into_iter().for_each(|end| both.attaches(end));
            }
            let end = numbers.below(2);
            let (others, mut of_other) = (Rc::clone(&both), Numbers(numbers.next()));
            hooks(end, move |_| {
                if of_other.below(60) < meddles {
                    match of_other.below(2) {
                        0 => others.handles(end, &mut of_other),
                        _ => others.acts(1 - end, &mut of_other),
                    }
                }
            });
            both.acts(end, &mut numbers);
            unhooks();
            both.is_woken();
        }
        both.ends();
    }
}

/// Runs with threads.
const SEEDS: u64 = 30;
/// What each of two writers of an end writes.
const COUNT: usize = 20_000;

/// This thread is held up at some of its steps.
fn dawdles(end: usize, seed: u64) {
    let mut numbers = Numbers(seed);
    let often = 4 + numbers.below(200);
    hooks(end, move |_| match numbers.below(often) {
        0 => thread::sleep(Duration::from_micros(numbers.next() % 200)),
        1 => thread::yield_now(),
        _ => {}
    });
}

/// Bytes that come, until the end.
fn reads_to_end(side: &Side, most: usize) -> usize {
    let (mut count, mut piece) = (0, vec![0; most]);
    loop {
        match side.read(&mut piece).unwrap() {
            Some(0) => return count,
            Some(more) => count += more,
            None => assert!(side.end.wait(&side.socket, Bell::Message, None).unwrap()),
        }
    }
}

fn writes_all(side: &Side, most: usize) {
    let mut left = COUNT;
    while left > 0 {
        match side.write(&vec![7; most.min(left)]).unwrap() {
            Some(more) => left -= more,
            None => _ = side.end.wait(&side.socket, Bell::Room, None).unwrap(),
        }
    }
}

/// For one who looks for why somebody sleeps.
fn state(sides: &[Arc<Side>; 2], memory: &Memory) -> String {
    let unread = sides.each_ref().map(|side| {
        side.socket.set_nonblocking(true).unwrap();
        side.socket.peek(&mut [0; 8])
    });
    let words = memory.parts.each_ref().map(|part| part[..5].iter().map(|word| word.load(Relaxed)).collect::<Vec<_>>());
    let ends = sides.each_ref().map(|side| &side.end);
    format!("{ends:#?}, over TCP: {unread:?}, sleepers: {:?}, words: {words:?}", memory.sleepers)
}

/// Two threads of each end read, two write, one looks without a wait, and one comes with the window. Nobody sleeps for good.
#[test]
fn threads_of_both_ends_are_all_woken() {
    for seed in 0..SEEDS {
        let (sides, mut numbers, (tells, told)) = (sides(), Numbers(seed), mpsc::channel());
        let windows = pair();
        let memory = Arc::clone(&windows[0].memory);
        for ((end, side), window) in sides.iter().enumerate().zip(windows) {
            let of_end = |numbers: &mut Numbers| (Arc::clone(side), numbers.next(), 1 + numbers.below(1500));
            for _ in 0..2 {
                let ((side, seed, most), tells) = (of_end(&mut numbers), tells.clone());
                thread::spawn(move || {
                    dawdles(end, seed);
                    tells.send((end, reads_to_end(&side, most))).unwrap();
                });
            }
            let writers = [(); 2].map(|()| {
                let (side, seed, most) = of_end(&mut numbers);
                thread::spawn(move || {
                    dawdles(end, seed);
                    writes_all(&side, most);
                })
            });
            let (side, seed, at) = of_end(&mut numbers);
            thread::spawn(move || {
                dawdles(end, seed);
                thread::sleep(Duration::from_micros(at as u64));
                side.end.attach(window).unwrap();
                while !writers.iter().all(thread::JoinHandle::is_finished) {
                    side.end.sleeps();
                    let _ = side.end.hears(&side.socket).unwrap();
                    side.end.woke();
                    let _ = side.end.read(&side.socket, &mut [0; 8], true).unwrap();
                    thread::sleep(Duration::from_micros(100));
                }
                writers.into_iter().for_each(|writer| writer.join().unwrap());
                side.end.shut(&side.socket).unwrap();
            });
        }
        let mut read = [0; 2];
        for _ in 0..4 {
            let (end, count) = hears(&told)
                .unwrap_or_else(|| panic!("seed {seed}: somebody sleeps on: {}", state(&sides, memory.get())));
            read[end] += count;
        }
        assert_eq!(read, [2 * COUNT; 2], "seed {seed}");
    }
}
