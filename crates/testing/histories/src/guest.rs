// SPDX-License-Identifier: Apache-2.0
//! A host that is an emulated machine: agent and member run in it, under its own kernel and clocks.
//!
//! The machine replaces one host of the testbed. The links of that host become ports of bridges, beside taps
//! that are the machine's cards. The emulator runs in that host's namespace, so emulator, taps and bridges
//! end with the testbed, even if the run is killed.
//!
//! The image is a directory with `vmlinuz`, `initial.cpio` and `busybox` (`make histories-guest`,
//! `xtask/src/histories`). Configuration and keys are added to the first file system at each start.

mod machine;

use std::{
    fs,
    io::Write,
    net::{Ipv4Addr, UdpSocket},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use fide_testbed::{AgentSpec, Agents, Host, Testbed};

use crate::{
    lines::Reported,
    member::{Planted, Protocol},
    relay::Relay,
    world::GROUP,
};
use machine::Machine;

/// The guest's output.
pub(crate) const LOG: &str = "guest.log";
/// The card for clients: it belongs to no plane, and no fault cuts it.
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 1);
const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 99, 0, 2);
const RELAY_PORT: u16 = 7500;
const RELAY_MAC: &str = "02:f1:de:02:00:01";
/// The kernel's limit for a slew by frequency. Larger slews change the tick, which is 10,000 us otherwise.
const FREQUENCY_MAX_PPM: u32 = 500;
/// How long the guest's logs may take over the emulated serial line; later lines are missing.
const LOGS_LIMIT: Duration = Duration::from_secs(15);
/// After a stop of the guest its member gets no reads for so many timeouts: the lease that it may still
/// believe in is shorter.
const QUIET_TIMEOUTS: u32 = 2;

/// A line of the guest.
#[derive(Debug, PartialEq)]
pub(crate) enum Heard {
    Reported(Reported),
    MemberEnded(String),
    Said(String),
}

impl Heard {
    /// `None` if the line is only for the log.
    fn of(line: &str) -> Option<Self> {
        if let Some(said) = line.strip_prefix("GUEST ") {
            return Some(match said.strip_prefix("member ended: ") {
                Some(last) => Self::MemberEnded(last.to_owned()),
                None => Self::Said(said.to_owned()),
            });
        }
        serde_json::from_str(line).ok().map(Self::Reported)
    }
}

/// Rungs that an emulated machine always has.
pub(crate) fn agent() -> AgentSpec {
    AgentSpec {
        receive: "udp".to_owned(),
        exit_watch: "pidfd".to_owned(),
        extra: "calibrate_ms = 100".to_owned(),
        ..AgentSpec::default()
    }
}

#[derive(Debug)]
pub(crate) struct Guest {
    machine: Machine,
    relay: Relay,
    quiet: Duration,
    /// What the clock was last set to, and whether the guest has confirmed it.
    slews: Vec<(String, bool)>,
}

impl Guest {
    /// Boots the last host of the testbed.
    pub(crate) fn start(
        bed: &Testbed,
        agents: &Agents,
        image: &Path,
        protocol: Protocol,
        planted: Option<Planted>,
        timeout: Duration,
    ) -> anyhow::Result<Self> {
        let host = bed.hosts().last().context("a testbed has hosts")?;
        let dir = agents.dir(host.index());
        let macs = cards(host)?;
        let mut settings = vec![
            ("HOST", host.name().to_owned()),
            ("HOSTS", bed.hosts().iter().map(Host::name).collect::<Vec<_>>().join(",")),
            (
                "ADDRESSES",
                format!("'{}'", host.addresses().iter().map(Ipv4Addr::to_string).collect::<Vec<_>>().join(" ")),
            ),
            ("INSIDE", INSIDE.to_string()),
            ("RELAY_PORT", RELAY_PORT.to_string()),
            ("GROUP", GROUP.to_owned()),
            ("PROTOCOL", protocol.name().to_owned()),
        ];
        if let Some(planted) = planted {
            settings.push(("PLANTED", format!("'--planted {}'", planted.name())));
        }
        let settings: String = settings.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        let initial = file_system(bed.scratch(), &dir, host.name(), image, &settings)?;
        let outside = host.run_in(|| UdpSocket::bind((OUTSIDE, 0)))?.context("the relay's socket")?;
        outside.connect((INSIDE, RELAY_PORT))?;
        let relay = Relay::start(&dir.join("registers.sock"), outside)?;
        let machine = Machine::start(host, &image.join("vmlinuz"), &initial, &dir, &macs)?;
        Ok(Self { machine, relay, quiet: timeout * QUIET_TIMEOUTS, slews: Vec::new() })
    }

    /// The next relevant line.
    pub(crate) fn heard(&mut self) -> anyhow::Result<Option<Heard>> {
        while let Some(line) = self.machine.line()? {
            let heard = Heard::of(&line);
            if let Some(Heard::Said(said)) = &heard {
                self.slews.iter_mut().filter(|(clock, _)| said == clock).for_each(|(_, is_seen)| *is_seen = true);
            }
            if heard.is_some() {
                return Ok(heard);
            }
        }
        Ok(None)
    }

    /// Stops the machine by its monitor, or continues it. Its member gets no reads until the lease that it
    /// may still believe in is over: such an answer may be stale, since no clock in the guest shows the stop
    /// (docs/internals/clocks.md).
    pub(crate) fn freeze(&mut self, on: bool) -> anyhow::Result<()> {
        if on {
            self.relay.refuse_reads();
            return self.machine.monitor("stop");
        }
        self.machine.monitor("cont")?;
        self.relay.refuse_reads_for(self.quiet);
        Ok(())
    }

    /// Slews the guest's clock, or ends that.
    pub(crate) fn slew(&mut self, ppm: u32, on: bool) -> anyhow::Result<()> {
        let (order, said) = slew(ppm, on);
        self.slews.push((said, false));
        self.machine.order(&order)
    }

    /// Lets the guest print its logs into its own output.
    pub(crate) fn fetch_logs(&mut self) -> anyhow::Result<()> {
        self.machine.order("logs")?;
        let until = Instant::now() + LOGS_LIMIT;
        while Instant::now() < until {
            match self.heard()? {
                Some(Heard::Said(said)) if said == "logs end" => return Ok(()),
                Some(_) => {}
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
        Ok(())
    }

    /// A change of its clock that was ordered and not made.
    pub(crate) fn problem(&self) -> Option<String> {
        let missing: Vec<&str> =
            self.slews.iter().filter(|(_, is_seen)| !is_seen).map(|(clock, _)| clock.as_str()).collect();
        (!missing.is_empty()).then(|| format!("the guest did not say of its clock: {}", missing.join(", ")))
    }
}

/// The order, and the guest's line when it is done.
fn slew(ppm: u32, on: bool) -> (String, String) {
    let ppm = if on { (ppm, ppm) } else { (ppm, 0) };
    if ppm.0 > FREQUENCY_MAX_PPM {
        let tick_us = 10_000 + ppm.1 / 100;
        return (format!("clock -t {tick_us} tick"), format!("clock: tick {tick_us}"));
    }
    // In 65,536ths of a ppm.
    let frequency = ppm.1 << 16;
    (format!("clock -f {frequency} freq"), format!("clock: freq {frequency}"))
}

/// Makes a host's links ports of bridges, beside taps: one for each plane and one for clients. The machine's
/// cards get the addresses that the host's links had.
/// addresses that the host's links had.
fn cards(host: &Host) -> anyhow::Result<Vec<String>> {
    let mut macs = Vec::new();
    let mut script = String::new();
    for plane in 0..host.addresses().len() {
        let shown = host.command("ip").args(["-o", "link", "show", "dev", &format!("p{plane}")]).output()?;
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let mac = shown.split_once("link/ether ").and_then(|(_, rest)| rest.split_whitespace().next());
        macs.push(mac.with_context(|| format!("no address in {shown:?}"))?.to_owned());
        script += &format!(
            "addr flush dev p{plane}\nlink set p{plane} address 02:f1:de:01:00:0{plane}\n\
             link add br{plane} type bridge stp_state 0 forward_delay 0 mcast_snooping 0\n\
             tuntap add dev t{plane} mode tap\n\
             link set br{plane} addrgenmode none\nlink set t{plane} addrgenmode none\n\
             link set p{plane} master br{plane}\nlink set t{plane} master br{plane}\n\
             link set t{plane} up\nlink set br{plane} up\n"
        );
    }
    let last = macs.len();
    script += &format!(
        "tuntap add dev t{last} mode tap\nlink set t{last} addrgenmode none\n\
         addr add {OUTSIDE}/24 dev t{last}\nlink set t{last} up\n\
         neigh add {INSIDE} lladdr {RELAY_MAC} dev t{last} nud permanent\n"
    );
    macs.push(RELAY_MAC.to_owned());
    let mut ip = host.command("ip").args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    ip.stdin.take().context("its input is piped")?.write_all(script.as_bytes())?;
    let output = ip.wait_with_output()?;
    if !output.status.success() {
        bail!("the guest's cards: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(macs)
}

/// The image's file system, and configuration and keys after it: the kernel unpacks both.
fn file_system(
    scratch: &Path,
    dir: &Path,
    name: &str,
    image: &Path,
    settings: &str,
) -> anyhow::Result<std::path::PathBuf> {
    let root = dir.join("root");
    let inside = root.join("run/fide");
    fs::create_dir_all(inside.join(name))?;
    for key in ["cluster.key", "group.key"] {
        fs::copy(scratch.join(key), inside.join(key)).with_context(|| format!("the guest's {key}"))?;
    }
    let toml = format!("{name}/fide.toml");
    fs::copy(scratch.join(&toml), inside.join(&toml)).context("the guest's configuration")?;
    fs::write(inside.join("settings"), settings)?;
    let busybox = fs::canonicalize(image.join("busybox"))
        .with_context(|| format!("{} has no busybox: `make histories-guest` makes the image", image.display()))?;
    let added = Command::new("/bin/sh")
        .args(["-c", "find . | \"$1\" cpio -o -H newc", "sh"])
        .arg(busybox)
        .current_dir(&root)
        .stderr(Stdio::null())
        .output()?;
    if !added.status.success() {
        bail!("the guest's configuration could not be packed: {}", added.status);
    }
    let to = dir.join("initial.cpio");
    fs::copy(image.join("initial.cpio"), &to).context("the guest's file system")?;
    fs::File::options().append(true).open(&to)?.write_all(&added.stdout)?;
    Ok(to)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_guest() {
        assert_eq!(Heard::of(r#"{"event":"ready","ns":5}"#), Some(Heard::Reported(Reported::Ready { ns: 5 })));
        assert_eq!(Heard::of("GUEST member ended: gone"), Some(Heard::MemberEnded("gone".to_owned())));
        assert_eq!(Heard::of("GUEST clock: tick 10800"), Some(Heard::Said("clock: tick 10800".to_owned())));
        assert_eq!(Heard::of("[ 0.1] a kernel's line"), None);
    }

    #[test]
    fn slews_by_frequency_and_by_tick() {
        assert_eq!(slew(500, true), ("clock -f 32768000 freq".to_owned(), "clock: freq 32768000".to_owned()));
        assert_eq!(slew(500, false).0, "clock -f 0 freq");
        assert_eq!(slew(80_000, true).1, "clock: tick 10800");
        assert_eq!(slew(80_000, false).1, "clock: tick 10000");
    }
}
