// SPDX-License-Identifier: Apache-2.0
//! Members that are removed from a group, and admitted hosts that are never welcomed.

use rustix::process::{Pid, Signal, kill_process};

use super::*;

/// Time between two messages of a host that is let in slowly.
const SLOW: Duration = Duration::from_millis(200);

impl World {
    fn removes(&mut self, leader: u16, host: u16) {
        self.replicas.node(leader).expect("a leader").order(&Order::Remove { remove: host }).expect("asked");
    }

    /// The host reports that it is removed, and ends. It reports that it is still needed only if it looks in
    /// between; tests of the group look each time.
    fn leaves(&mut self, host: u16) {
        self.wait("it is out", |who, reported| {
            (who == host && matches!(reported, Reported::Removed { .. })).then_some(())
        });
        self.replicas.nodes.retain(|node| node.host != host);
    }

    /// Waits until `of` is in a view of these hosts.
    fn views(&mut self, of: u16, wanted: &[u16]) {
        self.wait("a view", |who, reported| match reported {
            Reported::View { hosts, .. } if who == of && hosts == wanted => Some(()),
            _ => None,
        });
    }

    fn is_back(&mut self, host: u16) {
        self.wait("it is in", |who, reported| {
            (who == host && matches!(reported, Reported::Ready { .. })).then_some(())
        });
    }

    /// Host 1 is the only member left, and has just begun a view with host 2, which asks seldom and has no
    /// welcome yet.
    fn lets_in_slowly(protocol: Protocol) -> Option<Self> {
        let mut world = world(3, protocol)?;
        world.add(1);
        [2, 3].into_iter().for_each(|host| world.kill(host));
        world.views(1, &[1]);
        world.replicas.resend = Some(SLOW);
        world.start_again(2);
        world.views(1, &[1, 2]);
        world.replicas.resend = None;
        Some(world)
    }

    fn signal(&mut self, host: u16, signal: Signal) {
        let pid = self.replicas.node(host).expect("a replica").pid();
        kill_process(Pid::from_raw(pid.cast_signed()).expect("a process"), signal).expect("signalled");
    }
}

#[test]
fn root_removed_members_leave_once_others_have_begun() {
    taken_out(Protocol::Hsuc);
}

#[test]
fn root_removed_members_leave_once_others_have_begun_with_huc() {
    taken_out(Protocol::Huc);
}

fn taken_out(protocol: Protocol) {
    let Some(mut world) = world(3, protocol) else { return };
    world.add(1);
    world.removes(1, 2);
    world.leaves(2);
    world.add(1);
    // The leader itself.
    world.removes(1, 1);
    world.leaves(1);
    world.add(3);
    assert_eq!(world.counter, 24);
    // The last member that has the state stays.
    world.removes(3, 3);
    world.add(3);
    assert_eq!(world.counter, 32);
    world.start_again(1);
    world.is_back(1);
    world.leaves(3);
    world.add(1);
    [2, 3].into_iter().for_each(|host| {
        world.start_again(host);
        world.is_back(host);
    });
    world.agree();
    assert_eq!(world.counter, 40);
}

#[test]
fn root_admitted_host_without_welcome_steps_back() {
    let Some(mut world) = World::lets_in_slowly(Protocol::Hsuc) else { return };
    // Host 1 is excluded before host 2, whose process is stopped, is welcomed. Then each waits for a message
    // of the other.
    world.signal(2, Signal::STOP);
    world.bed.isolate(1).unwrap();
    let is_out = || {
        let status = world.agents.ask(2, "status", serde_json::json!({}))?;
        let members = status["view"]["members"].as_array().cloned().unwrap_or_default();
        if members.contains(&"h1".into()) { Err(status.to_string()) } else { Ok(()) }
    };
    retry_until("h1 is out", LIMIT, is_out).unwrap();
    world.bed.rejoin(1).unwrap();
    world.signal(2, Signal::CONT);
    let mut back = Vec::new();
    world.wait("both are members", |host, reported| {
        assert!(!back.contains(&2) || back.contains(&1), "host 2 was welcomed before: the test came too late");
        back.extend(matches!(reported, Reported::Ready { .. }).then_some(host));
        (back.contains(&1) && back.contains(&2)).then_some(())
    });
    world.start_again(3);
    world.is_back(3);
    world.agree();
    assert_eq!(world.counter, 8, "nothing was lost");
    world.add(1);
    assert_eq!(world.counter, 16);
}

#[test]
fn root_admitted_host_killed_before_its_welcome_blocks_no_member() {
    let Some(mut world) = World::lets_in_slowly(Protocol::Hsuc) else { return };
    world.kill(2);
    world.add(1);
    assert_eq!(world.counter, 16);
    [2, 3].into_iter().for_each(|host| {
        world.start_again(host);
        world.is_back(host);
    });
    world.agree();
}
