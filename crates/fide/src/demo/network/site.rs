// SPDX-License-Identifier: Apache-2.0
//! A fabric with a controller and agents.

use std::{
    fmt::Write as _,
    fs::File,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use fide_controller::{
    client::Caller,
    handler::Method,
    identity::Identity,
    pki,
    tls::{ClientTls, Files},
};
use fide_testbed::{
    Agents, AgentsSpec,
    fabric::{Fabric, FabricSpec, SwitchKind},
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{super::ears::Ears, plane::Tables};

/// Rate of every cable.
pub(super) const RATE_MBIT: u32 = 20;
/// Of a heartbeat, so that those of all hosts fit onto a cable.
const PACKET_MAX_BYTES: usize = 400;
const CONTROLLER: &str = "10.71.0.254:7420";
/// For the controller to answer, and for all trees to be used.
const FORM_LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// Everything; dropped in this order.
pub(super) struct Site {
    pub(super) ears: Ears,
    pub(super) tables: Tables,
    agents: Agents,
    operator: Caller,
    controller: Controller,
    pub(super) network: String,
    pub(super) fabric: Fabric,
}

/// The controller's process.
struct Controller {
    child: Child,
    log: PathBuf,
}

impl Drop for Controller {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.child.id().cast_signed()) {
            let _ = kill_process(pid, Signal::TERM);
        }
        let _ = self.child.wait();
    }
}

impl Controller {
    fn start(fabric: &Fabric, config: &Path) -> anyhow::Result<Self> {
        let log = fabric.scratch().join("controller.log");
        let file = File::create(&log).with_context(|| format!("making {}", log.display()))?;
        let place = fabric.controller().context("the fabric has no management network")?;
        let child = place
            .command(std::env::current_exe().context("finding this program")?)
            .args(["controller", "run", "--config"])
            .arg(config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file)
            .spawn()
            .context("starting the controller")?;
        Ok(Self { child, log })
    }

    fn log_tail(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

/// The fabric as a file of the planner: what its cables hold.
fn network_file(spec: &FabricSpec) -> String {
    let mut text = format!(
        "[cables]\nbandwidth_bps = {}\nqueue_bytes = 1500000\nlatency_min_ns = 10000\njitter_max_ns = 1000000\n\
         host_latency_min_ns = 10000\nhost_jitter_max_ns = 1000000\n",
        u64::from(RATE_MBIT) * 1_000_000
    );
    for host in 1..=spec.hosts {
        let _ = writeln!(text, "[[host]]\nname = \"h{host}\"");
    }
    for switch in &spec.switches {
        let _ = writeln!(text, "[[switch]]\nname = \"{}\"", switch.name);
    }
    for link in &spec.links {
        let _ = writeln!(
            text,
            "[[cable]]\na = \"{}\"\nb = \"{}\"\na_port = \"{}\"\nb_port = \"{}\"",
            link.a.node, link.b.node, link.a.port, link.b.port
        );
    }
    text.push_str("[limits]\nbandwidth_share = 0.9\nqueue_share = 1.0\n");
    text
}

fn controller_file(fabric: &Fabric) -> String {
    let mut text = format!(
        "[controller]\nlisten = \"{CONTROLLER}\"\ncredentials = \"pki/issued/controller.c1\"\nstore = \"controller.redb\"\n\
         topology = \"network.toml\"\nsuspicion_ms = 1000\nretry_ms = 200\n"
    );
    for switch in fabric.switches() {
        let _ = writeln!(text, "[[switch]]\nname = \"{}\"", switch.name());
        let _ = match switch.kind() {
            SwitchKind::Bridge => writeln!(text, "driver = \"linux\"\nbridge = \"br0\""),
            SwitchKind::Ovs => {
                writeln!(text, "driver = \"ovs\"\ntarget = \"{}\"", switch.ovs_target().unwrap_or_default())
            }
        };
        let _ = writeln!(
            text,
            "netns = \"{}\"\nrate_bps = {}",
            switch.node().namespace_path().display(),
            u64::from(RATE_MBIT) * 1_000_000
        );
    }
    text
}

impl Site {
    pub(super) fn build(spec: FabricSpec) -> anyhow::Result<Self> {
        let hosts = spec.hosts;
        let fabric = Fabric::build(spec)?;
        let scratch = fabric.scratch().to_path_buf();
        let network = network_file(fabric.spec());
        std::fs::write(scratch.join("network.toml"), &network).context("writing network.toml")?;
        std::fs::write(scratch.join("controller.toml"), controller_file(&fabric)).context("writing controller.toml")?;
        let pki_dir = scratch.join("pki");
        let mut c1 = pki::Request::new("controller.c1".parse()?);
        c1.addresses = vec!["10.71.0.254".to_owned()];
        pki::init(&pki_dir, 30, &c1)?;
        for host in 1..=hosts {
            pki::issue(&pki_dir, &pki::Request::new(Identity::host(&format!("h{host}"))?))?;
        }
        pki::issue(&pki_dir, &pki::Request::new("operator.demo".parse()?))?;
        let controller = Controller::start(&fabric, &scratch.join("controller.toml"))?;
        let tls = ClientTls::load(Files::of_member(&pki_dir.join("issued/operator.demo")))?;
        let address: SocketAddr = CONTROLLER.parse()?;
        let mut operator = Caller::new(vec![address], Arc::new(tls))?;
        let until = Instant::now() + FORM_LIMIT;
        while let Err(why) = ask(&fabric, &mut operator, "/v1/self") {
            if Instant::now() >= until {
                bail!("the controller does not answer: {why:#}; it said:\n{}", controller.log_tail());
            }
            std::thread::sleep(LOOK);
        }
        let spec = AgentsSpec {
            program: vec![std::env::current_exe().context("finding this program")?],
            multicast: false,
            sections: format!(
                "[controller]\naddresses = [\"{CONTROLLER}\"]\ncredentials = \"../pki/issued/host.{{host}}\"\n\
                 packet_max_bytes = {PACKET_MAX_BYTES}"
            ),
            ..AgentsSpec::default()
        };
        let agents = Agents::start(&fabric, spec)?;
        let sockets: Vec<PathBuf> = (1..=hosts).map(|host| agents.socket(host)).collect();
        let tables = Tables::open(&sockets)?;
        let silent = tables.await_all(FORM_LIMIT);
        if !silent.is_empty() {
            bail!(
                "not all trees are in use after {FORM_LIMIT:?}: {silent:?}\nthe controller said:\n{}\nthe agent of h1 said:\n{}",
                controller.log_tail(),
                agents.log_tail(1)
            );
        }
        let all: Vec<usize> = (1..=hosts).collect();
        let ears = Ears::start(&sockets, &all)?;
        Ok(Self { ears, tables, agents, operator, controller, network, fabric })
    }

    /// Waits until no cable is suspected any more: what is cut next is the only fault then.
    pub(super) fn await_trust(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + FORM_LIMIT;
        loop {
            let network = self.ask("/v1/network")?;
            let suspected = |cable: &Value| cable["suspected"] == true;
            if !network["cables"].as_array().into_iter().flatten().any(suspected) || Instant::now() >= until {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What the controller and the agents have said goes beside the drawings.
    pub(super) fn keep_logs(&self, out: &Path) -> anyhow::Result<()> {
        let copy = |from: &Path, name: &str| {
            std::fs::copy(from, out.join(name)).with_context(|| format!("keeping {}", from.display())).map(drop)
        };
        copy(&self.controller.log, "controller.log")?;
        for host in self.fabric.hosts() {
            copy(&self.agents.dir(host.index()).join("agent.log"), &format!("{}.log", host.name()))?;
        }
        Ok(())
    }

    /// What the controller says at a path.
    pub(super) fn ask(&mut self, path: &str) -> anyhow::Result<Value> {
        ask(&self.fabric, &mut self.operator, path)
            .with_context(|| format!("the controller said last:\n{}", self.controller.log_tail()))
    }
}

fn ask(fabric: &Fabric, operator: &mut Caller, path: &str) -> anyhow::Result<Value> {
    let place = fabric.controller().context("the fabric has no management network")?;
    let answered = place.run_in(|| operator.call(Method::Get, path, None, None, Duration::ZERO))??;
    if answered.status == 200 { Ok(answered.body) } else { Err(anyhow!("{}", answered.message())) }
}
