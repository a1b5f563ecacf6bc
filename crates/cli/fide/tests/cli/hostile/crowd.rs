// SPDX-License-Identifier: Apache-2.0
//! Many programs of one user: they come back to a new agent together, or leave in the middle of a request.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use fide_client::{Client, ConnectOptions, Event, Wanted};
use serde_json::json;

use super::common::{Agent, Got, LIMIT, Raw, USER, as_user};

/// The limits of the user; the agent has 64 sessions and 1024 watches in all.
const LIMITS: &str = "[limits]\nsessions = 50\nwatches = 850\n";
const CLIENTS: usize = 50;
const WATCHES: usize = 17;
/// Polls of all clients until they are back, some milliseconds apart; no client waits.
const LOOKS_MAX: usize = 5_000;
const LOOK: Duration = Duration::from_millis(5);
/// Threads of a user that connect and hang up; sessions opened, and agents started, meanwhile.
const CHURNERS: usize = 4;
const SERVED: usize = 20;
const SECOND_AGENTS: usize = 3;
/// Sessions of one user.
const MOST_SESSIONS: usize = 28;
/// Requests for which a user waits several seconds.
const ASKED: usize = 220;
/// How many of them are answered at once.
const AT_ONCE: usize = 64;

#[test]
fn root_programs_of_one_user_all_come_back_to_a_killed_agent() {
    let mut agent = Agent::configured(7537, LIMITS);
    let path = agent.socket();
    let Some(mut clients) = as_user(USER, move || {
        let connect = || {
            let options = ConnectOptions { path: Some(path.clone()), ..ConnectOptions::default() };
            let mut client = Client::connect(options).expect("a session");
            for n in 0..WATCHES {
                client.monitor(&format!("w{n}@h1"), Wanted::default()).expect("a watch");
            }
            client
        };
        (0..CLIENTS).map(|_| connect()).collect::<Vec<_>>()
    }) else {
        return;
    };
    agent.kill_and_start();
    let back = as_user(USER, move || {
        let mut back = [0u32; CLIENTS];
        let mut detached = 0;
        for _ in 0..LOOKS_MAX {
            for (client, back) in clients.iter_mut().zip(&mut back) {
                while let Some(event) = client.poll_event().expect("an event") {
                    match event {
                        Event::Reattached { resumed } => *back += u32::from(!resumed),
                        Event::Detached { .. } => detached += 1,
                        Event::Dropped { what, refusal } => panic!("{what}: {refusal}"),
                        _ => {}
                    }
                }
            }
            if back.iter().all(|back| *back == 1) {
                break;
            }
            std::thread::sleep(LOOK);
        }
        (back, detached, clients)
    });
    let (back, detached, clients) = back.expect("root");
    assert_eq!((back, detached), ([1; CLIENTS], CLIENTS), "each has come back, once: {}", agent.log());
    let status = agent.connect().ok(json!({ "op": "status" }));
    let watches: u64 =
        status["clients"].as_array().expect("a list").iter().filter_map(|one| one["watches"].as_u64()).sum();
    assert_eq!(watches, (CLIENTS * WATCHES) as u64);
    drop(clients);
    agent.serves();
}

/// Threads of this user connect and hang up, without waiting, until told to stop.
fn churn(path: &Path, stop: &Arc<AtomicBool>) -> Option<Vec<JoinHandle<()>>> {
    let (path, stop) = (path.to_owned(), Arc::clone(stop));
    as_user(USER, move || {
        let churner = || {
            let (path, stop) = (path.clone(), Arc::clone(&stop));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    drop(fide_sys::seqpacket::connect(&path, Duration::ZERO));
                }
            })
        };
        (0..CHURNERS).map(|_| churner()).collect()
    })
}

#[test]
fn root_endless_connects_of_a_user_shut_no_other_out() {
    let mut agent = Agent::start(7543);
    let path = agent.socket();
    let inode = || fs::metadata(&path).expect("the agent's socket").ino();
    let options = || ConnectOptions { path: Some(path.clone()), call_timeout: LIMIT, ..ConnectOptions::default() };
    let mut before = Client::connect(options()).expect("a session");
    let (stop, socket) = (Arc::new(AtomicBool::new(false)), inode());
    let Some(churners) = churn(&path, &stop) else { return };
    for n in 0..SERVED {
        let mut client = Client::connect(options()).unwrap_or_else(|error| panic!("session {n}: {error}"));
        client.monitor("nobody@h1", Wanted::default()).expect("a watch");
    }
    for n in 0..SECOND_AGENTS {
        let mut second = Agent::spawn(agent.dir.path(), false);
        let ended = (0..LOOKS_MAX).find_map(|_| {
            std::thread::sleep(LOOK);
            second.try_wait().expect("a child")
        });
        let _ = (second.kill(), second.wait());
        assert!(ended.is_some_and(|status| !status.success()), "second agent {n} runs: {}", agent.log());
        assert_eq!(inode(), socket, "second agent {n} took the socket away");
    }
    assert_eq!(agent.log().matches("already running").count(), SECOND_AGENTS, "{}", agent.log());
    // A program reattaches meanwhile, too.
    agent.kill_and_start();
    let back = (0..LOOKS_MAX).any(|_| {
        std::thread::sleep(LOOK);
        matches!(before.poll_event(), Ok(Some(Event::Reattached { .. })))
    });
    stop.store(true, Ordering::Relaxed);
    churners.into_iter().for_each(|churner| churner.join().expect("no panic"));
    assert!(back, "{}", agent.log());
    agent.serves();
}

#[test]
fn requests_of_closed_connections_delay_no_other() {
    let agent = Agent::start(7538);
    let descriptors = format!("/proc/{}/fd", agent.child.id());
    let open = || fs::read_dir(&descriptors).expect("the agent runs").count();
    // Once the connection has answered, the agent has opened everything for it.
    agent.connect().ok(json!({ "op": "status" }));
    let before = open();
    let path = agent.socket();
    let Some((raw, asked, mut answered)) = as_user(USER, move || {
        // The first connection requests more than the user may, until the agent takes nothing more from it.
        let raw = Raw::try_connect(&path).expect("connected");
        let request = json!({ "id": 1, "op": "status" }).to_string();
        let (mut asked, mut answered) = (0, 0);
        while asked < ASKED || answered < AT_ONCE {
            if asked < ASKED {
                asked += usize::from(raw.send(request.as_bytes(), &[]).is_ok());
            }
            while matches!(raw.receive(Duration::ZERO), Got::Answer(..)) {
                answered += 1;
            }
        }
        let crowd: Vec<Raw> = (0..CLIENTS).map(|_| Raw::try_connect(&path).expect("connected")).collect();
        for raw in &crowd {
            let hello = json!({ "id": 1, "op": "hello", "protocol": 2, "program": "gone" });
            raw.send(hello.to_string().as_bytes(), &[]).expect("sent");
        }
        (raw, asked, answered)
    }) else {
        return;
    };
    let mut read = || {
        while matches!(raw.receive(Duration::ZERO), Got::Answer(..)) {
            answered += 1;
        }
        answered
    };
    for _ in 0..LOOKS_MAX {
        let answered = read();
        if open() <= before + 1 {
            assert!(answered < asked, "closed only when their turn came: {answered} of {asked}");
            return agent.serves();
        }
        std::thread::sleep(LOOK);
    }
    panic!("{} descriptors, {before} before", open());
}

#[test]
fn sessions_opened_at_once_delay_no_other() {
    let agent = Agent::start(7546);
    let mut root = agent.connect();
    root.ok(json!({ "op": "status" }));
    let path = agent.socket();
    let crowd = as_user(USER, move || {
        let connect = |_| {
            let mut raw = Raw::try_connect(&path).expect("connected");
            raw.ok(json!({ "op": "events" }));
            raw
        };
        (0..MOST_SESSIONS).map(connect).collect::<Vec<_>>()
    });
    let Some(crowd) = crowd else { return };
    let pid = rustix::process::Pid::from_child(&agent.child);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stopped");
    // All these requests are there when the agent continues, in this order.
    for raw in &crowd {
        let hello = json!({ "id": 9, "op": "hello", "protocol": 2, "program": "crowd" });
        raw.send(hello.to_string().as_bytes(), &[]).expect("sent");
    }
    let status = json!({ "id": 7, "op": "status" }).to_string();
    root.send(status.as_bytes(), &[]).expect("sent");
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("it goes on");
    let Got::Answer(answer, _) = root.receive(LIMIT) else { panic!("no answer") };
    let open = answer["ok"]["clients"].as_array().map_or(MOST_SESSIONS, Vec::len);
    assert!(open < MOST_SESSIONS / 2, "root is answered after {open} of {MOST_SESSIONS}");
    for raw in &crowd {
        assert!(
            matches!(raw.receive(LIMIT), Got::Answer(answer, _) if answer.get("ok").is_some()),
            "each has its turn"
        );
    }
}
