// SPDX-License-Identifier: Apache-2.0
//! A connection to another host, between the proxy that carries it and the thread that has its program's socket. The proxy never touches the
//! socket: its program can keep the kernel's lock of it.

use std::{
    mem,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering, fence},
    },
};

use fide_shm::region::RegionError;
use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
    net::{SendFlags, connect_unspec, send},
};

use super::WORDS;
use crate::{
    carry::{CARRIED_AT, OVER_TCP_AT, READS_RING_AT, reads_ring},
    link::{App, is_of_link},
    shm::ShmWindow,
    window::{WORD, Window},
};

const WAKES: u32 = 1;
const RESETS: u32 = 2;
const IS_CARRIED: u32 = 4;
const IS_GONE: u32 = 8;
/// The program was told how much comes over TCP, or that it may write to the ring.
const KNOWS: u32 = 16;
const OPENS: u32 = 32;

/// The word by which a window says that it is a proxy's, once the proxy has said that its program may write to the ring, and then that it may
/// not.
const IS_WITHDRAWN: u64 = 2;

/// What the thread that has a program's sockets waits for.
#[derive(Debug)]
pub struct Bell {
    event: OwnedFd,
    /// The last number of a connection: two have the same only after four thousand million others.
    last: AtomicU32,
    /// Connections that are to be looked at: each once for each thing that is asked of it, until it is done.
    rung: Mutex<Vec<u32>>,
}

impl Bell {
    /// # Errors
    /// The kernel's.
    pub fn new() -> Result<Self, Errno> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, last: AtomicU32::new(0), rung: Mutex::default() })
    }

    fn rung(&self) -> MutexGuard<'_, Vec<u32>> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is something else to do.
    pub fn rings(&self) {
        // It is full only if it has been rung.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Who waits is about to do what is to be done. `rung`: gets the connections that have rung, instead of what is in it.
    pub fn takes(&self, rung: &mut Vec<u32>) {
        let _ = rustix::io::read(&self.event, &mut [0; size_of::<u64>()]);
        rung.clear();
        mem::swap(rung, &mut *self.rung());
    }
}

/// Readable once it has rung.
impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A connection, as its proxy has it.
#[derive(Debug, Clone)]
pub struct Carried(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    window: ShmWindow<WORDS>,
    state: AtomicU32,
    /// Of the thread that has the socket, and its number there.
    bell: Arc<Bell>,
    number: u32,
}

/// What is given to a program. Dropped, it was not.
#[derive(Debug)]
pub struct Given {
    carried: Carried,
    /// Of this process.
    memory: Option<OwnedFd>,
    /// Of the program: whoever has it, or has it mapped, holds a lock of the memory.
    pub of_program: OwnedFd,
}

/// A connection with its program's socket.
#[derive(Debug)]
pub struct Held {
    /// The question.
    pub id: u32,
    carried: Carried,
    memory: OwnedFd,
    socket: Arc<OwnedFd>,
}

impl Given {
    /// For a program whose socket a thread has that waits for a bell. `reads_ring`: the other host's program has its memory.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(bell: &Arc<Bell>, reads_ring: bool) -> Result<Self, RegionError> {
        let ([window, _], memory) = ShmWindow::pair_and_descriptor()?;
        let failed = |errno| RegionError::System { call: "opening a memfd once more, by /proc", errno };
        let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
        let of_program = open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        flock(&of_program, FlockOperation::NonBlockingLockShared).map_err(failed)?;
        is_of_link(&window);
        let number = bell.last.fetch_add(1, Ordering::Relaxed);
        let shared = Shared { window: window.silent(), state: AtomicU32::new(0), bell: Arc::clone(bell), number };
        let carried = Carried(Arc::new(shared));
        if reads_ring {
            carried.opens();
        }
        Ok(Self { carried, memory: Some(memory), of_program })
    }

    #[must_use]
    pub fn carried(&self) -> Carried {
        self.carried.clone()
    }

    /// The program is told of it. None: it was before.
    #[must_use]
    pub fn held(&mut self, id: u32, socket: Arc<OwnedFd>) -> Option<Held> {
        Some(Held { id, carried: self.carried.clone(), memory: self.memory.take()?, socket })
    }
}

impl Drop for Given {
    fn drop(&mut self) {
        if self.memory.is_some() {
            self.carried.is_carried();
        }
    }
}

impl Held {
    /// Its number at the bell.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.carried.0.number
    }

    #[must_use]
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    #[must_use]
    pub fn memory(&self) -> &OwnedFd {
        &self.memory
    }

    /// Does what the proxy asks for. False: it is done with the socket.
    #[must_use]
    pub fn serves(&self) -> bool {
        let state = self.carried.0.state.fetch_and(!WAKES, Ordering::AcqRel);
        if state & RESETS != 0 {
            // For all who have the socket.
            let _ = connect_unspec(&self.socket);
            return false;
        }
        if state & WAKES != 0
            && send(&self.socket, &[0], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) == Err(Errno::WOULDBLOCK)
        {
            // There is no room yet.
            self.carried.0.state.fetch_or(WAKES, Ordering::AcqRel);
        }
        state & IS_CARRIED == 0
    }

    /// The program has taken its memory.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.carried.window().poll(READS_RING_AT) != 0
    }

    /// Its program has taken the question back, or never takes the memory.
    pub fn is_refused(&self) {
        self.carried.is_carried();
    }

    /// Its program has ended, or was given memory a while ago: whether no other one that it has forked has the memory, nor is about to take it.
    #[must_use]
    pub fn is_left(&self) -> bool {
        if self.carried.is_gone() {
            return true;
        }
        let is_left = flock(&self.memory, FlockOperation::NonBlockingLockExclusive).is_ok();
        if is_left {
            let _ = flock(&self.memory, FlockOperation::Unlock);
            self.carried.0.state.fetch_or(IS_GONE, Ordering::AcqRel);
        }
        is_left
    }

    #[must_use]
    pub fn into_socket(self) -> Arc<OwnedFd> {
        self.socket
    }
}

/// As [`App::resets`] finds out for a proxy, for one whose monitor is gone: whether the program may have gone over. `window`: the proxy's end of
/// the program's, in which its words say what it knew.
pub(super) fn is_used(window: &ShmWindow<WORDS>) -> bool {
    let said = |at| window.words_there(at, WORD).map_or(0, |words| words[0].load(Ordering::Relaxed));
    // The monitor may have been about to reset it.
    let has_opened = said(READS_RING_AT) != 0 || said(CARRIED_AT) == IS_WITHDRAWN;
    said(OVER_TCP_AT) != 0 || has_opened && is_used_as_withdrawn(window)
}

/// Nobody is to write to the ring any more: whether the program may do so all the same.
fn is_used_as_withdrawn(window: &ShmWindow<WORDS>) -> bool {
    window.publish(CARRIED_AT, IS_WITHDRAWN);
    window.publish(READS_RING_AT, 0);
    // As in `reads_ring`: either the program sees that, or this sees that it has its memory.
    fence(Ordering::SeqCst);
    window.poll(READS_RING_AT) != 0
}

impl Carried {
    fn is(&self, bits: u32) -> bool {
        self.0.state.load(Ordering::Acquire) & bits != 0
    }

    fn sets(&self, bit: u32) {
        let Shared { state, bell, number, .. } = &*self.0;
        if state.fetch_or(bit, Ordering::AcqRel) & bit == 0 {
            bell.rung().push(*number);
            bell.rings();
        }
    }
}

impl App for Carried {
    type Window = ShmWindow<WORDS>;

    fn window(&self) -> &Self::Window {
        &self.0.window
    }

    fn is_woken_over_tcp(&self) -> bool {
        true
    }

    fn wakes(&self) {
        self.sets(WAKES);
    }

    fn resets(&self) {
        let is_used = self.is(KNOWS) || self.is(OPENS) && is_used_as_withdrawn(self.window());
        self.sets(if is_used { RESETS } else { IS_CARRIED });
    }

    fn is_gone(&self) -> bool {
        self.is(IS_GONE)
    }

    fn opens(&self) {
        self.0.state.fetch_or(OPENS, Ordering::AcqRel);
        reads_ring(self.window());
    }

    fn knows_over_tcp(&self) {
        self.0.state.fetch_or(KNOWS, Ordering::AcqRel);
    }

    fn is_known_over_tcp(&self) -> bool {
        self.is(KNOWS)
    }

    fn is_carried(&self) {
        self.sets(IS_CARRIED);
    }

    fn is_over(&self) -> bool {
        self.is(RESETS | IS_CARRIED)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        net::{Ipv4Addr, TcpListener, TcpStream},
    };

    use super::*;

    /// Of many connections of a program the others are not looked at.
    #[test]
    fn bell_says_which_connection_is_to_be_woken() {
        let bell = Arc::new(Bell::new().unwrap());
        let [mut first, second] = [(), ()].map(|()| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            other.set_nonblocking(true).unwrap();
            let mut given = Given::new(&bell, true).unwrap();
            (given.carried(), given.held(0, Arc::new(listener.accept().unwrap().0.into())).unwrap(), other)
        });
        let mut rung = vec![77];
        let mut takes = || {
            bell.takes(&mut rung);
            rung.clone()
        };
        assert_eq!(takes(), []);
        second.0.wakes();
        second.0.wakes();
        assert_eq!(takes(), [second.1.number()], "once until it is served");
        assert!(second.1.serves());
        first.0.wakes();
        second.0.is_carried();
        assert_eq!(takes(), [first.1.number(), second.1.number()]);
        assert!(first.1.serves() && !second.1.serves());
        assert_eq!(first.2.read(&mut [0; 8]).unwrap(), 1);
        assert_eq!(takes(), []);
    }
}
