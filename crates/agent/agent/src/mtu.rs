// SPDX-License-Identifier: Apache-2.0
//! The largest packet that this host's planes carry.

use std::io;

use fide_sys::interface;
use fide_types::PAYLOAD_MAX;

/// Bytes of IPv4 and UDP around a payload.
pub(crate) const PACKET_HEADERS: usize = 28;

/// The largest packet that all of these interfaces carry, bytes of UDP payload.
///
/// # Errors
/// The kernel's, if one of them is gone.
pub(crate) fn payload_max(names: &[String]) -> io::Result<usize> {
    names
        .iter()
        .try_fold(PAYLOAD_MAX, |least, name| Ok(interface::mtu_bytes(name)?.saturating_sub(PACKET_HEADERS).min(least)))
}
