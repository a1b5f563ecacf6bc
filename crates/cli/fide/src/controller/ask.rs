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
    sequence::Sequence,
    tls::{ClientTls, Files},
};
use serde_json::{Value, json};

use crate::exit::{Done, Failure, NOT_PERMITTED, UNHEALTHY, USAGE};

/// Between two tries of a request that no controller took.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Who asks whom.
#[derive(clap::Args)]
struct Whom {
    /// Who asks: a directory made by `fide controller issue DIR operator NAME`
    #[arg(long, value_name = "DIR")]
    credentials: PathBuf,
    /// HOST:PORT of a controller; again for more
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
    /// As /v1/network
    path: String,
    /// What is sent with it
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
        let tls = ClientTls::load(Files::of_member(&self.credentials)).map_err(|error| Failure::new(USAGE, error))?;
        Caller::new(self.address.clone(), Arc::new(tls)).map_err(|error| Failure::new(UNHEALTHY, error))
    }

    /// Repeats a request until a controller that can has answered it.
    fn ask(&self, caller: &mut Caller, method: Method, path: &str, body: Option<&Value>) -> Result<Answered, Failure> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // A life of its own, after all before it: seconds above, as hosts count theirs.
        let incarnation = since.as_secs() << 32 | u64::from(since.subsec_nanos());
        let sequence = (method != Method::Get).then_some(Sequence { incarnation, number: 1 });
        let begun = Instant::now();
        loop {
            let last = match caller.call(method, path, body, sequence, Duration::ZERO) {
                Ok(answered) if answered.is_to_be_repeated() => answered.message().to_owned(),
                Ok(answered) => {
                    if answered.stale {
                        eprintln!(
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

    fn get(&self, caller: &mut Caller, path: &str) -> Result<Value, Failure> {
        let answered = self.ask(caller, Method::Get, path, None)?;
        match answered.status {
            200 => Ok(answered.body),
            _ => Err(Failure::new(code(&answered), anyhow!("{path}: {}", answered.message()))),
        }
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
    let body = body.map_err(|error| Failure::new(USAGE, anyhow!("what is to be sent is no JSON: {error}")))?;
    let method = match arguments.method {
        Verb::Get => Method::Get,
        Verb::Post => Method::Post,
        Verb::Put => Method::Put,
        Verb::Delete => Method::Delete,
    };
    let mut caller = arguments.whom.caller()?;
    let answered = arguments.whom.ask(&mut caller, method, &arguments.path, body.as_ref())?;
    println!("{:#}", answered.body);
    Ok(ExitCode::from(code(&answered)))
}

pub(super) fn status(arguments: &Status) -> Done {
    let whom = &arguments.whom;
    let mut caller = whom.caller()?;
    let lanes = whom.get(&mut caller, "/v1/lanes")?["lanes"].take();
    let network = whom.get(&mut caller, "/v1/network")?;
    let cluster = whom.get(&mut caller, "/v1/cluster")?;
    let address = caller.address().to_string();
    let lost = |lane: &&Value| array(&lane["trees"]).iter().any(|tree| tree["phase"] == "lost");
    let broken = array(&lanes).iter().filter(lost).count();
    let unwell = |cable: &&Value| cable["works"] != true || cable["suspected"] == true || cable["drained"] == true;
    let faulty: Vec<&Value> = array(&network["cables"]).iter().filter(unwell).collect();
    if arguments.json {
        println!(
            "{:#}",
            json!({"controller": address, "lanes": lanes, "network": network, "cluster": cluster, "lanes_with_lost_trees": broken})
        );
    } else {
        println!(
            "controller {address}: {} lanes, {broken} of them with a lost tree; {} of {} cables are not in use",
            array(&lanes).len(),
            faulty.len(),
            array(&network["cables"]).len()
        );
        for lane in array(&lanes) {
            let receivers: Vec<&str> = array(&lane["receivers"]).iter().filter_map(|r| r["host"].as_str()).collect();
            let trees: Vec<String> = array(&lane["trees"])
                .iter()
                .map(|tree| {
                    format!("{} {}", tree["group"].as_str().unwrap_or(""), tree["phase"].as_str().unwrap_or(""))
                })
                .collect();
            println!(
                "  lane {} {} ({}, {}): {} -> {}; {}",
                lane["lane"],
                lane["name"].as_str().unwrap_or(""),
                lane["purpose"].as_str().unwrap_or(""),
                lane["standing"].as_str().unwrap_or(""),
                lane["sender"].as_str().unwrap_or(""),
                receivers.join(" "),
                trees.join(", ")
            );
        }
        for cable in faulty {
            let why = [("drained", "taken out of use"), ("suspected", "suspected")];
            let why = why.iter().find(|(key, _)| cable[*key] == true).map_or("no carrier", |(_, why)| why);
            println!("  cable {}: {why}", cable["cable"].as_str().unwrap_or(""));
        }
        for monitor in array(&cluster["monitors"]) {
            let text = |key: &str| monitor[key].as_str().unwrap_or("").to_owned();
            println!("  {} monitors {}, timeout {} ns", text("from"), text("app"), monitor["timeout_ns"]);
        }
    }
    Ok(ExitCode::from(if broken == 0 { 0 } else { UNHEALTHY }))
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}
