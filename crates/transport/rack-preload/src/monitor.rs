// SPDX-License-Identifier: Apache-2.0
//! The one connection of this process to the monitor, and the questions that are open.
//!
//! Nothing waits here: who finds somebody else at it goes on without, also the handler of a signal that has interrupted one. A monitor
//! that is away is tried again by later calls, at intervals that grow up to [`AWAY_MAX`]; meanwhile new connections are the kernel's alone.
//!
//! **Forks.** A server may fork for each connection, and the monitor has places for so many programs: a child has a connection to it only
//! while a question is open.

use std::{
    env, hint, io, mem,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::PathBuf,
    ptr,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use fide_rack::{
    link::offers::Network,
    meet::ask::{Asks, Told},
};
use fide_sys::seqpacket::peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::conn::{CONNS, Conn, borrowed};

/// Where the monitor listens.
const PATH: &str = "FIDE_RACK_MONITOR";
/// The number of the user that it has to be of, if it is said: another one's may have taken its place.
const USER: &str = "FIDE_RACK_MONITOR_UID";
/// Addresses of the hosts that it has links to, as networks with `+` between them.
const PEERS: &str = "FIDE_RACK_PEERS";
/// The descriptor gets the first free number from here on, or from a quarter of those that the process may have. A greater one would have
/// the kernel keep places up to it, and `select` look at as many: programs ask for all that they may have, with sets of 1,024.
const FD_MIN: u64 = 1000;
/// Questions from which on those of connections that are gone are forgotten.
const OPEN_TIDIED: usize = 64;
/// Tries to be the one that asks. One does for some system calls.
const TRIES: u32 = 20_000;
/// Before the next try, if the monitor was not there, had no place, or has sent this process away: at first, and at most. Each time it is
/// twice as long, until there is an answer.
const AWAY_MIN: Duration = Duration::from_millis(100);
const AWAY_MAX: Duration = Duration::from_secs(2);

type Open = Vec<(u32, Weak<Conn>)>;

struct Client {
    asks: Asks,
    /// Device and file: the program may close the descriptor, and have another file at its number.
    file: (u64, u64),
    open: Mutex<Open>,
}

static CLIENT: AtomicPtr<Client> = AtomicPtr::new(ptr::null_mut());
/// One that is lost, and may still be used: it is freed before there is another one.
static LOST: AtomicPtr<Client> = AtomicPtr::new(ptr::null_mut());
/// Calls that use it without being the one that holds.
static USERS: AtomicU32 = AtomicU32::new(0);
/// A monitor is named.
static IS_NAMED: AtomicBool = AtomicBool::new(false);
/// When it is tried next, in nanoseconds since this process began, and after how long; 0: at once.
static TRIED_AT_NS: AtomicU64 = AtomicU64::new(0);
static AWAY_NS: AtomicU64 = AtomicU64::new(0);
/// Somebody asks, takes answers, or forks.
static IS_HELD: AtomicBool = AtomicBool::new(false);
/// Who forks is the one that holds.
static FORK_HOLDS: AtomicBool = AtomicBool::new(false);
/// This process was forked.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

pub(crate) struct Held;

impl Held {
    fn tries(tries: u32) -> Option<Self> {
        for turn in 0..tries {
            if !IS_HELD.swap(true, Ordering::Acquire) {
                return Some(Self);
            }
            if turn % 100 == 99 { thread::yield_now() } else { hint::spin_loop() }
        }
        None
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        IS_HELD.store(false, Ordering::Release);
    }
}

fn path() -> Option<&'static PathBuf> {
    static AT: OnceLock<Option<PathBuf>> = OnceLock::new();
    AT.get_or_init(|| env::var_os(PATH).filter(|path| !path.is_empty()).map(PathBuf::from)).as_ref()
}

/// Whose it has to be. None: anybody's. What is no number is nobody's.
fn user() -> Option<u32> {
    static OF: OnceLock<Option<u32>> = OnceLock::new();
    *OF.get_or_init(|| env::var(USER).ok().map(|text| text.parse().unwrap_or(u32::MAX)))
}

/// What is no network is passed over.
fn networks(text: &str) -> Vec<Network> {
    text.split('+').filter_map(|network| network.parse().ok()).collect()
}

fn peers() -> &'static [Network] {
    static OF: OnceLock<Vec<Network>> = OnceLock::new();
    OF.get_or_init(|| env::var(PEERS).map_or_else(|_| Vec::new(), |text| networks(&text)))
}

/// Whether this is an address of a host that the monitor has a link to.
pub(crate) fn is_linked(address: IpAddr) -> bool {
    peers().iter().any(|network| network.has(address))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn now_ns() -> u64 {
    static BEGUN: OnceLock<Instant> = OnceLock::new();
    nanos(BEGUN.get_or_init(Instant::now).elapsed())
}

/// All is read before the program changes its environment.
pub(crate) fn starts() {
    user();
    peers();
    now_ns();
    IS_NAMED.store(path().is_some(), Ordering::Relaxed);
}

/// Nobody asks, takes answers or forks meanwhile. None: somebody does.
pub(crate) fn holds() -> Option<Held> {
    Held::tries(1)
}

/// Whether there is one, or may come to be.
pub(crate) fn is_named() -> bool {
    IS_NAMED.load(Ordering::Relaxed)
}

/// Whether it is asked, or is to be tried again.
pub(crate) fn is_there() -> bool {
    let at_ns = TRIED_AT_NS.load(Ordering::Relaxed);
    is_named() && (at_ns == 0 || now_ns() >= at_ns)
}

/// It is not there: the next try is later.
fn is_away() {
    let away_ns = AWAY_NS.load(Ordering::Relaxed).saturating_mul(2).clamp(nanos(AWAY_MIN), nanos(AWAY_MAX));
    AWAY_NS.store(away_ns, Ordering::Relaxed);
    TRIED_AT_NS.store(now_ns() + away_ns, Ordering::Relaxed);
}

fn file(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// For one who holds, or is counted among [`USERS`].
fn connected() -> Option<&'static Client> {
    let client = CLIENT.load(Ordering::SeqCst);
    // SAFETY: it is freed only by one who holds, and then only where it was taken out and nobody else uses it.
    unsafe { client.as_ref() }
}

/// Only by one who holds. None: not now.
fn connects() -> Option<&'static Client> {
    if let Some(client) = connected() {
        return Some(client);
    }
    if !frees() {
        return None;
    }
    let client = connection();
    if client.is_none() {
        is_away();
        return None;
    }
    TRIED_AT_NS.store(0, Ordering::Relaxed);
    CLIENT.store(Box::into_raw(Box::new(client?)), Ordering::SeqCst);
    connected()
}

fn connection() -> Option<Client> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(FD_MIN);
    let least = i32::try_from(FD_MIN.min(limit / 4 * 3)).ok()?;
    let asks = Asks::connect_within(path()?, Duration::ZERO).ok()?;
    let is_trusted = user().is_none_or(|uid| peer(&asks).is_ok_and(|peer| peer.uid == uid));
    let asks = is_trusted.then_some(asks)?.moved(least).ok()?;
    let file = file(asks.as_fd())?;
    Some(Client { asks, file, open: Mutex::default() })
}

impl Client {
    fn is_ours(&self) -> bool {
        file(self.asks.as_fd()) == Some(self.file)
    }
}

/// Only by one who holds: what it was asked is asked again, once there is one.
fn is_lost(client: &Client) {
    let open = client.open.try_lock().map(|mut open| mem::take(&mut *open)).unwrap_or_default();
    open.into_iter().filter_map(|(_, conn)| conn.upgrade()).for_each(|conn| conn.asks_again());
    LOST.store(CLIENT.swap(ptr::null_mut(), Ordering::SeqCst), Ordering::Relaxed);
    frees();
}

/// Only by one who holds. False: the one that is lost is still used.
fn frees() -> bool {
    let lost = LOST.load(Ordering::Relaxed);
    if lost.is_null() {
        return true;
    }
    if USERS.load(Ordering::SeqCst) > 0 {
        return false;
    }
    LOST.store(ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: it came from a box, is found by nobody any more, and was used by nobody since.
    let client = unsafe { Box::from_raw(lost) };
    if !client.is_ours() {
        // The program has closed it: its number is another file's.
        mem::forget(client);
    }
    true
}

/// Only by one who holds, in a child: without a question it needs no monitor.
fn is_idle(open: &Open) -> bool {
    let is_open = |conn: &Weak<Conn>| conn.upgrade().is_some_and(|conn| conn.has_question());
    IS_CHILD.load(Ordering::Relaxed) && !open.iter().any(|(_, conn)| is_open(conn))
}

/// Asks for the other end of a connection. False: not now.
pub(crate) fn asks(conn: &Arc<Conn>, fd: i32) -> bool {
    let Some(_held) = is_there().then(|| Held::tries(TRIES)).flatten() else { return false };
    let Some(client) = connects() else { return false };
    let Ok(mut open) = client.open.try_lock() else { return false };
    let asked = if client.is_ours() { client.asks.ask(borrowed(fd)) } else { Err(io::ErrorKind::NotConnected.into()) };
    match asked {
        Ok(id) => {
            conn.asked(id);
            // Those that were taken back were not answered.
            if open.len() >= OPEN_TIDIED && open.len() == open.capacity() {
                open.retain(|(_, conn)| conn.strong_count() > 0);
            }
            open.push((id, Arc::downgrade(conn)));
            true
        }
        Err(why) => {
            use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, NotConnected};
            drop(open);
            if matches!(why.kind(), BrokenPipe | ConnectionRefused | ConnectionReset | NotConnected) {
                is_lost(client);
                is_away();
            }
            false
        }
    }
}

/// Takes a question back.
pub(crate) fn cancels(id: u32) {
    // Whoever is at it does not wait. An answer to a question that was not taken back is for nobody.
    USERS.fetch_add(1, Ordering::SeqCst);
    if let Some(client) = connected()
        && client.is_ours()
    {
        client.asks.cancel_or_end(id);
    }
    USERS.fetch_sub(1, Ordering::SeqCst);
    if IS_CHILD.load(Ordering::Relaxed)
        && let Some(_held) = Held::tries(1)
        && let Some(client) = connected()
        && client.open.try_lock().is_ok_and(|open| is_idle(&open))
    {
        is_lost(client);
    }
}

/// Takes the answers that are there.
pub(crate) fn answers() {
    let Some(_held) = Held::tries(1) else { return };
    let Some(client) = connected() else { return };
    if !takes(client) {
        is_lost(client);
        is_away();
    } else if client.open.try_lock().is_ok_and(|open| is_idle(&open)) {
        is_lost(client);
    }
}

/// False: the monitor is gone, or has sent this process away.
fn takes(client: &Client) -> bool {
    let Ok(mut open) = client.open.try_lock() else { return true };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut fds = [PollFd::new(&client.asks, PollFlags::IN)];
        if !poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
            return true;
        }
        if !client.is_ours() {
            return false;
        }
        let (id, window) = match client.asks.told() {
            Ok(Some(Told::Paired { id, window })) => (id, Some(window)),
            Ok(Some(Told::Refused { id, .. })) => (id, None),
            Ok(None) => return false,
            // This program has too many files or mappings: the connection stays with TCP.
            Err(why) => match why.question() {
                Some(id) => (id, None),
                None => return false,
            },
        };
        AWAY_NS.store(0, Ordering::Relaxed);
        let Some(at) = open.iter().position(|(of, _)| *of == id) else { continue };
        let Some(conn) = open.swap_remove(at).1.upgrade().filter(|conn| !conn.is_closed()) else { continue };
        match window {
            Some(window) => conn.gives(window),
            None => conn.refused(),
        }
    }
}

/// Before a fork: nothing attaches meanwhile, and all ends have one process more.
pub(crate) fn before_fork() {
    // Who is at it has been interrupted by a handler that forks, if it takes so long.
    let held = Held::tries(TRIES);
    FORK_HOLDS.store(held.is_some(), Ordering::Relaxed);
    mem::forget(held);
    for_each(|conn| conn.end.shared());
}

pub(crate) fn after_fork() {
    if FORK_HOLDS.load(Ordering::Relaxed) {
        drop(Held);
    }
}

pub(crate) fn in_child() {
    // It is the parent's, and who was interrupted may be at it.
    let client = CLIENT.swap(ptr::null_mut(), Ordering::SeqCst);
    let lost = LOST.swap(ptr::null_mut(), Ordering::SeqCst);
    for client in [client, lost] {
        // SAFETY: no other thread frees it.
        if let Some(client) = unsafe { client.as_ref() }
            && client.is_ours()
        {
            // SAFETY: it is the library's, and the value that has it was leaked, and is used no more.
            unsafe { rustix::io::close(client.asks.as_fd().as_raw_fd()) };
        }
    }
    USERS.store(0, Ordering::Relaxed);
    IS_CHILD.store(true, Ordering::Relaxed);
    for_each(Conn::is_forked);
    drop(Held);
}

/// Each connection once.
fn for_each(what: impl Fn(&Conn)) {
    CONNS.all().filter(|(fd, conn)| conn.fd() == *fd && !conn.is_tcp()).for_each(|(_, conn)| what(&conn));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_networks_with_a_sign_between() {
        let linked = |text, address: &str| {
            let address = address.parse().unwrap();
            networks(text).iter().any(|network| network.has(address))
        };
        assert!(linked("10.0.0.2/32+fd00::/64", "10.0.0.2") && linked("10.0.0.2/32+fd00::/64", "fd00::7"));
        assert!(!linked("10.0.0.2/32+fd00::/64", "10.0.0.3") && !linked("", "10.0.0.2"));
        assert!(linked("nothing+10.0.0.2", "10.0.0.2"));
    }
}
