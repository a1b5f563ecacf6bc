// SPDX-License-Identifier: Apache-2.0
//! What servers answer to operators: with names, and with what to do next.

use fide_testbed::{RedisServer, RedisSpec};

use crate::world::{World, module};

#[test]
fn root_module_without_arguments_says_what_to_write() {
    let Some(mut world) = World::new(1, "hsuc") else { return };
    world.kill(1);
    let arguments = vec!["--loadmodule".to_owned(), module().display().to_string()];
    let started =
        RedisServer::start(world.bed.host(1), &world.agents, &RedisSpec { arguments, ..RedisSpec::default() });
    let why = started.map(|_| ()).expect_err("it has no settings").to_string();
    assert!(why.contains("cluster is missing; for example: loadmodule fide_redis.so cluster"), "{why}");
    assert!(!why.contains("panicked"), "{why}");
}
