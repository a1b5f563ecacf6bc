// SPDX-License-Identifier: Apache-2.0
//! FRR's bfdd on two hosts, one session between them.
//!
//! The verdict is read from bfdd's own log (`state-change: ... up -> down`), stamped to the microsecond where
//! bfdd changes the state. That adds nothing to the detection time; a client of bfdd would be notified later.
//! zebra does not run: a session without an interface does not need it.

use crate::net::Testbed;
use crate::{Error, Result, retry_until};
use fide_sys::clock::mono_ns;
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

const BFDD: &str = "/usr/lib/frr/bfdd";
/// The package's user: bfdd refuses to run as root.
const USER: &str = "frr";
/// A session comes up at RFC 5880's slow rate, one packet a second.
const UP_LIMIT: Duration = Duration::from_secs(20);
const DOWN_LIMIT: Duration = Duration::from_secs(10);

/// One session; bfdd is killed when it is dropped.
#[derive(Debug)]
pub struct Bfd {
    watcher: usize,
    peer: usize,
    plane: usize,
    log: PathBuf,
    children: Vec<Child>,
}

impl Bfd {
    /// Starts bfdd on both hosts and waits until the session is up. It sends a packet every `interval_ms`,
    /// and is down after `multiplier` of them are missing.
    pub fn start(
        bed: &Testbed,
        (watcher, peer): (usize, usize),
        plane: usize,
        interval_ms: u32,
        multiplier: u32,
    ) -> Result<Self> {
        if !Path::new(BFDD).exists() {
            return Err(Error::MissingProgram {
                name: "bfdd".into(),
                looked: BFDD.into(),
                hint: "install Debian's frr, or run `cargo xtask setup --bench`".into(),
            });
        }
        let (uid, gid) = user_ids()?;
        let mut bfd = Bfd {
            watcher,
            peer,
            plane,
            log: bed.scratch().join(format!("bfd-h{watcher}/bfdd.log")),
            children: Vec::new(),
        };
        for (me, other) in [(watcher, peer), (peer, watcher)] {
            let dir = bed.scratch().join(format!("bfd-h{me}"));
            let (local, remote) = (bed.host(me).address(plane), bed.host(other).address(plane));
            let conf = format!(
                "log file {}/bfdd.log debugging\nlog timestamp precision 6\ndebug bfd peer\nbfd\n peer {remote} \
                 local-address {local}\n  detect-multiplier {multiplier}\n  receive-interval {interval_ms}\n  \
                 transmit-interval {interval_ms}\n  no shutdown\n exit\nexit\n",
                dir.display()
            );
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir)
                .and_then(|()| fs::write(dir.join("bfdd.conf"), conf))
                .and_then(|()| std::os::unix::fs::chown(&dir, Some(uid), Some(gid)))
                .map_err(|e| Error::io(format!("preparing {}", dir.display()), e))?;
            let child = bed
                .host(me)
                .command(BFDD)
                .env("TZ", "UTC")
                .args(["-u", USER, "-g", USER, "-A", "127.0.0.1", "-P", "0"])
                .arg("-f")
                .arg(dir.join("bfdd.conf"))
                .arg("-i")
                .arg(dir.join("pid"))
                .arg("-z")
                .arg(dir.join("zserv.api"))
                .arg("--vty_socket")
                .arg(&dir)
                .arg("--bfdctl")
                .arg(dir.join("bfdd.sock"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|e| Error::io(format!("starting {BFDD}"), e))?;
            bfd.children.push(child);
        }
        bfd.await_state(0, "-> up", "a BFD session", UP_LIMIT)?;
        Ok(bfd)
    }

    /// Cuts the peer off and waits until the watcher declares it down. Returns the time from the cut in ns,
    /// and leaves the session up again.
    pub fn silence(&self, bed: &Testbed) -> Result<u64> {
        let mark = self.log_length();
        let (_, cut) = bed.cut(self.peer, self.plane)?;
        let down = self.await_state(mark, "up -> down", "BFD's verdict", DOWN_LIMIT);
        let mark = self.log_length();
        bed.restore(self.peer, self.plane)?;
        let after_ns = down?.saturating_sub(cut);
        self.await_state(mark, "-> up", "the BFD session after a cut", UP_LIMIT)?;
        Ok(after_ns)
    }

    /// The watcher's host number.
    pub fn watcher(&self) -> usize {
        self.watcher
    }

    fn log_length(&self) -> u64 {
        fs::metadata(&self.log).map_or(0, |m| m.len())
    }

    /// Waits for a state change beyond byte `from` of the log. Returns its CLOCK_MONOTONIC time in ns.
    fn await_state(&self, from: u64, change: &str, what: &str, limit: Duration) -> Result<u64> {
        let wall = retry_until(what, limit, || {
            let text = read_from(&self.log, from).map_err(|e| e.to_string())?;
            text.lines()
                .filter(|l| l.contains("state-change") && l.contains(change))
                .find_map(stamp_ns)
                .ok_or(format!("bfdd's log has: {text}"))
        })?;
        Ok(wall.saturating_sub(wall_minus_monotonic_ns()))
    }
}

impl Drop for Bfd {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn read_from(path: &Path, from: u64) -> std::io::Result<String> {
    let mut file = fs::File::open(path)?;
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    // A line without its end is still being written.
    let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

fn user_ids() -> Result<(u32, u32)> {
    let passwd = fs::read_to_string("/etc/passwd").map_err(|e| Error::io("reading /etc/passwd", e))?;
    let ids = passwd.lines().find_map(|l| {
        let mut fields = l.split(':');
        if fields.next()? != USER {
            return None;
        }
        Some((fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?))
    });
    ids.ok_or_else(|| Error::Unsupported(format!("bfdd needs user `{USER}`, which its package makes")))
}

/// Offset of the wall clock to the monotonic one, ns. Of several readings, it takes the one between the
/// closest readings of the monotonic clock.
fn wall_minus_monotonic_ns() -> u64 {
    const READINGS: usize = 8;
    let reading = || {
        let before = mono_ns();
        let t = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        let after = mono_ns();
        let wall = t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64;
        (after - before, wall - before.midpoint(after))
    };
    (0..READINGS).map(|_| reading()).min().map_or(0, |(_, offset)| offset)
}

/// The wall-clock time of a log line, `2026/11/21 20:56:47.368862 BFD: ...` in UTC, ns since 1970.
fn stamp_ns(line: &str) -> Option<u64> {
    let mut words = line.split(' ');
    let mut date = words.next()?.split('/').map(str::parse::<u64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let (clock, fraction) = words.next()?.split_once('.')?;
    let mut clock = clock.split(':').map(str::parse::<u64>);
    let (hour, minute, second) = (clock.next()?.ok()?, clock.next()?.ok()?, clock.next()?.ok()?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || fraction.len() > 9 {
        return None;
    }
    let leap = |y: u64| y.is_multiple_of(4) && (!y.is_multiple_of(100) || y.is_multiple_of(400));
    let in_years: u64 = (1970..year).map(|y| 365 + u64::from(leap(y))).sum();
    let lengths = [31, 28 + u64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let in_months: u64 = lengths.iter().take(month as usize - 1).sum();
    let days = in_years + in_months + day.checked_sub(1)?;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    let ns: u64 = format!("{fraction:0<9}").parse().ok()?;
    Some(seconds * 1_000_000_000 + ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_read() {
        let line = "2026/11/21 20:56:47.368862 BFD: [SEY1D-NT8EQ] state-change: up -> down reason:control-expired";
        // date -u -d '2026-11-21 20:56:47' +%s
        assert_eq!(stamp_ns(line), Some(1_795_294_607_368_862_000));
        assert_eq!(stamp_ns("1970/01/01 00:00:00.000001 x"), Some(1000));
        assert_eq!(stamp_ns("2024/03/01 00:00:00.0 x"), Some(1_709_251_200_000_000_000));
    }

    #[test]
    fn invalid_stamp_is_none() {
        for line in ["", "BFD: hello", "2026/13/01 00:00:00.0 x", "2026/11/21 20:56:47 BFD", "2026/11/00 00:00:00.0 x"]
        {
            assert_eq!(stamp_ns(line), None, "{line:?}");
        }
    }
}
