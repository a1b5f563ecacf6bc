// SPDX-License-Identifier: Apache-2.0
//! `SIOCETHTOOL` of `linux/ethtool.h`: what an interface's driver says about itself, and its settings.

use std::{io, os::fd::AsRawFd};

use crate::interface::{inet_socket, request};

/// A command of ethtool. Each has a structure of a fixed length, which begins with the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// `struct ethtool_cmd`: speed and duplex.
    Settings,
    /// `struct ethtool_drvinfo`: names of the driver and of the bus.
    DriverInfo,
    /// `struct ethtool_coalesce`: how long a card waits before it interrupts.
    Coalesce,
    /// The same structure, to be set.
    SetCoalesce,
    /// `struct ethtool_channels`: how many queues there are.
    Channels,
}

impl Command {
    /// The command's number, and the 32-bit words of its structure after the number.
    fn number_and_words(self) -> (u32, usize) {
        match self {
            Self::Settings => (0x01, 10),
            Self::DriverInfo => (0x03, 48),
            Self::Coalesce => (0x0e, 22),
            Self::SetCoalesce => (0x0f, 22),
            Self::Channels => (0x3c, 8),
        }
    }
}

/// Runs `command` on the interface called `name`. `words` is the structure without the command: it is handed over, and
/// overwritten with the answer.
///
/// # Errors
/// The kernel's, such as `EOPNOTSUPP` from a driver that does not know the command; `InvalidInput` if no interface can
/// have this name.
///
/// # Panics
/// If `words` is not as long as the command's structure.
pub fn run(name: &str, command: Command, words: &mut [u32]) -> io::Result<()> {
    let (number, length) = command.number_and_words();
    assert_eq!(words.len(), length, "words of {command:?}");
    let mut whole: Vec<u32> = [&[number], &words[..]].concat();
    let (socket, mut request) = (inet_socket()?, request(name)?);
    request.ifr_ifru.ifru_data = whole.as_mut_ptr().cast();
    // SAFETY: the request holds a name that ends with a zero, and a pointer to as many writable bytes as the command's
    // structure has. Both outlive the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    words.copy_from_slice(&whole[1..]);
    Ok(())
}

/// The text in `words` up to its first zero byte.
#[must_use]
pub fn text(words: &[u32]) -> String {
    let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0);
    String::from_utf8_lossy(&bytes.collect::<Vec<_>>()).into_owned()
}

/// Bits per second of the interface called `name`. `None` if there is no such interface, if its driver does not know,
/// or if the interface is made by software (veth, TAP): the number these report means nothing.
///
/// # Errors
/// The kernel's, which gave no socket.
pub fn speed_bps(name: &str) -> io::Result<Option<u64>> {
    /// "Unknown", in either half's width.
    const UNKNOWN: [u32; 3] = [0, 0xffff, u32::MAX];
    // In words after the command: the driver's bus begins at byte 96; speed is at byte 8, its upper half at byte 24.
    let (mut driver, mut settings) = ([0; 48], [0; 10]);
    inet_socket()?;
    if run(name, Command::DriverInfo, &mut driver).is_err() || run(name, Command::Settings, &mut settings).is_err() {
        return Ok(None);
    }
    if ["", "tun", "tap"].contains(&&*text(&driver[24..32])) {
        return Ok(None);
    }
    let half = |at: usize| {
        let [a, b, ..] = settings[at / 4].to_ne_bytes();
        u32::from(u16::from_ne_bytes([a, b]))
    };
    let mbit = half(24) << 16 | half(8);
    Ok((!UNKNOWN.contains(&mbit)).then(|| u64::from(mbit) * 1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_names_are_refused_without_a_call() {
        for name in ["", "a-name-too-long-for-linux", "nul\0"] {
            let error = run(name, Command::Coalesce, &mut [0; 22]).expect_err("refused");
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    #[test]
    fn unknown_interface_and_unknown_command_are_the_kernels_errors() {
        let error = run("none-such0", Command::DriverInfo, &mut [0; 48]).expect_err("no such interface");
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        let error = run("lo", Command::Coalesce, &mut [0; 22]).expect_err("loopback does not coalesce");
        assert_eq!(error.raw_os_error(), Some(libc::EOPNOTSUPP));
    }

    #[test]
    fn loopback_has_no_speed() {
        assert_eq!(speed_bps("lo").expect("asked"), None);
        assert_eq!(speed_bps("none-such0").expect("asked"), None);
    }
}
