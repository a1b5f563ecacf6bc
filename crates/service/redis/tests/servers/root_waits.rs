// SPDX-License-Identifier: Apache-2.0
//! What a server says that is not in its group: why, and what to do, and never anything that would lose data.

use std::{process::Command, time::Duration};

use fide_testbed::retry_until;

use crate::{
    root_input::Small,
    world::{LIMIT, World},
};

const DURABLE: [&str; 4] = ["durable", "disk", "log-bytes", "100000"];

impl World {
    /// What a server waits for.
    fn waits_for(&self, host: usize) -> String {
        self.status(host)["waits_for"].as_str().unwrap_or_default().to_owned()
    }

    fn await_said(&self, host: usize, wanted: &str) -> String {
        let said = retry_until(wanted, LIMIT, || {
            let said = self.waits_for(host);
            if said.contains(wanted) { Ok(said) } else { Err(said) }
        });
        said.unwrap_or_else(|why| panic!("{why}\n{}", self.logs()))
    }
}

/// An operator who ends all servers and removes their records has then lost the data of all.
#[test]
fn root_server_without_room_for_the_data_says_so_and_advises_to_remove_nothing() {
    let Some(mut world) = World::with(2, "hsuc", &DURABLE) else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.assert_alike();
    world.kill(follower);
    let mut connection = world.connect(leader);
    let mut seed = 1_u64;
    for key in 0..24 {
        // Redis would compress a pattern.
        let value: Vec<u8> = std::iter::repeat_with(|| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed as u8
        })
        .take(1 << 20)
        .collect();
        redis::cmd("SET").arg(key).arg(value).exec(&mut connection).expect("the last server of the group");
    }
    let small = Small::over(world.server(leader).dir().with_file_name("small"), "8m");
    let dir = small.0.display().to_string();
    world.start_beside(follower, &["--dir", &dir]);
    // Longer than a member waits before it takes the group for lost.
    for _ in 0..40 {
        let said = world.waits_for(follower);
        assert!(!said.contains("remove"), "{said}\n{}", world.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
    let said = world.await_said(follower, "No space left on device");
    assert!(said.contains(&format!("make room in {dir}")), "{said}");
    assert!(said.contains(&format!("the group goes on (h{leader})")), "{said}");
    let refused = world.ask(follower, "GET k");
    assert!(refused.starts_with("-LOADING ") && refused.contains("No space left on device"), "{refused}");
    let log = world.server(follower).log();
    assert_eq!(log.matches("the group's data could not be stored: No space left").count(), 1, "{log}");
    let larger = Command::new("mount").args(["-o", "remount,size=256m"]).arg(&small.0).status();
    assert!(larger.is_ok_and(|status| status.success()));
    world.await_ready();
    assert_eq!(world.waits_for(follower), "");
    world.assert_alike();
    world.kill(follower);
}

/// The one case in which records are in the way: whoever has the state is dead, and every host has said so.
#[test]
fn root_lost_group_is_told_from_one_that_may_go_on() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    assert_eq!(world.ask(world.leader(), "SET k v"), "+OK\r\n");
    world.kill_all();
    world.start(1);
    let said = world.await_said(1, "no process redis@h2 is known to run");
    assert!(!said.contains("remove"), "{said}");
    world.start(2);
    for host in [1, 2] {
        world.await_said(host, "every member has died, and the state is lost; to found the group anew, end all members, remove their records");
    }
}

#[test]
fn root_durable_server_that_waits_for_another_disk_advises_to_remove_nothing() {
    let Some(mut world) = World::with(2, "hsuc", &DURABLE) else { return };
    assert_eq!(world.ask(world.leader(), "SET k v"), "+OK\r\n");
    world.assert_alike();
    // Both in one view: neither goes on alone for the moment between two kills.
    for host in world.hosts() {
        world.server(host).pause();
    }
    world.kill_all();
    world.start(1);
    let said = world.await_said(1, "this host has the group's log on disk up to position");
    assert!(said.contains("no word has come yet from those on h2") && !said.contains("remove"), "{said}");
    // The other one comes with another disk, and says that it is no member.
    let dir = world.agents.dir(2).join("redis/group");
    let kept = dir.with_file_name("kept");
    std::fs::rename(&dir, &kept).expect("it is there");
    world.start(2);
    for _ in 0..40 {
        for host in [1, 2] {
            let said = world.waits_for(host);
            assert!(!said.contains("remove"), "h{host}: {said}");
        }
        assert_ne!(world.waits_for(1), "", "{}", world.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
    // Once more: it has a record now, and answers for no process before that.
    world.kill(2);
    world.start(2);
    for _ in 0..20 {
        assert_ne!(world.waits_for(1), "", "{}", world.logs());
        std::thread::sleep(Duration::from_millis(100));
    }
    world.kill(2);
    std::fs::remove_dir_all(&dir).expect("it is there");
    std::fs::rename(&kept, &dir).expect("it is there");
    world.start(2);
    world.await_ready();
    assert_eq!(world.ask(world.leader(), "GET k"), "$1\r\nv\r\n");
}

/// Every other server refuses its connection: nothing else would say why it does not come in.
#[test]
fn root_server_that_is_refused_by_the_leaders_redis_says_so() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.kill(follower);
    assert_eq!(world.ask(leader, "CONFIG SET requirepass secret"), "+OK\r\n");
    world.start(follower);
    let said = world.await_said(follower, "no data comes from");
    assert!(said.contains(":6379") && said.contains("masterauth"), "{said}");
    assert_eq!(world.ask(follower, "CONFIG SET masterauth secret"), "+OK\r\n");
    let ready = retry_until("it follows", LIMIT, || match world.mode(follower).as_str() {
        "following" => Ok(()),
        mode => Err(format!("{mode} {}", world.waits_for(follower))),
    });
    ready.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
}

#[test]
fn root_server_with_other_settings_says_which_to_compare() {
    let Some(mut world) = World::new(2, "hsuc") else { return };
    let (leader, follower) = (world.leader(), world.followers()[0]);
    world.kill(follower);
    world.set_arguments(&DURABLE);
    world.start(follower);
    world.await_said(follower, &format!("No answer has come from h{leader}"));
    // The member that it asks knows more.
    let wanted = format!("h{follower} and this host do not let each other into their group");
    let said = retry_until("the leader's word", LIMIT, || {
        let refuses = world.status(leader)["refuses"].as_str().unwrap_or_default().to_owned();
        let log = world.server(leader).log();
        if refuses.contains(&wanted) && log.contains(&wanted) { Ok((refuses, log)) } else { Err(refuses) }
    });
    let (refuses, log) = said.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
    assert!(
        refuses.contains("Compare the list of hosts, the protocol and its settings, and whether the group is durable")
    );
    assert_eq!(log.matches(&wanted).count(), 1, "{log}");
    // Neither leads: both say it.
    world.kill(leader);
    world.set_arguments(&[]);
    world.start(leader);
    for host in [leader, follower] {
        let other = leader + follower - host;
        let said = world.await_said(host, &format!("h{other} and this host do not let each other into their group"));
        assert!(!said.contains("remove"), "{said}");
    }
    world.kill(leader);
    world.set_arguments(&DURABLE);
    world.start(leader);
    let gone = retry_until("they agree on their settings", LIMIT, || match world.status(leader)["refuses"].as_str() {
        None => Ok(()),
        Some(why) => Err(why.to_owned()),
    });
    gone.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
}
