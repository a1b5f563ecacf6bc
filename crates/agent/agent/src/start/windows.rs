// SPDX-License-Identifier: Apache-2.0
//! Planes of windows. What opens one is given by the program: a transport is none of the agent's parts.

use std::io;

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
    for plane in config.networks()..config.planes.len() {
        let failed = |why| StartError::Windows { plane, why };
        let none = || failed(io::Error::new(io::ErrorKind::Unsupported, "this program opens no windows"));
        opened.planes.push(opens.ok_or_else(none)?(&config.windows(me, plane)).map_err(failed)?);
        let every = Time::ns(config.poll_ns());
        opened.rungs.push(Rung::new(format!("windows, read every {every}"), None));
    }
    Ok(opened)
}
