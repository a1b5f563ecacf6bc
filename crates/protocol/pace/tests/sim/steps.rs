// SPDX-License-Identifier: Apache-2.0
//! What a step of a clock excuses. A step may look like a queue, so that a message is late at an end by no more than the step, until the
//! clocks were compared again there: an exchange of times is over that began after the step, and those of before do not count any more.
//! A step that is shorter than a quarter of a round trip is taken for jitter: what was sent before it is excused until it expires. Nothing else
//! is excused.
//!
//! An end whose clock is set back goes on from what that showed last, so that it has lost only the time since then, however far it was set.

use fide_pace::packet::{Frame, SENT_LEN, read_frame};

/// No deadline of these runs is longer.
const SHORT_NS: u64 = 2_000_000_000;

/// A step that the clocks were not compared after yet.
#[derive(Debug)]
struct Step {
    at_ns: u64,
    /// What it costs at most.
    by_ns: u64,
    /// It is one back of this end's clock, 0 or 1, which was read last then, and not since.
    unread: Option<(usize, u64)>,
    /// It is taken for jitter.
    is_short: bool,
    /// The first packet that left the end after it.
    first: Option<u64>,
    /// What the end has asked with since.
    echoes: Vec<[u8; 8]>,
    /// It is excused until then, as the clocks were compared.
    until_ns: u64,
}

/// Steps of either clock, at one end.
#[derive(Debug, Default)]
pub(crate) struct Steps(Vec<Step>);

fn frames(plain: &[u8], mut look: impl FnMut(Frame<'_>)) {
    let mut frames = plain.get(SENT_LEN..).unwrap_or_default();
    while let Ok(Some(frame)) = read_frame(&mut frames) {
        look(frame);
    }
}

impl Steps {
    /// The clock of an end steps, this one or the other, that was read last then.
    pub(crate) fn stepped(&mut self, at_ns: u64, by_ns: i64, end: usize, read_ns: u64) {
        let unread = (by_ns < 0).then_some((end, read_ns));
        let by_ns = by_ns.unsigned_abs();
        self.0.push(Step {
            at_ns,
            by_ns,
            unread,
            is_short: false,
            first: None,
            echoes: Vec::new(),
            until_ns: u64::MAX,
        });
    }

    /// The clock of an end is read.
    pub(crate) fn was_read(&mut self, now_ns: u64, end: usize) {
        for step in &mut self.0 {
            if let Some((_, read_ns)) = step.unread.take_if(|(of, _)| *of == end) {
                step.by_ns = step.by_ns.min(now_ns.saturating_sub(read_ns));
            }
        }
    }

    /// This end sends a packet.
    pub(crate) fn left(&mut self, number: u64, plain: &[u8]) {
        for step in &mut self.0 {
            step.first.get_or_insert(number);
            frames(plain, |frame| {
                if let Frame::Ping(echo) = frame {
                    step.echoes.push(echo);
                }
            });
        }
    }

    /// A packet of the other end has ended an exchange. If that began after a step, this is excused until then; a step that is no longer than
    /// `short_ns` also later, for what was sent before it.
    pub(crate) fn compared(&mut self, plain: &[u8], until_ns: u64, short_ns: u64) {
        for step in &mut self.0 {
            frames(plain, |frame| {
                let is_compared = match frame {
                    Frame::Feedback(feedback) => step.first.is_some_and(|first| u64::from(feedback.largest) >= first),
                    Frame::Pong { echo, .. } => step.echoes.contains(&echo),
                    _ => false,
                };
                if is_compared && step.until_ns == u64::MAX {
                    step.is_short = step.by_ns <= short_ns;
                    step.until_ns = step.until_ns.min(until_ns);
                }
            });
        }
    }

    pub(crate) fn forget(&mut self, now_ns: u64) {
        self.0.retain(|step| step.until_ns > now_ns || step.is_short && now_ns < step.at_ns + SHORT_NS);
    }

    /// By how much a message may be late here now that was sent then.
    pub(crate) fn late_ns(&self, now_ns: u64, sent_ns: u64) -> u64 {
        let excuses = |step: &&Step| step.until_ns > now_ns || sent_ns <= step.at_ns;
        self.0.iter().filter(excuses).map(|step| step.by_ns).sum()
    }
}
