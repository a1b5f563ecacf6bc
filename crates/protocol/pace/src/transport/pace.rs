// SPDX-License-Identifier: Apache-2.0
//! Paces of a connection, and what an application does with them (X-PACE §IV-C).

use super::{Transport, clock_us, outgoing::CATCH_UP_LEAST_NS};
use crate::{
    clock::Offset,
    congestion::{TOGETHER_NS, time_ns},
    packet::PacesFrame,
    rhythm::Rhythm,
    step::{Pace, Paces, Step},
};

/// What an application may want to know of a direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct View {
    pub paces: Paces,
    /// The slowest step, and its time for a message in nanoseconds; none before any is known.
    pub bottleneck: Option<(Step, u64)>,
    /// Bytes a second that the network takes, as far as it is known.
    pub network_bytes_per_s: Option<u64>,
    /// Of a message that leaves at once, from sending to delivery: the mean time on the way, by both ends' clocks, and the
    /// work of the receiver's application on the messages that wait there. It is half of a round trip before the clocks are
    /// known. Where the two directions of the path differ by themselves, it is wrong by half of that difference.
    pub delay_ns: u64,
    /// Messages at the receiver that wait for its application.
    pub waiting_there: u16,
    /// From one send of this end's application to the next; none: it does not send periodically.
    pub send_period_ns: Option<u64>,
    /// From one message of the other end to the next, as they come; none: they do not come periodically.
    pub receive_period_ns: Option<u64>,
    /// The total pace of this end's application in nanoseconds: from one of its turns to the next, with all that it waits for. That of
    /// send on the way there, of deliver on the way here; its own work alone is in `paces`. None before its second turn.
    pub total_ns: Option<u64>,
    /// The mean time of packets on the way in nanoseconds, by both ends' clocks. It may be wrong by as much as `peer_clock`. None before
    /// the first exchange of times, and before the first packet after it.
    pub one_way_ns: Option<u64>,
    /// By how much the other end's clock is ahead ([`Transport::peer_clock`]).
    pub peer_clock: Option<Offset>,
    /// How much faster it runs, in microseconds for each second; 0 before that is known.
    pub drift_ppm: i64,
}

/// The share by which a bottleneck's pace differs from the one that was told last, for a change: one part of so many.
const CHANGE_SHARE: u64 = 8;
/// The share of the newest one in the mean of ways: an eighth, as TCP smooths its round trips.
const ONE_WAY_SHARE: u64 = 8;

/// A queue of half a message at the receiver is level; each message more makes a sender slower by two parts of so many.
const BALANCE: u64 = 40;
/// Messages that wait there, beyond which more make no difference.
const WAITING_MAX: u64 = 20;

/// Where packets leave together, messages are made so much sooner: those of this time, and of the time by which a thread wakes late.
const AHEAD_NS: u64 = 2 * TOGETHER_NS;

/// An application is stuck that has taken nothing for so long, and for so many of its usual turns; and the pace that this counts for at
/// most, unless its usual one is slower, as a sender learns with its next message only that it goes on.
const STUCK_NS: u64 = 100_000_000;
const STUCK_TURNS: u64 = 8;
const STUCK_PACE_NS: u64 = 250_000_000;
/// The same of one of which no turn has ended yet, if as many messages wait as make a difference.
const STUCK_NEW_NS: u64 = 5_000_000;

/// An application waits for so many messages of the other end's at most.
const BEHIND_MAX: u64 = 4;

/// The share of an application's usual work on a message for which it is let go sooner. If it takes less, the message waits.
const WORK_SHARE: [u64; 2] = [3, 4];

/// The mean time on the way, with a new one.
pub(super) fn mean_way(mean_us: Option<u64>, new_us: u64) -> u64 {
    mean_us.map_or(new_us, |mean_us| (mean_us * (ONE_WAY_SHARE - 1) + new_us) / ONE_WAY_SHARE)
}

impl Transport {
    /// The paces of this end's steps, for one message each: send, transmit and network of the messages from here, receive and deliver of
    /// those of the other end.
    pub(super) fn own_paces(&self, now_ns: u64) -> [u64; 5] {
        let network = self.congestion.path_bytes_per_s().map_or(0, |rate| time_ns(self.message_bytes(), rate));
        [
            self.send.slowest(now_ns).effective_ns,
            self.sender.per_message().packets_ns(self.transmit.slowest(now_ns).effective_ns),
            network,
            // The means: the receiver's queue says whether they are enough, and a thread that did not run for a moment holds
            // nobody up for the time that a pace counts.
            self.receiver.per_message().packets_ns(self.receive.mean().effective_ns),
            self.deliver_pace(now_ns).effective_ns,
        ]
    }

    /// Bytes on a link that a message takes as a rule, with what is sent again and redundancy; those of one packet before the first.
    fn message_bytes(&self) -> u64 {
        self.sender.per_message().bytes().unwrap_or(self.symbol_bytes)
    }

    /// What this end tells of itself.
    pub(super) fn paces_frame(&self, now_ns: u64) -> PacesFrame {
        PacesFrame {
            paces_ns: self.own_paces(now_ns),
            waiting: u16::try_from(self.receiver.waiting()).unwrap_or(u16::MAX),
            tolerated_ppm: self.tolerated_ppm(),
        }
    }

    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most a million")]
    fn tolerated_ppm(&self) -> u32 {
        (self.config.residual_loss.clamp(0.0, 1.0) * 1e6) as u32
    }

    /// When a message would leave at once, so that an application that sends then is paced to the bottleneck. None: only
    /// feedback makes room.
    #[must_use]
    pub fn may_send_at(&self, now_ns: u64) -> Option<u64> {
        if !self.has_room() {
            return None;
        }
        let own_ns = self.own.of(now_ns);
        let callers = |at_ns: u64| self.own.callers(at_ns).max(now_ns);
        let waiting = self.sender.waiting();
        let at_ns = self.written_ns().max(self.message_departs_ns);
        if self.config.queue_max == 1 || !self.is_fast() {
            return (waiting == 0).then(|| callers(at_ns));
        }
        if waiting >= self.config.queue_max {
            return (at_ns > own_ns).then(|| callers(at_ns));
        }
        // So many may wait that they leave together; the next ones are made when these have left.
        let message_ns = time_ns(self.message_bytes(), self.congestion.bytes_per_s());
        let last_ns = self.leaves_ns().max(own_ns).saturating_add(message_ns.saturating_mul(waiting as u64));
        let is_early = last_ns.max(self.message_departs_ns) <= own_ns + AHEAD_NS;
        // Those of many packets have not left when the first of these packets do.
        Some(if is_early { now_ns } else { callers(at_ns.max(last_ns.saturating_sub(AHEAD_NS))) })
    }

    /// The next message waits for the application at the other end, if that is slow.
    pub(super) fn message_departs(&mut self, now_ns: u64) {
        let gap_ns = self.message_gap_ns();
        let catch_up_ns = (gap_ns / 4).max(CATCH_UP_LEAST_NS);
        self.message_departs_ns = self.message_departs_ns.max(now_ns.saturating_sub(catch_up_ns)) + gap_ns;
        self.message_departs_soon(now_ns);
    }

    /// Those that an application sends without waiting do not keep others for ever, nor do those that were sent while the other end's was
    /// slower.
    pub(super) fn message_departs_soon(&mut self, now_ns: u64) {
        let latest_ns = now_ns + BEHIND_MAX * self.message_gap_ns() + AHEAD_NS;
        self.message_departs_ns = self.message_departs_ns.min(latest_ns);
    }

    /// Between two messages: the pace of the application at the other end, and somewhat more or less as its queue is longer or shorter than
    /// half of a message.
    fn message_gap_ns(&self) -> u64 {
        let [_, _, _, receive_ns, deliver_ns] = self.peer_paces.paces_ns;
        let there_ns = receive_ns.max(deliver_ns);
        // Those that came together wait for each other.
        let together = TOGETHER_NS.checked_div(there_ns).unwrap_or(0);
        let waiting = u64::from(self.peer_paces.waiting).saturating_sub(together).min(WAITING_MAX);
        there_ns * (BALANCE - 1 + 2 * waiting) / BALANCE
    }

    /// When the application may begin to make a message that then leaves at once: sooner than [`Transport::may_send_at`] by most
    /// of the time that it usually takes for one.
    #[must_use]
    pub fn may_make_at(&self, now_ns: u64) -> Option<u64> {
        let work_ns = self.send.mean().effective_ns / WORK_SHARE[1] * WORK_SHARE[0];
        Some(self.may_send_at(now_ns)?.saturating_sub(work_ns).max(now_ns))
    }

    /// The application is held, or waits by itself, until it may send: that is none of its own work.
    pub fn send_waits(&mut self, now_ns: u64) {
        self.send.waits(self.own.of(now_ns));
        self.was_held = true;
    }

    /// It waits no longer.
    pub fn send_goes_on(&mut self, now_ns: u64) {
        self.send.goes_on(self.own.of(now_ns));
    }

    /// What a step has taken for one packet, as the caller measured it: transmit and receive. Their paces are for one message, of as many
    /// packets as messages have taken of late.
    pub fn note_step(&mut self, now_ns: u64, step: Step, took_ns: u64) {
        let now_ns = self.own.of(now_ns);
        let pace = Pace { effective_ns: took_ns, total_ns: took_ns };
        match step {
            Step::Transmit => self.transmit.note(now_ns, pace),
            Step::Receive => self.receive.note(now_ns, pace),
            Step::Send | Step::Network | Step::Deliver => {}
        }
    }

    /// The paces of the direction from here to there.
    #[must_use]
    pub fn view(&self, now_ns: u64) -> View {
        let here = self.own_paces(self.own.of(now_ns));
        let mut paces = Paces::default();
        paces.set(Step::Send, here[0]);
        paces.set(Step::Transmit, here[1]);
        paces.set(Step::Network, here[2]);
        paces.set(Step::Receive, self.peer_paces.paces_ns[3]);
        paces.set(Step::Deliver, self.peer_paces.paces_ns[4]);
        let on_the_way_ns = self.one_way_us.map_or(self.trips.smoothed_us() * 500, |us| us * 1000);
        let there_ns = paces.get(Step::Receive).max(paces.get(Step::Deliver));
        View {
            paces,
            bottleneck: paces.bottleneck(),
            network_bytes_per_s: self.congestion.path_bytes_per_s(),
            delay_ns: on_the_way_ns.saturating_add(there_ns.saturating_mul(self.peer_paces.waiting.into())),
            waiting_there: self.peer_paces.waiting,
            send_period_ns: self.sends.period_ns(),
            receive_period_ns: self.arrivals.period_ns(),
            total_ns: self.send_total_ns(now_ns),
            one_way_ns: self.one_way_us.map(|us| us * 1000),
            peer_clock: self.peer_clock(now_ns),
            drift_ppm: self.trips.drift_ppm(),
        }
    }

    /// The newest packet that the other end has named took so long by the two clocks.
    pub(super) fn note_one_way(&mut self, now_ns: u64, difference_us: i64) {
        let Some(offset) = self.trips.offset(clock_us(now_ns)) else { return };
        // No way takes longer than there and back, whatever the other end's clock says.
        let us = u64::try_from(difference_us.saturating_sub(offset.us)).unwrap_or(0).min(self.trips.latest_us());
        self.one_way_us = Some(mean_way(self.one_way_us, us));
    }

    /// Messages that came whole are noted as of now.
    pub(super) fn note_arrivals(&mut self, now_ns: u64) {
        let arrived = self.receiver.completed();
        if std::mem::replace(&mut self.arrived, arrived) != arrived {
            self.arrivals.note(now_ns);
        }
        if self.receiver.waiting() > 0 {
            // Also once they have expired.
            self.untaken_since_ns.get_or_insert(now_ns);
        }
    }

    /// The application's work on a message. One that has taken none for long, though some wait, is slower than any turn that has ended
    /// says.
    fn deliver_pace(&self, now_ns: u64) -> Pace {
        let mean = self.deliver.mean();
        let untaken_ns = self.untaken_since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        let is_new = mean.effective_ns == 0 && self.receiver.waiting() as u64 >= WAITING_MAX;
        let stuck_ns = if is_new { STUCK_NEW_NS } else { STUCK_NS.max(STUCK_TURNS * mean.effective_ns) };
        let is_stuck = untaken_ns > stuck_ns;
        if is_stuck {
            Pace { effective_ns: untaken_ns.min(STUCK_PACE_NS).max(mean.effective_ns), ..mean }
        } else {
            mean
        }
    }

    /// The application's sends: when the next one is to be expected.
    #[must_use]
    pub fn sends(&self) -> &Rhythm {
        &self.sends
    }

    /// When there will be a message for the application: now, if one waits, or as the other end's messages come if they come
    /// periodically. None: they do not, or have stopped.
    #[must_use]
    pub fn next_message_at(&self, now_ns: u64) -> Option<u64> {
        if self.receiver.waiting() > 0 {
            Some(now_ns)
        } else {
            self.arrivals.next_ns(self.own.of(now_ns)).map(|next_ns| self.own.callers(next_ns))
        }
    }

    /// The view, if its bottleneck differs from the one that was returned here last: another step is slower than that by
    /// more than an eighth, or its pace has changed by more than an eighth.
    pub fn take_change(&mut self, now_ns: u64) -> Option<View> {
        let view = self.view(now_ns);
        let (step, ns) = view.bottleneck?;
        let is_far = |one: u64, other: u64| one.abs_diff(other) > other / CHANGE_SHARE;
        let is_change = self.told_bottleneck.is_none_or(|(told_step, told_ns)| {
            is_far(ns, told_ns) || step != told_step && is_far(view.paces.get(told_step), ns)
        });
        is_change.then(|| {
            self.told_bottleneck = Some((step, ns));
            view
        })
    }
}
