// SPDX-License-Identifier: Apache-2.0
//! Schedules against a plan: at random, and aimed at one packet.

use fide_planner::{LinkId, Planner, Topology};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::network::{Flow, Outcome, Schedule, run};

/// Everything at random, extremes more often than not.
#[derive(Debug)]
pub struct Random {
    random: ChaCha8Rng,
    packets: u32,
    next_ps: Vec<u64>,
    periods_ps: Vec<u64>,
    sizes: Vec<(u64, u64)>,
    /// Of 8 choices how many are the largest value.
    extremes: u8,
}

impl Random {
    /// `packets` of each flow.
    #[must_use]
    pub fn new(seed: u64, flows: &[Flow], packets: u32) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        // All within a few packets' time, or spread over a period.
        let close = random.random::<bool>();
        let phase = |random: &mut ChaCha8Rng, flow: &Flow| {
            let spread = if close { flow.period_ps.min(20_000_000) } else { flow.period_ps };
            random.random_range(0..=spread)
        };
        Self {
            next_ps: flows.iter().map(|flow| phase(&mut random, flow)).collect(),
            periods_ps: flows.iter().map(|flow| flow.period_ps).collect(),
            sizes: flows.iter().map(|flow| (flow.wire_min_bytes, flow.wire_max_bytes)).collect(),
            extremes: random.random_range(0..=8),
            random,
            packets,
        }
    }

    fn extreme(&mut self) -> bool {
        self.random.random_range(0..8) < self.extremes
    }
}

impl Schedule for Random {
    fn sent_ps(&mut self, flow: usize, n: u32) -> Option<u64> {
        if n >= self.packets {
            return None;
        }
        let at = self.next_ps[flow];
        let more = if self.extreme() { 0 } else { self.random.random_range(0..=self.periods_ps[flow] / 4) };
        self.next_ps[flow] = at + self.periods_ps[flow] + more;
        Some(at)
    }

    fn wire_bytes(&mut self, flow: usize, _: u32) -> u64 {
        let (min, max) = self.sizes[flow];
        if self.extreme() { max } else { self.random.random_range(min..=max) }
    }

    fn jitter_ps(&mut self, _: usize, _: u32, _: LinkId, max_ps: u64) -> u64 {
        if self.extreme() { max_ps } else { self.random.random_range(0..=max_ps) }
    }

    fn frame_left_ps(&mut self, _: usize, _: u32, _: LinkId, max_ps: u64) -> u64 {
        if self.extreme() { max_ps } else { self.random.random_range(0..=max_ps) }
    }

    fn rank(&self, _: usize) -> u32 {
        0
    }
}

/// One packet of the target; the others are sent so as to meet it.
struct Aimed<'a> {
    flows: &'a [Flow],
    target: usize,
    /// When each flow sends its first packet; none: not at all.
    phase_ps: &'a [Option<u64>],
    /// For each flow how much of each link's jitter it takes, of 255.
    jitter: &'a [u8],
    packets: u32,
}

impl Schedule for Aimed<'_> {
    fn sent_ps(&mut self, flow: usize, n: u32) -> Option<u64> {
        let most = if flow == self.target { 1 } else { self.packets };
        (n < most).then_some(())?;
        Some(self.phase_ps[flow]? + u64::from(n) * self.flows[flow].period_ps)
    }

    fn wire_bytes(&mut self, flow: usize, _: u32) -> u64 {
        self.flows[flow].wire_max_bytes
    }

    fn jitter_ps(&mut self, flow: usize, _: u32, _: LinkId, max_ps: u64) -> u64 {
        if flow == self.target { max_ps } else { max_ps * u64::from(self.jitter[flow]) / 255 }
    }

    fn frame_left_ps(&mut self, flow: usize, _: u32, _: LinkId, max_ps: u64) -> u64 {
        // The target always meets a frame; others only where they would keep it from the target otherwise.
        if flow == self.target { max_ps } else { 0 }
    }

    fn rank(&self, flow: usize) -> u32 {
        u32::from(flow == self.target)
    }
}

/// The latest packet found, and by which schedule.
#[derive(Clone, Copy, Debug)]
pub struct Worst {
    pub latency_ps: u64,
    /// Schedules tried.
    pub tried: u32,
}

/// Looks for a schedule that makes flow `target` as late as possible at receiver `j`: first every other flow
/// is timed to come to the first queue that it shares with the target just before it; then times and jitters
/// are changed at random, `tries` times, and kept if they make it later.
#[must_use]
pub fn aim(planner: &Planner, flows: &[Flow], target: usize, j: usize, tries: u32, seed: u64) -> Worst {
    let topology = planner.topology();
    let best_effort = planner.limits().best_effort_wire_bytes;
    let path: Vec<usize> = flows[target].tree.path(j);
    let links: Vec<LinkId> = path.iter().map(|hop| flows[target].tree.hops()[*hop].link).collect();
    // Long before the target is sent, so that nothing is sent before time 0.
    let origin = 10 * flows.iter().map(|flow| flow.period_ps).max().unwrap_or(0) + 1_000_000_000;
    let mut phase_ps: Vec<Option<u64>> = vec![None; flows.len()];
    phase_ps[target] = Some(origin);
    let jitter = vec![0_u8; flows.len()];
    let latency = |outcome: &Outcome| outcome.latency_ps[target][j].map_or(0, |(_, max)| max);
    let go = |phase_ps: &[Option<u64>], jitter: &[u8]| {
        let mut schedule = Aimed { flows, target, phase_ps, jitter, packets: 1 };
        run(topology, flows, best_effort, &mut schedule)
    };
    for (hop, link) in path.iter().zip(&links) {
        let comes_ps = go(&phase_ps, &jitter).first_at_ps[target][*hop];
        for (other, flow) in flows.iter().enumerate() {
            if phase_ps[other].is_some() || flow.priority > flows[target].priority {
                continue;
            }
            if let Some(takes_ps) = alone_ps(topology, flow, *link) {
                phase_ps[other] = Some(comes_ps - takes_ps);
            }
        }
    }
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut best = (latency(&go(&phase_ps, &jitter)), phase_ps, jitter);
    let others: Vec<usize> = (0..flows.len()).filter(|flow| *flow != target && best.1[*flow].is_some()).collect();
    for _ in 0..tries {
        if others.is_empty() {
            break;
        }
        let (mut phases, mut jitters) = (best.1.clone(), best.2.clone());
        for _ in 0..random.random_range(1..=3) {
            let other = others[random.random_range(0..others.len())];
            match random.random_range(0..3) {
                0 => jitters[other] = if random.random() { 255 } else { 0 },
                1 => {
                    let step = random.random_range(1..=3_000_000_i64) * if random.random() { 1 } else { -1 };
                    phases[other] = phases[other].map(|at| at.saturating_add_signed(step));
                }
                _ => {
                    // To meet the target exactly, at any queue that they share.
                    let outcome = go(&phases, &jitters);
                    let at = random.random_range(0..path.len());
                    if let Some(takes_ps) = alone_ps(topology, &flows[other], links[at]) {
                        phases[other] = Some(outcome.first_at_ps[target][path[at]].saturating_sub(takes_ps));
                    }
                }
            }
        }
        let found = latency(&go(&phases, &jitters));
        if found >= best.0 {
            best = (found, phases, jitters);
        }
    }
    Worst { latency_ps: best.0, tried: tries + 1 }
}

/// How long a flow's packet takes to the queue of a link if nothing delays it; none if it does not pass there.
fn alone_ps(topology: &Topology, flow: &Flow, link: LinkId) -> Option<u64> {
    let mut hop = flow.tree.hops().iter().position(|hop| hop.link == link)?;
    let mut takes_ps = 0;
    while let Some(before) = flow.tree.hops()[hop].before {
        hop = before as usize;
        let cable = topology.cable(flow.tree.hops()[hop].link);
        takes_ps +=
            fide_planner::transmission_ps(flow.wire_max_bytes, cable.bandwidth_bps) + cable.latency_min_ns * 1000;
    }
    Some(takes_ps)
}
