// SPDX-License-Identifier: Apache-2.0
//! `fide lane` over a real fabric: real agents, a real controller, switches of this kernel.

use std::{
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use fide_testbed::{
    Agents, AgentsSpec, Lines, end_within,
    fabric::{Controller, ControllerSpec, Fabric, FabricSpec},
    retry_until, supported,
};
use serde_json::{Value, json};

/// Bound of every wait; no wait is expected to come near it.
const LIMIT: Duration = Duration::from_secs(60);
const HOSTS: usize = 3;

/// Its agents end before their network.
struct World {
    agents: Agents,
    controller: Controller,
    fabric: Fabric,
}

/// `None`, with the reason printed, if this machine cannot have one.
fn world() -> Option<World> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    let program = PathBuf::from(env!("CARGO_BIN_EXE_fide"));
    let fabric = Fabric::build(FabricSpec::single_pair(HOSTS).managed()).expect("fabric");
    // A busy machine now and then loses a heartbeat on one tree: the cable is trusted again soon.
    let extra = "suspicion_ms = 300\nretry_ms = 100".into();
    let spec = ControllerSpec { program: Some(program.clone()), extra, ..ControllerSpec::default() };
    let controller = Controller::start(&fabric, spec).expect("controller");
    // A busy machine measures too much jitter for any timeout that a test could wait for.
    let forced = [Path::new("/bin/sh"), Path::new("-c"), Path::new(r#"exec "$0" "$@" --force-timeout"#), &program];
    let sections = format!(
        "[controller]\naddresses = [\"{}\"]\ncredentials = \"{}/issued/host.{{host}}\"\npacket_max_bytes = 700",
        controller.address(),
        controller.pki().display()
    );
    let spec = AgentsSpec {
        program: forced.map(Path::to_path_buf).into(),
        heartbeat_us: 5_000,
        timeout_us: Some(400_000),
        multicast: false,
        sections,
        ..AgentsSpec::default()
    };
    let agents = Agents::start(&fabric, spec).expect("agents");
    let world = World { agents, controller, fabric };
    for host in 1..=HOSTS {
        retry_until("an agent that may act, with its peers up", LIMIT, || {
            let status = world.agents.ask(host, "status", json!({}))?;
            let up = status["peers"].as_array().into_iter().flatten().filter(|peer| peer["state"] == "up").count();
            if up == HOSTS - 1 && status["fenced"] == false { Ok(()) } else { Err(status["peers"].to_string()) }
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", world.agents.log_tail(host)));
    }
    retry_until("no cable is suspected", LIMIT, || world.trusted()).expect("a network without a fault");
    Some(world)
}

/// `fide lane` on a host, ended with the test.
struct Running {
    child: Child,
    lines: Lines,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn json(&mut self) -> Value {
        let line = self.lines.next().expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// The first event of this kind.
    fn first(&mut self, kind: &str) -> Value {
        std::iter::repeat_with(|| self.json()).find(|event| event["kind"] == kind).expect("endless")
    }

    fn code(&mut self) -> Option<i32> {
        end_within(&mut self.child, LIMIT).expect("ended").code()
    }
}

impl World {
    fn trusted(&self) -> Result<(), String> {
        let node = self.fabric.controller().expect("managed");
        let mut command = node.command(env!("CARGO_BIN_EXE_fide"));
        command.args(["controller", "ask", "GET", "/v1/network", "--address", &self.controller.address().to_string()]);
        let output = command.arg("--credentials").arg(self.controller.operator_credentials()).output().expect("fide");
        let network: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
        let mut cables = network["cables"].as_array().ok_or("no cables")?.iter();
        cables.find(|cable| cable["suspected"] == true).map_or(Ok(()), |cable| Err(cable.to_string()))
    }

    fn lane(&self, host: usize, arguments: &[&str]) -> Running {
        let mut command: Command = self.fabric.host(host).command(env!("CARGO_BIN_EXE_fide"));
        command.arg("lane").args(arguments).arg("--json").env("FIDE_SOCKET", self.agents.socket(host));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        let lines = Lines::of(child.stdout.take().expect("piped"));
        Running { child, lines }
    }

    fn send(&self, arguments: &[&str], lines: usize) -> Running {
        let mut sending = self.lane(1, &[&["send", "work", "--to", "h2,h3", "--service", "7"], arguments].concat());
        let text: String = (1..=lines).map(|number| format!("{number}\n")).collect();
        sending.child.stdin.take().expect("piped").write_all(text.as_bytes()).expect("written");
        sending
    }
}

#[test]
fn root_shell_lines_reach_receivers_and_excess_is_reported() {
    let Some(world) = world() else { return };
    const LINES: usize = 20;
    let count = LINES.to_string();
    let mut ears: Vec<Running> =
        [2, 3].map(|host| world.lane(host, &["listen", "7", "--count", &count])).into_iter().collect();
    for ear in &mut ears {
        ear.first("listening");
    }
    // Two lines a packet. The rate stays within the grant, so nothing is dropped, unless the agent of a busy
    // machine does not run for a whole period.
    let mut sending = world.send(&["--size", "20", "--period", "100ms", "--messages", "2"], LINES);
    let granted = sending.json();
    assert_eq!(
        (&granted["kind"], &granted["trees"], &granted["bounded"]),
        (&"granted".into(), &2.into(), &true.into())
    );
    for ear in &mut ears {
        let mut newest = 0;
        for line in 1..=LINES {
            let event = ear.first("message");
            assert_eq!((&event["text"], &event["host"]), (&line.to_string().into(), &"h1".into()), "{event}");
            let number = event["number"].as_u64().expect("a number");
            assert!(number >= newest, "{event}");
            newest = number;
        }
        assert_eq!(ear.code(), Some(0));
    }
    let last = sending.first("closed");
    assert_eq!((&last["sent"], sending.code()), (&LINES.into(), Some(0)), "{last}");

    // All at once: messages beyond the first packets are dropped, and that is reported.
    let mut burst = world.send(&["--size", "20", "--period", "100ms", "--burst"], 200);
    assert_eq!(burst.json()["kind"], "granted");
    // The lane before this one leaves the network meanwhile, which is reported too.
    let mut changes = std::iter::repeat_with(|| burst.first("bandwidth_changed"));
    let event = changes.find(|event| event["reason"] != "TE").expect("endless");
    assert_eq!(event["reason"], "BW_EXCEEDED", "{event}");
    assert_eq!(event["bounded"], false);
    burst.first("closed");
    assert_eq!(burst.code(), Some(0));

    // A latency that no network has.
    let mut refused = world.send(&["--size", "20", "--period", "100ms", "--latency-max", "1ns"], 0);
    assert_eq!(refused.lines.next(), None);
    assert_eq!(refused.code(), Some(1));
}

#[test]
fn root_lines_wait_while_the_agent_is_killed_and_started_anew() {
    let Some(mut world) = world() else { return };
    let mut ear = world.lane(2, &["listen", "7"]);
    ear.first("listening");
    let mut sending =
        world.lane(1, &["send", "work", "--to", "h2", "--service", "7", "--size", "20", "--period", "100ms"]);
    let mut stdin = sending.child.stdin.take().expect("piped");
    sending.first("granted");
    stdin.write_all(b"before\n").expect("written");
    assert_eq!(ear.first("message")["text"], "before");
    world.agents.kill(1).expect("killed");
    sending.first("detached");
    stdin.write_all(b"after\n").expect("written");
    // The others cannot consider the new incarnation of h1 up before h2 runs again; h2 drops packets that it
    // gets until then.
    world.agents.pause(2).expect("paused");
    world.agents.restart(1).expect("started");
    sending.first("reattached");
    std::thread::sleep(Duration::from_millis(50));
    world.agents.resume(2).expect("resumed");
    let event = ear.first("message");
    assert_eq!(event["text"], "after", "{event}");
    drop(stdin);
    assert_eq!(sending.first("closed")["sent"], 2);
    assert_eq!(sending.code(), Some(0));
}
