// SPDX-License-Identifier: Apache-2.0
//! What several of the benches need.
#![forbid(unsafe_code)]

pub mod heard;
