// SPDX-License-Identifier: Apache-2.0
//! Processes die. Three watchers notice each death: Fide on another host, a TCP connection to the same host,
//! and a pidfd beside the dying process.

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, ensure};
use fide_client::{Client, Event, MonitorId, Reason, Verdict, Wanted, now_ns};
use fide_testbed::{
    Host, Victim, VictimSpec,
    baseline::{TcpFin, watch_pidfd},
};
use rustix::process::Signal;

use super::{
    ears::connect,
    results::{FIDE, Group, PIDFD, Series, TCP_FIN},
    say::Bar,
};

/// Hidden first argument of this program that makes it a victim.
pub(crate) const VICTIM: &str = "__victim";
/// How long the other host may take to learn of a process.
const UP_LIMIT: Duration = Duration::from_secs(3);
/// How long a notification of a death may take.
const NOTIFIED_LIMIT: Duration = Duration::from_secs(3);
/// How long the watchers get to fall asleep before a death.
const SETTLE: Duration = Duration::from_millis(8);
/// A group is given up after this many failed trials in a row; the rest of it counts as failed.
const FAILURES_MAX: u32 = 3;
/// Code of a victim that exits by itself.
const EXIT_CODE: u8 = 7;

/// How a process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Death {
    Sigkill,
    Sigsegv,
    Exit,
}

/// A kind of death.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) key: &'static str,
    pub(super) title: &'static str,
    pub(super) death: Death,
    pub(super) resident_mib: usize,
}

pub(super) const SMALL: [Kind; 3] = [
    Kind { key: "sigkill", title: "SIGKILL", death: Death::Sigkill, resident_mib: 0 },
    Kind { key: "sigsegv", title: "SIGSEGV", death: Death::Sigsegv, resident_mib: 0 },
    Kind { key: "exit", title: "plain exit", death: Death::Exit, resident_mib: 0 },
];
pub(super) const LARGE: [Kind; 2] = [
    Kind { key: "sigkill_512mib", title: "SIGKILL, 512 MiB resident", death: Death::Sigkill, resident_mib: 512 },
    Kind { key: "exit_512mib", title: "plain exit, 512 MiB resident", death: Death::Exit, resident_mib: 512 },
];

impl Death {
    fn reason(self) -> Reason {
        match self {
            Self::Sigkill => Reason::Killed(libc::SIGKILL),
            Self::Sigsegv => Reason::Killed(libc::SIGSEGV),
            Self::Exit => Reason::Exited(EXIT_CODE.into()),
        }
    }

    fn signal(self) -> Signal {
        match self {
            Self::Sigkill => Signal::KILL,
            Self::Sigsegv => Signal::USR1,
            Self::Exit => Signal::USR2,
        }
    }
}

/// The victims' host, and the watchers.
pub(super) struct Scene<'a> {
    /// Namespace of the victims; `None` for this one.
    pub(super) host: Option<&'a Host>,
    /// Name of their host.
    pub(super) host_name: &'static str,
    /// A program on the victims' host, which registers them.
    pub(super) near: Client,
    /// The program on another host; it is notified.
    pub(super) far: Client,
    /// The TCP connections from the watcher to the victims.
    pub(super) tcp: TcpFin,
    pub(super) exe: PathBuf,
    pub(super) tally: Tally,
}

/// Counts of all trials of a scene.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    victims: u32,
    pub(super) deaths: u32,
    /// Notified with the right reason.
    pub(super) seen: u32,
    /// Notified by the kernel's receive program itself.
    pub(super) direct: u32,
    /// Notified before it happened.
    pub(super) premature: u32,
    /// Why the last wrong trial was wrong.
    pub(super) wrong: Option<String>,
}

struct Times {
    fide: Result<i64, String>,
    pidfd: Result<i64, String>,
    tcp_fin: Result<i64, String>,
}

impl<'a> Scene<'a> {
    pub(super) fn new(
        host: Option<&'a Host>,
        host_name: &'static str,
        near: &Path,
        far: &Path,
        tcp: TcpFin,
    ) -> anyhow::Result<Self> {
        let exe = std::env::current_exe().context("finding this program")?;
        Ok(Self { host, host_name, near: connect(near)?, far: connect(far)?, tcp, exe, tally: Tally::default() })
    }

    /// Runs `n` trials; stops early after [`FAILURES_MAX`] failures in a row.
    pub(super) fn group(&mut self, kind: Kind, n: u32) -> Group {
        let mut bar = Bar::new(kind.title, n);
        let mut group = Scene::empty(kind);
        let mut in_a_row = 0;
        for trial in 0..n {
            if in_a_row >= FAILURES_MAX {
                for series in &mut group.series {
                    series.failed += n - trial;
                }
                self.tally.deaths += n - trial;
                break;
            }
            let failed = self.add_trial(kind, &mut group);
            in_a_row = if failed { in_a_row + 1 } else { 0 };
            bar.step(group.summary());
        }
        bar.done(&group.summary());
        group
    }

    pub(super) fn empty(kind: Kind) -> Group {
        Group {
            key: kind.key.to_owned(),
            title: kind.title.to_owned(),
            series: [FIDE, PIDFD, TCP_FIN].map(Series::new).into(),
        }
    }

    /// Runs one death. True if Fide failed to notify it.
    pub(super) fn add_trial(&mut self, kind: Kind, group: &mut Group) -> bool {
        self.tally.deaths += 1;
        let times = self.trial(kind).unwrap_or_else(|error| {
            let why = format!("{error:#}");
            Times { fide: Err(why.clone()), pidfd: Err(why.clone()), tcp_fin: Err(why) }
        });
        let failed = times.fide.as_ref().err().cloned();
        match &failed {
            None => self.tally.seen += 1,
            Some(why) => self.tally.wrong = Some(format!("{}: {why}", kind.title)),
        }
        for (series, time) in group.series.iter_mut().zip([times.fide, times.pidfd, times.tcp_fin]) {
            series.add(time);
        }
        failed.is_some()
    }

    fn trial(&mut self, kind: Kind) -> anyhow::Result<Times> {
        self.tally.victims += 1;
        let name = format!("victim-{}", self.tally.victims);
        let spec = VictimSpec {
            program: vec![self.exe.clone(), VICTIM.into()],
            resident_mib: kind.resident_mib,
            tcp: Some(self.tcp.address()),
            exit_code: EXIT_CODE,
            ..VictimSpec::default()
        };
        let mut victim = Victim::spawn(self.host, &spec)?;
        let tcp_fin = self.tcp.watch()?;
        let pidfd = watch_pidfd(victim.pid())?;
        let joined = self.near.join_pid(&name, victim.pid(), Duration::ZERO).context("putting a victim under watch")?;
        let monitor =
            self.far.monitor(&format!("{name}@{}", self.host_name), Wanted::default()).context("watching a victim")?;
        let times = self.die(kind.death, &victim, monitor.id).map(|(at_ns, fide)| {
            let limit_ns = NOTIFIED_LIMIT.as_nanos() as u64;
            let notice = |notice: fide_testbed::baseline::Notice| {
                notice
                    .wait(limit_ns)
                    .map(|notified_ns| notified_ns as i64 - at_ns as i64)
                    .ok_or("not notified".to_owned())
            };
            Times { fide, pidfd: notice(pidfd), tcp_fin: notice(tcp_fin) }
        });
        drop(victim.kill());
        victim.wait()?;
        // The next victim is another process, however this trial went.
        let _ = self.near.quit(joined.id);
        let _ = self.far.unmonitor(monitor.id);
        times
    }

    /// Kills the victim while the program on the other host sleeps. Returns the time just before, and how
    /// much later the program was notified.
    fn die(&mut self, death: Death, victim: &Victim, monitor: MonitorId) -> anyhow::Result<(u64, Result<i64, String>)> {
        await_up(&mut self.far, monitor)?;
        let far = &mut self.far;
        let (at_ns, notified) = std::thread::scope(|scope| {
            let program = scope.spawn(move || {
                // A program with tight deadlines would do so, too; older kernels refuse.
                let _ = fide_client::wake_eagerly();
                await_verdict(far, monitor, SETTLE + NOTIFIED_LIMIT)
            });
            std::thread::sleep(SETTLE);
            let at_ns = victim.signal(death.signal());
            (at_ns, program.join())
        });
        let at_ns = at_ns?;
        let notified = notified.map_err(|_| anyhow!("the watching program panicked"))?;
        let (notified_ns, verdict) = match notified {
            Ok(notified) => notified,
            Err(error) => return Ok((at_ns, Err(format!("{error:#}")))),
        };
        if notified_ns < at_ns {
            self.tally.premature += 1;
            return Ok((at_ns, Err("notified before it happened".to_owned())));
        }
        if verdict.reason != death.reason() {
            return Ok((at_ns, Err(format!("notified as {:?} instead of {:?}", verdict.reason, death.reason()))));
        }
        self.tally.direct += u32::from(verdict.evidence.direct);
        Ok((at_ns, Ok((notified_ns - at_ns) as i64)))
    }
}

fn await_up(client: &mut Client, monitor: MonitorId) -> anyhow::Result<()> {
    let until = Instant::now() + UP_LIMIT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "the other host did not learn of the victim within {UP_LIMIT:?}");
        if let Some(Event::Up { monitor: id, .. }) = client.wait_event(Some(left))?
            && id == monitor
        {
            return Ok(());
        }
    }
}

fn await_verdict(client: &mut Client, monitor: MonitorId, limit: Duration) -> anyhow::Result<(u64, Verdict)> {
    let until = Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        ensure!(!left.is_zero(), "no verdict within {NOTIFIED_LIMIT:?}");
        let event = client.wait_event(Some(left))?;
        let notified_ns = now_ns();
        match event {
            Some(Event::Verdict(verdict)) if verdict.monitor == monitor && verdict.reason.is_final() => {
                return Ok((notified_ns, verdict));
            }
            _ => {}
        }
    }
}
