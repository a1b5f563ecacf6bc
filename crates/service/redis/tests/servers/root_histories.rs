// SPDX-License-Identifier: Apache-2.0
//! What clients saw while servers were killed, stopped and cut off, judged by porcupine: linearizable, with
//! reads at all servers. `FIDE_REDIS_RUNS` says how many runs, `FIDE_REDIS_SEED` with which the first one is.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use fide_histories::judge;
use fide_testbed::RedisServer;
use rand::RngExt as _;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use crate::{
    history::{Shared, WAYS, client},
    world::{LIMIT, Stops, World},
};

const CLIENTS: u64 = 6;
/// Faults of a run.
const FAULTS: usize = 4;
/// Acknowledged writes without which a run says nothing.
const WRITES_MIN: u64 = 100;
/// From so many runs on each fault has to have happened, and each way to write.
const RUNS_OF_ALL: u64 = 20;

/// What happened in some runs, by name.
type Counts = BTreeMap<String, u64>;

/// Waits until one server leads and all others follow. Starts servers of a durable group again that have ended, as a
/// service manager does: a leader that was excluded in the middle of writes ends. Others never do. Returns how many.
fn await_ready(world: &mut World, is_durable: bool) -> u64 {
    let (until, mut restarted) = (Instant::now() + LIMIT, 0);
    loop {
        for host in world.hosts() {
            let Some(status) = world.servers[host - 1].as_mut().and_then(RedisServer::ended) else { continue };
            assert!(is_durable, "h{host} has ended: {status}\n{}", world.logs());
            world.servers[host - 1] = None;
            world.start(host);
            restarted += 1;
        }
        let modes: Vec<String> = world.hosts().into_iter().map(|host| world.mode(host)).collect();
        let count = |mode: &str| modes.iter().filter(|of| *of == mode).count();
        if count("leader") == 1 && count("following") + 1 == modes.len() {
            return restarted;
        }
        assert!(Instant::now() < until, "{modes:?}\n{}", world.logs());
        thread::sleep(Duration::from_millis(5));
    }
}

/// What happens to the servers, one after the other.
fn faults(world: &mut World, is_durable: bool, random: &mut ChaCha8Rng, count: usize) -> (Vec<String>, Counts) {
    let (mut diary, mut counts) = (Vec::new(), Counts::new());
    for _ in 0..count {
        thread::sleep(Duration::from_millis(random.random_range(200..500)));
        let leader = world.hosts().into_iter().find(|host| world.mode(*host) == "leader").unwrap_or(1);
        let host = if random.random_bool(0.6) { leader } else { random.random_range(1..=world.servers.len()) };
        let length = Duration::from_millis(random.random_range(100..600));
        let mut note = |what: &str, said: String| {
            diary.push(said);
            *counts.entry(what.to_owned()).or_default() += 1;
        };
        match random.random_range(0..8) {
            0 | 1 => {
                // The leader refuses a host that is not ready to lead.
                let leader = world.leader();
                let line = if host == leader { "FIDE.TRANSFER".to_owned() } else { format!("FIDE.TRANSFER h{host}") };
                let answer = world.ask(leader, &line);
                let what = if answer == "+OK\r\n" { "transferred" } else { "transfer refused" };
                note(what, format!("h{leader}: {line}: {}", answer.trim()));
                thread::sleep(length / 4);
            }
            2 | 3 => {
                note("killed", format!("h{host} is killed, and back after {length:?}"));
                world.kill(host);
                thread::sleep(length);
                world.start(host);
            }
            4 => {
                note("stopped", format!("h{host} is stopped for {length:?}"));
                world.server(host).pause();
                thread::sleep(length);
                world.server(host).resume();
            }
            5 => {
                // The group gives up waiting, and a leader disconnects its clients.
                let length = Duration::from_millis(random.random_range(1200..2500));
                note("stopped for long", format!("h{host} is stopped for {length:?}"));
                world.server(host).pause();
                thread::sleep(length);
                world.server(host).resume();
            }
            6 => {
                // Another server is lost while this one is stopped.
                let other = host % world.servers.len() + 1;
                note("stopped, and another killed", format!("h{host} is stopped, h{other} killed, for {length:?}"));
                world.server(host).pause();
                world.kill(other);
                thread::sleep(length);
                world.server(host).resume();
                world.start(other);
            }
            _ => {
                note("cut off", format!("h{host} is cut off for {length:?}"));
                world.bed.isolate(host).expect("cut");
                thread::sleep(length);
                world.bed.rejoin(host).expect("back");
            }
        }
        let restarted = await_ready(world, is_durable);
        let now = world.leader();
        for (what, count) in [("another leader", u64::from(now != leader)), ("started again", restarted)] {
            *counts.entry(what.to_owned()).or_default() += count;
        }
    }
    (diary, counts)
}

/// What became of a run.
#[derive(Debug)]
enum Outcome {
    /// No namespaces, or no judge.
    NotRun,
    Linearizable(Counts),
    /// Porcupine has found registers whose history is not linearizable.
    Illegal(String),
}

/// The history of a run, kept if anything goes wrong from here on.
struct Kept {
    file: PathBuf,
    is_needless: bool,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.is_needless {
            let _ = fs::remove_file(&self.file);
        } else {
            eprintln!("history: {}", self.file.display());
        }
    }
}

/// How many faults there are, and how servers are read.
fn run(seed: u64, count: usize, reads: &str) -> Result<Outcome, String> {
    let protocol = if seed.is_multiple_of(4) { "huc" } else { "hsuc" };
    let durable: &[&str] = if seed % 5 == 3 { &["durable", "disk"] } else { &[] };
    let Ok(program) = fide_testbed::find_binary(judge::PROGRAM) else {
        fide_testbed::say_not_tested(
            "that histories are linearizable: go is not there, or `cargo xtask histories` was never run",
        );
        return Ok(Outcome::NotRun);
    };
    let Some(mut world) = World::with(3, protocol, durable) else { return Ok(Outcome::NotRun) };
    for host in world.hosts() {
        assert_eq!(world.ask(host, &format!("CONFIG SET fide.reads {reads}")), "+OK\r\n");
    }
    let shared = Shared::new(world.hosts().iter().map(|host| world.server(*host).socket()).collect());
    let (diary, mut counts) = thread::scope(|scope| {
        for number in 0..CLIENTS {
            let shared = &shared;
            scope.spawn(move || client(shared, seed * 1000 + number));
        }
        let stop = Stops(&shared.stop);
        let diary = faults(&mut world, !durable.is_empty(), &mut ChaCha8Rng::seed_from_u64(seed), count);
        thread::sleep(Duration::from_millis(300));
        drop(stop);
        diary
    });
    let lines = shared.history.into_inner().unwrap();
    let file = std::env::temp_dir().join(format!("fide-redis-history-{}-{seed}.jsonl", std::process::id()));
    fs::write(&file, lines.join("\n")).expect("a file");
    let mut kept = Kept { file, is_needless: false };
    await_ready(&mut world, !durable.is_empty());
    world.assert_alike();
    let verdict = judge::judge(&program, std::slice::from_ref(&kept.file), &world.bed.scratch().join("drawn"))
        .map_err(|why| why.to_string())?;
    let by_host: Vec<u64> = shared.reads_by_host.iter().map(|reads| reads.load(Relaxed)).collect();
    let by_way: Vec<u64> = shared.written.iter().map(|written| written.load(Relaxed)).collect();
    let unknown = shared.unknown.load(Relaxed);
    println!(
        "seed {seed}, {protocol}{}: {} operations, {} open, reads by host {by_host:?}, writes by way {by_way:?}, {counts:?}: {}",
        durable.iter().map(|word| format!(" {word}")).collect::<String>(),
        verdict.operations,
        verdict.open,
        verdict.verdict
    );
    let why = || {
        format!(
            "seed {seed} ({protocol}): {verdict:?}, reads by host {by_host:?}, writes by way {by_way:?}\n{}\nagain: FIDE_REDIS_SEED={seed} cargo test -p fide-redis --test servers root_histories_are\n{}",
            diary.join("\n"),
            world.logs()
        )
    };
    if verdict.verdict == "illegal" && !verdict.illegal_keys.is_empty() {
        kept.is_needless = reads != "any";
        return Ok(Outcome::Illegal(why()));
    }
    let says_something = by_host.iter().all(|reads| *reads > 0) && by_way.iter().sum::<u64>() >= WRITES_MIN;
    if verdict.verdict != "ok" || !says_something {
        return Err(why());
    }
    kept.is_needless = true;
    counts.insert("unknown outcomes".to_owned(), unknown);
    for (way, written) in WAYS.iter().zip(by_way) {
        counts.insert(format!("written by {way:?}"), written);
    }
    Ok(Outcome::Linearizable(counts))
}

/// A number that the environment gives, or this one.
fn number(name: &str, default: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn root_histories_are_linearizable_with_reads_at_all_servers() {
    let (first, runs) = (number("FIDE_REDIS_SEED", 1), number("FIDE_REDIS_RUNS", 1));
    assert!(runs > 0, "FIDE_REDIS_RUNS=0 would test nothing");
    let (mut all, mut judged) = (Counts::new(), 0);
    for seed in first..first + runs {
        match run(seed, FAULTS, "any").unwrap_or_else(|why| panic!("{why}")) {
            Outcome::NotRun => return,
            Outcome::Illegal(why) => panic!("{why}"),
            Outcome::Linearizable(counts) => {
                judged += 1;
                counts.into_iter().for_each(|(what, count)| *all.entry(what).or_default() += count);
            }
        }
    }
    println!("{judged} histories judged: {all:#?}");
    if runs >= RUNS_OF_ALL {
        let faults = ["transferred", "killed", "stopped", "stopped for long", "stopped, and another killed", "cut off"];
        let others = ["another leader", "unknown outcomes"];
        let ways = WAYS.map(|way| format!("written by {way:?}"));
        for what in faults.into_iter().chain(others).chain(ways.iter().map(String::as_str)) {
            assert!(all.get(what).is_some_and(|count| *count > 0), "{what}: never in {runs} runs: {all:#?}");
        }
    }
}

/// The judge sees what `fide.reads stale` permits, so it would see the same where it is not permitted.
#[test]
fn root_stale_reads_are_found_where_they_are_permitted() {
    for seed in [1001, 1002, 1006] {
        match run(seed, 0, "stale").unwrap_or_else(|why| panic!("{why}")) {
            Outcome::NotRun | Outcome::Illegal(_) => return,
            Outcome::Linearizable(_) => {}
        }
    }
    panic!("no stale read was seen in three runs that permit them");
}
