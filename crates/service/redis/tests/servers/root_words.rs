// SPDX-License-Identifier: Apache-2.0
//! What servers answer to operators: with names, and with what to do next.

use fide_testbed::{RedisServer, RedisSpec, retry_until};

use crate::world::{LIMIT, World, module};

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

#[test]
fn root_refusals_have_the_names_of_hosts_and_what_to_do() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, followers) = (world.leader(), world.followers());
    let address = |host: usize| format!("{}:6379", world.bed.host(host).address(0));
    let at_leader = format!("the leader is h{leader} at {}: ask there, ", address(leader));
    for (host, line, wanted) in [
        (leader, format!("FIDE.TRANSFER h{leader}"), format!("h{leader} leads already; name another member of h")),
        (
            leader,
            "FIDE.LEAVE h9".to_owned(),
            "no host of this cluster is named h9; its hosts are h1, h2, h3".to_owned(),
        ),
        (
            leader,
            "FIDE.TRANSFER h9".to_owned(),
            "no host of this cluster is named h9; its hosts are h1, h2, h3".to_owned(),
        ),
        (followers[0], "FIDE.LEAVE".to_owned(), format!("{at_leader}FIDE.LEAVE h{}\r\n", followers[0])),
        (followers[0], format!("FIDE.LEAVE h{}", followers[1]), format!("{at_leader}FIDE.LEAVE h{}\r\n", followers[1])),
    ] {
        let reply = world.ask(host, &line);
        assert!(reply.starts_with(&format!("-ERR {wanted}")), "{line} at h{host}: {reply}");
    }
    // Without a name the server that is asked: the leader.
    assert_eq!(world.ask(leader, "FIDE.LEAVE"), "+OK\r\n");
    let out = retry_until("it is out", LIMIT, || match world.mode(leader).as_str() {
        "out" => Ok(()),
        mode => Err(mode.to_owned()),
    });
    out.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    world.kill(leader);
    world.await_ready();
    let next = world.leader();
    let reply = world.ask(next, &format!("FIDE.TRANSFER h{leader}"));
    assert!(reply.starts_with(&format!("-ERR h{leader} is not a member; the members are h")), "{reply}");
}

#[test]
fn root_quorum_counts_all_live_servers() {
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let followers = world.followers();
    let count = |world: &World, host, count: usize| {
        let reply = world.ask(host, "SENTINEL CKQUORUM redis");
        assert!(reply.contains(&format!("OK {count} usable Sentinels")), "h{host}: {reply}");
    };
    world.hosts().into_iter().for_each(|host| count(&world, host, 3));
    world.kill(followers[0]);
    let left = retry_until("a view of two", LIMIT, || match world.status(followers[1])["members"].as_array() {
        Some(members) if members.len() == 2 => Ok(()),
        members => Err(format!("{members:?}")),
    });
    left.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    count(&world, followers[1], 2);
}

/// A leader's setting was taken: it would have gone to whoever it was handed the lead by, and told nobody.
#[test]
fn root_settings_that_servers_need_are_refused_at_leaders_too() {
    let Some(world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    for host in [leader, follower] {
        for value in ["ignore", "panic-on-all-errors"] {
            let reply = world.ask(host, &format!("CONFIG SET propagation-error-behavior {value}"));
            assert!(reply.starts_with("-ERR CONFIG SET propagation-error-behavior is refused"), "h{host}: {reply}");
        }
        let reply = world.ask(host, "CONFIG SET protected-mode yes");
        assert!(reply.starts_with("-ERR CONFIG SET protected-mode is refused"), "h{host}: {reply}");
        assert_eq!(world.ask(host, "CONFIG SET protected-mode no"), "+OK\r\n");
    }
    // The module's own: a leader goes on where its data is the only copy.
    let behaviour = |host| world.ask(host, "CONFIG GET propagation-error-behavior");
    assert!(behaviour(leader).contains("ignore"), "{}", behaviour(leader));
    assert!(behaviour(follower).contains("panic-on-replicas"), "{}", behaviour(follower));
    assert_eq!(world.ask(leader, &format!("FIDE.TRANSFER h{follower}")), "+OK\r\n");
    world.await_ready();
    assert!(behaviour(leader).contains("panic-on-replicas") && behaviour(follower).contains("ignore"));
    world.assert_alike();
}
