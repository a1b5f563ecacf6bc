// SPDX-License-Identifier: Apache-2.0
//! `fide jitter` in error cases: wrong arguments, bad logs, bad clocks, no peer, early ends. All run the real
//! program; tests that need namespaces are in `root.rs`.

mod common;
mod logs;
mod refused;
mod root;
mod runs;
