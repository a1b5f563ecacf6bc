// SPDX-License-Identifier: Apache-2.0
//! What became of a process, and why a verdict was given.

use crate::HOST_SLOT;
use crate::HostId;
use serde::{Deserialize, Serialize};

/// A place of a process on a host, or the host itself. Which process that is, its incarnation says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessRef {
    /// `1..=MAX_HOSTS`.
    pub host: HostId,
    /// `0..MAX_PROCESSES`, or [`HOST_SLOT`] for the host itself.
    pub slot: u8,
}

impl ProcessRef {
    #[must_use]
    pub const fn new(host: HostId, slot: u8) -> Self {
        Self { host, slot }
    }

    /// The host itself.
    #[must_use]
    pub const fn of_host(host: HostId) -> Self {
        Self { host, slot: HOST_SLOT }
    }

    #[must_use]
    pub const fn is_host(self) -> bool {
        self.slot == HOST_SLOT
    }
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ProcessState {
    Alive,
    /// It exited by itself, with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
    /// It said goodbye.
    Left,
    /// It runs, but no longer beats as it had promised. Not final.
    Stalled,
    /// Its host was declared dead. Observers conclude this; a host never says it of its own process.
    HostSilent,
}

impl ProcessState {
    /// A wait status with this value was never known: the process was reaped before anybody could read it.
    pub const STATUS_UNKNOWN: i32 = -1;

    /// An end as wait(2) encodes it; [`ProcessState::STATUS_UNKNOWN`] becomes the exit code -1.
    #[must_use]
    pub fn from_wait_status(status: i32) -> Self {
        match status & 0x7f {
            _ if status == Self::STATUS_UNKNOWN => Self::Exited(Self::STATUS_UNKNOWN),
            0 => Self::Exited(status >> 8 & 0xff),
            signal => Self::Killed(signal),
        }
    }

    /// Whether nothing can follow in this incarnation.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Alive | Self::Stalled)
    }

    /// Why a verdict on this state is given; `None` while it is alive.
    #[must_use]
    pub fn reason(self) -> Option<Reason> {
        Some(match self {
            Self::Alive => return None,
            Self::Exited(code) => Reason::Exited(code),
            Self::Killed(signal) => Reason::Killed(signal),
            Self::Left => Reason::Left,
            Self::Stalled => Reason::Stalled,
            Self::HostSilent => Reason::HostSilent,
        })
    }

    /// The state as one byte, and its exit code or signal: in packets and in the alive table.
    #[must_use]
    pub const fn to_bytes(self) -> (u8, i32) {
        match self {
            Self::Alive => (1, 0),
            Self::Exited(code) => (2, code),
            Self::Killed(signal) => (3, signal),
            Self::Left => (4, 0),
            Self::Stalled => (5, 0),
            Self::HostSilent => (6, 0),
        }
    }

    /// The reverse of [`ProcessState::to_bytes`]; `None` for a byte that means nothing.
    #[must_use]
    pub fn from_bytes(state: u8, code: i32) -> Option<Self> {
        Some(match state {
            1 => Self::Alive,
            2 => Self::Exited(code),
            3 => Self::Killed(code),
            4 => Self::Left,
            5 => Self::Stalled,
            6 => Self::HostSilent,
            _ => return None,
        })
    }
}

/// Why a verdict was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Reason {
    /// It exited by itself, with this code. Certain: its own host's kernel saw it.
    Exited(i32),
    /// This signal killed it. Certain: its own host's kernel saw it.
    Killed(i32),
    /// It, or the agent of its host, said goodbye. Not a failure.
    Left,
    /// No heartbeat of its host arrived on any plane within the timeout.
    HostSilent,
    /// It no longer beats as it had promised. Not final.
    Stalled,
    /// It beats again after `Stalled`. Not final.
    Recovered,
}

impl Reason {
    /// Whether the incarnation is over for good.
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Stalled | Self::Recovered)
    }

    /// Whether it is a failure: everything final but a goodbye.
    #[must_use]
    pub fn is_failure(self) -> bool {
        self.is_final() && self != Self::Left
    }

    /// The reason as one byte, and its exit code or signal: in event records. 5 was never given.
    #[must_use]
    pub const fn to_bytes(self) -> (u8, i32) {
        match self {
            Self::Exited(code) => (reason::EXITED, code),
            Self::Killed(signal) => (reason::KILLED, signal),
            Self::Left => (reason::LEFT, 0),
            Self::HostSilent => (reason::HOST_SILENT, 0),
            Self::Stalled => (reason::STALLED, 0),
            Self::Recovered => (reason::RECOVERED, 0),
        }
    }

    /// The reverse of [`Reason::to_bytes`]; `None` for a byte that means nothing.
    #[must_use]
    pub fn from_bytes(byte: u8, code: i32) -> Option<Self> {
        Some(match byte {
            reason::EXITED => Self::Exited(code),
            reason::KILLED => Self::Killed(code),
            reason::LEFT => Self::Left,
            reason::HOST_SILENT => Self::HostSilent,
            reason::STALLED => Self::Stalled,
            reason::RECOVERED => Self::Recovered,
            _ => return None,
        })
    }
}

/// [`Reason`] as a byte, for the C interfaces.
pub mod reason {
    pub const EXITED: u8 = 1;
    pub const KILLED: u8 = 2;
    pub const LEFT: u8 = 3;
    pub const HOST_SILENT: u8 = 4;
    pub const STALLED: u8 = 6;
    pub const RECOVERED: u8 = 7;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_and_reason_survives_its_bytes() {
        let states = [
            ProcessState::Alive,
            ProcessState::Exited(-1),
            ProcessState::Killed(9),
            ProcessState::Left,
            ProcessState::Stalled,
            ProcessState::HostSilent,
        ];
        for state in states {
            let (byte, code) = state.to_bytes();
            assert_eq!(ProcessState::from_bytes(byte, code), Some(state));
            assert_eq!(state.reason().is_none(), state == ProcessState::Alive);
        }
        let known = (0..=u8::MAX).filter(|byte| ProcessState::from_bytes(*byte, 0).is_some()).count();
        assert_eq!(known, states.len());
        let reasons: Vec<Reason> = (0..=u8::MAX).filter_map(|byte| Reason::from_bytes(byte, 7)).collect();
        assert_eq!(reasons.len(), 6);
        for why in reasons {
            let (byte, code) = why.to_bytes();
            assert_eq!(Reason::from_bytes(byte, code), Some(why));
        }
    }

    #[test]
    fn final_states_give_final_reasons() {
        for byte in 1..=6 {
            let state = ProcessState::from_bytes(byte, 0).expect("known");
            assert_eq!(state.is_final(), state.reason().is_some_and(Reason::is_final), "{state:?}");
        }
    }

    #[test]
    fn a_wait_status_is_a_code_or_a_signal() {
        assert_eq!(ProcessState::from_wait_status(3 << 8), ProcessState::Exited(3));
        assert_eq!(ProcessState::from_wait_status(9), ProcessState::Killed(9));
        assert_eq!(ProcessState::from_wait_status(9 | 0x80), ProcessState::Killed(9), "with a core dump");
        assert_eq!(ProcessState::from_wait_status(-1), ProcessState::Exited(-1));
    }
}
