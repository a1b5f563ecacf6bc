// SPDX-License-Identifier: Apache-2.0
//! Reports to the controller which hosts are heard on one tree only.

use std::{
    collections::HashMap,
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use fide_controller_api::Method;
use fide_controller_api::lane::{LaneReport, RefusedReport, Reported, Reports, TreeReport};
use fide_controller_api::limits::REPORTS_MAX as TAKEN_MAX;
use fide_controller_api::paths;
use fide_lane::Finding;

use super::{Report, Seen, Source, Talk, lock};

/// How long one report may take; a tree that is still missed is reported again.
const LIMIT: Duration = Duration::from_secs(10);
/// How often missed trees are checked: the tree that replaced one may not reach this host either.
const AGAIN: Duration = Duration::from_millis(40);
/// When the same tree is reported again: the controller that had the report may have died with it.
const ANEW: Duration = Duration::from_secs(5);
/// Reports in one request; further ones go with the next.
const REPORTS_MAX: usize = 256;
const _: () = assert!(REPORTS_MAX <= TAKEN_MAX);

/// A tree of another host's lane.
type Key = (Source, u8);

pub(super) fn run(mut talk: Talk, reports: &Receiver<Report>) {
    // The kernel refuses before Linux 6.12: the thread then waits for its turn.
    let _ = fide_client::wake_eagerly();
    // The trees that are missed now: generation and time of the last report.
    let mut missed: HashMap<Key, Option<(u32, Instant)>> = HashMap::new();
    loop {
        let wait = if missed.is_empty() { Duration::from_secs(3600) } else { AGAIN };
        let mut all: Vec<(Key, Seen)> = Vec::new();
        match reports.recv_timeout(wait) {
            Ok(report) => {
                for report in std::iter::once(report).chain(reports.try_iter()) {
                    let key = ((report.host, report.label), report.plane);
                    match report.seen {
                        Seen::Lost => {
                            missed.entry(key).or_insert(None);
                        }
                        Seen::Restored if missed.remove(&key).flatten().is_some() => all.push((key, report.seen)),
                        Seen::Restored => {}
                        Seen::Copies(_) => all.push((key, report.seen)),
                    }
                }
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
        }
        let now = Instant::now();
        for (key, reported) in &missed {
            let Some(generation) = talk.generation(*key) else { continue };
            if reported.is_none_or(|(of, at)| of != generation || at.elapsed() >= ANEW) {
                all.push((*key, Seen::Lost));
            }
        }
        // All in one request: what breaks one tree breaks others.
        let reported = send(&mut talk, &all);
        for (key, generation) in reported {
            if let Some(place) = missed.get_mut(&key) {
                *place = Some((generation, now));
            }
        }
    }
}

impl Talk {
    /// The newest announced generation of a tree.
    fn generation(&self, (source, plane): Key) -> Option<u32> {
        lock(&self.known).lanes.get(&source)?.generations.get(usize::from(plane)).copied().flatten()
    }
}

/// Sends reports to the controller. Returns those that it has received, each with its generation.
fn send(talk: &mut Talk, all: &[(Key, Seen)]) -> Vec<(Key, u32)> {
    let mut reported = Vec::new();
    let mut reports = Vec::new();
    for (key, seen) in all.iter().take(REPORTS_MAX) {
        let ((host, label), plane) = *key;
        // A tree that the lane does not have is not reported.
        let Some(generation) = talk.generation(*key) else { continue };
        let Some(lane) = lock(&talk.known).lanes.get(&(host, label)).map(|announced| announced.lane) else { continue };
        let missing = !matches!(seen, Seen::Restored | Seen::Copies(Finding::Back));
        let how = match seen {
            Seen::Lost | Seen::Copies(Finding::Missing) => "does not come",
            Seen::Copies(Finding::Slow) => "comes later than it may",
            Seen::Restored | Seen::Copies(Finding::Back) => "comes again",
        };
        let sender = talk.config.member(host).name.as_str();
        tracing::info!("tree {plane} of lane {lane} from {sender} {how}: reported to the controller");
        reports.push(LaneReport { lane, report: TreeReport { tree: plane, generation, missing } });
        reported.push((*key, generation));
    }
    if reports.is_empty() {
        return reported;
    }
    let count = reports.len();
    let body = Reports { reports };
    let answered = lock(&talk.ordered).change(&mut talk.caller, Method::Post, paths::REPORTS, &body, LIMIT);
    match answered {
        Ok(answered) if answered.is_ok() => {
            let refused = answered.read().map_or_else(|_| Vec::new(), |Reported { refused }| refused);
            for RefusedReport { lane, error } in refused {
                tracing::warn!("the controller does not take a report of lane {lane}: {}", error.message);
            }
            reported
        }
        // These generations are not reported again.
        Ok(answered) => {
            tracing::warn!("the controller takes no reports: {}", answered.message());
            reported
        }
        Err(error) => {
            tracing::warn!("{count} reports did not reach the controller: {error}");
            Vec::new()
        }
    }
}
