// SPDX-License-Identifier: Apache-2.0
//! The file with the jitter bound that this host holds.
//!
//! The agent reads it for its timeout, the controller for its plan (FiDe §3.3: `TO = HB + lambda_min
//! + 2 delta_max`). TOML, by default `/var/lib/fide/bound.toml`:
//!
//! ```toml
//! version = 1
//!
//! [[bound]]
//! interface = "eth0"          # absent: for the host alone, whatever the interface
//! core = 3                    # the loop's core
//! method = "wake-up"          # how it was measured
//! latency_min_ns = 4100       # one way, the shortest seen; absent: the method sees no packets
//! jitter_max_ns = 27000       # the most above that, as measured: no margin is added
//! packets = 1000              # packets, or wake-ups, measured
//! confidence = 0.95           # that at most 1 - (1 - confidence)^(1 / packets) of later ones exceed it
//! measured_at_s = 1790000000  # since 1970
//! kernel = "6.18.0"
//! boot_id = "d810a19f-..."
//! ```
//!
//! A bound counts only on the kernel, boot, core and interface that it was measured on: another boot may have
//! other parameters, and another core may have other neighbours.

use std::{
    fmt, fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use fide_sys::bounded;

/// File that holds the bound.
pub const DEFAULT_FILE: &str = "/var/lib/fide/bound.toml";
const VERSION: u32 = 1;
/// Longest file: enough for thousands of interfaces.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Confidence of a bound that is the greatest value of a sample.
const CONFIDENCE: f64 = 0.95;
/// Method of a bound that was measured without packets.
pub const WAKE_UP: &str = "wake-up";

/// The most by which packets or wake-ups are late on this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    pub core: usize,
    pub method: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_min_ns: Option<u64>,
    pub jitter_max_ns: u64,
    pub packets: u64,
    pub confidence: f64,
    pub measured_at_s: u64,
    pub kernel: String,
    pub boot_id: String,
}

/// The conditions under which a bound must have been measured to count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Here {
    pub kernel: String,
    pub boot_id: String,
    pub core: usize,
    pub interface: Option<String>,
}

impl Bound {
    /// The bound of a sample of `packets` with this least and greatest value.
    #[must_use]
    pub fn of_sample(here: &Here, method: &str, sample: Sample, measured_at_s: u64) -> Self {
        Self {
            interface: here.interface.clone(),
            core: here.core,
            method: method.to_owned(),
            latency_min_ns: (method != WAKE_UP).then_some(sample.min_ns),
            // A wake-up has no known minimum, so its whole delay counts as jitter.
            jitter_max_ns: sample.max_ns - if method == WAKE_UP { 0 } else { sample.min_ns.min(sample.max_ns) },
            packets: sample.count,
            confidence: CONFIDENCE,
            measured_at_s,
            kernel: here.kernel.clone(),
            boot_id: here.boot_id.clone(),
        }
    }

    /// At most this share of later packets exceeds the bound, with its confidence, provided that later
    /// packets are like those measured.
    #[must_use]
    pub fn exceedance(&self) -> f64 {
        // More than 2^53 packets do not matter here.
        #[allow(clippy::cast_precision_loss)]
        let packets = self.packets.max(1) as f64;
        1.0 - (1.0 - self.confidence).powf(1.0 / packets)
    }

    fn check(&self, here: &Here) -> Result<(), Stale> {
        let differs = |what, found: &dyn fmt::Display, wanted: &dyn fmt::Display| {
            Err(Stale { what, found: found.to_string(), wanted: wanted.to_string() })
        };
        if self.kernel != here.kernel {
            return differs("kernel", &self.kernel, &here.kernel);
        }
        if self.boot_id != here.boot_id {
            return differs("boot", &self.boot_id, &here.boot_id);
        }
        if self.core != here.core {
            return differs("core", &self.core, &here.core);
        }
        Ok(())
    }
}

/// Extremes of the measured values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    pub min_ns: u64,
    pub max_ns: u64,
    pub count: u64,
}

/// A condition of a bound that does not hold here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    what: &'static str,
    found: String,
    wanted: String,
}

impl fmt::Display for Stale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it was measured on {} {}, this is {}", self.what, self.found, self.wanted)
    }
}

/// Why there is no bound to use.
#[derive(Debug, thiserror::Error)]
pub enum BoundError {
    #[error("{0} is not there: nothing was measured yet; `fide doctor` does")]
    Missing(PathBuf),
    #[error("{path}: {why}")]
    Io { path: PathBuf, why: io::Error },
    #[error("{path} is no bound file: {why}; measure again with `fide doctor`")]
    Malformed { path: PathBuf, why: String },
    #[error("{path} is of version {found}, this program knows {VERSION}; measure again with `fide doctor`")]
    Version { path: PathBuf, found: u32 },
    #[error("{path} does not count here: {stale}; measure again with `fide doctor`")]
    Stale { path: PathBuf, stale: Stale },
    #[error("{path} has no bound for interface {wanted}, only for {}; measure again with `fide doctor`", .found.join(", "))]
    Interface { path: PathBuf, wanted: String, found: Vec<String> },
}

impl BoundError {
    /// The error as one word, for programs.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Missing(_) => "missing",
            Self::Io { .. } => "unreadable",
            Self::Malformed { .. } | Self::Version { .. } => "malformed",
            Self::Stale { .. } => "stale",
            Self::Interface { .. } => "other_interface",
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Versioned {
    version: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: u32,
    #[serde(default)]
    bound: Vec<Bound>,
}

fn load(path: &Path) -> Result<Vec<Bound>, BoundError> {
    let text = match bounded::read_text(path, FILE_BYTES_MAX) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(BoundError::Missing(path.to_owned())),
        Err(why) => return Err(BoundError::Io { path: path.to_owned(), why }),
    };
    // Only the message, on one line; the whole error would show the text again.
    let malformed = |why: &str| BoundError::Malformed { path: path.to_owned(), why: why.replace('\n', " ") };
    let head: Versioned = toml::from_str(&text).map_err(|error| malformed(error.message()))?;
    if head.version != VERSION {
        return Err(BoundError::Version { path: path.to_owned(), found: head.version });
    }
    let file: File = toml::from_str(&text).map_err(|error| malformed(error.message()))?;
    match file.bound.iter().find(|bound| !(bound.confidence > 0.0 && bound.confidence < 1.0) || bound.packets == 0) {
        Some(_) => Err(malformed("a bound needs a confidence between 0 and 1, and packets")),
        None => Ok(file.bound),
    }
}

/// The bound that counts `here`: the bound of the interface, else the bound of the host alone.
///
/// # Errors
/// [`BoundError`], one for each way in which there is none.
pub fn read(path: &Path, here: &Here) -> Result<Bound, BoundError> {
    let bounds = load(path)?;
    let of = |interface: &Option<String>| bounds.iter().find(|bound| bound.interface == *interface);
    let Some(bound) = of(&here.interface).or_else(|| of(&None)) else {
        let name = |interface: &Option<String>| interface.clone().unwrap_or_else(|| "the host alone".to_owned());
        return Err(BoundError::Interface {
            path: path.to_owned(),
            wanted: name(&here.interface),
            found: bounds.iter().map(|bound| name(&bound.interface)).collect(),
        });
    };
    match bound.check(here) {
        Ok(()) => Ok(bound.clone()),
        Err(stale) => Err(BoundError::Stale { path: path.to_owned(), stale }),
    }
}

/// Writes `bound` in place of the one for its interface. Those for others stay if they were measured on the
/// same kernel, boot and core. Readers see the old file or the new one, even after a crash.
///
/// # Errors
/// [`BoundError::Io`], also if `path` is not a regular file. A file that is damaged or of another version is
/// replaced.
pub fn write(path: &Path, bound: &Bound) -> Result<(), BoundError> {
    let here = Here {
        kernel: bound.kernel.clone(),
        boot_id: bound.boot_id.clone(),
        core: bound.core,
        interface: bound.interface.clone(),
    };
    let mut bounds = load(path).unwrap_or_default();
    bounds.retain(|other| other.interface != bound.interface && other.check(&here).is_ok());
    bounds.push(bound.clone());
    bounds.sort_by(|one, other| one.interface.cmp(&other.interface));
    let write = || {
        // The new file would replace what is there, which may be a device.
        if fs::metadata(path).is_ok_and(|meta| !meta.is_file()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file; name one for bounds"));
        }
        let text = toml::to_string(&File { version: VERSION, bound: bounds }).map_err(io::Error::other)?;
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::create_dir_all(dir)?;
        let mut file = tempfile::Builder::new()
            .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o644))
            .tempfile_in(dir)?;
        file.write_all(b"# Written by `fide doctor`. What a line means is said in its manual.\n")?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        fs::File::open(dir)?.sync_all()
    };
    write().map_err(|why| BoundError::Io { path: path.to_owned(), why })
}

#[cfg(test)]
mod tests;
