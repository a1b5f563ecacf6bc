// SPDX-License-Identifier: Apache-2.0
//! Ends connections to other hosts whose monitor has died.
//!
//! Both ends of such a connection are carried by monitors, each of which resets its program's end if the other one is silent. If both die at
//! once nobody does: their programs would wait for ever. So another process has the sockets, too, and does nothing but wait for the end of the
//! monitor.
//!
//! ```text
//!  monitor                                              guard
//!    │ ── a socket of a pair, for each program ─────────► │ a thread for each
//!    │ ══ "connection 7", with its socket and memory ═══► │ has both, too
//!    │ ══ "connection 7" ═══════════════════════════════► │ lets it go
//!    ✕ ── the end of both ──────────────────────────────► │ resets what it still has, and ends
//! ```
//!
//! A connection that has not gone over to the link, and cannot any more, is left with TCP: the memory says so.
//!
//! As in the monitor, a program has a thread of its own: it can keep the kernel's lock of its socket, and so hold up whoever closes or
//! resets that. It needs no rights: its descriptors are those of the programs' sockets.
//!
//! A connection is closed for the other host once the guard has let it go as well.

use std::{
    collections::{HashMap, VecDeque},
    io,
    os::fd::{AsFd, OwnedFd},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fide_sys::seqpacket::{ReceiveError, Received, Wait, pair, receive, send};
use rustix::net::connect_unspec;

use crate::shm::ShmWindow;

use super::{carried::is_used, held::lets_go};

/// Sockets that a guard has at most: those of four links with as many as each may have. Further connections are not guarded, and wait for ever if both monitors die at once.
pub const GUARDED_MAX: usize = 16_384;
/// Programs that it has threads for. A program that has ended counts until its last connection is carried.
pub const PROGRAMS_MAX: usize = 4096;
/// As its monitor is gone its threads have so long to reset what they have.
const RESETS_WITHIN: Duration = Duration::from_secs(1);
/// As a program's thread ends in the monitor, the guard has so long to make room for what it is still to let go.
const LETS_GO_WITHIN: Duration = Duration::from_secs(1);
const TRIES_EVERY: Duration = Duration::from_millis(1);
/// Bytes of a message: the number of a connection.
const NUMBER: usize = 4;
const ONE_FD: usize = 1;
/// Descriptors of a connection: its socket and its memory.
const CONNECTION_FDS: usize = 2;

/// The process that guards, as its monitor has it.
#[derive(Debug)]
pub struct Guard {
    control: OwnedFd,
}

/// What it has of a program. Dropped, it resets what it was not told to let go.
#[derive(Debug)]
pub(super) struct Guarded {
    socket: OwnedFd,
    /// What it is to let go, and was not told for want of room. No more than what it has.
    owed: VecDeque<u32>,
}

impl Guard {
    /// By a process that runs [`guards`] with the other end of this socket ([`pair`]).
    #[must_use]
    pub fn new(control: OwnedFd) -> Self {
        Self { control }
    }

    /// For one more program. None: it is gone, or takes no more.
    pub(super) fn guarded(&self) -> Option<Guarded> {
        let (own, other) = pair().ok()?;
        send(&self.control, &[0; NUMBER], &[other.as_fd()]).ok()?;
        Some(Guarded { socket: own, owed: VecDeque::new() })
    }
}

impl Guarded {
    /// A connection. False: the guard has not taken it, for now.
    pub(super) fn keeps(&mut self, number: u32, socket: impl AsFd, memory: impl AsFd) -> bool {
        // What is owed is told first: it may have the same socket.
        self.pays();
        let fds = [socket.as_fd(), memory.as_fd()];
        self.owed.is_empty() && send(&self.socket, &number.to_le_bytes(), &fds).is_ok()
    }

    /// It is over, or carried no more: also one that the guard does not have.
    pub(super) fn lets_go(&mut self, number: u32) {
        self.owed.push_back(number);
        self.pays();
    }

    /// Says what is owed, as far as there is room.
    pub(super) fn pays(&mut self) {
        while let Some(number) = self.owed.front() {
            match send(&self.socket, &number.to_le_bytes(), &[]) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return,
                // Or the guard is gone, and has nothing any more.
                _ => _ = self.owed.pop_front(),
            }
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let until = Instant::now() + LETS_GO_WITHIN;
        self.pays();
        while !self.owed.is_empty() && Instant::now() < until {
            thread::sleep(TRIES_EVERY);
            self.pays();
        }
    }
}

/// What all threads of a guard count.
#[derive(Debug, Default)]
struct Counts {
    sockets: AtomicUsize,
    programs: Mutex<usize>,
    ends: Condvar,
}

impl Counts {
    fn programs(&self) -> MutexGuard<'_, usize> {
        self.programs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The process of a guard: returns once the other end of its socket is closed, and all that it had is reset.
///
/// # Errors
/// The kernel's.
pub fn guards(control: impl AsFd) -> Result<(), ReceiveError> {
    let counts = Arc::new(Counts::default());
    let result = serves(&control, &counts);
    // A program may keep the lock of a socket for as long as it likes.
    let programs = counts.programs();
    let _ = counts.ends.wait_timeout_while(programs, RESETS_WITHIN, |programs| *programs > 0);
    result
}

fn serves(control: &impl AsFd, counts: &Arc<Counts>) -> Result<(), ReceiveError> {
    loop {
        let fds = match receive(control, &mut [0; NUMBER], ONE_FD, Wait::Forever) {
            Ok(Received::Message(_, fds)) => fds,
            Ok(Received::Nothing) => continue,
            Ok(Received::End) => return Ok(()),
            Err(why @ ReceiveError::Kernel(_)) => return Err(why),
            Err(_) => continue,
        };
        let Some(socket) = fds.into_iter().next() else { continue };
        if *counts.programs() >= PROGRAMS_MAX {
            continue;
        }
        *counts.programs() += 1;
        let of_thread = Arc::clone(counts);
        let serve = move || {
            guards_program(&socket, &of_thread);
            *of_thread.programs() -= 1;
            of_thread.ends.notify_all();
        };
        if thread::Builder::new().name("rack-guards".into()).spawn(serve).is_err() {
            *counts.programs() -= 1;
        }
    }
}

/// Has the sockets of a program until its monitor lets them go, or ends.
fn guards_program(socket: &OwnedFd, counts: &Counts) {
    let mut kept: HashMap<u32, Kept> = HashMap::new();
    loop {
        let mut number = [0; NUMBER];
        let fds = match receive(socket, &mut number, CONNECTION_FDS, Wait::Forever) {
            Ok(Received::Message(_, fds)) => fds,
            Ok(Received::Nothing) => continue,
            Ok(Received::End) | Err(ReceiveError::Kernel(_)) => break,
            // This process may have no more files open: one connection is not guarded.
            Err(_) => continue,
        };
        let number = u32::from_le_bytes(number);
        let mut fds = fds.into_iter();
        let gone = match (fds.next(), fds.next()) {
            (Some(_), _) if counts.sockets.load(Ordering::Relaxed) >= GUARDED_MAX => None,
            (Some(socket), Some(memory)) => {
                counts.sockets.fetch_add(1, Ordering::Relaxed);
                kept.insert(number, Kept { socket, memory })
            }
            _ => kept.remove(&number),
        };
        if let Some(gone) = gone {
            counts.sockets.fetch_sub(1, Ordering::Relaxed);
            lets_go(&gone.socket);
        }
    }
    counts.sockets.fetch_sub(kept.len(), Ordering::Relaxed);
    kept.values().for_each(Kept::ends);
}

/// A connection that is guarded.
#[derive(Debug)]
struct Kept {
    socket: OwnedFd,
    memory: OwnedFd,
}

impl Kept {
    /// Its monitor is gone.
    fn ends(&self) {
        // What is no memory says nothing of the connection: then it is not to wait for ever.
        if ShmWindow::open(&self.memory, true).map_or(true, |window| is_used(&window)) {
            // For all who have it.
            let _ = connect_unspec(&self.socket);
        } else {
            lets_go(&self.socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{Ipv4Addr, TcpListener, TcpStream},
    };

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;
    use crate::{
        carry::{OVER_TCP_AT, reads_ring},
        link::App,
        meet::{
            WORDS,
            carried::{Bell, Given},
        },
        window::Window,
    };

    fn connection() -> [TcpStream; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let here = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        [here, listener.accept().unwrap().0]
    }

    /// A read that waits would say otherwise: [`crate::end`].
    fn error_of(end: &mut TcpStream) -> io::ErrorKind {
        let mut fds = [PollFd::new(end, PollFlags::IN)];
        poll(&mut fds, None).unwrap();
        end.read(&mut [0; 8]).unwrap_err().kind()
    }

    /// One that has gone over, as far as the memory says.
    fn used() -> Given {
        let given = given();
        // As its program does.
        reads_ring(&program(&given));
        given
    }

    /// One whose program was told that it may go over, and has not taken its memory.
    fn given() -> Given {
        Given::new(&Arc::new(Bell::new().unwrap()), true).unwrap()
    }

    fn program(given: &Given) -> ShmWindow<WORDS> {
        ShmWindow::open(&given.of_program, false).unwrap()
    }

    fn works(ends: &mut [TcpStream; 2]) -> bool {
        let [here, there] = ends;
        here.write_all(b"x").is_ok() && there.read(&mut [0; 8]).is_ok_and(|count| count == 1)
    }

    #[test]
    fn what_a_monitor_leaves_is_reset_and_what_it_lets_go_is_closed() {
        let (own, other) = pair().unwrap();
        let guards = thread::spawn(move || guards(other));
        let guard = Guard::new(own);
        let [mut programs, mut others] = [guard.guarded().unwrap(), guard.guarded().unwrap()];
        let [mut left, mut over, mut of_other] = [connection(), connection(), connection()];
        let used = used();
        assert!(programs.keeps(1, &left[0], &used.of_program) && programs.keeps(2, &over[0], &used.of_program));
        assert!(others.keeps(1, &of_other[0], &used.of_program));
        programs.lets_go(2);
        programs.lets_go(3);
        let [here, there] = &mut over;
        here.write_all(b"x").unwrap();
        here.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(there.read(&mut [0; 8]).unwrap(), 1);
        assert_eq!(there.read(&mut [0; 8]).unwrap(), 0);
        // As the thread of a program ends.
        drop(programs);
        assert_eq!(left.each_mut().map(error_of), [io::ErrorKind::ConnectionReset; 2]);
        assert!(works(&mut of_other), "it is another program's");
        // As the monitor does, whose descriptors the kernel closes.
        drop((others, guard));
        guards.join().unwrap().unwrap();
        assert_eq!(of_other.each_mut().map(error_of), [io::ErrorKind::ConnectionReset; 2]);
    }

    /// Whatever the monitor was about to do with it.
    #[test]
    fn what_has_not_gone_over_as_its_monitor_dies_is_left_with_tcp() {
        let taken = || Given::new(&Arc::new(Bell::new().unwrap()), false).unwrap();
        let [never, of_server, withdrawn, over_tcp, used_and_withdrawn] = [given(), taken(), given(), taken(), used()];
        reads_ring(&program(&of_server));
        for given in [&withdrawn, &used_and_withdrawn] {
            given.carried().resets();
        }
        // Too late: it sees that it may not go over.
        reads_ring(&program(&never));
        assert!(is_used(&ShmWindow::open(&never.of_program, true).unwrap()), "the program was first");
        let never = given();
        over_tcp.carried().window().publish(OVER_TCP_AT, 1);
        for (given, is_reset) in
            [(never, false), (of_server, false), (withdrawn, false), (over_tcp, true), (used_and_withdrawn, true)]
        {
            let (own, other) = pair().unwrap();
            let guards = thread::spawn(move || guards(other));
            let guard = Guard::new(own);
            let mut guarded = guard.guarded().unwrap();
            let mut ends = connection();
            assert!(guarded.keeps(1, &ends[0], &given.of_program));
            drop((guarded, guard));
            guards.join().unwrap().unwrap();
            assert_eq!(works(&mut ends), !is_reset, "{given:?}");
            assert!(!is_reset || error_of(&mut ends[1]) == io::ErrorKind::ConnectionReset);
        }
    }

    /// More than the kernel keeps for one that does not read.
    #[test]
    fn what_a_guard_that_is_stopped_is_to_let_go_is_said_later() {
        let (own, other) = pair().unwrap();
        let guard = Guard::new(own);
        let mut guarded = guard.guarded().unwrap();
        let [here, mut there] = connection();
        assert!(guarded.keeps(1, &here, &used().of_program));
        (2..5000).for_each(|number| guarded.lets_go(number));
        guarded.lets_go(1);
        assert!(!guarded.owed.is_empty() && !guarded.keeps(5000, &here, &used().of_program), "for now");
        let guards = thread::spawn(move || guards(other));
        drop(guarded);
        drop(here);
        assert_eq!(there.read(&mut [0; 8]).unwrap(), 0, "no reset");
        drop(guard);
        guards.join().unwrap().unwrap();
    }
}
