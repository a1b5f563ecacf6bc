// SPDX-License-Identifier: Apache-2.0
//! Three hosts of which two do not hear each other and the third hears both, and other events meanwhile.

use std::io::{BufRead, BufReader};

use super::*;

/// Events about `counter@h2` that a program on another host was notified of, line by line.
struct Watch(std::process::Child, std::sync::mpsc::Receiver<serde_json::Value>);

impl Watch {
    fn start(world: &World, host: usize) -> Self {
        let mut command: Command = world.bed.host(host).command(fide());
        command.args(["watch", "counter@h2", "--json", "--forever", "--socket"]).arg(world.agents.socket(host));
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (to, events) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = to.send(serde_json::from_str(&line).unwrap_or(line.into()));
            }
        });
        Self(child, events)
    }

    fn events(&self) -> Vec<serde_json::Value> {
        self.1.try_iter().collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the agent of a host acts in a view of these hosts.
fn goes_on(world: &World, host: usize, with: &[&str]) {
    retry_until("they go on without the third", LIMIT, || {
        let status = world.agents.ask(host, "status", serde_json::json!({}))?;
        let is_so = status["view"]["members"] == serde_json::json!(with) && status["fenced"] == false;
        if is_so { Ok(()) } else { Err(status.to_string()) }
    })
    .unwrap();
}

/// Hosts 1 and 2 do not hear each other, so host 2 is dropped; its member restarts before host 2 is back.
/// That member was not the first process of its agent, so its successor has a slot before its own.
#[test]
fn root_member_restarted_while_its_host_is_excluded_is_admitted() {
    let Some(mut world) = world(3, Protocol::Hsuc) else { return };
    world.add(1);
    world.kill(2);
    world.start_again(2);
    world.wait("h2 is back", |host, reported| (host == 2 && matches!(reported, Reported::Ready { .. })).then_some(()));
    let watches = [1, 3].map(|host| Watch::start(&world, host));
    world.bed.separate(&[1, 2]).unwrap();
    world.add(1);
    world.kill(2);
    world.start_again(2);
    goes_on(&world, 1, &["h1", "h3"]);
    world.bed.reunite(&[1, 2]).unwrap();
    world.wait("h2 is a member again", |host, reported| {
        (host == 2 && matches!(reported, Reported::Ready { .. })).then_some(())
    });
    world.agree();
    for watch in &watches {
        let mut events = Vec::new();
        // Events that the members know already may not be printed yet.
        let numbers = retry_until("it is up again, and nothing after that", LIMIT, || {
            events.extend(watch.events());
            let ups = events.iter().filter(|event| event["kind"] == "up");
            let numbers: Vec<u64> = ups.map(|up| up["evidence"]["incarnation"].as_u64().unwrap()).collect();
            let last = events.iter().rfind(|event| event["kind"] == "up" || event["kind"] == "verdict");
            let is_up = last.is_some_and(|last| last["kind"] == "up");
            if is_up && numbers.len() > 1 { Ok(numbers) } else { Err(format!("{events:#?}")) }
        });
        let numbers = numbers.unwrap();
        assert!(numbers.is_sorted(), "{events:#?}");
    }
}

/// Hosts 1 and 3 do not hear each other, so host 3 is dropped. While it is out, host 1 is cut off: the
/// remaining two have no majority, and all begin anew. No process has died, and all answered requests are
/// still there.
#[test]
fn root_all_excluded_members_found_their_group_again() {
    all_excluded(Protocol::Hsuc);
}

#[test]
fn root_all_excluded_members_found_their_group_again_with_huc() {
    all_excluded(Protocol::Huc);
}

fn all_excluded(protocol: Protocol) {
    let Some(mut world) = world(3, protocol) else { return };
    world.add(1);
    world.bed.separate(&[1, 3]).unwrap();
    // Both act until it is agreed that one stops; requests to the leader meanwhile wait for that.
    (0..25).for_each(|_| world.add(1));
    world.bed.isolate(1).unwrap();
    goes_on(&world, 2, &["h2", "h3"]);
    world.bed.rejoin(1).unwrap();
    world.bed.reunite(&[1, 3]).unwrap();
    let mut back = Vec::new();
    let mut leader = None;
    world.wait("all are members again", |host, reported| {
        match reported {
            Reported::Ready { .. } => back.push(host),
            Reported::Leads { .. } => leader = Some(host),
            _ => {}
        }
        back.sort_unstable();
        back.dedup();
        leader.filter(|_| back.len() == 3)
    });
    world.agree();
    let before = world.counter;
    world.add(leader.unwrap());
    assert_eq!((before, world.counter), (26 * 8, 27 * 8), "nothing was lost");
    world.agree();
}
