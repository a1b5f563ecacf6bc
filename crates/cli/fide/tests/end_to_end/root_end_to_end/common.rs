// SPDX-License-Identifier: Apache-2.0
//! A cluster, and programs that watch in it.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use fide_client::{Client, ConnectOptions, Event, Monitor, Reason, Verdict, Wanted};
use fide_testbed::{Agents, AgentsSpec, Lines, Spec, Testbed, retry_until, supported};
use serde_json::{Value, json};

/// Bound of every wait; no wait is expected to come near it.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// How long to wait for events that must not come.
pub(crate) const QUIET: Duration = Duration::from_millis(700);

/// The program under test.
pub(crate) fn fide() -> PathBuf {
    env!("CARGO_BIN_EXE_fide").into()
}

/// Agents with a heartbeat and a timeout that a busy test machine holds.
pub(crate) fn calm() -> AgentsSpec {
    // A busy machine measures too much jitter for any timeout that a test could wait for.
    let forced = [Path::new("/bin/sh"), Path::new("-c"), Path::new(r#"exec "$0" "$@" --force-timeout"#), &fide()];
    let program = forced.map(Path::to_path_buf).into();
    AgentsSpec { program, heartbeat_us: 5_000, timeout_us: Some(400_000), ..AgentsSpec::default() }
}

/// `trust` and `policy` of the paper.
pub(crate) fn paper() -> AgentsSpec {
    AgentsSpec { trust: "network".into(), policy: "network".into(), ..calm() }
}

/// A cluster. Its agents end before its network.
pub(crate) struct World {
    pub(crate) agents: Agents,
    pub(crate) bed: Testbed,
}

/// `None`, with the reason printed, if this machine cannot have one.
pub(crate) fn world(hosts: usize, spec: AgentsSpec) -> Option<World> {
    let world = start(hosts, spec)?;
    world.settled(&(1..=hosts).collect::<Vec<_>>());
    Some(world)
}

/// The same, before the hosts have found each other.
pub(crate) fn start(hosts: usize, spec: AgentsSpec) -> Option<World> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    let bed = Testbed::build(Spec::hosts(hosts)).expect("testbed");
    let agents = Agents::start(&bed, spec).expect("agents");
    Some(World { agents, bed })
}

impl World {
    pub(crate) fn status(&self, host: usize) -> Value {
        self.agents.ask(host, "status", json!({})).expect("status")
    }

    /// The rung that receives each plane.
    pub(crate) fn receive_rungs(&self, host: usize) -> Vec<String> {
        let rungs = self.status(host)["rungs"]["receive"].clone();
        rungs.as_array().expect("a list").iter().map(|rung| rung["used"].as_str().expect("named").to_owned()).collect()
    }

    /// Bytes that wait in each UDP socket of a host at `port`.
    pub(crate) fn queued(&self, host: usize, port: u16) -> Vec<u64> {
        let agent = self.agents.pid(host).expect("an agent");
        let text = std::fs::read_to_string(format!("/proc/{agent}/net/udp")).expect("read");
        // "sl local_address rem_address st tx_queue:rx_queue ...", all hexadecimal.
        let columns = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let at_port = columns.filter(|columns| columns[1].ends_with(&format!(":{port:04X}")));
        at_port
            .map(|columns| {
                u64::from_str_radix(columns[4].split_once(':').expect("two queues").1, 16).expect("a number")
            })
            .collect()
    }

    pub(crate) fn counter(&self, host: usize, name: &str) -> u64 {
        self.status(host)["counters"][name].as_u64().unwrap_or_else(|| panic!("no counter {name}"))
    }

    /// Waits until each of `hosts` may act and considers all others up.
    pub(crate) fn settled(&self, hosts: &[usize]) {
        for host in hosts {
            until(&format!("h{host} settled"), || {
                let status = self.agents.ask(*host, "status", json!({}))?;
                let up = status["peers"].as_array().into_iter().flatten().filter(|peer| peer["state"] == "up").count();
                match (up == hosts.len() - 1, status["fenced"] == json!(false)) {
                    (true, true) => Ok(()),
                    _ => Err(format!("fenced {}, peers {}", status["fenced"], status["peers"])),
                }
            });
        }
    }

    /// The same while `away` is down.
    pub(crate) fn settled_but(&self, hosts: &[usize], away: usize) {
        for host in hosts {
            until(&format!("h{host} settled"), || {
                let status = self.agents.ask(*host, "status", json!({}))?;
                let peers = status["peers"].as_array().into_iter().flatten();
                let others = peers.filter(|peer| hosts.iter().any(|host| peer["host"] == format!("h{host}")));
                let up = others.filter(|peer| peer["state"] == "up").count();
                if up == hosts.len() - 1 && status["fenced"] == json!(false) {
                    return Ok(());
                }
                Err(format!("without h{away}: fenced {}, peers {}", status["fenced"], status["peers"]))
            });
        }
    }

    /// The events that an agent remembers.
    pub(crate) fn events(&self, host: usize) -> Vec<Value> {
        let answer = self.agents.ask(host, "events", json!({ "since": 0 })).expect("events");
        answer["events"].as_array().expect("a list").clone()
    }

    /// Texts of the verdicts that an agent has given or heard.
    pub(crate) fn verdicts(&self, host: usize) -> Vec<String> {
        let events = self.events(host);
        events.iter().filter(|event| event["kind"] == "verdict").map(|event| event["text"].to_string()).collect()
    }

    pub(crate) fn client(&self, host: usize) -> Eyes {
        Eyes::at(&self.agents.socket(host))
    }

    /// `fide` with these arguments on a host, connected to its agent.
    pub(crate) fn fide(&self, host: usize, arguments: &[&str]) -> Command {
        let mut command = self.bed.host(host).command(fide());
        command.args(arguments).env("FIDE_SOCKET", self.agents.socket(host));
        command
    }

    /// A process that does nothing, on a host.
    pub(crate) fn sleeper(&self, host: usize) -> Running {
        let mut command = self.bed.host(host).command("sleep");
        Running::start(command.arg("600"))
    }
}

/// A waiting program, and the events that it was notified of.
pub(crate) struct Eyes {
    pub(crate) client: Client,
    pub(crate) events: Vec<Event>,
    read: usize,
}

impl Eyes {
    pub(crate) fn at(socket: &Path) -> Self {
        let options = ConnectOptions { path: Some(socket.into()), program: "test".into(), ..Default::default() };
        Self { client: Client::connect(options).expect("an agent"), events: Vec::new(), read: 0 }
    }

    /// The next event that `wanted` accepts; earlier ones are only recorded.
    pub(crate) fn next<T>(&mut self, what: &str, mut wanted: impl FnMut(&Event) -> Option<T>) -> T {
        let until = Instant::now() + LIMIT;
        loop {
            while let Some(event) = self.events.get(self.read) {
                self.read += 1;
                if let Some(found) = wanted(event) {
                    return found;
                }
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "not notified of {what}; events: {:#?}", self.events);
            self.events.extend(self.client.wait_event(Some(left)).expect("event"));
        }
    }

    pub(crate) fn up(&mut self, of: &Monitor) -> u32 {
        self.next("up", |event| match event {
            Event::Up { monitor, evidence, .. } if *monitor == of.id => Some(evidence.incarnation),
            _ => None,
        })
    }

    /// Watches a target, and waits until it is up.
    pub(crate) fn watch(&mut self, target: &str) -> Monitor {
        let monitor = self.client.monitor(target, Wanted::default()).expect(target);
        self.up(&monitor);
        monitor
    }

    pub(crate) fn verdict(&mut self, of: &Monitor) -> Verdict {
        self.next("a verdict", |event| match event {
            Event::Verdict(verdict) if verdict.monitor == of.id => Some(verdict.clone()),
            _ => None,
        })
    }

    pub(crate) fn reason(&mut self, of: &Monitor) -> Reason {
        self.verdict(of).reason
    }

    /// Waits until this host is another incarnation, and acknowledges that.
    pub(crate) fn acknowledge(&mut self) -> u32 {
        let incarnation = self.next("rejoined", |event| match event {
            Event::Rejoined { incarnation } => Some(*incarnation),
            _ => None,
        });
        assert!(self.client.fenced(), "as the incarnation that others hold dead");
        self.client.rejoined_acknowledge(incarnation).expect("the newest");
        incarnation
    }

    /// All events that come while nothing happens.
    pub(crate) fn quiet(&mut self) {
        let until = Instant::now() + QUIET;
        while let left = until.saturating_duration_since(Instant::now())
            && !left.is_zero()
        {
            self.events.extend(self.client.wait_event(Some(left)).expect("event"));
        }
    }

    /// How many final verdicts there were for a monitor.
    pub(crate) fn finals(&self, of: &Monitor) -> usize {
        let verdict = |event: &&Event| matches!(event, Event::Verdict(v) if v.monitor == of.id && v.reason.is_final());
        self.events.iter().filter(verdict).count()
    }
}

/// A child that is killed and reaped at the end.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().expect("started"))
    }

    /// Starts the program with pipes for its output.
    pub(crate) fn piped(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started"))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("reaped");
    }

    /// Waits for the end of the program, with a bound.
    pub(crate) fn code(&mut self) -> Option<i32> {
        until("the end of a program", || match self.0.try_wait() {
            Ok(Some(status)) => Ok(status.code()),
            other => Err(format!("{other:?}")),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program to its end, with a bound.
pub(crate) fn output(command: &mut Command) -> (Option<i32>, String, String) {
    let mut running = Running::piped(command);
    let out = Lines::of(running.0.stdout.take().expect("piped"));
    let err = Lines::of(running.0.stderr.take().expect("piped"));
    let code = running.code();
    (code, out.within(LIMIT).rest(), err.within(LIMIT).rest())
}

/// The same for a program that runs already.
pub(crate) fn finish(mut running: Running) -> Output {
    running.code();
    // Reaped above; its pipes remain.
    let status = running.0.wait().expect("ended");
    let stdout = running.0.stdout.take().map(|pipe| Lines::of(pipe).rest().into_bytes()).unwrap_or_default();
    let stderr = running.0.stderr.take().map(|pipe| Lines::of(pipe).rest().into_bytes()).unwrap_or_default();
    Output { status, stdout, stderr }
}

/// Tries until `probe` succeeds.
pub(crate) fn until<T>(what: &str, probe: impl FnMut() -> Result<T, String>) -> T {
    retry_until(what, LIMIT, probe).unwrap_or_else(|error| panic!("{error}"))
}

/// Tries until `probe` is true.
pub(crate) fn until_true(what: &str, mut probe: impl FnMut() -> bool) {
    until(what, || if probe() { Ok(()) } else { Err("not yet".to_owned()) });
}
