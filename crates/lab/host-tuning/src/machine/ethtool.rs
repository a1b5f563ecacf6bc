// SPDX-License-Identifier: Apache-2.0
//! `SIOCETHTOOL` of `linux/ethtool.h`.

use std::{
    io,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use serde::{Deserialize, Serialize};

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const ETHTOOL_GDRVINFO: u32 = 0x03;
const ETHTOOL_GCOALESCE: u32 = 0x0e;
const ETHTOOL_SCOALESCE: u32 = 0x0f;
const ETHTOOL_GCHANNELS: u32 = 0x3c;

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
    /// One with these values, for receiving and sending alike.
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

    /// Every packet interrupts at once.
    #[must_use]
    pub fn off(&self) -> bool {
        self.0[RX_USECS] == 0 && self.0[RX_FRAMES] <= 1 && self.0[ADAPTIVE_RX] == 0 && self.0[ADAPTIVE_TX] == 0
    }

    /// What to set so that it is off, best first: not every driver knows every word, and a driver
    /// refuses a word that it does not know unless it is 0. "Illegal to set both usecs and frames to
    /// zero" (`linux/ethtool.h`), which not every driver minds.
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
    /// Queues that receive.
    #[must_use]
    pub fn receiving(&self) -> u32 {
        self.rx + self.combined
    }

    /// The most that could receive.
    #[must_use]
    pub fn receiving_max(&self) -> u32 {
        self.rx_max.max(self.combined_max)
    }
}

fn request(interface: &str) -> io::Result<libc::ifreq> {
    // SAFETY: zeroes are a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if interface.is_empty() || interface.len() >= request.ifr_name.len() || interface.contains('\0') {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *to = from.cast_signed();
    }
    Ok(request)
}

fn socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is handed over; the descriptor is ours alone.
    unsafe {
        match libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) {
            fd if fd < 0 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Runs the command in the first word of `words`, whose answer replaces them.
fn ethtool(interface: &str, words: &mut [u32]) -> io::Result<()> {
    let mut request = request(interface)?;
    request.ifr_ifru.ifru_data = words.as_mut_ptr().cast();
    // SAFETY: `words` is as long as the structure of its command and outlives the call.
    match unsafe { libc::ioctl(socket()?.as_raw_fd(), SIOCETHTOOL, &raw mut request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(super) fn coalesce(interface: &str) -> io::Result<Coalesce> {
    let mut words = [0; COALESCE_WORDS + 1];
    words[0] = ETHTOOL_GCOALESCE;
    ethtool(interface, &mut words)?;
    let mut coalesce = [0; COALESCE_WORDS];
    coalesce.copy_from_slice(&words[1..]);
    Ok(Coalesce(coalesce))
}

pub(super) fn set_coalesce(interface: &str, wanted: &Coalesce) -> io::Result<()> {
    let mut words = [0; COALESCE_WORDS + 1];
    words[0] = ETHTOOL_SCOALESCE;
    words[1..].copy_from_slice(&wanted.0);
    ethtool(interface, &mut words)
}

pub(super) fn channels(interface: &str) -> io::Result<Channels> {
    let mut words = [0; 9];
    words[0] = ETHTOOL_GCHANNELS;
    ethtool(interface, &mut words)?;
    let [_, rx_max, tx_max, _, combined_max, rx, tx, _, combined] = words;
    Ok(Channels { rx_max, tx_max, combined_max, rx, tx, combined })
}

pub(super) fn driver(interface: &str) -> io::Result<String> {
    // struct ethtool_drvinfo: the command, the driver's name in 32 bytes, and 160 bytes more.
    let mut words = [0u32; 49];
    words[0] = ETHTOOL_GDRVINFO;
    ethtool(interface, &mut words)?;
    let bytes = words[1..9].iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0);
    Ok(String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned())
}

pub(super) fn index(interface: &str) -> io::Result<u32> {
    let mut request = request(interface)?;
    // SAFETY: the request outlives the call, which fills the index in.
    unsafe {
        match libc::ioctl(socket()?.as_raw_fd(), libc::SIOCGIFINDEX, &raw mut request) {
            0 => Ok(request.ifr_ifru.ifru_ifindex.unsigned_abs()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_interface_is_refused_without_asking() {
        for name in ["", "a-name-too-long-for-linux", "nul\0"] {
            assert_eq!(coalesce(name).expect_err("refused").kind(), io::ErrorKind::InvalidInput);
        }
        assert!(driver("none-such").is_err());
    }

    #[test]
    fn loopback_has_an_index_and_no_coalescing() {
        assert_eq!(index("lo").expect("there"), 1);
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
