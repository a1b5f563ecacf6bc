// SPDX-License-Identifier: Apache-2.0
//! The directories that an agent writes into, looked at before anything is begun.

use std::{io, path::Path};

use fide_sys::seqpacket;
use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::{SOCKET, StartError};
use crate::{
    config::Config,
    incarnation::{self, IncarnationError},
    socket::ListenError,
};

/// Whether this process can store its state and bind its socket. It may still find the disk full, or the socket in use.
///
/// # Errors
/// What the start would run into later.
pub(super) fn directories(config: &Config, takes_over: bool) -> Result<(), StartError> {
    let path = config.state_dir.join(incarnation::FILE);
    writable(&config.state_dir).map_err(|why| IncarnationError::Io { path, why })?;
    let path = config.runtime_dir.join(SOCKET);
    seqpacket::address(&path).map_err(|why| ListenError::Io { path: path.clone(), why })?;
    // An agent that takes over gets the socket of the one before.
    if !takes_over {
        writable(&config.runtime_dir).map_err(|why| ListenError::Io { path, why })?;
    }
    Ok(())
}

/// Whether this process may write into `dir`, or make it.
fn writable(dir: &Path) -> io::Result<()> {
    let here = Path::new(".");
    let there = dir.ancestors().find(|dir| dir.as_os_str().is_empty() || dir.symlink_metadata().is_ok());
    let there = there.filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(here);
    if !there.metadata()?.is_dir() {
        return Err(io::Error::new(io::ErrorKind::NotADirectory, format!("{} is no directory", there.display())));
    }
    Ok(accessat(CWD, there, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)?)
}
