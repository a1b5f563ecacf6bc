// SPDX-License-Identifier: Apache-2.0
//! Writes a log, block by block.

use super::code;
use super::{
    BLOCK_HEADER_LEN, BLOCK_ROWS, HEADER_LEN, KIND_END, KIND_EVENTS, KIND_NAMES, KIND_SAMPLES, LogError, MAGIC,
    PAYLOAD_MAX, Totals, VERSION,
};
use crate::event::Interference;
use crate::sample::{RunInfo, Sample};
use std::io::Write;

/// Writes a log to `w`, which should be buffered. Without [`LogWriter::finish`], the log counts as cut off.
#[derive(Debug)]
pub struct LogWriter<W: Write> {
    w: W,
    offset: u64,
    period_ns: u64,
    incarnation: u32,
    rows: Vec<Sample>,
    events: Vec<Interference>,
    payload: Vec<u8>,
    totals: Totals,
}

impl<W: Write> LogWriter<W> {
    /// Begins a log.
    pub fn create(w: W, info: &RunInfo) -> Result<Self, LogError> {
        let json = serde_json::to_vec(info).map_err(|e| LogError::Io {
            what: "writing the description of the run",
            offset: HEADER_LEN as u64,
            why: e.into(),
        })?;
        let len = u32::try_from(json.len()).ok().filter(|&n| n <= PAYLOAD_MAX);
        let len = len.ok_or(LogError::InfoTooLong { len: json.len() })?;
        let mut head = Vec::with_capacity(HEADER_LEN + json.len() + 4);
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&[0; 2]);
        head.extend_from_slice(&len.to_le_bytes());
        head.extend_from_slice(&json);
        head.extend_from_slice(&crc32c::crc32c(&head).to_le_bytes());
        let mut log = LogWriter {
            w,
            offset: 0,
            period_ns: info.period_ns,
            incarnation: 0,
            rows: Vec::with_capacity(BLOCK_ROWS),
            events: Vec::with_capacity(BLOCK_ROWS),
            payload: Vec::new(),
            totals: Totals::default(),
        };
        log.put(&head)?;
        Ok(log)
    }

    /// Adds a packet.
    pub fn sample(&mut self, sample: &Sample) -> Result<(), LogError> {
        self.rows.push(*sample);
        if self.rows.len() == BLOCK_ROWS { self.flush_samples() } else { Ok(()) }
    }

    /// States that pong `incarnation` answers the packets from here on (0 at the start).
    pub fn restart(&mut self, incarnation: u32) -> Result<(), LogError> {
        if incarnation != self.incarnation {
            self.flush_samples()?;
            self.incarnation = incarnation;
        }
        Ok(())
    }

    /// Adds something that ran on a core.
    pub fn event(&mut self, event: &Interference) -> Result<(), LogError> {
        if event.end_ns < event.start_ns {
            return Err(LogError::EventBackwards { start_ns: event.start_ns, end_ns: event.end_ns });
        }
        self.events.push(*event);
        if self.events.len() == BLOCK_ROWS { self.flush_events() } else { Ok(()) }
    }

    /// Writes the name of an id, which must come before the first event that uses it. The name is cut to
    /// [`super::NAME_MAX`] bytes.
    pub fn name(&mut self, id: u32, name: &str) -> Result<(), LogError> {
        self.payload.clear();
        code::put_name(&mut self.payload, id, name);
        self.totals.names += 1;
        self.block(KIND_NAMES, 1)
    }

    /// Counts events that the recorder lost.
    pub fn events_lost(&mut self, n: u64) {
        self.totals.events_lost += n;
    }

    /// Writes what was added so far, so that it survives if the process is killed.
    pub fn flush(&mut self) -> Result<(), LogError> {
        self.flush_samples()?;
        self.flush_events()?;
        let offset = self.offset;
        self.w.flush().map_err(|why| LogError::Io { what: "writing a jitter log", offset, why })
    }

    /// Ends the log and returns the writer that it was written to.
    pub fn finish(mut self) -> Result<W, LogError> {
        self.flush_samples()?;
        self.flush_events()?;
        self.payload.clear();
        let t = self.totals;
        for n in [t.samples, t.events, t.names, t.events_lost] {
            code::put_uint(&mut self.payload, n);
        }
        self.block(KIND_END, 0)?;
        self.flush()?;
        Ok(self.w)
    }

    fn flush_samples(&mut self) -> Result<(), LogError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        self.payload.clear();
        code::put_samples(&mut self.payload, &self.rows, self.incarnation, self.period_ns);
        let n = self.rows.len();
        self.totals.samples += n as u64;
        self.rows.clear();
        self.block(KIND_SAMPLES, n)
    }

    fn flush_events(&mut self) -> Result<(), LogError> {
        if self.events.is_empty() {
            return Ok(());
        }
        self.payload.clear();
        code::put_events(&mut self.payload, &self.events);
        let n = self.events.len();
        self.totals.events += n as u64;
        self.events.clear();
        self.block(KIND_EVENTS, n)
    }

    fn block(&mut self, kind: u8, count: usize) -> Result<(), LogError> {
        let mut head = [0; BLOCK_HEADER_LEN];
        head[0] = kind;
        // A full block takes at most 9 columns of 10 bytes for 4096 rows, which is far below 4 GiB and also
        // below PAYLOAD_MAX.
        head[4..8].copy_from_slice(&(self.payload.len() as u32).to_le_bytes());
        head[8..12].copy_from_slice(&(count as u32).to_le_bytes());
        let crc = crc32c::crc32c(&head[..12]);
        head[12..].copy_from_slice(&crc.to_le_bytes());
        let payload = std::mem::take(&mut self.payload);
        let crc = crc32c::crc32c(&payload);
        self.put(&head)?;
        self.put(&payload)?;
        self.put(&crc.to_le_bytes())?;
        self.payload = payload;
        Ok(())
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), LogError> {
        let offset = self.offset;
        self.w.write_all(bytes).map_err(|why| LogError::Io { what: "writing a jitter log", offset, why })?;
        self.offset += bytes.len() as u64;
        Ok(())
    }
}

const _: () = assert!(BLOCK_ROWS * 9 * 10 + 9 * (1 + BLOCK_ROWS / 8) + 10 < PAYLOAD_MAX as usize);
const _: () = assert!(BLOCK_ROWS <= super::BLOCK_ROWS_MAX as usize);
