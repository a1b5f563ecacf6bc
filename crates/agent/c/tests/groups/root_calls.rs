// SPDX-License-Identifier: Apache-2.0
//! What a member in C sees of its group, under both protocols.

use fide_testbed::end_within;

use crate::world::{LIMIT, World};

fn every_call_does_what_it_says(protocol: &str) {
    let Some(world) = World::new(2) else { return };
    let program = world.compile("crates/agent/c/tests/groups/calls.c");
    let mut members: Vec<_> = (1..=2).map(|host| world.start(host, &program, &[protocol])).collect();
    for (at, member) in members.iter_mut().enumerate() {
        let status = end_within(&mut member.0, LIMIT).unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
        assert!(status.success(), "h{}: {status}\n{}", at + 1, world.logs());
    }
}

#[test]
fn root_every_call_does_what_it_says_under_hsuc() {
    every_call_does_what_it_says("0");
}

#[test]
fn root_every_call_does_what_it_says_under_huc() {
    every_call_does_what_it_says("1");
}
