// SPDX-License-Identifier: Apache-2.0
//! The one connection of this process to the monitor, and the questions that are open.
//!
//! Nothing waits here: who finds somebody else at it goes on without, also the handler of a signal that has interrupted one.

use std::{
    env, hint,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    path::PathBuf,
    ptr,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, AtomicPtr, Ordering},
    },
    thread,
};

use fide_rack::meet::ask::{Asks, Told};
use fide_sys::seqpacket::peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::conn::{CONNS, Conn, borrowed};

/// Where the monitor listens.
const PATH: &str = "FIDE_RACK_MONITOR";
/// The number of the user that it has to be of, if it is said: another one's may have taken its place.
const USER: &str = "FIDE_RACK_MONITOR_UID";
/// The descriptor gets the first free number from here on, or from a quarter of those that the process may have.
const FD_MIN: u64 = 1 << 19;
/// Questions from which on those of connections that are gone are forgotten.
const OPEN_TIDIED: usize = 64;
/// Tries to be the one that asks. One does for some system calls.
const TRIES: u32 = 20_000;

struct Client {
    asks: Asks,
    /// Device and file: the program may close the descriptor, and have another file at its number.
    file: (u64, u64),
    open: Mutex<Vec<(u32, Weak<Conn>)>>,
}

static CLIENT: AtomicPtr<Client> = AtomicPtr::new(ptr::null_mut());
/// There is no monitor, or no more.
static IS_GONE: AtomicBool = AtomicBool::new(false);
/// Somebody asks, takes answers, or forks.
static IS_HELD: AtomicBool = AtomicBool::new(false);

struct Held;

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

/// Both are read before the program changes its environment.
pub(crate) fn starts() {
    user();
    if path().is_none() {
        IS_GONE.store(true, Ordering::Relaxed);
    }
}

/// Whether there may be a monitor.
pub(crate) fn is_there() -> bool {
    !IS_GONE.load(Ordering::Relaxed)
}

fn file(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    rustix::fs::fstat(fd).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn connected() -> Option<&'static Client> {
    let client = CLIENT.load(Ordering::Acquire);
    // SAFETY: it was leaked, and so is never freed.
    unsafe { client.as_ref() }
}

/// Only by one who holds.
fn connects() -> Option<&'static Client> {
    if let Some(client) = connected() {
        return Some(client);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(FD_MIN);
    let least = i32::try_from(FD_MIN.min(limit / 4 * 3)).ok()?;
    let asks = Asks::connect(path()?).ok()?;
    let is_trusted = user().is_none_or(|uid| peer(&asks).is_ok_and(|peer| peer.uid == uid));
    let asks = is_trusted.then_some(asks)?.moved(least).ok()?;
    let file = file(asks.as_fd())?;
    let client: &'static Client = Box::leak(Box::new(Client { asks, file, open: Mutex::default() }));
    CLIENT.store(ptr::from_ref(client).cast_mut(), Ordering::Release);
    Some(client)
}

impl Client {
    fn is_ours(&self) -> bool {
        file(self.asks.as_fd()) == Some(self.file)
    }

    /// What it was asked stays with TCP, and nothing is asked any more.
    fn is_gone(&self, open: &mut Vec<(u32, Weak<Conn>)>) {
        IS_GONE.store(true, Ordering::Relaxed);
        open.drain(..).filter_map(|(_, conn)| conn.upgrade()).for_each(|conn| conn.refused());
    }
}

/// Asks for the other end of a connection. False: it was not asked.
pub(crate) fn asks(conn: &Arc<Conn>, fd: i32) -> bool {
    let Some(_held) = is_there().then(|| Held::tries(TRIES)).flatten() else { return false };
    let Some(client) = connects() else {
        IS_GONE.store(true, Ordering::Relaxed);
        return false;
    };
    let Ok(mut open) = client.open.try_lock() else { return false };
    if !client.is_ours() {
        client.is_gone(&mut open);
        return false;
    }
    let Ok(id) = client.asks.ask(borrowed(fd)) else { return false };
    conn.asked(id);
    // Those that were taken back were not answered.
    if open.len() >= OPEN_TIDIED && open.len() == open.capacity() {
        open.retain(|(_, conn)| conn.strong_count() > 0);
    }
    open.push((id, Arc::downgrade(conn)));
    true
}

/// Takes a question back.
pub(crate) fn cancels(id: u32) {
    // Whoever is at it does not wait. An answer to a question that was not taken back is for nobody.
    if let Some(client) = connected()
        && client.is_ours()
    {
        let _ = client.asks.cancel(id);
    }
}

/// Takes the answers that are there.
pub(crate) fn answers() {
    let (Some(client), Some(_held)) = (connected(), Held::tries(1)) else { return };
    let Ok(mut open) = client.open.try_lock() else { return };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        let mut fds = [PollFd::new(&client.asks, PollFlags::IN)];
        if !poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0) {
            return;
        }
        if !client.is_ours() {
            return client.is_gone(&mut open);
        }
        let Ok(Some(told)) = client.asks.told() else { return client.is_gone(&mut open) };
        let (Told::Paired { id, .. } | Told::Refused { id, .. }) = told;
        let Some(at) = open.iter().position(|(of, _)| *of == id) else { continue };
        let Some(conn) = open.swap_remove(at).1.upgrade().filter(|conn| !conn.is_closed()) else { continue };
        match told {
            Told::Paired { window, .. } => conn.attaches(window),
            Told::Refused { .. } => conn.refused(),
        }
    }
}

/// The number of the descriptor that is not the program's.
pub(crate) fn fd() -> Option<i32> {
    connected().map(|client| client.asks.as_fd().as_raw_fd())
}

/// Before a fork: nothing attaches meanwhile, and all ends have one process more.
pub(crate) fn before_fork() {
    // Who is at it has been interrupted by a handler that forks, if it takes so long.
    if let Some(held) = Held::tries(TRIES) {
        std::mem::forget(held);
    }
    for_each(|conn| conn.end.shared());
}

pub(crate) fn after_fork() {
    drop(Held);
}

pub(crate) fn in_child() {
    if let Some(fd) = fd()
        && connected().is_some_and(Client::is_ours)
    {
        // SAFETY: it is the library's, and the value that has it was leaked, and is used no more.
        unsafe { rustix::io::close(fd) };
    }
    CLIENT.store(ptr::null_mut(), Ordering::Release);
    for_each(Conn::is_forked);
    drop(Held);
}

/// Each connection once.
fn for_each(what: impl Fn(&Conn)) {
    CONNS.all().filter(|(fd, conn)| conn.fd() == *fd && !conn.is_tcp()).for_each(|(_, conn)| what(&conn));
}
