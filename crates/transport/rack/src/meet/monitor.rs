// SPDX-License-Identifier: Apache-2.0
//! The monitor of a host, which pairs the ends of connections. Each program that asks has a thread of its own, so that one that is
//! slow or hostile holds nobody else up: to close what it has sent may take long.

use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use fide_sys::{
    seqpacket::{Descriptors, ListenError, Listener, Wait, peer, send},
    tcp::{TcpEnd, is_established, stamp_now, syn_stamp},
};
use rustix::net::{Shutdown, shutdown, sockopt};

use super::{
    Asked, Asker, Pairs, Refused, WORDS, Waiting,
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
    thread: Option<JoinHandle<()>>,
}

/// What is kept for a question that waits.
#[derive(Debug)]
struct Kept {
    socket: OwnedFd,
    /// The stamp of the first segment, if this is the server's.
    syn: Option<u32>,
    to: Arc<OwnedFd>,
}

#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    pairs: Mutex<Pairs<Kept>>,
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
        let (of_thread, shared_too) = (Arc::clone(&listener), Arc::clone(&shared));
        let thread = thread::Builder::new()
            .name("rack-monitor".into())
            .spawn(move || accepts(&of_thread, &shared_too))
            .map_err(|why| StartError::Io { path: path.to_owned(), why })?;
        Ok(Self { listener, shared, thread: Some(thread) })
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
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
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
        kept.into_iter().for_each(Kept::release);
    }

    /// Answers a program until it ends, or says what is no question.
    fn serve(&self, client: u64, uid: u32, to: &Arc<OwnedFd>) {
        while let Ok(Some(received)) = receive(&**to, ASKED_FDS_MAX) {
            match Request::read(received.bytes()) {
                Ok(Request::Ask { id }) => self.ask(Asker { client, id, uid }, received.fds.into_iter().next(), to),
                Ok(Request::Cancel { id }) => {
                    let kept = self.pairs().cancel(client, id);
                    kept.into_iter().for_each(Kept::release);
                }
                Err(_) => return,
            }
        }
    }

    fn ask(&self, asker: Asker, socket: Option<OwnedFd>, to: &Arc<OwnedFd>) {
        let refuse = |why| tell(to, Answer::Refused { id: asker.id, why }, &[]);
        let found = socket.and_then(|socket| Some((TcpEnd::of(&socket).ok()?, socket)));
        let Some((end, socket)) = found else { return refuse(Refused::Socket) };
        let syn = syn_stamp(&socket).ok().flatten();
        let mut kept = Kept { socket, syn, to: Arc::clone(to) };
        loop {
            let asked = self.pairs().ask(end, asker, kept);
            match asked {
                Asked::Waits => return,
                Asked::Refused(why, kept) => {
                    kept.release();
                    return refuse(why);
                }
                Asked::Met(other, of_asker) if other.kept.is_open() => return meet(asker, of_asker, other),
                Asked::Met(other, of_asker) => {
                    // It has ended since it asked, and this is another connection with its addresses.
                    tell(&other.kept.to, Answer::Refused { id: other.asker.id, why: Refused::Socket }, &[]);
                    other.kept.release();
                    kept = of_asker;
                }
            }
        }
    }
}

/// Both ends of a connection have asked.
fn meet(asker: Asker, kept: Kept, other: Waiting<Kept>) {
    let shared = match (kept.is_open(), are_one(&kept, &other.kept)) {
        (false, _) => Err(Refused::Socket),
        (true, false) => Err(Refused::Unproven),
        (true, true) => ShmWindow::<WORDS>::pair_and_descriptor().map_err(|_| Refused::Memory),
    };
    let ends = [(other.asker.id, &other.kept.to, true), (asker.id, &kept.to, false)];
    for (id, to, is_first) in ends {
        match &shared {
            // Neither uses it before the other one has said, within it, that it has it. So it is no harm if only one gets it.
            Ok((_, memory)) => tell(to, Answer::Paired { id, is_first }, &[memory.as_fd()]),
            Err(why) => tell(to, Answer::Refused { id, why: *why }, &[]),
        }
    }
    kept.release();
    other.kept.release();
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
