// SPDX-License-Identifier: Apache-2.0
//! Faults of a cluster, and their times.

use std::fmt;

use fide_types::HostId;

use super::super::clock::Stands;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Time after faults begin.
    pub at_ns: u64,
    pub what: What,
}

/// Which machine receives packets to a host that runs twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reaches {
    Both,
    /// The machine that has sent last.
    Latest,
    /// As `Latest`, but heartbeats reach both.
    LatestUnlessAll,
}

/// Hosts are `1..=n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    Crash {
        host: HostId,
    },
    /// The host crashes after it has sent so many more copies.
    CrashSending {
        host: HostId,
        copies: u32,
    },
    /// Starts a crashed host, as a new incarnation.
    Start {
        host: HostId,
    },
    Pause {
        host: HostId,
        for_ns: u64,
    },
    /// The host says goodbye, and ends.
    Leave {
        host: HostId,
    },
    /// The leader of the group is asked to remove the member of this host, which joins again as another
    /// incarnation.
    Remove {
        host: HostId,
    },
    /// The leader of the group is asked to hand over to the member of this host.
    HandOver {
        host: HostId,
    },
    /// Cuts one direction of one link.
    Cut {
        from: u16,
        to: u16,
        plane: u8,
    },
    /// Cuts all links of a host in one plane.
    Isolate {
        host: HostId,
        plane: u8,
    },
    /// Cuts two sides from each other, in both planes.
    Split {
        side: u64,
    },
    /// Cuts all links among these hosts (a set); the others still hear them.
    Divide {
        among: u64,
    },
    Heal,
    /// The host sets this timeout for all its peers. The timeout never gets lower than the host's first one;
    /// if hosts judge alone, it never gets lower at all.
    Timeouts {
        host: HostId,
        timeout_ns: u64,
    },
    /// The host is cut off this long after any host has accepted a change of the detectors' view.
    CutAtChange {
        host: HostId,
        after_ns: u64,
    },
    /// Only the agent is paused.
    PauseAgent {
        host: HostId,
        for_ns: u64,
    },
    /// Only the member is paused.
    PauseSeat {
        host: HostId,
        for_ns: u64,
    },
    /// Only the keeper of the service is paused.
    PauseService {
        host: HostId,
        for_ns: u64,
    },
    /// Only the agent is killed, and another one starts.
    KillAgent {
        host: HostId,
        down_ns: u64,
    },
    /// Another agent takes over from this one; the handover takes this long.
    TakeOver {
        host: HostId,
        for_ns: u64,
    },
    /// Only the member is killed, and another one starts.
    KillSeat {
        host: HostId,
    },
    /// The host's clock runs faster by this much.
    Slew {
        host: HostId,
        ppm: i64,
    },
    /// The host is suspended, and its monotonic clock with it.
    Suspend {
        host: HostId,
        for_ns: u64,
    },
    /// Recorded heartbeats of other hosts are sent to this host again, for this long.
    Replay {
        host: HostId,
        for_ns: u64,
    },
    /// A hypervisor stops the host, and with it these clocks; with `None`, its clocks run on.
    Stop {
        host: HostId,
        for_ns: u64,
        stands: Option<Stands>,
    },
    /// This long after any host acts by a view of a new lineage, one host is cut off, and all others crash
    /// and start again.
    CrashAtFounding {
        away: u16,
        after_ns: u64,
    },
    /// A snapshot of the host's machine is taken.
    Snapshot {
        host: HostId,
    },
    /// The machine is put back to its snapshot.
    PutBack {
        host: HostId,
    },
    /// The snapshot runs beside its original.
    Clone {
        host: HostId,
        reaches: Reaches,
    },
    /// The clone is ended, and its original starts again.
    EndClone,
    /// All hosts crash at once, and start again one by one within this time.
    PowerCut {
        down_ns: u64,
    },
    /// All hosts crash, as [`What::PowerCut`], while the next member waits for its disk before it stores that there is a
    /// group.
    PowerCutAtRecord {
        down_ns: u64,
    },
    /// All members are killed at once, and others start.
    KillSeats,
    /// The member is killed, and goes on with the disk that it had before, or with an empty one.
    SwapDisk {
        host: HostId,
    },
    /// The disk of the member's log is full for so long.
    FillDisk {
        host: HostId,
        for_ns: u64,
    },
    /// The agent notifies its programs so often that a plane to another host is lost and restored, all at
    /// once.
    Flood {
        host: HostId,
        times: u32,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>8.3} ms  ", milliseconds(self.at_ns))?;
        match self.what {
            What::Crash { host } => write!(f, "h{host} crashes"),
            What::CrashSending { host, copies } => write!(f, "h{host} crashes after {copies} more copies"),
            What::Start { host } => write!(f, "h{host} starts again"),
            What::Leave { host } => write!(f, "h{host} leaves"),
            What::Remove { host } => write!(f, "h{host} is to be taken out of the group"),
            What::HandOver { host } => write!(f, "the leader is to hand over to h{host}"),
            What::Pause { host, for_ns } => write!(f, "h{host} stands still for {:.3} ms", milliseconds(for_ns)),
            What::Cut { from, to, plane } => write!(f, "h{from} to h{to} is cut in plane {plane}"),
            What::Isolate { host, plane } => write!(f, "h{host} is cut off in plane {plane}"),
            What::Split { side } => write!(f, "the hosts of {side:#b} are cut from the others"),
            What::Divide { among } => write!(f, "the hosts of {among:#b} are cut from each other"),
            What::Heal => write!(f, "all links are mended"),
            What::Timeouts { host, timeout_ns } => {
                write!(f, "h{host} has timeouts of {:.3} ms", milliseconds(timeout_ns))
            }
            What::CutAtChange { host, after_ns } => {
                write!(
                    f,
                    "h{host} is cut off {:.3} ms after the next change of view is accepted",
                    milliseconds(after_ns)
                )
            }
            What::PauseAgent { host, for_ns } => {
                write!(f, "the agent of h{host} stands still for {:.3} ms", milliseconds(for_ns))
            }
            What::PauseSeat { host, for_ns } => {
                write!(f, "the member of h{host} stands still for {:.3} ms", milliseconds(for_ns))
            }
            What::PauseService { host, for_ns } => {
                write!(f, "the keeper of h{host} stands still for {:.3} ms", milliseconds(for_ns))
            }
            What::KillAgent { host, down_ns } => {
                write!(f, "the agent of h{host} is killed, and starts after {:.3} ms", milliseconds(down_ns))
            }
            What::TakeOver { host, for_ns } => {
                write!(f, "the agent of h{host} hands over, for {:.3} ms", milliseconds(for_ns))
            }
            What::KillSeat { host } => write!(f, "the member of h{host} is killed"),
            What::Slew { host, ppm } => write!(f, "the clock of h{host} is slewed by {ppm} ppm"),
            What::Suspend { host, for_ns } => write!(f, "h{host} is suspended for {:.3} ms", milliseconds(for_ns)),
            What::Replay { host, for_ns } => {
                write!(f, "h{host} is sent what was recorded, for {:.3} ms", milliseconds(for_ns))
            }
            What::Stop { host, for_ns, stands } => {
                write!(f, "the machine of h{host} is stopped for {:.3} ms, ", milliseconds(for_ns))?;
                f.write_str(match stands {
                    None => "its clocks run on",
                    Some(Stands::Counted) => "only the processor's counter runs on",
                    Some(_) => "and all its clocks",
                })
            }
            What::CrashAtFounding { away, after_ns } => write!(
                f,
                "{:.3} ms after the next lineage begins to act h{away} is cut off, and all others crash",
                milliseconds(after_ns)
            ),
            What::Snapshot { host } => write!(f, "a snapshot of h{host} is taken"),
            What::PutBack { host } => write!(f, "h{host} is put back to its snapshot"),
            What::Clone { host, reaches } => {
                write!(f, "the snapshot of h{host} runs beside it, packets reach {reaches:?}")
            }
            What::EndClone => f.write_str("the clone is ended, and its original starts again"),
            What::PowerCut { down_ns } => {
                write!(f, "all hosts crash, and start again within {:.3} ms", milliseconds(down_ns))
            }
            What::PowerCutAtRecord { down_ns } => write!(
                f,
                "when the next member stores that there is a group all hosts crash, and start again within {:.3} ms",
                milliseconds(down_ns)
            ),
            What::KillSeats => f.write_str("all members are killed"),
            What::SwapDisk { host } => write!(f, "the member of h{host} is killed, and goes on with another disk"),
            What::FillDisk { host, for_ns } => {
                write!(f, "the disk of h{host} is full for {:.3} ms", milliseconds(for_ns))
            }
            What::Flood { host, times } => {
                write!(f, "the programs of h{host} are notified of {times} losses of a plane")
            }
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "seconds in nanoseconds, to be read")]
pub(in super::super) fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
}
