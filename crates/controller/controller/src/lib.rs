// SPDX-License-Identifier: Apache-2.0
//! `fide controller`, the resource controller of X-Lane (§2.2, §3.2, §3.3) and FiDe (§3.1, §3.3).
//!
//! The path of a request, from outside to inside:
//!
//! | module | what it does | it never |
//! |---|---|---|
//! | [`pki`] | certificates: who may talk, by name and role | reads a certificate's common name |
//! | [`tls`] | mutual TLS; its files are read again while it runs | drops a connection for it |
//! | [`server`] | JSON over HTTP, each bound, each error | knows what a path means |
//! | [`shell`] | one thread: decide, store, and only then answer and act | lets out what is not stored |
//! | [`handler`] | the deciding state machine, as a trait | does I/O, blocks |
//! | [`core`] | the handler: lanes, trees, faults, usage, the detector's cluster | holds a socket, a clock, a thread |
//! | [`sequence`], [`upcalls`] | order of requests, order of events; pure, and stored beside the decisions | read a clock |
//! | [`store`] | a log on a snapshot, in a file or in etcd, fenced by epochs | writes under an epoch that is over |
//! | [`switches`] | one thread for each switch: installs, retries, audits; carriers | touches a switch while it does not lead |
//! | [`cables`] | checks what is cabled to the switches' ports, by LLDP; warns if the topology differs | changes a switch |
//! | [`config`], [`run`] | the controller's file; everything put together | decides |
//! | [`leader`], [`etcd`] | who leads: a lock on a file, or a lease in etcd | leads when it cannot prove it |
//!
//! To plug in a state machine: implement [`handler::Handler`], start [`shell::Shell`] with a store and a
//! leadership, give its [`shell::RequestSender`] to a [`server::Server`]. What the paper calls downcalls
//! (List. 1) are the handler's routes; its upcalls are [`handler::Decision::upcalls`].
//!
//! **Invariant: only [`core`] decides what is granted to whom.** All else carries, orders and stores it.

#![forbid(unsafe_code)]

pub mod cables;
pub mod clock;
pub mod config;
pub mod core;
pub mod etcd;
pub mod handler;
pub mod leader;
pub mod pki;
pub mod run;
pub mod sequence;
pub mod server;
pub mod shell;
pub mod store;
pub mod switches;
#[cfg(test)]
mod testing;
pub mod tls;
pub mod upcalls;
