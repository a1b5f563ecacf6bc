// SPDX-License-Identifier: Apache-2.0
//! Hosts of which two do not hear each other and the third hears both, and what happens meanwhile.

use std::io::{BufRead, BufReader};

use super::*;

impl World {
    fn has_ended(&mut self, host: u16) {
        retry_until("its replica has ended", LIMIT, || {
            let log = log(&self.agents, host.into());
            if log.contains("the group goes on without this host") { Ok(()) } else { Err(log) }
        })
        .unwrap();
        self.replicas.nodes.retain(|node| node.host != host);
    }
}

/// What a program was told of `counter@h2` by the agent of another host, line by line.
struct Watch(std::process::Child, std::sync::mpsc::Receiver<serde_json::Value>);

impl Watch {
    fn start(world: &World, host: usize) -> Self {
        let mut command: Command = world.bed.host(host).command(fide());
        command.args(["watch", "counter@h2", "--json", "--forever", "--socket"]).arg(world.agents.socket(host));
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (to, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = to.send(serde_json::from_str(&line).unwrap_or(line.into()));
            }
        });
        Self(child, told)
    }

    fn told(&self) -> Vec<serde_json::Value> {
        self.1.try_iter().collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Hosts 1 and 2 do not hear each other, so that host 2 goes; its member starts again before it is back. It was not the first process
/// of its agent, so that its successor is in a slot before its own.
#[test]
fn root_a_member_that_starts_again_while_its_host_is_out_is_let_in() {
    let Some(mut world) = world(3, Protocol::Hsuc) else { return };
    world.add(1);
    world.kill(2);
    world.start_again(2);
    world.wait("h2 is back", |host, told| (host == 2 && matches!(told, Told::Ready { .. })).then_some(()));
    let watches = [1, 3].map(|host| Watch::start(&world, host));
    world.bed.separate(&[1, 2]).unwrap();
    world.add(1);
    world.has_ended(2);
    world.start_again(2);
    std::thread::sleep(Duration::from_millis(500));
    world.bed.reunite(&[1, 2]).unwrap();
    world.wait("h2 is a member again", |host, told| (host == 2 && matches!(told, Told::Ready { .. })).then_some(()));
    world.agree();
    for watch in &watches {
        let told = watch.told();
        let numbers = told.iter().filter(|event| event["kind"] == "up").map(|event| &event["evidence"]["incarnation"]);
        let numbers: Vec<u64> = numbers.map(|number| number.as_u64().unwrap()).collect();
        assert!(numbers.is_sorted() && numbers.len() > 1, "{told:#?}");
        let last = told.iter().rfind(|event| event["kind"] == "up" || event["kind"] == "verdict").unwrap();
        assert_eq!(last["kind"], "up", "{told:#?}");
    }
}
