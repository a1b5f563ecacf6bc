// SPDX-License-Identifier: Apache-2.0
//! Structs and enums of the C ABI.

use fide_pace_socket::{Algorithm, Config, Counts, IDLE_LEAST_NS, Step, View};
use libc::c_void;

use fide_c_abi::{Failure, invalid};

/// Bytes of a key's text, with its NUL.
pub const FIDE_PACE_KEY_BYTES: usize = 64;

/// Bytes of an address' text, with its NUL.
pub const FIDE_PACE_ADDRESS_BYTES: usize = 64;

/// Number of a fide_pace_view's steps.
pub const FIDE_PACE_STEPS: usize = 5;

/// An endpoint: a socket and a thread. No number is one twice, and 0 is none.
pub type FidePaceEndpoint = u64;

/// A connection. No number is one twice, and 0 is none.
pub type FidePaceConnection = u64;

/// Kinds of keys that a server may have.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FidePaceKey {
    /// One secret for both ends.
    Secret = 0,
    /// For the server alone; its clients have the public key that belongs to it.
    Private = 1,
}

/// Ways to control congestion.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FidePaceCongestion {
    /// Holds a queue of a part of one packet.
    Level = 0,
    /// BBR for datagrams, as X-PACE was published.
    Xpace = 1,
}

/// The steps of a message from one application to the other.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FidePaceStep {
    /// The application that sends.
    Send = 0,
    /// The transport at the sender.
    Transmit = 1,
    /// The slowest link of the network.
    Network = 2,
    /// The transport at the receiver.
    Receive = 3,
    /// The application that receives.
    Deliver = 4,
}

/// How connections are to be. Set `size` to sizeof(fide_pace_config), and what is not needed to 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FidePaceConfig {
    /// sizeof(fide_pace_config).
    pub size: usize,
    /// From sending to delivery; what is older is dropped. 0: 100000.
    pub deadline_us: u64,
    /// The share of messages that may be lost, less than 1. 0: 0.001.
    pub loss: f64,
    /// Messages that may wait at the sender, at most 4096. 0: 1.
    pub queue: u32,
    /// A fide_pace_congestion.
    pub congestion: u32,
    /// 1: both ways of the path take equally long. A deadline then has to be longer than one way, and else than a round trip; where they
    /// do not, a message can be late by half of the difference.
    pub even_ways: u32,
    /// After this time without a packet of the other end the connection is over (-ETIMEDOUT); at least 1000000, as an end that sends nothing
    /// is heard each half second. 0: 30000000.
    pub idle_us: u64,
}

/// What is known of a way: from here to the other end, or from there to here. Set `size` to sizeof(fide_pace_view).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FidePaceView {
    /// sizeof(fide_pace_view).
    pub size: usize,
    /// The time that each fide_pace_step takes for a message; 0: not known yet.
    pub pace_ns: [u64; FIDE_PACE_STEPS],
    /// That of the slowest step: the time between two messages that nothing waits for; 0: not known yet.
    pub bottleneck_pace_ns: u64,
    /// The slowest step, a fide_pace_step; -1: not known yet.
    pub bottleneck: i32,
    /// Messages that wait for the application at the end of the way.
    pub waiting_there: u32,
    /// Bytes a second that the network takes; 0: not known yet, and of the way from there to here never.
    pub network_bytes_per_s: u64,
    /// From sending to delivery, for a message that leaves at once.
    pub delay_ns: u64,
    /// From one send of this application to the next; 0: it does not send periodically.
    pub send_period_ns: u64,
    /// From one message of the other end to the next; 0: they do not come periodically.
    pub receive_period_ns: u64,
    /// From one turn of this application to its next, as it sends on the way there, or takes messages on the way here, with all that it waits
    /// for; 0: not known yet. Its own work alone is in `pace_ns`.
    pub total_ns: u64,
    /// The mean time of packets on the way, by both ends' clocks; it may be wrong by `clock_uncertainty_us`. -1: not known yet.
    pub one_way_ns: i64,
    /// By how much the other end's clock is ahead, but for multiples of 2^32 us; 0 while `clock_uncertainty_us` is UINT64_MAX.
    pub clock_ahead_us: i64,
    /// By how much more or less that may be; UINT64_MAX: nothing is known of the clock yet.
    pub clock_uncertainty_us: u64,
    /// How much faster the other end's clock runs, in microseconds for each second; 0: not known yet.
    pub drift_ppm: i64,
}

/// A message that has come. Set `size` to sizeof(fide_pace_message).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FidePaceMessage {
    /// sizeof(fide_pace_message).
    pub size: usize,
    /// Its number, from 0 on; numbers that are skipped were lost.
    pub number: u64,
    /// Its bytes.
    pub len: usize,
}

/// What became of messages so far. Set `size` to sizeof(fide_pace_counts).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct FidePaceCounts {
    /// sizeof(fide_pace_counts).
    pub size: usize,
    /// Messages taken from this application.
    pub sent: u64,
    /// Of these, dropped here, as they could not arrive in time.
    pub dropped: u64,
    /// Messages delivered to this application.
    pub received: u64,
    /// Messages of the other end that were not: lost on their way, or late.
    pub lost: u64,
    /// Of these, messages that were here when they expired.
    pub late: u64,
}

/// Called with a connection's view at a change of its bottleneck; `context` is as it was given. `view` is valid during the
/// call.
pub type FidePaceOnChange = Option<unsafe extern "C" fn(context: *mut c_void, view: *const FidePaceView)>;

impl FidePaceConfig {
    pub(crate) fn read(&self) -> Result<Config, Failure> {
        let mut config = Config::default();
        if self.deadline_us > 0 {
            config.deadline_ns = self.deadline_us.saturating_mul(1000);
        }
        if !(0.0..1.0).contains(&self.loss) {
            return Err(invalid(&format!("loss is {}; it is a share, at least 0 and less than 1", self.loss)));
        }
        if self.loss > 0.0 {
            config.residual_loss = self.loss;
        }
        if self.queue > 0 {
            config.queue_max = self.queue as usize;
        }
        config.algorithm = match self.congestion {
            level if level == FidePaceCongestion::Level as u32 => Algorithm::Level,
            xpace if xpace == FidePaceCongestion::Xpace as u32 => Algorithm::XPace,
            other => return Err(invalid(&format!("congestion is {other}; use a fide_pace_congestion"))),
        };
        config.even_ways = match self.even_ways {
            0 => false,
            1 => true,
            other => return Err(invalid(&format!("even_ways is {other}; use 0 or 1"))),
        };
        match self.idle_us.saturating_mul(1000) {
            0 => {}
            idle_ns if idle_ns >= IDLE_LEAST_NS => config.idle_ns = idle_ns,
            _ => {
                let why = format!("idle_us is {}; use 0, or at least {}", self.idle_us, IDLE_LEAST_NS / 1000);
                return Err(invalid(&why));
            }
        }
        Ok(config)
    }
}

impl From<&View> for FidePaceView {
    fn from(view: &View) -> Self {
        Self {
            size: size_of::<Self>(),
            pace_ns: Step::ALL.map(|step| view.paces.get(step)),
            bottleneck_pace_ns: view.bottleneck.map_or(0, |(_, ns)| ns),
            bottleneck: view.bottleneck.map_or(-1, |(step, _)| step as i32),
            waiting_there: view.waiting_there.into(),
            network_bytes_per_s: view.network_bytes_per_s.unwrap_or(0),
            delay_ns: view.delay_ns,
            send_period_ns: view.send_period_ns.unwrap_or(0),
            receive_period_ns: view.receive_period_ns.unwrap_or(0),
            total_ns: view.total_ns.unwrap_or(0),
            one_way_ns: view.one_way_ns.map_or(-1, |ns| i64::try_from(ns).unwrap_or(i64::MAX)),
            clock_ahead_us: view.peer_clock.map_or(0, |clock| clock.us),
            clock_uncertainty_us: view.peer_clock.map_or(u64::MAX, |clock| clock.uncertainty_us),
            drift_ppm: view.drift_ppm,
        }
    }
}

impl From<Counts> for FidePaceCounts {
    fn from(counts: Counts) -> Self {
        Self {
            size: size_of::<Self>(),
            sent: counts.sent.messages,
            dropped: counts.sent.dropped,
            received: counts.received.delivered,
            lost: counts.received.lost,
            late: counts.received.late,
        }
    }
}

const _: () = assert!(Step::ALL.len() == FIDE_PACE_STEPS && Step::Deliver as i32 == FidePaceStep::Deliver as i32);
