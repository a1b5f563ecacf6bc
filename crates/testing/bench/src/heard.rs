// SPDX-License-Identifier: Apache-2.0
//! The gaps between heartbeats that agents count, read at intervals: all of them, and separately the gaps of
//! intervals in which the hypervisor ran no other machine.

use anyhow::Context;
use fide_host_tuning::parse::steal_ticks;
use fide_shm::gaps::{Gaps, bucket};
use fide_sys::clock::mono_ns;
use fide_testbed::Agents;
use fide_testbed::sys::usable_cores;
use serde_json::{Value, json};
use std::time::Duration;

/// How long steal is observed before the first interval: a gap that it has made may end in that interval.
const BEFORE: Duration = Duration::from_millis(100);

/// Gaps heard in some time, over all pairs of hosts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Heard {
    pub all: Gaps,
    /// Gaps of intervals without stolen time. No such gap can have begun in an interval with stolen time,
    /// unless it is longer than a whole interval.
    pub without_steal: Gaps,
    pub span_ns: u64,
    pub span_without_steal_ns: u64,
    /// Time stolen on all cores, in ticks of 10 ms.
    pub steal_ticks: u64,
    /// Verdicts of the agents. No process or host dies, so each is false.
    pub verdicts: u64,
    /// Suspicions that agents withheld because they had stalled themselves.
    pub withheld: u64,
}

impl Heard {
    /// Adds the gaps of another time.
    pub fn absorb(&mut self, other: &Heard) {
        self.all.absorb(&other.all);
        self.without_steal.absorb(&other.without_steal);
        self.span_ns += other.span_ns;
        self.span_without_steal_ns += other.span_without_steal_ns;
        self.steal_ticks += other.steal_ticks;
        self.verdicts += other.verdicts;
        self.withheld += other.withheld;
    }
}

/// Reads the agents' counts.
#[derive(Debug)]
pub struct Listener {
    pairs: Vec<Pair>,
    /// Of each host's agent, in order: verdicts, and suspicions withheld.
    judged: Vec<[u64; 2]>,
    steal_ticks: u64,
    read_ns: u64,
    stolen_before: bool,
}

#[derive(Debug)]
struct Pair {
    observer: usize,
    peer: String,
    before: Gaps,
}

impl Listener {
    /// Begins with hosts `1..=hosts`, named `h1` and so on, after [`BEFORE`].
    ///
    /// # Errors
    /// An agent does not answer.
    pub fn start(agents: &Agents, hosts: usize) -> anyhow::Result<Self> {
        let steal_before = stolen();
        std::thread::sleep(BEFORE);
        let mut pairs = Vec::new();
        for observer in 1..=hosts {
            for peer in (1..=hosts).filter(|peer| *peer != observer).map(|peer| format!("h{peer}")) {
                let before = gaps(agents, observer, &peer)?;
                pairs.push(Pair { observer, peer, before });
            }
        }
        let judged = (1..=hosts).map(|host| judged(agents, host)).collect::<anyhow::Result<_>>()?;
        let steal_ticks = stolen();
        let stolen_before = steal_ticks > steal_before;
        Ok(Listener { pairs, judged, steal_ticks, read_ns: mono_ns(), stolen_before })
    }

    /// The gaps since the last call.
    ///
    /// # Errors
    /// An agent does not answer.
    pub fn listen(&mut self, agents: &Agents) -> anyhow::Result<Heard> {
        let mut all = Gaps::NONE;
        for pair in &mut self.pairs {
            let now = gaps(agents, pair.observer, &pair.peer)?;
            // An agent that was restarted counts from the beginning.
            let before = if now.count() < pair.before.count() { Gaps::NONE } else { pair.before };
            all.absorb(&now.since(&before));
            pair.before = now;
        }
        let (now, steal) = (mono_ns(), stolen());
        let heard = apart(all, now - self.read_ns, steal - self.steal_ticks, self.stolen_before);
        (self.read_ns, self.steal_ticks, self.stolen_before) = (now, steal, heard.steal_ticks > 0);
        Ok(heard)
    }

    /// Adds the verdicts since the last call. Separate from [`Listener::listen`], because it asks agents for
    /// more.
    ///
    /// # Errors
    /// An agent does not answer.
    pub fn judge(&mut self, agents: &Agents, heard: &mut Heard) -> anyhow::Result<()> {
        for (host, before) in (1..).zip(&mut self.judged) {
            let now = judged(agents, host)?;
            // An agent that was excluded has begun to count anew.
            let new = |at: usize| now[at].checked_sub(before[at]).unwrap_or(now[at]);
            heard.verdicts += new(0);
            heard.withheld += new(1);
            *before = now;
        }
        Ok(())
    }
}

/// One interval: its gaps count as free of steal if neither this interval nor the one before had any.
fn apart(all: Gaps, span_ns: u64, steal_ticks: u64, stolen_before: bool) -> Heard {
    let mut heard = Heard { all, span_ns, steal_ticks, ..Heard::default() };
    if steal_ticks == 0 && !stolen_before {
        (heard.without_steal, heard.span_without_steal_ns) = (all, span_ns);
    }
    heard
}

fn gaps(agents: &Agents, observer: usize, peer: &str) -> anyhow::Result<Gaps> {
    let answer = agents.ask(observer, "gaps", json!({ "host": peer })).map_err(anyhow::Error::msg)?;
    parsed(&answer).with_context(|| format!("what h{observer} says of the gaps of {peer}: {answer}"))
}

/// The reply to `gaps`.
fn parsed(answer: &Value) -> Option<Gaps> {
    let number = |name: &str| answer[name].as_u64();
    let mut gaps = Gaps {
        longest_ns: number("longest_ns")?,
        longest_at_ns: number("longest_at_ns")?,
        sum_ns: number("sum_ns")?,
        ..Gaps::NONE
    };
    for pair in answer["buckets"].as_array()? {
        gaps.counts[bucket(pair[0].as_u64()?)] = pair[1].as_u64()?;
    }
    Some(gaps)
}

fn judged(agents: &Agents, host: usize) -> anyhow::Result<[u64; 2]> {
    let status = agents.ask(host, "status", json!({})).map_err(anyhow::Error::msg)?;
    let counter = |name: &str| status["counters"][name].as_u64().with_context(|| format!("no counter {name}"));
    Ok([counter("verdicts")?, counter("suspicions_withheld")?])
}

/// Time that the hypervisor took from all cores since boot; 0 if the kernel does not say.
fn stolen() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    usable_cores().into_iter().filter_map(|core| steal_ticks(&stat, core)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_after_a_stolen_one_is_not_free_of_steal() {
        let mut gaps = Gaps::NONE;
        (1..=5).for_each(|n| gaps.arrived(1, n * 1000));
        let kept = [(0, false), (1, false), (0, true)].map(|(ticks, before)| apart(gaps, 9, ticks, before));
        assert_eq!(kept.map(|heard| heard.without_steal.count()), [4, 0, 0]);
        assert_eq!(kept.map(|heard| heard.span_without_steal_ns), [9, 0, 0]);
        let mut sum = Heard::default();
        kept.iter().for_each(|heard| sum.absorb(heard));
        assert_eq!((sum.all.count(), sum.without_steal.count(), sum.span_ns, sum.steal_ticks), (12, 4, 27, 1));
    }

    #[test]
    fn reply_of_an_agent_is_its_histogram() {
        let answer = json!({ "count": 3, "sum_ns": 90, "longest_ns": 2_000_000, "longest_at_ns": 7, "buckets": [[102_400, 2], [1_966_080, 1]] });
        let gaps = parsed(&answer).expect("a histogram");
        assert_eq!((gaps.count(), gaps.longest_ns, gaps.counts[bucket(103_000)]), (3, 2_000_000, 2));
        assert!(parsed(&json!({ "count": 3 })).is_none());
    }
}
