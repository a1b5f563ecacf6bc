// SPDX-License-Identifier: Apache-2.0
//! The event record: how an agent, or the kernel's receive program, notifies a client. 48 bytes and
//! optional data, native endianness (it never leaves the host).

use fide_types::{HOST_SLOT, HostId, PIGGYBACK_MAX, Reason};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of the header.
pub const EVENT_HEADER: usize = 48;
/// Longest event: header and the largest piggyback, rounded up to 8.
pub const EVENT_MAX: usize = (EVENT_HEADER + PIGGYBACK_MAX).next_multiple_of(8);
/// Flag: delivered directly by the kernel's receive program, without the agent.
pub const FLAG_DIRECT: u8 = 1;

/// Values of [`EventRecord::kind`].
pub mod kind {
    /// A watched subject is alive in this incarnation; comes before any verdict on it. Data: "name@host".
    pub const UP: u32 = 1;
    /// The subject is dead (or left, or stalled, or recovered): see `reason`.
    pub const VERDICT: u32 = 2;
    /// A piggybacked message; `seq` is its number, data its bytes.
    pub const PIGGYBACK: u32 = 3;
    /// The granted timeout of `watch` is now `code` microseconds.
    pub const TIMEOUT_CHANGED: u32 = 4;
    /// A program on `host` monitors the own process in `slot`; `code` is the piggyback size that it asks
    /// for. Data: "name@host" of the watcher as far as known.
    pub const MONITOR_REQ: u32 = 5;
    /// The piggyback size of the own process in `slot` is now `code` bytes.
    pub const PBSIZE_CHANGED: u32 = 6;
    /// This host must not act.
    pub const FENCED: u32 = 7;
    /// This host may act again.
    pub const UNFENCED: u32 = 8;
    /// One plane to a host is silent: a network fault, not a death.
    pub const PATH_LOST: u32 = 9;
    /// That plane is back.
    pub const PATH_RESTORED: u32 = 10;
    /// This host was excluded and came back with a new incarnation.
    pub const REJOINED: u32 = 11;
    /// This observer did not run on time; its suspicion was withheld.
    pub const OBSERVER_STALLED: u32 = 12;
    /// A message of a lane. `host` sent it, `slot` is its service, `code` the lane's index there, `seq` the
    /// packet's number, data its bytes.
    pub const LANE_MESSAGE: u32 = 13;
    /// Other terms for the own lane `code`. Data: [`super::LaneTerms`].
    pub const LANE_CHANGED: u32 = 14;
    /// The own lane `code` is over after `at_ns` more nanoseconds. Data: why, for people.
    pub const LANE_TERMINATED: u32 = 15;
}

/// Values of [`LaneTerms::reason`] (X-Lane Listing 1, `enum Reason`).
pub mod lane_reason {
    /// Traffic engineering: other lanes came, went or moved.
    pub const TE: u8 = 1;
    /// The lane sent more than agreed.
    pub const BW_EXCEEDED: u8 = 2;
    /// The lane used less than half of its bandwidth.
    pub const BW_UNUSED: u8 = 3;
}

/// The header, as it lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct EventRecord {
    /// One of [`kind`].
    pub kind: u32,
    /// Host id of the subject.
    pub host: HostId,
    /// Its slot; [`HOST_SLOT`] for the host itself.
    pub slot: u8,
    /// A [`Reason`] as [`Reason::to_bytes`] writes it for verdicts, else 0.
    pub reason: u8,
    /// Incarnation of the subject.
    pub incarnation: u32,
    /// Exit code, signal, timeout in microseconds or size in bytes, by kind.
    pub code: i32,
    /// Last heartbeat's sequence number, or the piggyback's.
    pub seq: u64,
    /// Observer's CLOCK_MONOTONIC when the packet was seen, or the verdict decided.
    pub rx_ns: u64,
    /// The subject's host's clock at its exit; 0 unknown.
    pub at_ns: u64,
    /// Watch id if the agent set it; 0 when delivered directly.
    pub watch: u32,
    /// Bytes of data that follow.
    pub data_len: u16,
    /// Plane that the packet came on.
    pub plane: u8,
    /// [`FLAG_DIRECT`].
    pub flags: u8,
}

/// A lane's terms (X-Lane Listing 1, `struct resources`), as they are stored in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct LaneTerms {
    /// Largest packet.
    pub packet_max_bytes: u32,
    /// Largest message.
    pub message_max_bytes: u32,
    /// Shortest time between two packets.
    pub period_ns: u64,
    /// By the fastest path to the nearest receiver; meaningless if not `bounded`.
    pub latency_min_ns: u64,
    /// In addition to `latency_min_ns`, to the farthest receiver over the slowest tree; meaningless if not
    /// `bounded`.
    pub jitter_max_ns: u64,
    /// How long the previous terms still hold.
    pub grace_ns: u64,
    /// One of [`lane_reason`].
    pub reason: u8,
    /// 1: the latency is bounded. 0: best effort.
    pub bounded: u8,
    /// 0.
    pub reserved: [u8; 6],
}

const _: () = {
    assert!(size_of::<LaneTerms>() == 48);
    assert!(size_of::<EventRecord>() == EVENT_HEADER);
    assert!(std::mem::offset_of!(EventRecord, incarnation) == 8);
    assert!(std::mem::offset_of!(EventRecord, seq) == 16);
    assert!(std::mem::offset_of!(EventRecord, rx_ns) == 24);
    assert!(std::mem::offset_of!(EventRecord, watch) == 40);
    assert!(std::mem::offset_of!(EventRecord, flags) == 47);
};

/// Why bytes are not an event, or data does not fit in one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Shorter than its header, or than the data it announces.
    #[error("event of {len} bytes, needs {needed}")]
    Short {
        /// Bytes there.
        len: usize,
        /// Bytes needed.
        needed: usize,
    },
    /// A kind this version does not know.
    #[error("event kind {0} is unknown")]
    Kind(u32),
    /// A verdict whose reason this version does not know.
    #[error("verdict reason {0} is unknown")]
    Reason(u8),
    /// Data that does not fit.
    #[error("event data of {0} bytes, at most {PIGGYBACK_MAX} fit")]
    DataTooLong(usize),
}

/// An event, checked. The record's common fields (host, slot, incarnation, times) are in the [`EventRecord`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event<'a> {
    /// See [`kind::UP`].
    Up {
        /// "name@host".
        name: &'a [u8],
    },
    /// See [`kind::VERDICT`].
    Verdict(Reason),
    /// See [`kind::PIGGYBACK`].
    Piggyback(&'a [u8]),
    /// See [`kind::TIMEOUT_CHANGED`].
    TimeoutChanged {
        /// The timeout now granted.
        timeout_us: u32,
    },
    /// See [`kind::MONITOR_REQ`].
    MonitorReq {
        /// Piggyback size asked for.
        pbsize: u32,
        /// "name@host" of the watcher; may be empty.
        watcher: &'a [u8],
    },
    /// See [`kind::PBSIZE_CHANGED`].
    PbsizeChanged {
        /// Piggyback size now granted.
        pbsize: u32,
    },
    /// See [`kind::FENCED`].
    Fenced,
    /// See [`kind::UNFENCED`].
    Unfenced,
    /// See [`kind::PATH_LOST`].
    PathLost,
    /// See [`kind::PATH_RESTORED`].
    PathRestored,
    /// See [`kind::REJOINED`].
    Rejoined,
    /// See [`kind::OBSERVER_STALLED`].
    ObserverStalled,
    /// See [`kind::LANE_MESSAGE`].
    LaneMessage {
        /// 1..=255.
        service: u8,
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// See [`kind::LANE_CHANGED`].
    LaneChanged(LaneTerms),
    /// See [`kind::LANE_TERMINATED`].
    LaneTerminated {
        /// The reason, for people.
        why: &'a [u8],
    },
}

impl EventRecord {
    /// Splits bytes (of an inbox or ring buffer record) into the header and its data; trailing padding is
    /// ignored.
    ///
    /// # Errors
    /// [`EventError::Short`].
    pub fn split(bytes: &[u8]) -> Result<(Self, &[u8]), EventError> {
        let (record, rest) =
            Self::read_from_prefix(bytes).map_err(|_| EventError::Short { len: bytes.len(), needed: EVENT_HEADER })?;
        let needed = EVENT_HEADER + usize::from(record.data_len);
        let data = rest.get(..usize::from(record.data_len)).ok_or(EventError::Short { len: bytes.len(), needed })?;
        Ok((record, data))
    }

    /// The record's event, with the data from [`EventRecord::split`].
    ///
    /// # Errors
    /// [`EventError::Kind`], [`EventError::Reason`].
    pub fn decode<'a>(&self, data: &'a [u8]) -> Result<Event<'a>, EventError> {
        let unsigned = self.code.max(0) as u32;
        Ok(match self.kind {
            kind::UP => Event::Up { name: data },
            kind::VERDICT => {
                let unknown = EventError::Reason(self.reason);
                Event::Verdict(Reason::from_bytes(self.reason, self.code).ok_or(unknown)?)
            }
            kind::PIGGYBACK => Event::Piggyback(data),
            kind::TIMEOUT_CHANGED => Event::TimeoutChanged { timeout_us: unsigned },
            kind::MONITOR_REQ => Event::MonitorReq { pbsize: unsigned, watcher: data },
            kind::PBSIZE_CHANGED => Event::PbsizeChanged { pbsize: unsigned },
            kind::FENCED => Event::Fenced,
            kind::UNFENCED => Event::Unfenced,
            kind::PATH_LOST => Event::PathLost,
            kind::PATH_RESTORED => Event::PathRestored,
            kind::REJOINED => Event::Rejoined,
            kind::OBSERVER_STALLED => Event::ObserverStalled,
            kind::LANE_MESSAGE => Event::LaneMessage { service: self.slot, bytes: data },
            kind::LANE_CHANGED => {
                let short = EventError::Short { len: data.len(), needed: size_of::<LaneTerms>() };
                Event::LaneChanged(LaneTerms::read_from_bytes(data).map_err(|_| short)?)
            }
            kind::LANE_TERMINATED => Event::LaneTerminated { why: data },
            other => return Err(EventError::Kind(other)),
        })
    }

    /// A record of this kind about the host itself; set the other fields as needed.
    pub fn of_host(kind: u32, host: HostId) -> Self {
        Self { kind, host, slot: HOST_SLOT, ..Self::default() }
    }

    /// Sets `reason` and `code`.
    pub fn with_reason(mut self, why: Reason) -> Self {
        (self.reason, self.code) = why.to_bytes();
        self
    }

    /// Writes header and data (setting `data_len`) to the front of `out`. Returns the bytes to push.
    ///
    /// # Errors
    /// [`EventError::DataTooLong`].
    pub fn encode<'o>(mut self, data: &[u8], out: &'o mut [u8; EVENT_MAX]) -> Result<&'o [u8], EventError> {
        if data.len() > PIGGYBACK_MAX {
            return Err(EventError::DataTooLong(data.len()));
        }
        self.data_len = data.len() as u16;
        out[..EVENT_HEADER].copy_from_slice(self.as_bytes());
        out[EVENT_HEADER..EVENT_HEADER + data.len()].copy_from_slice(data);
        Ok(&out[..EVENT_HEADER + data.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bytes_match_the_layout() {
        let record = EventRecord {
            kind: kind::VERDICT,
            host: 0x0102,
            slot: 3,
            incarnation: 5,
            seq: 7,
            rx_ns: 8,
            at_ns: 9,
            watch: 10,
            plane: 1,
            flags: FLAG_DIRECT,
            ..Default::default()
        }
        .with_reason(Reason::Killed(9));
        let mut out = [0; EVENT_MAX];
        let bytes = record.encode(b"", &mut out).unwrap();
        assert_eq!(bytes[..16], [2, 0, 0, 0, 2, 1, 3, 2, 5, 0, 0, 0, 9, 0, 0, 0]);
        assert_eq!(bytes[40..48], [10, 0, 0, 0, 0, 0, 1, 1]);
        let (back, data) = EventRecord::split(bytes).unwrap();
        assert_eq!((back, back.decode(data)), (record, Ok(Event::Verdict(Reason::Killed(9)))));
    }

    #[test]
    fn short_and_unknown_records_are_named() {
        assert_eq!(EventRecord::split(&[0; 47]), Err(EventError::Short { len: 47, needed: 48 }));
        let record = EventRecord { data_len: 9, ..Default::default() };
        assert_eq!(EventRecord::split(record.as_bytes()), Err(EventError::Short { len: 48, needed: 57 }));
        assert_eq!(record.decode(b""), Err(EventError::Kind(0)));
        assert_eq!(EventRecord::of_host(kind::VERDICT, 1).decode(b""), Err(EventError::Reason(0)));
        let mut out = [0; EVENT_MAX];
        let too_long = record.encode(&[0; PIGGYBACK_MAX + 1], &mut out);
        assert_eq!(too_long, Err(EventError::DataTooLong(PIGGYBACK_MAX + 1)));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_or_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok((record, data)) = EventRecord::split(&bytes) {
                prop_assert_eq!(data.len(), usize::from(record.data_len));
                let _ = record.decode(data);
            }
        }

        #[test]
        fn events_survive_encoding_and_decoding(data in prop::collection::vec(any::<u8>(), 0..=PIGGYBACK_MAX), seq: u64) {
            let mut out = [0; EVENT_MAX];
            let record = EventRecord { kind: kind::PIGGYBACK, seq, ..Default::default() };
            let (back, got) = EventRecord::split(record.encode(&data, &mut out).unwrap()).unwrap();
            prop_assert_eq!(back.seq, seq);
            prop_assert_eq!(back.decode(got), Ok(Event::Piggyback(&data[..])));
        }
    }
}
