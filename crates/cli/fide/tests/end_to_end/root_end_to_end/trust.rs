// SPDX-License-Identifier: Apache-2.0
//! What an agent believes that has just started, and hosts with another configuration.

use std::{
    fs,
    net::{Ipv4Addr, UdpSocket},
    time::Duration,
};

use fide_client::{Event, Reason, Wanted};
use fide_testbed::{AgentSpec, AgentsSpec, Victim, VictimSpec};
use serde_json::{Value, json};

use super::common::{World, calm, output, paper, start, until, until_true, world};

const PORT: u16 = 7411;
/// Heartbeats that are recorded on each plane.
const RECORDED: usize = 60;

fn group(plane: usize) -> Ipv4Addr {
    Ipv4Addr::new(239, 70, 0, u8::try_from(plane + 1).expect("two planes"))
}

/// Sockets of an eavesdropper in the network of each plane.
fn ears(world: &World, host: usize) -> Vec<UdpSocket> {
    let host = world.bed.host(host);
    let open = |plane: usize| {
        let address = host.address(plane);
        let socket = UdpSocket::bind((group(plane), PORT)).expect("bound");
        socket.join_multicast_v4(&group(plane), &address).expect("joined");
        socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
        rustix::net::sockopt::set_ip_multicast_if(&socket, &address).expect("the plane's interface");
        socket
    };
    (0..2).map(|plane| host.run_in(|| open(plane)).expect("namespace")).collect()
}

fn peer(world: &World, of: usize, name: &str) -> Value {
    let status = world.status(of);
    let peers = status["peers"].as_array().expect("a list").clone();
    peers.into_iter().find(|peer| peer["host"] == name).expect("a member")
}

/// An attacker records what a host sends, and replays it to an agent that has started after that host died.
#[test]
fn root_recorded_heartbeats_do_not_make_a_dead_host_up() {
    let Some(mut world) = start(4, AgentsSpec { hosts: vec![1, 2, 3], ..paper() }) else { return };
    world.settled(&[1, 2, 3]);
    let ears = ears(&world, 4);
    let mut tape: Vec<Vec<Vec<u8>>> = Vec::new();
    for (plane, ear) in ears.iter().enumerate() {
        let (mut packets, mut buffer) = (Vec::new(), [0; 2048]);
        while packets.len() < RECORDED {
            let (len, from) = ear.recv_from(&mut buffer).expect("a heartbeat");
            if from.ip() == world.bed.host(3).address(plane) {
                packets.push(buffer[..len].to_vec());
            }
        }
        tape.push(packets);
    }
    world.agents.kill(3).expect("killed");
    until_true("it is dead", || peer(&world, 1, "h3")["state"] == "dead");
    world.agents.kill(1).expect("killed");
    world.agents.restart(1).expect("started");
    let mut eyes = world.client(1);
    let host = eyes.client.monitor("@h3", Wanted::default()).expect("granted");
    let to = world.bed.host(1);
    until_true("the recording is heard", || {
        for n in 0..RECORDED {
            for (plane, packets) in tape.iter().enumerate() {
                ears[plane].send_to(&packets[n], (to.address(plane), PORT)).expect("sent");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        world.counter(1, "heartbeats_unanswered") >= RECORDED as u64
    });
    eyes.quiet();
    assert_eq!(peer(&world, 1, "h3")["state"], "unknown");
    let up = |event: &Event| matches!(event, Event::Up { monitor, .. } if *monitor == host.id);
    assert!(!eyes.events.iter().any(up), "{:#?}", eyes.events);
    assert_eq!(eyes.finals(&host), 0);
    // The host is up once it sends itself.
    world.agents.restart(3).expect("started");
    eyes.up(&host);
}

/// The agent of a watcher is away while a host dies, and the others have gone on without that agent when it
/// comes back.
#[test]
fn root_death_while_watching_agent_is_away_is_notified_once() {
    let Some(mut world) = world(4, calm()) else { return };
    let victim = Victim::spawn(Some(world.bed.host(3)), &VictimSpec::default()).expect("victim");
    let mut near = world.client(3);
    near.client.join_pid("victim", victim.pid(), Duration::ZERO).expect("joined");
    let mut eyes = world.client(1);
    let (host, process, other) = (eyes.watch("@h3"), eyes.watch("victim@h3"), eyes.watch("@h2"));
    let lacks = |world: &World, of: usize, name: &str| {
        let members = world.status(of)["view"]["members"].clone();
        !members.as_array().expect("a list").contains(&json!(name))
    };
    world.agents.kill(1).expect("killed");
    until_true("h1 is out", || lacks(&world, 2, "h1"));
    world.agents.kill(3).expect("killed");
    until_true("h3 is out", || lacks(&world, 2, "h3"));
    world.agents.restart(1).expect("started");
    for of in [&host, &process] {
        assert_eq!(eyes.reason(of), Reason::HostSilent);
    }
    world.settled_but(&[1, 2, 4], 3);
    eyes.quiet();
    assert_eq!((eyes.finals(&host), eyes.finals(&process), eyes.finals(&other)), (1, 1, 0), "{:#?}", eyes.events);
    // It comes back as another incarnation, whose end is notified anew.
    world.agents.restart(3).expect("started");
    eyes.up(&host);
    world.agents.kill(3).expect("killed");
    assert_eq!(eyes.reason(&host), Reason::HostSilent);
    assert_eq!(eyes.finals(&host), 2);
}

/// As published: a silence is a death.
#[test]
fn root_death_while_watching_agent_is_away_is_notified_once_by_policy_network() {
    let Some(mut world) = world(2, paper()) else { return };
    let mut eyes = world.client(1);
    let host = eyes.watch("@h2");
    world.agents.kill(1).expect("killed");
    world.agents.kill(2).expect("killed");
    world.agents.restart(1).expect("started");
    assert_eq!(eyes.reason(&host), Reason::HostSilent);
    eyes.quiet();
    assert_eq!(eyes.finals(&host), 1);
    // A process that lives on is not declared dead.
    world.agents.restart(2).expect("started");
    eyes.up(&host);
    world.agents.kill(1).expect("killed");
    world.agents.restart(1).expect("started");
    world.settled(&[1, 2]);
    eyes.quiet();
    assert_eq!(eyes.finals(&host), 1, "{:#?}", eyes.events);
}

fn differing(receive: &str) {
    let agent = AgentSpec { receive: receive.into(), ..AgentSpec::default() };
    let Some(mut world) = world(3, AgentsSpec { agent, ..calm() }) else { return };
    let drop_ins = world.agents.dir(3).join("fide.toml.d");
    fs::create_dir_all(&drop_ins).expect("made");
    let drop_in = drop_ins.join("10-trust.toml");
    fs::write(&drop_in, "[cluster]\ntrust = \"network\"\n").expect("written");
    world.agents.kill(3).expect("killed");
    world.agents.restart(3).expect("started");
    for (of, name, says) in
        [(1, "h3", "trust (network there, lease here)"), (3, "h1", "trust (lease there, network here)")]
    {
        until(&format!("h{of} is notified"), || {
            let differs = world.status(of)["differs"].clone();
            let found = differs.as_array().into_iter().flatten().any(|d| d["host"] == name && d["says"] == says);
            if found { Ok(()) } else { Err(differs.to_string()) }
        });
        let line = format!("host {name} is configured otherwise in {says}");
        until_true("it is in the log", || world.agents.log(of).contains(&line));
    }
    assert_ne!(peer(&world, 1, "h3")["state"], "up");
    assert_eq!(peer(&world, 3, "h1")["state"], "unknown");
    let (_, out, _) = output(&mut world.fide(1, &["status"]));
    assert!(out.contains("NOT HEARD: h3 is configured otherwise in trust"), "{out}");
    let (code, out, _) = output(&mut world.fide(1, &["doctor", "--no-measure"]));
    assert!(code != Some(0) && out.contains("NOT HEARD: h3"), "{code:?} {out}");
    // The others continue, and let the host in once its configuration matches.
    world.settled_but(&[1, 2], 3);
    fs::remove_file(&drop_in).expect("removed");
    world.agents.kill(3).expect("killed");
    world.agents.restart(3).expect("started");
    world.settled(&[1, 2, 3]);
    until_true("nobody differs", || world.status(1)["differs"] == json!([]));
}

#[test]
fn root_host_with_another_configuration_is_named() {
    differing("auto");
}

#[test]
fn root_host_with_another_configuration_is_named_over_udp() {
    differing("udp");
}
