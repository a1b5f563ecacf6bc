// SPDX-License-Identifier: Apache-2.0
//! Reads a log, block by block.

use super::code::{self, Bad, Cursor};
use super::{
    BLOCK_HEADER_LEN, BLOCK_ROWS_MAX, EVENTS_MAX, HEADER_LEN, KIND_END, KIND_EVENTS, KIND_NAMES, KIND_SAMPLES,
    LogError, MAGIC, PAYLOAD_MAX, SAMPLES_MAX, Totals, VERSION,
};
use crate::event::Interference;
use crate::sample::{RunInfo, Sample, Samples};
use std::fmt;
use std::io::{self, Read};

/// The content of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// Packets, answered by the pong of this incarnation.
    Samples {
        /// Incarnation of the pong.
        incarnation: u32,
        /// Packets.
        rows: Vec<Sample>,
    },
    /// What ran on cores.
    Events(Vec<Interference>),
    /// Names by id.
    Names(Vec<(u32, String)>),
}

/// How a log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The log is whole, as its writer ended it.
    Whole(Totals),
    /// The log is cut off. All blocks before `offset` were read.
    CutOff {
        /// Where the first block that is not whole begins, or where the file ends.
        offset: u64,
        /// Bytes there that could not be used.
        bytes: u64,
        /// Kind and number of the entries that this block should have held, if its header is there. What
        /// should have followed is unknown.
        block: Option<(&'static str, u32)>,
    },
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ending::Whole(t) => write!(f, "whole: {} packets, {} events", t.samples, t.events),
            Ending::CutOff { offset, bytes, block: Some((what, n)) } => write!(
                f,
                "cut off at byte {offset}: {bytes} bytes of a block of {n} {what} lost, and everything after them"
            ),
            Ending::CutOff { offset, bytes, block: None } => {
                write!(f, "cut off at byte {offset}: {bytes} bytes lost, and everything after them")
            }
        }
    }
}

/// Reads a log from `r`, which should be buffered.
#[derive(Debug)]
pub struct LogReader<R: Read> {
    r: R,
    offset: u64,
    info: RunInfo,
    ending: Option<Ending>,
    seen: Totals,
    payload: Vec<u8>,
}

/// Fills `buf` as far as the file goes, and returns how many bytes were read.
fn fill(r: &mut impl Read, buf: &mut [u8]) -> io::Result<usize> {
    let mut n = 0;
    while n < buf.len() {
        match r.read(&mut buf[n..]) {
            Ok(0) => break,
            Ok(k) => n += k,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(n)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

fn crc_error(offset: u64, found: u32, wanted: u32) -> LogError {
    LogError::corrupt(offset, format!("checksum {wanted:08x}"), format!("{found:08x}"))
}

fn kind_name(kind: u8) -> Option<&'static str> {
    Some(match kind {
        KIND_SAMPLES => "packets",
        KIND_EVENTS => "events",
        KIND_NAMES => "names",
        KIND_END => "totals",
        _ => return None,
    })
}

impl<R: Read> LogReader<R> {
    /// Reads the header.
    pub fn open(mut r: R) -> Result<Self, LogError> {
        let io = |offset| move |why| LogError::Io { what: "reading a jitter log", offset, why };
        let mut head = vec![0; HEADER_LEN];
        let n = fill(&mut r, &mut head).map_err(io(0))?;
        if n == 0 {
            return Err(LogError::Empty);
        }
        if !head[..n.min(8)].starts_with(&MAGIC[..n.min(8)]) {
            return Err(LogError::Magic { found: head[..n.min(8)].to_vec() });
        }
        if n < HEADER_LEN {
            return Err(LogError::NoHeader { len: n as u64, wanted: HEADER_LEN as u64 });
        }
        let version = u16::from_le_bytes([head[8], head[9]]);
        if version != VERSION {
            return Err(LogError::Version { found: version });
        }
        let len = u32_at(&head, 12);
        if len > PAYLOAD_MAX {
            return Err(LogError::corrupt(12, format!("a length of at most {PAYLOAD_MAX}"), len.to_string()));
        }
        let wanted = HEADER_LEN + len as usize + 4;
        head.resize(wanted, 0);
        let n = HEADER_LEN + fill(&mut r, &mut head[HEADER_LEN..]).map_err(io(HEADER_LEN as u64))?;
        if n < wanted {
            return Err(LogError::NoHeader { len: n as u64, wanted: wanted as u64 });
        }
        let (body, crc) = (&head[..wanted - 4], u32_at(&head, wanted - 4));
        if crc32c::crc32c(body) != crc {
            return Err(crc_error(wanted as u64 - 4, crc, crc32c::crc32c(body)));
        }
        let info = serde_json::from_slice(&body[HEADER_LEN..])
            .map_err(|e| LogError::corrupt(HEADER_LEN as u64, "the description of a run as JSON", e.to_string()))?;
        let (offset, seen) = (wanted as u64, Totals::default());
        Ok(LogReader { r, offset, info, ending: None, seen, payload: Vec::new() })
    }

    /// The description of the run.
    pub fn info(&self) -> &RunInfo {
        &self.info
    }

    /// How the log ends, once [`LogReader::next_block`] has returned None.
    pub fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The next whole block; None at the end, whether the log is whole or cut off.
    pub fn next_block(&mut self) -> Result<Option<Block>, LogError> {
        if self.ending.is_some() {
            return Ok(None);
        }
        let start = self.offset;
        let mut head = [0; BLOCK_HEADER_LEN];
        let n = self.fill(&mut head)?;
        if n < BLOCK_HEADER_LEN {
            return Ok(self.cut_off(start, n as u64, None));
        }
        if head == [0; BLOCK_HEADER_LEN] {
            return self.zeros(start);
        }
        let (len, count, crc) = (u32_at(&head, 4), u32_at(&head, 8), u32_at(&head, 12));
        if crc32c::crc32c(&head[..12]) != crc {
            if crc == 0 && self.only_zeros_left()? {
                return Ok(self.cut_off(start, self.offset - start, None));
            }
            return Err(crc_error(start + 12, crc, crc32c::crc32c(&head[..12])));
        }
        let Some(name) = kind_name(head[0]).filter(|_| head[1..4] == [0; 3]) else {
            return Err(LogError::corrupt(start, "a kind of block, 1 to 4, and 3 zeros", format!("{:?}", &head[..4])));
        };
        if len > PAYLOAD_MAX || count > BLOCK_ROWS_MAX {
            let expected = format!("at most {PAYLOAD_MAX} bytes and {BLOCK_ROWS_MAX} {name}");
            return Err(LogError::corrupt(start + 4, expected, format!("{len} bytes, {count} {name}")));
        }
        let mut payload = std::mem::take(&mut self.payload);
        payload.resize(len as usize + 4, 0);
        let n = self.fill(&mut payload)?;
        if n < payload.len() {
            return Ok(self.cut_off(start, (BLOCK_HEADER_LEN + n) as u64, Some((name, count))));
        }
        let (body, crc) = (&payload[..len as usize], u32_at(&payload, len as usize));
        if crc32c::crc32c(body) != crc {
            if crc == 0 && self.only_zeros_left()? {
                return Ok(self.cut_off(start, self.offset - start, Some((name, count))));
            }
            return Err(crc_error(start + (BLOCK_HEADER_LEN as u64) + u64::from(len), crc, crc32c::crc32c(body)));
        }
        let block = self.decode(head[0], body, count as usize, start + BLOCK_HEADER_LEN as u64)?;
        self.payload = payload;
        Ok(block)
    }

    fn decode(&mut self, kind: u8, body: &[u8], count: usize, offset: u64) -> Result<Option<Block>, LogError> {
        let error = |bad: Bad| LogError::corrupt(offset + bad.at as u64, bad.expected, bad.found);
        let mut c = Cursor::new(body);
        let block = match kind {
            KIND_SAMPLES => {
                let (incarnation, rows) = code::take_samples(&mut c, count, self.info.period_ns).map_err(error)?;
                self.seen.samples += count as u64;
                Block::Samples { incarnation, rows }
            }
            KIND_EVENTS => {
                self.seen.events += count as u64;
                Block::Events(code::take_events(&mut c, count).map_err(error)?)
            }
            KIND_NAMES => {
                self.seen.names += count as u64;
                Block::Names(code::take_names(&mut c, count).map_err(error)?)
            }
            _ => {
                self.end(c, offset)?;
                return Ok(None);
            }
        };
        c.finish().map_err(error)?;
        Ok(Some(block))
    }

    fn end(&mut self, mut c: Cursor<'_>, offset: u64) -> Result<(), LogError> {
        let error = |bad: Bad| LogError::corrupt(offset + bad.at as u64, bad.expected, bad.found);
        let mut n = [0; 4];
        for n in &mut n {
            *n = c.uint().map_err(error)?;
        }
        c.finish().map_err(error)?;
        let totals = Totals { samples: n[0], events: n[1], names: n[2], events_lost: n[3] };
        let seen = Totals { events_lost: totals.events_lost, ..self.seen };
        if seen != totals {
            return Err(LogError::corrupt(
                offset,
                format!("the totals of what was read, {seen:?}"),
                format!("{totals:?}"),
            ));
        }
        let mut more = [0];
        if self.fill(&mut more)? > 0 {
            return Err(LogError::corrupt(self.offset - 1, "the end of the log", "more bytes"));
        }
        self.ending = Some(Ending::Whole(totals));
        Ok(())
    }

    fn zeros(&mut self, start: u64) -> Result<Option<Block>, LogError> {
        if self.only_zeros_left()? {
            return Ok(self.cut_off(start, self.offset - start, None));
        }
        Err(LogError::corrupt(start, "a block", "zeros, and something after them"))
    }

    /// After a power cut, a file system may know a file's length but not its data: then the file holds zeros
    /// from some place to its end.
    fn only_zeros_left(&mut self) -> Result<bool, LogError> {
        let mut chunk = [0; 4096];
        loop {
            let n = self.fill(&mut chunk)?;
            if chunk[..n].iter().any(|&b| b != 0) {
                return Ok(false);
            }
            if n < chunk.len() {
                return Ok(true);
            }
        }
    }

    fn cut_off(&mut self, offset: u64, bytes: u64, block: Option<(&'static str, u32)>) -> Option<Block> {
        self.ending = Some(Ending::CutOff { offset, bytes, block });
        None
    }

    fn fill(&mut self, buf: &mut [u8]) -> Result<usize, LogError> {
        let offset = self.offset;
        let n = fill(&mut self.r, buf).map_err(|why| LogError::Io { what: "reading a jitter log", offset, why })?;
        self.offset += n as u64;
        Ok(n)
    }
}

/// A log in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The run.
    pub info: RunInfo,
    /// Its packets.
    pub samples: Samples,
    /// What ran on the cores.
    pub events: Vec<Interference>,
    /// Names of what ran, by id; empty for ids that have none.
    pub names: Vec<String>,
    /// How it ends; check this before trusting totals.
    pub ending: Ending,
}

/// Reads a whole log with at most [`SAMPLES_MAX`] samples and [`EVENTS_MAX`] events.
///
/// # Errors
/// [`LogError`]; in this case no part of the log is returned.
pub fn read_log(r: impl Read) -> Result<Log, LogError> {
    read_at_most(r, SAMPLES_MAX, EVENTS_MAX)
}

pub(super) fn read_at_most(r: impl Read, samples_max: u64, events_max: u64) -> Result<Log, LogError> {
    let mut reader = LogReader::open(r)?;
    let info = reader.info().clone();
    let (mut samples, mut events, mut names) = (Samples::new(), Vec::new(), Vec::new());
    while let Some(block) = reader.next_block()? {
        let all = [(reader.seen.samples, samples_max, "samples"), (reader.seen.events, events_max, "events")];
        if let Some((_, limit, what)) = all.into_iter().find(|(seen, limit, _)| seen > limit) {
            return Err(LogError::TooMany { what, limit, offset: reader.offset });
        }
        match block {
            Block::Samples { incarnation, rows } => {
                samples.restart(incarnation);
                rows.iter().for_each(|row| samples.push(row, info.period_ns));
            }
            Block::Events(more) => events.extend(more),
            Block::Names(more) => {
                for (id, name) in more {
                    let id = id as usize;
                    if names.len() <= id {
                        names.resize(id + 1, String::new());
                    }
                    names[id] = name;
                }
            }
        }
    }
    // The ending is set once there is no next block.
    let ending = reader.ending().unwrap_or(Ending::Whole(reader.seen));
    Ok(Log { info, samples, events, names, ending })
}
