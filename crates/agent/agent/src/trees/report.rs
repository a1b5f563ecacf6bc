// SPDX-License-Identifier: Apache-2.0
//! Telling the controller who is heard on one tree only.

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

/// How long one report may take; what is missed longer is reported again.
const LIMIT: Duration = Duration::from_secs(10);
/// What is still missed is told again: the tree that replaced it may miss this host too.
const AGAIN: Duration = Duration::from_millis(40);
/// And the same tree after this: the controller that was told may have died with it.
const ANEW: Duration = Duration::from_secs(5);
/// Reports in one request; the others are told with the next.
const REPORTS_MAX: usize = 256;
const _: () = assert!(REPORTS_MAX <= TAKEN_MAX);

/// A tree of another host's lane.
type Key = (Source, u8);

pub(super) fn run(mut talk: Talk, reports: &Receiver<Report>) {
    // Refused before Linux 6.12: it takes its turn then.
    let _ = fide_client::wake_eagerly();
    // What is missed now, and the generation that was reported last and when.
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
        for (key, told) in &missed {
            let Some(generation) = talk.generation(*key) else { continue };
            if told.is_none_or(|(of, at)| of != generation || at.elapsed() >= ANEW) {
                all.push((*key, Seen::Lost));
            }
        }
        // All at once: what breaks one tree breaks others.
        let told = tell(&mut talk, &all);
        for (key, generation) in told {
            if let Some(place) = missed.get_mut(&key) {
                *place = Some((generation, now));
            }
        }
    }
}

impl Talk {
    /// Of the tree that was told last.
    fn generation(&self, (source, plane): Key) -> Option<u32> {
        lock(&self.known).lanes.get(&source)?.generations.get(usize::from(plane)).copied().flatten()
    }
}

/// Tells the controller; what it has heard, with the generation that it was told of.
fn tell(talk: &mut Talk, all: &[(Key, Seen)]) -> Vec<(Key, u32)> {
    let mut told = Vec::new();
    let mut reports = Vec::new();
    for (key, seen) in all.iter().take(REPORTS_MAX) {
        let ((host, label), plane) = *key;
        // Of a tree that the lane does not have there is nothing to tell.
        let Some(generation) = talk.generation(*key) else { continue };
        let Some(lane) = lock(&talk.known).lanes.get(&(host, label)).map(|told| told.lane) else { continue };
        let missing = !matches!(seen, Seen::Restored | Seen::Copies(Finding::Back));
        let how = match seen {
            Seen::Lost | Seen::Copies(Finding::Missing) => "does not come",
            Seen::Copies(Finding::Slow) => "comes later than it may",
            Seen::Restored | Seen::Copies(Finding::Back) => "comes again",
        };
        let sender = talk.config.member(host).name.as_str();
        tracing::info!("tree {plane} of lane {lane} from {sender} {how}: the controller is told");
        reports.push(LaneReport { lane, report: TreeReport { tree: plane, generation, missing } });
        told.push((*key, generation));
    }
    if reports.is_empty() {
        return told;
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
            told
        }
        // Not again for these generations.
        Ok(answered) => {
            tracing::warn!("the controller takes no reports: {}", answered.message());
            told
        }
        Err(error) => {
            tracing::warn!("the controller could not be told that {count} trees are missed: {error}");
            Vec::new()
        }
    }
}
