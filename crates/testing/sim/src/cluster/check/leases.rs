// SPDX-License-Identifier: Apache-2.0
//! A member without a lease decides nothing and answers nothing.

use fide_agreement::Lease;

use super::{Checked, violated};

pub(in super::super) fn leased(host: u16, lease: Lease, does: &str) -> Checked {
    if lease.holds() { Ok(()) } else { violated("leases", format!("h{host} {does} without a lease: {lease:?}")) }
}
