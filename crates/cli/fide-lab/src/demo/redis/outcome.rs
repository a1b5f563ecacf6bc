// SPDX-License-Identifier: Apache-2.0
//! What a run found, and what has to hold.

use fide_testbed::figures::Machine;
use serde_json::{Map, Value, json};

use super::{
    cut_off::CutOff,
    gap::Gap,
    sample::{EVERY, Rate},
    writers::Written,
};

/// Version of the JSON document; another number means another meaning of a field.
const JSON_VERSION: u32 = 1;

pub(super) struct Outcome {
    pub(super) machine: Machine,
    pub(super) protocol: &'static str,
    /// CLOCK_MONOTONIC, ns: the load began, and ended.
    pub(super) begun_ns: u64,
    pub(super) ended_ns: u64,
    pub(super) gaps: Vec<Gap>,
    pub(super) rates: Vec<Rate>,
    pub(super) written: Vec<Written>,
    pub(super) asked_again: u64,
    /// The longest time without an acknowledged write while no leader was lost, ns.
    pub(super) longest_pause_ns: u64,
    pub(super) cut_off: Vec<CutOff>,
    /// By host: the digest of its data.
    pub(super) digests: Vec<(usize, String)>,
}

/// Something that has to hold.
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) held: bool,
    pub(super) seen: String,
}

/// Whether it is an answer to DEBUG DIGEST: 40 hexadecimal digits.
fn is_digest(said: &str) -> bool {
    said.len() == 40 && said.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Whether the servers, by host, have answered DEBUG DIGEST, all with the same. Equal errors are no equal data.
fn are_alike(said: &[(usize, String)]) -> Check {
    let of = |(host, said): &(usize, String)| match said.get(..12).filter(|_| is_digest(said)) {
        Some(begin) => format!("h{host} {begin}"),
        None => format!("h{host} answered DEBUG DIGEST with {said:?}"),
    };
    let is_one = said.windows(2).all(|two| two[0].1 == two[1].1);
    Check {
        name: "all servers have the same data",
        held: said.len() > 1 && is_one && said.iter().all(|(_, said)| is_digest(said)),
        seen: said.iter().map(of).collect::<Vec<_>>().join(", "),
    }
}

fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

impl Outcome {
    pub(super) fn acknowledged(&self) -> u64 {
        self.written.iter().map(|one| one.acknowledged).sum()
    }

    pub(super) fn lost(&self) -> u64 {
        self.written.iter().map(|one| one.lost).sum()
    }

    pub(super) fn checks(&self) -> Vec<Check> {
        let wrong = self.written.iter().find_map(|one| one.wrong.as_ref());
        let (acknowledged, lost) = (self.acknowledged(), self.lost());
        let cut_off: Vec<String> = self.cut_off.iter().map(CutOff::seen).collect();
        vec![
            Check {
                name: "every acknowledged write is at every server",
                held: acknowledged > 0 && lost == 0 && wrong.is_none(),
                seen: match wrong {
                    Some(wrong) => format!("{lost} of {acknowledged} lost: {wrong}"),
                    None => format!("{acknowledged} acknowledged, {lost} lost"),
                },
            },
            are_alike(&self.digests),
            Check {
                name: "a leader that is cut off answers no client",
                held: !self.cut_off.is_empty() && self.cut_off.iter().all(CutOff::has_held),
                seen: cut_off.join("; "),
            },
        ]
    }

    pub(super) fn has_held(&self) -> bool {
        self.checks().iter().all(|check| check.held)
    }

    /// Since the load began.
    fn since_us(&self, ns: u64) -> f64 {
        us(ns.saturating_sub(self.begun_ns))
    }

    fn gap_json(&self, gap: &Gap) -> Value {
        let stages = Gap::STAGES.iter().zip(gap.stages_ns());
        let stages: Map<String, Value> =
            stages.map(|(name, ns)| (name.replace(' ', "_") + "_us", json!(us(ns)))).collect();
        json!({
            "fault": gap.fault, "leader": format!("h{}", gap.leader), "next": format!("h{}", gap.next),
            "at_us": self.since_us(gap.lost_ns), "stopped_us": us(gap.stopped_for_ns()), "total_us": us(gap.total_ns()),
            "stages": stages, "back_us": us(gap.back_ns.saturating_sub(gap.lost_ns)),
        })
    }

    pub(super) fn to_json(&self, page: &str) -> Value {
        let digest = |(host, digest): &(usize, String)| json!({"host": format!("h{host}"), "digest": digest});
        let checks = |check: &Check| json!({"name": check.name, "held": check.held, "seen": check.seen});
        json!({
            "version": JSON_VERSION,
            "held": self.has_held(),
            "checks": self.checks().iter().map(checks).collect::<Vec<_>>(),
            "machine": self.machine,
            "protocol": self.protocol,
            "servers": self.digests.len(),
            "load_us": us(self.ended_ns.saturating_sub(self.begun_ns)),
            "gaps": self.gaps.iter().map(|gap| self.gap_json(gap)).collect::<Vec<_>>(),
            "writes": {
                "clients": self.written.len(), "acknowledged": self.acknowledged(), "lost": self.lost(),
                "asked_again": self.asked_again, "longest_pause_us": us(self.longest_pause_ns),
            },
            "cut_off": self.cut_off.iter().map(|one| {
                json!({"refused": one.refused, "unanswered": one.unanswered, "by_lease": one.by_lease})
            }).collect::<Vec<_>>(),
            "digests": self.digests.iter().map(digest).collect::<Vec<_>>(),
            "sets": {
                "every_us": EVERY.as_micros(),
                "samples": self.rates.iter().map(|rate| {
                    json!({"from_us": self.since_us(rate.from_ns), "to_us": self.since_us(rate.to_ns), "sets": rate.sets})
                }).collect::<Vec<_>>(),
            },
            "page": page,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_errors_are_no_equal_data() {
        let said = |of: [&str; 2]| are_alike(&[(1, of[0].to_owned()), (2, of[1].to_owned())]);
        let (one, other) = ("0123456789abcdef0123456789abcdef01234567", "1123456789abcdef0123456789abcdef01234567");
        assert!(said([one, one]).held && !said([one, other]).held);
        assert_eq!(said([one, other]).seen, "h1 0123456789ab, h2 1123456789ab");
        for wrong in ["-ERR DEBUG command not allowed", "", "OK", &one[1..], &one.replace('a', "x")] {
            let check = said([wrong, wrong]);
            assert!(
                !check.held && check.seen.contains(&format!("h2 answered DEBUG DIGEST with {wrong:?}")),
                "{}",
                check.seen
            );
        }
        assert!(!are_alike(&[(1, one.to_owned())]).held, "of one server");
    }
}
