// SPDX-License-Identifier: Apache-2.0
//! No host is dropped from a view of hosts while it has a lease of an older view.

use fide_detector::Policy;
use fide_wire::ViewId;

use super::{
    super::{machines::Machines, plan::Plan, protocol::Protocol},
    Checked, violated,
};

/// A host has installed a view. No incarnation that the view lacks has a lease of an older view, nor do
/// programs whose agent was killed.
pub(in super::super) fn no_lease_outlives_its_view<P: Protocol>(
    plan: &Plan,
    hosts: &Machines<P>,
    changed: usize,
    now_ns: u64,
) -> Checked {
    let judges = plan.policy == Policy::Majority && !hosts[changed].is_astray();
    let Some(agent) = hosts[changed].agent.as_ref().filter(|_| judges) else { return Ok(()) };
    let view = agent.detector.view();
    for host in hosts.iter() {
        let member = agent.detector.member_incarnation(host.id);
        let outlives = |(incarnation, of): &(u32, ViewId)| {
            *of < view.id && member != Some(*incarnation) && !host.believes_as(*incarnation, now_ns)
        };
        if let Some((incarnation, of)) = host.acting(now_ns).find(outlives) {
            let text =
                format!("h{} is in {view:?}, and h{}#{incarnation} has a lease of {of:?}", hosts[changed].id, host.id);
            return violated("no lease outlives its view", text);
        }
    }
    Ok(())
}
