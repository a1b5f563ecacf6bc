// SPDX-License-Identifier: Apache-2.0
//! Real processes of `fide controller run`: killed, cut off from etcd, flooded, given false identities, on a
//! full disk. Every acknowledged request is there afterwards, exactly once.
//!
//! The network of these tests has no switches: cables join each two hosts, so trees are in use at once.

mod common;
mod etcd;
mod flood;
mod full;
mod killed;
mod refused;
mod several;
mod unit;
