// SPDX-License-Identifier: Apache-2.0
//! The monitor of a host, which pairs the ends of connections. Each program that asks has a thread of its own, so that one that is
//! slow or hostile holds nobody else up: to close what it has sent may take long.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use fide_sys::{
    seqpacket::{Descriptors, ListenError, Listener, Wait, peer, send},
    tcp::{TcpEnd, cookie, is_established, stamp_now, syn_stamp},
};
use rustix::net::{Shutdown, shutdown, sockopt};

use super::{
    Asked, Asker, Pairs, Refused, WORDS, Waiting,
    lately::{KNOWN_FOR, Lately},
    wire::{Answer, Request, receive},
};
use crate::shm::ShmWindow;

/// Programs that are connected, and those of one user. Further ones are sent away: their connections stay with TCP.
pub const CLIENTS_MAX: usize = 1024;
pub const CLIENTS_OF_USER_MAX: usize = 512;
/// Programs that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Before the next try to accept, if there was no descriptor or memory for one.
const ACCEPTS_AGAIN: Duration = Duration::from_millis(50);
/// Longest time from the first segment of a connection to the question of both its ends: another client's stamp is as near to it with
/// a chance of one in 70,000.
const SINCE_MAX_MS: u32 = 60_000;
/// The kernel rounds a stamp to a millisecond, and the clock that it is compared with by itself.
const ROUNDED_MS: u32 = 2;
/// Descriptors of a question: the socket.
const ASKED_FDS_MAX: usize = 1;

/// Why a monitor does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("a monitor runs at {0} already: one for each host is enough")]
    Running(PathBuf),
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
}

impl From<ListenError> for StartError {
    fn from(why: ListenError) -> Self {
        match why {
            ListenError::Running(path) => Self::Running(path),
            ListenError::Io { path, why } => Self::Io { path, why },
        }
    }
}

/// A running monitor. Dropped, it ends, and what it keeps of others is given back.
#[derive(Debug)]
pub struct Monitor {
    listener: Arc<Listener>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What is kept for a question that waits.
#[derive(Debug)]
struct Kept {
    socket: OwnedFd,
    /// The socket's number.
    cookie: u64,
    /// The stamp of the first segment, if this is the server's.
    syn: Option<u32>,
    to: Arc<OwnedFd>,
}

/// What is known of a socket.
#[derive(Debug)]
struct Known {
    syn: Option<u32>,
    /// The memory that its end was given, and whether as the first.
    memory: Option<(Arc<OwnedFd>, bool)>,
}

#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    pairs: Mutex<Pairs<Kept>>,
    lately: Mutex<Lately<Known>>,
    /// Something is known of a socket where nothing was of any, or all is over.
    has_known: Condvar,
    clients: Mutex<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    last: u64,
    /// The user of each, and its connection.
    all: HashMap<u64, (u32, Arc<OwnedFd>)>,
}

impl Monitor {
    /// Listens at a path, where a socket of a monitor that has ended is replaced.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(path: &Path) -> Result<Self, StartError> {
        let listener = Arc::new(Listener::bind(path, BACKLOG, Descriptors::Taken)?);
        let shared = Arc::new(Shared::default());
        let failed = |why| StartError::Io { path: path.to_owned(), why };
        let (of_thread, accepting, forgetting) = (Arc::clone(&listener), Arc::clone(&shared), Arc::clone(&shared));
        let mut monitor = Self { listener, shared, threads: Vec::new() };
        let accepts = thread::Builder::new().name("rack-monitor".into()).spawn(move || accepts(&of_thread, &accepting));
        monitor.threads.push(accepts.map_err(failed)?);
        let forgets = thread::Builder::new().name("rack-forgets".into()).spawn(move || forgetting.forgets());
        monitor.threads.push(forgets.map_err(failed)?);
        Ok(monitor)
    }

    /// Questions that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.shared.pairs().len()
    }

    /// Programs that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.shared.clients().all.len()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.listener.close();
        // Who forgets has looked before that, and sleeps, or looks after it.
        drop(self.shared.lately());
        self.shared.has_known.notify_all();
        self.threads.drain(..).for_each(|thread| _ = thread.join());
        for (_, socket) in self.shared.clients().all.values() {
            let _ = shutdown(&**socket, Shutdown::Both);
        }
    }
}

fn accepts(listener: &Listener, shared: &Arc<Shared>) {
    while !shared.is_over.load(Ordering::Relaxed) {
        match listener.accept(Wait::Forever) {
            Ok(Some(socket)) => {
                // One that is sent away sees the end of its connection.
                if let Some((client, uid, socket)) = shared.enters(socket) {
                    let of_thread = Arc::clone(shared);
                    let serve = move || {
                        of_thread.serve(client, uid, &socket);
                        of_thread.leaves(client);
                    };
                    if thread::Builder::new().name("rack-client".into()).spawn(serve).is_err() {
                        shared.leaves(client);
                    }
                }
            }
            Ok(None) => {}
            Err(_) if shared.is_over.load(Ordering::Relaxed) => {}
            Err(_) => thread::sleep(ACCEPTS_AGAIN),
        }
    }
}

impl Shared {
    fn pairs(&self) -> MutexGuard<'_, Pairs<Kept>> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lately(&self) -> MutexGuard<'_, Lately<Known>> {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A program has connected; none if there are too many, or nobody knows whose it is.
    fn enters(&self, socket: OwnedFd) -> Option<(u64, u32, Arc<OwnedFd>)> {
        let uid = peer(&socket).ok()?.uid;
        let mut clients = self.clients();
        let of_user = clients.all.values().filter(|(of, _)| *of == uid).count();
        if clients.all.len() >= CLIENTS_MAX || of_user >= CLIENTS_OF_USER_MAX {
            return None;
        }
        clients.last += 1;
        let (client, socket) = (clients.last, Arc::new(socket));
        clients.all.insert(client, (uid, Arc::clone(&socket)));
        Some((client, uid, socket))
    }

    fn leaves(&self, client: u64) {
        let kept = self.pairs().gone(client);
        self.clients().all.remove(&client);
        kept.into_iter().for_each(|kept| self.release(kept));
    }

    /// What nobody waits for is released. Whoever still has its socket may ask again.
    fn release(&self, kept: Kept) {
        if kept.syn.is_some() {
            self.knows(kept.cookie, Known { syn: kept.syn, memory: None });
        }
        kept.release();
    }

    fn knows(&self, cookie: u64, known: Known) {
        let mut lately = self.lately();
        let is_first = lately.until().is_none();
        let gone = lately.put(Instant::now(), cookie, known);
        drop(lately);
        drop(gone);
        if is_first {
            self.has_known.notify_all();
        }
    }

    /// Forgets what is known in time, until all is over.
    fn forgets(&self) {
        let mut lately = self.lately();
        while !self.is_over.load(Ordering::Relaxed) {
            let now = Instant::now();
            // One that is known again is known for the whole time.
            let wait = lately.until().map(|until| until.saturating_duration_since(now).max(KNOWN_FOR / 8));
            lately = match wait {
                Some(wait) => self.has_known.wait_timeout(lately, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.has_known.wait(lately).unwrap_or_else(PoisonError::into_inner),
            };
            let gone = lately.forget(Instant::now());
            drop(lately);
            drop(gone);
            lately = self.lately();
        }
    }

    /// Answers a program until it ends, or says what is no question.
    fn serve(&self, client: u64, uid: u32, to: &Arc<OwnedFd>) {
        while let Ok(Some(received)) = receive(&**to, ASKED_FDS_MAX) {
            match Request::read(received.bytes()) {
                Ok(Request::Ask { id }) => self.ask(Asker { client, id, uid }, received.fds.into_iter().next(), to),
                Ok(Request::Cancel { id }) => {
                    let kept = self.pairs().cancel(client, id);
                    kept.into_iter().for_each(|kept| self.release(kept));
                }
                Err(_) => return,
            }
        }
    }

    fn ask(&self, asker: Asker, socket: Option<OwnedFd>, to: &Arc<OwnedFd>) {
        let refuse = |why| tell(to, Answer::Refused { id: asker.id, why }, &[]);
        let found = socket.and_then(|socket| Some((TcpEnd::of(&socket).ok()?, cookie(&socket).ok()?, socket)));
        let Some((end, cookie, socket)) = found else { return refuse(Refused::Socket) };
        let known = self.lately().get(Instant::now(), cookie).map(|known| (known.syn, known.memory.clone()));
        let (syn, memory) = known.unwrap_or_default();
        // The kernel gives it once.
        let syn = syn.or_else(|| syn_stamp(&socket).ok().flatten());
        let mut kept = Kept { socket, cookie, syn, to: Arc::clone(to) };
        if let Some((memory, is_first)) = memory {
            tell(to, Answer::Paired { id: asker.id, is_first }, &[memory.as_fd()]);
            return kept.release();
        }
        loop {
            let mut pairs = self.pairs();
            let asked = pairs.ask(end, asker, kept);
            if let Asked::Replaces(before) = &asked
                && let Some(kept) = pairs.kept(end)
                && kept.cookie == before.kept.cookie
            {
                kept.syn = before.kept.syn;
            }
            drop(pairs);
            match asked {
                Asked::Waits => return,
                Asked::Replaces(before) => {
                    tell(&before.kept.to, Answer::Refused { id: before.asker.id, why: Refused::Twice }, &[]);
                    return before.kept.release();
                }
                Asked::Refused(why, kept) => {
                    kept.release();
                    return refuse(why);
                }
                Asked::Met(other, of_asker) if other.kept.is_open() => return self.meet(asker, of_asker, other),
                Asked::Met(other, of_asker) => {
                    // It has ended since it asked, and this is another connection with its addresses.
                    tell(&other.kept.to, Answer::Refused { id: other.asker.id, why: Refused::Socket }, &[]);
                    other.kept.release();
                    kept = of_asker;
                }
            }
        }
    }

    /// Both ends of a connection have asked.
    fn meet(&self, asker: Asker, kept: Kept, other: Waiting<Kept>) {
        let shared = match (kept.is_open(), are_one(&kept, &other.kept)) {
            (false, _) => Err(Refused::Socket),
            (true, false) => Err(Refused::Unproven),
            (true, true) => ShmWindow::<WORDS>::pair_and_descriptor().map_err(|_| Refused::Memory),
        };
        let memory = shared.map(|(_, memory)| Arc::new(memory));
        let ends = [(other.asker.id, other.kept, true), (asker.id, kept, false)];
        for (id, kept, is_first) in ends {
            match &memory {
                // Neither uses it before the other one has said, within it, that it has it. So it is no harm if only one gets it.
                Ok(memory) => {
                    let known = Known { syn: kept.syn, memory: Some((Arc::clone(memory), is_first)) };
                    self.knows(kept.cookie, known);
                    tell(&kept.to, Answer::Paired { id, is_first }, &[memory.as_fd()]);
                }
                Err(why) => tell(&kept.to, Answer::Refused { id, why: *why }, &[]),
            }
            kept.release();
        }
    }
}

/// Whether they are the two ends of one connection: one is the server's, and the other has sent the segment that it began with.
fn are_one(one: &Kept, other: &Kept) -> bool {
    let (client, stamp) = match (one.syn, other.syn) {
        (Some(stamp), None) => (other, stamp),
        (None, Some(stamp)) => (one, stamp),
        _ => return false,
    };
    stamp_now(&client.socket).is_ok_and(|now| now.wrapping_add(ROUNDED_MS).wrapping_sub(stamp) <= SINCE_MAX_MS)
}

/// One that does not read its answers goes on by TCP.
fn tell(to: &OwnedFd, answer: Answer, fds: &[BorrowedFd<'_>]) {
    let _ = send(to, &answer.write(), fds);
}

impl Kept {
    fn is_open(&self) -> bool {
        is_established(&self.socket).unwrap_or(false)
    }

    /// Closes the socket, without a wait if this is the last one who has it.
    fn release(self) {
        // Its program, if there still is one, knows what it has set.
        let _ = sockopt::set_socket_linger(&self.socket, None);
    }
}
