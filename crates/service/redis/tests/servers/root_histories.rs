// SPDX-License-Identifier: Apache-2.0
//! What clients saw while servers were killed, stopped and cut off, judged by porcupine: linearizable, with
//! reads at all servers. `FIDE_REDIS_RUNS` says how many runs, `FIDE_REDIS_SEED` with which the first one is.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use fide_histories::judge;
use rand::RngExt as _;
use rand_chacha::{ChaCha8Rng, rand_core::SeedableRng};

use crate::world::World;

const KEYS: u8 = 5;
const CLIENTS: u64 = 6;
/// A client gives up on a request after this, and does not know what became of it.
const PATIENCE: Duration = Duration::from_secs(3);
const PAUSE: Duration = Duration::from_millis(1);

/// What clients share.
struct Shared {
    sockets: Vec<PathBuf>,
    stop: AtomicBool,
    begun: Instant,
    /// The next number of a client: one whose request is open for ever asks no more under its number.
    clients: AtomicU32,
    values: AtomicU64,
    history: Mutex<Vec<String>>,
    reads_by_host: Vec<AtomicU64>,
}

impl Shared {
    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_nanos()).expect("some seconds")
    }
}

/// The answer to a request.
enum Answer {
    Found(u64),
    /// It had no effect.
    Refused,
    Unknown,
}

fn ask(stream: &mut UnixStream, words: &[&str]) -> Answer {
    let mut request = format!("*{}\r\n", words.len());
    words.iter().for_each(|word| request.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    if stream.write_all(request.as_bytes()).is_err() {
        return Answer::Unknown;
    }
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    match reader.read_line(&mut line) {
        Ok(len) if len > 0 => {}
        _ => return Answer::Unknown,
    }
    match line.as_bytes()[0] {
        b'-' if line.starts_with("-UNKNOWN") => Answer::Unknown,
        b'-' => Answer::Refused,
        b'$' => {
            let Ok(len) = usize::try_from(line[1..].trim().parse::<i64>().expect("a length")) else {
                return Answer::Found(0);
            };
            let mut value = vec![0; len + 2];
            if reader.read_exact(&mut value).is_err() {
                return Answer::Unknown;
            }
            Answer::Found(String::from_utf8_lossy(&value[..len]).parse().expect("a number"))
        }
        _ => panic!("an answer of another kind: {line}"),
    }
}

/// One client: it asks servers at random, and writes where that is taken.
fn client(shared: &Shared, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut number = shared.clients.fetch_add(1, Relaxed);
    let mut leader = 0;
    while !shared.stop.load(Relaxed) {
        thread::sleep(PAUSE);
        let is_read = random.random_bool(0.5);
        let host = if is_read { random.random_range(0..shared.sockets.len()) } else { leader };
        let connect = || {
            let stream = UnixStream::connect(&shared.sockets[host])?;
            stream.set_read_timeout(Some(PATIENCE))?;
            Ok::<_, std::io::Error>(stream)
        };
        let Ok(mut stream) = connect() else {
            leader = random.random_range(0..shared.sockets.len());
            continue;
        };
        // Some requests on one connection.
        for _ in 0..random.random_range(1..20) {
            let key = random.random_range(0..KEYS);
            let name = format!("key{key}");
            let call = shared.now();
            let value = shared.values.fetch_add(1, Relaxed);
            let text = value.to_string();
            let answer = if is_read {
                ask(&mut stream, &["GET", &name])
            } else {
                ask(&mut stream, &["SET", &name, &text, "GET"])
            };
            let returned = shared.now();
            let head = format!("\"client\":{number},\"key\":{key},\"call\":{call},\"host\":{}", host + 1);
            let line = match answer {
                Answer::Refused => {
                    leader = random.random_range(0..shared.sockets.len());
                    break;
                }
                Answer::Unknown if is_read => break,
                Answer::Unknown => format!("{{{head},\"op\":\"write\",\"value\":{value}}}"),
                Answer::Found(found) if is_read => {
                    shared.reads_by_host[host].fetch_add(1, Relaxed);
                    format!("{{{head},\"op\":\"read\",\"return\":{returned},\"found\":{found}}}")
                }
                Answer::Found(found) => {
                    format!("{{{head},\"op\":\"write\",\"value\":{value},\"return\":{returned},\"found\":{found}}}")
                }
            };
            shared.history.lock().unwrap().push(line);
            if matches!(answer, Answer::Unknown) {
                number = shared.clients.fetch_add(1, Relaxed);
                leader = random.random_range(0..shared.sockets.len());
                break;
            }
        }
    }
}

/// What happens to the servers, one after the other.
fn faults(world: &mut World, random: &mut ChaCha8Rng, count: usize) -> (Vec<String>, usize) {
    let (mut diary, mut handed) = (Vec::new(), 0);
    for _ in 0..count {
        thread::sleep(Duration::from_millis(random.random_range(200..500)));
        let host = if random.random_bool(0.6) {
            world.hosts().into_iter().find(|host| world.mode(*host) == "leader").unwrap_or(1)
        } else {
            random.random_range(1..=world.servers.len())
        };
        let length = Duration::from_millis(random.random_range(100..600));
        match random.random_range(0..6) {
            4 | 5 => {
                // The leader refuses a host that is not ready to lead.
                let leader = world.leader();
                let line = if host == leader { "FIDE.TRANSFER".to_owned() } else { format!("FIDE.TRANSFER h{host}") };
                let answer = world.ask(leader, &line);
                diary.push(format!("h{leader}: {line}: {}", answer.trim()));
                handed += usize::from(answer == "+OK\r\n");
                thread::sleep(length / 4);
            }
            0 | 1 => {
                diary.push(format!("h{host} is killed, and back after {length:?}"));
                world.kill(host);
                thread::sleep(length);
                world.start(host);
            }
            2 => {
                diary.push(format!("h{host} is stopped for {length:?}"));
                world.server(host).pause();
                thread::sleep(length);
                world.server(host).resume();
            }
            _ => {
                diary.push(format!("h{host} is cut off for {length:?}"));
                world.bed.isolate(host).expect("cut");
                thread::sleep(length);
                world.bed.rejoin(host).expect("back");
            }
        }
        world.await_ready();
    }
    (diary, handed)
}

/// How many faults there are, and how servers are read.
fn run(seed: u64, count: usize, reads: &str) -> Result<(), String> {
    let protocol = if seed.is_multiple_of(4) { "huc" } else { "hsuc" };
    let Some(mut world) = World::new(3, protocol) else { return Ok(()) };
    for host in world.hosts() {
        assert_eq!(world.ask(host, &format!("CONFIG SET fide.reads {reads}")), "+OK\r\n");
    }
    let shared = Shared {
        sockets: world.hosts().iter().map(|host| world.server(*host).socket()).collect(),
        stop: AtomicBool::new(false),
        begun: Instant::now(),
        clients: AtomicU32::new(0),
        values: AtomicU64::new(1),
        history: Mutex::default(),
        reads_by_host: (0..3).map(|_| AtomicU64::new(0)).collect(),
    };
    let (diary, handed) = thread::scope(|scope| {
        for number in 0..CLIENTS {
            let shared = &shared;
            scope.spawn(move || client(shared, seed * 1000 + number));
        }
        let stop = StopsAtEnd(&shared.stop);
        let diary = faults(&mut world, &mut ChaCha8Rng::seed_from_u64(seed), count);
        thread::sleep(Duration::from_millis(300));
        drop(stop);
        diary
    });
    world.await_ready();
    world.assert_alike();
    let file = world.bed.scratch().join("history.jsonl");
    let lines = shared.history.into_inner().unwrap();
    fs::write(&file, lines.join("\n")).expect("a file");
    let program = fide_testbed::find_binary(judge::PROGRAM);
    let Ok(program) = program else {
        fide_testbed::say_not_tested(
            "that histories are linearizable: go is not there, or `cargo xtask histories` was never run",
        );
        return Ok(());
    };
    let verdict = judge::judge(&program, std::slice::from_ref(&file), &file.with_extension("drawn"))
        .map_err(|why| why.to_string())?;
    let by_host: Vec<u64> = shared.reads_by_host.iter().map(|reads| reads.load(Relaxed)).collect();
    println!(
        "seed {seed}, {protocol}: {} operations, {} open, reads by host {by_host:?}, handed over {handed} times: {}",
        verdict.operations, verdict.open, verdict.verdict
    );
    if verdict.verdict == "ok" && by_host.iter().all(|reads| *reads > 0) {
        return Ok(());
    }
    let kept = std::env::temp_dir().join(format!("fide-redis-history-{seed}.jsonl"));
    if reads == "any" {
        let _ = fs::copy(&file, &kept);
    }
    Err(format!(
        "seed {seed} ({protocol}): {verdict:?}, reads by host {by_host:?}\n{}\nhistory: {}\nagain: FIDE_REDIS_SEED={seed} cargo test -p fide-redis --test servers histories\n{}",
        diary.join("\n"),
        kept.display(),
        world.logs()
    ))
}

/// Ends the clients also when a test fails meanwhile.
struct StopsAtEnd<'a>(&'a AtomicBool);

impl Drop for StopsAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn root_histories_are_linearizable_with_reads_at_all_servers() {
    let number = |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let first = number("FIDE_REDIS_SEED", 1);
    for seed in first..first + number("FIDE_REDIS_RUNS", 1) {
        run(seed, 4, "any").unwrap_or_else(|why| panic!("{why}"));
    }
}

/// The judge sees what `fide.reads stale` permits, so it would see the same where it is not permitted.
#[test]
fn root_stale_reads_are_found_where_they_are_permitted() {
    for seed in [1001, 1002, 1003] {
        match run(seed, 0, "stale") {
            Err(why) if why.contains("illegal") => return,
            Ok(()) if fide_testbed::find_binary(judge::PROGRAM).is_err() || fide_testbed::supported().is_err() => {
                return;
            }
            Ok(()) => {}
            Err(why) => panic!("{why}"),
        }
    }
    panic!("no stale read was seen in three runs that permit them");
}
