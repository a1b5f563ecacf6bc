// SPDX-License-Identifier: Apache-2.0
//! A host falls silent: both its cables are cut, or its agent is stopped.

use std::time::Duration;

use anyhow::{Context, ensure};
use fide_client::{LEASE_FOREVER_NS, Reason, now_ns};

use super::{
    cluster::{Cluster, OBSERVER, SILENT, VICTIMS, WATCHER},
    ears::{Heard, is_host},
    results::{Group, Results, Series, Timeline},
    say::Bar,
};

/// How much later than the timeout programs may be notified of a silence.
const NOTIFIED_LIMIT: Duration = Duration::from_secs(3);
/// How long an excluded host may take to find that out and be back.
const BACK_LIMIT: Duration = Duration::from_secs(5);
/// How long the silence lasts beyond the verdict.
const HOLD: Duration = Duration::from_millis(40);
const FAILURES_MAX: u32 = 3;

/// How the host falls silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Silence {
    /// Both switches stop forwarding for it.
    Cut,
    /// Its agent gets SIGSTOP; the host itself lives.
    Stopped,
}

impl Silence {
    /// Begins the silence; returns the CLOCK_MONOTONIC time just before.
    fn begin(self, cluster: &Cluster<'_>) -> anyhow::Result<u64> {
        Ok(match self {
            Self::Cut => cluster.bed.isolate(SILENT)?.0,
            Self::Stopped => cluster.agents.pause(SILENT)?,
        })
    }

    fn end(self, cluster: &Cluster<'_>) -> anyhow::Result<u64> {
        Ok(match self {
            Self::Cut => cluster.bed.rejoin(SILENT)?.0,
            Self::Stopped => cluster.agents.resume(SILENT)?,
        })
    }
}

/// The times of one silence, ns from its beginning.
struct Trial {
    timeout_ns: i64,
    notified_ns: i64,
    /// When the silent host's lease was over, until which it could have acted; `None` without leases.
    lease_out_ns: Option<i64>,
    restored_ns: i64,
    /// When the new incarnation was up again on the watching host, or why it was not.
    back: Result<Back, String>,
    notified_elsewhere_ns: Option<i64>,
    observer_notified: bool,
}

struct Back {
    rejoined_ns: i64,
    up_ns: i64,
    up_elsewhere_ns: Option<i64>,
}

fn notified(host: usize) -> impl Fn(&Heard) -> Option<()> {
    move |heard| {
        let verdict = heard.death()?;
        let right = heard.host == host && is_host(&verdict.target, SILENT) && verdict.reason == Reason::HostSilent;
        right.then_some(())
    }
}

fn up(host: usize, incarnation: u32) -> impl Fn(&Heard) -> Option<()> {
    move |heard| (heard.host == host && heard.up(SILENT)? == incarnation).then_some(())
}

fn rejoined(heard: &Heard) -> Option<u32> {
    match heard.event {
        fide_client::Event::Rejoined { incarnation } if heard.host == SILENT => Some(incarnation),
        _ => None,
    }
}

/// Measures `n` silences, alternating between both kinds. `lease`: whether a silent host fences itself.
pub(super) fn measure(cluster: &mut Cluster<'_>, n: u32, lease: bool, results: &mut Results) -> anyhow::Result<()> {
    let rule = if lease { "lease" } else { "network" };
    let mut groups = [("cut", "both cables cut"), ("stopped", "its agent stopped")].map(|(key, title)| Group {
        key: format!("host_silent_{rule}_{key}"),
        title: format!("{title}, trust = {rule}"),
        series: ["since_cut", "over_timeout", "fenced_before", "back"].map(Series::new).into(),
    });
    let mut bar = Bar::new(&format!("a host falls silent, trust = {rule}"), n);
    let (mut seen, mut fenced, mut back, mut observed, mut in_a_row) = (0, 0, 0, 0, 0);
    let mut last = None;
    for number in 0..n {
        let index = (number % 2) as usize;
        let silence = [Silence::Cut, Silence::Stopped][index];
        let trial = if in_a_row < FAILURES_MAX {
            run(cluster, silence, lease).map_err(|error| format!("{error:#}"))
        } else {
            Err(format!("given up after {FAILURES_MAX} failures in a row"))
        };
        in_a_row = if trial.is_err() { in_a_row + 1 } else { 0 };
        let group = &mut groups[index];
        let [since_cut, over_timeout, fenced_before, healed] = &mut group.series[..] else {
            unreachable!("four series")
        };
        match trial {
            Ok(trial) => {
                seen += 1;
                observed += u32::from(trial.observer_notified);
                since_cut.add(Ok(trial.notified_ns));
                over_timeout.add(Ok(trial.notified_ns - trial.timeout_ns));
                if let Some(out_ns) = trial.lease_out_ns {
                    fenced += u32::from(out_ns <= trial.notified_ns);
                    fenced_before.add(Ok(trial.notified_ns - out_ns));
                }
                back += u32::from(trial.back.is_ok());
                if let (Silence::Cut, Some(timeline)) = (silence, trial.timeline()) {
                    results.timeline = Some(timeline);
                }
                if let Err(why) = &trial.back {
                    last = Some(why.clone());
                }
                healed.add(trial.back.map(|back| back.up_ns - trial.restored_ns));
            }
            Err(why) => {
                since_cut.add(Err(why.clone()));
                over_timeout.add(Err(why.clone()));
                healed.add(Err(why.clone()));
                last = Some(why);
            }
        }
        bar.step(group.summary());
    }
    let [cut, stopped] = &groups;
    let median = |group: &Group| group.series[0].quantile(0.5).map_or("-".to_owned(), super::results::time);
    bar.done(&format!("n {n:>3}   p50: cables cut {}   agent stopped {}", median(cut), median(stopped)));
    for mut group in groups {
        // Without leases a host does not fence itself.
        group.series.retain(|series| series.trials() > 0);
        results.silences.push(group);
    }
    let why = last.map(|why| format!("; the last trouble: {why}")).unwrap_or_default();
    let expected = |what: &str| format!("trust = {rule}: {what}");
    results.expect(&expected("another host is notified of each silent host"), seen == n, format!("{seen} of {n}{why}"));
    results.expect(&expected("the observer is notified too"), observed == seen, format!("{observed} of {seen}"));
    results.expect(
        &expected("once heard again it finds itself excluded and rejoins as a new incarnation"),
        back == seen,
        format!("{back} of {seen}"),
    );
    if lease {
        results.expect(
            &expected("it was fenced before anybody was notified"),
            fenced == seen,
            format!("{fenced} of {seen}"),
        );
    }
    Ok(())
}

fn run(cluster: &mut Cluster<'_>, silence: Silence, lease: bool) -> anyhow::Result<Trial> {
    cluster.await_formed()?;
    // If a majority gives the verdict, the slower of its two hosts counts.
    let deciding: &[usize] = if lease { &[VICTIMS, WATCHER] } else { &[WATCHER] };
    let timeout_ns = cluster.timeout_ns(deciding, SILENT)?;
    let start_ns = silence.begin(cluster)?;
    let trial = watch(cluster, silence, lease, start_ns, timeout_ns);
    if trial.is_err() {
        // The next trial needs the host back.
        silence.end(cluster)?;
    }
    trial
}

fn watch(
    cluster: &mut Cluster<'_>,
    silence: Silence,
    lease: bool,
    start_ns: u64,
    timeout_ns: i64,
) -> anyhow::Result<Trial> {
    let limit = Duration::from_nanos(timeout_ns.unsigned_abs()) + NOTIFIED_LIMIT;
    let from = |at_ns: u64| at_ns as i64 - start_ns as i64;
    let ears = &mut cluster.ears;
    let (notified_at_ns, ()) = ears.wait(start_ns, limit, notified(WATCHER)).context("not notified")?;
    // The lease is what the host itself last proved; it does not move while no other host hears it.
    let until_ns = ears.live(SILENT).with_table(|table| table.lease_until_ns());
    let lease_out_ns = (lease && until_ns != LEASE_FOREVER_NS).then(|| from(until_ns));
    std::thread::sleep(HOLD);
    let notified_elsewhere_ns = ears.wait(start_ns, NOTIFIED_LIMIT, notified(VICTIMS)).map(|(at_ns, ())| from(at_ns));
    let observer_notified = ears.wait(start_ns, NOTIFIED_LIMIT, notified(OBSERVER)).is_some();
    let early = ears.since(start_ns).find_map(rejoined);
    ensure!(early.is_none(), "the silent host rejoined before it could be heard");
    let restored_at_ns = silence.end(cluster)?;
    let back = await_back(cluster, restored_at_ns, start_ns);
    cluster.await_formed()?;
    if silence == Silence::Cut {
        cluster.heals.push(restored_at_ns..now_ns());
    }
    Ok(Trial {
        timeout_ns,
        notified_ns: from(notified_at_ns),
        lease_out_ns,
        restored_ns: from(restored_at_ns),
        back,
        notified_elsewhere_ns,
        observer_notified,
    })
}

fn await_back(cluster: &mut Cluster<'_>, restored_at_ns: u64, start_ns: u64) -> Result<Back, String> {
    let from = |at_ns: u64| at_ns as i64 - start_ns as i64;
    let ears = &mut cluster.ears;
    let (rejoined_at_ns, incarnation) = ears
        .wait(restored_at_ns, BACK_LIMIT, rejoined)
        .ok_or_else(|| format!("it did not rejoin within {BACK_LIMIT:?}"))?;
    let (up_at_ns, ()) = ears
        .wait(restored_at_ns, BACK_LIMIT, up(WATCHER, incarnation))
        .ok_or_else(|| format!("incarnation {incarnation} was not up elsewhere within {BACK_LIMIT:?}"))?;
    let up_elsewhere = ears.wait(restored_at_ns, BACK_LIMIT, up(VICTIMS, incarnation));
    Ok(Back {
        rejoined_ns: from(rejoined_at_ns),
        up_ns: from(up_at_ns),
        up_elsewhere_ns: up_elsewhere.map(|(at_ns, ())| from(at_ns)),
    })
}

impl Trial {
    /// The data of the drawing; it exists only with a lease and after the host came back.
    fn timeline(&self) -> Option<Timeline> {
        let back = self.back.as_ref().ok()?;
        Some(Timeline {
            timeout_ns: self.timeout_ns,
            lease_out_ns: self.lease_out_ns?,
            notified_ns: [self.notified_elsewhere_ns, Some(self.notified_ns)],
            restored_ns: self.restored_ns,
            rejoined_ns: back.rejoined_ns,
            up_ns: [back.up_elsewhere_ns, Some(back.up_ns)],
        })
    }
}
