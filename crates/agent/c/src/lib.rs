// SPDX-License-Identifier: Apache-2.0
//! The C ABIs of [`fide_client::capi`] and [`fide_group_c`] as the libraries `libfide.so` and `libfide.a`. Their
//! headers are `fide.h` and `fide_group.h` of those crates. One library holds both, as two would each bring
//! Rust's runtime and the functions of `fide.h`.
//!
//! A crate of its own, because cargo gives the file of such a library no hash: every crate that depends on
//! it would be compiled anew each time it is built with other features. Nothing depends on this one.
#![forbid(unsafe_code)]

pub use fide_client::capi::*;
pub use fide_group_c::*;
