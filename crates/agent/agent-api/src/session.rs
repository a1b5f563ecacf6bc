// SPDX-License-Identifier: Apache-2.0
//! The region that one client shares with its agent: a beat counter, an outbox for piggybacks, one for
//! messages of lanes, an inbox for events.
//!
//! The client may write all of it and need not be honest: the agent reads the outbox with checks, and a
//! client that damages its inbox hurts only itself.

use crate::event::EVENT_MAX;
use fide_shm::region::{Region, RegionError, Shared};
use fide_shm::spsc::{Broken, Consumer, Producer, PushError, RingRef};
use fide_types::PIGGYBACK_MAX;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// First word of a session region ("FiDeSES1").
pub const SESSION_MAGIC: u64 = u64::from_le_bytes(*b"FiDeSES1");
/// Version of its layout.
pub const SESSION_VERSION: u32 = 2;
/// Bytes of the outbox: 11 piggybacks of the largest size.
pub const OUTBOX_BYTES: usize = 16 << 10;
/// Bytes of the inbox: about a thousand verdicts.
pub const INBOX_BYTES: usize = 256 << 10;

/// Bytes of the lanes' outbox: 56 messages of the largest size.
pub const LANE_OUTBOX_BYTES: usize = 64 << 10;
/// Longest message of a lane: 40 chunks of the larger kind.
pub const LANE_MESSAGE_MAX: usize = 1160;

#[repr(C, align(64))]
struct Line(AtomicU64);

#[repr(C, align(64))]
struct Ring<const WORDS: usize> {
    tail: AtomicU64,
    full: AtomicU64,
    head: Line,
    words: [AtomicU64; WORDS],
}

impl<const WORDS: usize> Ring<WORDS> {
    fn as_ref(&self) -> RingRef<'_> {
        RingRef::new(&self.tail, &self.head.0, &self.full, &self.words)
    }
}

#[repr(C, align(64))]
struct Layout {
    magic: AtomicU64,
    version: AtomicU32,
    size: AtomicU32,
    beat: Line,
    lost: Line,
    outbox: Ring<{ OUTBOX_BYTES / 8 }>,
    inbox: Ring<{ INBOX_BYTES / 8 }>,
    lanes: Ring<{ LANE_OUTBOX_BYTES / 8 }>,
}

// SAFETY: atomics and arrays of atomics only; alignment 64.
unsafe impl Shared for Layout {}

const _: () = {
    assert!(std::mem::offset_of!(Layout, beat) == 64);
    assert!(std::mem::offset_of!(Layout, lost) == 128);
    assert!(std::mem::offset_of!(Layout, outbox) == 192);
    assert!(std::mem::offset_of!(Layout, inbox) == 192 + 128 + OUTBOX_BYTES);
    assert!(std::mem::offset_of!(Layout, lanes) == 192 + 128 + OUTBOX_BYTES + 128 + INBOX_BYTES);
    assert!(size_of::<Layout>() == 192 + 128 + OUTBOX_BYTES + 128 + INBOX_BYTES + 128 + LANE_OUTBOX_BYTES);
};

/// Bytes of a session region.
pub const SESSION_BYTES: usize = size_of::<Layout>();

/// A client's message for a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneMessage<'a> {
    /// Handle of the lane.
    pub handle: u8,
    /// Service; 0 does not exist.
    pub service: u8,
    /// At most [`LANE_MESSAGE_MAX`].
    pub bytes: &'a [u8],
}

/// The agent's end of a session.
#[derive(Debug)]
pub struct AgentSession {
    region: Region<Layout>,
    outbox: Consumer,
    inbox: Producer,
    lanes: Consumer,
}

/// The client's end of a session.
#[derive(Debug)]
pub struct ClientSession {
    region: std::sync::Arc<Region<Layout>>,
    outbox: Producer,
    inbox: Consumer,
    lanes: Producer,
}

impl AgentSession {
    /// A new session region.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create() -> Result<Self, RegionError> {
        Self::init(Region::<Layout>::create("fide-session")?)
    }

    /// A new session in the kernel's memory, [`SESSION_BYTES`] of zeroes. A client can punch holes in a
    /// memfd, and a process that touches one then waits until the client is done punching.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn create_in(fd: OwnedFd) -> Result<Self, RegionError> {
        Self::init(Region::map(fd)?)
    }

    fn init(region: Region<Layout>) -> Result<Self, RegionError> {
        let layout = region.get();
        layout.version.store(SESSION_VERSION, Ordering::Relaxed);
        layout.size.store(size_of::<Layout>() as u32, Ordering::Relaxed);
        layout.magic.store(SESSION_MAGIC, Ordering::Release);
        Self::open(region)
    }

    /// Continues a session of the agent before this one. The client may be running and may be hostile.
    ///
    /// # Errors
    /// [`RegionError`]: not a session of this version, or rings that contradict themselves.
    pub fn take_over(fd: OwnedFd) -> Result<Self, RegionError> {
        Self::open(Region::map(fd)?)
    }

    fn open(region: Region<Layout>) -> Result<Self, RegionError> {
        let layout = validated(&region)?;
        let outbox = Consumer::attach(layout.outbox.as_ref())?;
        let inbox = Producer::attach(layout.inbox.as_ref())?;
        let lanes = Consumer::attach(layout.lanes.as_ref())?;
        Ok(Self { region, outbox, inbox, lanes })
    }

    /// The client's beat counter. Only its changes mean anything.
    pub fn beat(&self) -> u64 {
        self.region.get().beat.0.load(Ordering::Acquire)
    }

    /// Takes the oldest piggyback: slot and bytes, copied into `buffer`. Bounded by one record.
    ///
    /// # Errors
    /// [`Broken`], for good: the client wrote nonsense; its session should be closed.
    pub fn pop_outbox<'b>(&mut self, buffer: &'b mut [u8; PIGGYBACK_MAX]) -> Result<Option<(u8, &'b [u8])>, Broken> {
        let popped = self.outbox.pop(self.region.get().outbox.as_ref(), buffer)?;
        Ok(popped.map(|(tag, len)| (tag as u8, &buffer[..len])))
    }

    /// Whether the outbox holds anything.
    pub fn outbox_is_empty(&self) -> bool {
        self.outbox.is_empty(self.region.get().outbox.as_ref())
    }

    /// Takes the oldest message for a lane; its bytes are copied into `buffer`. Bounded by one record.
    ///
    /// # Errors
    /// [`Broken`], for good: the client wrote nonsense; its session should be closed.
    pub fn pop_lane<'b>(&mut self, buffer: &'b mut [u8; LANE_MESSAGE_MAX]) -> Result<Option<LaneMessage<'b>>, Broken> {
        let popped = self.lanes.pop(self.region.get().lanes.as_ref(), buffer)?;
        Ok(popped.map(|(tag, len)| LaneMessage { handle: tag as u8, service: (tag >> 8) as u8, bytes: &buffer[..len] }))
    }

    /// Puts an encoded event into the inbox. The caller wakes the client.
    ///
    /// # Errors
    /// [`PushError::Full`]: the caller offers the event again, or counts it as lost
    /// ([`AgentSession::set_lost`]); others as in [`Producer::push`].
    pub fn push_inbox(&mut self, event: &[u8]) -> Result<(), PushError> {
        self.inbox.push(self.region.get().inbox.as_ref(), 0, event)
    }

    /// Shows the client how many of its events were lost because its ring was full: a running total.
    pub fn set_lost(&self, total: u64) {
        self.region.get().lost.0.store(total, Ordering::Release);
    }
}

impl AsFd for AgentSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}

/// Increments the beat of a session from any thread.
#[derive(Debug, Clone)]
pub struct Beat(std::sync::Arc<Region<Layout>>);

impl Beat {
    /// "I still make progress": one atomic addition.
    pub fn beat(&self) {
        self.0.get().beat.0.fetch_add(1, Ordering::Release);
    }
}

impl ClientSession {
    /// Maps the session that the agent handed over.
    ///
    /// # Errors
    /// [`RegionError`]: not a session of this version.
    pub fn map(fd: OwnedFd) -> Result<Self, RegionError> {
        let region = std::sync::Arc::new(Region::map(fd)?);
        let layout = validated(&region)?;
        let outbox = Producer::attach(layout.outbox.as_ref())?;
        let inbox = Consumer::attach(layout.inbox.as_ref())?;
        let lanes = Producer::attach(layout.lanes.as_ref())?;
        Ok(Self { region, outbox, inbox, lanes })
    }

    /// The beat counter, usable from other threads.
    pub fn beat(&self) -> Beat {
        Beat(self.region.clone())
    }

    /// Queues a piggyback of the process in `slot`.
    ///
    /// # Errors
    /// [`PushError::TooLong`] above [`PIGGYBACK_MAX`], [`PushError::Full`] until the agent has drained the
    /// outbox.
    pub fn push_outbox(&mut self, slot: u8, bytes: &[u8]) -> Result<(), PushError> {
        if bytes.len() > PIGGYBACK_MAX {
            return Err(PushError::TooLong { len: bytes.len(), limit: PIGGYBACK_MAX });
        }
        self.outbox.push(self.region.get().outbox.as_ref(), slot.into(), bytes)
    }

    /// Queues a message of `service` for the lane with this handle.
    ///
    /// # Errors
    /// [`PushError::TooLong`] above [`LANE_MESSAGE_MAX`], [`PushError::Full`] until the agent has drained the
    /// outbox.
    pub fn push_lane(&mut self, handle: u8, service: u8, bytes: &[u8]) -> Result<(), PushError> {
        if bytes.len() > LANE_MESSAGE_MAX {
            return Err(PushError::TooLong { len: bytes.len(), limit: LANE_MESSAGE_MAX });
        }
        let tag = u32::from(handle) | u32::from(service) << 8;
        self.lanes.push(self.region.get().lanes.as_ref(), tag, bytes)
    }

    /// Takes the oldest event; its bytes are copied into `buffer`.
    ///
    /// # Errors
    /// [`Broken`], for good.
    pub fn pop_inbox<'b>(&mut self, buffer: &'b mut [u8; EVENT_MAX]) -> Result<Option<&'b [u8]>, Broken> {
        let popped = self.inbox.pop(self.region.get().inbox.as_ref(), buffer)?;
        Ok(popped.map(|(_, len)| &buffer[..len]))
    }

    /// Whether the inbox holds anything.
    pub fn inbox_is_empty(&self) -> bool {
        self.inbox.is_empty(self.region.get().inbox.as_ref())
    }

    /// Events lost so far because the inbox or the ring buffer was full, as counted by the agent
    /// ([`AgentSession::set_lost`]).
    pub fn lost(&self) -> u64 {
        self.region.get().lost.0.load(Ordering::Acquire)
    }
}

impl AsFd for ClientSession {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.region.as_fd()
    }
}

fn validated(region: &Region<Layout>) -> Result<&Layout, RegionError> {
    let layout = region.get();
    let magic = layout.magic.load(Ordering::Acquire);
    if magic != SESSION_MAGIC {
        return Err(RegionError::Magic { what: "a session region", actual: magic, expected: SESSION_MAGIC });
    }
    let version = layout.version.load(Ordering::Relaxed);
    if version != SESSION_VERSION {
        return Err(RegionError::Version { what: "session region", actual: version, expected: SESSION_VERSION });
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (AgentSession, ClientSession) {
        let agent = AgentSession::create().unwrap();
        let client = ClientSession::map(agent.as_fd().try_clone_to_owned().unwrap()).unwrap();
        (agent, client)
    }

    #[test]
    fn beats_piggybacks_and_events_cross() {
        let (mut agent, mut client) = pair();
        client.beat().beat();
        assert_eq!(agent.beat(), 1);
        client.push_outbox(63, &[7; PIGGYBACK_MAX]).unwrap();
        assert!(!agent.outbox_is_empty());
        let mut buffer = [0; PIGGYBACK_MAX];
        assert_eq!(agent.pop_outbox(&mut buffer), Ok(Some((63, &[7; PIGGYBACK_MAX][..]))));
        assert_eq!(agent.pop_outbox(&mut buffer), Ok(None));
        client.push_lane(3, 200, &[8; LANE_MESSAGE_MAX]).unwrap();
        let mut buffer = [0; LANE_MESSAGE_MAX];
        let message = LaneMessage { handle: 3, service: 200, bytes: &[8; LANE_MESSAGE_MAX] };
        assert_eq!(agent.pop_lane(&mut buffer), Ok(Some(message)));
        assert_eq!(agent.pop_lane(&mut buffer), Ok(None));
        agent.push_inbox(b"event").unwrap();
        let mut buffer = [0; EVENT_MAX];
        assert_eq!(client.pop_inbox(&mut buffer), Ok(Some(&b"event"[..])));
        assert!(client.inbox_is_empty());
    }

    #[test]
    fn too_long_differs_from_full_and_losses_are_counted() {
        let (mut agent, mut client) = pair();
        let too_long = PushError::TooLong { len: PIGGYBACK_MAX + 1, limit: PIGGYBACK_MAX };
        assert_eq!(client.push_outbox(0, &[0; PIGGYBACK_MAX + 1]), Err(too_long));
        for _ in 0..11 {
            client.push_outbox(0, &[0; PIGGYBACK_MAX]).unwrap();
        }
        assert_eq!(client.push_outbox(0, &[0; PIGGYBACK_MAX]), Err(PushError::Full));
        let too_long = PushError::TooLong { len: LANE_MESSAGE_MAX + 1, limit: LANE_MESSAGE_MAX };
        assert_eq!(client.push_lane(0, 1, &[0; LANE_MESSAGE_MAX + 1]), Err(too_long));
        for _ in 0..56 {
            client.push_lane(0, 1, &[0; LANE_MESSAGE_MAX]).unwrap();
        }
        assert_eq!(client.push_lane(0, 1, &[0; LANE_MESSAGE_MAX]), Err(PushError::Full));
        while agent.push_inbox(&[0; EVENT_MAX]).is_ok() {}
        assert_eq!(client.lost(), 0, "it may be offered again");
        agent.set_lost(4);
        assert_eq!(client.lost(), 4);
    }

    #[test]
    fn next_agent_continues_where_the_last_one_stopped() {
        let (mut agent, mut client) = pair();
        client.push_outbox(1, b"one").unwrap();
        client.push_outbox(1, b"two").unwrap();
        let mut buffer = [0; PIGGYBACK_MAX];
        agent.pop_outbox(&mut buffer).unwrap();
        agent.push_inbox(b"a").unwrap();
        let mut next = AgentSession::take_over(agent.as_fd().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(next.pop_outbox(&mut buffer), Ok(Some((1, &b"two"[..]))));
        next.push_inbox(b"b").unwrap();
        let mut buffer = [0; EVENT_MAX];
        assert_eq!(client.pop_inbox(&mut buffer), Ok(Some(&b"a"[..])));
        assert_eq!(client.pop_inbox(&mut buffer), Ok(Some(&b"b"[..])));
    }

    #[test]
    fn scribbling_client_breaks_only_its_own_session() {
        let (mut agent, client) = pair();
        let layout = client.region.get();
        layout.outbox.words[0].store(u64::MAX, Ordering::Relaxed);
        layout.outbox.tail.store(1, Ordering::Relaxed);
        layout.inbox.head.0.store(u64::MAX / 2, Ordering::Relaxed);
        let mut buffer = [0; PIGGYBACK_MAX];
        assert!(matches!(agent.pop_outbox(&mut buffer), Err(Broken::Length { .. })));
        let refused = (0..INBOX_BYTES).find_map(|_| agent.push_inbox(&[0; EVENT_MAX]).err());
        assert!(matches!(refused, Some(PushError::Broken(_))));
        layout.magic.store(0, Ordering::Relaxed);
        let again = AgentSession::take_over(agent.as_fd().try_clone_to_owned().unwrap());
        assert!(matches!(again, Err(RegionError::Magic { .. })));
    }
}
