// SPDX-License-Identifier: Apache-2.0
//! On which rung of each host ladder this agent stands, and why not on a better one.

use fide_agent_api::status::{Rung, Rungs};
use fide_net::isolation::{Measure, Measures};

/// Every ladder with its name, for people.
pub fn all(rungs: &Rungs) -> impl Iterator<Item = (String, &Rung)> {
    let planes = |name: &'static str, rungs: &'_ [Rung]| {
        (0..rungs.len()).map(move |plane| format!("{name}, plane {plane}")).collect::<Vec<_>>()
    };
    planes("receive", &rungs.receive)
        .into_iter()
        .zip(&rungs.receive)
        .chain(planes("send", &rungs.send).into_iter().zip(&rungs.send))
        .chain([
            ("exit watch".to_owned(), &rungs.exit_watch),
            ("events to clients".to_owned(), &rungs.events),
            ("silence timer".to_owned(), &rungs.timer),
            ("jitter bound".to_owned(), &rungs.bound),
            ("core".to_owned(), &rungs.core),
            ("priority".to_owned(), &rungs.priority),
            ("memory".to_owned(), &rungs.memory),
            ("c-states".to_owned(), &rungs.c_states),
            ("isolation".to_owned(), &rungs.isolated),
        ])
}

/// Takes what the loop's thread was granted.
pub fn isolate(rungs: &mut Rungs, isolation: &Measures) {
    let rung = |measure: &Measure| match measure {
        Measure::Held(text) => Rung::new(text.clone(), None),
        Measure::Missing(text) => Rung::new("none", Some(text.clone())),
    };
    rungs.core = rung(&isolation.core);
    rungs.priority = rung(&isolation.priority);
    rungs.memory = rung(&isolation.memory);
    rungs.c_states = rung(&isolation.c_states);
    rungs.isolated = rung(&isolation.isolated);
}
