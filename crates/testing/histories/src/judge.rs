// SPDX-License-Identifier: Apache-2.0
//! The judgement of histories by porcupine: a Go program built from `baselines/histories`.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

/// The name of the program.
pub const PROGRAM: &str = "histories-judge";
/// Time for each register; a history that takes longer is not judged, which counts as a failure.
const LIMIT: &str = "60s";

/// An answer that was overwritten before its request began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stale {
    pub key: u8,
    pub client: u32,
    #[serde(default)]
    pub host: u16,
    pub found: u64,
    pub call_ns: u64,
    pub age_ns: u64,
}

/// The result of porcupine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// `ok`, `illegal`, or `unknown` if the time ran out.
    pub verdict: String,
    pub operations: u64,
    /// Operations, among those, that were never answered.
    pub open: u64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub illegal_keys: Vec<u8>,
    /// Drawings of the registers whose history is not linearizable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drawn: Vec<PathBuf>,
    /// Answers that are certainly stale: easier to understand than a drawing.
    pub stale: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Stale>,
    pub seconds: f64,
}

/// Judges these files together as one history. Registers that are not linearizable are drawn to files that
/// begin with `draw`.
///
/// # Errors
/// The program is missing, or does not accept a file.
pub fn judge(program: &Path, files: &[PathBuf], draw: &Path) -> anyhow::Result<Verdict> {
    let output = Command::new(program)
        .args(["-limit", LIMIT, "-draw"])
        .arg(draw)
        .args(files)
        .output()
        .with_context(|| format!("starting {}", program.display()))?;
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("reading the judge's verdict")
}
