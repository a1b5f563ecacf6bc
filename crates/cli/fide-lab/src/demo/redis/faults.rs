// SPDX-License-Identifier: Apache-2.0
//! Leaders are lost one after the other; each comes back before the next one is lost.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use fide_sys::clock::mono_ns;
use serde_json::Value;

use super::{
    gap::{CutOff, Fault, Gap},
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
    let writes = shared.count();
    let mut stopped_ns = None;
    if fault == Fault::Stopped {
        stopped_ns = Some(site.server(leader)?.pause());
        view.say(&format!("h{leader}, the leader, is stopped (SIGSTOP): nothing is acknowledged meanwhile"));
        thread::sleep(STOPPED);
    }
    let lost_ns = match fault {
        Fault::Cut => site.bed.isolate(leader)?.0,
        Fault::Killed | Fault::Stopped => site.kill(leader)?,
    };
    let acknowledged = await_some(|| shared.first_by_another(writes, lost_ns, leader))
        .with_context(|| format!("nothing was acknowledged within {LIMIT:?} after h{leader} was {}", fault.name()))?;
    let mut gap = Gap {
        fault,
        leader,
        next: acknowledged.host,
        stopped_ns: stopped_ns.unwrap_or(lost_ns),
        lost_ns,
        known_ns: 0,
        levelled_ns: 0,
        leads_ns: 0,
        decided_ns: 0,
        acknowledged_ns: acknowledged.at_ns,
        back_ns: 0,
    };
    stages(site, &mut gap)?;
    let cut_off = (fault == Fault::Cut).then(|| ask_cut_off(site, leader));
    view.gap(&gap);
    thread::sleep(GONE);
    match fault {
        Fault::Cut => drop(site.bed.rejoin(leader)?),
        Fault::Killed | Fault::Stopped => site.add(leader)?,
    }
    site.await_ready().with_context(|| format!("h{leader} does not come back"))?;
    gap.back_ns = mono_ns();
    view.back(&gap);
    Ok((gap, cut_off))
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

/// Asks the leader that was cut off for a value that the clients have overwritten by now.
fn ask_cut_off(site: &Site, host: usize) -> CutOff {
    match site.ask(host, &["GET", "writer:0"]) {
        Ok(answer) if !answer.starts_with('-') => CutOff::Answered(answer),
        // An error, or no answer at all.
        _ => CutOff::Refused,
    }
}
