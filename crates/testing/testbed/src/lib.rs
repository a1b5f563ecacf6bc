// SPDX-License-Identifier: Apache-2.0
//! A cluster on one machine, for the demo, the end-to-end tests and the benches.
//!
//! ```text
//!   h1 ns          h2 ns          h3 ns        one network namespace per host
//!   p0  p1         p0  p1         p0  p1       one veth into each plane
//!   |    \________  |    \________ |   \___
//!   h1    h2   h3 (ports)          h1  h2  h3
//!   [ br0 in s0 ns ]               [ br0 in s1 ns ]   one switch per plane
//! ```
//!
//! * [`Testbed::build`] makes it, [`Testbed::cut`] and [`Testbed::flood`] disturb it, and dropping it removes
//!   it. If its creator is killed, a reaper process removes it; [`sweep`] removes what a killed reaper left
//!   behind.
//! * [`fabric`] is a network of several switches (bridges, Open vSwitch) for planned trees, with links that can be cut.
//! * [`Victim`] is a process made to die; [`Agents`] runs `fide agent` on each host; [`CpuLoad`] keeps the
//!   cores busy.
//! * [`Lines`] reads what a child prints, with a limit.
//! * [`browser`] opens a report in Chromium, and [`documented`] compares JSON with the page that describes
//!   it, for tests.
//! * [`baseline`] holds the baselines that Fide is compared with (TCP FIN, pidfd, memberlist, bfdd);
//!   [`figures`] writes the results.
//!
//! **Invariant: never touches an interface, process or file outside the namespaces and the scratch directory that it
//! made itself.** Every load has a bound in time and count.

mod agents;
pub mod baseline;
pub mod browser;
mod departures;
pub mod documented;
pub mod emulator;
mod error;
pub mod fabric;
pub mod figures;
mod lines;
mod load;
mod names;
mod net;
mod node;
mod port;
mod reaper;
mod redis;
mod scratch;
pub mod sys;
mod tools;
pub mod trace;
mod victim;

pub use agents::{AgentSpec, Agents, AgentsSpec};
pub use departures::Departures;
pub use error::{Error, Result};
pub use lines::Lines;
pub use load::{CpuLoad, Flood, FloodReport, FloodSpec, LOAD_MAX_NS, MAX_FLOOD_PACKETS};
pub use names::{Swept, sweep};
pub use net::{BULK_PORT, MAX_TESTBED_HOSTS, Multicast, Spec, Testbed, Tree};
pub use node::{Cluster, FIRST_HOST, Host, Node, supported};
pub use redis::{REDIS_PORT, RedisGroup, RedisServer, RedisSpec};
pub use scratch::Scratch;
pub use tools::{Stops, end_within, find_binary, retry_until, say_not_tested};
pub use victim::{Victim, VictimSpec, run as victim_main};
