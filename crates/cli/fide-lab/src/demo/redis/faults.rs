// SPDX-License-Identifier: Apache-2.0
//! Leaders are lost one after the other; each comes back before the next one is lost.

use std::{
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use fide_sys::clock::mono_ns;
use fide_testbed::Stops;
use serde_json::Value;

use super::{
    cut_off::{self, CutOff},
    gap::{Fault, Gap},
    shared::Shared,
    site::Site,
    view::View,
};

/// A client is served by the next leader within this.
const LIMIT: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(1);
/// How long a leader is stopped before it is killed.
const STOPPED: Duration = Duration::from_millis(300);
/// A killed server is started again after this: the others go on without it.
const GONE: Duration = Duration::from_millis(300);

/// Loses a leader, and waits until its host's server follows again.
pub(super) fn lose(
    site: &mut Site,
    shared: &Shared,
    fault: Fault,
    view: &View<'_>,
) -> anyhow::Result<(Gap, Option<CutOff>)> {
    let leader = site.await_ready()?;
    let (mut gap, cut_off) = match fault {
        Fault::Cut => {
            let (gap, cut_off) = cut(site, shared, leader, view)?;
            (gap, Some(cut_off))
        }
        Fault::Killed | Fault::Stopped => (kill(site, shared, leader, fault, view)?, None),
    };
    site.await_ready().with_context(|| format!("h{leader} does not come back"))?;
    gap.back_ns = mono_ns();
    view.back(&gap);
    Ok((gap, cut_off))
}

/// Kills the leader, and starts its server again once another one leads.
fn kill(site: &mut Site, shared: &Shared, leader: usize, fault: Fault, view: &View<'_>) -> anyhow::Result<Gap> {
    let writes = shared.count();
    let mut stopped_ns = None;
    if fault == Fault::Stopped {
        stopped_ns = Some(site.server(leader)?.pause());
        view.say(&format!("h{leader}, the leader, is stopped (SIGSTOP): nothing is acknowledged meanwhile"));
        thread::sleep(STOPPED);
    }
    let lost_ns = site.kill(leader)?;
    let mut gap = await_next(site, shared, fault, leader, writes, lost_ns)?;
    gap.stopped_ns = stopped_ns.unwrap_or(lost_ns);
    view.gap(&gap);
    thread::sleep(GONE);
    site.add(leader)?;
    Ok(gap)
}

/// Cuts the leader off, and connects it again once another one leads and this one has refused a client. It is asked
/// all the time in between.
fn cut(site: &Site, shared: &Shared, leader: usize, view: &View<'_>) -> anyhow::Result<(Gap, CutOff)> {
    let (socket, writes) = (site.server(leader)?.socket(), shared.count());
    let (stop, refused) = (AtomicBool::new(false), AtomicBool::new(false));
    let (lost_ns, _) = site.bed.isolate(leader)?;
    let (gap, asked) = thread::scope(|scope| -> anyhow::Result<_> {
        let stops = Stops(&stop);
        let asks = scope.spawn(|| cut_off::ask(&socket, &stop, &refused));
        let gap = await_next(site, shared, Fault::Cut, leader, writes, lost_ns)?;
        view.gap(&gap);
        thread::sleep(GONE);
        // Silence alone would not show that the server was there. The check says so if it has refused nothing.
        await_some(|| refused.load(Relaxed).then_some(()));
        drop(stops);
        let asked = asks.join().map_err(|_| anyhow!("the thread that asks h{leader} has panicked"))?;
        Ok((gap, asked))
    })?;
    site.bed.rejoin(leader)?;
    Ok((gap, CutOff::judge(&asked, gap.known_ns)))
}

/// Waits until another server acknowledges a write, and takes the stages up to it.
fn await_next(
    site: &Site,
    shared: &Shared,
    fault: Fault,
    leader: usize,
    writes: usize,
    lost_ns: u64,
) -> anyhow::Result<Gap> {
    let acknowledged = await_some(|| shared.first_by_another(writes, lost_ns, leader))
        .with_context(|| format!("nothing was acknowledged within {LIMIT:?} after h{leader} was {}", fault.name()))?;
    let mut gap = Gap {
        fault,
        leader,
        next: acknowledged.host,
        stopped_ns: lost_ns,
        lost_ns,
        known_ns: 0,
        levelled_ns: 0,
        leads_ns: 0,
        decided_ns: 0,
        acknowledged_ns: acknowledged.at_ns,
        back_ns: 0,
    };
    stages(site, &mut gap)?;
    Ok(gap)
}

fn await_some<T>(mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let until = Instant::now() + LIMIT;
    loop {
        let found = look();
        if found.is_some() || Instant::now() > until {
            return found;
        }
        thread::sleep(LOOK);
    }
}

/// Takes the stages from the next leader's FIDE.STATUS.
fn stages(site: &Site, gap: &mut Gap) -> anyhow::Result<()> {
    let mut said = Value::Null;
    let found = await_some(|| {
        said = site.status(gap.next);
        let known_ns = said["last_failover_at_ns"].as_u64().filter(|at_ns| *at_ns >= gap.lost_ns)?;
        let after = |name: &str| {
            let us = said["last_failover_us"][name].as_f64()?;
            Some(known_ns + (us * 1000.0) as u64)
        };
        Some((known_ns, after("levelled")?, after("leads")?, after("first_write")?))
    });
    let Some((known_ns, levelled_ns, leads_ns, decided_ns)) = found else {
        bail!(
            "h{} leads, and has not taken over since h{} was lost, so that one led no more; its FIDE.STATUS: {said}",
            gap.next,
            gap.leader
        );
    };
    *gap = Gap { known_ns, levelled_ns, leads_ns, decided_ns, ..*gap };
    Ok(())
}
