// SPDX-License-Identifier: Apache-2.0
//! At every instant at most one leader is not fenced. Between two steps leases can only run out, so a check
//! after each step is enough.

use super::{
    super::{host::Host, machines::Machines, protocol::Protocol},
    Checked, violated,
};

pub(in super::super) fn one_leader<P: Protocol>(hosts: &Machines<P>, changed: usize, now_ns: u64) -> Checked {
    let leads = |host: &Host<P>| host.leads(now_ns) && !host.believes(now_ns);
    if !leads(&hosts[changed]) {
        return Ok(());
    }
    match hosts.iter().enumerate().find(|(at, host)| *at != changed && leads(host)) {
        None => Ok(()),
        Some((_, other)) => {
            violated("one leader", format!("h{} and h{} lead, and both have a lease", hosts[changed].id, other.id))
        }
    }
}
