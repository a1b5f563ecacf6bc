// SPDX-License-Identifier: Apache-2.0
//! A process that runs: whether the library is in it, and what it has open.

use std::{collections::HashMap, fs, io, path::PathBuf};

use anyhow::anyhow;
use serde_json::{Value, json};

use super::{super::kernel, Finding, Judged, listed};
use crate::exit::{Failure, NOT_PERMITTED, USAGE};

/// The variable by which the library finds the monitor.
const MONITOR: &[u8] = b"FIDE_RACK_MONITOR=";

/// Connections that are listed; all are counted.
const LISTED_MAX: usize = 4096;

/// What a process has open.
#[derive(Debug, Default, PartialEq, Eq)]
struct Open {
    /// TCP connections whose two ends are on this host.
    within_host: usize,
    to_others: usize,
    listeners: usize,
    /// Standard input, output and errors that are TCP connections.
    standard: Vec<u32>,
    rings: usize,
    /// The first ones of all connections, by descriptor.
    connections: Vec<(u32, kernel::Socket)>,
}

impl Open {
    fn of(pid: u32) -> io::Result<Self> {
        let sockets = kernel::sockets(pid).unwrap_or_default();
        let by_inode: HashMap<u64, &kernel::Socket> = sockets.iter().map(|socket| (socket.inode, socket)).collect();
        let mut open = Self::default();
        for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
            let entry = entry?;
            // It may have been closed meanwhile.
            let Ok(target) = fs::read_link(entry.path()) else { continue };
            let target = target.to_string_lossy().into_owned();
            open.rings += usize::from(target == "anon_inode:[io_uring]");
            let inode = target.strip_prefix("socket:[").and_then(|rest| rest.strip_suffix(']')?.parse().ok());
            let Some(socket) = inode.and_then(|inode: u64| by_inode.get(&inode)) else { continue };
            if socket.listens() {
                open.listeners += 1;
            } else if socket.is_established() {
                let count = if socket.is_within_host() { &mut open.within_host } else { &mut open.to_others };
                *count += 1;
                let fd = entry.file_name().to_str().and_then(|fd| fd.parse().ok());
                open.standard.extend(fd.filter(|fd: &u32| *fd <= 2));
                if open.connections.len() < LISTED_MAX {
                    open.connections.extend(fd.map(|fd| (fd, **socket)));
                }
            }
        }
        open.connections.sort_unstable_by_key(|(fd, _)| *fd);
        open.standard.sort_unstable();
        Ok(open)
    }
}

/// As text, as an object, and whether it is accelerated.
///
/// # Errors
/// There is no such process, or it is another user's.
pub(super) fn judge(pid: u32) -> Result<(String, Value, bool), Failure> {
    let failed = |why: io::Error| match why.kind() {
        io::ErrorKind::NotFound => Failure::new(USAGE, anyhow!("there is no process {pid}")),
        io::ErrorKind::PermissionDenied => {
            Failure::new(NOT_PERMITTED, anyhow!("process {pid} is another user's: ask as that one, or as root"))
        }
        _ if why.raw_os_error() == Some(libc::ESRCH) => {
            Failure::new(USAGE, anyhow!("process {pid} has ended, or is a thread of the kernel"))
        }
        _ => why.into(),
    };
    let name = kernel::name(pid).ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
    let mapped = kernel::mapped(pid).map_err(failed)?;
    let open = Open::of(pid).map_err(failed)?;
    let environment = fs::read(format!("/proc/{pid}/environ")).map_err(failed)?;
    let monitor = environment.split(|byte| *byte == 0).find_map(|entry| entry.strip_prefix(MONITOR));
    let monitor = monitor.map(|path| String::from_utf8_lossy(path).into_owned());
    let mut findings = Vec::new();
    if mapped.library.is_none() {
        let why = "the library is not in it: it was not started by `fide rack run`".to_owned();
        findings.push(Finding::blocks("library", why));
        // By the name that it has, if that is still the file.
        let link = PathBuf::from(format!("/proc/{pid}/exe"));
        let path = fs::read_link(&link).ok().filter(|path| path.is_file()).unwrap_or(link);
        if let Ok(judged) = Judged::of_file(&path) {
            findings.extend(judged.findings);
        }
    } else if monitor.is_none() && mapped.memories.is_empty() {
        // A program that changes its title, as Redis does, writes it there.
        let text = "FIDE_RACK_MONITOR is not in its environment, unless it has written over that: without it all its connections stay \
                    with TCP";
        findings.push(Finding::limits("monitor", text.to_owned()));
    }
    if mapped.library.as_deref().is_some_and(|path| path.ends_with("(deleted)")) {
        let text = "its library has been replaced since: it runs the former one".to_owned();
        findings.push(Finding::limits("library", text));
    }
    if !open.standard.is_empty() {
        let fds: Vec<_> = open.standard.iter().map(u32::to_string).collect();
        let text = format!("descriptor {} is a TCP connection, and stays one: 0 to 2 do", fds.join(", "));
        findings.push(Finding::limits("standard", text));
    }
    if open.rings > 0 {
        let text = format!(
            "it has {} io_uring: its connections stay with TCP, unless `--io-uring` said otherwise",
            open.rings
        );
        findings.push(Finding::limits("io_uring", text));
    }
    let is_accelerated = !findings.iter().any(|finding| finding.blocks);
    let memories = mapped.memories.len();
    let text = format!(
        "{name} ({pid}): {}\n  {memories} connections over memory, {} TCP connections within this host (those over memory have \
         one, too), {} to other hosts, {} listeners{}",
        if is_accelerated { "accelerated" } else { "not accelerated" },
        open.within_host,
        open.to_others,
        open.listeners,
        listed(&findings)
    );
    let object = json!({
        "accelerated": is_accelerated,
        "pid": pid,
        "program": name,
        "library": mapped.library,
        "monitor": monitor,
        "memories": memories,
        "tcp": { "within_host": open.within_host, "to_others": open.to_others, "listeners": open.listeners },
        "connections": open.connections.iter().map(|(fd, socket)| json!({
            "descriptor": fd, "local": socket.local, "peer": socket.peer, "within_host": socket.is_within_host(),
        })).collect::<Vec<_>>(),
        "findings": findings.iter().map(Finding::object).collect::<Vec<_>>(),
    });
    Ok((text, object, is_accelerated))
}
