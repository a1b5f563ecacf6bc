// SPDX-License-Identifier: Apache-2.0
//! The C ABI of [`fide_client::capi`] as the libraries `libfide.so` and `libfide.a`; its header is `fide.h`
//! of that crate.
//!
//! A crate of its own, because cargo gives the file of such a library no hash: every crate that depends on
//! it would be compiled anew each time it is built with other features. Nothing depends on this one.
#![forbid(unsafe_code)]

pub use fide_client::capi::*;
