// SPDX-License-Identifier: Apache-2.0
//! Hosts whose configuration differs from this one's.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use fide_wire::{AnnouncedShape, MAX_HOSTS, Name, Shape};

use fide_agent_api::status::Difference;

use crate::config::shape::{differences, says};

/// Hosts remembered. Further ones are ignored.
const HOSTS_MAX: usize = MAX_HOSTS;
/// A host that has sent nothing for this long does not differ any more, or is gone.
const KEPT: Duration = Duration::from_secs(5);
/// Between two lines of the log about the same difference.
const SAID_AGAIN: Duration = Duration::from_secs(60);

struct Other {
    differs: Vec<Difference>,
    heard: Instant,
    said: Instant,
}

/// Which hosts differ, and in what.
#[derive(Default)]
pub(super) struct Shapes {
    others: BTreeMap<Name, Other>,
}

impl Shapes {
    /// Takes the shape that another host has sent. Returns a line for the log if one is due.
    pub(super) fn hear(&mut self, here: &Shape, me: Name, received: &AnnouncedShape, now: Instant) -> Option<String> {
        let mut differs = differences(here, &received.shape);
        if received.name == me {
            let it = "another host has it too".to_owned();
            differs.push(Difference { item: "name".to_owned(), there: me.as_str().to_owned(), here: it });
        }
        if differs.is_empty() {
            self.others.remove(&received.name);
            return None;
        }
        let before = self.others.get_mut(&received.name);
        let again = before.as_ref().is_some_and(|other| other.differs == differs);
        if let Some(other) = before.filter(|other| again && now < other.said + SAID_AGAIN) {
            other.heard = now;
            return None;
        }
        if self.others.len() >= HOSTS_MAX && !self.others.contains_key(&received.name) {
            return None;
        }
        let line = format!(
            "host {} is configured otherwise in {}: it and this host do not hear each other until the configurations are alike",
            received.name.as_str(),
            says(&differs)
        );
        self.others.insert(received.name, Other { differs, heard: now, said: now });
        Some(line)
    }

    /// The hosts that differ now, by name.
    pub(super) fn differing(&mut self, now: Instant) -> impl Iterator<Item = (&Name, &[Difference])> {
        self.others.retain(|_, other| now < other.heard + KEPT);
        self.others.iter().map(|(name, other)| (name, other.differs.as_slice()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_is_logged_once_a_minute_and_forgotten_at_its_end() {
        let here = Shape { trust: 2, policy: 2, members: 3, cluster: 1, list: 1 };
        let name = |text: &str| text.parse::<Name>().expect("a name");
        let received = |text: &str, shape| AnnouncedShape { name: name(text), incarnation: 1, shape };
        let (me, other) = (name("h1"), Shape { trust: 1, ..here });
        let mut shapes = Shapes::default();
        let start = Instant::now();
        let mut hear = |host: &str, shape, after| shapes.hear(&here, me, &received(host, shape), start + after);
        let second = Duration::from_secs(1);
        let line = hear("h2", other, Duration::ZERO).expect("said");
        assert!(line.contains("h2") && line.contains("trust (network there, lease here)"), "{line}");
        assert_eq!(hear("h2", other, second), None);
        assert!(hear("h2", Shape { policy: 1, ..other }, second).expect("said").contains("policy"));
        assert!(hear("h2", Shape { policy: 1, ..other }, 62 * second).is_some());
        assert_eq!(hear("h3", here, second), None, "alike");
        assert!(hear("h1", here, 62 * second).expect("said").contains("name"), "this host's own name");
        let now = |after| start + after;
        assert_eq!(shapes.differing(now(63 * second)).count(), 2);
        // Mended, and gone.
        shapes.hear(&here, me, &received("h2", here), now(64 * second));
        assert_eq!(shapes.differing(now(64 * second)).count(), 1);
        assert_eq!(shapes.differing(now(90 * second)).count(), 0);
        for n in 0..2 * HOSTS_MAX {
            let host = format!("x{n}");
            shapes.hear(&here, me, &received(&host, other), now(90 * second));
        }
        assert_eq!(shapes.differing(now(90 * second)).count(), HOSTS_MAX, "at the bound");
    }
}
