// SPDX-License-Identifier: Apache-2.0
//! `fide lane send`: asks for a lane, and sends each line on it.

use std::{io, process::ExitCode, time::Duration};

use anyhow::anyhow;
use fide_agent::signals::Signals;
use fide_cli::units;
use fide_client::{Client, Declined, Event, LaneId, LaneWanted, now_ns};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;

use super::{Out, connect, describe, grant_text, nanos, pace::Pace, with_grant};
use crate::{
    ask::SocketArguments,
    exit::{Done, Failure, UNHEALTHY, USAGE},
};

/// Longest line that is read; longer than any lane carries.
const LINE_MAX: usize = 64 << 10;
/// Time until the next try while the agent is away or has not emptied the outbox.
const RETRY_NS: u64 = 5_000_000;
/// Time to wait after the last line, until the agent has sent it. It is added to the period that the line may
/// wait for its packet.
const LINGER_NS: u64 = 50_000_000;
/// The same after a burst, long enough for the controller to react to it.
const LINGER_BURST_NS: u64 = 1_000_000_000;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Name of the lane on this host; programs of one user that ask for the same lane share it
    name: String,
    /// Hosts that receive it
    #[arg(long, required = true, value_name = "HOST", value_delimiter = ',')]
    to: Vec<String>,
    /// Service that the messages are for, 1 to 255
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    service: u8,
    /// Longest line, in bytes, at most 1160
    #[arg(long, value_name = "BYTES")]
    size: u32,
    /// Shortest time between two packets, such as 10ms
    #[arg(long, value_name = "TIME", value_parser = duration)]
    period: Duration,
    /// Lines in one period
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    messages: u32,
    /// Sub-lane: 0, which heartbeats use, goes before 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    priority: u8,
    /// Disjoint trees, 1 or 2; by default as many as this host has planes
    #[arg(long, value_name = "N")]
    trees: Option<u8>,
    /// Refuse the lane rather than exceed this latency at any receiver, such as 1ms
    #[arg(long, value_name = "TIME", value_parser = duration)]
    latency_max: Option<Duration>,
    /// Send as fast as lines come, whatever was agreed
    #[arg(long)]
    burst: bool,
    #[command(flatten)]
    socket: SocketArguments,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// Longest time; an `i64` of nanoseconds holds it with room to spare.
const TIME_MAX: Duration = Duration::from_secs(1_000_000_000);

/// "250us", "1.5ms", "2s".
fn duration(text: &str) -> Result<Duration, String> {
    units::duration(text)
        .filter(|time| !time.is_zero() && *time <= TIME_MAX)
        .ok_or_else(|| format!("'{text}' is not a time; use a number and ns, us, ms or s, such as 10ms"))
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let mut client = connect(&arguments.socket, "fide lane send")?;
    let out = Out { json: arguments.json };
    let receivers: Vec<&str> = arguments.to.iter().map(String::as_str).collect();
    let lane = client.open_lane(LaneWanted {
        messages_max: arguments.messages,
        priority: arguments.priority,
        redundancy: arguments.trees,
        latency_max: arguments.latency_max,
        ..LaneWanted::new(&arguments.name, &receivers, arguments.size, arguments.period)
    })?;
    // Until here a signal ends this program, and the agent releases what the program had.
    let signals = Signals::block()?;
    let granted = json!({ "kind": "granted", "name": arguments.name, "lane": lane.number, "trees": lane.trees });
    let trees = if lane.trees == 1 { "one tree".to_owned() } else { format!("{} trees", lane.trees) };
    out.say(
        &with_grant(granted, &lane.grant),
        &format!("lane {} over {trees}: {}", arguments.name, grant_text(&lane.grant)),
    )?;
    let mut sending = Sending {
        client,
        lane: lane.id,
        service: arguments.service,
        out,
        pace: (!arguments.burst).then(|| Pace::new(arguments.messages, lane.grant.period)),
        period: lane.grant.period,
        lines: Lines::default(),
        sent: 0,
        failure: None,
    };
    sending.run(&signals)?;
    sending.client.close_lane(lane.id)?;
    if let Some(failure) = sending.failure {
        return Err(failure);
    }
    let sent = sending.sent;
    out.say(
        &json!({ "kind": "closed", "name": arguments.name, "sent": sent }),
        &format!("lane {} is closed, {sent} messages were sent", arguments.name),
    )?;
    Ok(ExitCode::SUCCESS)
}

struct Sending {
    client: Client,
    lane: LaneId,
    service: u8,
    out: Out,
    /// None: as fast as lines come.
    pace: Option<Pace>,
    period: Duration,
    lines: Lines,
    sent: u64,
    /// Why it ended before all lines were sent.
    failure: Option<Failure>,
}

impl Sending {
    /// Runs until all lines are sent, or a signal comes.
    fn run(&mut self, signals: &Signals) -> Result<(), Failure> {
        let stdin = io::stdin();
        let mut leave_ns = None;
        loop {
            while let Some(event) = self.client.poll_event()? {
                self.notified(&event)?;
            }
            let mut wait_ns = self.send()?;
            if self.lines.is_over() {
                let linger_ns = if self.pace.is_none() { LINGER_BURST_NS } else { LINGER_NS };
                let leave = *leave_ns
                    .get_or_insert_with(|| now_ns().saturating_add(nanos(self.period)).saturating_add(linger_ns));
                let left = leave.saturating_sub(now_ns());
                if left == 0 {
                    return Ok(());
                }
                wait_ns = Some(left);
            }
            let timeout = wait_ns.map(timespec);
            let mut fds =
                vec![PollFd::new(signals, PollFlags::IN), PollFd::from_borrowed_fd(self.client.as_fd(), PollFlags::IN)];
            if self.lines.wants_more() {
                fds.push(PollFd::new(&stdin, PollFlags::IN));
            }
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            if fds.get(2).is_some_and(|stdin| !stdin.revents().is_empty()) {
                self.lines.read(&stdin)?;
            }
            if signals.take().is_some() {
                return Ok(());
            }
        }
    }

    fn notified(&mut self, event: &Event) -> Result<(), Failure> {
        if let Some((value, line)) = describe(event) {
            self.out.tell(&value, &line)?;
        }
        match event {
            Event::LaneChanged { grant, .. } => {
                self.period = grant.period;
                if let Some(pace) = &mut self.pace {
                    pace.change(grant.period);
                }
                Ok(())
            }
            Event::LaneTerminated { name, .. } => Err(self.over(name)),
            Event::Dropped { what, .. } => Err(self.over(what)),
            _ => Ok(()),
        }
    }

    fn over(&self, name: &str) -> Failure {
        Failure::new(UNHEALTHY, anyhow!("lane {name} is over after {} messages; ask for another one", self.sent))
    }

    /// Sends what may be sent now. Returns how long the next line has to wait, if there is one.
    fn send(&mut self) -> Result<Option<u64>, Failure> {
        while let Some(line) = self.lines.first() {
            let wait_ns = self.pace.map_or(0, |pace| pace.wait_ns(now_ns()));
            if wait_ns > 0 {
                return Ok(Some(wait_ns));
            }
            match self.client.lane_send(self.lane, self.service, line) {
                Ok(()) => {}
                Err(Declined::Detached | Declined::Full) => return Ok(Some(RETRY_NS)),
                Err(error @ Declined::MessageTooLarge { .. }) => {
                    let number = self.sent + 1;
                    let error = anyhow!("line {number}: {error}; ask for a lane that carries it with --size");
                    self.failure = Some(Failure::new(USAGE, error));
                    // The lines that were sent before it still leave.
                    self.lines = Lines { ended: true, ..Lines::default() };
                    return Ok(None);
                }
                Err(error) => return Err(Failure::new(UNHEALTHY, error)),
            }
            self.lines.drop_first();
            self.sent += 1;
            if let Some(pace) = &mut self.pace {
                pace.sent(now_ns());
            }
        }
        Ok(None)
    }
}

fn timespec(ns: u64) -> Timespec {
    let seconds = i64::try_from(ns / 1_000_000_000).unwrap_or(i64::MAX);
    Timespec { tv_sec: seconds, tv_nsec: i64::try_from(ns % 1_000_000_000).expect("below a second") }
}

/// Standard input, cut into lines. The last one may lack its end.
#[derive(Debug, Default)]
struct Lines {
    buffer: Vec<u8>,
    /// Bytes at the front of the buffer that are used up.
    begin: usize,
    ended: bool,
}

impl Lines {
    fn first(&self) -> Option<&[u8]> {
        let rest = &self.buffer[self.begin..];
        match rest.iter().position(|byte| *byte == b'\n') {
            Some(end) => Some(&rest[..end]),
            None => (self.ended && !rest.is_empty()).then_some(rest),
        }
    }

    fn drop_first(&mut self) {
        let len = self.first().map_or(0, <[u8]>::len);
        self.begin = (self.begin + len + 1).min(self.buffer.len());
    }

    fn is_over(&self) -> bool {
        self.ended && self.first().is_none()
    }

    fn wants_more(&self) -> bool {
        !self.ended && self.first().is_none()
    }

    /// Reads what is there now. Called when no line is left.
    fn read(&mut self, from: &impl std::os::fd::AsFd) -> Result<(), Failure> {
        self.buffer.drain(..std::mem::take(&mut self.begin));
        if self.buffer.len() >= LINE_MAX {
            return Err(Failure::new(USAGE, anyhow!("a line of more than {LINE_MAX} bytes; no lane carries that")));
        }
        let mut chunk = [0; 16 << 10];
        match rustix::io::read(from, &mut chunk[..]) {
            Ok(0) => self.ended = true,
            Ok(len) => self.buffer.extend_from_slice(&chunk[..len]),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit() {
        let expected = [
            ("250us", 250_000),
            ("1.5ms", 1_500_000),
            ("0.25ms", 250_000),
            ("10ms", 10_000_000),
            ("2s", 2_000_000_000),
            ("1.000000001s", 1_000_000_001),
            ("20ns", 20),
        ];
        for (text, ns) in expected {
            assert_eq!(duration(text), Ok(Duration::from_nanos(ns)), "{text}");
        }
        for text in [
            "10",
            "ms",
            "",
            "0",
            "0ms",
            "-1s",
            "1 s",
            "1s 2ms",
            "1s2ms",
            "1.2.3s",
            "1m",
            "1sec",
            "9999999999s",
            "1.5ns",
            "é",
        ] {
            assert!(duration(text).unwrap_err().contains("such as 10ms"), "{text}");
        }
    }

    #[test]
    fn lines_come_whole_however_they_are_read() {
        let (from, to) = rustix::pipe::pipe().expect("pipe");
        let mut lines = Lines::default();
        let write = |text: &[u8], lines: &mut Lines| {
            rustix::io::write(&to, text).expect("written");
            lines.read(&from).map_err(|failure| failure.error).expect("read");
        };
        assert!(lines.wants_more() && lines.first().is_none());
        write(b"on", &mut lines);
        assert_eq!(lines.first(), None);
        write(b"e\n\ntwo\nthr", &mut lines);
        for line in [&b"one"[..], b"", b"two"] {
            assert_eq!(lines.first(), Some(line));
            assert!(!lines.wants_more());
            lines.drop_first();
        }
        assert!(lines.wants_more() && !lines.is_over());
        write(b"ee", &mut lines);
        assert_eq!(lines.first(), None);
        drop(to);
        lines.read(&from).map_err(|failure| failure.error).expect("read");
        assert_eq!(lines.first(), Some(&b"three"[..]));
        assert!(!lines.is_over());
        lines.drop_first();
        assert!(lines.is_over() && !lines.wants_more());
    }
}
