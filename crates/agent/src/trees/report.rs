// SPDX-License-Identifier: Apache-2.0
//! Telling the controller who is heard on one tree only.

use std::{collections::HashMap, sync::mpsc::Receiver, time::Duration};

use fide_controller::handler::Method;
use serde_json::json;

use super::{Report, Talk, lock};

/// How long one report may take; what is missed longer is reported again.
const LIMIT: Duration = Duration::from_secs(10);
/// What is still missed is told again: the tree that replaced it may miss this host too.
const AGAIN: Duration = Duration::from_millis(40);

pub(super) fn run(mut talk: Talk, reports: &Receiver<Report>) {
    // Refused before Linux 6.12: it takes its turn then.
    let _ = fide_client::wake_eagerly();
    // What is missed now, and the generation that was reported last.
    let mut missed: HashMap<(u16, u8), Option<u32>> = HashMap::new();
    loop {
        let wait = if missed.is_empty() { Duration::from_secs(3600) } else { AGAIN };
        match reports.recv_timeout(wait) {
            Ok(report) => {
                for report in std::iter::once(report).chain(reports.try_iter()) {
                    let key = (report.host, report.plane);
                    if report.missing {
                        missed.entry(key).or_insert(None);
                    } else if missed.remove(&key).flatten().is_some() {
                        tell(&mut talk, report);
                    }
                }
            }
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {}
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => return,
        }
        for ((host, plane), told) in &mut missed {
            let generation = talk.generation(*host, *plane);
            if generation.is_some()
                && *told != generation
                && tell(&mut talk, Report { host: *host, plane: *plane, missing: true })
            {
                *told = generation;
            }
        }
    }
}

impl Talk {
    /// Of the tree that was told last.
    fn generation(&self, host: u16, plane: u8) -> Option<u32> {
        lock(&self.known).lanes.get(&host).map(|(_, generations)| generations[usize::from(plane)])
    }
}

/// Whether the controller has heard it.
fn tell(talk: &mut Talk, Report { host, plane, missing }: Report) -> bool {
    let Some((lane, generations)) = lock(&talk.known).lanes.get(&host).copied() else { return false };
    let body = json!({"tree": plane, "generation": generations[usize::from(plane)], "missing": missing});
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
