// SPDX-License-Identifier: Apache-2.0
//! `fide jitter` where something is wrong: bad words, bad logs, bad clocks, nobody there, ends in the middle. The real
//! program throughout; what needs namespaces is in `root.rs`.

mod common;
mod logs;
mod refused;
mod root;
mod runs;
