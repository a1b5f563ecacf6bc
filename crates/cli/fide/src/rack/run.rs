// SPDX-License-Identifier: Apache-2.0
//! `fide rack run`: a program under the library.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{self, ExitCode},
};

use anyhow::anyhow;
use clap::ValueEnum;

use super::{
    check::{Judged, is_there},
    monitor::user,
    place::{self, DEAD_VARIABLE, Found, PEERS_VARIABLE, RINGS_VARIABLE, USER_VARIABLE, VARIABLE, candidates, found},
    view,
};
use crate::{
    exit::{Done, Failure, UNHEALTHY, UNSUPPORTED},
    say::say,
};

/// As env(1) and a shell have it: the program could not be started, or is not there.
const NOT_STARTED: u8 = 126;
const NOT_THERE: u8 = 127;
/// Without stamps of TCP no two ends are brought together.
const STAMPS: &str = "/proc/sys/net/ipv4/tcp_timestamps";

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The monitor's socket; by default $FIDE_RACK_MONITOR, or else the first that answers of /run/fide-rack/monitor.sock and
    /// $XDG_RUNTIME_DIR/fide-rack/monitor.sock
    #[arg(long, value_name = "PATH")]
    monitor: Option<PathBuf>,
    /// Also trust a monitor of this user: it could read and write what goes over the connections
    #[arg(long, value_name = "USER", value_parser = user)]
    monitor_user: Option<u32>,
    /// The library, instead of that beside this program or in ../lib/fide
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Where `fide rack hangup --dead` says which addresses are dead; by default $FIDE_RACK_DEAD, or else /run/fide-hangup
    #[arg(long, value_name = "DIR")]
    dead: Option<PathBuf>,
    /// As the program ends, append a line to a file: its process, and how many of its connections went over to memory. By default
    /// to standard error; so do the programs that it starts
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    stats: Option<PathBuf>,
    /// Start the program only if it is accelerated
    #[arg(long)]
    require: bool,
    /// Have the library loaded although the program may make system calls that the library does not see (Go)
    #[arg(long)]
    anyway: bool,
    /// What a program gets that makes a ring of io_uring
    #[arg(long, value_enum, value_name = "RULE", default_value_t)]
    io_uring: IoUring,
    /// The program and its arguments
    #[arg(value_name = "CMD", required = true, num_args = 1.., trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Why a program goes over TCP.
struct OverTcp {
    why: String,
    /// What would change that.
    remedy: Option<String>,
    code: u8,
    /// The library is of use all the same: a monitor may begin before the first connection does.
    is_preloaded: bool,
}

/// As the library has it in its environment.
#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum IoUring {
    /// The ring, and all its connections stay with TCP from then on; once one has memory, `ENOSYS`
    #[default]
    Tcp,
    /// `ENOSYS`, as on a kernel without io_uring: its connections have memory
    Refuse,
    /// The ring: no connection of it meets one
    Files,
}

/// Reasons that `--anyway` passes over: the library can be loaded, and has its limits.
const PASSED_OVER: [&str; 1] = ["go"];

fn unfit(judged: &Judged, anyway: bool) -> Option<OverTcp> {
    let mut against = judged.findings.iter().filter(|finding| finding.blocks);
    let is_passed_over = |code: &str| anyway && PASSED_OVER.contains(&code);
    against.any(|finding| !is_passed_over(finding.code)).then(|| OverTcp {
        why: judged.against(),
        remedy: None,
        code: UNSUPPORTED,
        is_preloaded: false,
    })
}

/// Where the library finds the monitor, and whose that has to be. None: whose it is, as only root can put one there.
struct Place {
    path: PathBuf,
    uid: Option<u32>,
    /// Of the hosts that it has links to.
    peers: Vec<String>,
}

impl Place {
    fn new(path: PathBuf, uid: u32) -> Self {
        let uid = (path != Path::new(place::OF_HOST)).then_some(uid);
        Self { path, uid, peers: Vec::new() }
    }
}

fn without_monitor(why: String, remedy: String, is_preloaded: bool) -> OverTcp {
    OverTcp { why, remedy: Some(remedy), code: UNHEALTHY, is_preloaded }
}

/// The addresses of the hosts that a monitor that answers has links to, or why it is of no use.
fn peers(found: &Found, arguments: &Arguments) -> Result<Vec<String>, OverTcp> {
    let (path, uid) = (found.path.display(), found.peer.uid);
    if !found.is_trusted(arguments.monitor_user) {
        let why =
            format!("the monitor at {path} is of user {uid}, who could read and write what goes over the connections");
        return Err(without_monitor(why, format!("to trust it, add --monitor-user {uid}"), false));
    }
    match view::greeting(&found.path) {
        Ok(greeting) if greeting.serves => Ok(greeting.peers),
        Ok(_) => {
            let why = format!("the monitor at {path} does not serve this user");
            Err(without_monitor(why, "name it in --allow-users of `fide rack monitor`".to_owned(), false))
        }
        // One that does not answer this may be another release's: the library finds out.
        Err(_) => Ok(Vec::new()),
    }
}

/// The first monitor that is of use, or why there is none.
fn monitor(arguments: &Arguments) -> (Place, Option<OverTcp>) {
    let candidates = candidates(arguments.monitor.as_deref());
    let (mut missing, mut refused) = (Vec::new(), None);
    for path in &candidates {
        match found(path) {
            Ok(found) => {
                let place = Place::new(found.path.clone(), found.peer.uid);
                match peers(&found, arguments) {
                    Ok(peers) => return (Place { peers, ..place }, no_stamps()),
                    Err(why) => refused = refused.or(Some((place, why))),
                }
            }
            Err(why) => missing.push(why.to_string()),
        }
    }
    if let Some((place, why)) = refused {
        return (place, Some(why));
    }
    let path = candidates.last().cloned().unwrap_or_default();
    let own = place::of_user().is_some_and(|own| own == path);
    let how = match (arguments.monitor.as_deref().or(env::var_os(VARIABLE).as_deref().map(Path::new)), own) {
        (Some(path), _) => format!("`fide rack monitor --socket {}`", path.display()),
        (None, true) => "`systemctl start fide-rack`, or `fide rack monitor` for this user alone".to_owned(),
        (None, false) => "`systemctl start fide-rack`".to_owned(),
    };
    let remedy = format!("start a monitor: {how}");
    let me = rustix::process::geteuid().as_raw();
    let place = Place::new(path, arguments.monitor_user.unwrap_or(me));
    (place, Some(without_monitor(missing.join(", "), remedy, true)))
}

fn no_stamps() -> Option<OverTcp> {
    let has_stamps = fs::read_to_string(STAMPS).map_or(true, |text| text.trim() != "0");
    (!has_stamps).then(|| OverTcp {
        why: "TCP has no timestamps here (net.ipv4.tcp_timestamps = 0), by which the two ends are proven".to_owned(),
        remedy: Some("sysctl net.ipv4.tcp_timestamps=1".to_owned()),
        code: UNSUPPORTED,
        is_preloaded: true,
    })
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let (name, words) = arguments.command.split_first().ok_or_else(|| anyhow!("no program"))?;
    // A library that the caller has named has to be there.
    if let Some(library) = &arguments.library {
        fs::File::open(library).map_err(|why| Failure::file(library, &why))?;
    }
    let unfit = match Judged::of(name) {
        Ok(judged) => unfit(&judged, arguments.anyway),
        // What exec says of one that is not there is enough.
        Err(_) if !is_there(name) => return Ok(started(name, command(name, words))),
        Err(why) => Some(OverTcp { why: why.to_string(), remedy: None, code: UNSUPPORTED, is_preloaded: false }),
    };
    let (place, no_monitor) = monitor(arguments);
    let library = place::library(arguments.library.as_deref());
    let no_library = library.as_ref().err().map(|why| OverTcp {
        why: why.to_string(),
        remedy: None,
        code: UNSUPPORTED,
        is_preloaded: false,
    });
    let over_tcp = unfit.or(no_library).or(no_monitor);
    if let Some(OverTcp { why, remedy, code, .. }) = &over_tcp {
        let remedy = remedy.as_ref().map(|remedy| format!("; {remedy}")).unwrap_or_default();
        if arguments.require {
            return Err(Failure::new(*code, anyhow!("{} is not started: {why}{remedy}", name.display())));
        }
        say!("fide: {} runs over kernel TCP: {why}{remedy}", name.display());
    }
    let mut command = command(name, words);
    if let Ok(library) = &library
        && over_tcp.is_none_or(|over_tcp| over_tcp.is_preloaded)
    {
        command.env("LD_PRELOAD", place::preload(library, env::var_os("LD_PRELOAD"))).env(VARIABLE, &place.path);
        match place.uid {
            Some(uid) => command.env(USER_VARIABLE, uid.to_string()),
            None => command.env_remove(USER_VARIABLE),
        };
        match place.peers.is_empty() {
            true => command.env_remove(PEERS_VARIABLE),
            false => command.env(PEERS_VARIABLE, place.peers.join("+")),
        };
        // What this may be under has another rule.
        command.env(
            RINGS_VARIABLE,
            arguments.io_uring.to_possible_value().map_or_else(String::new, |rule| rule.get_name().to_owned()),
        );
        if let Some(dead) = &arguments.dead {
            // Programs may go to another directory.
            command.env(DEAD_VARIABLE, std::path::absolute(dead)?);
        }
        if let Some(stats) = &arguments.stats {
            let file =
                Some(stats).filter(|stats| *stats != Path::new("-")).and_then(|stats| std::path::absolute(stats).ok());
            command.env("FIDE_RACK_STATS", file.unwrap_or_else(|| stats.clone()));
        }
    } else if let Some(before) = env::var_os("LD_PRELOAD") {
        // This may be under the library itself.
        match place::not_preloaded(&before) {
            Some(others) => command.env("LD_PRELOAD", others),
            None => command.env_remove("LD_PRELOAD"),
        };
    }
    Ok(started(name, command))
}

fn command(name: &OsStr, words: &[OsString]) -> process::Command {
    let mut command = process::Command::new(name);
    command.args(words);
    command
}

/// Returns only if it does not start.
fn started(name: &OsStr, mut command: process::Command) -> ExitCode {
    let why = command.exec();
    say!("fide: {} does not start: {why}", name.display());
    ExitCode::from(if why.kind() == io::ErrorKind::NotFound { NOT_THERE } else { NOT_STARTED })
}
