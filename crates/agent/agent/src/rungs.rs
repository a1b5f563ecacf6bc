// SPDX-License-Identifier: Apache-2.0
//! On which rung of each host ladder this agent stands, and why not on a better one.

use fide_net::isolation::{Measure, Measures};
use serde::Serialize;

/// One ladder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rung {
    /// What is used.
    pub used: String,
    /// Why nothing better is; `None` on the best rung.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
}

impl Rung {
    /// A rung, with the reason for a better one's absence.
    pub fn new(used: impl Into<String>, fell_back: Option<String>) -> Self {
        Self { used: used.into(), fell_back }
    }
}

/// All ladders of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rungs {
    /// One per plane.
    pub receive: Vec<Rung>,
    /// One per plane.
    pub send: Vec<Rung>,
    pub exit_watch: Rung,
    pub events: Rung,
    pub timer: Rung,
    /// What the timeout stands on.
    pub bound: Rung,
    pub core: Rung,
    pub priority: Rung,
    pub memory: Rung,
    pub c_states: Rung,
    pub isolated: Rung,
}

impl Rungs {
    /// Every ladder with its name, for people.
    pub fn all(&self) -> impl Iterator<Item = (String, &Rung)> {
        let planes = |name: &'static str, rungs: &'_ [Rung]| {
            (0..rungs.len()).map(move |plane| format!("{name}, plane {plane}")).collect::<Vec<_>>()
        };
        planes("receive", &self.receive)
            .into_iter()
            .zip(&self.receive)
            .chain(planes("send", &self.send).into_iter().zip(&self.send))
            .chain([
                ("exit watch".to_owned(), &self.exit_watch),
                ("events to clients".to_owned(), &self.events),
                ("silence timer".to_owned(), &self.timer),
                ("jitter bound".to_owned(), &self.bound),
                ("core".to_owned(), &self.core),
                ("priority".to_owned(), &self.priority),
                ("memory".to_owned(), &self.memory),
                ("c-states".to_owned(), &self.c_states),
                ("isolation".to_owned(), &self.isolated),
            ])
    }

    /// Takes what the loop's thread was granted.
    pub fn isolate(&mut self, isolation: &Measures) {
        let rung = |measure: &Measure| match measure {
            Measure::Held(text) => Rung::new(text.clone(), None),
            Measure::Missing(text) => Rung::new("none", Some(text.clone())),
        };
        self.core = rung(&isolation.core);
        self.priority = rung(&isolation.priority);
        self.memory = rung(&isolation.memory);
        self.c_states = rung(&isolation.c_states);
        self.isolated = rung(&isolation.isolated);
    }
}
