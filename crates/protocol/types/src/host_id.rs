// SPDX-License-Identifier: Apache-2.0
//! The number of a host in its cluster.

/// A host of a cluster: `1..=MAX_HOSTS`, by the order of names in the configuration. 0 stands for "no host"
/// where a format says so.
///
/// An alias and not a type of its own: a host id is this plain number in packets, BPF maps, shared memory,
/// configuration files and the C interface. Tables of hosts are indexed through [`crate::PerHost`] or
/// [`host_index`], never by subtraction.
pub type HostId = u16;

/// The place of host `id` in a table of all hosts: 0 for host 1.
///
/// # Panics
/// For 0, which is no host.
#[must_use]
#[inline]
pub const fn host_index(id: HostId) -> usize {
    assert!(id != 0, "host ids begin at 1");
    id as usize - 1
}

/// The host in place `index` of a table of all hosts: the inverse of [`host_index`].
///
/// # Panics
/// For an index at or above [`crate::MAX_HOSTS`].
#[must_use]
#[inline]
pub const fn host_at(index: usize) -> HostId {
    assert!(index < crate::MAX_HOSTS, "more hosts than a cluster can have");
    index as HostId + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_host_has_a_place_of_its_own() {
        for id in 1..=crate::MAX_HOSTS as HostId {
            assert_eq!(host_at(host_index(id)), id);
        }
        assert_eq!(host_index(1), 0);
    }

    #[test]
    #[should_panic(expected = "begin at 1")]
    fn host_0_has_no_place() {
        let _ = host_index(0);
    }
}
