// SPDX-License-Identifier: Apache-2.0
//! Planes of windows: memory that each two hosts of the cluster map, with a file for each pair.

use std::path::PathBuf;

use fide_net::pace::YIELD_NS;
use fide_types::{HostId, Name};

use super::{Config, Mode, Problem, file::PlaneTable, place::At};

/// How often a host looks into its windows while a heartbeat is due once: nobody is woken by what is written there.
pub const POLLS_PER_HEARTBEAT: u64 = 4;
/// Stands between the names of two hosts: no name has it.
const AND: char = '+';

/// The window between this host and another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// The other host.
    pub peer: Name,
    /// The file that both map.
    pub path: PathBuf,
    /// Which of the two this host is: the first one is the earlier member.
    pub is_first: bool,
}

/// Planes of windows are the last ones, and each has a directory of its own and no group.
pub(super) fn check(planes: &[PlaneTable]) -> Result<(), Problem> {
    let wrong = |index: usize, text: String| Err(Problem::at(&[At::Item("plane", index)], text));
    for (index, plane) in planes.iter().enumerate() {
        let Some(dir) = &plane.windows else {
            if index > 0 && planes[index - 1].windows.is_some() {
                let text = format!("plane {index} is a network after one of windows; put planes of windows last");
                return wrong(index, text);
            }
            continue;
        };
        if dir.as_os_str().is_empty() {
            return wrong(index, format!("plane {index}: windows = \"\" is no directory"));
        }
        if plane.group.is_some() {
            let text = format!("plane {index} has a group and windows; a plane is either a network or memory");
            return wrong(index, text);
        }
        if planes[..index].iter().any(|other| other.windows.as_ref() == Some(dir)) {
            let text =
                format!("planes 0 and 1 have their windows in one directory, {}; give each its own", dir.display());
            return wrong(index, text);
        }
    }
    Ok(())
}

impl Config {
    /// How many planes are networks: the first ones.
    #[must_use]
    pub fn networks(&self) -> usize {
        self.planes.iter().filter(|plane| plane.windows.is_none()).count()
    }

    /// Whether some plane is one of windows.
    #[must_use]
    pub fn has_windows(&self) -> bool {
        self.networks() < self.planes.len()
    }

    /// This host's windows on a plane, one for each other member; none on a network.
    #[must_use]
    pub fn windows(&self, me: HostId, plane: usize) -> Vec<Window> {
        let Some(dir) = &self.planes[plane].windows else { return Vec::new() };
        let peers = (1u16..).zip(&self.members).filter(|(id, _)| *id != me);
        let window = |(id, peer): (u16, &super::Member)| {
            let mine = &self.member(me).name;
            let is_first = me < id;
            let [first, second] = if is_first { [mine, &peer.name] } else { [&peer.name, mine] };
            let path = dir.join(format!("{}{AND}{}", first.as_str(), second.as_str()));
            Window { peer: peer.name, path, is_first }
        };
        peers.map(window).collect()
    }

    /// How long a packet may lie in a window before the loop looks, in ns: 0 without windows.
    #[must_use]
    pub fn poll_ns(&self) -> u64 {
        let wait_ns = self.heartbeat_ns / POLLS_PER_HEARTBEAT;
        match self.mode {
            _ if !self.has_windows() => 0,
            Mode::Sleep => wait_ns,
            Mode::Busy => wait_ns.min(YIELD_NS),
        }
    }
}
