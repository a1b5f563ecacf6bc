// SPDX-License-Identifier: Apache-2.0
//! Bounds, configuration, and counters.

use std::ops::Range;

use super::error::ConfigError;

/// Longest chunk, bytes: with its header it fits a UDP datagram.
pub const CHUNK_MAX: usize = 65_000;
/// Most payloads under way to a host at once.
pub const ARRIVING_MAX: usize = 256;
/// Most payloads that are stored, arriving, or missing and not polled.
pub const PAYLOADS_MAX: usize = 1024;
/// Most of these that are offered, here or by others: for each host that joins, places are left for a state
/// and for the decisions since, here and at that host.
pub const OFFERED_MAX: usize = PAYLOADS_MAX - 2 * fide_types::MAX_HOSTS;
/// Most offers of a host from its oldest unanswered one on; also how many offers of each host are remembered.
pub const OFFERS_MAX: u64 = 1024;
/// Most refusals that wait to be polled; more are taken when they come again.
pub const REFUSED_MAX: usize = 1024;
/// Most ranges of chunks that one host may want; beyond that the oldest one is dropped, and wanted again by
/// [`super::Transfers::resend`].
pub const RANGES_MAX: usize = 128;
/// Most short answers that wait for one host; beyond that the oldest one is dropped.
pub const ANSWERS_MAX: usize = 128;
/// Most offers that one call of [`super::Transfers::resend`] repeats; the next call goes on after them.
pub const OFFERS_PER_RESEND: usize = 64;
/// Most wants of one payload that one call of [`super::Transfers::resend`] repeats; the next call goes on
/// after them.
pub const WANTS_PER_RESEND: usize = 32;
/// How often a payload from one host may turn out wrong before that source is given up.
pub const TRIES_MAX: u8 = 3;
/// Bytes that are hashed at once while a payload arrives.
pub(super) const HASH_STEP: usize = 128 << 10;

/// Configuration of a host's transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Bytes of a payload in a datagram, 1..=[`CHUNK_MAX`], after [`super::HEADER_LEN`] bytes of header. The
    /// same at all hosts.
    pub chunk_max: usize,
    /// Longest payload, bytes.
    pub payload_max: u64,
    /// Most bytes of the payloads that are stored or arriving at once.
    pub stored_max: u64,
    /// Bytes of these that offered payloads leave free, here and where they arrive: for other stored and
    /// fetched payloads, such as a state for a host that joins, and the decisions since. All offers may wait
    /// for the host that joins, while it waits for these.
    pub reserved: u64,
    /// Most chunks of one payload that are asked for and have not come; from 1.
    pub wants_max: usize,
    /// Most payloads under way to this host at once, 1..=[`ARRIVING_MAX`].
    pub arriving_max: usize,
}

/// What has been counted since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    pub chunks_sent: u64,
    /// Chunks that were new.
    pub chunks_taken: u64,
    /// Chunks that had come before.
    pub chunks_late: u64,
    /// Payloads thrown away because their hash was wrong.
    pub payloads_wrong: u64,
    /// Hosts that were given up as sources of a payload after [`TRIES_MAX`] wrong copies.
    pub sources_given_up: u64,
    /// Offers for which there was no room when they came.
    pub offers_put_off: u64,
    pub offers_resent: u64,
    /// Wants of chunks that had been asked for before.
    pub wants_resent: u64,
    /// Ranges and answers that were dropped at [`RANGES_MAX`] and [`ANSWERS_MAX`].
    pub dropped: u64,
}

impl Config {
    /// Most bytes that are stored or arriving once an offer is made, or taken.
    pub(super) fn offered_max(&self) -> u64 {
        self.stored_max.saturating_sub(self.reserved)
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

/// The number of chunks of a payload of at most `payload_max` bytes.
pub(super) fn chunks(len: u64, chunk_max: usize) -> u32 {
    u32::try_from(len.div_ceil(chunk_max as u64)).expect("payload_max has no more")
}

/// The bytes of a payload that a chunk has.
pub(super) fn place(index: u32, chunk_max: usize, len: usize) -> Range<usize> {
    let start = (index as usize).saturating_mul(chunk_max).min(len);
    start..start.saturating_add(chunk_max).min(len)
}
