// SPDX-License-Identifier: Apache-2.0
//! A connection: messages out and in.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::Duration,
};

use fide_pace::{
    clock::Offset,
    endpoint::{ConnectionId, Last, SetUpError},
    sender,
    transport::{Closed, Counts, Snapshot, Transport, View},
};

use crate::{
    Message,
    clock::nanoseconds,
    driver::Shared,
    now_ns,
    state::{For, State},
    waiting::{Cancels, LEAST_NS, Locked},
};

/// Why a message is not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error(transparent)]
    Message(#[from] sender::SendError),
    #[error("{}", Over(.0))]
    Closed(Closed),
}

/// Why no message comes any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", Over(.0))]
pub struct RecvError(pub Closed);

/// Says why a connection is over.
struct Over<'a>(&'a Closed);

impl std::fmt::Display for Over<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Closed::Here => f.write_str("the connection was closed at this end"),
            Closed::There(why) if why.is_empty() => f.write_str("the other end has closed the connection"),
            Closed::There(why) => write!(f, "the other end has closed the connection: {}", why.escape_debug()),
            Closed::Vanished => f.write_str("the other end was not heard any more"),
            Closed::Peer(why) => write!(f, "the other end is at fault: {why}"),
        }
    }
}

/// Who keeps the times at which packets leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departures {
    /// The kernel (`SO_TXTIME`), as the interface to the peer has the queue `fq`. Each packet is written a quarter of a
    /// millisecond before it leaves.
    Kernel,
    /// A thread, as well as the host wakes it.
    Timer,
}

/// Of the way from here to there, and of the way back.
pub(crate) type Views = [View; 2];

/// A time of a connection.
type When = fn(&Transport, u64) -> Option<u64>;

/// A connection that stands. Dropped, it is closed; what has not left is dropped with it ([`Connection::finish`]).
#[derive(Debug)]
pub struct Connection {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: ConnectionId,
    /// Of its fate.
    is_empty: Arc<AtomicBool>,
    /// The last views, and when they were taken.
    viewed: Mutex<Option<(u64, Views)>>,
}

/// A view serves so long: those who look more often take no lock of the endpoint.
const VIEWED_NS: u64 = 1_000_000;

impl Connection {
    /// One that has a fate.
    pub(crate) fn new(shared: Arc<Shared>, id: ConnectionId, state: &State) -> Self {
        let is_empty = state.fates.get(&id).map(|fate| Arc::clone(&fate.is_empty)).unwrap_or_default();
        Self { shared, id, is_empty, viewed: Mutex::new(None) }
    }

    /// It stands, and nobody has it yet.
    pub(crate) fn stands(self) -> Self {
        // The kernel is asked without the lock.
        if self.peer().is_some_and(|peer| self.shared.socket.keeps_times_to(peer)) {
            self.shared.lock().keeps_times(self.id);
        }
        self
    }

    /// Who keeps the times at which its packets leave.
    #[must_use]
    pub fn departures(&self) -> Departures {
        let is_kept = self.shared.lock().fates.get(&self.id).is_some_and(|fate| fate.keeps_times);
        if is_kept { Departures::Kernel } else { Departures::Timer }
    }

    /// Whether it stands, or came to nothing; none while neither is known.
    pub(crate) fn is_set_up(&self, state: &mut State) -> Option<Result<(), SetUpError>> {
        let fate = state.fates.get(&self.id)?;
        match fate.failed {
            Some(why) => Some(Err(why)),
            None => fate.stands.then_some(Ok(())),
        }
    }

    /// Waits until a look at the state finds what is waited for.
    pub(crate) async fn look<R>(&self, what: For, look: impl FnMut(&mut State) -> Option<R>) -> R {
        Cancels::new(&self.shared, |state: &mut State| state.waiting(self.id, what)).look(look).await
    }

    /// Waits until what is waited for may be there, or until a time.
    pub(crate) fn wait<'a>(&self, mut state: Locked<'a>, what: For, until_ns: Option<u64>) -> Locked<'a> {
        self.shared.waits(&mut state, until_ns);
        state.wait(until_ns, |state| state.waiting(self.id, what))
    }

    fn closed(&self, state: &State) -> Option<Closed> {
        let of_fate = state.fates.get(&self.id).and_then(|fate| fate.closed.clone());
        of_fate.or_else(|| state.endpoint.get(self.id)?.closed().cloned())
    }

    fn is_closed(&self, state: &State) -> bool {
        let of_fate = state.fates.get(&self.id).is_some_and(|fate| fate.closed.is_some());
        of_fate || state.endpoint.get(self.id).is_some_and(|transport| transport.closed().is_some())
    }

    /// Does what makes nothing due sooner.
    pub(crate) fn with<R>(&self, act: impl FnOnce(&mut Transport, u64) -> R) -> Option<R> {
        let mut state = self.shared.lock();
        state.endpoint.get_mut(self.id).map(|transport| act(transport, now_ns()))
    }

    /// What is known of it; long after its end: as it was when the endpoint forgot it.
    fn known<R>(&self, now: impl FnOnce(&Transport, u64) -> R, last: impl FnOnce(&Last) -> R) -> Option<R> {
        let state = self.shared.lock();
        match state.endpoint.get(self.id) {
            Some(transport) => Some(now(transport, now_ns())),
            None => state.fates.get(&self.id)?.last.as_deref().map(last),
        }
    }

    /// Views of the last millisecond.
    pub(crate) fn recent_views(&self) -> Option<Views> {
        let mut viewed = self.viewed.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = now_ns();
        if viewed.is_none_or(|(at_ns, _)| now_ns >= at_ns + VIEWED_NS) {
            *viewed =
                self.with(|transport, now_ns| (now_ns, [transport.view(now_ns), transport.incoming_view(now_ns)]));
        }
        viewed.map(|(_, views)| views)
    }

    /// Sends a message, and returns when the next one may leave, as far as the slowest step between the two applications is
    /// concerned: a loop around it is paced, and each message that it makes is fresh.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, bytes: &[u8]) -> Result<(), SendError> {
        self.send_within(bytes, None)
    }

    /// The same with a deadline of its own.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_within(&self, bytes: &[u8], deadline: Option<Duration>) -> Result<(), SendError> {
        let mut state = self.shared.lock();
        // The last call has returned as soon as a message could be made, before it may leave; and others may use this connection, too.
        state = self.wait_for(state, Transport::may_send_at);
        self.send_now(&mut state, bytes, deadline)?;
        drop(self.wait_for(state, Transport::may_make_at));
        Ok(())
    }

    fn send_now(&self, state: &mut State, bytes: &[u8], deadline: Option<Duration>) -> Result<(), SendError> {
        if let Some(why) = self.closed(state) {
            return Err(SendError::Closed(why));
        }
        let now_ns = now_ns();
        let sent =
            state.endpoint.with(self.id, now_ns, |transport| transport.send(now_ns, bytes, deadline.map(nanoseconds)));
        sent.unwrap_or(Ok(0))?;
        self.shared.flush(state);
        state.note_change(self.id);
        Ok(())
    }

    /// Whether a time has come: `Err(at)` not before then, or when feedback has come. A connection that is over keeps nobody
    /// waiting.
    fn has_come(&self, state: &mut State, when: When) -> Result<(), Option<u64>> {
        if self.is_closed(state) {
            return Ok(());
        }
        match self.has_come_now(state, when) {
            // What has come may have made room.
            Err(None) if self.shared.looks_if_lent(state) => self.has_come_now(state, when),
            // So may what is due. It does not wait for the thread, which may never run beside this one, if that has real-time priority
            // and comes back at once: each look would put the time off.
            Err(Some(_)) if self.shared.sends_what_is_due(state) => self.has_come_now(state, when),
            result => result,
        }
    }

    fn has_come_now(&self, state: &mut State, when: When) -> Result<(), Option<u64>> {
        let now_ns = now_ns();
        let may = state.endpoint.get_mut(self.id).map(|transport| {
            let at_ns = when(transport, now_ns);
            if at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                transport.send_goes_on(now_ns);
                return Ok(());
            }
            transport.send_waits(now_ns);
            Err(at_ns)
        });
        may.unwrap_or(Ok(()))
    }

    fn wait_for<'a>(&self, mut state: Locked<'a>, when: When) -> Locked<'a> {
        loop {
            state = match self.has_come(&mut state, when) {
                Ok(()) => return state,
                // Until then only the end of the connection matters.
                Err(Some(at_ns)) => to_the_microsecond(|| self.wait(state, For::Event, Some(at_ns))),
                Err(None) => self.wait(state, For::Room, None),
            }
        }
    }

    /// Puts a message into the queue ([`crate::Config::queue_max`]), and returns at once.
    ///
    /// # Errors
    /// [`SendError`]: also if the queue is full.
    pub fn try_send(&self, bytes: &[u8], deadline: Option<Duration>) -> Result<(), SendError> {
        self.send_now(&mut self.shared.lock(), bytes, deadline)
    }

    /// [`Connection::send`], asynchronously. `sleep`: the executor's; what it rounds up to, the pace is rounded up to. For tokio,
    /// whose own rounds up to a millisecond, the feature `tokio` has one that does not.
    ///
    /// Dropped before it is ready it has sent the whole message, or nothing if the message could not leave yet.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send_async<S: Future<Output = ()>>(
        &self,
        bytes: &[u8],
        sleep: impl Fn(Duration) -> S,
    ) -> Result<(), SendError> {
        self.send_within_async(bytes, None, sleep).await
    }

    /// [`Connection::send_within`], asynchronously.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send_within_async<S: Future<Output = ()>>(
        &self,
        bytes: &[u8],
        deadline: Option<Duration>,
        sleep: impl Fn(Duration) -> S,
    ) -> Result<(), SendError> {
        self.wait_for_async(Transport::may_send_at, &sleep).await;
        self.send_now(&mut self.shared.lock(), bytes, deadline)?;
        self.ready_async(sleep).await;
        Ok(())
    }

    /// Waits until the next message may be made, as [`Connection::send`] does after a message: for those who choose what to send
    /// only then, and send it by [`Connection::try_send`]. It returns at once if the connection is over.
    pub async fn ready_async<S: Future<Output = ()>>(&self, sleep: impl Fn(Duration) -> S) {
        self.wait_for_async(Transport::may_make_at, &sleep).await;
    }

    async fn wait_for_async<S: Future<Output = ()>>(&self, when: When, sleep: &impl Fn(Duration) -> S) {
        let mut held = Held { connection: self, waits: true };
        loop {
            let due = self.look(For::Room, |state| match self.has_come(state, when) {
                Ok(()) => Some(None),
                Err(Some(at_ns)) => Some(Some(at_ns)),
                Err(None) => None,
            });
            let Some(at_ns) = due.await else {
                held.waits = false;
                return;
            };
            // One that is over at once would keep the executor's other tasks from running for as long as a full socket puts the time off.
            let sleep_ns = at_ns.saturating_sub(now_ns()).max(LEAST_NS);
            let mut sleeps = std::pin::pin!(sleep(Duration::from_nanos(sleep_ns)));
            let mut cancels = Cancels::new(&self.shared, |state: &mut State| state.waiting(self.id, For::Event));
            std::future::poll_fn(|context| {
                let is_over = sleeps.as_mut().poll(context).is_ready();
                let mut state = self.shared.lock();
                if is_over || self.is_closed(&state) {
                    return Poll::Ready(());
                }
                self.shared.waits(&mut state, Some(at_ns));
                let former = cancels.begins(&mut state, context.waker());
                drop(state);
                drop(former);
                Poll::Pending
            })
            .await;
        }
    }

    fn next(&self, state: &mut State) -> Option<Result<Message, RecvError>> {
        let now_ns = now_ns();
        let message = state.endpoint.get_mut(self.id).and_then(|transport| transport.poll_message(now_ns));
        if message.is_some() {
            // There may be more.
            self.is_empty.store(false, Ordering::Release);
        }
        message.map(Ok).or_else(|| self.closed(state).map(|why| Err(RecvError(why))))
    }

    /// The next message; waits for it.
    ///
    /// # Errors
    /// The connection is over, and all that came has been taken.
    pub fn recv(&self) -> Result<Message, RecvError> {
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = self.next(&mut state) {
                return result;
            }
            state = self.wait(state, For::Message, None);
        }
    }

    /// The next message; waits for it no longer than a time. None: nothing has come.
    ///
    /// # Errors
    /// The connection is over, and all that came has been taken.
    pub fn recv_timeout(&self, within: Duration) -> Result<Option<Message>, RecvError> {
        let until_ns = now_ns().saturating_add(nanoseconds(within));
        let mut state = self.shared.lock();
        loop {
            if let Some(result) = self.next(&mut state) {
                return result.map(Some);
            }
            if now_ns() >= until_ns {
                return Ok(None);
            }
            state = self.wait(state, For::Message, Some(until_ns));
        }
    }

    /// The next message, if it is here. As long as nothing has come it takes no lock, and may be called in a loop.
    ///
    /// # Errors
    /// The connection is over, and all that came has been taken.
    pub fn try_recv(&self) -> Result<Option<Message>, RecvError> {
        if self.is_empty.load(Ordering::Acquire) {
            return Ok(None);
        }
        let mut state = self.shared.lock();
        let result = self.next(&mut state);
        // While the lock is held, so that what comes from now on is seen.
        self.is_empty.store(result.is_none(), Ordering::Release);
        result.transpose()
    }

    /// [`Connection::recv`], asynchronously. Dropped before it is ready it has taken no message.
    ///
    /// # Errors
    /// The connection is over, and all that came has been taken.
    pub async fn recv_async(&self) -> Result<Message, RecvError> {
        self.look(For::Message, |state| self.next(state)).await
    }

    /// How long a message that was received is still in time: until it expires, by the latest that the sender's clock may show. What is
    /// missing to the sender's deadline is its age, as far as that is known. Zero: it has expired since. None: the connection is over, or a
    /// clock has stepped and is not known again.
    #[must_use]
    pub fn expires_in(&self, message: &Message) -> Option<Duration> {
        let there_us = self.with(|transport, now_ns| transport.peer_now_us(now_ns)).flatten()?;
        Some(Duration::from_micros(message.expires_us.saturating_sub(there_us)))
    }

    /// The memory of a message may be used again.
    pub fn recycle(&self, message: Message) {
        self.with(|transport, _| transport.recycle(message));
    }

    /// All numbers of the connection at once. From some seconds after its end on they stay as they were.
    #[must_use]
    pub fn snapshot(&self) -> Option<Snapshot> {
        self.known(Transport::snapshot, |last| last.snapshot)
    }

    /// By how much the other end's clock ([`crate::now_ns`] there) is ahead, in microseconds, and how sure that is. Only the lowest
    /// 32 bits of a time cross the network: this is a number of as many, from which multiples of 2^32 are missing. None before
    /// the first exchange of times.
    #[must_use]
    pub fn peer_clock(&self) -> Option<Offset> {
        self.with(|transport, now_ns| transport.peer_clock(now_ns)).flatten()
    }

    /// Whether it has ended, at either end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_closed(&self.shared.lock())
    }

    /// What became of messages so far, also after the end of the connection.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.known(|transport, _| transport.counts(), |last| last.snapshot.counts).unwrap_or_default()
    }

    /// Where the other end is, or was when the connection ended.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        let state = self.shared.lock();
        let last = || Some(state.fates.get(&self.id)?.last.as_ref()?.address);
        state.endpoint.address(self.id).or_else(last)
    }

    /// Waits until everything that was sent has arrived or expired, but no longer than a time, nor than the connection stands. False:
    /// something has not.
    pub fn finish(&self, within: Duration) -> bool {
        let until_ns = now_ns().saturating_add(nanoseconds(within));
        let mut state = self.shared.lock();
        loop {
            let is_idle = self.is_idle(&state);
            if is_idle || self.is_closed(&state) || now_ns() >= until_ns {
                return is_idle;
            }
            state = self.wait(state, For::Room, Some(until_ns));
        }
    }

    /// The same, asynchronously and without a limit.
    pub async fn finish_async(&self) -> bool {
        let finished = |state: &mut State| {
            let is_idle = self.is_idle(state);
            (is_idle || self.is_closed(state)).then_some(is_idle)
        };
        self.look(For::Room, finished).await
    }

    /// Whether everything that was sent has arrived, or was given up.
    fn is_idle(&self, state: &State) -> bool {
        let last = || state.fates.get(&self.id).and_then(|fate| fate.last.as_ref()).is_some_and(|last| last.is_idle);
        state.endpoint.get(self.id).map_or_else(last, Transport::is_idle)
    }

    /// Ends it, and tells the other end why.
    pub fn close(&self, reason: &str) {
        let mut state = self.shared.lock();
        state.endpoint.close(self.id, now_ns(), reason);
        self.shared.flush(&mut state);
    }
}

/// A future that waits to send. Dropped before it is ready, it holds the application no longer: what that does until the next message
/// is its own work.
struct Held<'a> {
    connection: &'a Connection,
    waits: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.waits {
            self.connection.with(Transport::send_goes_on);
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.leave(self.id, "");
        self.shared.flush(&mut state);
        drop(state);
        self.shared.ring();
    }
}

/// Waits to the microsecond, as far as the kernel lets it.
fn to_the_microsecond<R>(wait: impl FnOnce() -> R) -> R {
    // The shortest slack for this wait alone: the rest is the application's thread.
    let slack = rustix::thread::current_timer_slack();
    let _ = rustix::thread::set_current_timer_slack(Some(1.try_into().expect("not zero")));
    let result = wait();
    if let Ok(slack) = slack {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(slack));
    }
    result
}

#[cfg(test)]
mod tests {
    use std::{
        sync::Arc,
        task::{Context, Poll, Wake, Waker},
    };

    use super::*;
    use crate::{Config, Endpoint, ServerKey};

    /// A task of its own.
    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    /// Polls once, as a task of its own, and drops what waits.
    fn polled_once<T>(future: impl Future<Output = T>) -> Arc<Task> {
        let task = Arc::new(Task);
        let polled = std::pin::pin!(future).poll(&mut Context::from_waker(&Waker::from(Arc::clone(&task))));
        assert!(matches!(polled, Poll::Pending), "it waits");
        task
    }

    /// A server, a client and a connection of them.
    fn connected() -> (Endpoint, Endpoint, Connection, Connection) {
        let (config, key) = (Config { queue_max: 100, ..Config::default() }, ServerKey::Secret([7; 32]));
        let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), key.clone(), config).unwrap();
        let client = Endpoint::client().unwrap();
        let here = client.connect(server.local_address().unwrap(), &key.for_clients(), config).unwrap();
        let there = server.accept().unwrap();
        (server, client, here, there)
    }

    #[test]
    fn work_after_a_future_that_is_dropped_is_the_senders_own() {
        const WORK: Duration = Duration::from_millis(300);
        let (_server, _client, here, _there) = connected();
        let send = || here.try_send(b"message", None).unwrap();
        let never: When = |_, _| None;
        (0..2).for_each(|_| send());
        polled_once(here.wait_for_async(never, &|_| std::future::pending::<()>()));
        std::thread::sleep(WORK);
        send();
        let own_ns = here.view().unwrap().paces.get(fide_pace::step::Step::Send);
        assert!(own_ns >= nanoseconds(WORK), "{own_ns} ns of it are taken for work");
    }

    /// What is always a moment ahead, as while the socket is full.
    #[test]
    fn future_that_waits_for_a_moment_lets_other_tasks_run() {
        let (_server, _client, here, _there) = connected();
        let soon: When = |_, now_ns| Some(now_ns + 1);
        polled_once(here.wait_for_async(soon, &|time: Duration| async move {
            // As a timer does: no time has passed already.
            if !time.is_zero() {
                std::future::pending::<()>().await;
            }
        }));
    }

    #[test]
    fn future_that_is_dropped_leaves_no_waker() {
        let (server, _client, here, there) = connected();
        // Far longer than the wait for it.
        let at: When = |_, now_ns| Some(now_ns + 10_000_000_000);
        let never: When = |_, _| None;
        let pending = |_| std::future::pending::<()>();
        let tasks = [
            polled_once(there.recv_async()),
            polled_once(here.wait_for_async(at, &pending)),
            polled_once(here.wait_for_async(never, &pending)),
            polled_once(server.accept_async()),
        ];
        assert!(tasks.iter().all(|task| Arc::strong_count(task) == 1), "a waker is kept");
    }
}
