// SPDX-License-Identifier: Apache-2.0
//! Being right: events that must not be taken for a death, such as a cut cable, a stopped observer, or a
//! machine under load.

use std::time::{Duration, Instant};

use fide_client::{Event, now_ns};
use fide_testbed::{CpuLoad, FloodSpec, MAX_FLOOD_PACKETS, figures::Figure, sys::usable_cores};

use super::{
    cluster::{Cluster, OBSERVER, RATE_MBIT, SILENT, VICTIMS, WATCHER},
    deaths::{Kind, SMALL, Scene},
    ears::Heard,
    results::{Results, time},
    say::Bar,
};

/// How long one cable stays cut, and how long a host stays stopped.
const CUT: Duration = Duration::from_secs(2);
/// How long the observer's agent stays stopped.
const PAUSE: Duration = Duration::from_secs(1);
/// How long news may take to arrive.
const NEWS_LIMIT: Duration = Duration::from_secs(3);
/// How long to wait for wrong events after a fault has healed.
const AFTER: Duration = Duration::from_millis(300);
/// Plane whose cable is cut.
const PLANE: usize = 1;
/// More traffic than a switch port carries.
const FLOOD_MBIT: u32 = RATE_MBIT * 6 / 5;
/// One process is killed per interval, so that the load also has to detect true deaths.
const KILL_EVERY: Duration = Duration::from_secs(1);

fn listed(wrong: &[String]) -> String {
    match wrong {
        [] => "no verdict".to_owned(),
        [first, ..] => format!("{} verdicts, the first: {first}", wrong.len()),
    }
}

/// Cuts one of two cables.
pub(super) fn one_cable(cluster: &mut Cluster<'_>, results: &mut Results) -> anyhow::Result<()> {
    cluster.await_formed()?;
    let (cut_ns, _) = cluster.bed.cut(SILENT, PLANE)?;
    let plane_of = |host: u16, plane: u8| usize::from(host) == SILENT && usize::from(plane) == PLANE;
    let lost = cluster.ears.wait(cut_ns, NEWS_LIMIT, |heard| match heard.event {
        Event::PathLost { host_id, plane } if heard.host == WATCHER && plane_of(host_id, plane) => Some(()),
        _ => None,
    });
    std::thread::sleep(CUT.saturating_sub(Duration::from_nanos(now_ns() - cut_ns)));
    let (healed_ns, _) = cluster.bed.restore(SILENT, PLANE)?;
    let restored = cluster.ears.wait(healed_ns, NEWS_LIMIT, |heard| match heard.event {
        Event::PathRestored { host_id, plane } if heard.host == WATCHER && plane_of(host_id, plane) => Some(()),
        _ => None,
    });
    std::thread::sleep(AFTER);
    let wrong: Vec<String> = cluster.ears.since(cut_ns).filter_map(Heard::death_text).collect();
    let after = |at: Option<(u64, ())>, from_ns: u64| {
        at.map_or("never notified".to_owned(), |(at_ns, ())| {
            format!("notified after {}", time(at_ns as i64 - from_ns as i64))
        })
    };
    results.expect(
        &format!("one cable of two cut for {CUT:?}: path_lost, and no host declared dead"),
        lost.is_some() && wrong.is_empty(),
        format!("{}; {}", after(lost, cut_ns), listed(&wrong)),
    );
    results.expect("plugged in again: path_restored", restored.is_some(), after(restored, healed_ns));
    Ok(())
}

/// Stops the observer: its own lateness must not count as the death of another host.
pub(super) fn stopped_observer(cluster: &mut Cluster<'_>, results: &mut Results) -> anyhow::Result<()> {
    cluster.await_formed()?;
    let stopped_ns = cluster.agents.pause(OBSERVER)?;
    std::thread::sleep(PAUSE);
    cluster.agents.resume(OBSERVER)?;
    std::thread::sleep(PAUSE);
    let wrong: Vec<String> = cluster.ears.since(stopped_ns).filter_map(Heard::death_text).collect();
    let withheld = cluster
        .ears
        .since(stopped_ns)
        .filter(|heard| heard.host == OBSERVER && matches!(heard.event, Event::ObserverStalled { .. }))
        .count();
    let status = cluster.status(OBSERVER)?;
    results.expect(
        &format!("the observer's agent stopped for {PAUSE:?}: it declares no host dead"),
        wrong.is_empty(),
        format!(
            "{}; notified {withheld} times that it had stalled, suspicions withheld {}",
            listed(&wrong),
            status["counters"]["suspicions_withheld"]
        ),
    );
    Ok(())
}

/// Stops a host: it must be notified of its stall before it can act on old knowledge.
pub(super) fn stopped_host(cluster: &mut Cluster<'_>, results: &mut Results) -> anyhow::Result<()> {
    cluster.await_formed()?;
    let stopped_ns = cluster.agents.pause(SILENT)?;
    std::thread::sleep(CUT);
    // The answer that a program on the host would get now.
    let fenced = cluster.ears.live(SILENT).fenced();
    let resumed_ns = cluster.agents.resume(SILENT)?;
    let notified = cluster
        .ears
        .wait(stopped_ns, NEWS_LIMIT, |heard| (heard.host == SILENT && heard.event == Event::Fenced).then_some(()));
    let rejoined = cluster.ears.wait(resumed_ns, NEWS_LIMIT, |heard| match heard.event {
        Event::Rejoined { incarnation } if heard.host == SILENT => Some(incarnation),
        _ => None,
    });
    let own: Vec<String> =
        cluster.ears.since(stopped_ns).filter(|heard| heard.host == SILENT).filter_map(Heard::death_text).collect();
    let seen = format!(
        "fenced() says {fenced}; {}; {}; by it {}",
        if notified.is_some() { "notified fenced" } else { "not notified fenced" },
        match &rejoined {
            Some((at_ns, incarnation)) =>
                format!("back as incarnation {incarnation} after {}", time(*at_ns as i64 - resumed_ns as i64)),
            None => "did not rejoin".to_owned(),
        },
        listed(&own),
    );
    results.expect(
        &format!("a host stopped for {CUT:?} finds itself fenced and rejoins"),
        fenced && rejoined.is_some() && own.is_empty(),
        seen,
    );
    Ok(())
}

/// Loads every core, floods both planes, and kills a process now and then.
pub(super) fn stretch(
    cluster: &mut Cluster<'_>,
    scene: &mut Scene<'_>,
    span: Duration,
    results: &mut Results,
) -> anyhow::Result<()> {
    cluster.await_formed()?;
    let kind = Kind { key: "sigkill_under_load", title: "SIGKILL under load and flood", ..SMALL[0] };
    let mut group = Scene::empty(kind);
    let before = scene.tally.clone();
    let seconds = u32::try_from(span.as_secs()).unwrap_or(u32::MAX).max(1);
    let mut bar = Bar::new("every core taken, planes flooded", seconds);
    let start_ns = now_ns();
    let bound_ns = (span + Duration::from_secs(5)).as_nanos() as u64;
    let load = CpuLoad::start(&usable_cores(), 1, bound_ns)?;
    let mut floods = Vec::new();
    for plane in 0..cluster.bed.planes() {
        for (from, to) in [(SILENT, WATCHER), (WATCHER, VICTIMS)] {
            floods.push(cluster.bed.flood(FloodSpec {
                from,
                to,
                plane,
                rate_mbit: FLOOD_MBIT,
                duration_ns: bound_ns,
                max_packets: MAX_FLOOD_PACKETS,
            })?);
        }
    }
    let start = Instant::now();
    while start.elapsed() < span {
        let next = Instant::now() + KILL_EVERY;
        scene.add_trial(kind, &mut group);
        bar.step(group.summary());
        std::thread::sleep(next.min(start + span).saturating_duration_since(Instant::now()));
    }
    let took = start.elapsed();
    let sent: u64 = floods.into_iter().map(|flood| flood.stop().packets).sum();
    load.stop();
    bar.done(&group.summary());
    std::thread::sleep(AFTER);
    let wrong: Vec<String> = cluster.ears.since(start_ns).filter_map(Heard::death_text).collect();
    let killed = scene.tally.deaths - before.deaths;
    let seen = scene.tally.seen - before.seen;
    let pace = sent / took.as_secs().max(1);
    results.counts.push(
        Figure::count("false_verdicts_under_load", wrong.len() as u64, took.as_secs())
            .remark(format!("in {} s with every core taken and {pace} packets a second of flood", took.as_secs())),
    );
    results.expect(
        &format!("no false verdict in {} s with every core taken and both planes flooded", took.as_secs()),
        wrong.is_empty(),
        format!("{}; {pace} packets/s of flood", listed(&wrong)),
    );
    let why = scene.tally.wrong.as_ref().filter(|_| seen != killed).map(|why| format!("; {why}")).unwrap_or_default();
    results.expect(
        "another host is notified of the processes killed meanwhile",
        seen == killed,
        format!("{seen} of {killed}{why}"),
    );
    results.deaths.push(group);
    Ok(())
}

/// Checks a whole run with one set of agents. Without leases, two kinds of wrong verdicts are possible by
/// design, and only noted: verdicts that a cut leaves behind, and verdicts on hosts whose own agents report
/// that they did not run for most of that silence.
pub(super) fn no_other_verdict(cluster: &mut Cluster<'_>, lease: bool, results: &mut Results) -> anyhow::Result<()> {
    let rule = if lease { "lease" } else { "network" };
    let (mut wrong, mut late, mut healing) = (Vec::new(), Vec::new(), Vec::new());
    for verdict in cluster.wrong_verdicts() {
        match (lease, verdict.healing, verdict.stalled) {
            (false, true, _) => healing.push(verdict.text),
            (false, false, true) => late.push(verdict.text),
            _ => wrong.push(verdict.text),
        }
    }
    results.counts.push(Figure::count(&format!("false_verdicts_{rule}"), wrong.len() as u64, 1));
    results.expect(
        &format!("trust = {rule}: no host that ran on time and was not cut off was declared dead"),
        wrong.is_empty(),
        listed(&wrong),
    );
    if !lease {
        let cuts = cluster.heals.len();
        results.counts.push(Figure::count("late_hosts_held_dead_network", late.len() as u64, 1));
        results.counts.push(Figure::count("verdicts_left_by_cuts_network", healing.len() as u64, cuts as u64));
        if let Some(first) = late.first() {
            results.note(format!(
                "trust = network: {} verdicts on hosts whose own agents report that they did not run for most of that silence; \
                 under this rule, a host that runs later than the timeout is dead; the first: {first}",
                late.len()
            ));
        }
        if !healing.is_empty() {
            results.note(format!(
                "trust = network: the host that was cut off declared all others dead, so after {cuts} cuts these came back as \
                 new incarnations too ({} verdicts); leases and majorities prevent that",
                healing.len()
            ));
        }
    }
    Ok(())
}
