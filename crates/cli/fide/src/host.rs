// SPDX-License-Identifier: Apache-2.0
//! The core and interfaces that `fide doctor` and `fide tune` examine.

use std::{net::Ipv4Addr, path::PathBuf};

use anyhow::anyhow;
use fide_agent::config::{Config, DEFAULT_DRIFT_PPM};
use fide_host_tuning::{
    doctor::Host,
    machine::{Copy, Machine, ThisHost},
    roots::Roots,
    rungs::Plane,
};
use fide_net::isolation::default_core;
use fide_net::link::Destination;
use fide_sys::interface;

use crate::exit::{Failure, USAGE};

#[derive(clap::Args)]
pub(crate) struct HostArguments {
    /// Core of the agent's loop; by default the configured one, else the highest this process may use
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// Interfaces of the planes; by default those of the configuration, else all that are up
    #[arg(long, value_name = "IF", num_args = 1..)]
    interface: Vec<String>,
    /// The file that every host of the cluster shares, to take core and interfaces from
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// This host's name in the configuration; by default, the member that has this host's addresses
    #[arg(long, value_name = "NAME", requires = "config")]
    host: Option<String>,
    /// Read a copy of another host's /proc, /sys, /dev and /boot below DIR
    #[arg(long, value_name = "DIR", hide = true)]
    root: Option<PathBuf>,
}

/// The multicast group of a probed plane; a probe sends nothing.
const PROBE_GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 70, 68);

impl HostArguments {
    pub(crate) fn has_config(&self) -> bool {
        self.config.is_some()
    }

    /// Whether the host is a copy of files, so that nothing can be asked or measured.
    pub(crate) fn is_copy(&self) -> bool {
        self.root.is_some()
    }

    fn config(&self) -> Result<Option<(Config, u16)>, Failure> {
        let Some(path) = &self.config else { return Ok(None) };
        let local = interface::addresses()?;
        let config = Config::load(path)?;
        let me = config.identify(self.host.as_deref(), &local)?;
        Ok(Some((config, me)))
    }

    /// The host and its planes, after a check that it has the core and the interfaces.
    pub(crate) fn host(&self) -> Result<(Host<'static>, Vec<Plane>), Failure> {
        let roots = self.root.as_ref().map_or_else(Roots::default, |root| Roots::under(root));
        let machine: &'static dyn Machine = if self.is_copy() { &Copy } else { &ThisHost };
        let config = self.config()?;
        let configured = config.as_ref().and_then(|(config, _)| config.core);
        let core = self.core.or(configured).unwrap_or_else(default_core);
        let planes = match &config {
            Some((config, me)) if self.interface.is_empty() => configured_planes(config, *me)?,
            _ => Vec::new(),
        };
        let interfaces = match (self.interface.as_slice(), planes.as_slice()) {
            ([], []) => Host::up(&roots).unwrap_or_default(),
            ([], planes) => planes.iter().map(|plane| plane.interface.name.clone()).collect(),
            (names, _) => names.to_vec(),
        };
        let drift_ppm = config.as_ref().map_or(DEFAULT_DRIFT_PPM, |(config, _)| config.drift_ppm);
        let host = Host { roots, machine, core, interfaces, drift_ppm };
        check(&host)?;
        let planes = if planes.is_empty() && !self.is_copy() { probed_planes(&host)? } else { planes };
        Ok((host, planes))
    }
}

fn check(host: &Host<'_>) -> Result<(), Failure> {
    if let Ok(online) = host.online()
        && !online.holds(host.core)
    {
        return Err(Failure::new(USAGE, anyhow!("core {} is not there; this host has {online}", host.core)));
    }
    let all = Roots::list(&host.roots.sys.join("class/net")).unwrap_or_default();
    for name in &host.interfaces {
        if !all.contains(name) {
            let all = all.join(", ");
            return Err(Failure::new(USAGE, anyhow!("interface {name} is not there; this host has {all}")));
        }
    }
    Ok(())
}

fn configured_planes(config: &Config, me: u16) -> Result<Vec<Plane>, Failure> {
    let addresses = config.member(me).addresses.iter().zip(&config.planes);
    let plane = |(address, plane): (&Ipv4Addr, &fide_agent::config::Plane)| {
        let interface = interface::by_address(*address)?;
        let destination = Destination::Group(plane.group.unwrap_or(PROBE_GROUP));
        Ok(Plane { interface, destination })
    };
    addresses.map(plane).collect()
}

/// Interfaces without an IPv4 address are not planes.
fn probed_planes(host: &Host<'_>) -> Result<Vec<Plane>, Failure> {
    let addresses = interface::addresses()?;
    let mut planes = Vec::new();
    for name in &host.interfaces {
        if let Some((_, address)) = addresses.iter().find(|(other, _)| other == name)
            && let Ok(interface) = interface::by_address(*address)
        {
            planes.push(Plane { interface, destination: Destination::Group(PROBE_GROUP) });
        }
    }
    Ok(planes)
}
