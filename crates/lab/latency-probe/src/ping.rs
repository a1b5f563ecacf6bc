// SPDX-License-Identifier: Apache-2.0
//! Host A: sends pings on time and records the answers.
//!
//! Packet `id` is due at `start + id * period`, whatever happened before, so that the sender never drifts. If
//! the sender is late, `ts1` shows it, and packets that became due meanwhile go out at once, one after the
//! other. The relative schedule sends one period after the last send, as the jitter report's busy loop does
//! (§3.2).

use std::{
    io,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use fide_jitter_analysis::{MISSING, Sample, Schedule};
use fide_sys::clock::mono_ns;
use fide_wire::PAYLOAD_MAX;

use crate::{
    PERIOD_MIN_NS,
    packet::{HEADER, Header, Kind},
    pages::{self, Pages},
    port::Port,
};

/// Most packets of a run. They are kept in memory (56 bytes each) until its end, because writing a file would
/// disturb the measurement.
pub const PACKETS_MAX: u64 = 20_000_000;
/// A thread that sleeps until a packet is due wakes up this much earlier and spins for the rest.
const SPIN_NS: u64 = 120_000;
/// How long answers are waited for after the last ping.
const DRAIN_NS: u64 = 200_000_000;
/// If a spinning loop loses more time than this in one turn, it was not running; shorter times are the loop's
/// own turns.
const DETOUR_NS: u64 = 5_000;
/// Detours that are kept; further ones are counted.
const DETOURS_MAX: usize = 1 << 20;
/// Most restarts of the pong that are recorded.
const RESTARTS_MAX: usize = 1024;
/// How often a longer wait checks whether it should stop.
const LOOK_NS: u64 = 100_000_000;
/// A link that takes no packet for this long is gone.
const GONE_NS: u64 = 1_000_000_000;

/// What to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub packets: u64,
    pub period_ns: u64,
    pub packet_bytes: usize,
    pub schedule: Schedule,
    /// A random number of this run; answers of another run are ignored.
    pub run: u64,
    /// Whether to spin from one packet to the next, instead of sleeping where there is time for it.
    pub spin: bool,
}

/// Why a plan cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("a period of {period_ns} ns is too short: {PERIOD_MIN_NS} is the shortest")]
    Period { period_ns: u64 },
    #[error("a packet cannot have {packet_bytes} bytes: {HEADER} to {PAYLOAD_MAX} are possible")]
    Size { packet_bytes: usize },
    #[error("{packets} packets: 1 to {PACKETS_MAX} are possible in one run")]
    Packets { packets: u64 },
}

impl Plan {
    /// Checks the plan before anything is sent.
    ///
    /// # Errors
    /// [`PlanError`].
    pub fn check(&self) -> Result<(), PlanError> {
        if self.period_ns < PERIOD_MIN_NS {
            return Err(PlanError::Period { period_ns: self.period_ns });
        }
        if !(HEADER..=PAYLOAD_MAX).contains(&self.packet_bytes) {
            return Err(PlanError::Size { packet_bytes: self.packet_bytes });
        }
        if self.packets == 0 || self.packets > PACKETS_MAX {
            return Err(PlanError::Packets { packets: self.packets });
        }
        Ok(())
    }
}

/// Progress of a run, shared with the thread that waits for its end.
#[derive(Debug, Default)]
pub struct Progress {
    pub sent: AtomicU64,
    pub answered: AtomicU64,
    /// Set it to end the run; what was measured is kept.
    pub stop: AtomicBool,
}

/// Time in which the measuring thread did not run although it wanted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Detour {
    pub start_ns: u64,
    pub end_ns: u64,
}

/// What was measured.
#[derive(Debug, Default)]
pub struct Measured {
    /// By id; packets that were never sent have no `ts1`.
    pub samples: Vec<Sample>,
    /// When packet 0 was due.
    pub start_ns: u64,
    /// The first id that each new pong answered, with its incarnation.
    pub restarts: Vec<(u64, u32)>,
    pub detours: Vec<Detour>,
    pub detours_more: u64,
    /// Packets that the kernel refused.
    pub send_failed: u64,
    /// Packets that were not answers of this run, or came twice.
    pub ignored: u64,
    /// Why the run ended before the last packet, if it did.
    pub ended: Option<String>,
    /// Whether the samples lie on huge pages.
    pub huge_pages: String,
}

struct Loop<'a> {
    port: &'a mut dyn Port,
    plan: Plan,
    measured: Measured,
    buffer: [u8; PAYLOAD_MAX],
    packet: [u8; PAYLOAD_MAX],
    answered: u64,
    incarnation: u32,
}

/// Sends all packets of the plan. Ends early if it should stop, or if the link is gone.
///
/// # Errors
/// [`PlanError`], before anything is sent.
pub fn run(port: &mut dyn Port, plan: Plan, pages: Pages, progress: &Progress) -> Result<Measured, PlanError> {
    plan.check()?;
    let count = usize::try_from(plan.packets).expect("at most PACKETS_MAX");
    let (mut samples, huge_pages) = pages::room(count, pages);
    samples.extend((0..plan.packets).map(|id| Sample::new(id, [MISSING; 4])));
    let mut measured = Measured { samples, huge_pages, ..Measured::default() };
    measured.detours.reserve_exact(DETOURS_MAX.min(count * 4 + 1024));
    measured.restarts.reserve_exact(RESTARTS_MAX);
    let this =
        Loop { port, plan, measured, buffer: [0; PAYLOAD_MAX], packet: [0; PAYLOAD_MAX], answered: 0, incarnation: 0 };
    Ok(this.run(progress))
}

impl Loop<'_> {
    fn run(mut self, progress: &Progress) -> Measured {
        let Plan { packets, period_ns, schedule, .. } = self.plan;
        // Allows time to start, so that the first packet is not late already.
        let mut due = mono_ns() + 2 * period_ns.max(SPIN_NS);
        self.measured.start_ns = due;
        let mut last_taken_ns = due;
        let mut sent = 0;
        for id in 0..packets {
            if let Err(error) = self.wait(due, &progress.stop) {
                self.measured.ended = Some(format!("nothing could be received any more: {error}"));
                break;
            }
            if progress.stop.load(Ordering::Relaxed) {
                self.measured.ended = Some("told to stop".to_owned());
                break;
            }
            sent = id + 1;
            match self.send(id) {
                Ok(at_ns) => {
                    last_taken_ns = at_ns;
                    if schedule == Schedule::Relative {
                        due = at_ns;
                    }
                }
                Err(error) => {
                    self.measured.send_failed += 1;
                    self.measured.samples[usize::try_from(id).expect("counted")].ts[0] = MISSING;
                    if mono_ns().saturating_sub(last_taken_ns) > GONE_NS {
                        self.measured.ended = Some(format!("no packet was taken for a second: {error}"));
                        break;
                    }
                }
            }
            due += period_ns;
            progress.sent.store(sent, Ordering::Relaxed);
            progress.answered.store(self.answered, Ordering::Relaxed);
        }
        self.drain(sent);
        progress.answered.store(self.answered, Ordering::Relaxed);
        self.measured.samples.truncate(usize::try_from(sent).expect("counted"));
        self.measured
    }

    /// Receives answers until a packet is due, or the run should stop.
    fn wait(&mut self, due: u64, stop: &AtomicBool) -> io::Result<()> {
        let mut before = mono_ns();
        loop {
            let now = mono_ns();
            if now - before > DETOUR_NS {
                self.detour(before, now);
            }
            if now >= due || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let until = if self.plan.spin || due - now <= SPIN_NS { now } else { (due - SPIN_NS).min(now + LOOK_NS) };
            let arrived = self.port.receive(&mut self.buffer, until)?;
            before = mono_ns();
            if let Some(arrived) = arrived {
                self.note(arrived.len, arrived.at_ns, arrived.kernel_ns);
                before = mono_ns();
            } else if until == now && before - now > DETOUR_NS {
                // A look at an empty port does not take that long.
                self.detour(now, before);
            }
        }
    }

    fn detour(&mut self, start_ns: u64, end_ns: u64) {
        if self.measured.detours.len() < self.measured.detours.capacity() {
            self.measured.detours.push(Detour { start_ns, end_ns });
        } else {
            self.measured.detours_more += 1;
        }
    }

    fn send(&mut self, id: u64) -> io::Result<u64> {
        let len = self.plan.packet_bytes;
        let mut ping = Header {
            kind: Kind::Ping,
            packet_bytes: u16::try_from(len).expect("checked"),
            run: self.plan.run,
            id,
            ts1_ns: 0,
            ts2_ns: 0,
            ts3_ns: 0,
            kernel_ns: MISSING,
            incarnation: 0,
        };
        let at_ns = mono_ns();
        ping.ts1_ns = at_ns.cast_signed();
        ping.emit(&mut self.packet);
        // Before the send: on a virtual link the answer may be back before it returns.
        self.measured.samples[usize::try_from(id).expect("counted")].ts[0] = ping.ts1_ns;
        self.port.send(&self.packet[..len])?;
        Ok(at_ns)
    }

    fn note(&mut self, len: usize, at_ns: u64, kernel_ns: Option<u64>) {
        let pong = Header::parse(&self.buffer[..len]).filter(|h| h.kind == Kind::Pong && h.run == self.plan.run);
        let sample = pong.and_then(|pong| {
            let sample = self.measured.samples.get_mut(usize::try_from(pong.id).ok()?)?;
            // The ping must have been sent at exactly this time, and not be answered yet.
            (sample.ts[0] == pong.ts1_ns && sample.lost()).then_some((pong, sample))
        });
        let Some((pong, sample)) = sample else {
            self.measured.ignored += 1;
            return;
        };
        sample.ts[1..].copy_from_slice(&[pong.ts2_ns, pong.ts3_ns, at_ns.cast_signed()]);
        sample.hw[1] = pong.kernel_ns;
        sample.hw[3] = kernel_ns.map_or(MISSING, u64::cast_signed);
        self.answered += 1;
        if pong.incarnation != self.incarnation {
            self.incarnation = pong.incarnation;
            if self.measured.restarts.len() < RESTARTS_MAX {
                self.measured.restarts.push((pong.id, pong.incarnation));
            }
        }
    }

    /// Receives the answers that are still on their way.
    fn drain(&mut self, sent: u64) {
        let until = mono_ns() + DRAIN_NS;
        while self.answered < sent && mono_ns() < until {
            match self.port.receive(&mut self.buffer, until) {
                Ok(Some(arrived)) => self.note(arrived.len, arrived.at_ns, arrived.kernel_ns),
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }
}
