// SPDX-License-Identifier: Apache-2.0
//! `fide pace top`: which step is the bottleneck of each connection on this host.

mod object;
mod text;

use std::{
    io::{IsTerminal, stdout},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use anyhow::anyhow;
use fide_pace_socket::{Shown, ShownEndpoint, Snapshot, now_ns, shown};

use crate::{
    exit::{Done, Failure, UNHEALTHY},
    live::{drawn, interval},
    say::show,
};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Time between two views
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    every: Duration,
    /// Print one view, and end
    #[arg(long)]
    once: bool,
    /// Only connections of this process
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Print one JSON object for each view
    #[arg(long)]
    json: bool,
}

/// What there was at a time.
struct View {
    at_ns: u64,
    shown: Shown,
}

impl View {
    fn take(pid: Option<u32>) -> Self {
        let mut shown = shown();
        if let Some(pid) = pid {
            shown.endpoints.retain(|endpoint| endpoint.pid == pid);
            shown.of_other_versions.retain(|other| *other == pid);
        }
        Self { at_ns: now_ns(), shown }
    }

    /// A connection in it, and when it was written.
    fn get(&self, of: &ShownEndpoint, id: u64) -> Option<(u64, &Snapshot)> {
        let is_same = |endpoint: &&ShownEndpoint| endpoint.pid == of.pid && endpoint.local == of.local;
        let endpoint = self.shown.endpoints.iter().find(is_same)?;
        let connection = endpoint.shown.iter().find(|connection| connection.id == id)?;
        Some((endpoint.written_ns, &connection.snapshot))
    }
}

/// A connection now, and what has changed since the view before.
struct Change<'a> {
    now: &'a Snapshot,
    before: Option<(f64, &'a Snapshot)>,
}

impl<'a> Change<'a> {
    fn new(of: &ShownEndpoint, id: u64, now: &'a Snapshot, before: Option<&'a View>) -> Self {
        let before = before.and_then(|view| view.get(of, id)).and_then(|(written_ns, snapshot)| {
            let seconds = of.written_ns.saturating_sub(written_ns) as f64 / 1e9;
            (seconds > 0.0).then_some((seconds, snapshot))
        });
        Self { now, before }
    }

    /// How often a second something was counted; none in the first view.
    fn per_second(&self, count: impl Fn(&Snapshot) -> u64) -> Option<f64> {
        let (seconds, before) = self.before?;
        Some(count(self.now).saturating_sub(count(before)) as f64 / seconds)
    }

    /// The share of packets that were lost since the view before; in the first one, of all. None if nothing is known of any.
    fn loss(&self) -> Option<f64> {
        let all = |of: &Snapshot| (of.lost_packets, of.lost_packets + of.came_packets);
        let (lost_before, before) = self.before.map_or((0, 0), |(_, before)| all(before));
        let (lost, now) = all(self.now);
        let packets = now.saturating_sub(before);
        (packets > 0).then(|| lost.saturating_sub(lost_before) as f64 / packets as f64)
    }
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let mut bar = None;
    let mut before: Option<View> = None;
    let mut next = Instant::now();
    loop {
        let view = View::take(arguments.pid);
        if let Some(pid) = arguments.pid.filter(|_| arguments.once)
            && view.shown.endpoints.is_empty()
            && view.shown.of_other_versions.is_empty()
        {
            return Err(nothing(pid));
        }
        if arguments.json {
            show!("{}", object::object(&view, before.as_ref()))?;
        } else {
            let text = text::text(&view, before.as_ref());
            match (arguments.once, stdout().is_terminal()) {
                (false, true) => bar.get_or_insert_with(drawn).set_message(text),
                _ => show!("{text}")?,
            }
        }
        if arguments.once {
            return Ok(ExitCode::SUCCESS);
        }
        before = Some(view);
        next += arguments.every;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// One view of a process, and nothing in it.
fn nothing(pid: u32) -> Failure {
    Failure::new(
        UNHEALTHY,
        anyhow!(
            "process {pid} shows no connection to this user: it has to run as the same one, and to be started with \
             FIDE_PACE_SHOW=1 or to call `Endpoint::show`"
        ),
    )
}
