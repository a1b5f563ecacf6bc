// SPDX-License-Identifier: Apache-2.0
//! Programs of a host whose agent is killed and started again.

use std::process::{Child, Command};
use std::time::Duration;

use fide_client::{Client, ConnectOptions, Event, Reason, Verdict, Wanted};

use super::common::Agent;

/// How often a test polls the clients' events before it gives up, 50 ms apart.
const TRIES: usize = 1200;

struct Reap(Child);

impl Drop for Reap {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

fn session(agent: &Agent) -> Client {
    let options = ConnectOptions { path: Some(agent.socket()), ..ConnectOptions::default() };
    Client::connect(options).expect("a session")
}

/// Waits for an event; events of the other clients meanwhile go into `events`.
fn until(what: &str, events: &mut Vec<Event>, clients: &mut [&mut Client], is_it: impl Fn(&Event) -> bool) {
    for _ in 0..TRIES {
        for client in &mut *clients {
            while let Some(event) = client.poll_event().expect("an event") {
                events.push(event);
            }
        }
        if events.iter().any(&is_it) {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no {what}: {events:#?}");
}

fn verdicts(events: &[Event]) -> Vec<(u32, Reason)> {
    let of = |event: &Event| match event {
        Event::Verdict(Verdict { evidence, reason, .. }) => Some((evidence.incarnation, *reason)),
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

#[test]
fn death_on_this_host_while_its_agent_is_away_is_notified_once() {
    let mut agent = Agent::start(7542);
    let (mut eyes, mut near) = (session(&agent), session(&agent));
    let mut db = Reap(Command::new("sleep").arg("600").spawn().expect("sleep"));
    near.join_pid("db", db.0.id(), Duration::ZERO).expect("joined");
    eyes.monitor("db@h1", Wanted::default()).expect("a watch");
    let mut events = Vec::new();
    until("db", &mut events, &mut [&mut eyes], |event| matches!(event, Event::Up { .. }));
    let Some(Event::Up { evidence, .. }) = events.pop() else { panic!("{events:?}") };
    agent.child.kill().expect("killed");
    agent.child.wait().expect("reaped");
    db.0.kill().expect("killed");
    db.0.wait().expect("reaped");
    agent.kill_and_start();
    until("end of db", &mut events, &mut [&mut eyes, &mut near], |event| matches!(event, Event::Verdict(_)));
    assert_eq!(verdicts(&events), [(evidence.incarnation, Reason::HostSilent)]);
    // Another process of that name ends nothing.
    let again = Reap(Command::new("sleep").arg("600").spawn().expect("sleep"));
    near.join_pid("db", again.0.id(), Duration::ZERO).expect("joined");
    until(
        "next db",
        &mut events,
        &mut [&mut eyes],
        |event| matches!(event, Event::Up { evidence: next, .. } if next.incarnation != evidence.incarnation),
    );
    assert_eq!(verdicts(&events).len(), 1, "{events:#?}");
}
