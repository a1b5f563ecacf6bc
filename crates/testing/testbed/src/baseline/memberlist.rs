// SPDX-License-Identifier: Apache-2.0
//! hashicorp/memberlist on every host of a testbed, and the search for its fastest setting without false
//! deaths.

use crate::load::CpuLoad;
use crate::net::Testbed;
use crate::sys::usable_cores;
use crate::{Error, Result, find_binary};
use serde::Deserialize;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

const PROGRAM: &str = "memberlist-node";
const PLANE: usize = 0;
/// The host whose member's verdicts count.
const OBSERVER: usize = 1;
const READY_LIMIT: Duration = Duration::from_secs(15);
/// The LAN setting takes about five seconds.
const VERDICT_LIMIT: Duration = Duration::from_secs(60);
/// Probe intervals of the search, ms, slowest first.
const RUNGS_MS: [u32; 9] = [1000, 500, 200, 100, 50, 20, 10, 5, 2];

/// How many times longer a setting is watched before it counts as confirmed.
const CONFIRMATION: u32 = 3;

/// memberlist's settings; `None` means the value of its DefaultLANConfig.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Knobs {
    /// Time between probes.
    pub probe_interval_ms: Option<u32>,
    /// Time to wait for a probe's answer.
    pub probe_timeout_ms: Option<u32>,
    /// Suspicion lasts this times log10(n) (at least 1) times the probe interval.
    pub suspicion_mult: Option<u32>,
    /// Time between gossip messages.
    pub gossip_interval_ms: Option<u32>,
}

impl Knobs {
    /// DefaultLANConfig: probe every 1 s, answer within 500 ms, suspicion multiplier 4.
    pub const LAN: Knobs =
        Knobs { probe_interval_ms: None, probe_timeout_ms: None, suspicion_mult: None, gossip_interval_ms: None };

    /// The fastest settings for a probe interval: half of it for the answer, a fifth of it between gossips as
    /// in the LAN setting, and a suspicion that lasts one interval. (A longer suspicion at half the interval
    /// would be no faster.)
    pub const fn at_probe_interval(ms: u32) -> Knobs {
        const fn at_least_one(ms: u32) -> u32 {
            if ms == 0 { 1 } else { ms }
        }
        Knobs {
            probe_interval_ms: Some(ms),
            probe_timeout_ms: Some(at_least_one(ms / 2)),
            suspicion_mult: Some(1),
            gossip_interval_ms: Some(at_least_one(ms / 5)),
        }
    }

    fn args(&self) -> Vec<String> {
        let mut args = vec!["-config".to_string(), "lan".into()];
        let mut push = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                args.push(flag.into());
                args.push(value);
            }
        };
        push("-probe-interval", self.probe_interval_ms.map(|v| format!("{v}ms")));
        push("-probe-timeout", self.probe_timeout_ms.map(|v| format!("{v}ms")));
        push("-gossip-interval", self.gossip_interval_ms.map(|v| format!("{v}ms")));
        push("-suspicion-mult", self.suspicion_mult.map(|v| v.to_string()));
        args
    }
}

#[derive(Debug, Deserialize)]
struct Event {
    event: String,
    node: String,
    ns: u64,
    /// Host number of the member that printed it.
    #[serde(skip)]
    from: usize,
}

/// Members on all hosts; they are killed when this is dropped.
#[derive(Debug)]
pub struct Memberlist {
    knobs: Knobs,
    members: Vec<Option<Child>>,
    tx: Sender<Event>,
    events: Receiver<Event>,
}

/// False alarms in a period in which nobody died.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Alarms {
    /// A member was suspected (memberlist's own middle state, which its users do not see).
    pub suspicions: u64,
    /// Somebody was declared dead.
    pub deaths: u64,
}

impl Memberlist {
    /// Starts a member on every host and waits until all know each other.
    pub fn start(bed: &Testbed, knobs: Knobs) -> Result<Self> {
        let (tx, events) = channel();
        let mut list = Memberlist { knobs, members: bed.hosts().iter().map(|_| None).collect(), tx, events };
        for host in 1..=bed.hosts().len() {
            list.join(bed, host)?;
        }
        Ok(list)
    }

    /// Starts the member of one host and waits until the observer has it.
    fn join(&mut self, bed: &Testbed, host: usize) -> Result<()> {
        let program = find_binary(PROGRAM).map_err(|e| match e {
            Error::MissingProgram { name, looked, .. } => Error::MissingProgram {
                name,
                looked,
                hint: "`cargo xtask bench-detect` builds it from baselines/memberlist when go is installed".into(),
            },
            other => other,
        })?;
        let h = bed.host(host);
        let mut command = h.command(program);
        command
            .args(["-role", "watch", "-name", h.name(), "-bind", &h.address(PLANE).to_string()])
            .args(self.knobs.args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        if host != OBSERVER {
            command.args(["-join", &bed.host(OBSERVER).address(PLANE).to_string()]);
        }
        let mut child = command.spawn().map_err(|e| Error::io(format!("starting {PROGRAM}"), e))?;
        let out = child.stdout.take();
        self.members[host - 1] = Some(child);
        let tx = self.tx.clone();
        std::thread::Builder::new()
            .name(format!("memberlist-h{host}"))
            .spawn(move || {
                for line in out.into_iter().flat_map(|o| BufReader::new(o).lines()).map_while(|l| l.ok()) {
                    if let Ok(mut event) = serde_json::from_str::<Event>(&line) {
                        event.from = host;
                        if tx.send(event).is_err() {
                            return;
                        }
                    }
                }
            })
            .map_err(|e| Error::io("starting a reader thread", e))?;
        let name = h.name().to_string();
        let known = |e: &Event| match host {
            OBSERVER => e.event == "ready" && e.from == OBSERVER,
            _ => e.event == "alive" && e.from == OBSERVER && e.node == name,
        };
        self.wait_for(&format!("memberlist on {name}"), READY_LIMIT, known)?;
        Ok(())
    }

    fn wait_for(&self, what: &str, limit: Duration, wanted: impl Fn(&Event) -> bool) -> Result<Event> {
        let start = Instant::now();
        let mut last = String::from("it said nothing");
        while let Some(left) = limit.checked_sub(start.elapsed()) {
            match self.events.recv_timeout(left) {
                Ok(event) if wanted(&event) => return Ok(event),
                Ok(event) => last = format!("it last said {event:?}"),
                Err(_) => break,
            }
        }
        Err(Error::NotReady { what: what.into(), after_ms: limit.as_millis() as u64, why: last })
    }

    /// Cuts a host off and waits until the observer declares it dead. Returns the time from the cut in ns.
    /// Then a new member takes the place of the dead one.
    pub fn silence(&mut self, bed: &Testbed, host: usize) -> Result<u64> {
        while self.events.try_recv().is_ok() {}
        let name = bed.host(host).name().to_string();
        let (_, cut) = bed.cut(host, PLANE)?;
        let dead = self.wait_for("memberlist's verdict", VERDICT_LIMIT, |e| {
            e.from == OBSERVER && e.event == "dead" && e.node == name
        });
        self.kill(host);
        bed.restore(host, PLANE)?;
        let after_ns = dead?.ns.saturating_sub(cut);
        while self.events.try_recv().is_ok() {}
        self.join(bed, host)?;
        Ok(after_ns)
    }

    /// Counts false alarms, by any member, for a period in which nobody dies.
    pub fn alarms(&self, stretch: Duration) -> Alarms {
        let start = Instant::now();
        let mut alarms = Alarms::default();
        while let Some(left) = stretch.checked_sub(start.elapsed()) {
            match self.events.recv_timeout(left) {
                Ok(e) if e.event == "dead" => alarms.deaths += 1,
                Ok(e) if e.event == "suspect" => alarms.suspicions += 1,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        alarms
    }

    fn kill(&mut self, host: usize) {
        if let Some(mut child) = self.members[host - 1].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Memberlist {
    fn drop(&mut self) {
        for host in 1..=self.members.len() {
            self.kill(host);
        }
    }
}

/// The result of the search.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fastest {
    /// Shortest probe interval without a single suspicion, ms; `None` if even the slowest had one.
    pub no_suspicion_ms: Option<u32>,
    /// Shortest one without a false death, ms.
    pub no_death_ms: Option<u32>,
    /// Probe interval, seconds and false alarms of each setting that was tried, in that order.
    pub tried: Vec<(u32, u64, Alarms)>,
}

/// Tries settings from slow to fast, each for `stretch` with a hog on every core, until one declares a live
/// member dead. Then it goes back to slower ones, until one has no false death for three times as long.
pub fn find_fastest(bed: &Testbed, stretch: Duration, mut progress: impl FnMut(&str)) -> Result<Fastest> {
    let mut tried = Vec::new();
    let mut attempt = |ms: u32, stretch: Duration| -> Result<Alarms> {
        let alarms = alarms_under_load(bed, ms, stretch)?;
        progress(&format!(
            "memberlist, probe every {ms} ms: {} suspicions, {} false deaths in {} s",
            alarms.suspicions,
            alarms.deaths,
            stretch.as_secs()
        ));
        tried.push((ms, stretch.as_secs(), alarms));
        Ok(alarms)
    };
    let mut reached = 0;
    for ms in RUNGS_MS {
        if attempt(ms, stretch)?.deaths > 0 {
            break;
        }
        reached += 1;
    }
    let (mut no_suspicion_ms, mut no_death_ms) = (None, None);
    for ms in RUNGS_MS[..reached].iter().rev() {
        let alarms = attempt(*ms, stretch * CONFIRMATION)?;
        if alarms.deaths > 0 {
            continue;
        }
        no_death_ms = no_death_ms.or(Some(*ms));
        if alarms.suspicions == 0 {
            no_suspicion_ms = Some(*ms);
            break;
        }
    }
    Ok(Fastest { no_suspicion_ms, no_death_ms, tried })
}

fn alarms_under_load(bed: &Testbed, probe_interval_ms: u32, stretch: Duration) -> Result<Alarms> {
    let list = Memberlist::start(bed, Knobs::at_probe_interval(probe_interval_ms))?;
    // Alarms that joining itself caused do not count.
    list.alarms(Duration::from_millis(500));
    let hogs = CpuLoad::start(&usable_cores(), 1, stretch.as_nanos() as u64 + 1_000_000_000)?;
    let alarms = list.alarms(stretch);
    hogs.stop();
    Ok(alarms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_from_the_lan_setting_is_passed() {
        assert_eq!(Knobs::LAN.args(), ["-config", "lan"]);
        let args = Knobs::at_probe_interval(2).args().join(" ");
        assert_eq!(args, "-config lan -probe-interval 2ms -probe-timeout 1ms -gossip-interval 1ms -suspicion-mult 1");
    }
}
