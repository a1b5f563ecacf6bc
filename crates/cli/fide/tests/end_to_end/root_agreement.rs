// SPDX-License-Identifier: Apache-2.0
//! Replicas of a counter on a testbed: real agents, real processes that are killed, a real network that is cut.

mod disk;
mod leaving;
mod partial;

use std::{
    net::UdpSocket,
    path::PathBuf,
    process::Command,
    time::{Duration, Instant},
};

use fide_counter::{Add, Node, Order, Protocol, Replicas, Reported, Spec};
use fide_testbed::{Agents, AgentsSpec, Spec as BedSpec, Testbed, retry_until, supported};

const LIMIT: Duration = Duration::from_secs(20);
/// Longer than a shared machine keeps a host from running: an exclusion by load is not what these tests are
/// about.
const TIMEOUT_US: u32 = 60_000;

fn fide() -> PathBuf {
    env!("CARGO_BIN_EXE_fide").into()
}

/// A member of a group. `cargo build --bins` has built its program before the tests.
fn replica() -> Vec<PathBuf> {
    vec![fide_testbed::find_binary("fide-lab").expect("built"), "__replica".into()]
}

/// A busy machine measures too much jitter for this timeout, but the agents are to start all the same.
fn steady() -> AgentsSpec {
    let arguments = vec!["--force-timeout".to_owned()];
    AgentsSpec { program: vec![fide()], arguments, timeout_us: Some(TIMEOUT_US), ..AgentsSpec::default() }
}

struct World {
    replicas: Replicas,
    agents: Agents,
    bed: Testbed,
    /// Answers to clients, by client.
    counts: Vec<u32>,
    counter: u64,
}

fn build(hosts: usize, protocol: Protocol) -> Option<(Testbed, Agents, Spec)> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    let bed = Testbed::build(BedSpec::hosts(hosts)).expect("a testbed");
    let agents = Agents::start(&bed, steady()).expect("agents");
    let spec = Spec { program: replica(), group: "counter".to_owned(), protocol, window: 8 };
    Some((bed, agents, spec))
}

fn world(hosts: usize, protocol: Protocol) -> Option<World> {
    let (bed, agents, spec) = build(hosts, protocol)?;
    let replicas = Replicas::start(bed.hosts(), &agents, spec);
    let replicas = replicas.unwrap_or_else(|why| panic!("{why:#}\n{}", logs(&agents, hosts)));
    Some(World { replicas, agents, bed, counts: vec![0; 8], counter: 0 })
}

fn log(agents: &Agents, host: usize) -> String {
    std::fs::read_to_string(agents.dir(host).join("replica.log")).unwrap_or_default()
}

fn logs(agents: &Agents, hosts: usize) -> String {
    (1..=hosts).map(|host| format!("h{host}: {}\n", log(agents, host))).collect()
}

impl World {
    fn wait<T>(&self, what: &str, take: impl FnMut(u16, Reported) -> Option<T>) -> T {
        self.wait_within(LIMIT, what, take)
    }

    fn wait_within<T>(&self, limit: Duration, what: &str, mut take: impl FnMut(u16, Reported) -> Option<T>) -> T {
        let until = Instant::now() + limit;
        while let Some((host, reported)) = self.replicas.poll(until) {
            if let Some(found) = take(host, reported) {
                return found;
            }
        }
        panic!("never reported: {what}\n{}", logs(&self.agents, self.bed.hosts().len()));
    }

    fn kill(&mut self, host: u16) {
        let at = self.replicas.nodes.iter().position(|node| node.host == host).expect("a replica");
        self.replicas.nodes.remove(at).kill().expect("killed");
    }

    fn start_again(&mut self, host: u16) {
        let hosts = self.bed.hosts();
        self.replicas.add(&hosts[fide_types::host_index(host)], hosts, &self.agents).expect("started");
    }

    /// Every client adds one at `leader`; waits until all are answered.
    fn add(&mut self, leader: u16) {
        self.counts.iter_mut().for_each(|count| *count += 1);
        let add: Vec<Add> = (0..).zip(&self.counts).map(|(client, count)| Add { client, count: *count }).collect();
        let mut waits = add.clone();
        self.replicas.node(leader).expect("a leader").order(&Order::Add { add }).expect("asked");
        self.counter = self.wait("answers", |_, reported| {
            let Reported::Counted { counted, counter, .. } = reported else { return None };
            waits.retain(|add| !counted.contains(add));
            waits.is_empty().then_some(counter)
        });
    }

    /// Waits until all replicas have applied the same values; returns how many.
    fn agree(&mut self) -> u64 {
        let Self { replicas, counter, .. } = self;
        retry_until("all have the same state", LIMIT, || {
            let mut states = Vec::new();
            for at in 0..replicas.nodes.len() {
                replicas.nodes[at].order(&Order::State { state: true }).map_err(|why| format!("{why:#}"))?;
                let until = Instant::now() + LIMIT;
                while let Some((_, reported)) = replicas.poll(until) {
                    if let Reported::State { applied, hash, counter, .. } = reported {
                        states.push((applied, hash, counter));
                        break;
                    }
                }
            }
            let alike = states.iter().all(|state| *state == states[0] && state.2 == *counter);
            if alike { Ok(states[0].0) } else { Err(format!("{states:?}, {counter} were answered")) }
        })
        .unwrap()
    }
}

#[test]
fn root_a_member_comes_back_while_others_decide_all_they_can() {
    comes_back_under_load(Protocol::Hsuc);
}

#[test]
fn root_a_member_comes_back_while_heartbeats_take_all_they_can() {
    comes_back_under_load(Protocol::Huc);
}

fn comes_back_under_load(protocol: Protocol) {
    let Some((bed, agents, spec)) = build(3, protocol) else { return };
    let replicas = Replicas::start(bed.hosts(), &agents, Spec { window: 128, ..spec }).expect("replicas");
    let mut world = World { replicas, agents, bed, counts: Vec::new(), counter: 0 };
    // The load has to outlast this: a busy machine lets a member in later.
    let run = Order::Run { run: "all".to_owned(), clients: 4096, value_bytes: 64, seconds: 120.0 };
    let ended = Duration::from_secs(120) + LIMIT;
    world.replicas.nodes[0].order(&run).expect("asked");
    for host in [3, 2] {
        world.kill(host);
        world.start_again(host);
        let is_in = world.wait_within(ended, "the member that came back", |who, reported| match reported {
            Reported::Ready { .. } if who == host => Some(true),
            Reported::Result { .. } => Some(false),
            _ => None,
        });
        let logs = logs(&world.agents, 3);
        assert!(is_in, "h{host} was not let in as long as the others had anything to decide\n{logs}");
    }
    world.replicas.nodes[0].order(&Order::Enough { enough: true }).expect("asked");
    world.wait("the result", |_, reported| matches!(reported, Reported::Result { .. }).then_some(()));
    assert!(world.agree() > 0, "nothing was decided");
}

#[test]
fn root_leaders_die_and_come_back_and_nothing_is_lost() {
    leaders_die(Protocol::Hsuc);
}

#[test]
fn root_leaders_die_and_nothing_is_lost_where_decisions_ride_on_heartbeats() {
    leaders_die(Protocol::Huc);
}

fn leaders_die(protocol: Protocol) {
    let Some(mut world) = world(3, protocol) else { return };
    world.add(1);
    assert_eq!(world.counter, 8);
    for (dies, leads) in [(1, 2), (2, 3)] {
        world.kill(dies);
        world.wait("the next leader", |host, reported| {
            (host == leads && matches!(reported, Reported::Leads { .. })).then_some(())
        });
        // The requests are sent again to another leader: requests that were counted count once.
        world.counts.iter_mut().for_each(|count| *count -= 1);
        let before = world.counter;
        world.add(leads);
        assert_eq!(world.counter, before, "the same requests once more");
        world.add(leads);
        assert_eq!(world.counter, before + 8);
        // The host comes back, takes over the state, and is a member again.
        world.start_again(dies);
        world.wait("the member that came back", |host, reported| {
            (host == dies && matches!(reported, Reported::Ready { .. })).then_some(())
        });
        world.agree();
    }
    // A host that was in the group has stored it: alone it founds no other group.
    let record = std::fs::read_to_string(world.agents.dir(1).join("group/counter.toml")).unwrap();
    assert!(record.contains("founded_with = [1, 2, 3]"), "{record}");
}

#[test]
fn root_cut_off_host_stops_and_others_continue() {
    cut_off(Protocol::Hsuc);
}

#[test]
fn root_cut_off_host_stops_with_huc() {
    cut_off(Protocol::Huc);
}

fn cut_off(protocol: Protocol) {
    let Some(mut world) = world(3, protocol) else { return };
    world.add(1);
    world.bed.isolate(1).unwrap();
    world.wait("the next leader", |host, reported| {
        (host == 2 && matches!(reported, Reported::Leads { .. })).then_some(())
    });
    world.add(2);
    assert_eq!(world.counter, 16);
    world.bed.rejoin(1).unwrap();
    // Its agent learns that it was excluded, and its replica that another one leads: it takes over the
    // others' state.
    world.wait("it is back", |host, reported| (host == 1 && matches!(reported, Reported::Ready { .. })).then_some(()));
    world.agree();
}

/// Two of three hosts do not hear each other, and the third hears both: one of the two stops, and is back
/// once it hears all.
#[test]
fn root_partial_partition_does_not_block_a_group() {
    let Some(mut world) = world(3, Protocol::Hsuc) else { return };
    world.add(1);
    world.bed.separate(&[1, 3]).unwrap();
    // Both act until it is agreed that one stops; requests to the leader meanwhile wait for that.
    world.add(1);
    assert_eq!(world.counter, 16);
    let status = |agents: &Agents, host| agents.ask(host, "status", serde_json::json!({})).expect("an answer");
    assert_eq!(status(&world.agents, 1)["fenced"], false);
    assert_eq!(status(&world.agents, 3)["fenced"], true);
    world.bed.reunite(&[1, 3]).unwrap();
    retry_until("it may act", LIMIT, || {
        if status(&world.agents, 3)["fenced"] == false { Ok(()) } else { Err(status(&world.agents, 3).to_string()) }
    })
    .unwrap();
    world.wait("it is back", |host, reported| (host == 3 && matches!(reported, Reported::Ready { .. })).then_some(()));
    world.agree();
}

/// Two hosts, the members of a group, and a witness.
fn with_witness() -> Option<World> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    let bed = Testbed::build(BedSpec::hosts(3)).expect("a testbed");
    let member_extra = [(3, "role = \"witness\"".to_owned())].into();
    let agents = Agents::start(&bed, AgentsSpec { member_extra, ..steady() }).expect("agents");
    let spec = Spec { program: replica(), group: "counter".to_owned(), protocol: Protocol::Hsuc, window: 8 };
    let replicas = Replicas::start(&bed.hosts()[..2], &agents, spec).expect("replicas");
    Some(World { replicas, agents, bed, counts: vec![0; 8], counter: 0 })
}

/// A witness is away for so long that the others go on without it. It comes back, and decides which of them
/// continues.
#[test]
fn root_dropped_witness_is_readmitted() {
    let Some(mut world) = with_witness() else { return };
    world.add(1);
    let status = |agents: &Agents, host| agents.ask(host, "status", serde_json::json!({})).expect("an answer");
    let members = |agents: &Agents| status(agents, 1)["view"]["members"].clone();
    let (before, all) = (status(&world.agents, 3)["incarnation"].as_u64(), members(&world.agents));
    world.agents.kill(3).unwrap();
    retry_until("the others go on without the witness", LIMIT, || {
        if members(&world.agents) == all { Err(status(&world.agents, 1).to_string()) } else { Ok(()) }
    })
    .unwrap();
    world.agents.restart(3).unwrap();
    retry_until("the witness is let in again, as another incarnation", LIMIT, || {
        let witness = status(&world.agents, 3);
        let is_in = members(&world.agents) == all && witness["fenced"] == false;
        if is_in && witness["incarnation"].as_u64() > before { Ok(()) } else { Err(witness.to_string()) }
    })
    .unwrap();
    world.bed.isolate(1).unwrap();
    world.wait("the next leader", |host, reported| {
        (host == 2 && matches!(reported, Reported::Leads { .. })).then_some(())
    });
    world.add(2);
    assert_eq!(world.counter, 16);
}

/// Two hosts and a witness: the witness decides for the second host, ends, and has stored that decision.
#[test]
fn root_witness_decides_which_host_continues_and_stores_it() {
    let Some(mut world) = with_witness() else { return };
    let said = Command::new(fide())
        .args(["agent", "--host", "h3", "--config"])
        .arg(world.agents.dir(3).join("fide.toml"))
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("run `fide witness` here"), "{said}");
    world.add(1);
    world.bed.isolate(1).unwrap();
    world.wait("the next leader", |host, reported| {
        (host == 2 && matches!(reported, Reported::Leads { .. })).then_some(())
    });
    world.add(2);
    assert_eq!(world.counter, 16);
    let status = |agents: &Agents, host| agents.ask(host, "status", serde_json::json!({})).expect("an answer");
    let before = status(&world.agents, 3)["incarnation"].clone();
    assert_eq!(status(&world.agents, 2)["fenced"], false);
    world.agents.kill(3).unwrap();
    retry_until("without the witness h2 may not act", LIMIT, || {
        if status(&world.agents, 2)["fenced"] == true { Ok(()) } else { Err(status(&world.agents, 2).to_string()) }
    })
    .unwrap();
    world.agents.restart(3).unwrap();
    assert_eq!(status(&world.agents, 3)["incarnation"], before, "it is the one that it was");
    world.add(2);
    assert_eq!(world.counter, 24, "h2 goes on");
    // A goodbye would be final; a witness sends none.
    world.agents.stop(3).unwrap();
    world.agents.restart(3).unwrap();
    assert_eq!(status(&world.agents, 3)["incarnation"], before);
    world.add(2);
    // The content of its disk is no vote.
    world.agents.stop(3).unwrap();
    std::fs::write(world.agents.dir(3).join("state/vote.json"), "{}").unwrap();
    let why = world.agents.restart(3).unwrap_err().to_string();
    assert!(why.contains("holds no vote") && why.contains("restore it"), "{why}");
}

#[test]
fn root_strangers_and_packets_of_chance_change_nothing() {
    let Some(mut world) = world(2, Protocol::Hsuc) else { return };
    world.add(1);
    let to = format!("{}:7431", world.bed.host(1).addresses()[0]);
    let sent = world.bed.host(2).node().run_in(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        (0..2000_usize).map(|at| socket.send_to(&vec![at as u8; at % 1473], &to).is_ok() as usize).sum::<usize>()
    });
    assert!(sent.unwrap() > 1000);
    world.add(1);
    assert_eq!(world.counter, 16);
    world.agree();
}

#[test]
fn root_waiting_member_reports_what_it_waits_for() {
    let Some((bed, agents, spec)) = build(2, Protocol::Hsuc) else { return };
    let key = agents.dir(1).join("k");
    std::fs::write(&key, "00112233445566778899aabbccddeeff").unwrap();
    let other_key = agents.dir(1).join("o");
    std::fs::write(&other_key, "ff112233445566778899aabbccddeeff").unwrap();
    let (to, _reported) = std::sync::mpsc::channel();
    let start = |host: usize, group: &str, window: &str, key: &PathBuf| {
        let mut command: Command = bed.host(host).command(&spec.program[0]);
        command.args(&spec.program[1..]).args(["--group", group, "--hosts", "h1,h2", "--window", window]);
        command.arg("--socket").arg(agents.socket(host)).arg("--state-dir").arg(agents.dir(host).join("g"));
        let log = std::fs::File::create(agents.dir(host).join("replica.log")).unwrap();
        Node::start(
            host as u16,
            {
                command.arg("--key-file").arg(key).stderr(log);
                command
            },
            to.clone(),
        )
        .unwrap()
    };
    let says = |what: &str| {
        let look = || {
            let log = log(&agents, 1);
            if log.contains(what) { Ok(()) } else { Err(log) }
        };
        retry_until(what, LIMIT, look).unwrap();
    };
    let alone = start(1, "alone", "8", &key);
    says("no process alone@h2 is known to run");
    drop(alone);
    let pair = [start(1, "keys", "8", &key), start(2, "keys", "8", &other_key)];
    says("do h2 and this host have the same key and port?");
    drop(pair);
    let _pair = [start(1, "windows", "8", &key), start(2, "windows", "9", &key)];
    says("Do all members have the same list and settings?");
}

#[test]
fn root_impossible_member_reports_why() {
    let Some((bed, agents, spec)) = build(2, Protocol::Hsuc) else { return };
    let key = agents.dir(1).join("k");
    std::fs::write(&key, "00112233445566778899aabbccddeeff").unwrap();
    let start = |group: &str, hosts: &str, key: &PathBuf| {
        let mut command: Command = bed.host(1).command(&spec.program[0]);
        command.args(&spec.program[1..]).args(["--group", group, "--hosts", hosts]).arg("--socket");
        command.arg(agents.socket(1)).arg("--state-dir").arg(agents.dir(1).join("g")).arg("--key-file").arg(key);
        let output = command.stdin(std::process::Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    for (hosts, why) in [
        ("h1,h9", "host h9 is none of this cluster; its hosts are h1, h2"),
        ("h1,h2,h1", "host h1 is in the group's list twice"),
        ("h2", "this host, h1, is not among the hosts of the group: h2"),
    ] {
        let said = start("g", hosts, &key);
        assert!(said.contains(why), "{hosts}: {said}");
    }
    std::fs::create_dir_all(agents.dir(1).join("g")).unwrap();
    std::fs::write(agents.dir(1).join("g/broken.toml"), "what = 1").unwrap();
    let said = start("broken", "h1,h2", &key);
    assert!(said.contains("is no record of a group"), "{said}");
    std::fs::write(&key, "short").unwrap();
    let said = start("g", "h1,h2", &key);
    assert!(said.contains("a key has 32 hexadecimal digits"), "{said}");
}
