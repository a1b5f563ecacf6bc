// SPDX-License-Identifier: Apache-2.0
#![forbid(unsafe_code)]
pub mod identity;
pub mod pki;
pub mod sequence;
pub mod tls;
pub mod upcalls;
