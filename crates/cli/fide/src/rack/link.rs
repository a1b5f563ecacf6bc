// SPDX-License-Identifier: Apache-2.0
//! `fide rack monitor --link`: a link to another host, as it is named on the command line.

use std::{io, path::PathBuf, str::FromStr, time::Duration};

use fide_rack::{
    link::{PARTITIONS_MAX, SLICE_MAX, Slices, offers::Network},
    meet::monitor::Monitor,
    pci::{PciWindow, Side},
    proxy::Settings,
};

/// Addresses of the other host are separated by this.
const AND: char = '+';
const LOST_AFTER: Duration = Duration::from_secs(1);
/// The thread that keeps a link looks twice a millisecond, and may be kept from it.
const LOST_AFTER_MIN: Duration = Duration::from_millis(20);
const SLICE_MIN: usize = 256;
pub(super) const HELP: &str = "FILE,side=first|second,peer=ADDRESSES[,inbound=FILE][,partitions=N][,threads=1|2][,busy][,slice=BYTES][,lost-after=TIME]";

/// The memory of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Memory {
    /// Both hosts see the same.
    Shared(PathBuf, Side),
    /// What this host writes, and what it reads.
    Bridge { outbound: PathBuf, inbound: PathBuf },
}

#[derive(Debug, Clone)]
pub(super) struct Link {
    memory: Memory,
    settings: Settings,
}

fn number<T: FromStr>(key: &str, value: &str, what: &str) -> Result<T, String> {
    value.parse().map_err(|_| format!("{key}={value}: {what}"))
}

impl FromStr for Link {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let file = parts.next().filter(|file| !file.is_empty() && !file.contains('='));
        let file =
            PathBuf::from(file.ok_or(format!("it begins with the file of the memory that both hosts see: {HELP}"))?);
        let (mut side, mut inbound, mut networks) = (None, None, Vec::<Network>::new());
        let mut settings = Settings {
            name: file.display().to_string(),
            networks: Vec::new(),
            partitions: 1,
            has_two_threads: false,
            is_busy: false,
            slices: Slices::default(),
            lost_after: LOST_AFTER,
        };
        for part in parts {
            match part.split_once('=').unwrap_or((part, "")) {
                ("side", "first") => side = Some(Side::First),
                ("side", "second") => side = Some(Side::Second),
                ("side", other) => {
                    return Err(format!("side={other}: first at one of the hosts, and second at the other one"));
                }
                ("inbound", file) => inbound = Some(PathBuf::from(file)),
                ("peer", addresses) => {
                    for address in addresses.split(AND) {
                        networks.push(address.parse().map_err(|why| format!("peer: {why}"))?);
                    }
                }
                (key @ "partitions", value) => {
                    let what = format!("a link has 1 to {PARTITIONS_MAX} partitions, as many at both hosts");
                    settings.partitions = number(key, value, &what)?;
                    if !(1..=PARTITIONS_MAX).contains(&settings.partitions) {
                        return Err(format!("{key}={value}: {what}"));
                    }
                }
                ("threads", "1") => settings.has_two_threads = false,
                ("threads", "2") => settings.has_two_threads = true,
                ("threads", other) => {
                    return Err(format!("threads={other}: a partition has 1 thread, or 2, one for each direction"));
                }
                ("busy", "") => settings.is_busy = true,
                (key @ "slice", value) => {
                    let what = format!("bytes, {SLICE_MIN} to {SLICE_MAX}");
                    let bytes = number(key, value, &what)?;
                    if !(SLICE_MIN..=SLICE_MAX).contains(&bytes) {
                        return Err(format!("{key}={value}: {what}"));
                    }
                    settings.slices.bytes = bytes;
                }
                (key @ "lost-after", value) => {
                    let time = humantime::parse_duration(value)
                        .map_err(|why| format!("{key}={value}: {why}; such as 500ms"))?;
                    if time < LOST_AFTER_MIN {
                        return Err(format!(
                            "{key}={value}: at least {LOST_AFTER_MIN:?}, or a thread that is kept from its core is taken for a loss"
                        ));
                    }
                    settings.lost_after = time;
                }
                (other, _) => return Err(format!("'{other}' is none of: {HELP}")),
            }
        }
        if networks.is_empty() {
            return Err("say which addresses the other host has, as peer=10.0.0.2 or peer=10.0.0.2+fd00::2: only connections with \
                        these go over the link".into());
        }
        settings.networks = networks;
        let memory = match (side, inbound) {
            (_, Some(inbound)) => Memory::Bridge { outbound: file, inbound },
            (Some(side), None) => Memory::Shared(file, side),
            (None, None) => {
                return Err(
                    "say side=first at one of the hosts and side=second at the other one, or inbound=FILE for a bridge"
                        .into(),
                );
            }
        };
        Ok(Self { memory, settings })
    }
}

impl Link {
    pub(super) fn name(&self) -> &str {
        &self.settings.name
    }

    /// Carries it.
    pub(super) fn carry(self, monitor: &Monitor) -> io::Result<()> {
        let Self { memory, settings } = self;
        let opens = move || {
            let window = match &memory {
                Memory::Shared(file, side) => PciWindow::open(file, *side),
                Memory::Bridge { outbound, inbound } => PciWindow::of_ntb(outbound, inbound),
            };
            window.map_err(io::Error::other)
        };
        monitor.links(settings, opens, key)
    }
}

/// A random number.
fn key() -> u64 {
    let mut bytes = [0; 8];
    let mut have = 0;
    while have < bytes.len() {
        let got = rustix::rand::getrandom(&mut bytes[have..], rustix::rand::GetRandomFlags::empty());
        // Interrupted, or a kernel that has none: it is asked again.
        have += got.unwrap_or(0);
    }
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_read_and_what_is_wrong_is_named() {
        let link: Link =
            "/dev/shm/a,side=second,peer=10.0.0.2+fd00::/64,partitions=2,threads=2,busy,slice=2048,lost-after=50ms"
                .parse()
                .unwrap();
        assert_eq!(link.memory, Memory::Shared("/dev/shm/a".into(), Side::Second));
        let Settings { partitions, has_two_threads, is_busy, slices, lost_after, networks, .. } = &link.settings;
        assert!(*partitions == 2 && *has_two_threads && *is_busy && slices.bytes == 2048 && networks.len() == 2);
        assert_eq!(*lost_after, Duration::from_millis(50));
        let link: Link = "/dev/out,inbound=/dev/in,peer=10.0.0.2".parse().unwrap();
        assert_eq!(link.memory, Memory::Bridge { outbound: "/dev/out".into(), inbound: "/dev/in".into() });
        for (text, says) in [
            ("", "begins with the file"),
            ("side=first,peer=10.0.0.2", "begins with the file"),
            ("/a,peer=10.0.0.2", "side=first"),
            ("/a,side=left,peer=10.0.0.2", "side=left"),
            ("/a,side=first", "peer=10.0.0.2"),
            ("/a,side=first,peer=b", "'b' is no address"),
            ("/a,side=first,peer=10.0.0.2,partitions=0", "1 to 16"),
            ("/a,side=first,peer=10.0.0.2,threads=3", "threads=3"),
            ("/a,side=first,peer=10.0.0.2,slice=1", "256 to"),
            ("/a,side=first,peer=10.0.0.2,lost-after=1ms", "at least"),
            ("/a,side=first,peer=10.0.0.2,lost-after=5", "such as 500ms"),
            ("/a,side=first,peer=10.0.0.2,fast", "'fast' is none of"),
        ] {
            let why = text.parse::<Link>().unwrap_err();
            assert!(why.contains(says), "{text}: {why}");
        }
    }
}
