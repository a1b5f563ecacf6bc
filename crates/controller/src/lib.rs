// SPDX-License-Identifier: Apache-2.0
#![forbid(unsafe_code)]
pub mod clock;
pub mod etcd;
pub mod handler;
pub mod identity;
pub mod leader;
pub mod pki;
pub mod sequence;
pub mod server;
pub mod shell;
pub mod store;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod upcalls;
