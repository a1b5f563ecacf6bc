// SPDX-License-Identifier: Apache-2.0
//! Cut cables, lost hosts, and senders without the key.

use std::{net::UdpSocket, time::Duration};

use fide_client::{Event, Reason};
use fide_testbed::{AgentSpec, AgentsSpec, Victim, VictimSpec};
use fide_wire::{Ack, Builder, Key, PAYLOAD_MAX, ProcessState, Roster, seal};

use super::common::{Eyes, World, calm, paper, until_true, world};

const PORT: u16 = 7411;
/// Packets of each kind that an impostor sends.
const FORGERIES: u64 = 200;

/// Heartbeats and notices in the name of h2 without the key, for its incarnation and far ahead of its
/// sequence numbers.
fn forgeries(incarnation: u32, victim: (u8, u32)) -> Vec<Vec<u8>> {
    let key = Key([0x5a; 16]);
    let mut packets = Vec::new();
    for n in 0..FORGERIES {
        for plane in 0..2 {
            let mut payload = vec![0; PAYLOAD_MAX];
            let claimed = if n % 4 == 0 { incarnation + 1 } else { incarnation };
            let mut builder = Builder::heartbeat(&mut payload, 2, claimed, (1 << 40) + n).expect("room");
            for _ in 0..2 {
                builder.push_ack(Ack { incarnation: 1, seq_low: 1 }).expect("room");
            }
            if n % 3 == 0 {
                builder.goodbye().expect("room");
            }
            let len = builder.finish();
            payload.truncate(len);
            seal(&mut payload, plane, &key);
            packets.push(payload);
            let roster = Roster {
                slot: victim.0,
                state: ProcessState::Killed(9),
                name: None,
                incarnation: victim.1,
                pb_seq: 0,
                at_ns: 1,
            };
            let mut payload = vec![0; PAYLOAD_MAX];
            let len = Builder::notice(&mut payload, 2, incarnation, (1 << 40) + n, &roster).expect("room");
            payload.truncate(len);
            seal(&mut payload, plane, &key);
            packets.push(payload);
        }
    }
    packets
}

#[test]
fn root_strangers_are_counted_and_neither_kill_nor_hide() {
    let Some(world) = world(3, paper()) else { return };
    strangers(&world);
}

#[test]
fn root_strangers_are_counted_and_neither_kill_nor_hide_over_af_packet() {
    let agent = AgentSpec { receive: "af-packet".into(), ..AgentSpec::default() };
    let Some(world) = world(3, AgentsSpec { agent, ..paper() }) else { return };
    assert_eq!(world.receive_rungs(1), ["af_packet", "af_packet"]);
    strangers(&world);
}

fn strangers(world: &World) {
    let mut near = world.client(2);
    let mut eyes = world.client(1);
    let victim = Victim::spawn(Some(world.bed.host(2)), &VictimSpec::default()).expect("victim");
    let joined = near.client.join_pid("victim", victim.pid(), Duration::ZERO).expect("joined");
    let (process, host) = (eyes.watch("victim@h2"), eyes.watch("@h2"));
    let incarnation = u32::try_from(world.status(2)["incarnation"].as_u64().expect("a number")).expect("small");
    let before = world.status(1)["counters"].clone();

    // From h3's namespace, on both planes, to the groups and to h1 itself.
    let third = world.bed.host(3);
    let sockets: Vec<(UdpSocket, [(std::net::Ipv4Addr, u16); 2])> = (0..2u8)
        .map(|plane| {
            let address = third.address(plane.into());
            let socket = third
                .run_in(|| {
                    let socket = UdpSocket::bind((address, 0)).expect("bound");
                    let group = rustix::net::sockopt::set_ip_multicast_if(&socket, &address);
                    group.expect("the plane's interface");
                    socket
                })
                .expect("on h3");
            let group = std::net::Ipv4Addr::new(239, 70, 0, plane + 1);
            (socket, [(group, PORT), (world.bed.host(1).address(plane.into()), PORT)])
        })
        .collect();
    let send = |payload: &[u8]| {
        for (socket, to) in &sockets {
            for to in to {
                // A full queue loses garbage, as any network may.
                let _ = socket.send_to(payload, to);
            }
        }
    };
    for n in 0..FORGERIES {
        send(&[]);
        send(&[0x11]);
        let len = usize::try_from(n * 37).expect("small") % (PAYLOAD_MAX + 1);
        let noise: Vec<u8> = (0..len).map(|i| (i as u8).wrapping_mul(151) ^ n as u8).collect();
        send(&noise);
    }
    for payload in forgeries(incarnation, (joined.slot, joined.incarnation)) {
        send(&payload);
    }
    until_true("strangers are counted", || {
        let now = world.status(1)["counters"].clone();
        let more = |name: &str| now[name].as_u64().expect("counted") - before[name].as_u64().expect("counted");
        more("refused_malformed") >= FORGERIES && more("refused_bad_tag") >= FORGERIES
    });
    eyes.quiet();
    assert_eq!((eyes.finals(&process), eyes.finals(&host)), (0, 0), "{:#?}", eyes.events);
    for host in 1..=3 {
        assert_eq!(world.verdicts(host), Vec::<String>::new());
    }

    // A true death is notified while they go on, and so is a silence.
    std::thread::scope(|scope| {
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let send = &send;
        scope.spawn(move || {
            let packets = forgeries(incarnation, (63, 1));
            // Bounded by the verdict, and by their number.
            for payload in packets.iter().cycle().take(200_000) {
                if stopped.recv_timeout(Duration::from_micros(300)).is_ok() {
                    break;
                }
                send(payload);
            }
        });
        victim.kill().expect("killed");
        assert_eq!(eyes.reason(&process), Reason::Killed(9));
        world.bed.isolate(2).expect("cut");
        let reason = eyes.reason(&host);
        let _ = stop.send(());
        assert_eq!(reason, Reason::HostSilent);
    });
}

#[test]
fn root_one_cut_plane_is_a_network_fault_and_no_death() {
    let Some(world) = world(3, calm()) else { return };
    let mut eyes = world.client(1);
    let host = eyes.watch("@h2");
    for plane in [0u8, 1] {
        world.bed.cut(2, plane.into()).expect("cut");
        eyes.next("path_lost", |event| match event {
            Event::PathLost { host_id: 2, plane: lost } if *lost == plane => Some(()),
            _ => None,
        });
        let peers = world.status(1)["peers"].clone();
        let h2 = peers.as_array().expect("a list").iter().find(|peer| peer["host"] == "h2").expect("h2").clone();
        assert_eq!((&h2["state"], &h2["planes"][usize::from(plane)]["path_lost"]), (&"up".into(), &true.into()));
        // A death is notified over the plane that is left.
        let victim = Victim::spawn(Some(world.bed.host(2)), &VictimSpec::default()).expect("victim");
        let name = format!("on-plane-{plane}");
        world.client(2).client.join_pid(&name, victim.pid(), Duration::ZERO).expect("joined");
        let process = eyes.watch(&format!("{name}@h2"));
        victim.kill().expect("killed");
        assert_eq!(eyes.reason(&process), Reason::Killed(9));
        world.bed.restore(2, plane.into()).expect("restored");
        eyes.next("path_restored", |event| match event {
            Event::PathRestored { host_id: 2, plane: back } if *back == plane => Some(()),
            _ => None,
        });
    }
    eyes.quiet();
    assert_eq!(eyes.finals(&host), 0, "{:#?}", eyes.events);
}

fn incarnation_of(eyes: &Eyes) -> u32 {
    eyes.client.agent().incarnation
}

#[test]
fn root_an_isolated_host_is_silent_fences_itself_and_comes_back_as_another() {
    let Some(world) = world(3, calm()) else { return };
    let victim = world.sleeper(3);
    let mut own = world.client(3);
    own.client.join_pid("inside", victim.pid(), Duration::ZERO).expect("joined");
    let others_from_inside = own.watch("@h1");
    let before = incarnation_of(&own);
    let mut eyes = [world.client(1), world.client(2)];
    let watched = eyes.each_mut().map(|eyes| (eyes.watch("@h3"), eyes.watch("inside@h3")));

    world.bed.isolate(3).expect("cut off");
    for (eyes, (host, process)) in eyes.iter_mut().zip(&watched) {
        assert_eq!(eyes.reason(host), Reason::HostSilent);
        let verdicts: Vec<_> =
            eyes.events.iter().filter(|e| matches!(e, Event::Verdict(v) if v.monitor == process.id)).collect();
        if verdicts.is_empty() {
            assert_eq!(eyes.reason(process), Reason::HostSilent);
        }
    }
    until_true("the isolated host is fenced", || own.client.fenced());
    assert!(world.status(3)["fenced"] == true);

    world.bed.rejoin(3).expect("restored");
    let now = own.acknowledge();
    assert!(now > before, "{now} after {before}");
    world.settled(&[1, 2, 3]);
    until_true("it may act again", || !own.client.fenced());
    for (eyes, (host, process)) in eyes.iter_mut().zip(&watched) {
        let later = |eyes: &mut Eyes, of: fide_client::MonitorId| {
            until_true("up again", || {
                while let Some(event) = eyes.client.poll_event().expect("event") {
                    eyes.events.push(event);
                }
                let ups =
                    eyes.events.iter().filter(|e| matches!(e, Event::Up { monitor, .. } if *monitor == of)).count();
                ups == 2
            });
        };
        later(eyes, host.id);
        later(eyes, process.id);
        assert_eq!((eyes.finals(host), eyes.finals(process)), (1, 1), "{:#?}", eyes.events);
    }
    // A minority declares no host dead.
    own.quiet();
    assert_eq!(own.finals(&others_from_inside), 0, "{:#?}", own.events);
    // The watch on the process of that host continues.
    drop(victim);
    for (eyes, (_, process)) in eyes.iter_mut().zip(&watched) {
        eyes.next("the end of the process", |event| match event {
            Event::Verdict(v) if v.monitor == process.id && v.reason == Reason::Killed(9) => Some(()),
            _ => None,
        });
    }
}

#[test]
fn root_nine_hosts() {
    let Some(world) = world(9, AgentsSpec { heartbeat_us: 20_000, timeout_us: Some(2_000_000), ..calm() }) else {
        return;
    };
    let mut near = world.client(9);
    let mut eyes: Vec<Eyes> = (1..=9).map(|host| world.client(host)).collect();
    let victim = Victim::spawn(Some(world.bed.host(9)), &VictimSpec::default()).expect("victim");
    near.client.join_pid("ninth", victim.pid(), Duration::ZERO).expect("joined");
    let monitors: Vec<_> = eyes.iter_mut().map(|eyes| eyes.watch("ninth@h9")).collect();
    victim.kill().expect("killed");
    for (eyes, monitor) in eyes.iter_mut().zip(&monitors) {
        assert_eq!(eyes.reason(monitor), Reason::Killed(9));
    }
    let hosts: Vec<_> = eyes[..8].iter_mut().map(|eyes| eyes.watch("@h9")).collect();
    world.bed.isolate(9).expect("cut off");
    for (eyes, host) in eyes.iter_mut().zip(&hosts) {
        assert_eq!(eyes.reason(host), Reason::HostSilent);
    }
    world.bed.rejoin(9).expect("restored");
    world.settled(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
}
