// SPDX-License-Identifier: Apache-2.0
//! The arguments of `loadmodule fide_redis.so ...`, and what the files say that they name.

use std::path::{Path, PathBuf};

use fide_group::Key;
use fide_sys::{bounded, key_file};
use serde::Deserialize;

/// Longest configuration or key file that is read.
const FILE_MAX: u64 = 1 << 20;
/// The socket's directory if fide.toml names none.
const RUNTIME_DIR: &str = "/run/fide";
/// Least bytes of the log for which a dump is worth its while.
const LOG_BYTES_MIN: u64 = 64 << 10;
/// Of what servers of a group say to each other (units, remarks, marks, the state that is offered, commands that are
/// passed on): a server speaks this one and the one before, and uses what is new in this one only where all do.
///
/// | version | what is new |
/// |---|---|
/// | 1 | |
/// | 2 | remarks ([`crate::remark`]) |
pub const VERSION: u8 = 2;
/// Name of the group's key file, beside fide.toml.
const KEY_FILE: &str = "redis.key";

/// The argument by which tests have a server claim another version than [`VERSION`]. Not for operators: the server
/// does what this version does.
const CLAIMED: &str = "version-for-tests";

/// The protocol by which members agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Hsuc,
    Huc,
}

/// What `loadmodule` was given.
#[derive(Debug, Clone)]
pub struct Settings {
    pub protocol: Protocol,
    /// Names of the hosts of the group.
    pub hosts: Vec<String>,
    /// The agent's socket; by default in the directory that fide.toml names.
    pub socket: PathBuf,
    pub key: Key,
    /// Name of the group; more than one may run on the same hosts.
    pub group: String,
    /// UDP port of the group.
    pub port: Option<u16>,
    /// Where this host keeps its record of the group; none: beside Redis' own files.
    pub state_dir: Option<PathBuf>,
    /// A write is answered once most servers of the group have it on disk.
    pub is_durable: bool,
    /// Bytes of the log on disk after which it begins anew with a dump.
    pub log_bytes: Option<u64>,
    /// Names of other modules that this server may have.
    pub other_modules: Vec<String>,
    /// [`VERSION`]; tests have servers that claim others.
    pub version: u8,
}

/// Why the module is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error("{0} is given without a value")]
    NoValue(String),
    #[error(
        "unknown argument {0:?}; known are cluster FILE, protocol hsuc|huc, hosts A,B,C, group NAME, key FILE, port N, socket PATH, state-dir DIR, durable group|disk, log-bytes N, other-modules A,B"
    )]
    Unknown(String),
    #[error("{0} is given twice")]
    Twice(String),
    #[error(
        "{0} is missing; for example: loadmodule fide_redis.so cluster /etc/fide/fide.toml protocol hsuc hosts h1,h2,h3"
    )]
    Missing(&'static str),
    #[error("{what} {value:?} is wrong: {why}")]
    Wrong { what: &'static str, value: String, why: String },
    /// Others than its owner may read the group's key.
    #[error(transparent)]
    Key(key_file::KeyFileError),
    #[error("{}: {why}", path.display())]
    File { path: PathBuf, why: String },
}

/// The parts of fide.toml that this module needs.
#[derive(Debug, Deserialize)]
struct ClusterFile {
    #[serde(default)]
    agent: AgentTable,
}

#[derive(Debug, Default, Deserialize)]
struct AgentTable {
    runtime_dir: Option<PathBuf>,
}

fn read(path: &Path) -> Result<String, SettingsError> {
    bounded::read_text(path, FILE_MAX)
        .map_err(|why| SettingsError::File { path: path.to_owned(), why: why.to_string() })
}

impl Settings {
    /// Reads the arguments: pairs of a name and a value, in any order.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn new(args: &[&str]) -> Result<Self, SettingsError> {
        const NAMES: [&str; 12] = [
            "cluster",
            "protocol",
            "hosts",
            "group",
            "key",
            "port",
            "socket",
            "state-dir",
            "durable",
            "log-bytes",
            "other-modules",
            CLAIMED,
        ];
        let mut values: [Option<&str>; NAMES.len()] = [None; NAMES.len()];
        for pair in args.chunks(2) {
            let name = pair[0].to_ascii_lowercase();
            let place = NAMES.iter().position(|known| *known == name).ok_or(SettingsError::Unknown(name.clone()))?;
            let [_, value] = pair else { return Err(SettingsError::NoValue(name)) };
            if values[place].replace(value).is_some() {
                return Err(SettingsError::Twice(name));
            }
        }
        let [cluster, protocol, hosts, group, key, port, socket, state_dir, durable, log_bytes, others, claimed] =
            values;
        let cluster = Path::new(cluster.ok_or(SettingsError::Missing("cluster"))?);
        let protocol = match protocol {
            None | Some("hsuc") => Protocol::Hsuc,
            Some("huc") => Protocol::Huc,
            Some(other) => {
                return Err(SettingsError::Wrong {
                    what: "protocol",
                    value: other.to_owned(),
                    why: "it is hsuc or huc".to_owned(),
                });
            }
        };
        let is_durable = match durable {
            None | Some("group") => false,
            Some("disk") => true,
            Some(other) => {
                return Err(SettingsError::Wrong {
                    what: "durable",
                    value: other.to_owned(),
                    why: "it is group (held by all live servers) or disk (on disk at most of them, too)".to_owned(),
                });
            }
        };
        let log_bytes = log_bytes
            .map(|bytes| {
                bytes.parse().ok().filter(|bytes| *bytes >= LOG_BYTES_MIN).ok_or_else(|| SettingsError::Wrong {
                    what: "log-bytes",
                    value: bytes.to_owned(),
                    why: format!("a number of bytes, {LOG_BYTES_MIN} at least"),
                })
            })
            .transpose()?;
        let version = claimed.map_or(Some(VERSION), |version| version.parse().ok().filter(|version| *version > 0));
        let version = version.ok_or_else(|| SettingsError::Wrong {
            what: CLAIMED,
            value: claimed.unwrap_or_default().to_owned(),
            why: "a version from 1 to 255".to_owned(),
        })?;
        let hosts: Vec<String> =
            hosts.ok_or(SettingsError::Missing("hosts"))?.split(',').map(|host| host.trim().to_owned()).collect();
        if hosts.iter().any(String::is_empty) {
            return Err(SettingsError::Wrong {
                what: "hosts",
                value: hosts.join(","),
                why: "names of hosts of fide.toml, with commas between them".to_owned(),
            });
        }
        let other_modules =
            others.map_or_else(Vec::new, |names| names.split(',').map(|name| name.trim().to_owned()).collect());
        let port = port
            .map(|port| {
                port.parse().ok().filter(|port| *port > 0).ok_or_else(|| SettingsError::Wrong {
                    what: "port",
                    value: port.to_owned(),
                    why: "a UDP port from 1 to 65535".to_owned(),
                })
            })
            .transpose()?;
        let text = read(cluster)?;
        let file: ClusterFile = toml::from_str(&text)
            .map_err(|why| SettingsError::File { path: cluster.to_owned(), why: why.message().to_owned() })?;
        let beside = cluster.parent().unwrap_or(Path::new("."));
        let key_file = key.map_or_else(|| beside.join(KEY_FILE), PathBuf::from);
        let key = key_file::read_text(&key_file, FILE_MAX).map_err(|why| match why {
            key_file::KeyFileError::Read { why, .. } => SettingsError::Wrong {
                what: "key",
                value: key_file.display().to_string(),
                why: format!(
                    "{why}; make the group's key by `fide agent --make-key {}`, the same file on all hosts, owned by Redis' user",
                    key_file.display()
                ),
            },
            why => SettingsError::Key(why),
        })?;
        let key =
            key.trim().parse::<Key>().map_err(|why| SettingsError::File { path: key_file, why: why.to_string() })?;
        Ok(Self {
            is_durable,
            log_bytes,
            other_modules,
            version,
            protocol,
            hosts,
            socket: socket.map_or_else(
                || file.agent.runtime_dir.unwrap_or_else(|| RUNTIME_DIR.into()).join("agent.sock"),
                PathBuf::from,
            ),
            key,
            group: group.unwrap_or("redis").to_owned(),
            port,
            state_dir: state_dir.map(PathBuf::from),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    const KEY: &str = "00112233445566778899aabbccddeeff\n";

    fn dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("fide.toml"), "[agent]\nruntime_dir = \"/run/x\"\n[cluster]\nname = \"c\"\n")
            .unwrap();
        let key = dir.path().join("redis.key");
        fs::write(&key, KEY).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
        dir
    }

    #[test]
    fn settings_come_from_arguments_and_the_files_that_they_name() {
        let dir = dir();
        let cluster = dir.path().join("fide.toml");
        let settings =
            Settings::new(&["hosts", "a, b", "cluster", cluster.to_str().unwrap(), "protocol", "huc"]).unwrap();
        assert_eq!(settings.hosts, ["a", "b"]);
        assert_eq!(settings.protocol, Protocol::Huc);
        assert_eq!(settings.socket, Path::new("/run/x/agent.sock"));
        assert_eq!(settings.group, "redis");
    }

    #[test]
    fn key_that_others_may_read_is_refused() {
        let dir = dir();
        let (cluster, key) = (dir.path().join("fide.toml"), dir.path().join("redis.key"));
        let open = || Settings::new(&["hosts", "a", "cluster", cluster.to_str().unwrap()]);
        for mode in [0o644, 0o440, 0o402] {
            fs::set_permissions(&key, fs::Permissions::from_mode(mode)).unwrap();
            let why = open().unwrap_err().to_string();
            assert!(why.contains(&format!("has mode {mode:04o};")) && why.contains("chmod 0400 "), "{why}");
        }
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(open().is_ok());
    }

    #[test]
    fn wrong_arguments_are_named() {
        let dir = dir();
        let cluster = dir.path().join("fide.toml");
        let cluster = cluster.to_str().unwrap();
        for (args, wanted) in [
            (vec!["hosts", "a"], "cluster is missing"),
            (vec!["cluster", cluster], "hosts is missing"),
            (vec!["cluster", cluster, "hosts"], "hosts is given without a value"),
            (vec!["cluster", cluster, "hosts", "a,,b"], "hosts \"a,,b\" is wrong"),
            (vec!["cluster", cluster, "hosts", "a", "hosts", "b"], "hosts is given twice"),
            (vec!["cluster", cluster, "hosts", "a", "nodes", "3"], "unknown argument \"nodes\""),
            (vec!["cluster", cluster, "hosts", "a", "protocol", "raft"], "it is hsuc or huc"),
            (vec!["cluster", cluster, "hosts", "a", "port", "70000"], "a UDP port from 1 to 65535"),
            (vec!["cluster", "/nowhere/fide.toml", "hosts", "a"], "/nowhere/fide.toml"),
            (vec!["cluster", cluster, "hosts", "a", "key", "/nowhere/key"], "--make-key /nowhere/key"),
        ] {
            let error = Settings::new(&args).unwrap_err().to_string();
            assert!(error.contains(wanted), "{args:?}: {error}");
        }
    }
}
