// SPDX-License-Identifier: Apache-2.0
//! `fide controller announce`: a host announces its name by LLDP.

use std::{fs, path::PathBuf, process::ExitCode, time::Duration};

use anyhow::{Context, anyhow};
use fide_agent::config::Config;
use fide_discover::{
    End,
    lldp::Role,
    probe::{Pace, Port, probe},
};
use fide_sys::interface;

use super::discover::stop_at_signals;
use crate::exit::{Done, Failure, NOT_PERMITTED, UNHEALTHY, USAGE};
use crate::say::{say, show};

/// Longest time that one call announces: a day.
const FOR_MAX_S: u64 = 86_400;
/// The cluster's file, if no other is named.
const USUAL: &str = "/etc/fide/fide.toml";

#[derive(clap::Args)]
pub(super) struct Announce {
    /// Interface to announce on; may be given several times. By default, the interfaces with the addresses
    /// that this host has in the cluster's file
    #[arg(long, value_name = "NAME")]
    interface: Vec<String>,
    /// Name to announce; by default, this host's name in the cluster's file, or else its host name
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The cluster's file [default: /etc/fide/fide.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How long to announce; at the end, the announcement is withdrawn
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=FOR_MAX_S))]
    for_s: u64,
    /// Time between two frames
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(100..=60_000))]
    every_ms: u64,
    /// Send one frame on each interface, valid for two minutes, and do not listen
    #[arg(long, conflicts_with_all = ["for_s", "every_ms"])]
    once: bool,
}

pub(super) fn announce(arguments: &Announce) -> Done {
    let (name, interfaces) = who(arguments)?;
    if !fide_planner::topology::name_fits(&name) {
        let right = "1 to 63 of a-z, A-Z, 0-9, '.', '_' and '-', without \"--\"";
        return Err(Failure::new(USAGE, anyhow!("a host cannot be called `{name}`; give --name with {right}")));
    }
    let port = |interface: &String| {
        let at = End::new(name.clone(), interface.clone());
        Port { at, role: Role::Host, netns: None, limit: None }
    };
    let ports: Vec<Port> = interfaces.iter().map(port).collect();
    let pace = if arguments.once {
        Pace { wait: Duration::ZERO, period: Duration::from_secs(1), farewell: false }
    } else {
        let (wait, period) = (Duration::from_secs(arguments.for_s), Duration::from_millis(arguments.every_ms));
        Pace { wait, period, farewell: true }
    };
    let stop = stop_at_signals()?;
    let how_long = if arguments.once { "once".to_owned() } else { format!("for {} s", arguments.for_s) };
    show!("{name} speaks at {} {how_long}", interfaces.join(", "))?;
    let heard = probe(&ports, pace, &stop).map_err(|error| {
        let code = if error.denied() { NOT_PERMITTED } else { UNHEALTHY };
        Failure::new(code, error)
    })?;
    let mut right = true;
    for (port, heard) in ports.iter().zip(&heard) {
        let name = &port.at.port;
        if let Some(why) = &heard.unsent {
            say!("fide: {name}: nothing could be sent: {why}");
            right = false;
        } else if !arguments.once {
            let ends = heard.frames.iter().map(|frame| End::new(frame.node(), frame.port_name()).to_string());
            let ends: std::collections::BTreeSet<String> = ends.collect();
            match ends.len() {
                0 => show!("{name} heard nobody")?,
                _ => show!("{name} heard {}", ends.into_iter().collect::<Vec<_>>().join(", "))?,
            }
        }
    }
    Ok(ExitCode::from(if right { 0 } else { UNHEALTHY }))
}

/// This host's name, and the interfaces to announce on.
fn who(arguments: &Announce) -> Result<(String, Vec<String>), Failure> {
    if let (Some(name), false) = (&arguments.name, arguments.interface.is_empty()) {
        return Ok((name.clone(), arguments.interface.clone()));
    }
    let usual = PathBuf::from(USUAL);
    let Some(path) = arguments.config.clone().or_else(|| usual.exists().then_some(usual)) else {
        if arguments.interface.is_empty() {
            let why = anyhow!("there is no {USUAL} that names this host's interfaces; give --interface or --config");
            return Err(Failure::new(USAGE, why));
        }
        let name = fs::read_to_string("/proc/sys/kernel/hostname").context("reading the host's name")?;
        return Ok((name.trim().to_owned(), arguments.interface.clone()));
    };
    let config = Config::load(&path)?;
    let local = interface::addresses()?;
    let id = config.identify(arguments.name.as_deref(), &local)?;
    let member = config.member(id);
    let mut interfaces = arguments.interface.clone();
    if interfaces.is_empty() {
        let of = |address| interface::by_address(address).map(|interface| interface.name);
        interfaces = member.addresses.iter().map(|address| of(*address)).collect::<Result<_, _>>()?;
    }
    Ok((member.name.as_str().to_owned(), interfaces))
}
