// SPDX-License-Identifier: Apache-2.0
//! Where a monitor's socket is, where the library is, and whether a monitor is to be trusted.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    time::Duration,
};

use fide_sys::seqpacket::{Peer, connect, peer};
use rustix::io::Errno;

use super::kernel::LIBRARY;

/// The monitor of a host, as `packaging/fide-rack.service` starts it. Only root can put one there.
pub(super) const OF_HOST: &str = "/run/fide-rack/monitor.sock";
const NAME: &str = "fide-rack/monitor.sock";
/// The variable by which programs under the library find the monitor.
pub(super) const VARIABLE: &str = "FIDE_RACK_MONITOR";
/// The number of the user that the monitor has to be of.
pub(super) const USER_VARIABLE: &str = "FIDE_RACK_MONITOR_UID";
/// Addresses of the hosts that it has links to, as networks with `+` between them: the library asks of connections with no other ones.
pub(super) const PEERS_VARIABLE: &str = "FIDE_RACK_PEERS";
pub(super) const RINGS_VARIABLE: &str = "FIDE_RACK_IO_URING";
/// Where `fide rack hangup` says which addresses are dead.
pub(super) const DEAD_VARIABLE: &str = "FIDE_RACK_DEAD";
/// A monitor that accepts nobody for so long is none.
const CONNECT_WAIT: Duration = Duration::from_secs(1);

/// The socket of a user's own monitor. None: the session has no directory for it.
pub(super) fn of_user() -> Option<PathBuf> {
    let directory = PathBuf::from(env::var_os("XDG_RUNTIME_DIR")?);
    directory.is_absolute().then(|| directory.join(NAME))
}

/// Where a monitor is looked for: where the caller says, or else the environment, or else the host's and the user's own.
pub(super) fn candidates(asked: Option<&Path>) -> Vec<PathBuf> {
    let named = asked.map(PathBuf::from).or_else(|| {
        let named = env::var_os(VARIABLE).filter(|path| !path.is_empty())?;
        Some(named.into())
    });
    match named {
        // Programs may go to another directory.
        Some(path) => vec![std::path::absolute(&path).unwrap_or(path)],
        None => std::iter::once(OF_HOST.into()).chain(of_user()).collect(),
    }
}

/// A monitor that answers.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) peer: Peer,
}

/// Why none answers at a path.
#[derive(Debug)]
pub(super) struct Missing {
    pub(super) path: PathBuf,
    pub(super) errno: Errno,
}

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.path.display();
        match self.errno {
            Errno::NOENT => write!(f, "no monitor runs at {path}"),
            Errno::CONNREFUSED => write!(f, "the monitor at {path} has been killed"),
            Errno::AGAIN => write!(f, "the monitor at {path} answers nobody"),
            Errno::PROTOTYPE | Errno::NOTSOCK => write!(f, "{path} is not a monitor's socket"),
            errno => write!(f, "{path}: {errno}"),
        }
    }
}

/// The monitor at a path.
///
/// # Errors
/// None answers there.
pub(super) fn found(path: &Path) -> Result<Found, Missing> {
    let missing = |errno| Missing { path: path.to_owned(), errno };
    let socket = connect(path, CONNECT_WAIT).map_err(missing)?;
    let peer = peer(&socket).map_err(|_| missing(Errno::CONNREFUSED))?;
    Ok(Found { path: path.to_owned(), peer })
}

impl Found {
    /// Programs hand their sockets to a monitor, which could read and write them: it has to be root's, this user's, a user's that the
    /// caller trusts, or the one that root has put at the host's place.
    pub(super) fn is_trusted(&self, trusted: Option<u32>) -> bool {
        let me = rustix::process::geteuid().as_raw();
        let by_uid = [Some(0), Some(me), trusted].contains(&Some(self.peer.uid));
        by_uid || self.path == Path::new(OF_HOST)
    }
}

/// Why there is no library.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoLibrary {
    #[error("{path}: {why}")]
    Unread { path: PathBuf, why: io::Error },
    #[error("the library {LIBRARY} is in none of {}: build it with `cargo build --release -p fide-rack-preload` and install \
             it beside this program or in ../lib/fide, or name it with --library", listed(.0))]
    Nowhere(Vec<PathBuf>),
    #[error(
        "the library's path {0} has a colon or white space, where LD_PRELOAD would end: install it at another path"
    )]
    Separator(PathBuf),
}

fn listed(all: &[PathBuf]) -> String {
    all.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The library: where the caller says; or beside this program, or in the directories of packages.
///
/// # Errors
/// [`NoLibrary`].
pub(super) fn library(asked: Option<&Path>) -> Result<PathBuf, NoLibrary> {
    let path = match asked {
        Some(path) => {
            let unread = |why| NoLibrary::Unread { path: path.to_owned(), why };
            fs::File::open(path).map_err(unread)?;
            std::path::absolute(path).map_err(unread)?
        }
        None => {
            // That of the file, where this one is a link.
            let own = env::current_exe().ok().and_then(|path| fs::canonicalize(path).ok());
            let beside = own.as_deref().and_then(Path::parent).map(Path::to_owned).unwrap_or_default();
            // The last one is cargo's, where a test has it built.
            let places = [beside.clone(), beside.join("../lib/fide"), beside.join("../lib"), beside.join("deps")];
            let found = places.iter().map(|dir| dir.join(LIBRARY)).find(|file| file.is_file());
            let Some(found) = found else { return Err(NoLibrary::Nowhere(places[..3].to_vec())) };
            fs::canonicalize(&found).map_err(|why| NoLibrary::Unread { path: found, why })?
        }
    };
    let separates = |byte: u8| byte == b':' || byte.is_ascii_whitespace();
    if path.as_os_str().as_bytes().iter().copied().any(separates) {
        return Err(NoLibrary::Separator(path));
    }
    Ok(path)
}

/// The value of LD_PRELOAD with the library before what is there.
pub(super) fn preload(library: &Path, before: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}

/// The value of LD_PRELOAD without the library, which an outer `fide rack run` has put there. None: nothing is left.
pub(super) fn not_preloaded(before: &OsStr) -> Option<OsString> {
    let is_other =
        |path: &&[u8]| !path.is_empty() && Path::new(OsStr::from_bytes(path)).file_name() != Some(LIBRARY.as_ref());
    let others: Vec<&[u8]> = before.as_bytes().split(|byte| b": ".contains(byte)).filter(is_other).collect();
    (!others.is_empty()).then(|| OsString::from_vec(others.join(&b':')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_monitor_is_the_only_one_that_is_looked_for() {
        assert_eq!(candidates(Some(Path::new("/a/b"))), [PathBuf::from("/a/b")]);
        assert!(candidates(Some(Path::new("b")))[0].is_absolute());
        assert_eq!(candidates(None)[0], Path::new(OF_HOST));
        let missing = found(Path::new("/nowhere/a")).unwrap_err();
        assert_eq!(missing.to_string(), "no monitor runs at /nowhere/a");
    }

    #[test]
    fn monitor_of_another_user_is_not_trusted() {
        let peer = Peer { pid: 1, uid: 54_321, gid: 0 };
        let of = |path: &str| Found { path: path.into(), peer };
        assert!(!of("/tmp/monitor.sock").is_trusted(None));
        assert!(of("/tmp/monitor.sock").is_trusted(Some(54_321)) && of(OF_HOST).is_trusted(None));
        let of_root = Found { peer: Peer { uid: 0, ..peer }, path: "/tmp/monitor.sock".into() };
        assert!(of_root.is_trusted(None));
    }

    #[test]
    fn library_that_cannot_be_preloaded_is_refused_in_words() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("with space.so");
        fs::write(&odd, "").unwrap();
        assert!(matches!(library(Some(&odd)), Err(NoLibrary::Separator(_))));
        assert!(matches!(library(Some(&dir.path().join("none.so"))), Err(NoLibrary::Unread { .. })));
        assert_eq!(preload(Path::new("/l.so"), Some("/a.so:/b.so".into())), "/l.so:/a.so:/b.so");
        assert_eq!(preload(Path::new("/l.so"), Some(OsString::new())), "/l.so");
        let left = |before: &str| not_preloaded(before.as_ref());
        assert_eq!(left("/a.so:/x/libfide_rack_preload.so /b.so"), Some("/a.so:/b.so".into()));
        assert_eq!(left("/x/libfide_rack_preload.so"), None);
    }
}
