// SPDX-License-Identifier: Apache-2.0
//! Payloads of blocks: varints, columns, events, names.

use crate::event::{CulpritKind, Interference};
use crate::log::NAME_MAX;
use crate::sample::{Host, MISSING, Sample};

/// The bit of an event's first byte that is set for host B.
const EVENT_AT_B: u8 = 16;

pub(super) fn put_uint(out: &mut Vec<u8>, mut v: u64) {
    while v >= 0x80 {
        out.push(v as u8 | 0x80);
        v >>= 7;
    }
    out.push(v as u8);
}

pub(super) fn put_sint(out: &mut Vec<u8>, v: i64) {
    put_uint(out, ((v << 1) ^ (v >> 63)) as u64);
}

/// What is wrong with a payload, and at which byte.
#[derive(Debug)]
pub(super) struct Bad {
    pub(super) at: usize,
    pub(super) expected: &'static str,
    pub(super) found: String,
}

/// Reads a payload.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Cursor { bytes, at: 0 }
    }

    fn bad(&self, expected: &'static str, found: impl Into<String>) -> Bad {
        Bad { at: self.at, expected, found: found.into() }
    }

    fn take(&mut self, n: usize, expected: &'static str) -> Result<&'a [u8], Bad> {
        let Some(slice) = self.at.checked_add(n).and_then(|end| self.bytes.get(self.at..end)) else {
            return Err(self.bad(expected, format!("{} bytes left of {n}", self.bytes.len() - self.at)));
        };
        self.at += n;
        Ok(slice)
    }

    fn byte(&mut self, expected: &'static str) -> Result<u8, Bad> {
        Ok(self.take(1, expected)?[0])
    }

    pub(super) fn uint(&mut self) -> Result<u64, Bad> {
        let mut value = 0_u64;
        for (i, &byte) in self.bytes[self.at..].iter().enumerate().take(10) {
            let bits = u64::from(byte & 0x7f);
            if i == 9 && bits > 1 {
                break;
            }
            value |= bits << (7 * i);
            if byte & 0x80 == 0 {
                self.at += i + 1;
                return Ok(value);
            }
        }
        Err(self.bad("a varint of at most 64 bits", "none"))
    }

    fn sint(&mut self) -> Result<i64, Bad> {
        let v = self.uint()?;
        Ok((v >> 1) as i64 ^ -((v & 1) as i64))
    }

    fn uint32(&mut self, expected: &'static str) -> Result<u32, Bad> {
        let at = self.at;
        let v = self.uint()?;
        u32::try_from(v).map_err(|_| Bad { at, expected, found: v.to_string() })
    }

    pub(super) fn finish(self) -> Result<(), Bad> {
        match self.bytes.len() - self.at {
            0 => Ok(()),
            n => Err(self.bad("the end of the block", format!("{n} more bytes"))),
        }
    }
}

/// The reference against which a column's value in a row is coded.
fn reference(row: &Sample, column: usize, period_ns: u64) -> u64 {
    let known = |t: i64| if t == MISSING { 0 } else { t as u64 };
    match column {
        0 => 0,
        1 => row.id.wrapping_mul(period_ns),
        2 | 4 => known(row.ts[0]),
        3 => known(row.ts[1]),
        _ => known(row.ts[column - 5]),
    }
}

fn value(row: &Sample, column: usize) -> Option<u64> {
    let stamp = match column {
        0 => return Some(row.id),
        1..=4 => row.ts[column - 1],
        _ => row.hw[column - 5],
    };
    (stamp != MISSING).then_some(stamp as u64)
}

pub(super) fn put_samples(out: &mut Vec<u8>, rows: &[Sample], incarnation: u32, period_ns: u64) {
    put_uint(out, u64::from(incarnation));
    for column in 0..9 {
        let present = rows.iter().filter(|r| value(r, column).is_some()).count();
        if column == 0 || present == rows.len() {
            out.push(1);
        } else if present == 0 {
            out.push(0);
            continue;
        } else {
            out.push(2);
            let start = out.len();
            out.resize(start + rows.len().div_ceil(8), 0);
            for (i, row) in rows.iter().enumerate() {
                out[start + i / 8] |= u8::from(value(row, column).is_some()) << (i % 8);
            }
        }
        let mut before = 0_u64;
        for row in rows {
            if let Some(v) = value(row, column) {
                let residual = v.wrapping_sub(reference(row, column, period_ns));
                put_sint(out, residual.wrapping_sub(before) as i64);
                before = residual;
            }
        }
    }
}

pub(super) fn take_samples(c: &mut Cursor<'_>, count: usize, period_ns: u64) -> Result<(u32, Vec<Sample>), Bad> {
    let incarnation = c.uint32("an incarnation of 32 bits")?;
    let mut rows = vec![Sample::new(0, [MISSING; 4]); count];
    for column in 0..9 {
        let mode = c.byte("a column's mode")?;
        let bitmap = match mode {
            0 if column > 0 => continue,
            1 => None,
            2 if column > 0 => Some(c.take(count.div_ceil(8), "a bitmap")?),
            other => return Err(c.bad("a column's mode, 0 to 2", other.to_string())),
        };
        let mut before = 0_u64;
        for (i, row) in rows.iter_mut().enumerate() {
            if bitmap.is_some_and(|b| b[i / 8] >> (i % 8) & 1 == 0) {
                continue;
            }
            before = before.wrapping_add(c.sint()? as u64);
            let v = before.wrapping_add(reference(row, column, period_ns));
            match column {
                0 => row.id = v,
                1..=4 => row.ts[column - 1] = v as i64,
                _ => row.hw[column - 5] = v as i64,
            }
        }
    }
    Ok((incarnation, rows))
}

pub(super) fn put_events(out: &mut Vec<u8>, events: &[Interference]) {
    let mut before = 0_i64;
    for e in events {
        out.push(e.kind as u8 + if e.host == Host::B { EVENT_AT_B } else { 0 });
        put_uint(out, u64::from(e.cpu));
        put_uint(out, u64::from(e.name));
        put_sint(out, e.start_ns.wrapping_sub(before));
        put_uint(out, e.end_ns.wrapping_sub(e.start_ns) as u64);
        before = e.start_ns;
    }
}

pub(super) fn take_events(c: &mut Cursor<'_>, count: usize) -> Result<Vec<Interference>, Bad> {
    let mut events = Vec::with_capacity(count.min(c.bytes.len() / 5 + 1));
    let mut before = 0_i64;
    for _ in 0..count {
        let at = c.at;
        let code = c.byte("an event")?;
        let host = if code & EVENT_AT_B == 0 { Host::A } else { Host::B };
        let Some(&kind) = CulpritKind::ALL.get(usize::from(code & !EVENT_AT_B)) else {
            return Err(Bad { at, expected: "a kind of event, 0 to 3 (+ 16 for host B)", found: code.to_string() });
        };
        let cpu = c.uint32("a core of 32 bits")?;
        let name = c.uint32("a name's id of 32 bits")?;
        let start_ns = before.wrapping_add(c.sint()?);
        let length = c.uint()?;
        let Some(end_ns) = start_ns.checked_add_unsigned(length) else {
            return Err(c.bad("an event that ends before time does", format!("{length} ns from {start_ns}")));
        };
        events.push(Interference { kind, host, cpu, name, start_ns, end_ns });
        before = start_ns;
    }
    Ok(events)
}

pub(super) fn put_name(out: &mut Vec<u8>, id: u32, name: &str) {
    let cut = (0..=name.len().min(NAME_MAX)).rev().find(|&i| name.is_char_boundary(i)).unwrap_or(0);
    put_uint(out, u64::from(id));
    put_uint(out, cut as u64);
    out.extend_from_slice(&name.as_bytes()[..cut]);
}

pub(super) fn take_names(c: &mut Cursor<'_>, count: usize) -> Result<Vec<(u32, String)>, Bad> {
    let mut names = Vec::with_capacity(count.min(c.bytes.len() / 2 + 1));
    for _ in 0..count {
        let at = c.at;
        let id = c.uint32("a name's id of 32 bits")?;
        if id >= crate::log::NAMES_MAX {
            return Err(Bad { at, expected: "a name's id below 2^20", found: id.to_string() });
        }
        let len = c.uint32("a name's length")? as usize;
        let bytes = c.take(len, "a name")?;
        let Ok(name) = std::str::from_utf8(bytes) else {
            return Err(Bad { at, expected: "a name in UTF-8", found: format!("{bytes:02x?}") });
        };
        names.push((id, name.to_owned()));
    }
    Ok(names)
}
