// SPDX-License-Identifier: Apache-2.0
//! Hosts' reports of the packets that their programs sent (X-Lane §3.3, "Controller oversight").

use fide_controller_api::Code;
use fide_controller_api::event::Reason;
use fide_controller_api::lane::{Unchanged, Usage, UsageAnswer};
use fide_planner::request::PERIOD_MAX_NS;
use serde_json::Value;

use super::asked::{Done, parse};
use super::state::{Lane, Purpose, Record, Standing};
use super::{Core, Later, Out, request_id};
use crate::handler::{Answer, Peer};

/// Reports in a row without an offence after which one offence is forgiven.
const FORGIVEN_AFTER: u32 = 30;
/// A lane that was reclaimed this often is not needed.
const RECLAIMS_MAX: u64 = 6;

impl Core {
    /// Takes the counts since the last report.
    pub(super) fn usage(&mut self, out: &mut Out, peer: &Peer, lane: &str, body: &Value) -> Done<UsageAnswer> {
        let id = self.own_lane(peer, lane)?;
        let Usage { interval_ns, packets, exceeded } = parse(body)?;
        if interval_ns == 0 {
            return Err(Answer::error(422, Code::BadRequest, "interval_ns is 0; give the time since the last report"));
        }
        let mut lane = self.state.lanes[&id].clone();
        if lane.standing == Standing::Ended || lane.purpose == Purpose::Heartbeat {
            return Ok(UsageAnswer::Ignored { standing: Unchanged::Unchanged });
        }
        if exceeded > 0 {
            self.exceeded(out, id, lane);
            return Ok(UsageAnswer::Lane(Box::new(self.lane(id))));
        }
        if lane.offences > 0 {
            lane.clean += 1;
            if lane.clean >= FORGIVEN_AFTER {
                lane.clean = 0;
                lane.offences -= 1;
            }
            self.apply(out, Record::Lane(id, Box::new(lane.clone())));
        }
        let possible = interval_ns / lane.contract.period_min_ns;
        // Too short a time shows nothing.
        if lane.standing != Standing::Held || possible < 4 {
            return Ok(UsageAnswer::Lane(Box::new(self.lane(id))));
        }
        let unused = packets.saturating_mul(2) < possible;
        let before = lane.unused;
        lane.unused = if unused { lane.unused + 1 } else { 0 };
        let reclaim = lane.unused >= self.options.unused_reports;
        if reclaim {
            lane.unused = 0;
        }
        if lane.unused != before {
            self.apply(out, Record::Lane(id, Box::new(lane.clone())));
        }
        if reclaim {
            self.reclaim(out, id, lane, packets == 0);
        }
        Ok(UsageAnswer::Lane(Box::new(self.lane(id))))
    }

    /// Packets beyond the contract: the sending host has dropped them, so no other lane was harmed. The
    /// lane loses its bounds, and others get its bandwidth; `changeBandwidth` restores it. After several
    /// offences the lane is terminated.
    fn exceeded(&mut self, out: &mut Out, id: u64, mut lane: Lane) {
        lane.offences += 1;
        lane.clean = 0;
        if lane.offences >= self.options.offences_max {
            let times = lane.offences;
            self.apply(out, Record::Lane(id, Box::new(lane)));
            self.end_lane(out, id, &format!("it exceeded its contract {times} times"));
            return;
        }
        let first = lane.standing == Standing::Held;
        lane.standing = Standing::Demoted;
        self.apply(out, Record::Lane(id, Box::new(lane)));
        self.notify_contract(out, id, Reason::BwExceeded);
        if first {
            // Until it was notified, its packets are in the lane.
            self.after(self.options.grace_ns, Later::Settle { lane: id });
        }
    }

    /// Reclaims half of an unused lane's bandwidth; in the end all, if it sends nothing.
    fn reclaim(&mut self, out: &mut Out, id: u64, mut lane: Lane, nothing: bool) {
        let period_min_ns = (lane.contract.period_min_ns * 2).min(PERIOD_MAX_NS);
        let asked = lane.request.period_min_ns;
        if nothing && period_min_ns / asked.max(1) > 1 << RECLAIMS_MAX {
            self.end_lane(out, id, "it was not used");
            return;
        }
        lane.contract.period_min_ns = period_min_ns;
        self.apply(out, Record::Lane(id, Box::new(lane)));
        self.notify_contract(out, id, Reason::BwUnused);
        self.after(self.options.grace_ns, Later::Settle { lane: id });
    }

    /// The grace period of a demotion or a reclaim is over: the planner gives the bandwidth away.
    pub(super) fn settle(&mut self, out: &mut Out, id: u64) {
        let Some(lane) = self.state.lanes.get(&id).cloned() else { return };
        let planner_id = request_id(id);
        match lane.standing {
            Standing::Ended => {}
            Standing::Demoted => {
                if let Ok(changed) = self.planner.release(planner_id) {
                    self.notify_changed(out, id, changed);
                }
            }
            Standing::Held => {
                let Some(allocation) = self.planner.allocation(planner_id) else { return };
                let mut request = allocation.request.clone();
                if request.period_min_ns == lane.contract.period_min_ns {
                    return;
                }
                request.period_min_ns = lane.contract.period_min_ns;
                let links: Vec<_> = allocation.trees.iter().map(|tree| tree.links().collect()).collect();
                // The same trees with less on them cannot be refused.
                let Ok(mut changed) = self.planner.release(planner_id) else { return };
                match self.planner.hold(planner_id, request, &links) {
                    Ok(more) => changed.extend(more),
                    Err(refusal) => {
                        self.end_lane(out, id, &refusal.to_string());
                        return;
                    }
                }
                changed.retain(|changed| changed.id != planner_id);
                let now = changed.into_iter().filter_map(|mut changed| {
                    changed.after = self.planner.allocation(changed.id)?.contract.clone();
                    (self.state.lanes.get(&changed.id.0)?.contract != changed.after).then_some(changed)
                });
                let now: Vec<_> = now.collect();
                self.notify_changed(out, id, now);
                let contract = self.planner.allocation(planner_id).expect("it is held").contract.clone();
                self.apply(out, Record::Contract(id, contract));
                self.begin_ns.remove(&id);
            }
        }
    }
}
