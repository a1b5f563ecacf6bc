// SPDX-License-Identifier: Apache-2.0
//! The log of a run, byte by byte, in short; `docs/develop/jitter-log.md` has all of it with an example. Little-endian
//! throughout; `CRC` is CRC-32C.
//!
//! ```text
//! header   0 8 bytes  "FIDEJTR\n"
//!          8 u16      version (1)
//!         10 u16      0
//!         12 u32      n <= 1 MiB
//!         16 n bytes  RunInfo as JSON
//!       16+n u32      CRC of all before
//!
//! block    0 u8       kind: 1 samples, 2 events, 3 names, 4 end
//!          1 u8 x 3   0
//!          4 u32      n, length of the payload <= 1 MiB
//!          8 u32      how many samples, events or names <= 65536
//!         12 u32      CRC of these 12 bytes
//!         16 n bytes  payload
//!       16+n u32      CRC of the payload
//! ```
//!
//! Blocks follow each other up to the `end` block, after which there is nothing. In payloads a `uint` is a
//! LEB128 varint of at most 10 bytes, a `sint` the zigzag coding of an `i64` as `uint`.
//!
//! - **samples**: `uint` incarnation of the pong (0: nobody has answered yet); then nine columns: id, ts1 to
//!   ts4, hw1 to hw4. Each begins with a byte: 0 no row has it, 1 all have, 2 a bitmap of (rows + 7) / 8
//!   bytes follows, bit `i % 8` of byte `i / 8` for row `i`. (Ids: always 1.) Then for each row that has it a
//!   `sint`: `residual - residual of the row before that has it` (0 before the first), where
//!   `residual = value - reference`, all arithmetic modulo 2^64. References: id - 0; ts1 - `id * period`; ts2
//!   - ts1; ts3 - ts2; ts4 - ts1; hwN - tsN; a missing reference counts as 0.
//! - **events**: for each `u8` kind (0 interrupt, 1 softirq, 2 thread, 3 steal) `+ 16` if on host B, `uint`
//!   cpu, `uint` name, `sint` start minus start of the event before, `uint` end minus start.
//! - **names**: for each `uint` id, `uint` length, UTF-8. A name comes before the first event that has it.
//! - **end**: `uint` samples, `uint` events, `uint` names, `uint` events that the recorder lost. Count is 0.
//!
//! A block is whole or it is not there. A log whose writer was killed ends somewhere in a block, or in zeros
//! that the file system made up; [`LogReader`] gives all blocks before that and says what is missing
//! ([`Ending`]). Everything else that is not as above is an error with its offset.

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
/// Samples, events or names that the writer puts into one block.
pub const BLOCK_ROWS: usize = 4096;
/// Samples, events or names that the reader takes from one block.
pub const BLOCK_ROWS_MAX: u32 = 65_536;
/// Longest payload of a block, and longest JSON, bytes.
pub const PAYLOAD_MAX: u32 = 1 << 20;
/// Samples that [`read_log`] takes from a log: as many as one measurement may have. Each takes at least a
/// byte of the file, and 72 in memory.
pub const SAMPLES_MAX: u64 = 20_000_000;
/// Events that [`read_log`] takes from a log: as many as both ends may record, twice.
pub const EVENTS_MAX: u64 = 16_000_000;
/// Bytes of a name; a longer one is cut.
pub const NAME_MAX: usize = 255;
/// Names of a log.
pub const NAMES_MAX: u32 = 1 << 20;

const HEADER_LEN: usize = 16;
const BLOCK_HEADER_LEN: usize = 16;
const KIND_SAMPLES: u8 = 1;
const KIND_EVENTS: u8 = 2;
const KIND_NAMES: u8 = 3;
const KIND_END: u8 = 4;

/// What a whole log says about itself at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    /// Samples in it.
    pub samples: u64,
    /// Events in it.
    pub events: u64,
    /// Names in it.
    pub names: u64,
    /// Events that the recorder could not keep up with.
    pub events_lost: u64,
}

/// Why a log cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Of the file.
    #[error("{what} at byte {offset}: {why}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Where.
        offset: u64,
        /// What the system said.
        why: io::Error,
    },
    /// Nothing in it.
    #[error("not a jitter log: it is empty")]
    Empty,
    /// Not such a file.
    #[error("not a jitter log: it begins with {found:02x?}, and should with {MAGIC:02x?} (\"FIDEJTR\\n\")")]
    Magic {
        /// Its first bytes.
        found: Vec<u8>,
    },
    /// A file of another version.
    #[error("jitter log of version {found}; this program reads version {VERSION}")]
    Version {
        /// The version at byte 8.
        found: u16,
    },
    /// Cut off before the first block.
    #[error("the log ends at byte {len}, within its header, which should be {wanted} bytes long: nothing can be kept")]
    NoHeader {
        /// Bytes there are.
        len: u64,
        /// Bytes there should be.
        wanted: u64,
    },
    /// Something is not as it should be.
    #[error("jitter log corrupt at byte {offset}: expected {expected}, found {found}")]
    Corrupt {
        /// Where.
        offset: u64,
        /// What should be there.
        expected: String,
        /// What is.
        found: String,
    },
    /// More than fits into memory, wherever it came from.
    #[error(
        "the log has more than {limit} {what} (at byte {offset}); no measurement writes so many: read it block by block, or cut it"
    )]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are read.
        limit: u64,
        /// Where there are more.
        offset: u64,
    },
    /// The run's description does not fit.
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
