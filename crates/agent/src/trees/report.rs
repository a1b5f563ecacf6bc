// SPDX-License-Identifier: Apache-2.0
//! Telling the controller who is heard on one tree only.

use std::{
    collections::HashMap,
    sync::mpsc::Receiver,
    time::{Duration, Instant},
};

use fide_controller::handler::Method;
use serde_json::json;

use fide_lane::service::Finding;

use super::{Report, Seen, Source, Talk, lock};

/// How long one report may take; what is missed longer is reported again.
const LIMIT: Duration = Duration::from_secs(10);
/// What is still missed is told again: the tree that replaced it may miss this host too.
const AGAIN: Duration = Duration::from_millis(40);
/// And the same tree after this: the controller that was told may have died with it.
const ANEW: Duration = Duration::from_secs(5);

pub(super) fn run(mut talk: Talk, reports: &Receiver<Report>) {
    // Refused before Linux 6.12: it takes its turn then.
    let _ = fide_client::wake_eagerly();
    // What is missed now, and the generation that was reported last and when.
    let mut missed: HashMap<(Source, u8), Option<(u32, Instant)>> = HashMap::new();
    loop {
        let wait = if missed.is_empty() { Duration::from_secs(3600) } else { AGAIN };
        match reports.recv_timeout(wait) {
            Ok(report) => {
                for report in std::iter::once(report).chain(reports.try_iter()) {
                    let key = ((report.host, report.label), report.plane);
                    match report.seen {
                        Seen::Lost => {
                            missed.entry(key).or_insert(None);
                        }
                        Seen::Restored if missed.remove(&key).flatten().is_some() => {
                            tell(&mut talk, key, report.seen);
                        }
                        Seen::Restored => {}
                        Seen::Copies(_) => {
                            tell(&mut talk, key, report.seen);
                        }
                    }
                }
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
        }
        for (key, told) in &mut missed {
            let Some(generation) = talk.generation(*key) else { continue };
            let known = told.is_some_and(|(of, at)| of == generation && at.elapsed() < ANEW);
            if !known && tell(&mut talk, *key, Seen::Lost) {
                *told = Some((generation, Instant::now()));
            }
        }
    }
}

impl Talk {
    /// Of the tree that was told last.
    fn generation(&self, (source, plane): (Source, u8)) -> Option<u32> {
        lock(&self.known).lanes.get(&source)?.generations.get(usize::from(plane)).copied().flatten()
    }
}

/// Whether the controller has heard it.
fn tell(talk: &mut Talk, key: (Source, u8), seen: Seen) -> bool {
    let ((host, label), plane) = key;
    // Of a tree that the lane does not have there is nothing to tell.
    let Some(generation) = talk.generation(key) else { return false };
    let Some(lane) = lock(&talk.known).lanes.get(&(host, label)).map(|told| told.lane) else { return false };
    let missing = !matches!(seen, Seen::Restored | Seen::Copies(Finding::Back));
    let how = match seen {
        Seen::Lost | Seen::Copies(Finding::Missing) => "does not come",
        Seen::Copies(Finding::Slow) => "comes later than it may",
        Seen::Restored | Seen::Copies(Finding::Back) => "comes again",
    };
    let sender = talk.config.member(host).name.as_str();
    tracing::info!("tree {plane} of lane {lane} from {sender} {how}: the controller is told");
    let body = json!({"tree": plane, "generation": generation, "missing": missing});
    let path = format!("/v1/lanes/{lane}/reports");
    let answered = lock(&talk.ordered).change(&mut talk.caller, Method::Post, &path, &body, LIMIT);
    match answered {
        Ok(answered) if answered.status == 200 => true,
        Ok(answered) => {
            tracing::warn!("the controller does not take a report: {}", answered.message());
            // Not again for this generation.
            true
        }
        Err(error) => {
            tracing::warn!("the controller could not be told that plane {plane} of host {host} is missed: {error}");
            false
        }
    }
}
