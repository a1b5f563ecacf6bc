// SPDX-License-Identifier: Apache-2.0
//! The emulated machine: its output, its monitor, and its second serial line for orders.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Stdio},
    sync::mpsc::{Receiver, TryRecvError, sync_channel},
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use fide_testbed::Host;

use super::LOG;

const EMULATOR: &str = "qemu-system-x86_64";
/// Unread lines; beyond that the machine's serial line waits.
const LINES: usize = 4096;
/// How long the emulator may take to make its sockets, and its monitor to answer.
const LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub(super) struct Machine {
    emulator: Child,
    lines: Receiver<String>,
    monitor: BufReader<UnixStream>,
    orders: UnixStream,
}

impl Machine {
    /// Boots the machine in a host's namespace, with a card for each address; the first card is tap `t0`.
    /// `dir` is for sockets and log.
    pub(super) fn start(
        host: &Host,
        kernel: &Path,
        initial: &Path,
        dir: &Path,
        macs: &[String],
    ) -> anyhow::Result<Self> {
        let (monitor, orders) = (dir.join("monitor"), dir.join("orders"));
        // The emulator ends with this process, however this ends.
        let mut command = host.command("setpriv");
        command
            .args(["--pdeathsig", "KILL", EMULATOR])
            .args(["-accel", "tcg,thread=multi", "-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-serial", "stdio", "-smp", "2", "-m", "512"])
            .args(["-chardev", &format!("socket,id=orders,path={},server=on,wait=off", orders.display())])
            .args(["-device", "isa-serial,chardev=orders"])
            .args(["-qmp", &format!("unix:{},server=on,wait=off", monitor.display())]);
        for (at, mac) in macs.iter().enumerate() {
            command
                .args(["-netdev", &format!("tap,id=n{at},ifname=t{at},script=no,downscript=no")])
                // No offloads: packets on the wire have the sizes and checksums of a real wire, as with other hosts.
                .args([
                    "-device",
                    &format!("virtio-net-pci,netdev=n{at},romfile=,mac={mac},csum=off,gso=off,guest_csum=off"),
                ]);
        }
        let mut emulator = command
            .arg("-kernel")
            .arg(kernel)
            .arg("-initrd")
            .arg(initial)
            // The other clocks of an emulated machine can be far off.
            .args(["-append", "console=ttyS0 panic=-1 quiet tsc=unstable clocksource=hpet"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(dir.join("emulator.log"))?)
            .spawn()
            .with_context(|| format!("starting {EMULATOR} (Debian's qemu-system-x86) by setpriv (util-linux)"))?;
        let (to, lines) = sync_channel(LINES);
        let mut log = fs::File::create(dir.join(LOG))?;
        if let Some(out) = emulator.stdout.take() {
            // The thread ends with the emulator.
            std::thread::spawn(move || {
                for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                    let _ = writeln!(log, "{line}");
                    if to.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let connected = connect(&monitor).and_then(|monitor| Ok((monitor, connect(&orders)?)));
        let (monitor, orders) = match connected {
            Ok(both) => both,
            Err(why) => {
                let _ = emulator.kill();
                let _ = emulator.wait();
                let said = fs::read_to_string(dir.join("emulator.log")).unwrap_or_default();
                bail!("{why:#}; the emulator said: {}", said.trim());
            }
        };
        let mut machine = Self { emulator, lines, monitor: BufReader::new(monitor), orders };
        machine.monitor.get_mut().set_read_timeout(Some(LIMIT))?;
        machine.answer()?;
        machine.monitor("qmp_capabilities")?;
        Ok(machine)
    }

    /// One line of JSON of the monitor.
    fn answer(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.monitor.read_line(&mut line).context("the emulator's monitor")?;
        Ok(line)
    }

    /// Runs one command of the monitor.
    pub(super) fn monitor(&mut self, what: &str) -> anyhow::Result<()> {
        let order = format!("{{\"execute\": \"{what}\"}}\n");
        self.monitor.get_mut().write_all(order.as_bytes()).context("the emulator's monitor")?;
        loop {
            let line = self.answer()?;
            if line.is_empty() || line.contains("\"error\"") {
                bail!("the emulator's monitor refused {what}: {line}");
            }
            // Other lines are events.
            if line.contains("\"return\"") {
                return Ok(());
            }
        }
    }

    /// A line for the guest's shell.
    pub(super) fn order(&mut self, order: &str) -> anyhow::Result<()> {
        self.orders.write_all(format!("{order}\n").as_bytes()).context("the guest's second serial line")
    }

    /// The next unread line.
    pub(super) fn line(&mut self) -> anyhow::Result<Option<String>> {
        match self.lines.try_recv() {
            Ok(line) => Ok(Some(line)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => bail!("the guest has ended"),
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}

fn connect(path: &Path) -> anyhow::Result<UnixStream> {
    let until = Instant::now() + LIMIT;
    loop {
        match UnixStream::connect(path) {
            Ok(stream) => return Ok(stream),
            Err(why) if Instant::now() > until => return Err(why).with_context(|| path.display().to_string()),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}
