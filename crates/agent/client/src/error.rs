// SPDX-License-Identifier: Apache-2.0
//! Errors, worded so that the reader knows what to do.

use fide_agent_api::protocol::{Empty, ErrorCode};
use fide_agent_api::protocol::{NameError, Refusal};
use fide_shm::{bpf_ring::BpfRingError, region::RegionError, spsc::Broken};
use fide_types::Time;
use rustix::io::Errno;
use std::path::PathBuf;
use std::time::Duration;

/// Why a call to the client library failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No agent answers at the socket.
    #[error("no Fide agent at {}: {errno}; {}", path.display(), hint(*errno))]
    NoAgent {
        /// The socket.
        path: PathBuf,
        /// The kernel's error.
        errno: Errno,
    },
    /// The agent refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// An invalid name or target.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The answer is not one of this version's agents.
    #[error("the agent's answer to {op} makes no sense: {problem}; agent and client are of different versions")]
    Protocol {
        /// The request.
        op: &'static str,
        /// The error in the answer.
        problem: String,
    },
    /// The shared memory that the agent handed over is not usable.
    #[error("shared memory of the agent: {0}")]
    Memory(RegionError),
    /// This program's clocks differ from the agent's: it would read the lease wrongly.
    #[error(
        "this program is in another time namespace than the agent ({own}, the agent's is {agent}; 0: unknown), so that it \
         cannot tell when its lease ends: start it in the agent's time namespace, with /proc mounted"
    )]
    TimeNamespace {
        /// Inode of the agent's time namespace, 0 if unknown.
        agent: u32,
        /// Inode of this process' time namespace, 0 if unknown.
        own: u32,
    },
    /// The event ring that the agent handed over is not usable.
    #[error("event ring of the agent: {0}")]
    BpfRing(BpfRingError),
    /// The event ring contradicts itself.
    #[error("event inbox: {0}")]
    Inbox(Broken),
    /// The agent did not answer in time.
    #[error("the agent did not answer {op} within {}", Time::ns(*timeout_ns))]
    Timeout {
        /// The request.
        op: &'static str,
        /// How long the client waited.
        timeout_ns: u64,
    },
    /// The agent closed the connection instead of answering.
    #[error("the agent hung up during {op}: {why}")]
    HungUp {
        /// The request.
        op: &'static str,
        /// The client's observation, for people.
        why: String,
    },
    /// The agent is away; the client looks for it by itself.
    #[error("detached from the agent: {0}; it is being looked for, try again")]
    Detached(String),
    /// This client has no such monitor or process.
    #[error("{0} is not registered with this client")]
    Unregistered(&'static str),
    /// The acknowledged incarnation is not the last one reported to this client.
    #[error(
        "this host was last said to be incarnation {reported}, not {given}; acknowledge what the newest `rejoined` event said"
    )]
    NotRejoined {
        /// The acknowledged incarnation.
        given: u32,
        /// The incarnation in the newest event, or in the agent's first answer.
        reported: u32,
    },
    /// A bound of this library is reached.
    #[error("at most {limit} {what} per client")]
    TooMany {
        /// The kind of thing that there are too many of.
        what: &'static str,
        /// How many there may be.
        limit: usize,
    },
    /// A system call failed.
    #[error("{call}: {errno}")]
    System {
        /// The system call.
        call: &'static str,
        /// The kernel's error.
        errno: Errno,
    },
}

impl From<RegionError> for Error {
    fn from(why: RegionError) -> Self {
        Self::Memory(why)
    }
}

impl From<BpfRingError> for Error {
    fn from(why: BpfRingError) -> Self {
        Self::BpfRing(why)
    }
}

impl From<Broken> for Error {
    fn from(why: Broken) -> Self {
        Self::Inbox(why)
    }
}

impl Error {
    pub(crate) fn system(call: &'static str) -> impl FnOnce(Errno) -> Self {
        move |errno| Self::System { call, errno }
    }
}

fn hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT | Errno::CONNREFUSED => {
            "start one with `fide agent`, or name its socket in FIDE_SOCKET (or by --socket of `fide`)"
        }
        Errno::ACCESS | Errno::PERM => "this user may not use the agent's socket",
        Errno::PROTOTYPE => "that socket belongs to something else (not SOCK_SEQPACKET)",
        Errno::AGAIN => {
            "it runs, and took no connection for as long as a call may take; is it stopped, or do others connect without end?"
        }
        Errno::NAMETOOLONG => "a socket path has at most 107 bytes",
        _ => "is FIDE_SOCKET (or --socket of `fide`) right?",
    }
}

/// Why a piggyback (FiDe §3.1: a call that would exceed `pbsize` is declined) or a lane's message was
/// declined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Declined {
    /// Longer than the granted size; sending it again will not help.
    #[error("piggyback of {len} bytes, {pbsize} are granted")]
    TooLarge {
        /// Bytes asked for.
        len: usize,
        /// Bytes granted per heartbeat.
        pbsize: u16,
    },
    /// The outbox is full; the agent will drain it.
    #[error("outbox full; the agent sends one piggyback per heartbeat, and one packet per period of a lane")]
    Full,
    /// Only a joined process can send.
    #[error("not joined; join before piggybacking")]
    NotJoined,
    /// Longer than the lane's messages may be.
    #[error("message of {len} bytes, this lane carries at most {max}")]
    MessageTooLarge {
        /// Bytes asked for.
        len: usize,
        /// Longest message.
        max: u32,
    },
    /// Service 0 does not exist.
    #[error("service 0; services are 1 to 255")]
    Service,
    /// The lane was closed or terminated.
    #[error("no such lane; open it first")]
    NoLane,
    /// The agent is away, or a new one is opening the lane again.
    #[error("the lane is not there just now: the agent is away, or opens it again")]
    Detached,
    /// The outbox is damaged; it is replaced at the next re-attachment.
    #[error("outbox damaged")]
    Broken,
}

/// The outcome of ending something. If the agent does not know it any more, it has ended.
pub(crate) fn ended(outcome: Result<Empty, Error>) -> Result<(), Error> {
    match outcome {
        Err(Error::Refused(refusal)) if matches!(refusal.code, ErrorCode::NotFound | ErrorCode::Gone) => Ok(()),
        other => other.map(drop),
    }
}

/// No answer came in time.
pub(crate) fn timed_out(op: &'static str, timeout: Duration) -> Error {
    Error::Timeout { op, timeout_ns: timeout.as_nanos() as u64 }
}
