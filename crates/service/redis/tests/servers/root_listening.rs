// SPDX-License-Identifier: Apache-2.0
//! Clients that are sent what others do are sent nothing that is not decided, also at a server that joins.

use fide_testbed::retry_until;

use crate::{
    root_cut_off::Asks,
    world::{LIMIT, World},
};

const ENTRY: &str = "the-entry";

/// A server that takes the data over executes what the leader has executed, decided or not.
#[test]
fn root_nobody_listens_at_a_server_that_takes_the_data_over() {
    const KEYS: u32 = 4000;
    let Some(mut world) = World::new(3, "hsuc") else { return };
    let (leader, followers) = (world.leader(), world.followers());
    let (other, joins) = (followers[0], followers[1]);
    let mut writer = world.connect(leader);
    for number in 0..KEYS {
        redis::cmd("SET").arg(number).arg("x").exec(&mut writer).unwrap();
    }
    // A dump takes six seconds: whoever asks below does so meanwhile, also on a machine that pauses.
    assert_eq!(world.ask(leader, "CONFIG SET rdb-key-save-delay 1500"), "+OK\r\n");
    world.kill(joins);
    world.start(joins);
    let syncs = retry_until("a dump under way", LIMIT, || {
        let info = world.ask(leader, "INFO persistence");
        let mode = world.mode(joins);
        if info.contains("rdb_bgsave_in_progress:1") && mode == "syncing" { Ok(()) } else { Err(mode) }
    });
    syncs.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    let listens = ["SUBSCRIBE s", "PSUBSCRIBE s*", "SSUBSCRIBE s", "MONITOR", "CLIENT TRACKING ON BCAST"];
    let mut listening = listens.map(|words| (words, Asks::new(&world, joins, 0, words)));
    let replies = listening.each_mut().map(|(_, asks)| asks.answer());
    // Without this server nothing is decided.
    world.server(other).pause();
    let published = world.server(leader).command(&["PUBLISH", "s", ENTRY]);
    published.expect_err("it is not decided");
    let offset = |info: &str, name: &str| {
        let offset = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::to_owned);
        offset.unwrap_or_default()
    };
    let has_all = retry_until("what the leader has executed", LIMIT, || {
        let [of_leader, own] = [leader, joins].map(|host| world.ask(host, "INFO replication"));
        let is_there = offset(&own, "slave_repl_offset") == offset(&of_leader, "master_repl_offset");
        if is_there && own.contains("master_link_status:up") { Ok(()) } else { Err(own) }
    });
    has_all.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    let mode = world.mode(leader);
    for ((words, asks), reply) in listening.iter_mut().zip(replies) {
        let more = asks.received();
        assert!(!more.contains(ENTRY), "{words}: {reply}{more}");
        assert!(reply.starts_with("-LOADING this server is no member"), "{words}: {reply}");
    }
    world.server(other).resume();
    assert_eq!(mode, "undecided");
    world.await_ready();
    world.assert_alike();
    // Who listens at a follower is disconnected once that takes the data over.
    let mut listening = ["SUBSCRIBE s", "MONITOR", "MULTI"].map(|words| {
        let mut asks = Asks::new(&world, joins, 0, words);
        let reply = asks.answer();
        assert!(!reply.is_empty() && !reply.starts_with('-'), "{words}: {reply}");
        asks
    });
    assert_eq!(world.ask(leader, &format!("PUBLISH s {ENTRY}")), ":0\r\n");
    let message = listening[0].answer();
    assert!(message.contains(ENTRY), "{message}");
    world.bed.isolate(joins).expect("cut");
    world.await_excluded(leader, joins);
    world.bed.rejoin(joins).expect("back");
    for mut asks in listening {
        // A monitor is shown what else this test asks.
        while !asks.answer().is_empty() {}
    }
    world.await_ready();
    world.assert_alike();
}
