// SPDX-License-Identifier: Apache-2.0
//! Nobody is dropped from a view of hosts while a lease of an older view runs.

use fide_detector::Policy;

use super::{
    super::{host::Host, plan::Plan, protocol::Protocol},
    Checked, violated,
};

/// A host has installed a view: whoever that lacks has no lease, unless its own view is a later one.
pub(in super::super) fn no_lease_outlives_its_view<P: Protocol>(
    plan: &Plan,
    hosts: &[Host<P>],
    changed: usize,
    now_ns: u64,
) -> Checked {
    let Some(agent) = hosts[changed].agent.as_ref().filter(|_| plan.policy == Policy::Majority) else { return Ok(()) };
    let view = agent.detector.view();
    let outlives = |host: &&Host<P>| {
        !view.members.contains(host.id)
            && host.acts_as(host.incarnation, now_ns)
            && !host.believes_as(host.incarnation, now_ns)
            && host.agent.as_ref().is_some_and(|agent| agent.detector.view().id < view.id)
    };
    match hosts.iter().find(outlives) {
        None => Ok(()),
        Some(host) => {
            let text = format!("h{} is in {view:?}, and h{} has a lease", hosts[changed].id, host.id);
            violated("no lease outlives its view", text)
        }
    }
}
