// SPDX-License-Identifier: Apache-2.0
//! What is behind an endpoint's lock: its connections, their fates, and who waits for them.

use std::{
    collections::VecDeque,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use fide_pace::{
    endpoint::{self, ConnectionId, DATAGRAM_MAX, Datagram, Event, Last, SetUpError},
    transport::{Closed, Transport, View},
};
use rustc_hash::FxHashMap;

use crate::{
    loan::{DEADLINE_LEAST_NS, Loan},
    now_ns,
    shown::{ConnectionRecord, Writer},
    socket::Batch,
    waiting::{Waiting, Wakes},
};

/// Connections that were accepted and that nobody has taken. Those that are over make way for others; further ones are closed.
const ACCEPTED_MAX: usize = 1024;
/// Addresses of clients whose set-up is to be answered, with the own address that they asked. The answers to further ones leave
/// from where the kernel chooses.
const ASKED_MAX: usize = 256;

/// An endpoint with more connections does not lend its socket, as all of them would have to be looked at.
const LENDS_MAX: usize = 8;

/// What is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum For {
    Message,
    /// Room for a message, or nothing left to be sent.
    Room,
    /// That the connection stands, or is over.
    Event,
}

/// A connection's fate, and who waits for it to change.
#[derive(Debug, Default)]
pub(crate) struct Fate {
    pub(crate) stands: bool,
    pub(crate) failed: Option<SetUpError>,
    pub(crate) closed: Option<Closed>,
    /// What is left of it once the endpoint has forgotten it.
    pub(crate) last: Option<Box<Last>>,
    waiting: [Waiting; 3],
    /// Nothing was here when the application looked last, and nothing has come since: it need not look again.
    pub(crate) is_empty: Arc<AtomicBool>,
    /// A client's: its first packet came to this address, from which it is answered. The way of a connection that this end began is
    /// the kernel's choice.
    is_of_client: bool,
    here: Option<IpAddr>,
    /// The kernel keeps the times of its packets.
    pub(crate) keeps_times: bool,
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
    /// Of connections that somebody has, or that wait to be taken.
    pub(crate) fates: FxHashMap<ConnectionId, Fate>,
    pub(crate) accepted: VecDeque<ConnectionId>,
    pub(crate) accepting: Waiting,
    pub(crate) batch: Batch,
    /// Room for one datagram.
    pub(crate) one: Vec<u8>,
    asked: Vec<(SocketAddr, IpAddr)>,
    /// Connections that have sent or received something.
    pub(crate) touched: Vec<ConnectionId>,
    /// Connections that have received something of the batch that is looked at; else empty, but for its memory.
    pub(crate) came_for: Vec<ConnectionId>,
    /// To be woken when the lock is released.
    pub(crate) wakes: Wakes,
    /// Empty, but for their memory.
    pub(crate) spare: Vec<Wakes>,
    /// When the thread wakes next.
    pub(crate) planned_ns: u64,
    pub(crate) loan: Loan,
    /// The socket's buffer is full, and the thread waits for room in it.
    pub(crate) awaits_room: bool,
    /// Shows the connections to other programs, if that was asked for.
    pub(crate) shown: Option<Writer>,
    /// The endpoint was closed: the thread ends when all is said.
    pub(crate) is_ending: bool,
}

impl Fate {
    pub(crate) fn waiting(&mut self, what: For) -> &mut Waiting {
        &mut self.waiting[what as usize]
    }

    fn wake_all(&mut self, wakes: &mut Wakes) {
        self.is_empty.store(false, Ordering::Release);
        let watched = self.watched.as_mut().map(|watched| &mut watched.waiting);
        self.waiting.iter_mut().chain(watched).for_each(|waiting| waiting.wake(wakes));
    }
}

impl State {
    pub(crate) fn new(endpoint: endpoint::Endpoint) -> Self {
        Self {
            endpoint,
            fates: FxHashMap::default(),
            accepted: VecDeque::new(),
            accepting: Waiting::default(),
            batch: Batch::new(),
            one: vec![0; DATAGRAM_MAX],
            asked: Vec::new(),
            touched: Vec::new(),
            came_for: Vec::new(),
            wakes: Wakes::default(),
            spare: Vec::new(),
            planned_ns: 0,
            loan: Loan::default(),
            awaits_room: false,
            shown: None,
            is_ending: false,
        }
    }

    /// Lends the socket to who sends, if nobody waits for what may come: they would wait until who sends looks again. So would messages
    /// that were lost.
    pub(crate) fn lends(&mut self) -> bool {
        let is_awaited =
            |fate: &Fate| !fate.waiting[For::Message as usize].is_empty() || fate.is_empty.load(Ordering::Relaxed);
        let is_short = |id| self.endpoint.get(id).is_some_and(|transport| transport.deadline_ns() < DEADLINE_LEAST_NS);
        let is_urgent = |(id, fate): (&ConnectionId, &Fate)| is_awaited(fate) || is_short(*id);
        let lends = self.fates.len() <= LENDS_MAX && self.accepting.is_empty() && !self.fates.iter().any(is_urgent);
        if lends {
            self.loan.begins();
        }
        lends
    }

    /// Who waits for a connection; none if nobody has it.
    pub(crate) fn waiting(&mut self, id: ConnectionId, what: For) -> Option<&mut Waiting> {
        self.fates.get_mut(&id).map(|fate| fate.waiting(what))
    }

    /// Notes what has happened, and who is to be woken for it.
    pub(crate) fn note_events(&mut self) {
        while let Some(event) = self.endpoint.poll_event() {
            self.shown.iter_mut().for_each(Writer::write_soon);
            match event {
                Event::Accepted(id, _) => self.accept(id),
                Event::Connected(id) => self.change(id, |fate| fate.stands = true),
                Event::Failed(id, why) => self.change(id, |fate| fate.failed = Some(why)),
                Event::Closed(id, why) => self.change(id, |fate| fate.closed = Some(why)),
                Event::Forgotten(id, last) => self.change(id, |fate| fate.last = Some(last)),
                Event::Moved(id, _) => self.moved(id),
            }
        }
    }

    fn change(&mut self, id: ConnectionId, change: impl FnOnce(&mut Fate)) {
        // None: nobody has it.
        if let Some(fate) = self.fates.get_mut(&id) {
            change(fate);
            fate.wake_all(&mut self.wakes);
        }
    }

    fn moved(&mut self, id: ConnectionId) {
        self.change(id, |fate| {
            // Its next packet says which address it asks now.
            fate.here = None;
            // Who keeps times on the way to its new address is not known. A timer always does.
            fate.keeps_times = false;
        });
        self.endpoint.writes_ahead(id, 0);
    }

    fn accept(&mut self, id: ConnectionId) {
        if self.accepted.len() >= ACCEPTED_MAX {
            let is_over = |id: &ConnectionId| self.fates.get(id).is_none_or(|fate| fate.closed.is_some());
            let (over, accepted): (VecDeque<_>, _) = self.accepted.iter().partition(|id| is_over(id));
            self.accepted = accepted;
            over.into_iter().for_each(|id| self.leave(id, ""));
        }
        if self.accepted.len() >= ACCEPTED_MAX || self.is_ending {
            self.endpoint.close(id, now_ns(), "nobody accepts connections here");
            return;
        }
        self.fates.insert(id, Fate { stands: true, is_of_client: true, ..Fate::default() });
        self.accepted.push_back(id);
        self.accepting.wake(&mut self.wakes);
    }

    /// Nobody has a connection any more, but those who watch it.
    pub(crate) fn leave(&mut self, id: ConnectionId, reason: &str) {
        let now_ns = now_ns();
        self.endpoint.close(id, now_ns, reason);
        self.endpoint.with(id, now_ns, Transport::drop_messages);
        if let Some(mut fate) = self.fates.remove(&id) {
            // Its wakers are woken, and so dropped, when the lock is released.
            fate.wake_all(&mut self.wakes);
        }
        self.shown.iter_mut().for_each(Writer::write_soon);
    }

    /// Shows the connections, if that was asked for and is due.
    pub(crate) fn show(&mut self, now_ns: u64) {
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

    /// Notes whether a connection's bottleneck has changed, and that those who watch it are to be woken.
    pub(crate) fn note_change(&mut self, id: ConnectionId) {
        let Self { endpoint, fates, wakes, .. } = self;
        let Some(watched) = fates.get_mut(&id).and_then(|fate| fate.watched.as_mut()) else { return };
        let now_ns = now_ns();
        if let Some(view) = endpoint.get_mut(id).and_then(|transport| transport.take_change(now_ns)) {
            let count = watched.last.map_or(0, |(count, _)| count);
            watched.last = Some((count + 1, view));
            watched.waiting.wake(wakes);
        }
    }

    /// Nobody is let in any more.
    pub(crate) fn close(&mut self) {
        self.is_ending = true;
        self.endpoint.refuse();
        while let Some(id) = self.accepted.pop_front() {
            self.leave(id, "the endpoint was closed");
        }
        self.accepting.wake(&mut self.wakes);
    }

    /// A connection's packet came to this address.
    pub(crate) fn came_to(&mut self, id: ConnectionId, here: IpAddr) {
        if let Some(fate) = self.fates.get_mut(&id).filter(|fate| fate.is_of_client) {
            // Not for each one: somebody may send on an old one to another address of this host.
            fate.here.get_or_insert(here);
        }
    }

    /// A set-up came from there to this address.
    pub(crate) fn was_asked(&mut self, from: SocketAddr, here: IpAddr) {
        if self.asked.len() < ASKED_MAX && self.asked.last() != Some(&(from, here)) {
            self.asked.push((from, here));
        }
    }

    /// All set-ups are answered.
    pub(crate) fn has_answered(&mut self) {
        self.asked.clear();
    }

    /// The own address from which a datagram is to leave; none: the kernel's choice.
    pub(crate) fn leaves_from(&self, datagram: &Datagram) -> Option<IpAddr> {
        match datagram.connection {
            Some(id) => self.fates.get(&id)?.here,
            None => self.asked.iter().rev().find(|(from, _)| *from == datagram.to).map(|(_, here)| *here),
        }
    }

    /// The kernel keeps the times of a connection's packets from now on.
    pub(crate) fn keeps_times(&mut self, id: ConnectionId) {
        if let Some(fate) = self.fates.get_mut(&id) {
            fate.keeps_times = true;
            self.endpoint.writes_ahead(id, crate::departure::AHEAD_NS);
        }
    }

    pub(crate) fn touch(&mut self, id: ConnectionId) {
        if self.touched.last() != Some(&id) {
            self.touched.push(id);
        }
    }

    /// Notes who is to be woken as what it waits for is there now.
    pub(crate) fn wake_touched(&mut self, now_ns: u64) {
        let Self { touched, fates, endpoint, wakes, .. } = self;
        touched.extend(endpoint.take_changed());
        for id in touched.drain(..) {
            let Some(fate) = fates.get_mut(&id) else { continue };
            let is_for = |what: For| !fate.waiting[what as usize].is_empty();
            let looks_away = fate.is_empty.load(Ordering::Relaxed);
            let (for_message, for_room) = (is_for(For::Message) || looks_away, is_for(For::Room));
            let Some(transport) = endpoint.get(id).filter(|_| for_message || for_room) else { continue };
            if for_message && transport.has_message(now_ns) {
                fate.is_empty.store(false, Ordering::Release);
                fate.waiting(For::Message).wake(wakes);
            }
            if for_room && (transport.may_send_at(now_ns).is_some() || transport.is_idle()) {
                fate.waiting(For::Room).wake(wakes);
            }
        }
    }
}
