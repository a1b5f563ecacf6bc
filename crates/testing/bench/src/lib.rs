// SPDX-License-Identifier: Apache-2.0
//! Code that several of the benches share.
#![forbid(unsafe_code)]

pub mod heard;
