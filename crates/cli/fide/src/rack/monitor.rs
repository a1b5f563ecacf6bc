// SPDX-License-Identifier: Apache-2.0
//! `fide rack monitor`: the monitor as a service.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
    process::{self, ExitCode},
    sync::{Arc, mpsc},
    time::Duration,
};

use anyhow::anyhow;
use fide_agent::{
    names::user_id,
    notify::{Manager, Notify},
};
use fide_rack::{
    link::offers::Network,
    meet::monitor::{Access, Monitor, StartError, Users},
};
use fide_sys::interface::any_address;
use rustix::process::{Resource, Rlimit, geteuid, getrlimit, setrlimit};
use serde_json::json;

use super::{guard, link::Link, place, view};
use crate::{
    exit::{Done, Failure, UNHEALTHY, USAGE, code_of_file},
    say::{say, show, tell},
};

/// How often connections that are over are forgotten.
const FORGETS_EVERY: Duration = Duration::from_secs(30);
const ALL: &str = "all";

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Where to listen; by default /run/fide-rack/monitor.sock for root, and $XDG_RUNTIME_DIR/fide-rack/monitor.sock for others.
    /// A socket that a killed monitor has left is replaced
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Whose programs it serves besides root's and its own user's: names or numbers with commas between them, or `all`. By default
    /// all if root runs it, and else none
    #[arg(long, value_name = "USERS")]
    allow_users: Option<String>,
    /// Of which connections it serves programs: networks with commas between them, in which both addresses of a connection have to be. By
    /// default all
    #[arg(long, value_name = "NETWORKS", value_delimiter = ',')]
    allow_networks: Option<Vec<Network>>,
    /// A link to another host, over memory that both see: its file, and after that, with commas between them, side=first or
    /// side=second, peer=ADDRESSES of the other host, and what docs/rack.md names. May be given for several hosts
    #[arg(long = "link", value_name = "LINK")]
    links: Vec<Link>,
    /// Print a JSON object when it is ready, and one at the end
    #[arg(long)]
    json: bool,
}

/// A user by name or number.
pub(super) fn user(text: &str) -> Result<u32, String> {
    user_id(text)
        .ok_or_else(|| format!("this host knows no user '{text}'; use a name that `getent passwd` lists, or a number"))
}

fn users(asked: Option<&str>) -> Result<Users, Failure> {
    match asked {
        Some(ALL) => Ok(Users::All),
        None if geteuid().is_root() => Ok(Users::All),
        None => Ok(Users::These(Vec::new())),
        Some(list) => {
            let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
            let users: Result<_, _> = names.map(user).collect();
            users.map(Users::These).map_err(|why| Failure::new(USAGE, anyhow!("--allow-users: {why}")))
        }
    }
}

/// Where it listens. The directory of a place that was not named is made.
fn socket(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(path) = asked {
        return Ok(std::path::absolute(path)?);
    }
    let (path, mode) = match geteuid().is_root() {
        true => (PathBuf::from(place::OF_HOST), 0o755),
        false => {
            let none = "XDG_RUNTIME_DIR is not set, where a user's own monitor listens: say --socket PATH, in a directory that \
                        only this user can write to";
            (place::of_user().ok_or_else(|| Failure::new(USAGE, anyhow!(none)))?, 0o700)
        }
    };
    if let Some(directory) = path.parent() {
        let made = fs::DirBuilder::new().recursive(true).mode(mode).create(directory);
        made.map_err(|why| Failure::new(code_of_file(&why), anyhow!("{}: {why}", directory.display())))?;
    }
    Ok(path)
}

/// What of the socket's directory is not as it should be.
fn doubts(path: &Path, users: &Users) -> Option<String> {
    let directory = path.parent()?;
    let mode = fs::metadata(directory).ok()?.mode();
    let serves_others = !matches!(users, Users::These(these) if these.is_empty());
    let name = directory.display();
    if serves_others && mode & 0o001 == 0 {
        return Some(format!(
            "{name} has mode {:04o}: others cannot reach a socket in it; chmod o+x {name}, or use another --socket",
            mode & 0o7777
        ));
    }
    (mode & 0o002 != 0).then(|| {
        format!("others may write to {name}, and put a monitor of their own there while this one does not run: use another --socket")
    })
}

fn unstarted(why: StartError) -> Failure {
    let code = match &why {
        StartError::Running(_) => UNHEALTHY,
        StartError::Io { why, .. } => code_of_file(why),
    };
    Failure::new(code, why)
}

fn named(users: &Users) -> String {
    match users {
        Users::All => "all users".to_owned(),
        Users::These(these) if these.is_empty() => format!("user {} and root", geteuid().as_raw()),
        Users::These(these) => {
            let these: Vec<_> = these.iter().map(u32::to_string).collect();
            format!("users {} and {}, and root", these.join(", "), geteuid().as_raw())
        }
    }
}

/// A socket is kept for each question that waits: as many descriptors as this process may have.
pub(super) fn raise_descriptors() {
    let limit = getrlimit(Resource::Nofile);
    // Fewer are enough for most.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Has connections to other hosts be reset should this process be killed. None: they are not.
fn guarded(monitor: &Monitor) -> Option<process::Child> {
    let started = guard::start().inspect_err(|why| {
        say!("fide: no process guards connections to other hosts, which wait for ever if both monitors are killed at once: {why}");
    });
    let (guard, process) = started.ok()?;
    monitor.guarded(guard);
    Some(process)
}

/// It has links to other hosts, and is not where the programs are that have connections with these.
fn alone(monitor: &Monitor) -> Option<&'static str> {
    let is_for_others = monitor.peers().into_iter().any(|network| !network.is_of_loopback());
    let is_alone = any_address(|own| !own.is_loopback()).is_ok_and(|has_others| !has_others);
    (is_for_others && is_alone).then_some(
        "this monitor's network namespace has no address but the loopback's, so that no connection goes over its links: start it \
         in that of the programs, in a unit with PrivateNetwork=no",
    )
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let users = users(arguments.allow_users.as_deref())?;
    let path = socket(arguments.socket.as_deref())?;
    let access = Access { users: users.clone(), networks: arguments.allow_networks.clone() };
    let (signal, signals) = mpsc::channel();
    ctrlc::set_handler(move || _ = signal.send(())).map_err(anyhow::Error::from)?;
    raise_descriptors();
    let monitor = Arc::new(Monitor::start_for(&path, access).map_err(unstarted)?);
    // Before the first connection.
    let _guard = if arguments.links.is_empty() { None } else { guarded(&monitor) };
    for link in &arguments.links {
        let carried = link.clone().carry(&monitor);
        carried.map_err(|why| Failure::new(code_of_file(&why), anyhow!("--link {}: {why}", link.name())))?;
    }
    if let Some(doubt) = alone(&monitor) {
        say!("fide: {doubt}");
    }
    let served = view::Served { path: path.clone(), users: users.clone(), monitor: Arc::clone(&monitor) };
    let views = view::serve(served).map_err(unstarted)?;
    let (uid, pid) = (geteuid().as_raw(), std::process::id());
    if arguments.json {
        let these = match &users {
            Users::All => json!(ALL),
            Users::These(these) => json!(these),
        };
        show!("{}", json!({ "ready": true, "socket": path, "mode": "0666", "users": these, "uid": uid, "pid": pid }))?;
    } else {
        show!(
            "ready: {} serves {} (mode 0666: any user may connect, and is judged by its credentials)",
            path.display(),
            named(&users)
        )?;
    }
    if let Some(doubt) = doubts(&path, &users) {
        say!("fide: {doubt}");
    }
    let notify = Notify::new(Manager::from_env());
    notify.ready();
    while let Err(mpsc::RecvTimeoutError::Timeout) = signals.recv_timeout(FORGETS_EVERY) {
        view::forget(&monitor);
    }
    notify.stopping();
    let counts = monitor.view().counts;
    drop(views);
    if arguments.json {
        tell!("{}", json!({ "ended": "signal", "counts": view::counts(&counts) }));
    } else {
        say!("fide: ended by a signal; {} connections were given memory", counts.paired);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn users_are_named_by_name_or_number() {
        assert_eq!(users(Some("all")).unwrap(), Users::All);
        assert_eq!(users(Some("root, 1234")).unwrap(), Users::These(vec![0, 1234]));
        let why = users(Some("nobody-of-this-name")).unwrap_err();
        assert!(why.code == USAGE && why.to_string().contains("nobody-of-this-name"), "{why}");
    }

    #[test]
    fn directories_that_do_not_fit_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("monitor.sock");
        let says = |mode, users: &Users| {
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(mode)).unwrap();
            doubts(&path, users).unwrap_or_default()
        };
        let (own, all) = (Users::These(Vec::new()), Users::All);
        assert_eq!((says(0o700, &own), says(0o755, &all)), (String::new(), String::new()));
        assert!(says(0o700, &all).contains("cannot reach"));
        assert!(says(0o1777, &all).contains("may write"));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
    }
}
