// SPDX-License-Identifier: Apache-2.0
//! The monitor of a host, which pairs the ends of connections. Each program that asks has a thread of its own, so that one that is
//! slow or hostile holds nobody else up.
//!
//! **Invariant: a thread asks the kernel about its own program's sockets alone, and nobody else closes them.** A program can keep the lock
//! that the kernel has for each socket, and have it closed slowly. So where the second end of a connection asks, the thread of the first
//! one is told to look at its own, and to answer both; it knows of the other socket what that one's thread has found.

use std::{
    collections::{HashMap, HashSet},
    io, mem,
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use fide_sys::{
    interface::any_address,
    seqpacket::{Descriptors, ListenError, Listener, Peer, ReceiveError, Wait, peer, send},
    tcp::{TcpEnd, cookie, is_established, netns, stamp_now, syn_stamp},
};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    net::{Shutdown, shutdown},
    process::{Resource, getrlimit},
};

use super::{
    Asked, Asker, Pairs, Refused, Seen, WAITING_MAX, WAITING_OF_USER_MAX, WORDS,
    carried::{Bell, Carried, Given},
    guard::Guard,
    held::{Holds, lets_go},
    lately::{KNOWN_FOR, Lately},
    seen::{self, Left, Pair, Program, View, Waits, Why},
    wire::{Answer, Request, receive},
};
use crate::{
    link::offers::{Ends, Network},
    proxy::{Programs, Proxy, Settings},
    shm::ShmWindow,
    window::Window,
};

pub use super::lately::KNOWN_MAX;

/// Programs that are connected, and those of one user. Further ones are sent away: their connections stay with TCP.
pub const CLIENTS_MAX: usize = 1024;
pub const CLIENTS_OF_USER_MAX: usize = 512;
/// Of the descriptors that the monitor may have, one program may be connected for so many, and one question wait: a program takes two and
/// may have two more under way, and of questions there may be twice as many.
const DESCRIPTORS_OF_CLIENT: u64 = 16;
const DESCRIPTORS_OF_QUESTION: u64 = 4;
/// And one socket be known of for so many, which may have one for its memory.
const DESCRIPTORS_OF_KNOWN: u64 = 32;
/// Sockets of a program that others ask about instead, and that its thread has not closed yet. A further one stays, and who asks about it
/// is refused.
const REPLACED_MAX: usize = 64;
/// Programs that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Before the next try to accept, if there was no descriptor or memory for one.
const ACCEPTS_AGAIN: Duration = Duration::from_millis(50);
/// More messages than a program may have sent that are not read yet (with `net.core.wmem_max` as the kernel sets it; each takes more than 512 bytes).
const UNREAD_MAX: usize = 1024;
/// How often it is looked whether somebody still has a connection of a program that has ended, and how long at most one sleeps that waits for
/// its end.
const LOOKS_EVERY: Duration = Duration::from_millis(10);
const FORGETS_AFTER: Duration = Duration::from_secs(1);
/// How often it is looked whether a program has let the memory go that it was given.
const TAKES_WITHIN: Duration = Duration::from_millis(100);
/// As the monitor ends, its threads have so long to reset the connections to other hosts.
const RESETS_WITHIN: Duration = Duration::from_millis(100);
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

/// How much a monitor keeps: less than the constants say if its process may have few files open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub clients: usize,
    pub clients_of_user: usize,
    pub waiting: usize,
    pub waiting_of_user: usize,
    /// Sockets about which somebody has asked in the last two seconds. One more takes the place of the one that was known longest, whose
    /// connection stays with TCP if a process that was forked asks about it.
    pub known: usize,
}

impl Bounds {
    /// Of a process that may have so many descriptors (`RLIMIT_NOFILE`); none: any number.
    #[must_use]
    pub fn of(descriptors: Option<u64>) -> Self {
        let share = |each, most: usize| {
            let share = descriptors.and_then(|all| usize::try_from(all / each).ok());
            share.map_or(most, |share| share.clamp(2, most))
        };
        let clients = share(DESCRIPTORS_OF_CLIENT, CLIENTS_MAX);
        let waiting = share(DESCRIPTORS_OF_QUESTION, WAITING_MAX);
        Self {
            clients,
            clients_of_user: CLIENTS_OF_USER_MAX.min(clients / 2),
            waiting,
            waiting_of_user: WAITING_OF_USER_MAX.min(waiting / 2),
            known: share(DESCRIPTORS_OF_KNOWN, KNOWN_MAX),
        }
    }
}

/// Whose programs may ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Users {
    All,
    /// These users, besides root and the monitor's own.
    These(Vec<u32>),
}

impl Users {
    #[must_use]
    pub fn has(&self, uid: u32) -> bool {
        match self {
            Self::All => true,
            Self::These(these) => uid == 0 || uid == rustix::process::geteuid().as_raw() || these.contains(&uid),
        }
    }
}

/// Whose connections it serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    pub users: Users,
    /// Both addresses of a connection have to be in one of them; none: any may be.
    pub networks: Option<Vec<Network>>,
}

impl From<Users> for Access {
    fn from(users: Users) -> Self {
        Self { users, networks: None }
    }
}

impl Access {
    fn has(&self, end: &TcpEnd) -> bool {
        let has = |networks: &[Network], address: IpAddr| networks.iter().any(|network| network.has(address));
        let both = [end.local.ip(), end.peer.ip()].map(|address| address.to_canonical());
        self.networks.as_ref().is_none_or(|networks| both.into_iter().all(|address| has(networks, address)))
    }
}

/// A running monitor. Dropped, it ends, and what it keeps of others is given back.
#[derive(Debug)]
pub struct Monitor {
    listener: Arc<Listener>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// A program that is connected.
#[derive(Debug)]
struct Client {
    number: u64,
    program: Program,
    socket: OwnedFd,
    /// There is something to do.
    bell: Arc<Bell>,
    to_do: Mutex<ToDo>,
}

/// For the thread of a program, by the number of its question.
#[derive(Debug, Default)]
struct ToDo {
    /// The other end has asked, too.
    looks: HashSet<u32>,
    answers: Vec<(u32, Outcome)>,
    /// Another program asks about that one's socket instead.
    replaced: Vec<(u32, Arc<OwnedFd>)>,
    /// Memory for connections to other hosts.
    given: Vec<(u32, Given)>,
}

/// The memory, and whether it asked first.
type Outcome = Result<(Arc<OwnedFd>, bool), Refused>;

/// What is kept for a question that waits.
#[derive(Debug)]
struct Kept {
    /// Only its client's thread has it besides.
    socket: Arc<OwnedFd>,
    /// The socket's number.
    cookie: u64,
    seen: Seen,
    client: Arc<Client>,
    end: TcpEnd,
    since: Instant,
}

/// What is known of a socket.
#[derive(Debug, Clone)]
struct Known {
    /// A socket may be connected anew.
    end: TcpEnd,
    syn: Option<u32>,
    /// The memory that its end was given, and whether as the first.
    memory: Option<(Arc<OwnedFd>, bool)>,
}

#[derive(Debug)]
struct Shared {
    is_over: AtomicBool,
    pairs: Mutex<Pairs<Kept>>,
    lately: Mutex<Lately<Known>>,
    /// Something is known of a socket where nothing was of any, or all is over.
    has_known: Condvar,
    clients: Mutex<Clients>,
    bounds: Bounds,
    access: Access,
    /// For those who look.
    said: Mutex<seen::Seen>,
    /// To other hosts.
    links: RwLock<Vec<Proxy>>,
    /// Has the sockets of connections to other hosts, too.
    guard: OnceLock<Guard>,
    /// The network namespace of this process; none: the kernel does not say. Only its connections go to other hosts: in one of his own a user
    /// has any addresses.
    netns: Option<u64>,
}

#[derive(Debug, Default)]
struct Clients {
    last: u64,
    all: HashMap<u64, Arc<Client>>,
}

impl Monitor {
    /// Listens at a path, where a socket of a monitor that has ended is replaced. It keeps what [`Bounds`] say for the limit of this process
    /// (`RLIMIT_NOFILE`) as it is now: for all that it can keep, set it to 131,072.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start(path: &Path) -> Result<Self, StartError> {
        Self::start_for(path, Users::All)
    }

    /// As [`Monitor::start`], for some users, and connections of some networks. The programs of others see the end of their connection to it,
    /// and stay with TCP, as other connections do.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn start_for(path: &Path, access: impl Into<Access>) -> Result<Self, StartError> {
        let listener = Arc::new(Listener::bind(path, BACKLOG, Descriptors::Taken)?);
        let bounds = Bounds::of(getrlimit(Resource::Nofile).current);
        let shared = Arc::new(Shared {
            is_over: AtomicBool::new(false),
            pairs: Mutex::new(Pairs::new(bounds.waiting, bounds.waiting_of_user)),
            lately: Mutex::new(Lately::new(bounds.known)),
            has_known: Condvar::new(),
            clients: Mutex::default(),
            bounds,
            access: access.into(),
            said: Mutex::default(),
            links: RwLock::default(),
            guard: OnceLock::new(),
            netns: own_netns(),
        });
        let failed = |why| StartError::Io { path: path.to_owned(), why };
        let (of_thread, accepting, forgetting) = (Arc::clone(&listener), Arc::clone(&shared), Arc::clone(&shared));
        let mut monitor = Self { listener, shared, threads: Vec::new() };
        let accepts = thread::Builder::new().name("rack-monitor".into()).spawn(move || accepts(&of_thread, &accepting));
        monitor.threads.push(accepts.map_err(failed)?);
        let forgets = thread::Builder::new().name("rack-forgets".into()).spawn(move || forgetting.forgets());
        monitor.threads.push(forgets.map_err(failed)?);
        Ok(monitor)
    }

    /// Carries connections to another host, too, as [`Proxy::start`] does. They are reset once the monitor ends.
    ///
    /// # Errors
    /// As [`Proxy::start`]; it is not known which network namespace this process is in, or which addresses it has there.
    pub fn links<W: Window + Send + Sync + 'static>(
        &self,
        settings: Settings,
        opens: impl FnMut() -> io::Result<W> + Send + 'static,
        key: impl FnMut() -> u64 + Send + 'static,
    ) -> io::Result<()> {
        let unknown = |why| {
            let says = format!(
                "{why}: only connections of this process' network namespace go over a link, and none between addresses of its own; a unit needs RestrictAddressFamilies=AF_UNIX AF_INET AF_NETLINK"
            );
            io::Error::new(io::ErrorKind::Unsupported, says)
        };
        if self.shared.netns.is_none() {
            return Err(unknown("the kernel does not say the network namespace of a socket".to_owned()));
        }
        any_address(|_| true).map_err(|why| unknown(why.to_string()))?;
        let programs = Arc::new(Gives(Arc::downgrade(&self.shared)));
        let proxy = Proxy::start(settings, programs, opens, key)?;
        self.shared.links.write().unwrap_or_else(PoisonError::into_inner).push(proxy);
        Ok(())
    }

    /// Has connections to other hosts be reset should this process die, from those on that are carried later. To be called once.
    pub fn guarded(&self, guard: Guard) {
        let _ = self.shared.guard.set(guard);
    }

    /// Addresses of the hosts that it has links to: of connections with them, too, its programs may ask.
    #[must_use]
    pub fn peers(&self) -> Vec<Network> {
        let mut peers = Vec::new();
        self.shared.links(|link| peers.extend_from_slice(link.networks()));
        peers
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

    /// What it knows now.
    #[must_use]
    pub fn view(&self) -> View {
        let programs = self.shared.clients().all.values().map(|client| client.program).collect();
        let wait = |kept: &Kept| Waits { program: kept.client.program, end: kept.end, since: kept.since };
        let waits = self.shared.pairs().all().map(wait).collect();
        let said = self.shared.said();
        let (pairs, left) = (said.pairs.iter().copied().collect(), said.left.iter().copied().collect());
        let mut links = Vec::new();
        self.shared.links(|link| links.push(link.view()));
        View { counts: said.counts, programs, pairs, left, waits, links }
    }

    /// Forgets connections that are over. Both are asked with the monitor's lock held.
    pub fn forget(&self, is_over: impl Fn(&Pair) -> bool, is_left_over: impl Fn(&Left) -> bool) {
        let mut said = self.shared.said();
        said.pairs.retain(|pair| !is_over(pair));
        said.left.retain(|left| !is_left_over(left));
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
        // Each has its connections reset, by the threads that have the sockets.
        let links = mem::take(&mut *self.shared.links.write().unwrap_or_else(PoisonError::into_inner));
        let has_links = !links.is_empty();
        drop(links);
        if has_links {
            thread::sleep(RESETS_WITHIN);
        }
        for client in self.shared.clients().all.values() {
            let _ = shutdown(&client.socket, Shutdown::Both);
        }
    }
}

fn accepts(listener: &Listener, shared: &Arc<Shared>) {
    while !shared.is_over.load(Ordering::Relaxed) {
        match listener.accept(Wait::Forever) {
            Ok(Some(socket)) => {
                // One that is sent away sees the end of its connection.
                if let Some(client) = shared.enters(socket) {
                    let (of_thread, number) = (Arc::clone(shared), client.number);
                    let serve = move || {
                        let mut held = Holds::default();
                        of_thread.serve(&client, &mut held);
                        client.empties();
                        of_thread.leaves(number);
                        of_thread.lingers(&client, held);
                    };
                    if thread::Builder::new().name("rack-client".into()).spawn(serve).is_err() {
                        shared.leaves(number);
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

    fn said(&self) -> MutexGuard<'_, seen::Seen> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A program has connected; none if there are too many, its user is not served, or nobody knows whose it is.
    fn enters(&self, socket: OwnedFd) -> Option<Arc<Client>> {
        let entered = self.admits(socket);
        if entered.is_none() {
            self.said().counts.sent_away += 1;
        }
        entered
    }

    fn admits(&self, socket: OwnedFd) -> Option<Arc<Client>> {
        let Peer { pid, uid, .. } = peer(&socket).ok()?;
        let bell = Arc::new(Bell::new().ok()?);
        let mut clients = self.clients();
        let of_user = clients.all.values().filter(|client| client.program.uid == uid).count();
        let is_full = clients.all.len() >= self.bounds.clients || of_user >= self.bounds.clients_of_user;
        if is_full || !self.access.users.has(uid) {
            return None;
        }
        clients.last += 1;
        let program = Program { pid, uid };
        let client = Arc::new(Client { number: clients.last, program, socket, bell, to_do: Mutex::default() });
        clients.all.insert(client.number, Arc::clone(&client));
        Some(client)
    }

    fn leaves(&self, client: u64) {
        let kept = {
            let mut pairs = self.pairs();
            let kept = pairs.gone(client);
            kept.iter().for_each(|kept| self.remembers(kept.cookie, kept.end, kept.seen.syn));
            kept
        };
        self.links(|link| link.left(client));
        self.clients().all.remove(&client);
        kept.into_iter().for_each(Kept::release);
    }

    /// A program takes a question back.
    fn cancels(&self, client: &Client, id: u32, held: &mut Holds) {
        let kept = {
            let mut pairs = self.pairs();
            let kept = pairs.cancel(client.number, id);
            kept.inspect(|kept| self.remembers(kept.cookie, kept.end, kept.seen.syn))
        };
        if let Some(kept) = kept {
            self.links(|link| link.withdraws(client.number, id));
            self.said().left(kept.left(Why::TakenBack));
            kept.release();
        } else {
            held.cancels(id);
        }
    }

    /// Whoever still has the socket of a question that waits no more may ask again. Before others see that it does not wait.
    fn remembers(&self, cookie: u64, end: TcpEnd, syn: Option<u32>) {
        let has_memory = self.known(cookie, end).is_some_and(|known| known.memory.is_some());
        if syn.is_some() && !has_memory {
            self.knows(cookie, Known { end, syn, memory: None });
        }
    }

    /// What is known of a socket as this end.
    fn known(&self, cookie: u64, end: TcpEnd) -> Option<Known> {
        self.lately().get(Instant::now(), cookie).filter(|known| known.end == end).cloned()
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
            // One that is known again is known for the whole time.
            let wait = lately.until().map(|until| until.saturating_duration_since(Instant::now()).max(KNOWN_FOR / 8));
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

    fn links(&self, each: impl FnMut(&Proxy)) {
        self.links.read().unwrap_or_else(PoisonError::into_inner).iter().for_each(each);
    }

    /// Whether the other end may be another host's that there is a link to. With an address of this host's own it is not: the other host
    /// is to have no part in that, whatever networks it is said to have.
    fn is_elsewhere(&self, end: &TcpEnd) -> bool {
        let mut is_linked = false;
        self.links(|link| is_linked |= link.is_for(ends_of(*end)));
        let peer = end.peer.ip();
        is_linked
            && Some(end.netns) == self.netns
            && (peer.is_loopback() || any_address(|own| own == peer).is_ok_and(|is_own| !is_own))
    }

    /// Answers a program until it ends, or says what is no question. `held`: its connections to other hosts.
    fn serve(&self, client: &Arc<Client>, held: &mut Holds) {
        let (mut looked, mut rung) = (Instant::now(), Vec::new());
        loop {
            let is_waited_for = !held.is_empty();
            let Ok([is_rung, has_come]) = client.waits(is_waited_for.then_some(TAKES_WITHIN), true) else { return };
            if is_waited_for && looked.elapsed() >= TAKES_WITHIN {
                looked = Instant::now();
                held.looks();
                held.serves_all(self.guard.get());
            }
            if is_rung {
                // First who has rung: nobody does of whom it is not to be done already that it was given.
                client.bell.takes(&mut rung);
                let ToDo { looks, answers, replaced, given } = client.takes();
                for (id, given) in given {
                    self.gives(client, id, given, held);
                }
                held.serves(&rung);
                looks.into_iter().for_each(|id| self.looks(client, id));
                answers.into_iter().for_each(|(id, outcome)| self.answers(client, id, outcome));
                for (id, socket) in replaced {
                    lets_go(&socket);
                    drop(socket);
                    client.tell(id, Err(Refused::Twice));
                }
            }
            if !has_come {
                continue;
            }
            let Ok(Some(received)) = receive(&client.socket, ASKED_FDS_MAX) else { return };
            match Request::read(received.bytes()) {
                Ok(Request::Ask { id }) => self.ask(client, id, received.fds.into_iter().next()),
                Ok(Request::Cancel { id }) => self.cancels(client, id, held),
                Err(_) => return,
            }
        }
    }

    /// Its program has ended: its connections to other hosts are kept until all of them is carried, and longer while others have them that it
    /// has forked.
    fn lingers(&self, client: &Client, mut held: Holds) {
        while !held.is_empty() {
            let waits = if held.are_left() { FORGETS_AFTER } else { LOOKS_EVERY };
            let Ok(_) = client.waits(Some(waits), false) else { return };
            client.bell.takes(&mut Vec::new());
            let given = client.takes().given;
            // None of them is asked for any more.
            drop(given);
            held.serves_all(self.guard.get());
        }
    }

    /// A connection goes to another host: its program is given memory, unless it has taken its question back, or has been answered.
    fn gives(&self, client: &Client, id: u32, mut given: Given, held: &mut Holds) {
        let kept = {
            let mut pairs = self.pairs();
            let Some(kept) = pairs.cancel_unanswered(client.number, id) else { return };
            self.remembers(kept.cookie, kept.end, kept.seen.syn);
            kept
        };
        self.links(|link| link.withdraws(client.number, id));
        if !is_established(&*kept.socket).unwrap_or(false) {
            self.said().left(kept.left(Why::Refused(Refused::Socket)));
            kept.release();
            return client.tell(id, Err(Refused::Socket));
        }
        let memory = rustix::fs::fstat(&given.of_program).map_or(0, |stat| stat.st_ino);
        // The proxy has the first part.
        let (is_client_first, at, own) = (kept.seen.syn.is_some(), Instant::now(), client.program);
        let (end, [client_is, server]) = match kept.seen.syn {
            None => (kept.end, [own, Program::ELSEWHERE]),
            Some(_) => (kept.end.other(), [Program::ELSEWHERE, own]),
        };
        self.said().paired(Pair { end, client: client_is, server, is_client_first, memory, at });
        // Before the program can go over: this process may be killed between the two.
        if let Some(one) = given.held(id, kept.socket) {
            held.adds(one, self.guard.get());
        }
        client.sends(&Answer::Paired { id, is_first: false }, Some(&given.of_program));
    }

    fn ask(&self, client: &Arc<Client>, id: u32, socket: Option<OwnedFd>) {
        self.said().counts.asked += 1;
        let program = client.program;
        let refuse = |why, end| {
            self.said().left(Left { program, end, why: Why::Refused(why), at: Instant::now() });
            client.tell(id, Err(why));
        };
        let found = socket.and_then(|socket| Some((TcpEnd::of(&socket).ok()?, cookie(&socket).ok()?, socket)));
        let Some((end, cookie, socket)) = found else { return refuse(Refused::Socket, None) };
        if !self.access.has(&end) {
            drop(socket);
            return refuse(Refused::Network, Some(end));
        }
        // The kernel gives it once.
        let syn = syn_stamp(&socket).ok().flatten();
        let seen = Seen { syn, stamp: stamp_now(&socket).ok() };
        let is_elsewhere = self.is_elsewhere(&end);
        let (socket, since) = (Arc::new(socket), Instant::now());
        let mut kept = Kept { socket, cookie, seen, client: Arc::clone(client), end, since };
        let asker = Asker { client: client.number, id, uid: program.uid };
        let (before, asked) = {
            let mut pairs = self.pairs();
            // Behind the lock of those who make it known.
            let known = self.known(cookie, end);
            if let Some(memory) = known.as_ref().and_then(|known| known.memory.clone()) {
                drop(pairs);
                kept.release();
                self.said().goes_over(end, program);
                return client.tell(id, Ok(memory));
            }
            kept.seen.syn = kept.seen.syn.or(known.and_then(|known| known.syn));
            let before =
                pairs.make_room(end, client.number, |former| former.client.to_do().replaced.len() < REPLACED_MAX);
            if let Some(before) = before.as_ref().filter(|before| before.kept.cookie == cookie) {
                kept.seen.syn = kept.seen.syn.or(before.kept.seen.syn);
            }
            let seen = kept.seen;
            let asked = pairs.ask(end, asker, kept);
            // Before another program can have its question withdrawn.
            if matches!(asked, Asked::Waits) && is_elsewhere {
                self.links(|link| link.offers(asker, ends_of(end), seen));
            }
            (before, asked)
        };
        if let Some(before) = &before {
            self.links(|link| link.withdraws(before.asker.client, before.asker.id));
        }
        match asked {
            Asked::Waits => {}
            Asked::Met(_) => self.has_met(client.number, id),
            Asked::Refused(why, kept) => {
                kept.release();
                refuse(why, Some(end));
            }
        }
        let Some(before) = before else { return };
        let Kept { socket, client: former, .. } = before.kept;
        former.is_to(|to_do| to_do.replaced.push((before.asker.id, socket)));
    }

    /// The other end has asked before.
    fn has_met(&self, client: u64, id: u32) {
        let other = self.pairs().pair(client, id).map(|[_, other]| (Arc::clone(&other.kept.client), other.asker.id));
        if let Some((client, id)) = other {
            client.is_to(|to_do| _ = to_do.looks.insert(id));
        }
    }

    /// The other end of a question has asked, too, and its socket stood then.
    fn looks(&self, client: &Client, id: u32) {
        let pair = self.pairs().pair(client.number, id).map(|[own, other]| {
            let of_other = (other.asker, other.kept.seen, Arc::clone(&other.kept.client));
            let cookies = [own.kept.cookie, other.kept.cookie];
            ((own.asker, own.kept.seen, Arc::clone(&own.kept.socket), own.kept.end), of_other, cookies)
        });
        let Some(((asker, own, socket, end), (other_asker, other_seen, other), cookies)) = pair else { return };
        if !is_established(&*socket).unwrap_or(false) {
            drop(socket);
            // It has ended since it asked, and the other one is of another connection with its addresses: that one waits on.
            return self.answers(client, id, Err(Refused::Socket));
        }
        // It has stood since before the other one was asked about: the two stood at once.
        let own = Seen { stamp: stamp_now(&*socket).ok(), ..own };
        drop(socket);
        let memory = match own.is_one_with(other_seen) {
            false => Err(Refused::Unproven),
            true => ShmWindow::<WORDS>::pair_and_descriptor()
                .map(|(_, memory)| Arc::new(memory))
                .map_err(|_| Refused::Memory),
        };
        let outcome = |is_first| memory.clone().map(|memory| (memory, is_first));
        let (ends, syns) = ([end, end.other()], [own.syn, other_seen.syn]);
        {
            // Another program that has one of the sockets may ask at any time: it finds a question that waits, or what was answered.
            let mut pairs = self.pairs();
            if !pairs.answers(asker, other_asker) {
                // One of them was taken back; the next one that asks is told.
                return [0, 1].into_iter().for_each(|at| self.remembers(cookies[at], ends[at], syns[at]));
            }
            for (at, is_first) in [true, false].into_iter().enumerate() {
                self.knows(cookies[at], Known { end: ends[at], syn: syns[at], memory: outcome(is_first).ok() });
            }
        }
        if let Ok(memory) = &memory {
            // Without a number it is only not found in the maps of its programs.
            let memory = rustix::fs::fstat(memory).map_or(0, |stat| stat.st_ino);
            let (is_client_first, at) = (own.syn.is_none(), Instant::now());
            let (end, client, server) = match is_client_first {
                true => (end, client.program, other.program),
                false => (end.other(), other.program, client.program),
            };
            self.said().paired(Pair { end, client, server, is_client_first, memory, at });
        }
        other.is_to(|to_do| to_do.answers.push((other_asker.id, outcome(false))));
        self.answers(client, id, outcome(true));
    }

    /// Neither end uses the memory before the other one has said, within it, that it has it. So it is no harm if only one gets it.
    fn answers(&self, client: &Client, id: u32, outcome: Outcome) {
        let kept = self.pairs().cancel(client.number, id);
        if let Some(kept) = kept {
            self.links(|link| link.withdraws(client.number, id));
            if let Err(why) = &outcome {
                self.said().left(kept.left(Why::Refused(*why)));
            }
            kept.release();
            client.tell(id, outcome);
        }
    }
}

impl Client {
    /// Waits until there is something to do, or, if it `hears`, something has come; or for a time.
    fn waits(&self, within: Option<Duration>, hears: bool) -> Result<[bool; 2], Errno> {
        let mut fds = [self.bell.as_fd(), self.socket.as_fd()].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let fds = &mut fds[..1 + usize::from(hears)];
        let within: Option<Timespec> = within.and_then(|within| within.try_into().ok());
        loop {
            match poll(fds, within.as_ref()) {
                Err(Errno::INTR) => {}
                ready => return ready.map(|_| [0, 1].map(|at| fds.get(at).is_some_and(|fd| !fd.revents().is_empty()))),
            }
        }
    }

    /// It is served no more: what it has sent is closed by its own thread, which may not be the last one to let its connection go.
    fn empties(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
        // An empty message looks like the end.
        for _ in 0..UNREAD_MAX {
            if matches!(receive(&self.socket, ASKED_FDS_MAX), Err(ReceiveError::Kernel(_))) {
                return;
            }
        }
    }

    fn to_do(&self) -> MutexGuard<'_, ToDo> {
        self.to_do.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_to(&self, what: impl FnOnce(&mut ToDo)) {
        what(&mut self.to_do());
        self.bell.rings();
    }

    fn takes(&self) -> ToDo {
        mem::take(&mut self.to_do())
    }

    /// One that does not read its answers goes on by TCP.
    fn tell(&self, id: u32, outcome: Outcome) {
        match outcome {
            Ok((memory, is_first)) => self.sends(&Answer::Paired { id, is_first }, Some(&memory)),
            Err(why) => self.sends(&Answer::Refused { id, why }, None),
        }
    }

    fn sends(&self, answer: &Answer, memory: Option<&OwnedFd>) {
        let _ = send(&self.socket, &answer.write(), memory.map(AsFd::as_fd).as_slice());
    }
}

/// Has memory given to programs, as long as there is the monitor.
struct Gives(Weak<Shared>);

impl Programs for Gives {
    fn gives(&self, asker: Asker, reads_ring: bool) -> Option<Carried> {
        let shared = self.0.upgrade()?;
        let client = Arc::clone(shared.clients().all.get(&asker.client)?);
        let given = Given::new(&client.bell, reads_ring).ok()?;
        let carried = given.carried();
        client.is_to(|to_do| to_do.given.push((asker.id, given)));
        Some(carried)
    }
}

fn own_netns() -> Option<u64> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).ok()?;
    netns(socket).ok()
}

fn ends_of(end: TcpEnd) -> Ends {
    Ends { local: end.local, peer: end.peer }
}

impl Kept {
    /// It stays with TCP.
    fn left(&self, why: Why) -> Left {
        Left { program: self.client.program, end: Some(self.end), why, at: Instant::now() }
    }

    /// Closes the socket, without a wait if this is the last one who has it.
    fn release(self) {
        lets_go(&self.socket);
    }
}
