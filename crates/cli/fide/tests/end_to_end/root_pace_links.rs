// SPDX-License-Identifier: Apache-2.0
//! `fide pace send` and `recv` over links that change while messages cross them, and between hosts that do.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use fide_link_model::LinkSpec;
use fide_pace_socket::new_secret;
use fide_testbed::{
    Host, Lines, Spec, Testbed,
    emulator::{DEVICE, Emulator},
    end_within, retry_until, supported,
};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const FIDE: &str = env!("CARGO_BIN_EXE_fide");
/// Bound of every wait; no wait is expected to come near it.
const LIMIT: Duration = Duration::from_secs(60);
/// Of each way.
const DELAY_NS: u64 = 5_000_000;

/// Ended with the test.
struct Process(Child);

impl Process {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two hosts, a link between them, and numbered messages from the one to the other.
struct Flow {
    sender: Process,
    receiver: Process,
    /// The receiver's output, until somebody reads it.
    out: Option<std::process::ChildStdout>,
    /// The number of the last message that was given to the sender.
    given: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
    link: Emulator,
    testbed: Testbed,
    _dir: tempfile::TempDir,
}

fn key_in(dir: &Path) -> String {
    let key = dir.join("key");
    fs::write(&key, new_secret().to_text()).unwrap();
    fs::set_permissions(&key, fs::Permissions::from_mode(0o400)).unwrap();
    key.to_str().unwrap().to_owned()
}

fn pace(host: &Host, words: &[&str]) -> Process {
    let mut command = host.command(FIDE);
    command.arg("pace").args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Process(command.spawn().unwrap())
}

/// Over which 8 Mbit/s go.
fn way() -> LinkSpec {
    LinkSpec::of(DELAY_NS).with_rate(8_000_000, 100_000)
}

impl Flow {
    /// Messages of `size` bytes, as fast as they are taken. None: there are no namespaces here.
    fn start(size: usize, deadline: &str) -> Option<Self> {
        if let Err(why) = supported() {
            println!("skipped: {why}");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let key = key_in(dir.path());
        let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(2) }).unwrap();
        let link = Emulator::between(testbed.host(1), testbed.host(2), [way(), LinkSpec::of(DELAY_NS)], 7).unwrap();
        let at = format!("{}:7000", Emulator::address(1));
        let mut receiver = pace(testbed.host(2), &["recv", &at, "--key", &key, "--lines"]);
        Lines::of(receiver.0.stderr.take().unwrap()).find_words("waiting");
        let bytes = size.to_string();
        // What is lost is sent again as long as there is time.
        let words =
            ["send", &at, "--key", &key, "--lines", "--size", &bytes, "--deadline", deadline, "--loss", "0.000001"];
        let mut sender = pace(testbed.host(1), &words);
        let mut input = sender.0.stdin.take().unwrap();
        let (given, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (of_writer, stops) = (Arc::clone(&given), Arc::clone(&stop));
        let writer = thread::spawn(move || {
            for number in 1.. {
                // It ends with the sender, too.
                if stops.load(Relaxed) || writeln!(input, "{number:0size$}").is_err() {
                    return;
                }
                of_writer.store(number, Relaxed);
            }
        });
        let out = receiver.0.stdout.take();
        Some(Self { sender, receiver, out, given, stop, writer: Some(writer), link, testbed, _dir: dir })
    }

    /// The numbers of the messages that come.
    fn read(&mut self) -> mpsc::Receiver<u64> {
        let (tell, numbers) = mpsc::channel();
        let out = BufReader::new(self.out.take().unwrap());
        thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = tell.send(line.parse().unwrap_or_else(|why| panic!("{why}: {line:?} is no message")));
            }
        });
        numbers
    }

    /// What `fide pace top` shows of one end.
    fn top(of: &Process) -> Value {
        let pid = of.0.id().to_string();
        let output = Command::new(FIDE).args(["pace", "top", "--once", "--json", "--pid", &pid]).output().unwrap();
        if !output.status.success() {
            println!("{}", String::from_utf8_lossy(&output.stderr));
        }
        let view: Value = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
        view["endpoints"][0]["shown"][0].clone()
    }

    /// The same, once it is as it should be.
    #[track_caller]
    fn await_top(of: &Process, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        retry_until(what, LIMIT, || {
            let view = Self::top(of);
            if is_so(&view) { Ok(view) } else { Err(format!("{view:#}")) }
        })
        .unwrap()
    }

    /// Messages that were given from now on come: those that the pipes before the sender hold are older.
    #[track_caller]
    fn await_new(&self, numbers: &mpsc::Receiver<u64>) {
        let before = self.given.load(Relaxed);
        let mut last = 0;
        while last < before + 100 {
            let number = numbers.recv_timeout(LIMIT).unwrap_or_else(|why| panic!("after message {last}: {why}"));
            assert!(number > last, "message {number} came after {last}");
            last = number;
        }
    }

    /// The sender sends what it has, and both end.
    #[track_caller]
    fn end(mut self) {
        self.stop.store(true, Relaxed);
        self.writer.take().unwrap().join().unwrap();
        for (what, process) in [("sender", &mut self.sender), ("receiver", &mut self.receiver)] {
            let status = end_within(&mut process.0, LIMIT).unwrap();
            let said = process.0.stderr.take().map(|errors| Lines::of(errors).rest()).unwrap_or_default();
            assert!(status.success(), "the {what} has ended with {status}: {said}");
        }
    }
}

/// None: nothing is shown yet.
fn number_of(view: &Value, key: &str) -> Option<u64> {
    key.split('.').fold(view, |value, key| &value[key]).as_u64()
}

fn number(view: &Value, key: &str) -> u64 {
    number_of(view, key).unwrap_or_else(|| panic!("{key} in {view:#}"))
}

#[test]
fn root_path_that_begins_to_drop_large_packets_carries_messages_on() {
    const LESS: usize = 1300;
    let Some(mut flow) = Flow::start(5000, "10s") else { return };
    let numbers = flow.read();
    let packet_bytes = |view: &Value| view["path"]["packet_bytes"].as_u64();
    Flow::await_top(&flow.sender, "packets as large as the path takes", |view| packet_bytes(view) > Some(LESS as u64));
    flow.await_new(&numbers);
    flow.link.change(0, LinkSpec { mtu: LESS, ..way() });
    flow.await_new(&numbers);
    let view = Flow::top(&flow.sender);
    assert!(packet_bytes(&view) <= Some(LESS as u64), "{view:#}");
    // Longer ones are tried again now and then, and lost.
    assert!(flow.link.seen(0).dropped > 0);
    flow.end();
}

#[test]
fn root_sender_whose_address_changes_is_followed() {
    let Some(mut flow) = Flow::start(900, "10s") else { return };
    let numbers = flow.read();
    flow.await_new(&numbers);
    let [here, there] = [1, 2].map(|host| flow.testbed.host(host).namespace().to_owned());
    let ip = |namespace: &str, words: &str| {
        let output = Command::new("ip").args(["-n", namespace]).args(words.split(' ')).output().unwrap();
        assert!(output.status.success(), "ip {words}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let (old, new) = (Emulator::address(0), "10.90.0.5");
    ip(&there, &format!("route add {new}/32 dev {DEVICE}"));
    ip(&here, &format!("addr add {new}/29 dev {DEVICE}"));
    ip(&here, &format!("addr del {old}/30 dev {DEVICE}"));
    flow.await_new(&numbers);
    let peer = Flow::top(&flow.receiver)["peer"].clone();
    assert!(peer.as_str().is_some_and(|peer| peer.starts_with(&format!("{new}:"))), "{peer}");
    flow.end();
}

/// The kernel hands marks up with each packet, the receiver counts them, and its FEEDBACK makes the sender slower.
#[test]
fn root_marks_of_congestion_make_a_sender_slower() {
    let Some(mut flow) = Flow::start(900, "10s") else { return };
    let numbers = flow.read();
    let paced = |view: &Value| view["path"]["paced_bytes_per_s"].as_u64();
    // The link takes a million bytes a second.
    Flow::await_top(&flow.sender, "nearly the link's rate", |view| paced(view) > Some(600_000));
    flow.link.change(0, LinkSpec { marks: 1.0, ..way() });
    let view = Flow::await_top(&flow.sender, "a far lower rate", |view| paced(view) < Some(300_000));
    assert_eq!(number(&view, "path.lost_packets"), flow.link.seen(0).dropped, "{view:#}");
    flow.link.change(0, way());
    Flow::await_top(&flow.sender, "a higher rate again", |view| paced(view) > Some(300_000));
    flow.await_new(&numbers);
    flow.end();
}

/// Its application takes nothing, while its endpoint answers.
#[test]
fn root_receiver_that_reads_nothing_holds_its_sender_until_it_reads() {
    let Some(mut flow) = Flow::start(900, "2s") else { return };
    // The pipe behind the receiver is full soon.
    Flow::await_top(&flow.sender, "a receiver that takes nothing", |view| {
        view["out"]["bottleneck"] == "deliver" && view["out"]["waiting_there"].as_u64() > Some(0)
    });
    // One more message is let through now and then, so that its end is seen.
    let view = Flow::await_top(&flow.sender, "expired messages", |_| {
        Flow::top(&flow.receiver)["in"]["late"].as_u64() > Some(2)
    });
    // A deadline's time holds 2,000.
    assert!(number(&view, "out.waiting") <= 1 && number(&view, "out.waiting_there") <= 500, "{view:#}");
    let numbers = flow.read();
    flow.await_new(&numbers);
    flow.end();
}

/// It does not answer, either. What was under way expires, and the sender is held: it sends nothing into an outage.
#[test]
fn root_receiver_that_is_stopped_is_sent_to_again_when_it_continues() {
    let Some(mut flow) = Flow::start(900, "500ms") else { return };
    let numbers = flow.read();
    flow.await_new(&numbers);
    flow.receiver.signal(Signal::STOP);
    let view = Flow::await_top(&flow.sender, "a sender that knows of the outage", |view| {
        number_of(view, "out.given_up") > Some(0) && number_of(view, "path.in_flight_bytes") == Some(0)
    });
    assert!(number(&view, "out.waiting") <= 1, "{view:#}");
    // More was given to it all the while, and would have been sent.
    let dropped = |view: &Value| number_of(view, "out.dropped") > Some(0);
    let held = Flow::await_top(&flow.sender, "a message that expired while it waited", dropped);
    assert!(number(&held, "out.messages") <= number(&view, "out.messages") + 2, "{view:#} {held:#}");
    flow.receiver.signal(Signal::CONT);
    flow.await_new(&numbers);
    flow.end();
}
