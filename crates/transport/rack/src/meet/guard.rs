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
//!    │ ══ "connection 7", with its socket ══════════════► │ has it, too
//!    │ ══ "connection 7" ═══════════════════════════════► │ lets it go
//!    ✕ ── the end of both ──────────────────────────────► │ resets what it still has, and ends
//! ```
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

use super::held::lets_go;

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
    /// A connection, which is not guarded if the guard does not take it.
    pub(super) fn keeps(&mut self, number: u32, socket: impl AsFd) {
        // What is owed is told first: it may have the same socket.
        self.pays();
        if self.owed.is_empty() {
            let _ = send(&self.socket, &number.to_le_bytes(), &[socket.as_fd()]);
        }
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
    let mut kept: HashMap<u32, OwnedFd> = HashMap::new();
    loop {
        let mut number = [0; NUMBER];
        let fds = match receive(socket, &mut number, ONE_FD, Wait::Forever) {
            Ok(Received::Message(_, fds)) => fds,
            Ok(Received::Nothing) => continue,
            Ok(Received::End) | Err(ReceiveError::Kernel(_)) => break,
            // This process may have no more files open: one connection is not guarded.
            Err(_) => continue,
        };
        let number = u32::from_le_bytes(number);
        let gone = match fds.into_iter().next() {
            Some(_) if counts.sockets.load(Ordering::Relaxed) >= GUARDED_MAX => None,
            Some(socket) => {
                counts.sockets.fetch_add(1, Ordering::Relaxed);
                kept.insert(number, socket)
            }
            None => kept.remove(&number),
        };
        if let Some(socket) = gone {
            counts.sockets.fetch_sub(1, Ordering::Relaxed);
            lets_go(&socket);
        }
    }
    counts.sockets.fetch_sub(kept.len(), Ordering::Relaxed);
    // For all who have them.
    kept.values().for_each(|socket| _ = connect_unspec(socket));
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{Ipv4Addr, TcpListener, TcpStream},
    };

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

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

    #[test]
    fn what_a_monitor_leaves_is_reset_and_what_it_lets_go_is_closed() {
        let (own, other) = pair().unwrap();
        let guards = thread::spawn(move || guards(other));
        let guard = Guard::new(own);
        let [mut programs, mut others] = [guard.guarded().unwrap(), guard.guarded().unwrap()];
        let [mut left, mut over, mut of_other] = [connection(), connection(), connection()];
        programs.keeps(1, &left[0]);
        programs.keeps(2, &over[0]);
        others.keeps(1, &of_other[0]);
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
        of_other[0].write_all(b"x").unwrap();
        assert_eq!(of_other[1].read(&mut [0; 8]).unwrap(), 1, "it is another program's");
        // As the monitor does, whose descriptors the kernel closes.
        drop((others, guard));
        guards.join().unwrap().unwrap();
        assert_eq!(of_other.each_mut().map(error_of), [io::ErrorKind::ConnectionReset; 2]);
    }

    /// More than the kernel keeps for one that does not read.
    #[test]
    fn what_a_guard_that_is_stopped_is_to_let_go_is_said_later() {
        let (own, other) = pair().unwrap();
        let guard = Guard::new(own);
        let mut guarded = guard.guarded().unwrap();
        let [here, mut there] = connection();
        guarded.keeps(1, &here);
        (2..5000).for_each(|number| guarded.lets_go(number));
        guarded.lets_go(1);
        assert!(!guarded.owed.is_empty());
        let guards = thread::spawn(move || guards(other));
        drop(guarded);
        drop(here);
        assert_eq!(there.read(&mut [0; 8]).unwrap(), 0, "no reset");
        drop(guard);
        guards.join().unwrap().unwrap();
    }
}
