// SPDX-License-Identifier: Apache-2.0
//! Members of other versions.

use fide_agreement::Start;
use fide_types::host_index;

use super::Member;

impl<P: Start> Member<P> {
    /// The version of the service's messages in which to propose values now: the highest one that all members, and
    /// all processes that may be let in, speak. It falls when one of an older version starts, so it is asked for each
    /// value. A process that starts at this moment may be handed one value of the newer version: the service refuses
    /// that by name.
    #[must_use]
    pub fn service_version(&self) -> u8 {
        self.core.liveness.common().1
    }

    /// As [`Member::service_version`], of the group's own protocol.
    #[must_use]
    pub fn group_version(&self) -> u8 {
        self.core.liveness.common().0
    }

    /// Processes that run and are refused, as they speak no version in common with this one, for people.
    #[must_use]
    pub fn refuses(&self) -> Option<String> {
        let name = |host| self.names.get(host_index(host)).map_or("?", String::as_str);
        let all: Vec<String> =
            self.core.liveness.refused().map(|(host, spoken)| self.spoken.refusal(spoken, name(host))).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}
