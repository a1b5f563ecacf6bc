// SPDX-License-Identifier: Apache-2.0
//! The names of what the filter puts in front of commands.

use std::ffi::{CStr, c_int};

use super::PROOF;
use crate::{
    commands::Checks,
    redis::{Args, Argv},
};

/// FIDE.W with the flags that Redis checks, by [`Checks::index`].
pub(super) const WRITES: [(&CStr, &CStr); Checks::ALL.len()] = [
    (c"fide.w", c"write no-slowlog no-monitor"),
    (c"fide.wm", c"write deny-oom no-slowlog no-monitor"),
    (c"fide.ws", c"write deny-script no-slowlog no-monitor"),
    (c"fide.wms", c"write deny-oom deny-script no-slowlog no-monitor"),
];
/// The other ones.
pub(super) const IN_FRONT: [&CStr; 10] = [
    c"fide.p",
    c"fide.r",
    c"fide.refuse",
    c"fide.skip",
    c"fide.config",
    c"fide.wait",
    c"fide.link",
    c"fide.role",
    c"fide.pause",
    c"fide.multi",
];
/// In front of scripts, and SORT, that a follower passes on ([`super::scripts`]).
pub(super) const AS: &CStr = c"fide.as";

/// The arguments after the first one: the command itself.
pub(super) fn inner<'a>(argv: Argv, argc: c_int) -> Args<'a> {
    // SAFETY: Redis calls commands with their arguments, which live until the command returns; the caller is
    // a command, and keeps none.
    unsafe { Args::new(argv, argc) }.rest()
}

/// Whether this is what shows that a server of the group has sent a command ([`super::scripts::proof`]).
pub(super) fn is_proof(given: &[u8]) -> bool {
    PROOF.with_borrow(|proof| !proof.is_empty() && is_same(proof, given))
}

/// Whether both are the same, in a time that does not tell how far they are.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differs, (one, other)| differs | (one ^ other)) == 0
}
