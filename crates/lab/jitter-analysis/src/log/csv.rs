// SPDX-License-Identifier: Apache-2.0
//! A run as text for other programs.

use crate::event::Interference;
use crate::sample::{MISSING, RunInfo, Sample, Samples, Stamp};
use std::io::{self, Write};

/// Writes one line per packet: `id,due,ts1,ts2,ts3,ts4,pong`, then `hw1` to `hw4` if there are hardware time
/// stamps. All times are in ns, and empty if unknown (`due` is unknown in a relative schedule).
pub fn write_samples_csv(mut w: impl Write, info: &RunInfo, samples: &Samples) -> io::Result<()> {
    let hardware = Stamp::ALL.iter().any(|&s| samples.hardware(s).is_some());
    writeln!(w, "id,due,ts1,ts2,ts3,ts4,pong{}", if hardware { ",hw1,hw2,hw3,hw4" } else { "" })?;
    let mut restarts = samples.restarts().iter().peekable();
    let mut pong = 0;
    for (row, sample) in (0..samples.len()).filter_map(|row| Some((row as u64, samples.get(row)?))) {
        while let Some(restart) = restarts.next_if(|r| r.row <= row) {
            pong = restart.incarnation;
        }
        let Sample { id, ts, hw } = sample;
        write!(w, "{id},")?;
        stamp(&mut w, info.due_ns(id).unwrap_or(MISSING))?;
        for t in ts {
            w.write_all(b",")?;
            stamp(&mut w, t)?;
        }
        write!(w, ",{pong}")?;
        for t in hw.into_iter().filter(|_| hardware) {
            w.write_all(b",")?;
            stamp(&mut w, t)?;
        }
        w.write_all(b"\n")?;
    }
    w.flush()
}

fn stamp(w: &mut impl Write, t: i64) -> io::Result<()> {
    if t == MISSING { Ok(()) } else { write!(w, "{t}") }
}

/// Writes one line per event: `kind,host,cpu,name,start,end`, times in ns. Names are quoted.
pub fn write_events_csv(mut w: impl Write, events: &[Interference], names: &[String]) -> io::Result<()> {
    writeln!(w, "kind,host,cpu,name,start,end")?;
    for e in events {
        let name = names.get(e.name as usize).map_or("", String::as_str).replace('"', "\"\"");
        writeln!(w, "{},{},{},\"{name}\",{},{}", e.kind.name(), e.host.name(), e.cpu, e.start_ns, e.end_ns)?;
    }
    w.flush()
}
