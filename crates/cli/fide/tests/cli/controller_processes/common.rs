// SPDX-License-Identifier: Apache-2.0
//! A directory with certificates, controllers that run in it, and hosts that send requests to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fide_controller_api::client::{Answered, CallError, Caller, Ordered};
use fide_controller_api::sequence::Sequence;
use fide_controller_api::tls::{ClientTls, Files};
use fide_controller_api::{Method, paths};
use fide_testbed::retry_until;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

/// Bound of every wait; no wait is expected to come near it.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn fide(dir: &Path, words: &[&str]) -> (i32, String, String) {
    let output =
        Command::new(env!("CARGO_BIN_EXE_fide")).arg("controller").args(words).current_dir(dir).output().expect("fide");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

pub(crate) fn done(dir: &Path, words: &[&str]) -> String {
    let (code, out, err) = fide(dir, words);
    assert_eq!(code, 0, "{words:?}: {out}{err}");
    out
}

/// An address on loopback that is free now.
pub(crate) fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").expect("loopback").local_addr().expect("an address")
}

/// Certificates, a network of `hosts` hosts, h1, h2, ..., and the files of controllers.
pub(crate) struct Site {
    dir: tempfile::TempDir,
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Site {
    /// Each of the first hosts has a cable to the `cables` hosts after it, in a ring. `place` is the store
    /// section of a controller's file.
    pub(crate) fn new(controllers: usize, hosts: usize, cables: usize, place: &str) -> Site {
        let site = Site {
            dir: tempfile::tempdir().expect("a directory"),
            addresses: (0..controllers).map(|_| free()).collect(),
        };
        let dir = site.path();
        done(dir, &["init", "pki", "--address", "127.0.0.1"]);
        for controller in 2..=controllers {
            done(dir, &["issue", "pki", "controller", &format!("c{controller}"), "--address", "127.0.0.1"]);
        }
        done(dir, &["issue", "pki", "operator", "op"]);
        let mut network = String::new();
        for host in 1..=hosts {
            done(dir, &["issue", "pki", "host", &format!("h{host}")]);
            let _ = writeln!(network, "[[host]]\nname = \"h{host}\"");
        }
        for from in 0..hosts {
            for to in (1..=cables).map(|step| (from + step) % hosts).filter(|to| *to != from) {
                let _ = writeln!(network, "[[cable]]\na = \"h{}\"\nb = \"h{}\"", from + 1, to + 1);
            }
        }
        std::fs::write(dir.join("network.toml"), network).expect("a file");
        for (n, address) in site.addresses.iter().enumerate() {
            let name = format!("c{}", n + 1);
            site.write(&name, *address, place);
        }
        site
    }

    fn write(&self, name: &str, address: SocketAddr, place: &str) {
        let (store, etcd) = if place.starts_with('[') { ("", place) } else { (place, "") };
        let file = format!(
            "[controller]\nlisten = \"{address}\"\ncredentials = \"pki/issued/controller.{name}\"\n\
             revoked = \"pki/revoked\"\ntopology = \"network.toml\"\n{store}\n{etcd}\n"
        );
        std::fs::write(self.path().join(format!("{name}.toml")), file).expect("a file");
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn credentials(&self, who: &str) -> PathBuf {
        self.path().join("pki/issued").join(who)
    }

    pub(crate) fn caller(&self, who: &str) -> Caller {
        let tls = ClientTls::load(Files::of_member(&self.credentials(who))).expect("credentials");
        Caller::new(self.addresses.clone(), Arc::new(tls)).expect("a caller")
    }

    pub(crate) fn host(&self, name: &str) -> Host {
        Host { name: name.into(), caller: self.caller(&format!("host.{name}")), order: Ordered::new(1), said: 0 }
    }

    /// Runs `fide controller ask` as the operator.
    pub(crate) fn ask(&self, words: &[&str]) -> (i32, String, String) {
        let addresses: Vec<String> = self.addresses.iter().map(SocketAddr::to_string).collect();
        let mut all = vec!["ask"];
        all.extend(words);
        all.extend(["--credentials", "pki/issued/operator.op"]);
        all.extend(addresses.iter().flat_map(|address| ["--address", address]));
        fide(self.path(), &all)
    }

    /// All lanes, by name. A name that occurs twice is a request that was carried out twice.
    pub(crate) fn lanes(&self) -> BTreeMap<String, u64> {
        let (code, out, err) = self.ask(&["GET", paths::LANES, "--patience-s", "30"]);
        assert_eq!(code, 0, "{out}{err}");
        let answer: Value = serde_json::from_str(&out).expect("JSON");
        let mut by_name = BTreeMap::new();
        let mut numbers = BTreeSet::new();
        for lane in answer["lanes"].as_array().expect("lanes").iter().filter(|lane| lane["standing"] == "held") {
            let (name, number) = (lane["name"].as_str().expect("a name"), lane["lane"].as_u64().expect("a number"));
            assert_eq!(by_name.insert(name.to_owned(), number), None, "{name} was carried out twice");
            assert!(numbers.insert(number), "number {number} was given twice");
        }
        by_name
    }

    /// The log of a controller.
    pub(crate) fn log(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(format!("{name}.log"))).unwrap_or_default()
    }

    pub(crate) fn start(&self, name: &str) -> Running {
        self.start_by(name, Command::new("setpriv").args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_fide")]))
    }

    /// Starts a controller by `command`, which takes its arguments. The calling thread must outlive it.
    pub(crate) fn start_by(&self, name: &str, command: &mut Command) -> Running {
        let log = File::options().create(true).append(true).open(self.path().join(format!("{name}.log")));
        let child = command
            .args(["controller", "run", "--config"])
            .arg(self.path().join(format!("{name}.toml")))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.expect("a log"))
            .spawn();
        Running(child.expect("a controller"))
    }
}

/// A process; killed when dropped.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// Sends a signal. A process that is stopped has stopped, with all its threads, when this returns.
    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("a signal");
        while signal == Signal::STOP && self.runs() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether one of its threads is not stopped.
    fn runs(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).into_iter().flatten().flatten();
        // The state follows the name, which is in parentheses.
        let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).ok();
        tasks
            .filter_map(stat)
            .any(|stat| !stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['T', 'Z', 'X'])))
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A host that requests lanes.
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) caller: Caller,
    order: Ordered,
    said: u64,
}

pub(crate) fn lane_of(name: &str, receiver: &str) -> Value {
    json!({"name": name, "receivers": [receiver], "size_max_bytes": 100, "period_min_ns": 1_000_000_000, "redundancy": 1})
}

impl Host {
    pub(crate) fn change(&mut self, method: Method, path: &str, body: &Value) -> Result<Answered, CallError> {
        self.order.change(&mut self.caller, method, path, body, LIMIT)
    }

    /// Requests a lane with a new name, until it is acknowledged.
    pub(crate) fn lane(&mut self, receiver: &str) -> (String, u64) {
        self.said += 1;
        let name = format!("{}-{}", self.name, self.said);
        let answered = self.change(Method::Post, paths::LANES, &lane_of(&name, receiver)).expect("an answer");
        assert_eq!(answered.status, 200, "{}", answered.body);
        (name, answered.body["lane"].as_u64().expect("a number"))
    }

    pub(crate) fn release(&mut self, lane: u64) {
        let answered = self.change(Method::Delete, &paths::lane(lane), &json!({})).expect("an answer");
        assert_eq!(answered.status, 200, "{}", answered.body);
    }
}

/// Sends one request with a sequence number, until a leader has decided on it.
pub(crate) fn numbered(caller: &mut Caller, sequence: Sequence, body: &Value) -> Answered {
    retry_until("an answer", LIMIT, || {
        match caller.call(Method::Post, paths::LANES, Some(body), Some(sequence), Duration::ZERO) {
            Ok(answered) if !matches!(answered.status, 429 | 503) => Ok(answered),
            other => Err(format!("{other:?}")),
        }
    })
    .expect("an answer")
}

/// Upcalls to a host, by number. An upcall that comes again is the same.
pub(crate) type Heard = BTreeMap<u64, Value>;

/// Long polls until `end`, and then for the remaining upcalls.
pub(crate) fn listen(mut caller: Caller, end: &AtomicBool) -> Heard {
    const WAIT_MS: u64 = 500;
    let (mut heard, mut after) = (Heard::new(), 0);
    loop {
        let last_look = end.load(Ordering::SeqCst);
        let path = paths::upcalls(after, WAIT_MS);
        match caller.call(Method::Get, &path, None, None, Duration::from_millis(WAIT_MS)) {
            Ok(answered) if answered.status == 200 => {
                assert_eq!(answered.body["lost"], Value::Null);
                let events = answered.body["events"].as_array().expect("events");
                for event in events {
                    let number = event["number"].as_u64().expect("a number");
                    let before = heard.insert(number, event["event"].clone());
                    assert!(before.is_none_or(|before| before == event["event"]), "{number} came again and differs");
                    after = after.max(number);
                }
                if last_look && events.is_empty() {
                    return heard;
                }
            }
            Ok(answered) => assert!(matches!(answered.status, 429 | 503), "{answered:?}"),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Pseudo-random numbers, the same for the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// The seed is `FIDE_SEED`, or a new one; printed, so that a failure shows it.
    pub(crate) fn new() -> Random {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let given = std::env::var("FIDE_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or(now.as_nanos() as u64 | 1);
        println!("seed {seed}; FIDE_SEED={seed} uses it again");
        Random(seed)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        // Xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
