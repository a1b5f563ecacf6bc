// SPDX-License-Identifier: Apache-2.0
//! Every bound, what a host is set to, and what it counts.

use std::ops::Range;

use super::error::ConfigError;

/// Longest chunk, bytes: with its header it fits a UDP datagram.
pub const CHUNK_MAX: usize = 65_000;
/// Payloads under way to a host at once, at most.
pub const ARRIVING_MAX: usize = 256;
/// Payloads that are held, arriving, or missing and not told, at most.
pub const PAYLOADS_MAX: usize = 1024;
/// Of these, at most so many that are offered, here or by others: there is a place left for a state and for what was decided meanwhile, for each
/// host that joins, here and at them.
pub const OFFERED_MAX: usize = PAYLOADS_MAX - 2 * fide_types::MAX_HOSTS;
/// Offers of a host from its oldest unanswered one on, at most; how many offers of each host are remembered.
pub const OFFERS_MAX: u64 = 1024;
/// Refusals that are kept until they are polled; more are taken when they come again.
pub const REFUSED_MAX: usize = 1024;
/// Ranges of chunks that one host may want; the oldest is dropped, and wanted again by [`super::Transfers::resend`].
pub const RANGES_MAX: usize = 128;
/// Short answers that wait for one host; the oldest is dropped.
pub const ANSWERS_MAX: usize = 128;
/// Offers that one call of [`super::Transfers::resend`] repeats at most; the next call goes on behind them.
pub const OFFERS_PER_RESEND: usize = 64;
/// Wants of one payload that one call of [`super::Transfers::resend`] repeats at most; the next call goes on behind
/// them.
pub const WANTS_PER_RESEND: usize = 32;
/// Times that a payload of one host may turn out wrong before it is given up.
pub const TRIES_MAX: u8 = 3;
/// Bytes that are hashed at once while a payload arrives.
pub(super) const HASH_STEP: usize = 128 << 10;

/// What a host has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Bytes of a payload in a datagram, 1..=[`CHUNK_MAX`]; [`super::HEADER_LEN`] more are before them. The same at all
    /// hosts.
    pub chunk_max: usize,
    /// Longest payload, bytes.
    pub payload_max: u64,
    /// Bytes of the payloads that are held or arriving at once.
    pub held_max: u64,
    /// Bytes of these that what is offered leaves free, here and where it arrives: for what is held and fetched besides, such as a state for who
    /// joins and what was decided meanwhile. All offers may wait for who joins, and it for that.
    pub reserved: u64,
    /// Chunks of one payload that are asked for and have not come, at most; from 1.
    pub wants_max: usize,
    /// Payloads under way to this host at once, 1..=[`ARRIVING_MAX`].
    pub arriving_max: usize,
}

/// What has happened since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    pub chunks_sent: u64,
    /// Chunks taken, each once.
    pub chunks_taken: u64,
    /// Chunks that were here already.
    pub chunks_late: u64,
    /// Payloads thrown away because their hash was wrong.
    pub payloads_wrong: u64,
    /// Hosts that were given up as sources of a payload, after [`TRIES_MAX`] wrong ones.
    pub sources_given_up: u64,
    /// Offers that had no room when they came.
    pub offers_put_off: u64,
    pub offers_resent: u64,
    /// Wants of chunks that had been asked for before.
    pub wants_resent: u64,
    /// Ranges and answers dropped at [`RANGES_MAX`] and [`ANSWERS_MAX`].
    pub dropped: u64,
}

impl Config {
    /// Bytes that are held or arriving, at most, once an offer is made, or taken.
    pub(super) fn offered_max(&self) -> u64 {
        self.held_max.saturating_sub(self.reserved)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let Config { chunk_max, payload_max, wants_max, arriving_max, .. } = *self;
        if !(1..=CHUNK_MAX).contains(&chunk_max) {
            return Err(ConfigError::ChunkMax { chunk_max });
        }
        let max = (chunk_max as u64 * u64::from(u32::MAX)).min(isize::MAX as u64);
        if payload_max > max {
            return Err(ConfigError::PayloadMax { payload_max, max });
        }
        if wants_max == 0 {
            return Err(ConfigError::WantsMax);
        }
        if !(1..=ARRIVING_MAX).contains(&arriving_max) {
            return Err(ConfigError::ArrivingMax { arriving_max });
        }
        Ok(())
    }
}

/// Chunks of a payload of at most `payload_max` bytes.
pub(super) fn chunks(len: u64, chunk_max: usize) -> u32 {
    u32::try_from(len.div_ceil(chunk_max as u64)).expect("payload_max has no more")
}

/// Where a chunk is in its payload.
pub(super) fn place(index: u32, chunk_max: usize, len: usize) -> Range<usize> {
    let start = (index as usize).saturating_mul(chunk_max).min(len);
    start..start.saturating_add(chunk_max).min(len)
}
