// SPDX-License-Identifier: Apache-2.0
//! Sections: what a heartbeat carries beside its acknowledgements.
//!
//! ```text
//! {u8 kind, u8 slot, u16 len} + len bytes
//! 1 ROSTER    slot; {u8 state, u8 0, u8 name_len, u8 0, u32 process_incarnation, u32 pb_seq, i32 code, u64 at_ns} + name
//! 2 PIGGYBACK slot; {u32 pb_seq} + bytes
//! 3 VIEW      slot 0; see [`crate::view`]
//! 4 PROMISE   slot 0; {u32 timeout_us}
//! 5 EXCLUDED  slot 0; n x {u16 host, u16 0, u32 incarnation}
//! 6 GOODBYE   slot 0; empty
//! 7 MONITOR   target slot; {u16 target_host, u8 watcher_slot, u8 0, u32 timeout_us, u16 pbsize, u16 0}
//! 8 ECHO      slot 0; n x {u16 host, u16 0, u32 incarnation, u64 seq}
//! 9 ALL_NAMED slot 0; empty: no process of the sender lives that is neither in this heartbeat nor in one that its receiver has acknowledged
//! ```
//!
//! A section of an unknown kind is skipped by its length.

use crate::view::View;
use crate::{
    ECHO_LEN, EXCLUDED_LEN, HOST_SLOT, MAX_HOSTS, MAX_PROCESSES, MONITOR_LEN, Name, NameError, ProcessState,
    ROSTER_LEN, VIEW_STEADY_LEN,
};
use fide_types::HostId;

pub const ROSTER: u8 = 1;
pub const PIGGYBACK: u8 = 2;
pub const VIEW: u8 = 3;
pub const PROMISE: u8 = 4;
pub const EXCLUDED: u8 = 5;
pub const GOODBYE: u8 = 6;
pub const MONITOR: u8 = 7;
pub const ECHO: u8 = 8;
pub const ALL_NAMED: u8 = 9;

/// Why a section was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SectionError {
    #[error("section of kind {kind} has {len} bytes, it needs {need}")]
    Length { kind: u8, len: usize, need: usize },
    #[error("section of kind {kind} is for slot {slot}, it must be {must}")]
    Slot { kind: u8, slot: u8, must: &'static str },
    #[error("roster state {state} is unknown; 1 to 5 are known")]
    State { state: u8 },
    #[error("roster name: {0}")]
    Name(NameError),
    #[error("piggyback sequence number 0; they start at 1")]
    PiggybackSeq,
    #[error("host id {host} is outside 1..={MAX_HOSTS}")]
    Host { host: HostId },
    #[error("view section: {what}")]
    View { what: &'static str },
}

impl From<NameError> for SectionError {
    fn from(why: NameError) -> Self {
        Self::Name(why)
    }
}

/// One process, as its host reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Roster {
    pub slot: u8,
    /// Never [`ProcessState::HostSilent`]: observers conclude that.
    pub state: ProcessState,
    /// `None` in a notice.
    pub name: Option<Name>,
    pub incarnation: u32,
    /// Last piggyback sequence number given out, 0 for none.
    pub pb_seq: u32,
    /// The sending host's CLOCK_MONOTONIC when this became so.
    pub at_ns: u64,
}

impl Roster {
    /// Bytes of the section, its header included.
    pub fn wire_len(&self) -> usize {
        crate::SECTION_HEADER_LEN + ROSTER_LEN + self.name.map_or(0, |n| n.as_bytes().len())
    }

    /// The fixed part.
    pub fn emit(&self) -> [u8; ROSTER_LEN] {
        let mut out = [0; ROSTER_LEN];
        // A host that is taken out says no more of its processes than that they are gone.
        let reported = if self.state == ProcessState::HostSilent { ProcessState::Left } else { self.state };
        let (state, code) = reported.to_bytes();
        out[0] = state;
        out[2] = self.name.map_or(0, |n| n.as_bytes().len()) as u8;
        out[4..8].copy_from_slice(&self.incarnation.to_le_bytes());
        out[8..12].copy_from_slice(&self.pb_seq.to_le_bytes());
        out[12..16].copy_from_slice(&code.to_le_bytes());
        out[16..24].copy_from_slice(&self.at_ns.to_le_bytes());
        out
    }

    fn parse(slot: u8, b: &[u8]) -> Result<Roster, SectionError> {
        let length = |need| SectionError::Length { kind: ROSTER, len: b.len(), need };
        if b.len() < ROSTER_LEN {
            return Err(length(ROSTER_LEN));
        }
        let name_len = usize::from(b[2]);
        if b.len() != ROSTER_LEN + name_len {
            return Err(length(ROSTER_LEN + name_len));
        }
        process_slot(ROSTER, slot)?;
        Ok(Roster {
            slot,
            state: ProcessState::from_bytes(b[0], le32(b, 12) as i32)
                .filter(|state| *state != ProcessState::HostSilent)
                .ok_or(SectionError::State { state: b[0] })?,
            name: if name_len == 0 { None } else { Some(Name::new(&b[ROSTER_LEN..])?) },
            incarnation: le32(b, 4),
            pb_seq: le32(b, 8),
            at_ns: le64(b, 16),
        })
    }
}

/// A watcher's wish towards the subject's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Monitor {
    pub target_host: u16,
    /// [`HOST_SLOT`] for the host itself.
    pub target_slot: u8,
    /// [`HOST_SLOT`] for an anonymous watcher.
    pub watcher_slot: u8,
    pub timeout_us: u32,
    pub pbsize: u16,
}

impl Monitor {
    pub fn emit(&self) -> [u8; MONITOR_LEN] {
        let mut out = [0; MONITOR_LEN];
        out[0..2].copy_from_slice(&self.target_host.to_le_bytes());
        out[2] = self.watcher_slot;
        out[4..8].copy_from_slice(&self.timeout_us.to_le_bytes());
        out[8..10].copy_from_slice(&self.pbsize.to_le_bytes());
        out
    }

    fn parse(slot: u8, b: &[u8]) -> Result<Monitor, SectionError> {
        exact(MONITOR, b, MONITOR_LEN)?;
        if slot != HOST_SLOT {
            process_slot(MONITOR, slot)?;
        }
        if b[2] != HOST_SLOT {
            process_slot(MONITOR, b[2])?;
        }
        Ok(Monitor {
            target_host: host_id(le16(b, 0))?,
            target_slot: slot,
            watcher_slot: b[2],
            timeout_us: le32(b, 4),
            pbsize: le16(b, 8),
        })
    }
}

/// The incarnations that the sender holds dead, as they lie in the packet (already checked).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Excluded<'a> {
    bytes: &'a [u8],
}

impl<'a> Excluded<'a> {
    fn parse(b: &'a [u8]) -> Result<Excluded<'a>, SectionError> {
        if b.is_empty() || !b.len().is_multiple_of(EXCLUDED_LEN) {
            let need = b.len().div_ceil(EXCLUDED_LEN).max(1) * EXCLUDED_LEN;
            return Err(SectionError::Length { kind: EXCLUDED, len: b.len(), need });
        }
        for entry in b.chunks_exact(EXCLUDED_LEN) {
            host_id(le16(entry, 0))?;
        }
        Ok(Excluded { bytes: b })
    }

    /// (host id, incarnation).
    pub fn iter(&self) -> impl Iterator<Item = (u16, u32)> + Clone + 'a {
        self.bytes.chunks_exact(EXCLUDED_LEN).map(|e| (le16(e, 0), le32(e, 4)))
    }

    /// One entry.
    pub fn emit(host: HostId, incarnation: u32) -> [u8; EXCLUDED_LEN] {
        let mut out = [0; EXCLUDED_LEN];
        out[0..2].copy_from_slice(&host.to_le_bytes());
        out[4..8].copy_from_slice(&incarnation.to_le_bytes());
        out
    }
}

/// The newest heartbeats that the sender has received of hosts that do not acknowledge it yet, as they lie in
/// the packet (already checked). An echo acknowledges nothing: it only shows that its sender received that
/// heartbeat.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echoes<'a> {
    bytes: &'a [u8],
}

impl<'a> Echoes<'a> {
    fn parse(b: &'a [u8]) -> Result<Echoes<'a>, SectionError> {
        if b.is_empty() || !b.len().is_multiple_of(ECHO_LEN) {
            let need = b.len().div_ceil(ECHO_LEN).max(1) * ECHO_LEN;
            return Err(SectionError::Length { kind: ECHO, len: b.len(), need });
        }
        for entry in b.chunks_exact(ECHO_LEN) {
            host_id(le16(entry, 0))?;
        }
        Ok(Echoes { bytes: b })
    }

    /// (host id, incarnation, sequence number).
    pub fn iter(&self) -> impl Iterator<Item = (u16, u32, u64)> + Clone + 'a {
        self.bytes.chunks_exact(ECHO_LEN).map(|e| (le16(e, 0), le32(e, 4), le64(e, 8)))
    }

    /// One entry.
    pub fn emit(host: HostId, incarnation: u32, seq: u64) -> [u8; ECHO_LEN] {
        let mut out = [0; ECHO_LEN];
        out[0..2].copy_from_slice(&host.to_le_bytes());
        out[4..8].copy_from_slice(&incarnation.to_le_bytes());
        out[8..16].copy_from_slice(&seq.to_le_bytes());
        out
    }
}

/// A section as it lies in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section<'a> {
    pub kind: u8,
    pub slot: u8,
    pub bytes: &'a [u8],
}

/// A section, understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body<'a> {
    Roster(Roster),
    Piggyback {
        slot: u8,
        pb_seq: u32,
        bytes: &'a [u8],
    },
    View(View<'a>),
    Promise {
        timeout_us: u32,
    },
    Excluded(Excluded<'a>),
    Goodbye,
    Monitor(Monitor),
    Echo(Echoes<'a>),
    AllNamed,
    /// Of a later version of this format.
    Unknown,
}

impl<'a> Section<'a> {
    /// Understands the section.
    pub fn body(&self) -> Result<Body<'a>, SectionError> {
        let b = self.bytes;
        if matches!(self.kind, VIEW | PROMISE | EXCLUDED | GOODBYE | ECHO | ALL_NAMED) && self.slot != 0 {
            return Err(SectionError::Slot { kind: self.kind, slot: self.slot, must: "0" });
        }
        Ok(match self.kind {
            ROSTER => Body::Roster(Roster::parse(self.slot, b)?),
            PIGGYBACK => {
                process_slot(PIGGYBACK, self.slot)?;
                if b.len() < 4 {
                    return Err(SectionError::Length { kind: PIGGYBACK, len: b.len(), need: 4 });
                }
                let pb_seq = le32(b, 0);
                if pb_seq == 0 {
                    return Err(SectionError::PiggybackSeq);
                }
                Body::Piggyback { slot: self.slot, pb_seq, bytes: &b[4..] }
            }
            VIEW => {
                if b.len() < VIEW_STEADY_LEN {
                    return Err(SectionError::Length { kind: VIEW, len: b.len(), need: VIEW_STEADY_LEN });
                }
                Body::View(View::check(b)?)
            }
            PROMISE => {
                exact(PROMISE, b, 4)?;
                Body::Promise { timeout_us: le32(b, 0) }
            }
            EXCLUDED => Body::Excluded(Excluded::parse(b)?),
            GOODBYE => {
                exact(GOODBYE, b, 0)?;
                Body::Goodbye
            }
            MONITOR => Body::Monitor(Monitor::parse(self.slot, b)?),
            ECHO => Body::Echo(Echoes::parse(b)?),
            ALL_NAMED => {
                exact(ALL_NAMED, b, 0)?;
                Body::AllNamed
            }
            _ => Body::Unknown,
        })
    }
}

fn process_slot(kind: u8, slot: u8) -> Result<(), SectionError> {
    if usize::from(slot) < MAX_PROCESSES {
        Ok(())
    } else {
        Err(SectionError::Slot { kind, slot, must: "0..=63 (0xff where the host itself can be meant)" })
    }
}

fn host_id(host: HostId) -> Result<u16, SectionError> {
    if (1..=MAX_HOSTS as u16).contains(&host) { Ok(host) } else { Err(SectionError::Host { host }) }
}

fn exact(kind: u8, b: &[u8], need: usize) -> Result<(), SectionError> {
    if b.len() == need { Ok(()) } else { Err(SectionError::Length { kind, len: b.len(), need }) }
}

#[inline]
pub(crate) fn le16(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

#[inline]
pub(crate) fn le32(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

#[inline]
pub(crate) fn le64(b: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(b[at..at + 8].try_into().expect("eight bytes"))
}
