// SPDX-License-Identifier: Apache-2.0
//! An emulated host that writes to its serial line.

use super::image::Image;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Instant;

/// Most lines of a guest that nobody has read yet; further lines are lost.
const LINES: usize = 1024;

/// A running guest. The emulator ends when this value is dropped.
pub(super) struct Guest {
    emulator: Child,
    lines: Receiver<String>,
}

impl Guest {
    /// Boots host 1 or 2; `wire` names the network between both. Its lines are shown.
    pub(super) fn start(image: &Image, host: u8, wire: &str) -> Result<Self, String> {
        let end = if host == 2 { "on" } else { "off" };
        // The emulator ends with this process, however this process ends.
        let mut emulator = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "qemu-system-x86_64"])
            .args(["-accel", "tcg,thread=multi", "-nodefaults", "-display", "none", "-no-reboot"])
            .args(["-serial", "stdio", "-smp", "2", "-m", "512"])
            .args(["-netdev", &format!("stream,id=wire,server={end},addr.type=unix,addr.abstract=on,addr.path={wire}")])
            .args(["-device", &format!("virtio-net-pci,netdev=wire,romfile=,mac=02:00:00:47:01:0{host}")])
            .arg("-kernel")
            .arg(&image.kernel)
            .arg("-initrd")
            .arg(&image.initial)
            // The other clocks of an emulated machine can run wild.
            .args(["-append", &format!("console=ttyS0 panic=-1 quiet tsc=unstable clocksource=hpet fide.host={host}")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("qemu-system-x86_64 did not start: {e}"))?;
        let (to, lines) = sync_channel(LINES);
        if let Some(out) = emulator.stdout.take() {
            // Ends with the emulator.
            std::thread::spawn(move || {
                for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                    let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                    println!("host {host}: {line}");
                    // Nobody reads host 2's lines.
                    let _ = to.try_send(line);
                }
            });
        }
        Ok(Guest { emulator, lines })
    }

    /// The next line; `None` when the guest has ended.
    pub(super) fn line(&mut self, until: Instant) -> Result<Option<String>, String> {
        match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Disconnected) => Ok(None),
            Err(RecvTimeoutError::Timeout) => Err("the guests were not done in time".into()),
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.emulator.kill();
        let _ = self.emulator.wait();
    }
}
