// SPDX-License-Identifier: Apache-2.0
//! What the group refuses, with the names of hosts, and what to do instead.

use fide_group::Refused;

use super::member::Member;

/// Why the group refuses what `command` asks for. `leader`: its name, and where it is.
pub(super) fn refusal(member: &dyn Member, leader: Option<(String, String)>, why: Refused, command: &str) -> String {
    let name = |host| member.name(host).unwrap_or_else(|| format!("host {host}"));
    let (_, hosts) = member.view().unwrap_or_default();
    let members: Vec<String> = hosts.into_iter().map(name).collect();
    let members = members.join(", ");
    match why {
        Refused::NotLeader { .. } => match leader {
            Some((leader, address)) => format!("the leader is {leader} at {address}: ask there, {command}"),
            None => "no leader is known; ask again".to_owned(),
        },
        Refused::NoMember { host } => format!("{} is not a member; the members are {members}", name(host)),
        Refused::Leads { host } => {
            format!("{} leads already; name another member of {members}, or none for the most senior one", name(host))
        }
        Refused::Dead { host } => format!("{} is dead; name a live member of {members}", name(host)),
        Refused::NoState { host } => {
            format!("{} does not have the group's data yet; ask again once its FIDE.STATUS says following", name(host))
        }
        other => other.to_string(),
    }
}

/// A host that was named.
///
/// # Errors
/// There is none of that name, in words.
pub(super) fn host_of(member: &dyn Member, wanted: &str) -> Result<u16, String> {
    let names = || (1..=64).filter_map(|host| member.name(host)).collect::<Vec<_>>().join(", ");
    (1..=64)
        .find(|host| member.name(*host).as_deref() == Some(wanted))
        .ok_or_else(|| format!("ERR no host of this cluster is named {wanted}; its hosts are {}", names()))
}
