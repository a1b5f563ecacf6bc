// SPDX-License-Identifier: Apache-2.0
//! The proxy of a host: the threads by which a [`crate::link`] is carried.
//!
//! One thread keeps the link and has ends find each other. Each partition has one that sends and receives in turn, or one for each direction
//! (NTSocks §4.2, SP1C and SP2C).
//!
//! Nobody wakes them, as nothing could through a bridge. They look without a pause for [`BUSY`] after the last thing that came, giving the core
//! to others between, and then sleep longer and longer, [`NAP_MAX`] at most; or never, if they are asked for that ([`Settings::is_busy`]).

mod idle;

use std::{
    collections::VecDeque,
    io,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{
    link::{
        App, CONNECTIONS_MAX, Cut, Layout, Slices, Turn, Unfit,
        offers::{Ends, Host, Network, Offers},
        rx::{Gets, Moves, Rx},
        session::{self, Lost, Session},
        tx::{Sends, Tx},
    },
    meet::{Asker, Seen, carried::Carried},
    window::Window,
};

pub use idle::{BUSY, NAP_MAX};

/// How long the thread that keeps the link sleeps between two looks.
const KEEPS_EVERY: Duration = Duration::from_micros(500);
/// Before the next try to open a window that is not there.
const OPENS_AGAIN: Duration = Duration::from_millis(100);
/// How often connections are spread anew, and by how many bytes in that time two partitions have to differ.
const BALANCED_EVERY: Duration = Duration::from_millis(100);
const BALANCED_MIN: u64 = 1 << 20;
/// Ends that were told to the link and not yet seen by its thread. Further ones stay with TCP.
const REQUESTS_MAX: usize = 65_536;
/// Those that its thread sees before it looks at the link again.
const REQUESTS_OF_TURN: usize = 32;

/// How a link is carried.
#[derive(Debug, Clone)]
pub struct Settings {
    /// For people.
    pub name: String,
    /// Addresses of the other host.
    pub networks: Vec<Network>,
    pub partitions: usize,
    /// A thread for each direction of a partition.
    pub has_two_threads: bool,
    /// It never sleeps.
    pub is_busy: bool,
    pub slices: Slices,
    /// The link is lost after so long a silence.
    pub lost_after: Duration,
}

/// Who has the programs.
pub trait Programs: Send + Sync {
    /// As [`Host::gives`].
    fn gives(&self, asker: Asker, reads_ring: bool) -> Option<Carried>;
}

/// What is to be seen of a link.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub name: String,
    pub is_up: bool,
    /// Why it does not stand.
    pub why: Option<String>,
    /// How often it has risen.
    pub rises: u64,
    /// Ends of this host that wait for others.
    pub waiting: usize,
    pub partitions: Vec<PartitionView>,
}

#[derive(Debug, Clone, Copy, Default)]
pub struct PartitionView {
    pub connections: usize,
    /// Since the link stands.
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

#[derive(Debug)]
enum Request {
    Offer { asker: Asker, ends: Ends, seen: Seen },
    Withdraw { client: u64, id: u32 },
    Left { client: u64 },
}

/// A link that is carried. Dropped, its connections are reset.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    settings: Settings,
    is_over: AtomicBool,
    requests: Mutex<VecDeque<Request>>,
    partitions: Vec<Arc<Carries>>,
    view: Mutex<(Option<String>, u64, usize)>,
    is_up: AtomicBool,
}

/// What the thread that keeps the link, and those of a partition, tell each other.
#[derive(Debug, Default)]
struct Carries {
    /// For each thread.
    threads: Vec<Inbox>,
    /// Connections, as its sender has them, and those that it is about to have.
    connections: AtomicUsize,
    sent: AtomicU64,
    received: AtomicU64,
    cut: Mutex<Option<Cut>>,
    is_cut: AtomicBool,
    /// How often it was counted what connections send.
    counted: AtomicU64,
    /// One that has sent at most so many bytes lately is to go on in another partition.
    moves: Mutex<Option<(usize, u64)>>,
}

#[derive(Debug, Default)]
struct Inbox {
    /// New connections, with their sessions.
    new: Mutex<Vec<(u64, u32, Carried)>>,
    /// How many were put there since the beginning, and taken.
    put: AtomicU64,
    taken: AtomicU64,
    /// The session that it is to carry, and the one that it does; 0: none.
    session: AtomicU64,
    carries: AtomicU64,
    is_changed: (Mutex<()>, Condvar),
    /// Connections that come from other partitions.
    sends: Mutex<Vec<Sends<Carried>>>,
    gets: Mutex<Vec<Gets<Carried>>>,
    has_moved: AtomicBool,
}

/// What a session has.
#[derive(Debug)]
struct Stands<W> {
    window: Arc<W>,
    layout: Layout,
    keys: [u64; 2],
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Proxy {
    /// Carries a link. `opens`: its window, which is opened again after it was cut. `key`: a random number, another one each time.
    ///
    /// # Errors
    /// [`Unfit`] settings, as `InvalidInput`; the kernel's.
    pub fn start<W: Window + Send + Sync + 'static>(
        settings: Settings,
        programs: Arc<dyn Programs>,
        opens: impl FnMut() -> io::Result<W> + Send + 'static,
        key: impl FnMut() -> u64 + Send + 'static,
    ) -> io::Result<Self> {
        Layout::new(usize::MAX / 2, settings.partitions)
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidInput, why))?;
        let each = 1 + usize::from(settings.has_two_threads);
        let carries = || Carries { threads: (0..each).map(|_| Inbox::default()).collect(), ..Carries::default() };
        let partitions = (0..settings.partitions).map(|_| Arc::new(carries())).collect();
        let shared = Arc::new(Shared {
            settings,
            is_over: AtomicBool::new(false),
            requests: Mutex::default(),
            partitions,
            view: Mutex::default(),
            is_up: AtomicBool::new(false),
        });
        let mut proxy = Self { shared: Arc::clone(&shared), threads: Vec::new() };
        let stands = Arc::new(Mutex::new(None::<Arc<Stands<W>>>));
        for number in 0..shared.partitions.len() {
            for thread in 0..each {
                let (shared, stands) = (Arc::clone(&shared), Arc::clone(&stands));
                let which = if each == 1 { Which::Both } else { [Which::Tx, Which::Rx][thread] };
                let carry = move || Carrier { shared: &shared, number, thread, which }.runs(&stands);
                proxy.threads.push(thread::Builder::new().name(format!("rack-link-{number}")).spawn(carry)?);
            }
        }
        let keeper = Keeper { shared, programs, stands, session: 0 };
        proxy.threads.push(thread::Builder::new().name("rack-link".into()).spawn(move || keeper.runs(opens, key))?);
        Ok(proxy)
    }

    /// Addresses of the other host.
    #[must_use]
    pub fn networks(&self) -> &[Network] {
        &self.shared.settings.networks
    }

    /// Whether an end with this peer is for this link.
    #[must_use]
    pub fn is_for(&self, ends: Ends) -> bool {
        self.shared.settings.networks.iter().any(|network| network.has_of_other(ends.peer.ip()))
    }

    /// An end waits for the other one.
    pub fn offers(&self, asker: Asker, ends: Ends, seen: Seen) {
        if self.is_for(ends) {
            self.asks(Request::Offer { asker, ends, seen });
        }
    }

    /// It waits no more.
    pub fn withdraws(&self, client: u64, id: u32) {
        self.asks(Request::Withdraw { client, id });
    }

    /// A program has ended.
    pub fn left(&self, client: u64) {
        self.asks(Request::Left { client });
    }

    fn asks(&self, request: Request) {
        let mut requests = locked(&self.shared.requests);
        // What is taken back is never forgotten: it is no more than what was offered.
        if requests.len() < REQUESTS_MAX || !matches!(request, Request::Offer { .. }) {
            requests.push_back(request);
        }
    }

    #[must_use]
    pub fn view(&self) -> View {
        let shared = &self.shared;
        let (why, rises, waiting) = locked(&shared.view).clone();
        let partition = |carries: &Arc<Carries>| PartitionView {
            connections: carries.connections.load(Ordering::Relaxed),
            sent_bytes: carries.sent.load(Ordering::Relaxed),
            received_bytes: carries.received.load(Ordering::Relaxed),
        };
        let (name, is_up) = (shared.settings.name.clone(), shared.is_up.load(Ordering::Relaxed));
        View { name, is_up, why, rises, waiting, partitions: shared.partitions.iter().map(partition).collect() }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        for inbox in self.shared.inboxes() {
            inbox.changes();
        }
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

impl Shared {
    fn inboxes(&self) -> impl Iterator<Item = &Inbox> {
        self.partitions.iter().flat_map(|carries| &carries.threads)
    }
}

impl Inbox {
    fn changes(&self) {
        drop(locked(&self.is_changed.0));
        self.is_changed.1.notify_all();
    }
}

/// The thread that keeps the link.
struct Keeper<W> {
    shared: Arc<Shared>,
    programs: Arc<dyn Programs>,
    stands: Arc<Mutex<Option<Arc<Stands<W>>>>>,
    session: u64,
}

/// What [`Offers`] decides is done by these.
struct Does<'a> {
    shared: &'a Shared,
    programs: &'a dyn Programs,
}

impl Host for Does<'_> {
    type App = Carried;

    fn gives(&mut self, asker: Asker, reads_ring: bool) -> Option<Carried> {
        self.programs.gives(asker, reads_ring)
    }

    fn carries(&mut self, partition: usize, connection: u32, app: &Carried) -> Option<u64> {
        let load: usize = (0..self.shared.partitions.len()).map(|partition| self.load(partition)).sum();
        if load >= CONNECTIONS_MAX {
            return None;
        }
        let carries = &self.shared.partitions[partition];
        carries.connections.fetch_add(1, Ordering::Relaxed);
        let put = |inbox: &Inbox| {
            let mut new = locked(&inbox.new);
            new.push((inbox.session.load(Ordering::Relaxed), connection, app.clone()));
            inbox.put.fetch_add(1, Ordering::Release) + 1
        };
        // All threads of a partition have as many.
        carries.threads.iter().map(put).last()
    }

    fn has_taken(&self, partition: usize, request: u64) -> bool {
        let threads = &self.shared.partitions[partition].threads;
        threads.iter().all(|inbox| inbox.taken.load(Ordering::Acquire) >= request)
    }

    fn is_full(&self) -> bool {
        (0..self.shared.partitions.len()).map(|partition| self.load(partition)).sum::<usize>() >= CONNECTIONS_MAX
    }

    fn load(&self, partition: usize) -> usize {
        self.shared.partitions[partition].connections.load(Ordering::Relaxed)
    }
}

impl<W: Window + Send + Sync> Keeper<W> {
    fn runs(mut self, mut opens: impl FnMut() -> io::Result<W>, mut key: impl FnMut() -> u64) {
        let (shared, programs) = (Arc::clone(&self.shared), Arc::clone(&self.programs));
        let mut does = Does { shared: &shared, programs: &*programs };
        let mut offers = Offers::new(shared.settings.networks.clone());
        let begun = Instant::now();
        while !shared.is_over.load(Ordering::Relaxed) {
            let opened = opens().and_then(|window| {
                let layout = Layout::new(window.len(), shared.settings.partitions);
                layout
                    .map(|layout| (window, layout))
                    .map_err(|why: Unfit| io::Error::new(io::ErrorKind::InvalidInput, why))
            });
            match opened {
                Ok((window, layout)) => {
                    self.keeps(&Arc::new(window), layout, &mut offers, &mut does, begun, &mut key);
                    // Where somebody takes it away again and again, not faster than that.
                    if !shared.is_over.load(Ordering::Relaxed) {
                        thread::sleep(OPENS_AGAIN);
                    }
                }
                Err(why) => {
                    self.says(Some(why.to_string()), &offers);
                    self.hears(&mut offers, &mut does);
                    thread::sleep(OPENS_AGAIN);
                }
            }
        }
    }

    fn says(&self, why: Option<String>, offers: &Offers<Does<'_>>) {
        let mut view = locked(&self.shared.view);
        view.0 = why;
        view.2 = offers.len();
    }

    fn hears<'a>(&self, offers: &mut Offers<Does<'a>>, does: &mut Does<'a>) {
        for _ in 0..REQUESTS_OF_TURN {
            let Some(request) = locked(&self.shared.requests).pop_front() else { return };
            match request {
                Request::Offer { asker, ends, seen } => offers.offers(asker, ends, seen, does),
                Request::Withdraw { client, id } => offers.withdraws(client, id),
                Request::Left { client } => offers.left(client),
            }
        }
    }

    /// Keeps the link until its window is cut.
    fn keeps<'a>(
        &mut self,
        window: &Arc<W>,
        layout: Layout,
        offers: &mut Offers<Does<'a>>,
        does: &mut Does<'a>,
        begun: Instant,
        key: &mut impl FnMut() -> u64,
    ) {
        let shared = Arc::clone(&self.shared);
        let mut session = Session::new(layout, shared.settings.lost_after, key());
        let mut balance = Balance::default();
        let mut why = Some("waits for the other host's proxy".to_owned());
        while !shared.is_over.load(Ordering::Relaxed) {
            self.hears(offers, does);
            let mut turn = match window.is_cut() {
                true => session.falls(&**window, Lost::Gone, key()),
                false => session.turn(&**window, begun.elapsed(), &mut *key),
            };
            if turn == session::Turn::Up {
                let cut = shared.partitions.iter().find(|carries| carries.is_cut.load(Ordering::Acquire));
                let cut = cut.and_then(|carries| *locked(&carries.cut));
                let result = cut.map_or_else(|| offers.turn(&**window, layout.partitions(), does), Err);
                if let Err(cut) = result {
                    turn = session.falls(&**window, Lost::Cut(cut), key());
                }
            }
            match turn {
                session::Turn::Rises(keys) => {
                    offers.rises(&**window, layout, keys);
                    let stands = Stands { window: Arc::clone(window), layout, keys };
                    *locked(&self.stands) = Some(Arc::new(stands));
                    self.session += 1;
                    self.changes(self.session);
                    why = None;
                    locked(&shared.view).1 += 1;
                    shared.is_up.store(true, Ordering::Relaxed);
                }
                session::Turn::Falls(lost) => {
                    shared.is_up.store(false, Ordering::Relaxed);
                    self.stops();
                    offers.falls();
                    why = Some(format!("lost: {lost}"));
                    if lost == Lost::Gone {
                        self.says(why, offers);
                        return;
                    }
                }
                session::Turn::Down => {
                    if let Some((partitions, bytes)) = session.differs(&**window) {
                        let (own, len) = (layout.partitions(), window.len());
                        why = Some(format!(
                            "the other host's proxy has {partitions} partitions of {bytes} bytes, and this one {own} of {len}: say the same to both"
                        ));
                    }
                }
                session::Turn::Up => {}
            }
            if session.is_up() {
                balance.turn(&shared, begun.elapsed());
            }
            self.says(why.clone(), offers);
            thread::sleep(KEEPS_EVERY);
        }
        // The other one sees it at once.
        session.falls(&**window, Lost::Anew, key());
        self.stops();
        offers.falls();
    }

    /// Has all threads carry a session.
    fn changes(&self, session: u64) {
        for inbox in self.shared.inboxes() {
            inbox.session.store(session, Ordering::Release);
            inbox.changes();
        }
    }

    /// Waits until nothing is carried any more.
    fn stops(&self) {
        self.changes(0);
        for inbox in self.shared.inboxes() {
            while inbox.carries.load(Ordering::Acquire) != 0
                || inbox.taken.load(Ordering::Acquire) != inbox.put.load(Ordering::Acquire)
            {
                inbox.changes();
                thread::sleep(Duration::from_micros(50));
            }
        }
        *locked(&self.stands) = None;
        for carries in &self.shared.partitions {
            for inbox in &carries.threads {
                locked(&inbox.sends).drain(..).for_each(|sends| sends.resets());
                locked(&inbox.gets).drain(..).for_each(|gets| gets.resets());
            }
            *locked(&carries.moves) = None;
            carries.connections.store(0, Ordering::Relaxed);
            carries.is_cut.store(false, Ordering::Release);
            *locked(&carries.cut) = None;
        }
    }
}

/// Has connections go from a partition that sends much to one that sends less (NTSocks §4.3).
#[derive(Debug, Default)]
struct Balance {
    sent: Vec<u64>,
    next: Duration,
}

impl Balance {
    fn turn(&mut self, shared: &Shared, now: Duration) {
        if shared.partitions.len() < 2 || now < self.next {
            return;
        }
        self.next = now + BALANCED_EVERY;
        let sent: Vec<u64> = shared.partitions.iter().map(|of| of.sent.load(Ordering::Relaxed)).collect();
        // In another session they were others.
        let lately = |(at, now): (usize, &u64)| now.saturating_sub(self.sent.get(at).copied().unwrap_or(*now));
        let lately: Vec<u64> = sent.iter().enumerate().map(lately).collect();
        self.sent = sent;
        for carries in &shared.partitions {
            carries.counted.fetch_add(1, Ordering::Release);
        }
        let by = |at: &usize| lately[*at];
        let (Some(most), Some(least)) = ((0..lately.len()).max_by_key(by), (0..lately.len()).min_by_key(by)) else {
            return;
        };
        let difference = lately[most] - lately[least];
        if difference > BALANCED_MIN && difference > lately[most] / 2 {
            *locked(&shared.partitions[most].moves) = Some((least, difference - difference / 4));
        }
    }
}

/// What a thread of a partition does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Both,
    Tx,
    Rx,
}

struct Carrier<'a> {
    shared: &'a Shared,
    number: usize,
    thread: usize,
    which: Which,
}

impl Carrier<'_> {
    fn runs<W: Window>(&self, stands: &Mutex<Option<Arc<Stands<W>>>>) {
        let inbox = &self.shared.partitions[self.number].threads[self.thread];
        // What it sleeps for is a few microseconds.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1_000));
        loop {
            let is_over = self.shared.is_over.load(Ordering::Relaxed);
            let session = inbox.session.load(Ordering::Acquire);
            self.takes(None, |_, _| {});
            if session == 0 {
                if is_over && inbox.put.load(Ordering::Acquire) == inbox.taken.load(Ordering::Relaxed) {
                    return;
                }
                let nothing = locked(&inbox.is_changed.0);
                let _ = inbox.is_changed.1.wait_timeout(nothing, Duration::from_millis(50));
                continue;
            }
            let stands = locked(stands).clone();
            if let Some(stands) = stands {
                inbox.carries.store(session, Ordering::Release);
                self.carries(&stands, session);
                inbox.carries.store(0, Ordering::Release);
            }
        }
    }

    /// Takes new connections, if there are any: of the session that it carries, and gives up those of former ones.
    fn takes(&self, carried: Option<u64>, mut adds: impl FnMut(u32, Carried)) {
        let inbox = &self.shared.partitions[self.number].threads[self.thread];
        if inbox.put.load(Ordering::Acquire) == inbox.taken.load(Ordering::Relaxed) {
            return;
        }
        // Who puts more there is done soon, or it is seen in the next turn.
        let Ok(mut new) = inbox.new.try_lock() else { return };
        // It is set before the first of a session is put there.
        let now = inbox.session.load(Ordering::Acquire);
        new.retain(|(session, connection, app)| {
            match *session == now {
                true if carried == Some(now) => adds(*connection, app.clone()),
                true => return true,
                false => app.resets(),
            }
            inbox.taken.fetch_add(1, Ordering::Release);
            false
        });
    }

    /// Carries a session until it ends.
    fn carries<W: Window>(&self, stands: &Stands<W>, session: u64) {
        let carries = &self.shared.partitions[self.number];
        let inbox = &carries.threads[self.thread];
        let (link, place) = (&*stands.window, stands.layout.partition(self.number));
        let number = u32::try_from(self.number).unwrap_or(u32::MAX);
        let slices = self.shared.settings.slices;
        let mut tx = (self.which != Which::Rx).then(|| Tx::new(link, place, number, stands.keys, slices));
        let mut rx = (self.which != Which::Tx).then(|| Rx::new(link, place, number, stands.keys));
        let mut idle = idle::Idle::new(self.shared.settings.is_busy);
        let mut counted = 0;
        while inbox.session.load(Ordering::Acquire) == session {
            self.takes(Some(session), |connection, carried| {
                if let Some(tx) = &mut tx {
                    tx.adds(connection, carried.clone());
                }
                if let Some(rx) = &mut rx {
                    rx.adds(connection, carried);
                }
            });
            let mut moves = Gives { carrier: self, session };
            let sent = tx.as_mut().map_or(Ok(Turn::Idle), |tx| {
                moves.balances(tx, &mut counted);
                let (before, sent) = (tx.len(), tx.turn(link, |to, sends| moves.gives_sender(to, sends)));
                carries.connections.fetch_sub(before - tx.len(), Ordering::Relaxed);
                carries.sent.store(tx.carried(), Ordering::Relaxed);
                sent
            });
            let received = rx.as_mut().map_or(Ok(Turn::Idle), |rx| {
                let received = rx.turn(link, &mut moves);
                carries.received.store(rx.carried(), Ordering::Relaxed);
                received
            });
            match (sent, received) {
                (Ok(sent), Ok(received)) => idle.turn(sent.and(received)),
                (Err(cut), _) | (_, Err(cut)) => {
                    *locked(&carries.cut) = Some(cut);
                    carries.is_cut.store(true, Ordering::Release);
                    // The thread that keeps the link ends the session.
                    while inbox.session.load(Ordering::Acquire) == session {
                        thread::sleep(KEEPS_EVERY);
                    }
                }
            }
        }
        if let Some(tx) = &mut tx {
            tx.resets();
        }
        if let Some(rx) = &mut rx {
            rx.resets();
        }
    }
}

/// Connections of a thread that go to other partitions, and come from them.
struct Gives<'a> {
    carrier: &'a Carrier<'a>,
    session: u64,
}

impl Gives<'_> {
    /// The thread of a partition that sends, or receives.
    fn inbox(&self, partition: usize, which: Which) -> Option<&Inbox> {
        let threads = &self.carrier.shared.partitions.get(partition)?.threads;
        if which == Which::Rx { threads.last() } else { threads.first() }
    }

    fn own(&self) -> &Inbox {
        &self.carrier.shared.partitions[self.carrier.number].threads[self.carrier.thread]
    }

    /// Counts what connections send, has one move if that is asked for, and takes those that have come.
    fn balances(&self, tx: &mut Tx<Carried>, counted: &mut u64) {
        let (carries, own) = (&self.carrier.shared.partitions[self.carrier.number], self.own());
        let now = carries.counted.load(Ordering::Acquire);
        if now != *counted {
            *counted = now;
            tx.counts();
            if let Ok(mut moves) = carries.moves.try_lock()
                && let Some((to, bytes)) = moves.take()
            {
                tx.moves(to, bytes);
            }
        }
        if own.has_moved.load(Ordering::Acquire)
            && let Ok(mut sends) = own.sends.try_lock()
        {
            own.has_moved.store(false, Ordering::Relaxed);
            carries.connections.fetch_add(sends.len(), Ordering::Relaxed);
            sends.drain(..).for_each(|sends| tx.takes(sends));
        }
    }

    fn gives_sender(&self, to: usize, sends: Sends<Carried>) {
        match self.inbox(to, Which::Tx).filter(|inbox| inbox.session.load(Ordering::Acquire) == self.session) {
            Some(inbox) => {
                locked(&inbox.sends).push(sends);
                inbox.has_moved.store(true, Ordering::Release);
            }
            None => sends.resets(),
        }
    }
}

impl Moves<Carried> for Gives<'_> {
    fn gives(&mut self, to: usize, gets: Gets<Carried>) {
        match self.inbox(to, Which::Rx).filter(|inbox| inbox.session.load(Ordering::Acquire) == self.session) {
            Some(inbox) => locked(&inbox.gets).push(gets),
            None => gets.resets(),
        }
    }

    fn takes(&mut self, connection: u32) -> Option<Gets<Carried>> {
        let mut gets = locked(&self.own().gets);
        let at = gets.iter().position(|gets| gets.connection() == connection)?;
        Some(gets.swap_remove(at))
    }
}
