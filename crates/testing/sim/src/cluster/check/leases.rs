// SPDX-License-Identifier: Apache-2.0
//! A member without a lease decides nothing and answers nothing.

use fide_agreement::Lease;
use fide_types::HostId;

use super::{Checked, violated};

pub(in super::super) fn leased(host: HostId, lease: Lease, does: &str) -> Checked {
    if lease.holds() { Ok(()) } else { violated("leases", format!("h{host} {does} without a lease: {lease:?}")) }
}
