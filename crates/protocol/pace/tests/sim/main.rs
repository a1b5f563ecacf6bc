// SPDX-License-Identifier: Apache-2.0
//! Whole connections over simulated links, by seed: nothing is delivered late, twice, out of order or wrong.

mod asked;
mod between;
mod both;
mod clocks;
mod counts;
mod departures;
mod endpoints;
mod ends;
mod hostile;
mod losses;
mod net;
mod on_path;
mod paces;
mod paths;
mod pauses;
mod promises;
mod queues;
mod share;
mod starts;
mod steps;
mod tcp;
mod windows;
mod world;
