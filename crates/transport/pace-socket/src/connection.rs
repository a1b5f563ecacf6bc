// SPDX-License-Identifier: Apache-2.0
//! A connection: messages out and in.

use std::{
    net::SocketAddr,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use fide_pace::{
    endpoint::{ConnectionId, SetUpError},
    sender,
    transport::{Closed, Counts, Transport, View},
};

use crate::{
    Message,
    driver::{Shared, State},
    now_ns,
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
            Closed::There(why) => write!(f, "the other end has closed the connection: {why}"),
            Closed::Vanished => f.write_str("the other end was not heard any more"),
            Closed::Peer(why) => write!(f, "the other end is at fault: {why}"),
        }
    }
}

/// A connection that stands. Dropped, it is closed; what has not left is dropped with it ([`Connection::finish`]).
#[derive(Debug)]
pub struct Connection {
    shared: Arc<Shared>,
    id: ConnectionId,
}

impl Connection {
    pub(crate) fn new(shared: Arc<Shared>, id: ConnectionId) -> Self {
        Self { shared, id }
    }

    /// Whether it stands, or came to nothing; none while neither is known.
    pub(crate) fn is_set_up(&self, state: &mut State) -> Option<Result<(), SetUpError>> {
        let fate = state.fates.get(&self.id)?;
        match fate.failed {
            Some(why) => Some(Err(why)),
            None => fate.stands.then_some(Ok(())),
        }
    }

    pub(crate) fn poll<R>(&self, state: &mut State, context: &mut Context<'_>, result: Option<R>) -> Poll<R> {
        match result {
            Some(result) => Poll::Ready(result),
            None => {
                state.fates.entry(self.id).or_default().waiting.add(context.waker());
                Poll::Pending
            }
        }
    }

    fn closed(&self, state: &State) -> Option<Closed> {
        let of_fate = state.fates.get(&self.id).and_then(|fate| fate.closed.clone());
        of_fate.or_else(|| state.endpoint.get(self.id)?.closed().cloned())
    }

    fn with<R>(&self, act: impl FnOnce(&mut Transport, u64) -> R) -> Option<R> {
        let mut state = self.shared.lock();
        let now_ns = now_ns();
        state.endpoint.with(self.id, now_ns, |transport| act(transport, now_ns))
    }

    /// Sends if the message may leave at once: true. `Err(at)`: not before that time, or when feedback has come.
    fn send_if_due(
        &self,
        state: &mut State,
        bytes: &[u8],
        deadline: Option<Duration>,
    ) -> Result<Result<(), Option<u64>>, SendError> {
        if let Some(why) = self.closed(state) {
            return Err(SendError::Closed(why));
        }
        let now_ns = now_ns();
        let result = state.endpoint.with(self.id, now_ns, |transport| {
            let at_ns = transport.may_send_at(now_ns);
            if at_ns.is_some_and(|at_ns| at_ns <= now_ns) {
                return transport.send(now_ns, bytes, deadline.map(nanoseconds)).map(|_| Ok(()));
            }
            transport.send_waits(now_ns);
            Ok(Err(at_ns))
        });
        let sent = result.unwrap_or(Ok(Err(None)))?;
        self.shared.flush(state);
        Ok(sent)
    }

    /// Sends a message when it may leave: returns after the slowest step between the two applications has taken the one
    /// before, so that a loop around it is paced, and what it sends is fresh.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send(&self, bytes: &[u8]) -> Result<(), SendError> {
        self.send_within(bytes, None)
    }

    /// The same with a deadline of its own, from the time on at which it leaves.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn send_within(&self, bytes: &[u8], deadline: Option<Duration>) -> Result<(), SendError> {
        let mut state = self.shared.lock();
        loop {
            match self.send_if_due(&mut state, bytes, deadline)? {
                Ok(()) => return Ok(()),
                Err(Some(at_ns)) => {
                    drop(state);
                    sleep_until(at_ns);
                    state = self.shared.lock();
                }
                Err(None) => state = self.shared.wait(state),
            }
        }
    }

    /// Puts a message into the queue ([`crate::Config::queue_max`]), and returns at once.
    ///
    /// # Errors
    /// [`SendError`]: also if the queue is full.
    pub fn try_send(&self, bytes: &[u8], deadline: Option<Duration>) -> Result<(), SendError> {
        let mut state = self.shared.lock();
        if let Some(why) = self.closed(&state) {
            return Err(SendError::Closed(why));
        }
        let now_ns = now_ns();
        let sent =
            state.endpoint.with(self.id, now_ns, |transport| transport.send(now_ns, bytes, deadline.map(nanoseconds)));
        sent.unwrap_or(Ok(0))?;
        self.shared.flush(&mut state);
        Ok(())
    }

    /// [`Connection::send`], asynchronously. `sleep`: the executor's, for instance `tokio::time::sleep`.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn send_async<S: Future<Output = ()>>(
        &self,
        bytes: &[u8],
        sleep: impl Fn(Duration) -> S,
    ) -> Result<(), SendError> {
        loop {
            let due = std::future::poll_fn(|context| {
                let mut state = self.shared.lock();
                match self.send_if_due(&mut state, bytes, None) {
                    Err(why) => Poll::Ready(Err(why)),
                    Ok(Ok(())) => Poll::Ready(Ok(None)),
                    Ok(Err(Some(at_ns))) => Poll::Ready(Ok(Some(at_ns))),
                    Ok(Err(None)) => self.poll(&mut state, context, None),
                }
            });
            match due.await? {
                None => return Ok(()),
                Some(at_ns) => sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns()))).await,
            }
        }
    }

    fn next(&self, state: &mut State) -> Option<Result<Message, RecvError>> {
        let now_ns = now_ns();
        let message = state.endpoint.with(self.id, now_ns, |transport| transport.poll_message(now_ns)).flatten();
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
            state = self.shared.wait(state);
        }
    }

    /// The next message, if it is here.
    ///
    /// # Errors
    /// The connection is over, and all that came has been taken.
    pub fn try_recv(&self) -> Result<Option<Message>, RecvError> {
        self.next(&mut self.shared.lock()).transpose()
    }

    /// [`Connection::recv`], asynchronously.
    ///
    /// # Errors
    /// The connection is over, and all that came has been taken.
    pub async fn recv_async(&self) -> Result<Message, RecvError> {
        std::future::poll_fn(|context| {
            let mut state = self.shared.lock();
            let result = self.next(&mut state);
            self.poll(&mut state, context, result)
        })
        .await
    }

    /// The memory of a message may be used again.
    pub fn recycle(&self, message: Message) {
        self.with(|transport, _| transport.recycle(message));
    }

    /// The paces of the way from here to there, and its slowest step.
    #[must_use]
    pub fn view(&self) -> Option<View> {
        self.with(|transport, now_ns| transport.view(now_ns))
    }

    /// What the slowest step takes for a message, as far as it is known: the time between two messages that nothing waits
    /// for.
    #[must_use]
    pub fn bottleneck_pace(&self) -> Option<Duration> {
        self.view()?.bottleneck.map(|(_, ns)| Duration::from_nanos(ns))
    }

    /// When a message would leave at once; none: after the next feedback.
    #[must_use]
    pub fn next_send_in(&self) -> Option<Duration> {
        let (at_ns, now_ns) =
            self.with(|transport, now_ns| Some((transport.may_send_at(now_ns)?, now_ns))).flatten()?;
        Some(Duration::from_nanos(at_ns.saturating_sub(now_ns)))
    }

    /// Whether it has ended, at either end.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.closed(&self.shared.lock()).is_some()
    }

    #[must_use]
    pub fn counts(&self) -> Counts {
        self.with(|transport, _| transport.counts()).unwrap_or_default()
    }

    /// Where the other end is.
    #[must_use]
    pub fn peer(&self) -> Option<SocketAddr> {
        self.shared.lock().endpoint.address(self.id)
    }

    /// Waits until everything that was sent has arrived or expired, but no longer than a time. False: something has not.
    pub fn finish(&self, within: Duration) -> bool {
        let until_ns = now_ns() + nanoseconds(within);
        loop {
            let is_idle = self.with(|transport, _| transport.is_idle() || transport.closed().is_some()).unwrap_or(true);
            if is_idle || now_ns() >= until_ns {
                return is_idle;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Ends it, and tells the other end why.
    pub fn close(&self, reason: &str) {
        let mut state = self.shared.lock();
        state.endpoint.close(self.id, now_ns(), reason);
        self.shared.flush(&mut state);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.close("");
        self.shared.lock().fates.remove(&self.id);
        self.shared.ring();
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Sleeps to the microsecond, as far as the kernel lets it.
fn sleep_until(at_ns: u64) {
    // The shortest slack for this sleep alone: the rest is the application's thread.
    let slack = rustix::thread::current_timer_slack();
    let _ = rustix::thread::set_current_timer_slack(Some(1.try_into().expect("not zero")));
    std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
    if let Ok(slack) = slack {
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(slack));
    }
}
