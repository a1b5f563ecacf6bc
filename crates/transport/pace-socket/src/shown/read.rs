// SPDX-License-Identifier: Apache-2.0
//! Finds what endpoints show of their connections, in all processes that this user may look into.

use std::{
    ffi::OsStr,
    fs,
    net::SocketAddr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use fide_pace::transport::Snapshot;
use fide_shm::region::ReadRegion;
use rustix::{
    fd::AsFd,
    fs::{Mode, OFlags},
};

use super::{ConnectionRecord, EndpointRecord, Layout, MAGIC, NAME, SHOWN_MAX};

/// Words of a command line by which a program is named.
const NAME_WORDS: usize = 3;
/// Longest name of a program, in characters.
const NAME_LEN: usize = 40;

/// An endpoint of a program on this host, which shows its connections.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownEndpoint {
    pub pid: u32,
    /// The first words of its command line.
    pub program: String,
    pub local: SocketAddr,
    /// Whether it accepts connections.
    pub is_server: bool,
    /// When it was written, by [`crate::now_ns`].
    pub written_ns: u64,
    /// All connections, also those that are not shown ([`super::SHOWN_MAX`]).
    pub connections: u64,
    /// Datagrams that were no packet of a connection.
    pub dropped: u64,
    pub shown: Vec<ShownConnection>,
}

/// A connection that is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownConnection {
    /// Its number, which is its own in its endpoint.
    pub id: u64,
    pub peer: SocketAddr,
    pub snapshot: Snapshot,
}

/// What was found on this host.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Shown {
    pub endpoints: Vec<ShownEndpoint>,
    /// Processes with endpoints of another version of this library.
    pub of_other_versions: Vec<u32>,
}

/// Looks at all processes of this user, or of all users for root. Those of others, and those that end meanwhile, are passed
/// over.
#[must_use]
pub fn shown() -> Shown {
    let mut found = Shown::default();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut pids: Vec<u32> = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    for pid in pids {
        for file in files(pid) {
            match read(pid, &file) {
                Some(Ok(endpoint)) => found.endpoints.push(endpoint),
                Some(Err(OtherVersion)) if !found.of_other_versions.contains(&pid) => found.of_other_versions.push(pid),
                _ => {}
            }
        }
    }
    found
}

struct OtherVersion;

/// Files of endpoints among the descriptors of a process.
fn files(pid: u32) -> Vec<PathBuf> {
    let begins = format!("/memfd:{NAME} ");
    let is_ours = |path: &Path| {
        fs::read_link(path).is_ok_and(|target| target.as_os_str().as_bytes().starts_with(begins.as_bytes()))
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    descriptors.map(|entry| entry.path()).filter(|path| is_ours(path)).collect()
}

/// None: it is gone, or another process' that has it, too.
fn read(pid: u32, file: &Path) -> Option<Result<ShownEndpoint, OtherVersion>> {
    let fd = rustix::fs::open(file, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let Ok(region) = ReadRegion::<Layout>::map(fd.as_fd()) else { return Some(Err(OtherVersion)) };
    // SAFETY: what follows only loads through it.
    let layout = unsafe { region.get() };
    let record = EndpointRecord::of_words(layout.endpoint.read()?);
    if record.magic != MAGIC {
        return Some(Err(OtherVersion));
    }
    if u64::from(own_number(pid)?) != record.pid {
        return None;
    }
    let mut shown: Vec<ShownConnection> = Vec::new();
    let count = usize::try_from(record.shown).unwrap_or(SHOWN_MAX).min(SHOWN_MAX);
    for slot in &layout.connections[..count] {
        let Some(words) = slot.read() else { continue };
        let ConnectionRecord { id, peer, snapshot } = ConnectionRecord::of_words(words);
        // One that has moved to another place meanwhile is seen twice.
        if shown.iter().all(|known| known.id != id) {
            shown.push(ShownConnection { id, peer, snapshot });
        }
    }
    shown.sort_by_key(|connection| connection.id);
    Some(Ok(ShownEndpoint {
        pid,
        program: program(pid),
        local: record.local,
        is_server: record.is_server != 0,
        written_ns: record.written_ns,
        connections: record.connections,
        dropped: record.dropped,
        shown,
    }))
}

/// The number by which a process knows itself, in the innermost namespace.
fn own_number(pid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// The program's name and the words after it, up to the first option. What others have written there is for a terminal:
/// without characters that would steer it.
fn program(pid: u32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    named(line.split(|byte| *byte == 0).filter(|word| !word.is_empty()).map(OsStr::from_bytes))
}

fn named<'a>(words: impl Iterator<Item = &'a OsStr>) -> String {
    let mut name = String::new();
    for (at, word) in words.take(NAME_WORDS).enumerate() {
        let word = if at == 0 { Path::new(word).file_name().unwrap_or(word) } else { word };
        let word = word.to_string_lossy();
        if at > 0 && word.starts_with('-') {
            break;
        }
        if at > 0 {
            name.push(' ');
        }
        name.extend(word.chars().map(|letter| if letter.is_control() { '?' } else { letter }));
    }
    if name.chars().count() > NAME_LEN {
        name = name.chars().take(NAME_LEN - 1).chain(['…']).collect();
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_named_without_options_and_without_steering_the_terminal() {
        let name = |words: &[&str]| named(words.iter().map(OsStr::new));
        assert_eq!(name(&["/usr/bin/fide", "pace", "send", "b:7000"]), "fide pace send");
        assert_eq!(name(&["ffmpeg", "-re", "-i"]), "ffmpeg");
        assert_eq!(name(&["a\u{1b}[2J", "b\nc"]), "a?[2J b?c");
        assert_eq!(name(&["x".repeat(100).as_str()]).chars().count(), NAME_LEN);
        assert_eq!(name(&[]), "");
    }
}
