// SPDX-License-Identifier: Apache-2.0
//! A client by seed: requests that are right, wrong, out of order, cut or mangled; overwritten memory; abused
//! descriptors. Whatever the client does, the agent continues, and requests of others are carried out.
//!
//! `FIDE_SEEDS=n` runs n seeds; a failure names its seed, and `FIDE_SEED=s` runs that one again.

use std::{
    fs::File,
    os::fd::{AsFd, OwnedFd},
    process::{Child, Command},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::{
    event::{EventfdFlags, epoll},
    fs::{FallocateFlags, OFlags, SealFlags},
    net::Shutdown,
    time::{Itimerspec, TimerfdTimerFlags, Timespec},
};
use serde_json::{Value, json};

use fide_agent_api::session::{INBOX_BYTES, OUTBOX_BYTES, SESSION_BYTES};
use fide_client::{Client, ConnectOptions, Event, Reason, Wanted};
use fide_shm::region::Mapping;

use super::common::{Agent, Got, LIMIT, Raw, USER, as_user};

const SEEDS: u64 = 6;
const STEPS: u64 = 400;
const CONNECTIONS_MAX: usize = 8;
const CHILDREN_MAX: usize = 4;
/// Where the header of a session's memory, and the positions of its three rings, begin.
const RINGS: [usize; 4] = [0, 192, 320 + OUTBOX_BYTES, 448 + OUTBOX_BYTES + INBOX_BYTES];

/// Every run of a seed draws the same numbers.
struct Random(ChaCha8Rng);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.random()
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0.random_range(0..limit.max(1))
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn number(&mut self) -> u64 {
        let odd = [0, 1, 2, 63, 64, 255, 256, 1000, 65_535, u64::from(u32::MAX), 1 << 32, u64::MAX - 1, u64::MAX];
        if self.below(2) == 0 { self.one(&odd) } else { self.next() >> self.below(64) }
    }
}

/// A connection, and the descriptors of its session.
struct Held {
    raw: Raw,
    fds: Vec<OwnedFd>,
}

struct Hostile {
    random: Random,
    path: std::path::PathBuf,
    held: Vec<Held>,
    children: Vec<Child>,
    tokens: Vec<String>,
    sets: Vec<OwnedFd>,
    answers: u64,
    /// Words that were written to BPF memory, except positions of readers.
    stored: u64,
    misread: u64,
}

impl Drop for Hostile {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Hostile {
    fn new(seed: u64, path: std::path::PathBuf) -> Self {
        let random = Random(ChaCha8Rng::seed_from_u64(seed));
        Self {
            random,
            path,
            held: Vec::new(),
            children: Vec::new(),
            tokens: Vec::new(),
            sets: Vec::new(),
            answers: 0,
            stored: 0,
            misread: 0,
        }
    }

    fn name(&mut self) -> String {
        let odd = ["", "a", "b@h1", "@h1", "a@h1", "a@h2", "..", "-", "a b", "\u{0}", "\u{1b}[2J", "日本"];
        match self.random.below(4) {
            0 => "x".repeat(self.random.below(40)),
            1 => format!("n{}", self.random.below(20)),
            _ => self.random.one(&odd).to_owned(),
        }
    }

    fn pid(&mut self) -> u64 {
        let child = self.children.first().map_or(1, |child| u64::from(child.id()));
        let own = u64::from(std::process::id());
        let number = self.random.number();
        self.random.one(&[0, child, child, own, 1, 2, number])
    }

    fn request(&mut self) -> Value {
        let (number, name) = (self.random.number(), self.name());
        let lane = json!({
            "receivers": [name], "message_max_bytes": number, "period_ns": self.random.number(), "messages_max": self.random.number(),
        });
        let mut request = match self.random.below(20) {
            0 | 1 => {
                let session = match self.random.below(4) {
                    0 => json!(self.tokens.first()),
                    1 => json!(name),
                    _ => Value::Null,
                };
                let protocol = self.random.one(&[2, 2, 2, 1, number]);
                json!({ "op": "hello", "protocol": protocol, "program": name, "session": session })
            }
            2..=5 => {
                let beat = self.random.one(&[0, 1, 4000, 10_000, number]);
                json!({ "op": "join", "name": name, "pid": self.pid(), "beat_timeout_us": beat })
            }
            6 => json!({ "op": "quit", "slot": self.random.below(70) }),
            7..=9 => {
                json!({ "op": "monitor", "target": format!("{name}@h1"), "timeout_us": number, "pbsize": self.random.below(2000) })
            }
            10 => json!({ "op": "unmonitor", "watch": self.random.below(50) }),
            11 => json!({ "op": self.random.one(&["listen", "unlisten"]), "service": self.random.below(300) }),
            12 => json!({ "op": "open_lane", "name": name }),
            13 => json!({ "op": self.random.one(&["change_lane", "close_lane"]), "handle": self.random.below(300) }),
            14 => json!({ "op": "explain", "event": name }),
            15 => json!({ "op": "events", "since": number, "kind": name }),
            // With another version, so that an allowed request has no effect.
            16 => {
                json!({ "op": "take_over", "phase": self.random.one(&["prepare", "switch", "taken"]), "version": "0.0.0-none" })
            }
            17 => json!({ "op": name }),
            _ => json!({ "op": self.random.one(&["status", "metrics", "events"]) }),
        };
        if let (Some(request), Some(lane)) = (request.as_object_mut(), lane.as_object())
            && request["op"].as_str().is_some_and(|op| op.ends_with("_lane"))
        {
            request.extend(lane.clone());
        }
        request["id"] = json!(self.random.number());
        request
    }

    /// Most of the time, the result is no valid request.
    fn mangled(&mut self) -> Vec<u8> {
        let mut bytes = self.request().to_string().into_bytes();
        for _ in 0..=self.random.below(6) {
            let at = self.random.below(bytes.len());
            match self.random.below(5) {
                0 => bytes.truncate(at),
                1 if !bytes.is_empty() => bytes[at] = self.random.next().to_le_bytes()[0],
                2 => bytes.insert(at, self.random.one(b"{}[]\",:0e-\\\x00\xff")),
                3 if !bytes.is_empty() => drop(bytes.remove(at)),
                _ => {
                    let (copy, more) = (bytes[at..].to_vec(), self.random.below(40));
                    (0..more).for_each(|_| bytes.extend(&copy));
                }
            }
        }
        bytes
    }

    fn any(&mut self) -> Option<usize> {
        (!self.held.is_empty()).then(|| self.random.below(self.held.len()))
    }

    /// A session's descriptors: alive table, region, events.
    fn session(&mut self) -> Option<&[OwnedFd]> {
        let with: Vec<usize> = (0..self.held.len()).filter(|at| self.held[*at].fds.len() == 3).collect();
        let at = *with.get(self.random.below(with.len()))?;
        Some(&self.held[at].fds)
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0 | 1 if self.held.len() < CONNECTIONS_MAX => {
                if let Ok(raw) = Raw::try_connect(&self.path) {
                    self.held.push(Held { raw, fds: Vec::new() });
                }
            }
            2 => {
                if let Some(at) = self.any() {
                    self.held.swap_remove(at);
                }
            }
            3 => {
                let how = self.random.one(&[Shutdown::Read, Shutdown::Write, Shutdown::Both]);
                if let Some(at) = self.any().filter(|_| self.random.below(4) == 0) {
                    let _ = rustix::net::shutdown(&self.held[at].raw.fd, how);
                }
            }
            4 | 5 => {
                let bytes = self.mangled();
                self.send(&bytes, false);
            }
            6 => {
                let len = self.random.one(&[0, 1, 100, 65_535, 65_536, 65_537, 100_000]);
                let byte = self.random.one(b"{[\"\x00 9");
                self.send(&vec![byte; len], false);
            }
            7 => {
                let bytes = self.request().to_string();
                self.send(bytes.as_bytes(), true);
            }
            8..=10 => self.scribble(),
            11 => self.change_region(),
            12 | 13 => self.abuse_events(),
            14 => self.abuse_table(),
            15 if self.children.len() < CHILDREN_MAX => {
                self.children.extend(Command::new("sleep").arg("60").spawn());
            }
            15 => {
                let mut child = self.children.remove(0);
                let _ = child.kill();
                let _ = child.wait();
            }
            16 => {
                // The answers are not read.
                let Some(at) = self.any() else { return };
                for _ in 0..self.random.below(300) {
                    let bytes = self.request().to_string();
                    let _ = self.held[at].raw.send(bytes.as_bytes(), &[]);
                }
            }
            _ => {
                let bytes = self.request().to_string();
                self.send(bytes.as_bytes(), false);
                self.read();
            }
        }
    }

    fn send(&mut self, bytes: &[u8], with_descriptors: bool) {
        let Some(at) = self.any() else { return };
        let mut fds = Vec::new();
        if with_descriptors {
            for _ in 0..=self.random.below(3) {
                fds.extend(match self.random.below(3) {
                    0 => File::open("/dev/null").map(OwnedFd::from).ok(),
                    1 => rustix::event::eventfd(0, EventfdFlags::CLOEXEC).ok(),
                    // The connection itself, in itself.
                    _ => self.held[at].raw.fd.try_clone().ok(),
                });
            }
        }
        let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let _ = self.held[at].raw.send(bytes, &fds);
    }

    /// Asserts that every answer is well-formed.
    fn read(&mut self) {
        let mut closed = Vec::new();
        for (at, held) in self.held.iter_mut().enumerate() {
            loop {
                match held.raw.receive(Duration::from_millis(1)) {
                    Got::Answer(answer, fds) => {
                        assert!(answer["id"].is_u64() && (answer.get("ok").is_some() != answer.get("error").is_some()));
                        self.answers += 1;
                        if let Some(token) = answer["ok"]["session"].as_str() {
                            self.tokens.insert(0, token.to_owned());
                            held.fds = fds;
                        }
                    }
                    Got::Closed => break closed.push(at),
                    Got::Nothing => break,
                }
            }
        }
        for at in closed.into_iter().rev() {
            self.held.swap_remove(at);
        }
    }

    fn scribble(&mut self) {
        let words: Vec<(u64, u64)> = (0..=self.random.below(30))
            .map(|_| {
                let at = match self.random.below(2) {
                    0 => self.random.one(&RINGS) + self.random.below(1024),
                    _ => self.random.below(SESSION_BYTES),
                };
                (at as u64 & !7, self.random.number())
            })
            .collect();
        let Some(fds) = self.session() else { return };
        // Memory of BPF takes no writes of files.
        let memory = Mapping::new(fds[1].as_fd(), 0, SESSION_BYTES, true).ok();
        let mut stored = 0;
        for (at, word) in words {
            if rustix::io::pwrite(&fds[1], &word.to_le_bytes(), at).is_err()
                && let Some(memory) = &memory
            {
                stored += u64::from(store(memory, at, word));
            }
        }
        self.stored += stored;
    }

    /// Writes the reader's position in a BPF ring.
    fn misread(&mut self) {
        let word = self.random.number();
        let Some(fds) = self.session() else { return };
        let page = Mapping::new(fds[2].as_fd(), 0, 4096, true);
        let misread = page.is_ok_and(|page| store(&page, 0, word));
        assert!(Mapping::new(fds[2].as_fd(), 4096, 4096, true).is_err(), "what the agent writes is for reading");
        self.misread += u64::from(misread);
    }

    fn change_region(&mut self) {
        let (at, len) = (self.random.number() % 400_000, 1 + self.random.number() % 400_000);
        let Some(fds) = self.session() else { return };
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let _ = rustix::fs::fallocate(&fds[1], hole, at, len);
        assert!(rustix::fs::ftruncate(&fds[1], at).is_err(), "the size is sealed");
        assert!(rustix::fs::fallocate(&fds[1], FallocateFlags::empty(), 1 << 20, 4096).is_err(), "and so is growth");
        assert!(rustix::fs::fcntl_add_seals(&fds[1], SealFlags::WRITE).is_err());
    }

    fn abuse_events(&mut self) {
        if self.random.below(3) == 0 {
            return self.misread();
        }
        let (what, number) = (self.random.below(6), self.random.next() % 1_000_000_000);
        let number_or_most = [self.random.number(), u64::MAX - 1];
        let bytes = self.random.one(&number_or_most).to_ne_bytes();
        let Some(events) = self.session().and_then(|fds| fds[2].try_clone().ok()) else { return };
        let at = Timespec { tv_sec: 0, tv_nsec: number.cast_signed() };
        let never = Timespec { tv_sec: 1 << 40, tv_nsec: 0 };
        let flags = TimerfdTimerFlags::empty();
        match what {
            0 => drop(rustix::fs::fcntl_setfl(&events, OFlags::empty())),
            1 => drop(rustix::fs::fcntl_setfl(&events, OFlags::NONBLOCK | OFlags::APPEND)),
            2 => {
                // Written only while that cannot block this thread.
                let _ = rustix::fs::fcntl_setfl(&events, OFlags::NONBLOCK);
                let _ = rustix::io::write(&events, &bytes);
            }
            3 => drop(rustix::time::timerfd_settime(&events, flags, &Itimerspec { it_interval: at, it_value: at })),
            4 => drop(rustix::time::timerfd_settime(&events, flags, &Itimerspec { it_interval: at, it_value: never })),
            _ if self.sets.len() < 64 => {
                if let Ok(set) = epoll::create(epoll::CreateFlags::CLOEXEC) {
                    let edge = epoll::EventFlags::IN | epoll::EventFlags::ET;
                    let _ = epoll::add(&set, &events, epoll::EventData::new_u64(0), edge);
                    self.sets.push(set);
                }
            }
            _ => self.sets.clear(),
        }
    }

    fn abuse_table(&mut self) {
        let at = self.random.number() % 4096;
        let Some(fds) = self.session() else { return };
        assert!(rustix::io::pwrite(&fds[0], &[7; 8], at).is_err(), "the table is for reading");
        assert!(rustix::fs::ftruncate(&fds[0], 0).is_err());
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(rustix::fs::fallocate(&fds[0], hole, 0, 4096).is_err());
        assert!(fide_shm::region::Mapping::new(fds[0].as_fd(), 0, 4096, true).is_err(), "and not for writing");
    }
}

/// Writes a word that others read and write; false beyond the end.
fn store(memory: &Mapping, at: u64, word: u64) -> bool {
    let at = usize::try_from(at).expect("an offset");
    if !at.is_multiple_of(8) || at + 8 > memory.len() {
        return false;
    }
    // SAFETY: within the mapping and aligned; all other readers use atomics.
    let word_there = unsafe { &*memory.as_ptr().add(at).cast::<AtomicU64>() };
    word_there.store(word, Ordering::Relaxed);
    true
}

/// Runs one seed; returns the numbers of answers and of writes to BPF memory.
fn run(seed: u64, path: std::path::PathBuf) -> [u64; 3] {
    let mut hostile = Hostile::new(seed, path);
    for _ in 0..STEPS {
        hostile.step();
    }
    hostile.read();
    [hostile.answers, hostile.stored, hostile.misread]
}

/// The agent's descriptors, without those of processes that are still registered: processes that root's
/// clients registered live on.
fn descriptors(agent: &Agent) -> Vec<String> {
    let status = agent.connect().ok(json!({ "op": "status" }));
    let mut watched = status["processes"].as_array().map_or(0, Vec::len);
    let all = std::fs::read_dir(format!("/proc/{}/fd", agent.child.id())).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        all.map(|one| std::fs::read_link(one.path()).unwrap_or_default().to_string_lossy().into_owned()).collect();
    names.retain(|name| {
        let of_process = watched > 0 && name.contains("pidfd");
        watched -= usize::from(of_process);
        !of_process
    });
    names.sort();
    names
}

/// Waits until an honest program is notified of such an event.
fn await_event(client: &mut Client, what: &str, is: impl Fn(&Event) -> bool) {
    let until = Instant::now() + LIMIT;
    while Instant::now() < until {
        let left = until.saturating_duration_since(Instant::now());
        if client.wait_event(Some(left)).expect("its ring").is_some_and(|event| is(&event)) {
            return;
        }
    }
    panic!("not notified: {what}");
}

fn seed(seed: u64, mut agent: Agent) -> [u64; 3] {
    agent.serves();
    // An honest program, and a watcher of it.
    let options = ConnectOptions { path: Some(agent.socket()), program: "honest".into(), ..ConnectOptions::default() };
    let mut honest = Client::connect(options).expect("connected");
    let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
    honest.join_pid("honest", child.id(), Duration::ZERO).expect("joined");
    honest.monitor("honest@h1", Wanted::default()).expect("watched");
    await_event(&mut honest, "honest is up", |event| matches!(event, Event::Up { .. }));
    let before = descriptors(&agent);
    let path = agent.socket();
    // Every other seed runs without privileges, so that the limits of users apply.
    let unprivileged = seed.is_multiple_of(2) && rustix::process::geteuid().is_root();
    let [answers, stored, misread] =
        if unprivileged { as_user(USER, move || run(seed, path)).expect("root") } else { run(seed, path) };
    assert!(answers > 20, "the agent answered {answers} times only");
    assert!(agent.child.try_wait().expect("its state").is_none(), "the agent has ended: {}", agent.log());
    assert!(!agent.log().contains("panicked"), "{}", agent.log());
    agent.serves();
    child.kill().expect("killed");
    child.wait().expect("reaped");
    if unprivileged {
        let killed = |event: &Event| matches!(event, Event::Verdict(verdict) if verdict.reason == Reason::Killed(9));
        await_event(&mut honest, "honest was killed", killed);
    }
    let until = Instant::now() + LIMIT;
    while descriptors(&agent).len() > before.len() {
        assert!(Instant::now() < until, "open before: {before:#?}, now: {:#?}", descriptors(&agent));
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(honest);
    [answers, stored, misread]
}

fn seeds(test: &str, agent: impl Fn() -> Agent) -> [u64; 3] {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let one = |at: u64| {
        println!("FIDE_SEED={at} cargo test -p fide --test cli {test}");
        seed(at, agent())
    };
    match number("FIDE_SEED") {
        Some(at) => one(at),
        None => (0..number("FIDE_SEEDS").unwrap_or(SEEDS))
            .map(one)
            .fold([0; 3], |sum, more| std::array::from_fn(|at| sum[at] + more[at])),
    }
}

#[test]
fn fuzzed_requests_memory_and_descriptors_leave_agent_serving() {
    let [_, stored, misread] = seeds("fuzzed_requests", || Agent::start(7540));
    assert_eq!((stored, misread), (0, 0), "without BPF");
}

#[test]
fn root_fuzzed_sessions_of_bpf_leave_agent_serving() {
    if let Err(why) = fide_testbed::supported() {
        return fide_testbed::say_not_tested(&format!("sessions of BPF: {why}"));
    }
    let by_bpf = || {
        let agent = Agent::start_by_bpf(7541);
        let rungs = agent.connect().ok(json!({ "op": "status" }))["rungs"].to_string();
        assert!(rungs.contains("bpf ring"), "{rungs}");
        agent
    };
    let [_, stored, misread] = seeds("root_fuzzed_sessions", by_bpf);
    assert!(stored > 0 && misread > 0, "{stored} words in memory of BPF, {misread} in the position of its reader");
}
