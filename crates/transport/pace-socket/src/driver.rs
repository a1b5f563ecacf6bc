// SPDX-License-Identifier: Apache-2.0
//! The thread of an endpoint: reads its socket, keeps its times, and wakes those who wait.

use std::{
    collections::{HashMap, VecDeque},
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

use fide_pace::{
    endpoint::{self, ConnectionId, DATAGRAM_MAX, Event, SetUpError},
    step::Step,
    transport::{Closed, View},
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{read, write},
};

use crate::{
    now_ns,
    shown::{ConnectionRecord, Writer},
    socket::{Batch, Received, Socket},
};

/// Batches that are received in one turn, before something is sent again.
const RECEIVES_MAX: usize = 8;
/// Datagrams that are sent in one turn; the next turn follows at once.
const SENDS_MAX: usize = 1024;
/// While messages are sent, the thread looks so often by itself: no timer of a message that has just left is shorter, so that
/// none of them has to wake it.
const LOOKS_NS: u64 = 10_000_000;
/// Connections that were accepted and that nobody has taken; further ones are closed.
const ACCEPTED_MAX: usize = 1024;
/// Nobody sleeps longer at a time: an hour is as good as for ever.
const WAIT_MAX_NS: u64 = 3_600_000_000_000;

/// Those who wait for a connection, or for one to come.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    wakers: Vec<Waker>,
}

/// A connection's fate, and those who wait for it to change.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    pub(crate) stands: bool,
    pub(crate) failed: Option<SetUpError>,
    pub(crate) closed: Option<Closed>,
    pub(crate) waiting: Waiting,
    /// Somebody wants to know of changes of its bottleneck.
    pub(crate) watched: Option<Watched>,
}

/// A bottleneck that is watched.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    /// How many changes there were, and the view of the last one.
    pub(crate) last: Option<(u64, View)>,
    pub(crate) waiting: Waiting,
}

/// What is behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) endpoint: endpoint::Endpoint,
    pub(crate) fates: HashMap<ConnectionId, Fate>,
    pub(crate) accepted: VecDeque<ConnectionId>,
    pub(crate) accepting: Waiting,
    batch: Batch,
    one: Vec<u8>,
    /// Threads that wait in [`Shared::wait`]: to wake nobody costs a system call, too.
    waiting: usize,
    /// When the thread wakes next.
    planned_ns: u64,
    /// Shows the connections to other programs, if that was asked for.
    pub(crate) shown: Option<Writer>,
    /// When another thread has sent something last.
    used_ns: u64,
    /// The endpoint's last handle is gone: the thread ends when all is said.
    pub(crate) is_ending: bool,
}

/// An endpoint's socket, its state, and its thread's bell.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) socket: Socket,
    state: Mutex<State>,
    /// Something has changed for somebody who waits.
    changed: Condvar,
    /// A bottleneck that is watched has changed, or its connection is over: much rarer than the other.
    bottleneck_changed: Condvar,
    bell: OwnedFd,
}

impl State {
    /// Shows the connections, if that was asked for and is due.
    fn show(&mut self, now_ns: u64) {
        let Self { endpoint, fates, shown: Some(writer), .. } = self else { return };
        if !writer.is_due(now_ns) {
            return;
        }
        let dropped = endpoint.dropped();
        let dropped = dropped.malformed
            + dropped.unknown
            + dropped.forged
            + dropped.cookies
            + dropped.keys
            + dropped.full
            + dropped.answers;
        let each = fates.iter().filter(|(_, fate)| fate.stands).filter_map(|(id, _)| {
            let (peer, snapshot) = (endpoint.address(*id)?, endpoint.get(*id)?.snapshot(now_ns));
            Some(ConnectionRecord { id: id.number().into(), peer, snapshot })
        });
        writer.write(now_ns, fates.len(), each, dropped);
    }
}

impl Waiting {
    /// Wakes once.
    pub(crate) fn add(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|known| known.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }

    pub(crate) fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

impl Shared {
    pub(crate) fn new(socket: Socket, endpoint: endpoint::Endpoint) -> std::io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        let state = State {
            endpoint,
            fates: HashMap::new(),
            accepted: VecDeque::new(),
            accepting: Waiting::default(),
            batch: Batch::new(),
            one: vec![0; DATAGRAM_MAX],
            waiting: 0,
            planned_ns: 0,
            shown: None,
            used_ns: 0,
            is_ending: false,
        };
        Ok(Arc::new(Self {
            socket,
            state: Mutex::new(state),
            changed: Condvar::new(),
            bottleneck_changed: Condvar::new(),
            bell,
        }))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // What a thread that panicked left is whole: each call of the endpoint ends what it began.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until something has changed for anybody.
    pub(crate) fn wait<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        state.waiting += 1;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.waiting -= 1;
        state
    }

    /// The same, but no longer than until a time.
    pub(crate) fn wait_until<'a>(&self, mut state: MutexGuard<'a, State>, at_ns: u64) -> MutexGuard<'a, State> {
        let wait = std::time::Duration::from_nanos(at_ns.saturating_sub(now_ns()).min(WAIT_MAX_NS));
        state.waiting += 1;
        let woken = self.changed.wait_timeout(state, wait);
        let mut state = woken.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state);
        state.waiting -= 1;
        state
    }

    fn wake_all(&self, state: &State) {
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until a bottleneck that is watched has changed, but no longer than until a time.
    pub(crate) fn wait_for_change<'a>(&self, state: MutexGuard<'a, State>, at_ns: u64) -> MutexGuard<'a, State> {
        let wait = std::time::Duration::from_nanos(at_ns.saturating_sub(now_ns()).min(WAIT_MAX_NS));
        let waited = self.bottleneck_changed.wait_timeout(state, wait);
        waited.map_or_else(|poisoned| poisoned.into_inner().0, |(state, _)| state)
    }

    /// Tells those who watch a connection's bottleneck if it has changed.
    pub(crate) fn note_change(&self, state: &mut State, id: ConnectionId) {
        let State { endpoint, fates, .. } = state;
        let Some(watched) = fates.get_mut(&id).and_then(|fate| fate.watched.as_mut()) else { return };
        let now_ns = now_ns();
        if let Some(view) = endpoint.with(id, now_ns, |transport| transport.take_change(now_ns)).flatten() {
            let count = watched.last.map_or(0, |(count, _)| count);
            watched.last = Some((count + 1, view));
            watched.waiting.wake();
            self.bottleneck_changed.notify_all();
        }
    }

    /// Tells those who watch it that a connection is no longer there.
    pub(crate) fn tell_watchers(&self, fate: Option<Fate>) {
        if let Some(mut watched) = fate.and_then(|fate| fate.watched) {
            watched.waiting.wake();
            self.bottleneck_changed.notify_all();
        }
    }

    /// Sends what may leave now, and sees to it that the thread wakes when the next is due.
    pub(crate) fn flush(&self, state: &mut State) {
        let now_ns = now_ns();
        self.transmit(state, now_ns);
        self.note_events(state);
        state.used_ns = now_ns;
        if state.endpoint.due_ns() < state.planned_ns {
            self.ring();
        }
    }

    /// Something has changed for all who wait.
    pub(crate) fn tell_all(&self) {
        self.changed.notify_all();
    }

    pub(crate) fn ring(&self) {
        // A bell that rings already is full.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Whether all that may leave now has left.
    fn transmit(&self, state: &mut State, now_ns: u64) -> bool {
        let segments_max = self.socket.segments_max();
        let State { endpoint, batch, one, .. } = state;
        let mut began_ns = now_ns;
        let mut send = |endpoint: &mut endpoint::Endpoint, batch: &mut Batch| {
            let of = batch.of();
            let is_sent = self.socket.send(batch);
            if let Some((id, count)) = of.filter(|_| is_sent) {
                let ended_ns = crate::now_ns();
                let took_ns = ended_ns.saturating_sub(std::mem::replace(&mut began_ns, ended_ns));
                endpoint.note_step(id, ended_ns, Step::Transmit, took_ns / count);
            }
            is_sent
        };
        if !send(endpoint, batch) {
            return false;
        }
        for _ in 0..SENDS_MAX {
            let Some(datagram) = endpoint.transmit(now_ns, one) else {
                return send(endpoint, batch);
            };
            if !batch.add(&datagram, one, segments_max) {
                if !send(endpoint, batch) {
                    // This one is lost, as in any full queue.
                    return false;
                }
                batch.add(&datagram, one, segments_max);
            }
        }
        send(endpoint, batch);
        false
    }

    /// Notes what has happened, and wakes those who wait for it.
    fn note_events(&self, state: &mut State) {
        let mut has_changed = false;
        while let Some(event) = state.endpoint.poll_event() {
            has_changed = true;
            let (id, change): (_, fn(&mut Fate, Event)) = match event {
                Event::Accepted(id, _) => {
                    if state.accepted.len() >= ACCEPTED_MAX || state.is_ending {
                        state.endpoint.close(id, now_ns(), "nobody accepts connections here");
                        continue;
                    }
                    state.accepted.push_back(id);
                    state.accepting.wake();
                    (id, |fate, _| fate.stands = true)
                }
                Event::Connected(id) => (id, |fate, _| fate.stands = true),
                Event::Failed(id, _) => (id, |fate, event| {
                    if let Event::Failed(_, why) = event {
                        fate.failed = Some(why);
                    }
                }),
                Event::Closed(id, _) => (id, |fate, event| {
                    if let Event::Closed(_, why) = event {
                        fate.closed = Some(why);
                    }
                }),
                Event::Moved(id, _) => (id, |_, _| {}),
            };
            let fate = state.fates.entry(id).or_default();
            change(fate, event);
            fate.waiting.wake();
            if let Some(watched) = &mut fate.watched {
                watched.waiting.wake();
                self.bottleneck_changed.notify_all();
            }
        }
        if has_changed {
            state.shown.iter_mut().for_each(Writer::write_soon);
            self.wake_all(state);
        }
    }

    fn receive(&self, received: &mut Received, touched: &mut Vec<ConnectionId>) {
        for _ in 0..RECEIVES_MAX {
            if !self.socket.receive(received) {
                return;
            }
            let mut state = self.lock();
            let now_ns = now_ns();
            touched.clear();
            let mut count = 0;
            for (from, bytes, is_marked) in received.datagrams() {
                let id = state.endpoint.receive(now_ns, from, bytes, is_marked, entropy);
                count += 1;
                if let Some(id) = id.filter(|id| touched.last() != Some(id)) {
                    touched.push(id);
                }
            }
            let ended_ns = crate::now_ns();
            if let [id] = touched[..] {
                state.endpoint.note_step(id, ended_ns, Step::Receive, (ended_ns - now_ns) / count);
            }
            self.transmit(&mut state, now_ns);
            self.note_events(&mut state);
            for id in &*touched {
                self.note_change(&mut state, *id);
                if let Some(fate) = state.fates.get_mut(id) {
                    fate.waiting.wake();
                }
            }
            if !touched.is_empty() {
                self.wake_all(&state);
            }
            drop(state);
            // What comes meanwhile is seen by the next look at the socket.
            if !received.is_full() {
                return;
            }
        }
    }

    /// The thread.
    pub(crate) fn run(&self) {
        // Times are kept to the microsecond where the kernel lets it.
        let _ = rustix::thread::set_current_timer_slack(Some(1.try_into().expect("not zero")));
        let (mut received, mut touched) = (Received::new(), Vec::new());
        loop {
            self.receive(&mut received, &mut touched);
            let mut state = self.lock();
            let begun_ns = now_ns();
            state.endpoint.timeout(begun_ns);
            let has_sent_all = self.transmit(&mut state, begun_ns);
            self.note_events(&mut state);
            state.show(begun_ns);
            let is_in_use = begun_ns < state.used_ns + LOOKS_NS;
            let looks_ns = if is_in_use { begun_ns + LOOKS_NS } else { u64::MAX };
            let due_ns = state.endpoint.due_ns().min(looks_ns);
            if state.is_ending && state.endpoint.connections() == 0 && has_sent_all {
                return;
            }
            state.planned_ns = due_ns;
            drop(state);
            let wait_ns = if has_sent_all { due_ns.saturating_sub(now_ns()) } else { 0 };
            self.sleep(wait_ns, has_sent_all);
        }
    }

    fn sleep(&self, wait_ns: u64, has_sent_all: bool) {
        let wanted = if has_sent_all { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let mut fds = [
            PollFd::from_borrowed_fd(self.socket.descriptor().as_fd(), wanted),
            PollFd::new(&self.bell, PollFlags::IN),
        ];
        let wait_ns = wait_ns.min(WAIT_MAX_NS);
        let timeout = Timespec {
            tv_sec: i64::try_from(wait_ns / 1_000_000_000).unwrap_or(0),
            tv_nsec: i64::try_from(wait_ns % 1_000_000_000).unwrap_or(0),
        };
        // A signal interrupts it at most.
        let _ = poll(&mut fds, Some(&timeout));
        if fds[1].revents().contains(PollFlags::IN) {
            let _ = read(&self.bell, &mut [0; 8]);
        }
    }
}

/// 32 bytes that nobody can guess.
pub(crate) fn entropy() -> [u8; 32] {
    let mut bytes = [0; 32];
    let mut have = 0;
    while have < bytes.len() {
        let got = rustix::rand::getrandom(&mut bytes[have..], rustix::rand::GetRandomFlags::empty());
        have += got.expect("a kernel that has started gives random bytes");
    }
    bytes
}
