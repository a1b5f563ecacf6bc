// SPDX-License-Identifier: Apache-2.0
//! A connection that the library carries, or may come to carry.
//!
//! ```text
//!  connect: EINPROGRESS      accept, connect
//!        │                        │
//!   CONNECTING ── it stands ──► OPEN ── the monitor's answer ──► ATTACHED
//!        │                        │                                 │ an end meets what cannot be followed
//!        └────────────────────────┴── the same, refused, late ──────┴──► TCP
//! ```
//!
//! It attaches as the program writes, or reads for long without having written ([`READS`]): a program that only reads what a client wants, or
//! looks at it, and hands the connection on, as a server does that begins another one for each, never does so.
//!
//! One that is handed on later goes back to TCP, if all that has come was read ([`End::leave`]).
//!
//! In all states but the last its bytes go through [`End`], which counts them, so that the window may come at any of them. In the last one
//! it is the kernel's for ever, as if it had never been in the table.

use std::{
    mem,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use fide_rack::{end::End, meet::WORDS, shm::ShmWindow, window::Bell};
use fide_sys::tcp::{TcpEnd, is_established};
use libc::socklen_t;
use rustix::{io::ioctl_fionread, net::sockopt};

use crate::{before, monitor, real, rings, stats, table::Table};

pub(crate) type Memory = ShmWindow<WORDS>;

pub(crate) static CONNS: Table<Conn> = Table::new();
/// Connections that this process has closed.
pub(crate) static CLOSED: AtomicU32 = AtomicU32::new(0);

/// The program ends, and its connections are closed: its other threads write in vain for a moment, and are not to end it by a signal.
pub(crate) static IS_OVER: AtomicBool = AtomicBool::new(false);

const CONNECTING: u32 = 0;
const OPEN: u32 = 1;
const ATTACHED: u32 = 2;
const TCP: u32 = 3;

/// Without an answer for so long its calls are the kernel's alone: the other end is no program that asks, as a rule.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// The answer is looked for again after this share of the time since it has begun.
const LOOKS_SHARE: u64 = 8;

/// Calls that read before one that has not written attaches.
const READS: u32 = 64;

/// Connections of one process that have memory, or may come to have it. Each takes two mappings, and the kernel lets a process have 65,530
/// of them (`vm.max_map_count`), of which half are the program's. Further ones are the kernel's alone.
const CONNS_MAX: u32 = 1 << 14;
static PLACES: AtomicU32 = AtomicU32::new(0);

/// One of so many.
#[derive(Debug)]
struct Place(&'static AtomicU32);

impl Place {
    /// None: all are taken.
    fn takes(of: &'static AtomicU32, most: u32) -> Option<Self> {
        let one_more = |taken| (taken < most).then_some(taken + 1);
        of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok().then(|| Self(of))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) end: End<Memory>,
    _place: Place,
    phase: AtomicU32,
    /// One more than the number of its question; 0: none is open.
    question: AtomicU64,
    /// It is to be asked for once no other process has it.
    is_to_ask: AtomicBool,
    /// When it stood.
    since: OnceLock<Instant>,
    /// When its answer is looked for, or it is asked for again, after that.
    looks_ns: AtomicU64,
    /// It is not to go over to memory any more.
    is_never: AtomicBool,
    /// The memory that has come, until the program takes it: one that only hands the connection on leaves it with TCP.
    given: Mutex<Option<Memory>>,
    is_given: AtomicBool,
    /// Calls that have read meanwhile.
    given_reads: AtomicU32,
    /// Descriptors of it in this process, and one of them.
    fds: AtomicU32,
    fd: AtomicI32,
    /// What the program has set, while the kernel has something else.
    pub(crate) no_delay: AtomicI32,
    pub(crate) cork: AtomicI32,
    /// `SO_RCVLOWAT`: the kernel's is 1 once there is memory, as one byte wakes.
    low_at: AtomicI32,
    /// `SO_LINGER`, which an answer of the monitor clears: seconds, or less than 0.
    pub(crate) linger_s: AtomicI32,
    /// The program reads no more.
    pub(crate) is_shut: AtomicBool,
    /// The C library has a file of it, which it may write to as the process ends, behind all else.
    pub(crate) has_file: AtomicBool,
    /// A read or write waits no longer than an option of the socket says.
    pub(crate) is_timed: AtomicBool,
    /// A call waits where it has to, as far as the last one that was about to has seen.
    pub(crate) is_blocking: AtomicBool,
    /// A read does not wait, and a write: the kernel's option of less than no seconds, which it does not show.
    pub(crate) is_at_once: [AtomicBool; 2],
    /// Calls that read, and those that found no room: what is edge-triggered is told again after them.
    pub(crate) reads: AtomicU32,
    pub(crate) full: AtomicU32,
}

/// A descriptor of the program, which stays open for the call, unless the program closes it under its own calls.
pub(crate) fn borrowed(fd: i32) -> BorrowedFd<'static> {
    // SAFETY: not -1, as the callers have found it in the table. Should the program close it meanwhile, calls fail, as the kernel's would.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

fn rcvlowat(fd: i32) -> i32 {
    let (mut low_at, mut len): (i32, socklen_t) = (1, 4);
    // SAFETY: both are there, and the length is that of the number.
    let result =
        unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw mut low_at).cast(), &raw mut len) };
    if result == 0 { low_at } else { 1 }
}

fn sets_rcvlowat(fd: i32, low_at: i32) {
    // SAFETY: the number is there, and of that length.
    unsafe { real::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, (&raw const low_at).cast(), 4) };
}

/// As a close with no time to linger does it, also while the monitor still has the socket.
fn resets_now(fd: i32) {
    // SAFETY: a number, and bytes.
    let mut nobody: libc::sockaddr = unsafe { mem::zeroed() };
    nobody.sa_family = libc::sa_family_t::try_from(libc::AF_UNSPEC).unwrap_or(0);
    // SAFETY: the address is there, and of that length.
    unsafe { real::connect(fd, &raw const nobody, size_of::<libc::sockaddr>() as libc::socklen_t) };
}

/// One of its descriptors as they are now.
impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        borrowed(self.fd())
    }
}

impl Conn {
    fn new(fd: i32) -> Option<Arc<Self>> {
        let place = Place::takes(&PLACES, CONNS_MAX)?;
        Some(Arc::new(Self {
            end: End::new().ok()?,
            _place: place,
            phase: AtomicU32::new(CONNECTING),
            question: AtomicU64::new(0),
            is_to_ask: AtomicBool::new(false),
            since: OnceLock::new(),
            looks_ns: AtomicU64::new(0),
            is_never: AtomicBool::new(false),
            given: Mutex::new(None),
            is_given: AtomicBool::new(false),
            given_reads: AtomicU32::new(0),
            fds: AtomicU32::new(1),
            fd: AtomicI32::new(fd),
            no_delay: AtomicI32::new(0),
            cork: AtomicI32::new(0),
            low_at: AtomicI32::new(1),
            linger_s: AtomicI32::new(-1),
            is_shut: AtomicBool::new(false),
            has_file: AtomicBool::new(false),
            is_timed: AtomicBool::new(false),
            is_blocking: AtomicBool::new(false),
            is_at_once: Default::default(),
            reads: AtomicU32::new(0),
            full: AtomicU32::new(0),
        }))
    }

    /// As one that stands.
    #[cfg(test)]
    pub(crate) fn opened(fd: i32) -> Arc<Self> {
        let conn = Self::new(fd).unwrap();
        conn.phase.store(OPEN, Ordering::Relaxed);
        conn
    }

    pub(crate) fn fd(&self) -> i32 {
        self.fd.load(Ordering::Relaxed)
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.end.is_attached()
    }

    pub(crate) fn is_tcp(&self) -> bool {
        self.phase.load(Ordering::Relaxed) == TCP
    }

    /// It is asked for once it stands, and the answer taken once it is there.
    pub(crate) fn goes_on(self: &Arc<Self>, fd: i32) {
        match self.phase.load(Ordering::Acquire) {
            CONNECTING => match is_established(borrowed(fd)) {
                Ok(true) => self.begins(fd),
                Ok(false) => {}
                Err(_) => self.stays_tcp(),
            },
            OPEN => self.looks(fd),
            ATTACHED if self.end.is_leaving() && self.end.follow(borrowed(fd)).is_ok_and(|has_left| has_left) => {
                self.is_back();
            }
            _ => {}
        }
    }

    /// Goes back to TCP. False: it stays with its memory.
    fn leaves(&self, fd: i32) -> bool {
        if self.is_attached() && self.end.leave(borrowed(fd)).is_ok_and(|has_left| has_left) {
            self.is_back();
        }
        self.is_tcp()
    }

    /// It is the kernel's again, with the options that the program has set.
    fn is_back(&self) {
        let socket = borrowed(self.fd());
        let _ = sockopt::set_tcp_nodelay(socket, self.no_delay.load(Ordering::Relaxed) != 0);
        let _ = sockopt::set_tcp_cork(socket, self.cork.load(Ordering::Relaxed) != 0);
        let low_at = self.low_at.load(Ordering::Relaxed);
        if low_at > 1 {
            sets_rcvlowat(self.fd(), low_at);
        }
        self.phase.store(TCP, Ordering::SeqCst);
    }

    /// Looks for an answer, or asks.
    fn looks(self: &Arc<Self>, fd: i32) {
        if self.is_given() {
            return;
        }
        let passed = self.since.get().map_or(Duration::ZERO, Instant::elapsed);
        if passed > ANSWER_WITHIN {
            return self.stays_tcp();
        }
        let passed_ns = u64::try_from(passed.as_nanos()).unwrap_or(u64::MAX);
        if passed_ns < self.looks_ns.load(Ordering::Relaxed) {
            return;
        }
        let next_ns = passed_ns + passed_ns / LOOKS_SHARE;
        if !self.is_to_ask.load(Ordering::Relaxed) {
            self.looks_ns.store(next_ns, Ordering::Relaxed);
            monitor::answers();
        } else if self.end.is_lone() && !self.asks(fd) {
            self.looks_ns.store(next_ns, Ordering::Relaxed);
        }
    }

    /// Asks the monitor, if no other process has the connection: that would not have its memory. False: later.
    fn asks(self: &Arc<Self>, fd: i32) -> bool {
        if !self.end.is_lone() {
            return false;
        }
        let is_asked = !self.is_to_ask.swap(false, Ordering::Relaxed) || monitor::asks(self, fd);
        if !is_asked {
            self.is_to_ask.store(true, Ordering::Relaxed);
        }
        is_asked
    }

    /// It stands: asks the monitor, if both ends may be of this host, or the other one of a host that the monitor has a link to.
    fn begins(self: &Arc<Self>, fd: i32) {
        let socket = borrowed(fd);
        let may_be_paired = TcpEnd::of(socket).is_ok_and(|TcpEnd { local, peer, .. }| {
            let is_here = local.ip() == peer.ip() || local.ip().is_loopback() && peer.ip().is_loopback();
            is_here || monitor::is_linked(peer.ip())
        });
        if !may_be_paired {
            return self.stays_tcp();
        }
        let timeout = |which| sockopt::socket_timeout(socket, which).ok().flatten();
        let is_timed =
            [sockopt::Timeout::Recv, sockopt::Timeout::Send].into_iter().any(|which| timeout(which).is_some());
        self.is_timed.fetch_or(is_timed, Ordering::Relaxed);
        // Of the listener, or of the program.
        self.takes_low_at(fd);
        if let Ok(Some(linger)) = sockopt::socket_linger(socket) {
            self.linger_s.store(i32::try_from(linger.as_secs()).unwrap_or(i32::MAX), Ordering::Relaxed);
        }
        if self.phase.compare_exchange(CONNECTING, OPEN, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            let _ = self.since.set(Instant::now());
            self.is_to_ask.store(true, Ordering::Relaxed);
            self.asks(fd);
        }
    }

    /// The monitor has the question.
    pub(crate) fn asked(&self, id: u32) {
        self.question.store(u64::from(id) + 1, Ordering::Relaxed);
    }

    pub(crate) fn has_question(&self) -> bool {
        self.question.load(Ordering::Relaxed) != 0
    }

    /// The number of its question, which is open no more.
    fn takes_question(&self) -> Option<u32> {
        u32::try_from(self.question.swap(0, Ordering::Relaxed).checked_sub(1)?).ok()
    }

    /// It stays with the kernel, unless it is attached.
    pub(crate) fn stays_tcp(&self) {
        // Before the phase is looked at: an attach that fails looks at this behind it.
        self.is_never.store(true, Ordering::SeqCst);
        for from in [CONNECTING, OPEN] {
            let _ = self.phase.compare_exchange(from, TCP, Ordering::SeqCst, Ordering::SeqCst);
        }
        drop(self.takes_given());
        self.cancels();
    }

    /// Whether the monitor was asked, and has not answered: it may have the socket for a moment still.
    fn cancels(&self) -> bool {
        let Some(id) = self.takes_question() else { return false };
        monitor::cancels(id);
        self.sets_linger();
        true
    }

    fn sets_linger(&self) {
        if let Ok(linger_s) = u64::try_from(self.linger_s.load(Ordering::Relaxed)) {
            let _ = sockopt::set_socket_linger(borrowed(self.fd()), Some(Duration::from_secs(linger_s)));
        }
    }

    /// The monitor is gone: another one is asked.
    pub(crate) fn asks_again(&self) {
        if self.takes_question().is_some() {
            self.sets_linger();
            self.is_to_ask.store(true, Ordering::Relaxed);
        }
    }

    /// The monitor has refused.
    pub(crate) fn refused(&self) {
        self.takes_question();
        self.sets_linger();
        self.stays_tcp();
    }

    /// The monitor has sent the window.
    pub(crate) fn gives(&self, window: Memory) {
        self.takes_question();
        self.sets_linger();
        if let Ok(mut given) = self.given.try_lock() {
            *given = Some(window.silent());
            self.is_given.store(true, Ordering::SeqCst);
        }
        if self.phase.load(Ordering::SeqCst) != OPEN {
            drop(self.takes_given());
        }
    }

    /// Its memory has come, and is not used yet.
    pub(crate) fn is_given(&self) -> bool {
        self.is_given.load(Ordering::Relaxed)
    }

    fn takes_given(&self) -> Option<Memory> {
        let mut given = self.given.try_lock().ok()?;
        self.is_given.store(false, Ordering::Relaxed);
        given.take()
    }

    /// The program reads.
    pub(crate) fn is_read(&self) {
        if self.is_given() && (self.end.has_written() || self.given_reads.fetch_add(1, Ordering::Relaxed) >= READS) {
            self.attaches();
        }
    }

    /// The program writes. What another process has, too, waits until that closes it.
    pub(crate) fn attaches(&self) {
        // A fork finds nothing half done.
        let Some(_held) = self.end.is_lone().then(monitor::holds).flatten() else { return };
        let Some(window) = self.takes_given() else { return };
        if self.phase.load(Ordering::Acquire) != OPEN {
            return;
        }
        if !rings::carries() {
            return self.stays_tcp();
        }
        let socket = borrowed(self.fd());
        self.no_delay.store(sockopt::tcp_nodelay(socket).unwrap_or(false).into(), Ordering::Relaxed);
        self.cork.store(sockopt::tcp_cork(socket).unwrap_or(false).into(), Ordering::Relaxed);
        // Bytes that wake have to leave at once.
        let _ = sockopt::set_tcp_cork(socket, false);
        let _ = sockopt::set_tcp_nodelay(socket, true);
        if !self.begins_attach() {
            return;
        }
        if self.end.attach(window).is_ok_and(|is_attached| is_attached) {
            self.takes_low_at(self.fd());
            return stats::attached();
        }
        let _ = sockopt::set_tcp_nodelay(socket, self.no_delay.load(Ordering::Relaxed) != 0);
        let _ = sockopt::set_tcp_cork(socket, self.cork.load(Ordering::Relaxed) != 0);
        self.fails_attach();
    }

    /// Bytes from which on a read goes on ([`Conn::low_at`]).
    pub(crate) fn low_at(&self) -> usize {
        usize::try_from(self.low_at.load(Ordering::Relaxed)).unwrap_or(1)
    }

    /// Where the kernel has one it stays with TCP, unless memory has come meanwhile: from then on one byte wakes. Asked behind an attach, and
    /// behind what has set it.
    pub(crate) fn takes_low_at(&self, fd: i32) {
        let low_at = rcvlowat(fd);
        if low_at <= 1 {
            return;
        }
        self.stays_tcp();
        if self.is_attached() {
            self.sets_low_at(low_at);
            sets_rcvlowat(fd, 1);
        }
    }

    /// Of one that has memory.
    pub(crate) fn sets_low_at(&self, low_at: i32) {
        self.low_at.store(if low_at < 0 { i32::MAX } else { low_at.max(1) }, Ordering::Relaxed);
    }

    /// Before the window is there: from then on nobody takes it back.
    fn begins_attach(&self) -> bool {
        self.phase.compare_exchange(OPEN, ATTACHED, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// As it was before, unless it is not to go over any more.
    fn fails_attach(&self) {
        let is_lone = self.end.is_lone();
        // Another process has it, too, and may close it.
        self.is_to_ask.store(!is_lone, Ordering::Relaxed);
        self.phase.store(if is_lone { TCP } else { OPEN }, Ordering::SeqCst);
        if self.is_never.load(Ordering::SeqCst) {
            self.stays_tcp();
        }
    }

    /// After a fork, in the child: the question is the parent's. It asks itself once the parent has closed the connection.
    pub(crate) fn is_forked(&self) {
        self.end.is_forked();
        self.question.store(0, Ordering::Relaxed);
        // What it was given it has, too, unless another thread of the parent was about to take it.
        if self.given.try_lock().is_err() {
            self.is_given.store(false, Ordering::Relaxed);
        }
        let is_to_ask = self.phase.load(Ordering::Relaxed) == OPEN && !self.is_given();
        self.is_to_ask.store(is_to_ask, Ordering::Relaxed);
    }

    fn closes(&self, fd: i32) {
        let is_asked = self.cancels();
        let (is_lone, has_no_time) = (self.end.is_lone(), self.linger_s.load(Ordering::Relaxed) == 0);
        // The kernel resets what is closed with bytes that nobody has read, and knows nothing of those of the ring.
        let has_unread = || self.end.count().is_ok_and(|count| count > 0) || self.has_unread_of_tcp(fd);
        // One that went back to TCP may be another process' by now.
        let is_memorys = self.is_attached() && !self.is_tcp() && !self.end.is_leaving();
        let resets = is_lone && (is_asked && has_no_time || is_memorys && (has_no_time || has_unread()));
        if resets {
            resets_now(fd);
        }
        match (self.is_tcp(), resets) {
            (true, _) => {}
            (false, true) => self.end.reset(),
            (false, false) => self.end.close(borrowed(fd)),
        }
    }

    /// Bytes of TCP that are the program's. In turns: one that comes between the two looks wakes, if what comes is on the ring behind it.
    fn has_unread_of_tcp(&self, fd: i32) -> bool {
        let is_over_tcp = || self.end.count().is_ok() && !self.end.is_on_ring(Bell::Message);
        is_over_tcp() && ioctl_fionread(borrowed(fd)).is_ok_and(|count| count > 0) && is_over_tcp()
    }

    /// One more descriptor.
    pub(crate) fn is_dupped(&self) {
        self.fds.fetch_add(1, Ordering::Relaxed);
    }

    /// Descriptors of it in this process.
    pub(crate) fn is_closed(&self) -> bool {
        self.fds.load(Ordering::Relaxed) == 0
    }
}

/// The connection of a descriptor, if its bytes go through [`End`].
pub(crate) fn ours(fd: i32) -> Option<Arc<Conn>> {
    let conn = CONNS.get(fd)?;
    if conn.is_tcp() {
        return None;
    }
    conn.goes_on(fd);
    (!conn.is_tcp()).then_some(conn)
}

/// The same, as the program reads.
pub(crate) fn read_from(fd: i32) -> Option<Arc<Conn>> {
    let conn = ours(fd)?;
    conn.is_read();
    (!conn.is_tcp()).then_some(conn)
}

/// The same, as the program writes.
pub(crate) fn carried(fd: i32) -> Option<Arc<Conn>> {
    let conn = ours(fd)?;
    if conn.is_given() {
        conn.attaches();
    }
    (!conn.is_tcp()).then_some(conn)
}

/// What was there was closed without this library: the descriptor is another socket's, to which nothing is sent.
pub(crate) fn forgets(fd: i32) {
    let Some(conn) = CONNS.put(fd, None) else { return };
    if conn.fds.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    CLOSED.fetch_add(1, Ordering::Relaxed);
    if let Some(id) = conn.takes_question() {
        monitor::cancels(id);
    }
}

/// What it may come to carry; none: it stays the kernel's.
fn begun(fd: i32) -> Option<Arc<Conn>> {
    forgets(fd);
    if monitor::is_there() && rings::is_free() && !before::has(fd) { Conn::new(fd) } else { None }
}

/// A connection that stands.
pub(crate) fn enters(fd: i32) {
    if let Some(conn) = begun(fd) {
        conn.begins(fd);
        if !conn.is_tcp() {
            CONNS.put(fd, Some(conn));
        }
    }
}

/// One that does not stand yet.
pub(crate) fn connects(fd: i32) {
    // The same socket tries again: sets know it by what is there.
    if CONNS.get(fd).is_some_and(|conn| conn.phase.load(Ordering::Acquire) == CONNECTING) {
        return;
    }
    if let Some(conn) = begun(fd) {
        CONNS.put(fd, Some(conn));
    }
}

/// The descriptor is about to be closed, or to be another one's.
pub(crate) fn leaves(fd: i32) {
    let Some(conn) = CONNS.put(fd, None) else { return };
    if conn.fds.fetch_sub(1, Ordering::AcqRel) > 1 {
        if let Some((other, _)) = CONNS.all().find(|(_, other)| Arc::ptr_eq(other, &conn)) {
            conn.fd.store(other, Ordering::Relaxed);
        }
        return;
    }
    CLOSED.fetch_add(1, Ordering::Relaxed);
    conn.closes(fd);
}

/// The program ends. Its other threads may still be at them: they stay in the table. What is still to be written is ended by the kernel.
pub(crate) fn ends() {
    IS_OVER.store(true, Ordering::Relaxed);
    let is_over = |fd: i32, conn: &Conn| conn.fd() == fd && !conn.has_file.load(Ordering::Relaxed);
    CONNS.all().filter(|(fd, conn)| is_over(*fd, conn)).for_each(|(fd, conn)| conn.closes(fd));
}

/// A descriptor has got another number, too.
pub(crate) fn dups(fd: i32, to: i32) {
    if let Some(conn) = CONNS.get(fd).filter(|conn| !conn.is_tcp()) {
        conn.is_dupped();
        CONNS.put(to, Some(conn));
    }
}

/// It enters what the library does not follow: it never attaches from now on, or goes back to TCP. False: it stays with its memory.
pub(crate) fn is_not_followed(fd: i32) -> bool {
    let Some(conn) = CONNS.get(fd) else { return true };
    conn.stays_tcp();
    conn.is_tcp() || conn.leaves(fd)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{Ipv4Addr, TcpListener, TcpStream},
        os::fd::AsRawFd,
    };

    use super::*;

    /// Else the program itself has no mapping left, as for a thread.
    #[test]
    fn places_are_bounded_and_given_back() {
        static TAKEN: AtomicU32 = AtomicU32::new(0);
        let takes = || Place::takes(&TAKEN, 2);
        let mut places = vec![takes().unwrap(), takes().unwrap()];
        assert!(takes().is_none() && takes().is_none());
        places.pop();
        places.extend(takes());
        assert!(places.len() == 2 && takes().is_none());
        let before = PLACES.load(Ordering::Relaxed);
        let conns: Vec<_> = (0..100).map(|_| Conn::opened(3)).collect();
        // Other tests have a few.
        assert!(PLACES.load(Ordering::Relaxed) + 50 > before + 100 && conns.len() == 100);
    }

    #[test]
    fn memory_waits_for_the_first_read_or_write_of_who_has_the_connection_alone() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let given = || {
            let conn = Conn::opened(socket.as_raw_fd());
            conn.gives(Memory::pair().unwrap().into_iter().next().unwrap());
            assert!(conn.is_given() && !conn.is_attached());
            conn
        };
        let conn = given();
        conn.stays_tcp();
        conn.attaches();
        assert!(conn.is_tcp() && !conn.is_given() && !conn.is_attached(), "it was handed on");
        let conn = given();
        conn.end.shared();
        conn.is_forked();
        conn.attaches();
        assert!(conn.is_given() && !conn.is_attached() && !conn.is_to_ask.load(Ordering::Relaxed));
        conn.end.left();
        // Another test may hold what the process has once.
        while conn.is_given() {
            conn.attaches();
        }
        assert!(conn.is_attached(), "the other process has closed it");
        let late = Conn::opened(socket.as_raw_fd());
        late.stays_tcp();
        late.gives(Memory::pair().unwrap().into_iter().next().unwrap());
        assert!(!late.is_given());
    }

    /// It has left the rings by another process that has the connection, too, and has given it to one that has not read it yet.
    #[test]
    fn close_leaves_a_connection_alone_that_another_process_has_handed_on() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut other = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = listener.accept().unwrap().0;
        let mut receiver = socket.try_clone().unwrap();
        let mut memory = Memory::pair().unwrap().into_iter();
        let conn = Conn::opened(socket.as_raw_fd());
        conn.gives(memory.next().unwrap());
        while conn.is_given() {
            conn.attaches();
        }
        let end = End::new().unwrap();
        assert!(end.attach(memory.next().unwrap()).unwrap() && conn.end.leave(&socket).unwrap());
        assert!(end.follow(&other).unwrap());
        other.write_all(b"abc").unwrap();
        let mut seen = [0; 3];
        assert_eq!(receiver.peek(&mut seen).unwrap(), 3);
        conn.closes(socket.as_raw_fd());
        receiver.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"abc");
        other.write_all(b"more").unwrap();
        assert_eq!(receiver.read(&mut [0; 8]).unwrap(), 4);
    }

    #[test]
    fn what_is_not_followed_stays_with_tcp_also_if_it_says_so_as_an_attach_fails() {
        for is_lone in [false, true] {
            let conn = Conn::opened(3);
            if !is_lone {
                conn.end.shared();
            }
            assert!(conn.begins_attach());
            conn.stays_tcp();
            conn.fails_attach();
            assert!(conn.is_tcp() && !conn.begins_attach(), "alone: {is_lone}");
        }
        let conn = Conn::opened(3);
        conn.end.shared();
        assert!(conn.begins_attach());
        conn.fails_attach();
        assert!(!conn.is_tcp(), "the others may close it");
    }
}
