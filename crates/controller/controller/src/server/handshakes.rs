// SPDX-License-Identifier: Apache-2.0
//! Bounds the handshakes under way: their peers are not known yet, so they are counted by address.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Limits;

/// Why a connection is closed before its handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum TooMany {
    #[error("{0} handshakes are under way, one more connection is closed")]
    All(usize),
    #[error("{0} handshakes from this address are under way, one more connection is closed")]
    OfAddress(usize),
}

/// Handshakes under way.
#[derive(Debug, Clone)]
pub(super) struct Handshakes {
    limits: Limits,
    /// By address; no entry without a handshake.
    under_way: Arc<Mutex<BTreeMap<IpAddr, usize>>>,
}

/// One handshake, until it is dropped.
#[derive(Debug)]
pub(super) struct Handshake {
    all: Handshakes,
    of: IpAddr,
}

/// Addresses that one host can choose from count as one.
fn owner(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & (u128::MAX << 64)).into(),
        v4 => v4,
    }
}

impl Handshakes {
    pub(super) fn new(limits: Limits) -> Handshakes {
        Handshakes { limits, under_way: Arc::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.under_way.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Counts a handshake from `address`, if it may have one more.
    pub(super) fn begin(&self, address: IpAddr) -> Result<Handshake, TooMany> {
        let of = owner(address);
        let mut under_way = self.lock();
        if under_way.values().sum::<usize>() >= self.limits.handshakes {
            return Err(TooMany::All(self.limits.handshakes));
        }
        let mine = under_way.get(&of).copied().unwrap_or(0);
        if mine >= self.limits.handshakes_per_address {
            return Err(TooMany::OfAddress(mine));
        }
        under_way.insert(of, mine + 1);
        Ok(Handshake { all: self.clone(), of })
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        let mut under_way = self.all.lock();
        if let Some(count) = under_way.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.of);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handshakes_are_bounded_by_address_and_given_back() {
        let limits = Limits { handshakes: 5, handshakes_per_address: 2, ..Limits::default() };
        let all = Handshakes::new(limits);
        let from = |text: &str| all.begin(text.parse().unwrap());
        let mut held = vec![from("10.0.0.1").unwrap(), from("::ffff:10.0.0.1").unwrap()];
        assert_eq!(from("10.0.0.1").unwrap_err(), TooMany::OfAddress(2), "mapped addresses are the same");
        held.extend([from("2001:db8::1").unwrap(), from("2001:db8::2:1").unwrap()]);
        assert_eq!(from("2001:db8::3").unwrap_err(), TooMany::OfAddress(2), "a /64 is one address");
        held.push(from("2001:db8:0:1::3").unwrap());
        assert_eq!(from("10.0.0.2").unwrap_err(), TooMany::All(5));
        held.clear();
        assert!(all.lock().is_empty());
        from("10.0.0.1").unwrap();
    }
}
