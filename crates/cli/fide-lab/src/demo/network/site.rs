// SPDX-License-Identifier: Apache-2.0
//! A fabric with a controller and agents.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use fide_controller_api::{
    Method,
    client::Caller,
    network::{Myself, Network},
    paths,
    tls::{ClientTls, Files},
};
use fide_testbed::{
    Agents, AgentsSpec,
    fabric::{CableFigures, Controller, ControllerSpec, Fabric, FabricSpec},
};
use serde::de::DeserializeOwned;

use super::{super::ears::Ears, plane::Tables};

/// Rate of every cable.
pub(super) const RATE_MBIT: u32 = 20;
/// Size of a heartbeat: small enough for the heartbeats of all hosts to fit onto a cable.
const PACKET_MAX_BYTES: usize = 340;
/// No other traffic matters on this network.
const LIMITS: &str = "[limits]\nbandwidth_share = 0.9\nqueue_share = 1.0\n";
/// How long the controller may take to answer, and how long until all trees are used.
const FORM_LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

/// All parts; dropped in this order.
pub(super) struct Site {
    pub(super) ears: Ears,
    pub(super) tables: Tables,
    agents: Agents,
    operator: Caller,
    controller: Controller,
    pub(super) network: String,
    pub(super) fabric: Fabric,
}

impl Site {
    pub(super) fn build(spec: FabricSpec) -> anyhow::Result<Self> {
        let hosts = spec.hosts;
        let fabric = Fabric::build(spec)?;
        let figures = CableFigures {
            bandwidth_bps: u64::from(RATE_MBIT) * 1_000_000,
            queue_bytes: 1_500_000,
            latency_min_ns: 10_000,
            jitter_max_ns: 1_000_000,
            host_latency_min_ns: 10_000,
            host_jitter_max_ns: 1_000_000,
        };
        let network = fabric.spec().network_file(&figures) + LIMITS;
        let program = fide_testbed::find_binary("fide")?;
        let controller = Controller::start(
            &fabric,
            ControllerSpec {
                program: Some(program.clone()),
                figures,
                network_extra: LIMITS.to_owned(),
                extra: "suspicion_ms = 1000\nretry_ms = 200\ngrace_ms = 10".to_owned(),
                env: Vec::new(),
            },
        )?;
        let tls = ClientTls::load(Files::of_member(&controller.operator_credentials()))?;
        let mut operator = Caller::new(vec![controller.address()], Arc::new(tls))?;
        let until = Instant::now() + FORM_LIMIT;
        while let Err(why) = ask::<Myself>(&fabric, &mut operator, paths::SELF) {
            if Instant::now() >= until {
                bail!("the controller does not answer: {why:#}; it said:\n{}", controller.log_tail());
            }
            std::thread::sleep(LOOK);
        }
        let pki = controller.pki();
        let spec = AgentsSpec {
            program: vec![program],
            multicast: false,
            sections: format!(
                "[controller]
addresses = [\"{}\"]
credentials = \"{}/issued/host.{{host}}\"
\
                 packet_max_bytes = {PACKET_MAX_BYTES}",
                controller.address(),
                pki.display()
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

    /// Waits until no cable is suspected any more, so that the next cut is the only fault.
    pub(super) fn await_trust(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + FORM_LIMIT;
        loop {
            let network: Network = self.ask(paths::NETWORK)?;
            if !network.cables.iter().any(|cable| cable.suspected) || Instant::now() >= until {
                return Ok(());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Puts the output of controller and agents beside the drawings.
    pub(super) fn keep_logs(&self, out: &Path) -> anyhow::Result<()> {
        let copy = |from: &Path, name: &str| {
            std::fs::copy(from, out.join(name)).with_context(|| format!("keeping {}", from.display())).map(drop)
        };
        copy(&self.controller.log(), "controller.log")?;
        for host in self.fabric.hosts() {
            copy(&self.agents.dir(host.index()).join("agent.log"), &format!("{}.log", host.name()))?;
        }
        Ok(())
    }

    /// The controller's answer at a path.
    pub(super) fn ask<T: DeserializeOwned>(&mut self, path: &str) -> anyhow::Result<T> {
        ask(&self.fabric, &mut self.operator, path)
            .with_context(|| format!("the controller said last:\n{}", self.controller.log_tail()))
    }
}

fn ask<T: DeserializeOwned>(fabric: &Fabric, operator: &mut Caller, path: &str) -> anyhow::Result<T> {
    let place = fabric.controller().context("the fabric has no management network")?;
    let answered = place.run_in(|| operator.call(Method::Get, path, None, None, Duration::ZERO))??;
    if answered.is_ok() { Ok(answered.read()?) } else { Err(anyhow!("{}", answered.message())) }
}
