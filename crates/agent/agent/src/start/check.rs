// SPDX-License-Identifier: Apache-2.0
//! Checks whether a start would be refused, without starting: no socket, no packet, nothing written.

use fide_detector::Detector;
use fide_sys::clock::raw_ns;

use super::{
    Options, StartError, begin, core, directories::directories, interfaces, lateness::lateness, member, timeout, votes,
    windows,
};
use crate::{
    config::{self, Config},
    trees::Trees,
};

/// A configuration that an agent would start with here.
#[derive(Clone, Debug)]
pub struct Checked {
    pub config: Config,
    /// Which member this host is.
    pub host: String,
    /// Core of the loop.
    pub core: usize,
    /// The timeout that the agent would begin with; it follows later measurements.
    pub timeout_ns: u64,
}

/// Makes the checks that a start makes before it takes anything: files, key, role, addresses, windows, core, MTU, and
/// the timeout, for which it measures as a start does. Leaves out the checks that need the host's rights:
/// sockets, BPF programs, and whether an agent runs already.
///
/// # Errors
/// [`StartError`], as the start would return it.
pub fn check(options: &Options) -> Result<Checked, StartError> {
    let (config, me) = member(options)?;
    votes(&config, config.member(me).role == config::Role::Witness)?;
    config.key()?;
    directories(&config, options.takeover)?;
    let interfaces = interfaces(&config, me)?;
    let names: Vec<String> = interfaces.iter().map(|interface| interface.name.clone()).collect();
    windows::open(&config, me, options.windows)?;
    let core = core(&config)?;
    let late = lateness(&config.state_dir, core, &names, config.heartbeat_ns, config.calibrate_ns)?;
    let timeouts = late.timeouts(&config);
    let timeout_ns = timeout(&config, &timeouts, options.force_timeout)?;
    let slack_ns = timeouts.stall_slack_ns(late.lateness_ns);
    Detector::new(begin::settings(&config, me, &names, 1, timeout_ns, slack_ns)?, raw_ns())?;
    if let Some(controller) = &config.controller {
        Trees::check(&config, controller)?;
    }
    let host = config.member(me).name.as_str().to_owned();
    Ok(Checked { config, host, core, timeout_ns })
}
