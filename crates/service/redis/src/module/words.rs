// SPDX-License-Identifier: Apache-2.0
//! The names of what the filter puts in front of commands.

use std::ffi::{CStr, c_int};

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
pub(super) const IN_FRONT: [&CStr; 6] =
    [c"fide.p", c"fide.r", c"fide.refuse", c"fide.skip", c"fide.config", c"fide.wait"];

/// The arguments after the first one: the command itself.
pub(super) fn inner<'a>(argv: Argv, argc: c_int) -> Args<'a> {
    // SAFETY: Redis calls commands with their arguments, which live until the command returns; the caller is
    // a command, and keeps none.
    unsafe { Args::new(argv, argc) }.rest()
}
