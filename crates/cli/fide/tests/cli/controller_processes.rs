// SPDX-License-Identifier: Apache-2.0
//! Real processes of `fide controller run`, as an operator has them: killed, cut off from etcd, flooded, lied to, on a full
//! disk. What was acknowledged is there afterwards, once.
//!
//! The network of the tests has no switches: cables join each two hosts, so that trees are in use at once.

mod common;
mod etcd;
mod flood;
mod full;
mod killed;
mod refused;
mod several;
mod unit;
