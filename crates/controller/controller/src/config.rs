// SPDX-License-Identifier: Apache-2.0
//! The controller's file.
//!
//! Paths are relative to the file's directory. Times carry their unit in their key.
//!
//! ```
//! let file = fide_controller::config::parse(r#"
//!     [controller]
//!     listen = "10.71.0.254:7420"
//!     credentials = "pki/issued/controller.c1"   # made by `fide controller init pki --address 10.71.0.254`
//!     revoked = "pki/revoked"                    # optional: certificates that are refused
//!     store = "controller.redb"                  # the granted lanes; or [etcd]
//!     topology = "network.toml"                  # hosts, switches, cables, limits: a file of the planner
//!
//!     without_redundancy = "continue"            # if a tree breaks and there is no other; or "stop"
//!     grace_ms = 50                              # how long an old contract holds after the new one was announced
//!     gather_ms = 3                              # how long others may report a tree before its fault is looked for
//!     suspicion_ms = 30000                       # after this a cable only suspected is used again
//!     retry_ms = 1000                            # after this another tree is looked for again
//!     offences_max = 3                           # packets beyond the contract until a lane is ended
//!     unused_reports = 10                        # reports in a row below half until half is reclaimed
//!     heartbeat_min_us = 20                      # shortest period of heartbeats
//!     cables_ms = 3000                           # at the start: how long to check the cabling; 0: not at all
//!     audit_ms = 5000                            # how often switches are compared with their orders
//!     sub_lanes = [[56], [46]]                   # DSCP of each sub-lane, the highest priority first
//!
//!     # [etcd]                                   # instead of `store`, for several controllers
//!     # endpoints = ["http://10.71.0.250:2379"]
//!     # prefix = "/fide"
//!     # ttl_s = 3                                # a crash of the leader goes unnoticed for so long
//!     # timeout_ms = 1000
//!     # advertise = "10.71.0.254:7420"           # where agents reach this one; by default `listen`
//!     # authorities = "etcd-ca.pem"              # for https
//!     # certificate = "etcd.pem"                 # and where etcd wants one
//!     # key = "etcd.key"
//!
//!     [[switch]]
//!     name = "s1"                                # as in the topology
//!     driver = "linux"
//!     bridge = "br0"
//!     netns = "/run/netns/s1"                    # optional: by default the controller's own
//!     rate_bps = 10_000_000_000                  # optional: of its ports, if queues are to form here
//!
//!     [[switch]]
//!     name = "s2"
//!     driver = "ovs"
//!     target = "unix:/run/openvswitch/br0.mgmt"  # as for ovs-ofctl
//! "#)?;
//! assert_eq!(file.switch.len(), 2);
//! # Ok::<(), fide_controller::config::ConfigError>(())
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use fide_controller_api::event::WithoutRedundancy;
use fide_planner::{Limits, Topology};
use fide_switch::{Driver, DriverError, GroupRange, Lanes, linux::Linux, ovs::Ovs};
use fide_sys::bounded;
use serde::Deserialize;

use crate::core::{GROUPS, GROUPS_PREFIX, Options};
use crate::leader::TTL_MIN_S;
use crate::switches::SwitchSpec;

pub mod keys;
#[cfg(test)]
mod tests;

/// Largest file.
pub const FILE_MAX_BYTES: u64 = 16 << 20;
/// Longest grace or pause.
const TIME_MAX_MS: u64 = 86_400_000;

/// Slowest port; below it nothing gets through.
const RATE_MIN_BPS: u64 = 8;

/// Longest check of the cabling.
const CABLES_MAX_MS: u64 = 600_000;

/// An error in a file.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("{}: {why}", path.display())]
    Read { path: PathBuf, why: std::io::Error },
    #[error("{0}")]
    Toml(String),
    #[error("{key} is {value}; give {right}")]
    Value { key: &'static str, value: String, right: String },
    #[error("sub_lanes is {why}")]
    SubLanes { why: String },
    #[error("`store` and [etcd] are both there; keep the state in a file, or in etcd for several controllers")]
    TwoStores,
    #[error("there is neither `store` nor [etcd]; write store = \"controller.redb\" under [controller]")]
    NoStore,
    #[error("[etcd]: give certificate and key both, or neither")]
    HalfTls,
    #[error("the topology {}: {why}", path.display())]
    Topology { path: PathBuf, why: String },
    #[error("there are two [[switch]] called \"{0}\"; a switch has one driver")]
    Twice(String),
    #[error("[[switch]] \"{name}\" is no switch of the topology; it has {have}")]
    Unknown { name: String, have: String },
    #[error("the topology has switches without a [[switch]]: {0}; say how each is driven")]
    Undriven(String),
    #[error("[[switch]] \"{name}\": driver \"{driver}\" {what}")]
    Driver { name: String, driver: &'static str, what: &'static str },
}

/// The file as it is written.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub controller: ControllerSection,
    pub etcd: Option<EtcdSection>,
    #[serde(default)]
    pub switch: Vec<SwitchSection>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControllerSection {
    pub listen: SocketAddr,
    pub credentials: PathBuf,
    pub revoked: Option<PathBuf>,
    pub store: Option<PathBuf>,
    pub topology: PathBuf,
    pub without_redundancy: Option<WithoutRedundancy>,
    pub grace_ms: Option<u64>,
    pub gather_ms: Option<u64>,
    pub suspicion_ms: Option<u64>,
    pub retry_ms: Option<u64>,
    pub offences_max: Option<u32>,
    pub unused_reports: Option<u32>,
    pub heartbeat_min_us: Option<u64>,
    pub cables_ms: Option<u64>,
    pub audit_ms: Option<u64>,
    pub sub_lanes: Option<Vec<Vec<u8>>>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EtcdSection {
    pub endpoints: Vec<String>,
    #[serde(default = "prefix")]
    pub prefix: String,
    #[serde(default = "ttl_s")]
    pub ttl_s: u64,
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    pub advertise: Option<String>,
    pub authorities: Option<PathBuf>,
    pub certificate: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

fn prefix() -> String {
    "/fide".into()
}

fn ttl_s() -> u64 {
    3
}

fn timeout_ms() -> u64 {
    1000
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DriverKind {
    Linux,
    Ovs,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SwitchSection {
    pub name: String,
    pub driver: DriverKind,
    pub bridge: Option<String>,
    pub target: Option<String>,
    pub netns: Option<PathBuf>,
    pub rate_bps: Option<u64>,
}

/// Where the state is stored, which also decides how a leader is chosen.
#[derive(Debug, Clone)]
pub enum Place {
    File(PathBuf),
    Etcd(EtcdSection),
}

/// A file, checked, with its topology.
#[derive(Debug)]
pub struct Config {
    pub listen: SocketAddr,
    pub credentials: PathBuf,
    pub revoked: Option<PathBuf>,
    pub place: Place,
    pub topology: Topology,
    pub limits: Limits,
    pub options: Options,
    pub audit: std::time::Duration,
    /// How long to check the cabling at the start; zero: not at all.
    pub cables: std::time::Duration,
    pub sub_lanes: Vec<Vec<u8>>,
    /// One for each switch of the topology, in its order.
    pub switches: Vec<SwitchSection>,
}

/// Parses the text, and reads none of the files that it names.
///
/// # Errors
/// With line and column.
pub fn parse(text: &str) -> Result<File, ConfigError> {
    toml::from_str(text).map_err(|error| ConfigError::Toml(error.to_string()))
}

/// Reads a file and its topology, and checks both.
///
/// # Errors
/// Each names the key, and what would be right.
pub fn load(path: &Path) -> Result<Config, ConfigError> {
    let file = parse(&read(path)?)?;
    let dir = path.parent().unwrap_or(Path::new("."));
    let at = |path: &Path| dir.join(path);
    let section = file.controller;
    let topology_path = at(&section.topology);
    let wrong = |why: String| ConfigError::Topology { path: topology_path.clone(), why };
    let network = fide_planner::file::parse(&read(&topology_path)?).map_err(|error| wrong(error.to_string()))?;
    network.limits.usable(&network.topology).map_err(|error| wrong(error.to_string()))?;
    let place = match (section.store, file.etcd) {
        (Some(_), Some(_)) => return Err(ConfigError::TwoStores),
        (None, None) => return Err(ConfigError::NoStore),
        (Some(store), None) => Place::File(at(&store)),
        (None, Some(etcd)) => Place::Etcd(check_etcd(etcd, &at)?),
    };
    let defaults = Options::default();
    let ns = |key, ms: Option<u64>, default| match ms {
        None => Ok(default),
        Some(ms) if ms <= TIME_MAX_MS => Ok(ms * 1_000_000),
        Some(ms) => Err(ConfigError::Value { key, value: ms.to_string(), right: format!("at most {TIME_MAX_MS}") }),
    };
    let options = Options {
        without_redundancy: section.without_redundancy.unwrap_or(defaults.without_redundancy),
        grace_ns: ns("grace_ms", section.grace_ms, defaults.grace_ns)?,
        gather_ns: ns("gather_ms", section.gather_ms, defaults.gather_ns)?,
        suspicion_ns: ns("suspicion_ms", section.suspicion_ms, defaults.suspicion_ns)?,
        retry_ns: at_least("retry_ms", ns("retry_ms", section.retry_ms, defaults.retry_ns)?, 1)?,
        offences_max: at_least("offences_max", section.offences_max.unwrap_or(defaults.offences_max), 1)?,
        unused_reports: at_least("unused_reports", section.unused_reports.unwrap_or(defaults.unused_reports), 1)?,
        heartbeat_min_ns: at_least(
            "heartbeat_min_us",
            section.heartbeat_min_us.map_or(defaults.heartbeat_min_ns, |us| us.saturating_mul(1000)),
            1,
        )?,
    };
    let cables_ms = section.cables_ms.unwrap_or(3000);
    if cables_ms > CABLES_MAX_MS {
        let right = format!("at most {CABLES_MAX_MS}, or 0 to ask for none");
        return Err(ConfigError::Value { key: "cables_ms", value: cables_ms.to_string(), right });
    }
    let sub_lanes = check_sub_lanes(section.sub_lanes)?;
    let audit_ms = at_least("audit_ms", section.audit_ms.unwrap_or(5000), 10)?;
    Ok(Config {
        listen: section.listen,
        credentials: at(&section.credentials),
        revoked: section.revoked.as_deref().map(at),
        place,
        options,
        audit: std::time::Duration::from_millis(audit_ms.min(TIME_MAX_MS)),
        cables: std::time::Duration::from_millis(cables_ms),
        sub_lanes,
        switches: check_switches(file.switch, &network.topology)?,
        topology: network.topology,
        limits: network.limits,
    })
}

/// Reads the switches of a file, even if its topology does not exist.
///
/// # Errors
/// Each names the key, and what would be right.
pub fn load_switches(path: &Path) -> Result<Vec<SwitchSection>, ConfigError> {
    let sections = parse(&read(path)?)?.switch;
    let mut names = BTreeSet::new();
    for section in &sections {
        check_driver(section)?;
        if !fide_planner::topology::name_fits(&section.name) {
            let right = "1 to 63 of a-z, A-Z, 0-9, '.', '_' and '-', without \"--\"".into();
            return Err(ConfigError::Value { key: "name of a [[switch]]", value: section.name.clone(), right });
        }
        if !names.insert(&section.name) {
            return Err(ConfigError::Twice(section.name.clone()));
        }
    }
    Ok(sections)
}

fn read(path: &Path) -> Result<String, ConfigError> {
    bounded::read_text(path, FILE_MAX_BYTES).map_err(|why| ConfigError::Read { path: path.to_owned(), why })
}

fn at_least<T: PartialOrd + std::fmt::Display>(key: &'static str, value: T, least: T) -> Result<T, ConfigError> {
    if value >= least {
        return Ok(value);
    }
    Err(ConfigError::Value { key, value: value.to_string(), right: format!("at least {least}") })
}

/// What every switch would refuse for as long as the controller runs.
fn check_sub_lanes(sub_lanes: Option<Vec<Vec<u8>>>) -> Result<Vec<Vec<u8>>, ConfigError> {
    let Some(sub_lanes) = sub_lanes else { return Ok(Lanes::default().sub_lanes) };
    let lanes = Lanes { sub_lanes, ..Lanes::default() };
    match lanes.check() {
        Ok(()) => Ok(lanes.sub_lanes),
        Err(DriverError::Lanes(why)) => Err(ConfigError::SubLanes { why }),
        Err(other) => Err(ConfigError::SubLanes { why: other.to_string() }),
    }
}

fn check_etcd(mut etcd: EtcdSection, at: &impl Fn(&Path) -> PathBuf) -> Result<EtcdSection, ConfigError> {
    at_least("ttl_s", etcd.ttl_s, TTL_MIN_S)?;
    at_least("timeout_ms", etcd.timeout_ms, 1)?;
    if etcd.certificate.is_some() != etcd.key.is_some() {
        return Err(ConfigError::HalfTls);
    }
    for path in [&mut etcd.authorities, &mut etcd.certificate, &mut etcd.key].into_iter().flatten() {
        *path = at(path);
    }
    Ok(etcd)
}

fn check_switches(sections: Vec<SwitchSection>, topology: &Topology) -> Result<Vec<SwitchSection>, ConfigError> {
    let names: Vec<&str> = topology
        .node_ids()
        .filter(|node| !topology.is_host(*node))
        .map(|node| topology.node(node).name.as_str())
        .collect();
    let mut by_name = BTreeMap::new();
    for section in sections {
        let name = section.name.clone();
        if !names.contains(&name.as_str()) {
            return Err(ConfigError::Unknown { name, have: names.join(", ") });
        }
        check_driver(&section)?;
        if by_name.insert(name.clone(), section).is_some() {
            return Err(ConfigError::Twice(name));
        }
    }
    let undriven: Vec<&str> = names.iter().filter(|name| !by_name.contains_key(**name)).copied().collect();
    if !undriven.is_empty() {
        return Err(ConfigError::Undriven(undriven.join(", ")));
    }
    Ok(names.iter().filter_map(|name| by_name.remove(*name)).collect())
}

fn check_driver(section: &SwitchSection) -> Result<(), ConfigError> {
    at_least("rate_bps of a [[switch]]", section.rate_bps.unwrap_or(RATE_MIN_BPS), RATE_MIN_BPS)?;
    let wrong = |driver, what| Err(ConfigError::Driver { name: section.name.clone(), driver, what });
    match (section.driver, &section.bridge, &section.target) {
        (DriverKind::Linux, _, Some(_)) => wrong("linux", "has no target; give the bridge's name as `bridge`"),
        (DriverKind::Ovs, Some(_), _) => wrong("ovs", "has no `bridge`; give `target` as for ovs-ofctl"),
        (DriverKind::Linux, None, None) => wrong("linux", "needs `bridge`, the bridge's name"),
        (DriverKind::Ovs, None, None) => wrong("ovs", "needs `target`, as for ovs-ofctl"),
        _ => Ok(()),
    }
}

impl Config {
    /// The switches' configuration for their threads.
    #[must_use]
    pub fn switch_specs(&self) -> Vec<SwitchSpec> {
        let topology = &self.topology;
        self.switches
            .iter()
            .map(|section| {
                let node = topology.find(&section.name);
                let links = node.into_iter().flat_map(|node| topology.leaving(node));
                let ports: BTreeSet<String> = links.map(|link| topology.port(*link).to_owned()).collect();
                let lanes = Lanes { sub_lanes: self.sub_lanes.clone(), rate_bps: section.rate_bps, ..Lanes::default() };
                let opened = section.clone();
                SwitchSpec { name: section.name.clone(), open: Box::new(move || open(&opened)), lanes, ports }
            })
            .collect()
    }
}

/// Opens a switch as configured.
///
/// # Errors
/// The driver's.
pub fn open(section: &SwitchSection) -> Result<Box<dyn Driver>, fide_switch::DriverError> {
    let range = GroupRange::new(GROUPS, GROUPS_PREFIX)?;
    let netns = section.netns.as_deref();
    Ok(match section.driver {
        DriverKind::Linux => Box::new(Linux::open(netns, section.bridge.as_deref().unwrap_or_default(), range)?),
        DriverKind::Ovs => Box::new(Ovs::open(section.target.as_deref().unwrap_or_default(), netns, range)?),
    })
}
