// SPDX-License-Identifier: Apache-2.0
//! Reads and sets, by ethtool, when a card interrupts; reads how many queues it has.

use std::io;

use fide_sys::ethtool::{self, Command};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice::name_to_index, socket_with};
use serde::{Deserialize, Serialize};

/// Words of `struct ethtool_coalesce` after its command.
const COALESCE_WORDS: usize = 22;

/// `struct ethtool_coalesce` without its command: how long a card waits before it interrupts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coalesce([u32; COALESCE_WORDS]);

const RX_USECS: usize = 0;
const RX_FRAMES: usize = 1;
const TX_USECS: usize = 4;
const TX_FRAMES: usize = 5;
const ADAPTIVE_RX: usize = 9;
const ADAPTIVE_TX: usize = 10;

impl Coalesce {
    /// Settings with these values, the same for receiving and sending.
    #[must_use]
    pub fn of(usecs: u32, frames: u32, adaptive: bool) -> Self {
        let mut words = [0; COALESCE_WORDS];
        for (word, value) in [(RX_USECS, usecs), (TX_USECS, usecs), (RX_FRAMES, frames), (TX_FRAMES, frames)] {
            words[word] = value;
        }
        words[ADAPTIVE_RX] = u32::from(adaptive);
        words[ADAPTIVE_TX] = u32::from(adaptive);
        Self(words)
    }

    /// Whether every packet interrupts at once.
    #[must_use]
    pub fn off(&self) -> bool {
        self.0[RX_USECS] == 0 && self.0[RX_FRAMES] <= 1 && self.0[ADAPTIVE_RX] == 0 && self.0[ADAPTIVE_TX] == 0
    }

    /// Settings that turn it off, best first. Not every driver knows every word, and a driver refuses a word
    /// that it does not know unless it is 0. `linux/ethtool.h` says: "Illegal to set both usecs and frames to
    /// zero", but not every driver enforces that.
    #[must_use]
    pub fn turned_off(&self) -> Vec<Self> {
        let mut one = self.clone();
        (one.0[RX_USECS], one.0[RX_FRAMES], one.0[ADAPTIVE_RX], one.0[ADAPTIVE_TX]) = (0, 1, 0, 0);
        let mut zero = one.clone();
        zero.0[RX_FRAMES] = 0;
        vec![one, zero]
    }
}

impl std::fmt::Display for Coalesce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let word = |word: usize| self.0[word];
        let adaptive = if word(ADAPTIVE_RX) + word(ADAPTIVE_TX) > 0 { ", adaptive" } else { "" };
        write!(
            f,
            "receive {} us or {} frames, send {} us or {} frames{adaptive}",
            word(RX_USECS),
            word(RX_FRAMES),
            word(TX_USECS),
            word(TX_FRAMES)
        )
    }
}

/// `struct ethtool_channels` without its command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Channels {
    pub rx_max: u32,
    pub tx_max: u32,
    pub combined_max: u32,
    pub rx: u32,
    pub tx: u32,
    pub combined: u32,
}

impl Channels {
    /// Number of queues that receive.
    #[must_use]
    pub fn receiving(&self) -> u32 {
        self.rx + self.combined
    }

    /// The most queues that could receive.
    #[must_use]
    pub fn receiving_max(&self) -> u32 {
        self.rx_max.max(self.combined_max)
    }
}

pub(super) fn coalesce(interface: &str) -> io::Result<Coalesce> {
    let mut words = [0; COALESCE_WORDS];
    ethtool::run(interface, Command::Coalesce, &mut words)?;
    Ok(Coalesce(words))
}

pub(super) fn set_coalesce(interface: &str, wanted: &Coalesce) -> io::Result<()> {
    ethtool::run(interface, Command::SetCoalesce, &mut wanted.0.clone())
}

pub(super) fn channels(interface: &str) -> io::Result<Channels> {
    let mut words = [0; 8];
    ethtool::run(interface, Command::Channels, &mut words)?;
    let [rx_max, tx_max, _, combined_max, rx, tx, _, combined] = words;
    Ok(Channels { rx_max, tx_max, combined_max, rx, tx, combined })
}

pub(super) fn driver(interface: &str) -> io::Result<String> {
    let mut words = [0; 48];
    ethtool::run(interface, Command::DriverInfo, &mut words)?;
    // The driver's name is the first 32 bytes.
    Ok(ethtool::text(&words[..8]))
}

pub(super) fn index(interface: &str) -> io::Result<u32> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    Ok(name_to_index(&socket, interface)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_an_index_and_no_coalescing() {
        assert_eq!(index("lo").expect("there"), 1);
        assert!(index("a-name-too-long-for-linux").is_err());
        assert!(coalesce("lo").is_err());
    }

    #[test]
    fn turning_off_keeps_other_features() {
        let before = Coalesce::of(50, 64, true);
        assert!(!before.off());
        for after in before.turned_off() {
            assert!(after.off());
            assert_eq!((after.0[TX_USECS], after.0[TX_FRAMES]), (50, 64));
        }
    }
}
