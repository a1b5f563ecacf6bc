// SPDX-License-Identifier: Apache-2.0
//! Planes of windows. What opens one is given by the program: a transport is none of the agent's parts.

use std::{
    collections::HashMap,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use fide_agent_api::status::Rung;
use fide_net::link::Polled;
use fide_types::{HostId, Time};

use super::StartError;
use crate::config::{Config, Window};

/// Opens this host's windows of one plane, each of them or none. Nothing is written before the first call of the plane, so that the agent
/// before may go on with them. An error names the file, and what would be right; it is of the kind that an error in the configuration has.
pub type OpenWindows = fn(&[Window]) -> io::Result<Box<dyn Polled>>;

/// The planes that are no networks.
pub(super) struct Opened {
    pub(super) planes: Vec<Box<dyn Polled>>,
    /// By which they are read.
    pub(super) rungs: Vec<Rung>,
}

/// # Errors
/// [`StartError::Windows`].
pub(super) fn open(config: &Config, me: HostId, opens: Option<OpenWindows>) -> Result<Opened, StartError> {
    let mut opened = Opened { planes: Vec::new(), rungs: Vec::new() };
    let mut known = HashMap::new();
    for plane in config.networks()..config.planes.len() {
        let failed = |why| StartError::Windows { plane, why };
        let none = || failed(io::Error::new(io::ErrorKind::Unsupported, "this program opens no windows"));
        let windows = config.windows(me, plane);
        opened.planes.push(opens.ok_or_else(none)?(&windows).map_err(failed)?);
        windows.iter().try_for_each(|window| is_no_others(&window.path, &mut known)).map_err(failed)?;
        let every = Time::ns(config.poll_ns());
        opened.rungs.push(Rung::new(format!("windows, read every {every}"), None));
    }
    Ok(opened)
}

/// The two ends of a window write over what others write there.
fn is_no_others(path: &Path, known: &mut HashMap<(u64, u64), PathBuf>) -> io::Result<()> {
    let parts = if path.is_dir() {
        ["outbound", "inbound"].map(|part| path.join(part)).to_vec()
    } else {
        vec![path.to_owned()]
    };
    for part in parts {
        // One that is gone again is found to be so later.
        let Ok(file) = fs::metadata(&part) else { continue };
        if let Some(other) = known.insert((file.dev(), file.ino()), part.clone()) {
            let says = format!(
                "{} and {} are one memory: each two hosts need one of their own, and on each plane another one",
                other.display(),
                part.display()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, says));
        }
    }
    Ok(())
}
