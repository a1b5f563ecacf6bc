// SPDX-License-Identifier: Apache-2.0
//! Which versions of what members say to each other a program speaks. Every packet names them, so two programs
//! that have no version in common refuse each other by name, and use a version that all of them speak
//! otherwise: each program speaks its own version and the one before.
//!
//! | what has versions | who counts them | what a new version may change |
//! |---|---|---|
//! | the group's protocol | this crate, [`PROTOCOL`] | datagrams of the group, entries of its log |
//! | the service's messages | the service, [`crate::Config::service`] | values that it proposes, states that it gives |

/// The versions of one kind of messages that a program speaks: all from `oldest` to `newest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    pub newest: u8,
    pub oldest: u8,
}

/// Of the group's protocol. A program with a higher `newest` still has to speak this version with members that
/// speak no higher one ([`crate::Member::group_version`]).
pub const PROTOCOL: Versions = Versions::up_to(fide_agreement::group::VERSION);

impl Versions {
    /// One version.
    #[must_use]
    pub const fn only(version: u8) -> Self {
        Self { newest: version, oldest: version }
    }

    /// A version, and the one before.
    #[must_use]
    pub const fn up_to(newest: u8) -> Self {
        Self { newest, oldest: if newest > 1 { newest - 1 } else { 1 } }
    }

    /// The highest version that both speak.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u8> {
        let version = self.newest.min(other.newest);
        (version >= self.oldest.max(other.oldest)).then_some(version)
    }

    /// As in a packet's header.
    pub(crate) fn write(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[self.newest, self.oldest]);
    }

    /// From a packet's header. Programs from before there were versions leave zeros: they speak the first one.
    pub(crate) fn read(bytes: [u8; 2]) -> Self {
        let [newest, oldest] = bytes.map(|version| version.max(1));
        Self { newest, oldest }
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { newest, oldest } = *self;
        match newest.saturating_sub(oldest) {
            0 => write!(f, "version {newest}"),
            1 => write!(f, "versions {oldest} and {newest}"),
            _ => write!(f, "versions {oldest} to {newest}"),
        }
    }
}

/// What a program speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spoken {
    /// Of the group's protocol.
    pub group: Versions,
    /// Of the service's messages.
    pub service: Versions,
}

impl Default for Spoken {
    fn default() -> Self {
        Self { group: PROTOCOL, service: Versions::only(1) }
    }
}

impl Spoken {
    /// Bytes in a packet's header.
    pub(crate) const LEN: usize = 4;

    pub(crate) fn write(self, out: &mut Vec<u8>) {
        self.group.write(out);
        self.service.write(out);
    }

    pub(crate) fn read(bytes: [u8; Self::LEN]) -> Self {
        let [group_newest, group_oldest, service_newest, service_oldest] = bytes;
        Self {
            group: Versions::read([group_newest, group_oldest]),
            service: Versions::read([service_newest, service_oldest]),
        }
    }

    /// The highest versions that both speak; none if they cannot be members of one group.
    pub(crate) fn common(self, other: Self) -> Option<(u8, u8)> {
        self.group.common(other.group).zip(self.service.common(other.service))
    }

    /// Why a process that speaks `other` is refused, for people. `name`: its host.
    pub(crate) fn refusal(self, other: Self, name: &str) -> String {
        let (what, theirs, ours) = if self.group.common(other.group).is_none() {
            ("the group's protocol", other.group, self.group)
        } else {
            ("its service's messages", other.service, self.service)
        };
        format!("host {name} speaks {theirs} of {what}, and this program {ours}; upgrade one version at a time")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_one_version_apart_have_one_in_common_and_others_none() {
        let [one, two, three, four] = [1, 2, 3, 4].map(Versions::up_to);
        assert_eq!((one.common(two), two.common(one)), (Some(1), Some(1)));
        assert_eq!((two.common(three), three.common(two)), (Some(2), Some(2)));
        assert_eq!((two.common(two), four.common(three)), (Some(2), Some(3)));
        assert_eq!((one.common(three), four.common(two), two.common(four)), (None, None, None));
    }

    #[test]
    fn header_of_a_program_without_versions_is_the_first_one() {
        assert_eq!(Spoken::read([0; 4]), Spoken { group: Versions::only(1), service: Versions::only(1) });
        let spoken = Spoken { group: Versions::up_to(7), service: Versions::up_to(3) };
        let mut bytes = Vec::new();
        spoken.write(&mut bytes);
        assert_eq!(Spoken::read(bytes.try_into().unwrap()), spoken);
    }

    #[test]
    fn refusal_names_both_sides_and_what_to_do() {
        let mine = Spoken { service: Versions::up_to(2), ..Spoken::default() };
        let theirs = Spoken { service: Versions::up_to(4), ..Spoken::default() };
        assert_eq!(mine.common(theirs), None);
        assert_eq!(
            mine.refusal(theirs, "h2"),
            "host h2 speaks versions 3 and 4 of its service's messages, and this program versions 1 and 2; upgrade one version at a time"
        );
        let theirs = Spoken { group: Versions::up_to(4), ..Spoken::default() };
        assert_eq!(
            mine.refusal(theirs, "h2"),
            "host h2 speaks versions 3 and 4 of the group's protocol, and this program versions 1 and 2; upgrade one version at a time"
        );
    }
}
