// SPDX-License-Identifier: Apache-2.0
//! A fabric with a controller and an agent on every host, and programs with lanes.

use std::time::{Duration, Instant};

use fide_client::{Client, ConnectOptions, Event, LaneGrant, LaneId, LaneReason};
use fide_controller_api::{
    Method,
    client::Caller,
    paths,
    tls::{ClientTls, Files},
};
use fide_testbed::{
    Agents, AgentsSpec,
    fabric::{CableFigures, Controller, ControllerSpec, Fabric, FabricSpec},
    supported,
};
use serde_json::Value;

/// Bound of every wait; no wait is expected to come near it.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(20);

pub(crate) struct World {
    pub(crate) agents: Agents,
    pub(crate) controller: Controller,
    pub(crate) fabric: Fabric,
    operator: Caller,
}

/// `None`, with the reason printed, if this machine cannot have one. `extra`: for the controller; `agent`:
/// for the agents' `[controller]`.
pub(crate) fn world(extra: &str, agent: &str) -> Option<World> {
    world_at(1_000_000_000, extra, agent)
}

/// The same, with cables of this many bit/s in the plan and in the fabric.
pub(crate) fn world_at(bandwidth_bps: u64, extra: &str, agent: &str) -> Option<World> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    let fabric = Fabric::build(FabricSpec::two_tier(3, 2, 3).managed()).expect("fabric");
    let program = env!("CARGO_BIN_EXE_fide");
    let figures = CableFigures { bandwidth_bps, ..CableFigures::default() };
    let spec =
        ControllerSpec { program: Some(program.into()), figures, extra: extra.into(), ..ControllerSpec::default() };
    let controller = Controller::start(&fabric, spec).expect("controller");
    let tls = ClientTls::load(Files::of_member(&controller.operator_credentials())).expect("credentials");
    let operator = Caller::new(vec![controller.address()], tls.into()).expect("caller");
    let spec = AgentsSpec {
        program: vec![program.into()],
        multicast: false,
        heartbeat_us: 5000,
        sections: format!(
            "[controller]\naddresses = [\"{}\"]\ncredentials = \"{}/issued/host.{{host}}\"\n{agent}",
            controller.address(),
            controller.pki().display()
        ),
        ..AgentsSpec::default()
    };
    let agents = Agents::start(&fabric, spec).expect("agents");
    let mut world = World { agents, controller, fabric, operator };
    world.until("all hosts hear each other", |world| {
        let up = |host: usize| {
            let status = world.agents.ask(host, "status", serde_json::json!({})).unwrap_or_default();
            let peers = status["peers"].as_array().cloned().unwrap_or_default();
            peers.len() == 2 && peers.iter().all(|peer| peer["state"] == "up")
        };
        if (1..=3).all(up) { Ok(()) } else { Err(world.agents.ask(1, "status", serde_json::json!({}))?.to_string()) }
    });
    Some(world)
}

impl World {
    pub(crate) fn until<T>(&mut self, what: &str, mut probe: impl FnMut(&mut Self) -> Result<T, String>) -> T {
        let begun = Instant::now();
        loop {
            match probe(self) {
                Ok(done) => return done,
                Err(why) if begun.elapsed() > LIMIT => panic!(
                    "in vain: {what}: {why}\nthe controller said:\n{}\nthe agent of h1 said:\n{}",
                    self.controller.log_tail(),
                    self.agents.log_tail(1)
                ),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    /// The controller's answer at a path.
    pub(crate) fn read(&mut self, path: &str) -> Value {
        let place = self.fabric.controller().expect("managed");
        let operator = &mut self.operator;
        let asked = place.run_in(|| operator.call(Method::Get, path, None, None, Duration::ZERO));
        asked.expect("namespace").expect("an answer").body
    }

    /// Lanes of programs, as the controller has them.
    pub(crate) fn lanes(&mut self) -> Vec<Value> {
        let lanes = self.read(paths::LANES)["lanes"].as_array().cloned().expect("lanes");
        lanes.into_iter().filter(|lane| lane["name"] != "heartbeat" && lane["standing"] != "ended").collect()
    }

    pub(crate) fn program(&self, host: usize) -> Program {
        let options = ConnectOptions { path: Some(self.agents.socket(host)), ..ConnectOptions::default() };
        Program { client: Client::connect(options).expect("an agent"), events: Vec::new() }
    }

    /// A counter of an agent, such as `fide_lane_packets_total{direction="lost"}`.
    pub(crate) fn metric(&self, host: usize, name: &str) -> u64 {
        let reply = self.agents.ask(host, "metrics", serde_json::json!({})).expect("metrics");
        let text = reply["text"].as_str().expect("text").to_owned();
        let line =
            text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("no {name} in {text}"));
        line.trim().parse::<f64>().expect("a number") as u64
    }
}

/// A program, and the events that it was notified of.
pub(crate) struct Program {
    pub(crate) client: Client,
    pub(crate) events: Vec<Event>,
}

impl Program {
    /// Takes all waiting events.
    pub(crate) fn look(&mut self) {
        while let Some(event) = self.client.poll_event().expect("events") {
            self.events.push(event);
        }
    }

    /// Waits for a matching event; earlier ones are kept.
    pub(crate) fn wait<T>(&mut self, what: &str, fits: impl Fn(&Event) -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.events.iter().position(|event| fits(event).is_some()) {
                return fits(&self.events.remove(at)).expect("it fits");
            }
            assert!(begun.elapsed() < LIMIT, "in vain: {what}; there were {:?}", self.events);
            if let Some(event) = self.client.wait_event(Some(LOOK)).expect("events") {
                self.events.push(event);
            }
        }
    }

    /// Messages so far, in the order in which they came.
    pub(crate) fn messages(&mut self) -> Vec<(u8, Vec<u8>)> {
        self.look();
        let message = |event: &Event| match event {
            Event::LaneMessage { service, bytes, .. } => Some((*service, bytes.to_vec())),
            _ => None,
        };
        self.events.iter().filter_map(message).collect()
    }

    /// Waits until so many messages have come.
    pub(crate) fn await_messages(&mut self, count: usize) -> Vec<(u8, Vec<u8>)> {
        let begun = Instant::now();
        loop {
            let messages = self.messages();
            if messages.len() >= count || begun.elapsed() > LIMIT {
                assert!(messages.len() >= count, "{} of {count}: {:?}", messages.len(), self.events);
                return messages;
            }
            if let Some(event) = self.client.wait_event(Some(LOOK)).expect("events") {
                self.events.push(event);
            }
        }
    }

    pub(crate) fn changed(&mut self, lane: LaneId, wanted: LaneReason) -> (LaneGrant, Duration) {
        self.wait(&format!("{wanted:?}"), |event| match event {
            Event::LaneChanged { lane: of, grant, reason, grace } if *of == lane && *reason == wanted => {
                Some((*grant, *grace))
            }
            _ => None,
        })
    }

    pub(crate) fn terminated(&mut self, lane: LaneId) -> String {
        self.wait("the end of the lane", |event| match event {
            Event::LaneTerminated { lane: of, why, .. } if *of == lane => Some(why.to_string()),
            _ => None,
        })
    }
}
