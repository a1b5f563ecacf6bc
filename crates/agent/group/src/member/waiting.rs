// SPDX-License-Identifier: Apache-2.0
//! What a host that is not a member waits for, for people.
//!
//! **Nobody is advised to remove something that the group may need:** not where a member runs or may run, and not where
//! a host keeps the group's state or its log on disk.

use fide_agreement::{HostSet, Standing, Start, group::DatagramError};
use fide_client::now_ns;
use fide_types::host_index;

use super::Member;

impl<P: Start> Member<P> {
    /// What a host that is not a member yet waits for, for people; none if it is a member. A wrong key, a
    /// wrong port or a lost group is named as the cause only after two seconds.
    #[must_use]
    pub fn waits_for(&self) -> Option<String> {
        if self.standing() != Standing::Joining {
            return None;
        }
        let (now, unheard) = (now_ns(), self.core.liveness.unheard());
        let silent = self.link.monitors.iter().filter_map(|(host, target, _)| {
            let name = &self.names[host_index(*host)];
            match (self.core.liveness.is_up(*host), unheard.contains(*host)) {
                (false, _) => Some(format!("no process {target} is known to run")),
                // It is named as one that is refused.
                (true, true) if self.core.liveness.refused().any(|(refused, _)| refused == *host) => None,
                (true, true) => Some(match self.core.waits.blamed_ns(*host, now) {
                    None => format!("{target} has come up, and its first packet is awaited"),
                    Some(ns) => format!(
                        "{target} has run for {} s, but no packet with this group's key has come from it ({} packets without that key have come); do \
                         {name} and this host have the same key and port?",
                        ns / 1_000_000_000,
                        self.core.counters.packets_refused
                    ),
                }),
                (true, false) => None,
            }
        });
        let refused = self.core.refused.as_ref().filter(|(_, why)| !matches!(why, DatagramError::OtherGroup { .. }));
        let refused = refused
            .map(|(host, why)| format!("the last message refused was from {}: {why}", self.name(*host).unwrap_or("?")));
        let fenced = self.link.client.fenced().then(|| "this host has no lease".to_owned());
        let members = self.names_of(self.core.group.known_members());
        let held = if members.is_empty() { self.held() } else { Some(self.goes_on_at(&members)) };
        let mut all: Vec<String> = self
            .unstored()
            .map(str::to_owned)
            .into_iter()
            .chain(self.refuses())
            .chain(held)
            .chain(fenced)
            .chain(silent)
            .chain(self.differs())
            .chain(refused)
            .collect();
        if all.is_empty() {
            all.push(self.all_are_up(now));
        }
        Some(all.join("; "))
    }

    /// Hosts whose process has other settings than this one, so that neither lets the other in, and what to compare, for
    /// people. Names and keys are the same, or nothing would be known of them.
    #[must_use]
    pub fn differs(&self) -> Option<String> {
        let hosts = self.core.differing.iter().filter(|host| self.core.liveness.is_up(*host)).collect();
        let names = Some(self.names_of(hosts)).filter(|names| !names.is_empty())?;
        Some(format!(
            "{names} and this host do not let each other into their group. Do all members have the same list and settings? Compare the list \
             of hosts, the protocol and its settings, and whether the group is durable (on disk)"
        ))
    }

    fn names_of(&self, hosts: HostSet) -> String {
        let names: Vec<&str> = hosts.iter().filter_map(|host| self.name(host)).collect();
        names.join(", ")
    }

    /// The position up to which this host has the group's log on disk, if the group may yet go on from it.
    fn logged(&self) -> Option<u64> {
        self.disk.as_ref().filter(|disk| disk.is_replaying()).and_then(|disk| disk.recovery().position)
    }

    /// Members run, and this host is to take over their state.
    fn goes_on_at(&self, members: &str) -> String {
        let own = match self.logged() {
            Some(position) => format!(", in place of its own log up to position {position}"),
            None => String::new(),
        };
        format!("the group goes on ({members}), and this host is about to take over its state{own}")
    }

    /// This host keeps a state from which the group may go on.
    fn held(&self) -> Option<String> {
        let missing = self.names_of(self.core.group.refounding_awaits()?);
        Some(match self.logged() {
            Some(position) => format!(
                "this host has the group's log on disk up to position {position}; the group goes on from it once all of its last members \
                 are back: no word has come yet from those on {missing}"
            ),
            None => format!(
                "this host was excluded, and keeps its state until the group goes on elsewhere, or is founded again by all of its last \
                 members; no word has come yet from those on {missing}"
            ),
        })
    }

    /// Nothing is known to be missing.
    fn all_are_up(&self, now_ns: u64) -> String {
        if !self.core.waits.is_stuck(now_ns) {
            return "all hosts are up, and about to have this host in their group".to_owned();
        }
        if !self.record.is_founded() {
            return "all hosts are up, and not all of them found the group yet: a host that has a record of a group (in state_dir) only \
                    joins one"
                .to_owned();
        }
        match (self.core.group.is_known_to_be_lost(), self.disk.is_some()) {
            (false, _) => {
                let silent = self.names_of(self.core.group.silent_hosts());
                let silent = if silent.is_empty() {
                    String::new()
                } else {
                    format!(
                        " No answer has come from {silent}: a member there may be busy, or its list of hosts, its protocol or whether it is \
                         durable differs from this host (then it says so)."
                    )
                };
                format!(
                    "all hosts are up, and none has let this host in yet.{silent} If no member is left, the group goes on once all of its \
                     last members are back. Keep all records and logs (state_dir)"
                )
            }
            (true, false) => {
                "all hosts are up, and none is a member or keeps the group's state: every member has died, and the state is lost; to found \
                 the group anew, end all members, remove their records (state_dir), and start them"
                    .to_owned()
            }
            (true, true) => {
                "all hosts are up, and none is a member or has a log from which the group could go on: the logs of its last members are \
                 missing; bring them back (GROUP.log in state_dir). A group that is founded anew, without the records in state_dir, has none \
                 of their data, and state_dir has this host's log, too: copy it first"
                    .to_owned()
            }
        }
    }
}
