// SPDX-License-Identifier: Apache-2.0
//! The file that every host of a cluster shares, and its drop-ins.
//!
//! `fide.toml` is read first, then every `*.toml` in `fide.toml.d/` beside it in the order of their names.
//! A later file overrides single keys of `[cluster]`, `[agent]` and `[limits]`, and adds to `[[name]]`. It
//! may not name planes or members, because these belong to the cluster, not to the host.

use std::{
    collections::HashMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use fide_sys::bounded;
use fide_types::{HostId, bounds::DEFAULT_PORT, host_index};
use fide_wire::{Key, MAX_HOSTS, MAX_PLANES, Name, PAYLOAD_MAX};
use serde::{Deserialize, de::DeserializeOwned};

use crate::{
    key::{self, KeyFileError},
    names,
};

mod file;
pub mod keys;

mod place;
pub mod shape;
mod windows;

pub use fide_types::{Policy, Role, Trust};
use file::{AgentTable, ClusterTable, File};
use place::{At, Problem, Source};
pub use windows::{POLLS_PER_HEARTBEAT, Window};

/// Controllers that are tried in turn.
const CONTROLLERS_MAX: usize = 8;

/// How the loop waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Blocks between heartbeats.
    #[default]
    Sleep,
    /// Spins, with short breaks.
    Busy,
}

/// Which rung of the receive ladder to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveRung {
    /// The best that works.
    #[default]
    Auto,
    /// XDP in the driver.
    Xdp,
    /// XDP on the generic path.
    XdpGeneric,
    /// Frames before the IP layer.
    AfPacket,
    /// A UDP socket.
    Udp,
}

/// Which rung of the exit ladder to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExitRung {
    /// The best that works.
    #[default]
    Auto,
    /// The kernel's exit hook.
    Bpf,
    /// A pidfd for each process.
    Pidfd,
}

/// Who may join under a name that no `[[name]]` covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UnlistedNames {
    /// Anyone; the name is then that user's while the agent runs.
    #[default]
    Anyone,
    /// Root and the agent's own user.
    Nobody,
}

/// The most that one user may have of an agent, other than root and the agent's own user; `None`: a share of
/// the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    pub connections: Option<usize>,
    pub sessions: Option<usize>,
    pub watches: Option<usize>,
    pub processes: Option<usize>,
    pub lanes: Option<usize>,
    /// Only root runs programs here: nothing is reserved for other users.
    pub only_root: Option<bool>,
}

impl Limits {
    fn override_with(&mut self, over: Self) {
        self.connections = over.connections.or(self.connections);
        self.sessions = over.sessions.or(self.sessions);
        self.watches = over.watches.or(self.watches);
        self.processes = over.processes.or(self.processes);
        self.lanes = over.lanes.or(self.lanes);
        self.only_root = over.only_root.or(self.only_root);
    }
}

/// One plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plane {
    /// Multicast group; `None` sends to each member.
    pub group: Option<Ipv4Addr>,
    /// Directory of the windows to each member; `None`: the plane is a network.
    pub windows: Option<PathBuf>,
}

/// One host of the cluster. Its id is its position in the file, from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Unique name.
    pub name: Name,
    /// One address on each plane that is a network.
    pub addresses: Vec<Ipv4Addr>,
    /// Voter or observer.
    pub role: Role,
    /// Ids of the members that it monitors.
    pub monitors: Vec<u16>,
}

/// Controllers, and how they know this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// In the order in which they are tried.
    pub addresses: Vec<SocketAddr>,
    /// Directory with certificate, key and authorities.
    pub credentials: PathBuf,
    /// Largest payload of a heartbeat, which its lane is asked for. A smaller one leaves more of the
    /// network to others.
    pub packet_max_bytes: usize,
    /// Programs also get the whole chunks of packets whose tag is wrong. Only for networks that nobody else
    /// can send to.
    pub salvage: bool,
}

/// A checked configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Cluster name.
    pub cluster: String,
    /// Key file, absolute or relative to the working directory.
    pub key_file: PathBuf,
    /// See [`Trust`].
    pub trust: Trust,
    /// See [`Policy`].
    pub policy: Policy,
    /// Heartbeat interval.
    pub heartbeat_ns: u64,
    /// The configured timeout; `None`: from measurement.
    pub timeout_ns: Option<u64>,
    /// By how much one host's clock (CLOCK_MONOTONIC_RAW) may run faster than another's, parts per million.
    pub drift_ppm: u32,
    /// UDP port of the cluster.
    pub port: u16,
    /// How long a new key is accepted before it is used, and an old one after it is not used any more.
    pub key_overlap_ms: u64,
    /// The controllers that plan the trees. Without them, a plane is the group in the file, or unicast.
    pub controller: Option<Controller>,
    /// One or two; networks before those of windows.
    pub planes: Vec<Plane>,
    /// By id, from 1.
    pub members: Vec<Member>,
    /// How the loop waits.
    pub mode: Mode,
    /// Core of the loop; `None`: the highest.
    pub core: Option<usize>,
    /// Receive rung.
    pub receive: ReceiveRung,
    /// Exit rung.
    pub exit_watch: ExitRung,
    /// Length of the measurement at the start.
    pub calibrate_ns: u64,
    /// Directory of the socket.
    pub runtime_dir: PathBuf,
    /// Directory of the state that must survive a restart.
    pub state_dir: PathBuf,
    /// Which users may join under which names.
    pub names: Vec<names::Rule>,
    /// Users and groups in `names` that this host does not know.
    pub unknown_users: Vec<String>,
    /// Who may join under all other names.
    pub unlisted_names: UnlistedNames,
    /// The most that one user may have.
    pub limits: Limits,
    /// The files that this was read from, in their order.
    sources: Vec<Source>,
}

/// An error in a configuration, and how to correct it.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file could not be read.
    #[error("{path}: {why}")]
    Read { path: PathBuf, why: std::io::Error },
    /// Not TOML, or a key that does not exist, or a value of the wrong kind.
    #[error("{path}: {why}")]
    Parse { path: PathBuf, why: Box<toml::de::Error> },
    /// A drop-in contains what only the shared file may contain.
    #[error(
        "{path}: [[plane]], [[member]] and [controller] belong into the file that every host shares, not into a drop-in"
    )]
    DropIn { path: PathBuf },
    /// A value that contradicts another or lies out of range.
    #[error("{at}: {problem}")]
    Invalid { at: String, problem: String },
    /// This host is not in the file.
    #[error("{0}")]
    Identity(String),
}

/// The cluster's key file was refused.
#[derive(Debug, thiserror::Error)]
#[error("{at}: {why}")]
pub struct KeyError {
    /// File and line that name it.
    pub at: String,
    pub why: KeyFileError,
}

/// `drift_ppm` if the configuration has none.
pub use fide_detector::config::DRIFT_PPM as DEFAULT_DRIFT_PPM;

/// The detector refuses more.
const DRIFT_PPM: std::ops::RangeInclusive<u32> = 1..=99_999;
/// Heartbeat intervals that make sense: below 20 us FiDe §6.2 found no stability.
const HEARTBEAT_US: std::ops::RangeInclusive<u64> = 20..=1_000_000;
/// The detector refuses more.
const TIMEOUT_US_MAX: u64 = fide_detector::config::TIMEOUT_NS_MAX / 1000;
/// A start measures for so long at most.
const CALIBRATE_MS: std::ops::RangeInclusive<u64> = 1..=60_000;
/// A changed key is in use everywhere after a day at most.
const KEY_OVERLAP_MS: std::ops::RangeInclusive<u64> = 0..=86_400_000;
/// No file of a configuration is longer.
const FILE_MAX_BYTES: u64 = 1 << 20;

impl Config {
    /// Reads `path` and its drop-ins.
    ///
    /// # Errors
    /// [`ConfigError`], for the first thing that is wrong.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let source = read(path)?;
        let mut file: File = parse(&source)?;
        let mut sources = vec![source];
        let mut drop_ins = path.as_os_str().to_owned();
        drop_ins.push(".d");
        let mut paths: Vec<PathBuf> = match fs::read_dir(&drop_ins) {
            Ok(entries) => entries.filter_map(|entry| Some(entry.ok()?.path())).collect(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(why) => return Err(ConfigError::Read { path: drop_ins.into(), why }),
        };
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "toml"));
        paths.sort();
        for path in paths {
            let source = read(&path)?;
            // Before the tables are understood: what is missing in one that does not belong here would be no help.
            let tables: toml::Table = parse(&source)?;
            if ["plane", "member", "controller"].iter().any(|table| tables.contains_key(*table)) {
                return Err(ConfigError::DropIn { path });
            }
            let over: File = parse(&source)?;
            sources.push(source);
            file.cluster.override_with(over.cluster);
            file.agent.override_with(over.agent);
            // Each host has users of its own.
            file.name.extend(over.name);
            file.limits.override_with(over.limits);
        }
        let base = path.parent().unwrap_or(Path::new("."));
        match build(file, base) {
            Ok(config) => Ok(Self { sources, ..config }),
            Err(Problem { at, text: problem }) => Err(ConfigError::Invalid { at: place::say(&sources, &at), problem }),
        }
    }

    /// Reads the cluster's key.
    ///
    /// # Errors
    /// [`KeyError`], which names where the configuration names the file.
    pub fn key(&self) -> Result<Key, KeyError> {
        key::load(&self.key_file).map_err(|why| KeyError { at: self.place_of("cluster", "key_file"), why })
    }

    /// The file and line of `key` in `[table]`; the shared file if no file has it.
    #[must_use]
    pub fn place_of(&self, table: &'static str, key: &'static str) -> String {
        place::say(&self.sources, &[At::Key(table, key)])
    }

    /// The id of the member called `name`. Without a name, the member whose first address this host has.
    ///
    /// # Errors
    /// [`ConfigError::Identity`] if there is none, or more than one.
    pub fn identify(&self, name: Option<&str>, local: &[(String, Ipv4Addr)]) -> Result<u16, ConfigError> {
        let names = || self.members.iter().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", ");
        let position = match name {
            Some(name) => self.members.iter().position(|member| member.name.as_str() == name).ok_or_else(|| {
                ConfigError::Identity(format!("no member is called {name}; the file has {}", names()))
            })?,
            None if self.networks() == 0 => {
                return Err(ConfigError::Identity(format!(
                    "without a plane that is a network no host is known by its addresses; say which member this one is with --host ({})",
                    names()
                )));
            }
            None => {
                let mut mine = self.members.iter().enumerate().filter(|(_, member)| {
                    member.addresses.iter().all(|address| local.iter().any(|(_, have)| have == address))
                });
                match (mine.next(), mine.next()) {
                    (Some((position, _)), None) => position,
                    (Some((_, one)), Some((_, two))) => {
                        return Err(ConfigError::Identity(format!(
                            "this host has the addresses of {} and of {}; say which with --host",
                            one.name.as_str(),
                            two.name.as_str()
                        )));
                    }
                    (None, _) => {
                        return Err(ConfigError::Identity(format!(
                            "no member's addresses are all on this host; say which one it is with --host ({})",
                            names()
                        )));
                    }
                }
            }
        };
        Ok(u16::try_from(position + 1).expect("at most MAX_HOSTS"))
    }

    /// Whether the whole chunks of damaged packets are delivered.
    #[must_use]
    pub fn salvage(&self) -> bool {
        self.controller.as_ref().is_some_and(|controller| controller.salvage)
    }

    /// Largest payload, if the planes carry `fits`: never more than the lane was asked for.
    #[must_use]
    pub fn payload_max(&self, fits: usize) -> usize {
        self.controller.as_ref().map_or(fits, |controller| fits.min(controller.packet_max_bytes))
    }

    /// The member with this id.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn member(&self, id: HostId) -> &Member {
        &self.members[host_index(id)]
    }
}

fn read(path: &Path) -> Result<Source, ConfigError> {
    let text =
        bounded::read_text(path, FILE_MAX_BYTES).map_err(|why| ConfigError::Read { path: path.to_owned(), why })?;
    Ok(Source { path: path.to_owned(), text })
}

fn parse<T: DeserializeOwned>(source: &Source) -> Result<T, ConfigError> {
    toml::from_str(&source.text).map_err(|why| ConfigError::Parse { path: source.path.clone(), why: Box::new(why) })
}

fn build(file: File, base: &Path) -> Result<Config, Problem> {
    let ClusterTable { name, key_file, trust, policy, heartbeat_us, timeout_us, drift_ppm, port, key_overlap_ms } =
        file.cluster;
    let AgentTable { mode, core, receive, exit_watch, calibrate_ms, runtime_dir, state_dir, unlisted_names } =
        file.agent;
    let mut unknown_users = Vec::new();
    let names = file.name.into_iter().enumerate().map(|(index, table)| {
        name_rule(table, &mut unknown_users).map_err(|text| Problem::at(&[At::Item("name", index)], text))
    });
    let names = names.collect::<Result<_, _>>()?;
    let key_file =
        key_file.ok_or("[cluster] lacks key_file: the file with the cluster's key, 32 hexadecimal digits")?;
    let heartbeat_us = heartbeat_us.unwrap_or(1000);
    let drift_ppm = drift_ppm.unwrap_or(DEFAULT_DRIFT_PPM);
    check_times(heartbeat_us, timeout_us, drift_ppm)?;
    let calibrate_ms = calibrate_ms.unwrap_or(500);
    in_range("agent", "calibrate_ms", calibrate_ms, &CALIBRATE_MS)?;
    let key_overlap_ms = key_overlap_ms.unwrap_or(10_000);
    in_range("cluster", "key_overlap_ms", key_overlap_ms, &KEY_OVERLAP_MS)?;
    let port = port.unwrap_or(DEFAULT_PORT);
    if port == 0 {
        return Err(Problem::at(
            &[At::Key("cluster", "port")],
            format!("port = 0 is no port; {DEFAULT_PORT} is the usual one"),
        ));
    }
    check_planes(&file.plane)?;
    let networks = file.plane.iter().filter(|plane| plane.windows.is_none()).count();
    if file.controller.is_some() && networks < file.plane.len() {
        let at = [At::Item("plane", networks)];
        return Err(Problem::at(
            &at,
            "with [controller] each plane is a network that it plans; leave out `windows`, or [controller]",
        ));
    }
    let has_groups = file.plane.iter().any(|plane| plane.group.is_some());
    let controller = file.controller.map(|table| controller(table, has_groups, base)).transpose()?;
    let policy = policy.unwrap_or(Policy::Majority);
    let members = members(file.member, networks, policy)?;
    Ok(Config {
        cluster: name.unwrap_or_else(|| "fide".to_owned()),
        key_file: base.join(key_file),
        trust: trust.unwrap_or(Trust::Lease),
        policy,
        heartbeat_ns: heartbeat_us * 1000,
        timeout_ns: timeout_us.map(|us| us * 1000),
        drift_ppm,
        port,
        key_overlap_ms,
        controller,
        planes: file.plane.into_iter().map(|plane| plane_of(plane, base)).collect(),
        members,
        mode: mode.unwrap_or_default(),
        core,
        receive: receive.unwrap_or_default(),
        exit_watch: exit_watch.unwrap_or_default(),
        calibrate_ns: calibrate_ms * 1_000_000,
        runtime_dir: runtime_dir.unwrap_or_else(|| "/run/fide".into()),
        state_dir: state_dir.unwrap_or_else(|| "/var/lib/fide".into()),
        names,
        unknown_users,
        unlisted_names: unlisted_names.unwrap_or_default(),
        limits: file.limits,
        sources: Vec::new(),
    })
}

fn plane_of(table: file::PlaneTable, base: &Path) -> Plane {
    Plane { group: table.group, windows: table.windows.map(|dir| base.join(dir)) }
}

fn in_range(
    table: &'static str,
    key: &'static str,
    value: u64,
    range: &std::ops::RangeInclusive<u64>,
) -> Result<(), Problem> {
    if range.contains(&value) {
        return Ok(());
    }
    let text = format!("{key} = {value} is out of range; {} to {} are possible", range.start(), range.end());
    Err(Problem::at(&[At::Key(table, key)], text))
}

fn check_times(heartbeat_us: u64, timeout_us: Option<u64>, drift_ppm: u32) -> Result<(), Problem> {
    in_range("cluster", "heartbeat_us", heartbeat_us, &HEARTBEAT_US)?;
    if let Some(timeout_us) = timeout_us.filter(|timeout_us| *timeout_us > TIMEOUT_US_MAX) {
        let text = format!("timeout_us = {timeout_us} is above an hour; {TIMEOUT_US_MAX} is the longest");
        return Err(Problem::at(&[At::Key("cluster", "timeout_us")], text));
    }
    if let Some(timeout_us) = timeout_us.filter(|timeout_us| *timeout_us <= heartbeat_us) {
        return Err(Problem::at(
            &[At::Key("cluster", "timeout_us"), At::Key("cluster", "heartbeat_us")],
            format!(
                "timeout_us = {timeout_us} is not above heartbeat_us = {heartbeat_us}: every heartbeat would be late"
            ),
        ));
    }
    if !DRIFT_PPM.contains(&drift_ppm) {
        let text = format!(
            "drift_ppm = {drift_ppm} is out of range; {} to {} are possible: by how much one host's clock may run faster than \
             another's, 200 for ordinary crystals",
            DRIFT_PPM.start(),
            DRIFT_PPM.end()
        );
        return Err(Problem::at(&[At::Key("cluster", "drift_ppm")], text));
    }
    Ok(())
}

fn check_planes(planes: &[file::PlaneTable]) -> Result<(), Problem> {
    if !(1..=MAX_PLANES).contains(&planes.len()) {
        let text =
            format!("{} [[plane]] sections; one or two are possible, and two make a cut cable harmless", planes.len());
        return Err(text.into());
    }
    for (index, plane) in planes.iter().enumerate() {
        if let Some(group) = plane.group.filter(|group| !group.is_multicast()) {
            let text = format!("plane {index}: group {group} is no multicast address (224.0.0.0 to 239.255.255.255)");
            return Err(Problem::at(&[At::Item("plane", index)], text));
        }
    }
    windows::check(planes)?;
    if let [first, second] = planes
        && let Some(group) = first.group
        && second.group == Some(group)
    {
        let text = format!(
            "planes 0 and 1 have the one group {group}: their packets could not be told apart; give each plane a group of its own"
        );
        return Err(Problem::at(&[At::Item("plane", 1)], text));
    }
    Ok(())
}

fn controller(table: file::ControllerTable, has_groups: bool, base: &Path) -> Result<Controller, Problem> {
    if table.addresses.is_empty() || table.addresses.len() > CONTROLLERS_MAX {
        return Err(Problem::at(
            &[At::Key("controller", "addresses")],
            format!("[controller] has {} addresses; 1 to {CONTROLLERS_MAX} are possible", table.addresses.len()),
        ));
    }
    if has_groups {
        return Err("with [controller] the trees' groups come from it; leave `group` out of [[plane]]".into());
    }
    let packet_max_bytes = table.packet_max_bytes.unwrap_or(PAYLOAD_MAX);
    if !(1..=PAYLOAD_MAX).contains(&packet_max_bytes) {
        return Err(Problem::at(
            &[At::Key("controller", "packet_max_bytes")],
            format!("packet_max_bytes = {packet_max_bytes} is out of range; 1 to {PAYLOAD_MAX} are possible"),
        ));
    }
    let credentials = base.join(table.credentials);
    Ok(Controller {
        addresses: table.addresses,
        credentials,
        packet_max_bytes,
        salvage: table.salvage.unwrap_or(false),
    })
}

/// A user that this host does not have is no error, because hosts share the file.
fn name_rule(table: file::NameTable, unknown: &mut Vec<String>) -> Result<names::Rule, String> {
    let file::NameTable { pattern, users, groups } = table;
    // Checked like a name, with a letter for each star.
    let parts = pattern.replace('*', "x");
    if Name::new(parts.as_bytes()).is_err() {
        return Err(format!(
            "[[name]] pattern \"{}\" fits no name: 1 to 31 of A-Za-z0-9._- and *, which stands for any characters",
            pattern.escape_debug()
        ));
    }
    if users.is_empty() && groups.is_empty() {
        return Err(format!("[[name]] {pattern} names neither users nor groups; nobody but root could join under it"));
    }
    let mut ids = |names: Vec<String>, id: fn(&str) -> Option<u32>| {
        let (known, not): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| id(name).is_some());
        unknown.extend(not);
        known.iter().filter_map(|name| id(name)).collect()
    };
    Ok(names::Rule { users: ids(users, names::user_id), groups: ids(groups, names::group_id), pattern })
}

/// The id of each member, by its name.
type Ids = HashMap<String, u16>;

fn members(tables: Vec<file::MemberTable>, networks: usize, policy: Policy) -> Result<Vec<Member>, Problem> {
    let ids = check_names_and_addresses(&tables, networks)?;
    check_witnesses(&tables, policy)?;
    let member = |(index, table): (usize, &file::MemberTable)| {
        let monitored =
            monitored(table, &tables, &ids, policy).map_err(|text| Problem::at(&[At::Item("member", index)], text))?;
        Ok(Member {
            name: Name::new(table.name.as_bytes()).expect("checked"),
            addresses: table.addresses.clone(),
            role: table.role,
            monitors: monitored.into_iter().map(|name| ids[name]).collect(),
        })
    };
    tables.iter().enumerate().map(member).collect()
}

/// Every name and every address belongs to one member, and every member has one address on each network.
fn check_names_and_addresses(tables: &[file::MemberTable], networks: usize) -> Result<Ids, Problem> {
    if tables.is_empty() || tables.len() > MAX_HOSTS {
        return Err(format!("{} [[member]] sections; 1 to {MAX_HOSTS} are possible", tables.len()).into());
    }
    let mut ids = Ids::new();
    let mut owners: HashMap<Ipv4Addr, &str> = HashMap::new();
    for (index, table) in tables.iter().enumerate() {
        let name = &table.name;
        let wrong = |text: String| Problem::at(&[At::Item("member", index)], text);
        Name::new(name.as_bytes()).map_err(|error| wrong(format!("member \"{}\": {error}", name.escape_debug())))?;
        if ids.insert(name.clone(), u16::try_from(index + 1).expect("checked")).is_some() {
            return Err(wrong(format!("member name {name} is used twice; every host needs its own")));
        }
        if table.addresses.len() != networks {
            let have = table.addresses.len();
            return Err(wrong(format!(
                "member {name} has {have} addresses; it needs one on each of the {networks} planes that are networks"
            )));
        }
        for address in &table.addresses {
            if let Some(owner) = owners.insert(*address, name) {
                return Err(wrong(format!("address {address} is used twice, by {owner} and by {name}")));
            }
        }
    }
    Ok(ids)
}

/// One witness at most, and only where there are votes.
fn check_witnesses(tables: &[file::MemberTable], policy: Policy) -> Result<(), Problem> {
    let witnesses: Vec<&str> =
        tables.iter().filter(|table| table.role == Role::Witness).map(|table| table.name.as_str()).collect();
    match witnesses.as_slice() {
        [] => Ok(()),
        [name] if policy != Policy::Majority => Err(Problem::at(
            &[At::Key("cluster", "policy")],
            format!("member {name} is a witness, and only policy = \"majority\" takes votes"),
        )),
        [_] => Ok(()),
        _ => Err(format!("{} are witnesses; one is all there can be", witnesses.join(" and ")).into()),
    }
}

/// The members that one member monitors: the ones that it names, else all others except observers.
///
/// # Errors
/// The error in the member's table, for people.
fn monitored<'a>(
    table: &'a file::MemberTable,
    tables: &'a [file::MemberTable],
    ids: &Ids,
    policy: Policy,
) -> Result<Vec<&'a String>, String> {
    let me = &table.name;
    let others = || tables.iter().map(|other| &other.name).filter(|other| *other != me);
    let observer = |name: &String| tables[host_index(ids[name])].role == Role::Observer;
    let monitored: Vec<&String> = match &table.monitors {
        None => others().filter(|other| !observer(other)).collect(),
        Some(names) => {
            for name in names {
                if !ids.contains_key(name) {
                    return Err(format!("member {me} monitors {name}, which is no member"));
                }
                if name == me {
                    return Err(format!("member {me} cannot monitor itself"));
                }
                if observer(name) {
                    return Err(format!("member {me} monitors {name}, an observer: nobody monitors observers"));
                }
            }
            names.iter().collect()
        }
    };
    if policy != Policy::Majority || table.role == Role::Observer {
        return Ok(monitored);
    }
    match others().find(|other| !observer(other) && !monitored.contains(other)) {
        Some(left_out) => Err(format!(
            "policy = \"majority\" needs every voter to monitor every other: {me} does not monitor {left_out} \
             (make one of them an observer, or choose policy = \"network\")"
        )),
        None => Ok(monitored),
    }
}

#[cfg(test)]
pub(crate) mod tests;
