// SPDX-License-Identifier: Apache-2.0
//! One egress queue: the longest that a packet may wait, and the most that may be waiting (X-Lane §3.1, the adjustment
//! phase of §3.2; FiDe App. B).
//!
//! Packets of a flow enter the network at least a period apart, at any phase, and reach this queue with a
//! jitter J that they gathered on the way: in a window of length t at most `floor((t + J) / period) + 1` of
//! them. Those that come in over the same link came one after the other, so that no more of them fit into a
//! window than that link carries in it. The queue serves strictly by sub-lane, within one in the order of
//! arrival, and never breaks off a frame: a frame of a lower sub-lane, or of best-effort traffic, may have
//! begun just before.
//!
//! For a packet that arrives t after the beginning of a busy period of its sub-lane, all before it in its own sub-lane
//! arrived within t, and all of higher ones until it begins to be sent:
//!
//! ```text
//! begins(t) = frame on the wire + own(t) - itself + higher(begins(t))
//! delay     = max over t of  begins(t) + itself - t
//! ```
//!
//! All three are step functions with linear parts, so that the largest value is at a step or a bend; these are
//! enumerated up to the end of the longest busy period. Everything is in whole picoseconds, and rounded against us.

use crate::request::PRIORITIES;

/// Most points in time at which a queue is looked at.
const POINTS_MAX: usize = 4096;
/// Most steps until a fixed point is reached.
const STEPS_MAX: usize = 10_000;
/// A busy period beyond this is refused: ten seconds.
const BUSY_MAX_PS: u64 = 10_000_000_000_000;

/// Picoseconds that `bytes` take on a link.
#[must_use]
pub fn transmission_ps(bytes: u64, bandwidth_bps: u64) -> u64 {
    let ps = (u128::from(bytes) * 8 * 1_000_000_000_000).div_ceil(u128::from(bandwidth_bps));
    u64::try_from(ps).unwrap_or(u64::MAX)
}

/// Bytes that a link carries in `ps`, rounded up.
fn bytes_in(ps: u64, bandwidth_bps: u64) -> u64 {
    let bytes = (u128::from(ps) * u128::from(bandwidth_bps)).div_ceil(8 * 1_000_000_000_000);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// A flow at a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Arrival {
    /// Sub-lane.
    pub(crate) priority: u8,
    /// Of its largest and smallest packet on this link, picoseconds.
    pub(crate) transmission_ps: u64,
    pub(crate) transmission_min_ps: u64,
    pub(crate) period_ps: u64,
    /// How much later than its earliest a packet may be here, picoseconds.
    pub(crate) jitter_ps: u64,
    /// Over which link it comes; none if it starts here.
    pub(crate) input: Option<Input>,
}

/// The link over which packets come to a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Input {
    pub(crate) link: u32,
    pub(crate) bandwidth_bps: u64,
    pub(crate) jitter_ps: u64,
}

/// What the queue is apart from its flows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Server {
    pub(crate) bandwidth_bps: u64,
    /// Largest frame of best-effort traffic on this link, picoseconds.
    pub(crate) best_effort_ps: u64,
    /// What others send in the highest sub-lane: at once, picoseconds, and over time, bits per second.
    pub(crate) reserved_burst_ps: u64,
    pub(crate) reserved_bps: u64,
}

/// What holds for a queue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Bounds {
    /// For each flow: from its arrival until its last bit has left, at most.
    pub(crate) delay_ps: Vec<u64>,
    /// For each sub-lane: what a packet that comes now may have to wait, without itself.
    pub(crate) wait_ps: [u64; PRIORITIES],
    /// Wire bytes of all sub-lanes that may be waiting at once.
    pub(crate) backlog_bytes: u64,
}

/// Why a queue has no bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unbounded;

/// Flows that come over one link, or one that starts here.
struct Group<'a> {
    flows: Vec<&'a Arrival>,
    input: Option<Input>,
    first_ps: u64,
}

/// The arrivals of several groups.
struct Curve<'a> {
    groups: Vec<Group<'a>>,
    server: &'a Server,
    reserved: bool,
    /// Whether what the inputs can carry is taken into account.
    shaped: bool,
}

impl<'a> Curve<'a> {
    fn new(server: &'a Server, flows: impl Iterator<Item = &'a Arrival>, reserved: bool, shaped: bool) -> Self {
        let mut groups: Vec<Group<'a>> = Vec::new();
        for flow in flows {
            let same = |group: &&mut Group<'a>| {
                group.input.is_some() && group.input.map(|i| i.link) == flow.input.map(|i| i.link)
            };
            match groups.iter_mut().find(same) {
                Some(group) => {
                    group.flows.push(flow);
                    group.first_ps = group.first_ps.max(flow.transmission_ps);
                }
                None => {
                    groups.push(Group { flows: vec![flow], input: flow.input, first_ps: flow.transmission_ps });
                }
            }
        }
        Self { groups, server, reserved, shaped }
    }

    /// Nothing ever comes.
    fn is_nothing(&self) -> bool {
        let reserved = self.reserved && (self.server.reserved_burst_ps > 0 || self.server.reserved_bps > 0);
        self.groups.is_empty() && !reserved
    }

    /// Most work, in picoseconds of this link, that arrives in a closed window of length `t`.
    fn work_ps(&self, t: u64) -> u64 {
        let mut work = if self.reserved {
            let flowing =
                (u128::from(t) * u128::from(self.server.reserved_bps)).div_ceil(u128::from(self.server.bandwidth_bps));
            self.server.reserved_burst_ps.saturating_add(u64::try_from(flowing).unwrap_or(u64::MAX))
        } else {
            0
        };
        for group in &self.groups {
            let (mut free, mut packets) = (0_u64, 0_u64);
            for flow in &group.flows {
                let count = (t + flow.jitter_ps) / flow.period_ps + 1;
                packets = packets.saturating_add(count);
                free = free.saturating_add(count.saturating_mul(flow.transmission_ps));
            }
            work = work.saturating_add(match group.input {
                Some(input) if self.shaped => {
                    free.min(group.first_ps.saturating_add(shaped(t, &input, self.server, packets)))
                }
                _ => free,
            });
        }
        work
    }

    /// Points at which the work jumps or its slope changes, below `end`.
    fn points(&self, end: u64, points: &mut Vec<u64>) -> Result<(), Unbounded> {
        for group in &self.groups {
            let mut steps: Vec<u64> = vec![0];
            for flow in &group.flows {
                let mut n = flow.jitter_ps / flow.period_ps + 1;
                loop {
                    let at = n.saturating_mul(flow.period_ps) - flow.jitter_ps;
                    if at >= end {
                        break;
                    }
                    steps.push(at);
                    n += 1;
                    if points.len() + steps.len() > POINTS_MAX {
                        return Err(Unbounded);
                    }
                }
            }
            if let Some(input) = group.input.filter(|_| self.shaped) {
                // Between steps the work grows with what the input carries until all that is due has come.
                for at in steps.clone() {
                    let free: u64 = group
                        .flows
                        .iter()
                        .map(|flow| ((at + flow.jitter_ps) / flow.period_ps + 1).saturating_mul(flow.transmission_ps))
                        .fold(0, u64::saturating_add);
                    let rest = free.saturating_sub(group.first_ps);
                    let ps = u128::from(rest) * u128::from(self.server.bandwidth_bps) / u128::from(input.bandwidth_bps);
                    let bend = u64::try_from(ps).unwrap_or(u64::MAX).saturating_sub(input.jitter_ps);
                    // The bend is between this picosecond and the next.
                    steps.extend([bend, bend + 1].into_iter().filter(|bend| *bend > at && *bend < end));
                }
                if points.len() + steps.len() > POINTS_MAX {
                    return Err(Unbounded);
                }
            }
            points.append(&mut steps);
        }
        Ok(())
    }
}

/// What comes over `input` in a window of length `t` beside the first packet, as work on this link. A
/// picosecond more for each packet, as transmission times are rounded.
fn shaped(t: u64, input: &Input, server: &Server, packets: u64) -> u64 {
    let window = u128::from(t.saturating_add(input.jitter_ps));
    let work = (window * u128::from(input.bandwidth_bps)).div_ceil(u128::from(server.bandwidth_bps));
    u64::try_from(work).unwrap_or(u64::MAX).saturating_add(packets)
}

/// The least x with x = f(x), from below.
fn fixed_point(mut x: u64, f: impl Fn(u64) -> u64) -> Result<u64, Unbounded> {
    for _ in 0..STEPS_MAX {
        let next = f(x);
        if next <= x {
            return Ok(x);
        }
        if next > BUSY_MAX_PS {
            break;
        }
        x = next;
    }
    Err(Unbounded)
}

/// The bounds of a queue with these flows. The flows' bandwidth must be below the link's, or none may be found.
pub(crate) fn bounds(server: &Server, flows: &[Arrival]) -> Result<Bounds, Unbounded> {
    let mut result = Bounds { delay_ps: vec![0; flows.len()], ..Bounds::default() };
    let mut below = server.best_effort_ps;
    let mut blocking = [server.best_effort_ps; PRIORITIES];
    for priority in (0..PRIORITIES).rev() {
        blocking[priority] = below;
        let own = flows.iter().filter(|flow| usize::from(flow.priority) == priority);
        below = own.map(|flow| flow.transmission_ps).fold(below, u64::max);
    }
    for (priority, blocked) in blocking.into_iter().enumerate() {
        let level = |flow: &&Arrival| usize::from(flow.priority);
        let higher = Curve::new(server, flows.iter().filter(|flow| level(flow) < priority), true, true);
        // With higher sub-lanes, delay may peak inside a linear part: then own packets count as if they could
        // come at once.
        let alone = higher.groups.is_empty();
        let own = Curve::new(server, flows.iter().filter(|flow| level(flow) == priority), false, alone);
        if own.groups.is_empty() {
            result.wait_ps[priority] = blocked.saturating_add(higher.work_ps(0));
            continue;
        }
        let busy = fixed_point(1, |t| blocked.saturating_add(own.work_ps(t)).saturating_add(higher.work_ps(t)))?;
        let mut points = Vec::new();
        own.points(busy, &mut points)?;
        points.sort_unstable();
        points.dedup();
        let before: Vec<(u64, u64)> = points.iter().map(|t| (*t, blocked.saturating_add(own.work_ps(*t)))).collect();
        // Of one sub-lane only the smallest packet makes a difference, and few differ in it.
        let mut delays: Vec<(u64, u64)> = Vec::new();
        for (flow, delay) in flows.iter().zip(&mut result.delay_ps) {
            if usize::from(flow.priority) != priority {
                continue;
            }
            let itself = flow.transmission_min_ps;
            *delay = match delays.iter().find(|(of, _)| *of == itself) {
                Some((_, delay)) => *delay,
                None => {
                    let delay = longest_ps(&before, itself, &higher)?;
                    delays.push((itself, delay));
                    delay
                }
            };
            result.wait_ps[priority] = result.wait_ps[priority].max(*delay);
        }
    }
    result.backlog_bytes = backlog(server, flows)?;
    Ok(result)
}

/// The longest delay of a packet that takes `itself`, over points in time and what has to be sent by them if
/// it comes then.
fn longest_ps(before: &[(u64, u64)], itself: u64, higher: &Curve<'_>) -> Result<u64, Unbounded> {
    let mut longest = 0;
    for (t, before) in before {
        let ahead = before - itself;
        let begins = if higher.is_nothing() {
            ahead
        } else {
            fixed_point(ahead, |begins| ahead.saturating_add(higher.work_ps(begins)))?
        };
        // A picosecond for the bend.
        longest = longest.max((begins + itself + 1).saturating_sub(*t));
    }
    Ok(longest)
}

/// All sub-lanes together, behind a frame of best-effort traffic. A packet leaves the queue as a whole, when
/// it is sent: of what the link has carried by t, all but a part of one packet has left. So nothing is
/// counted twice of a packet that waits alone.
fn backlog(server: &Server, flows: &[Arrival]) -> Result<u64, Unbounded> {
    let all = Curve::new(server, flows.iter(), true, true);
    let busy = fixed_point(1, |t| server.best_effort_ps.saturating_add(all.work_ps(t)))?;
    let being_sent = flows.iter().map(|flow| flow.transmission_ps).max().unwrap_or(0);
    let first_leaves = server.best_effort_ps.saturating_add(being_sent);
    let mut points = vec![first_leaves.min(busy)];
    all.points(busy, &mut points)?;
    let most = points.iter().map(|t| all.work_ps(*t).saturating_sub(t.saturating_sub(first_leaves))).max();
    Ok(bytes_in(most.unwrap_or(0), server.bandwidth_bps))
}

#[cfg(test)]
mod tests;
