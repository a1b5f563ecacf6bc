// SPDX-License-Identifier: Apache-2.0
//! `fide controller ask` and `status`: questions to a controller, by an operator.

use std::{
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use anyhow::anyhow;
use clap::ValueEnum;
use fide_controller_api::{
    Method,
    client::{Answered, Caller},
    cluster::Cluster,
    lane::{Lane, Lanes, Phase},
    network::{Cable, Network},
    paths,
    sequence::Sequence,
    tls::{ClientTls, Files},
};
use fide_types::Time;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::exit::{Done, Failure, NOT_PERMITTED, UNHEALTHY, USAGE};
use crate::say::{say, show};

/// Pause between two tries of a request that no controller answered.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// The operator who asks, and the controllers to ask.
#[derive(clap::Args)]
struct Whom {
    /// The operator's credentials: a directory made by `fide controller issue DIR operator NAME`
    #[arg(long, value_name = "DIR")]
    credentials: PathBuf,
    /// IP:PORT of a controller; may be given several times
    #[arg(long, required = true)]
    address: Vec<SocketAddr>,
    /// Seconds to go on asking while no controller answers
    #[arg(long, default_value_t = 5)]
    patience_s: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
enum Verb {
    Get,
    Post,
    Put,
    Delete,
}

#[derive(clap::Args)]
pub(super) struct Ask {
    /// GET, POST, PUT or DELETE
    #[arg(value_enum, ignore_case = true)]
    method: Verb,
    /// What to ask for, such as /v1/network
    path: String,
    /// JSON to send with the request
    body: Option<String>,
    #[command(flatten)]
    whom: Whom,
}

#[derive(clap::Args)]
pub(super) struct Status {
    #[command(flatten)]
    whom: Whom,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Whom {
    fn caller(&self) -> Result<Caller, Failure> {
        let tls = ClientTls::load(Files::of_member(&self.credentials))?;
        Caller::new(self.address.clone(), Arc::new(tls)).map_err(|error| Failure::new(UNHEALTHY, error))
    }

    /// Repeats a request until a controller has given a final answer, or there is no patience left.
    fn ask(&self, caller: &mut Caller, method: Method, path: &str, body: Option<&Value>) -> Result<Answered, Failure> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Each request is an incarnation of its own, later than all before it: its upper half is in seconds,
        // as in the incarnations of hosts.
        let incarnation = since.as_secs() << 32 | u64::from(since.subsec_nanos());
        let sequence = (method != Method::Get).then_some(Sequence { incarnation, number: 1 });
        let begun = Instant::now();
        loop {
            let last = match caller.call(method, path, body, sequence, Duration::ZERO) {
                Ok(answered) if answered.is_to_be_repeated() => answered.message().to_owned(),
                Ok(answered) => {
                    if answered.stale {
                        say!(
                            "fide: {} cannot prove that it leads: {path} is as it last knew it, and cannot be changed now",
                            caller.address()
                        );
                    }
                    return Ok(answered);
                }
                Err(error) => error.to_string(),
            };
            if begun.elapsed() >= Duration::from_secs(self.patience_s) {
                return Err(Failure::new(UNHEALTHY, anyhow!("no controller has answered: {last}")));
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    /// Reads a path. Returns the JSON as it came, and the same parsed as `T`.
    fn get<T: DeserializeOwned>(&self, caller: &mut Caller, path: &str) -> Result<(Value, T), Failure> {
        let answered = self.ask(caller, Method::Get, path, None)?;
        if !answered.is_ok() {
            return Err(Failure::new(code(&answered), anyhow!("{path}: {}", answered.message())));
        }
        let read = answered.read();
        let read = read.map_err(|why| Failure::new(UNHEALTHY, anyhow!("{path}: the answer makes no sense: {why}")))?;
        Ok((answered.body, read))
    }
}

fn code(answered: &Answered) -> u8 {
    match answered.status {
        200..=299 => 0,
        401 | 403 => NOT_PERMITTED,
        400 | 404 | 405 | 413 | 415 | 422 => USAGE,
        _ => UNHEALTHY,
    }
}

pub(super) fn ask(arguments: &Ask) -> Done {
    let body = arguments.body.as_deref().map(serde_json::from_str::<Value>).transpose();
    let body = body.map_err(|error| Failure::new(USAGE, anyhow!("the body to send is not JSON: {error}")))?;
    let method = match arguments.method {
        Verb::Get => Method::Get,
        Verb::Post => Method::Post,
        Verb::Put => Method::Put,
        Verb::Delete => Method::Delete,
    };
    let mut caller = arguments.whom.caller()?;
    let answered = arguments.whom.ask(&mut caller, method, &arguments.path, body.as_ref())?;
    show!("{:#}", answered.body)?;
    Ok(ExitCode::from(code(&answered)))
}

pub(super) fn status(arguments: &Status) -> Done {
    let whom = &arguments.whom;
    let mut caller = whom.caller()?;
    let (mut lanes_json, Lanes { lanes }) = whom.get(&mut caller, paths::LANES)?;
    let (network_json, network): (_, Network) = whom.get(&mut caller, paths::NETWORK)?;
    let (cluster_json, cluster): (_, Cluster) = whom.get(&mut caller, paths::CLUSTER)?;
    let address = caller.address().to_string();
    let lost = |lane: &&Lane| lane.trees.iter().any(|tree| tree.phase == Phase::Lost);
    let broken = lanes.iter().filter(lost).count();
    if arguments.json {
        // The JSON as it came, so that fields of a later version reach the reader.
        show!(
            "{:#}",
            json!({"controller": address, "lanes": lanes_json["lanes"].take(), "network": network_json,
                   "cluster": cluster_json, "lanes_with_lost_trees": broken})
        )?;
    } else {
        let faulty: Vec<&Cable> = network.cables.iter().filter(|cable| !cable.is_well()).collect();
        show!(
            "controller {address}: {} lanes, {broken} of them with a lost tree; {} of {} cables are not in use",
            lanes.len(),
            faulty.len(),
            network.cables.len()
        )?;
        for Lane { lane, name, purpose, standing, sender, receivers, trees, .. } in &lanes {
            let receivers: Vec<&str> = receivers.iter().map(|receiver| receiver.host.as_str()).collect();
            let trees: Vec<String> =
                trees.iter().map(|tree| format!("{} {}", tree.group, tree.phase.as_str())).collect();
            show!(
                "  lane {lane} {name} ({}, {}): {sender} -> {}; {}",
                purpose.as_str(),
                standing.as_str(),
                receivers.join(" "),
                trees.join(", ")
            )?;
        }
        for cable in faulty {
            let why = match cable {
                Cable { drained: true, .. } => "taken out of use",
                Cable { suspected: true, .. } => "suspected",
                _ => "no carrier",
            };
            show!("  cable {}: {why}", cable.cable)?;
        }
        for monitor in &cluster.monitors {
            show!("  {} monitors {}, timeout {}", monitor.from, monitor.app, Time::ns(monitor.timeout_ns))?;
        }
    }
    Ok(ExitCode::from(if broken == 0 { 0 } else { UNHEALTHY }))
}
