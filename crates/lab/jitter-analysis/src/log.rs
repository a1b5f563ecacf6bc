// SPDX-License-Identifier: Apache-2.0
//! The format of a run's log, byte by byte, in short; `docs/develop/jitter-log.md` describes all of it with
//! an example. All numbers are little-endian; `CRC` is CRC-32C.
//!
//! ```text
//! header   0 8 bytes  "FIDEJTR\n"
//!          8 u16      version (1)
//!         10 u16      0
//!         12 u32      n <= 1 MiB
//!         16 n bytes  RunInfo as JSON
//!       16+n u32      CRC of all bytes before
//!
//! block    0 u8       kind: 1 samples, 2 events, 3 names, 4 end
//!          1 u8 x 3   0
//!          4 u32      n, length of the payload <= 1 MiB
//!          8 u32      number of samples, events or names <= 65536
//!         12 u32      CRC of these 12 bytes
//!         16 n bytes  payload
//!       16+n u32      CRC of the payload
//! ```
//!
//! Blocks follow each other up to the `end` block, after which there is nothing. In payloads, a `uint` is a
//! LEB128 varint of at most 10 bytes, and a `sint` is the zigzag coding of an `i64` as a `uint`.
//!
//! - **samples**: `uint` incarnation of the pong (0: nobody has answered yet); then nine columns: id, ts1 to
//!   ts4, hw1 to hw4. Each begins with a byte: 0 if no row has a value, 1 if all rows have one, 2 if a bitmap
//!   of (rows + 7) / 8 bytes follows, in which bit `i % 8` of byte `i / 8` stands for row `i`. (For ids it is
//!   always 1.) Then follows a `sint` for each row that has a value: its `residual` minus that of the
//!   previous row that has a value (0 before the first), where `residual = value - reference`, all arithmetic
//!   modulo 2^64. The reference of an id is 0, that of ts1 is `id * period`, that of ts2 is ts1, that of ts3
//!   is ts2, that of ts4 is ts1, and that of hwN is tsN; a missing reference counts as 0.
//! - **events**: for each `u8` kind (0 interrupt, 1 softirq, 2 thread, 3 steal) `+ 16` if on host B, `uint`
//!   cpu, `uint` name, `sint` start minus start of the previous event, `uint` end minus start.
//! - **names**: for each `uint` id, `uint` length, UTF-8. A name comes before the first event that has it.
//! - **end**: `uint` samples, `uint` events, `uint` names, `uint` events that the recorder lost. The block's
//!   count is 0.
//!
//! A block counts only if it is whole. A log whose writer was killed ends somewhere in a block, or in zeros
//! that the file system filled in; [`LogReader`] returns all blocks before that and states what is missing
//! ([`Ending`]). Every other deviation from this format is an error with its offset.

mod code;
mod csv;
mod reader;
mod writer;

pub use csv::{write_events_csv, write_samples_csv};
pub use reader::{Block, Ending, Log, LogReader, read_log};
pub use writer::LogWriter;

use serde::{Deserialize, Serialize};
use std::io;

/// First bytes of a log.
pub const MAGIC: [u8; 8] = *b"FIDEJTR\n";
/// Version of this format.
pub const VERSION: u16 = 1;
/// Maximum number of samples, events or names that the writer puts into one block.
pub const BLOCK_ROWS: usize = 4096;
/// Maximum number of samples, events or names that the reader takes from one block.
pub const BLOCK_ROWS_MAX: u32 = 65_536;
/// Longest payload of a block, and longest JSON, bytes.
pub const PAYLOAD_MAX: u32 = 1 << 20;
/// Maximum number of samples that [`read_log`] takes from a log: as many as one measurement may have. Each
/// takes at least one byte of the file, and up to 72 bytes in memory.
pub const SAMPLES_MAX: u64 = 20_000_000;
/// Maximum number of events that [`read_log`] takes from a log: twice as many as both ends may record.
pub const EVENTS_MAX: u64 = 16_000_000;
/// Maximum length of a name in bytes; a longer one is cut.
pub const NAME_MAX: usize = 255;
/// Maximum number of names in a log.
pub const NAMES_MAX: u32 = 1 << 20;

const HEADER_LEN: usize = 16;
const BLOCK_HEADER_LEN: usize = 16;
const KIND_SAMPLES: u8 = 1;
const KIND_EVENTS: u8 = 2;
const KIND_NAMES: u8 = 3;
const KIND_END: u8 = 4;

/// The totals at the end of a whole log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Samples in it.
    pub samples: u64,
    /// Events in it.
    pub events: u64,
    /// Names in it.
    pub names: u64,
    /// Events that the recorder lost because it could not keep up.
    pub events_lost: u64,
}

/// Why a log cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// An I/O error of the file.
    #[error("{what} at byte {offset}: {why}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// Where.
        offset: u64,
        /// The error of the operating system.
        why: io::Error,
    },
    /// The file is empty.
    #[error("not a jitter log: it is empty")]
    Empty,
    /// The file is not a jitter log.
    #[error("not a jitter log: it begins with {found:02x?}, but should begin with {MAGIC:02x?} (\"FIDEJTR\\n\")")]
    Magic {
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// The file has another version.
    #[error("jitter log of version {found}; this program reads version {VERSION}")]
    Version {
        /// The version at byte 8.
        found: u16,
    },
    /// The log is cut off before the first block.
    #[error("the log ends at byte {len}, within its header, which should be {wanted} bytes long: nothing can be kept")]
    NoHeader {
        /// Number of bytes in the file.
        len: u64,
        /// Number of bytes that the header should have.
        wanted: u64,
    },
    /// The content is not as the format requires.
    #[error("jitter log corrupt at byte {offset}: expected {expected}, found {found}")]
    Corrupt {
        /// Where.
        offset: u64,
        /// What was expected there.
        expected: String,
        /// What was found.
        found: String,
    },
    /// The log holds more than is read into memory, whatever program wrote it.
    #[error(
        "the log has more than {limit} {what} (at byte {offset}); no measurement writes that many: read it block by block, or cut it"
    )]
    TooMany {
        /// What there is too much of.
        what: &'static str,
        /// How many are read at most.
        limit: u64,
        /// Where the limit is exceeded.
        offset: u64,
    },
    /// The run's description is too long.
    #[error("the description of the run takes {len} bytes as JSON; at most {PAYLOAD_MAX} fit")]
    InfoTooLong {
        /// Its length.
        len: usize,
    },
    /// An event that cannot be written.
    #[error("event ends at {end_ns} ns, before its start at {start_ns} ns")]
    EventBackwards {
        /// Its start.
        start_ns: i64,
        /// Its end.
        end_ns: i64,
    },
}

impl LogError {
    fn corrupt(offset: u64, expected: impl Into<String>, found: impl Into<String>) -> Self {
        LogError::Corrupt { offset, expected: expected.into(), found: found.into() }
    }
}

#[cfg(test)]
mod tests;
