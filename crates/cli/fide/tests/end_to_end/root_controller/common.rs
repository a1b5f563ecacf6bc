// SPDX-License-Identifier: Apache-2.0
//! A fabric with its controller, and hosts on which the test does the work of an agent.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use fide_controller_api::client::{Caller, Ordered};
use fide_controller_api::tls::{ClientTls, Files};
use fide_controller_api::{Method, paths};
use fide_sys::clock::mono_ns;
use fide_testbed::fabric::{Controller, ControllerSpec, Fabric, FabricSpec};
use fide_testbed::{Host, supported};
use serde_json::{Value, json};

/// Bound of every wait; no wait is expected to come near it.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);
/// How long to wait after the last packet was sent, for expected packets and for one that must not come.
const QUIET: Duration = Duration::from_millis(60);
const PORT: u16 = 7000;
const POLL_MS: u64 = 20_000;

pub(crate) struct World {
    pub(crate) controller: Controller,
    pub(crate) fabric: Fabric,
}

/// `None`, with the reason printed, if this machine cannot have one.
pub(crate) fn world(spec: FabricSpec, extra: &str) -> Option<World> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    let fabric = Fabric::build(spec.managed()).expect("fabric");
    let program = Some(env!("CARGO_BIN_EXE_fide").into());
    let spec = ControllerSpec { program, extra: extra.into(), ..ControllerSpec::default() };
    let controller = Controller::start(&fabric, spec).expect("controller");
    Some(World { controller, fabric })
}

fn caller(host: &Host, credentials: &Path, controller: &Controller) -> Caller {
    let tls = Arc::new(ClientTls::load(Files::of_member(credentials)).expect("credentials"));
    let address = controller.address();
    host.run_in(|| Caller::new(vec![address], tls)).expect("namespace").expect("caller")
}

impl World {
    /// Requests to the controller from a host's namespace.
    pub(crate) fn member(&self, host: usize) -> Member {
        let host = self.fabric.host(host).clone();
        let credentials = self.controller.host_credentials(host.name());
        let caller_here = caller(&host, &credentials, &self.controller);
        let polling = caller(&host, &credentials, &self.controller);
        let (tell, news) = channel();
        let there = host.clone();
        std::thread::spawn(move || {
            let _ = there.run_in(|| listen(polling, &tell));
        });
        Member { host, caller: caller_here, order: Ordered::new(1), news, heard: Vec::new() }
    }

    /// The output of `fide controller ask`.
    pub(crate) fn operator(&self, words: &[&str]) -> (i32, String) {
        let node = self.fabric.controller().expect("managed");
        let address = self.controller.address().to_string();
        let credentials = self.controller.operator_credentials();
        let output = node
            .command(env!("CARGO_BIN_EXE_fide"))
            .arg("controller")
            .args(words)
            .args(["--address", &address, "--credentials"])
            .arg(credentials)
            .output()
            .expect("fide");
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        (output.status.code().unwrap_or(-1), text)
    }

    pub(crate) fn read(&self, path: &str) -> Value {
        let (code, text) = self.operator(&["ask", "GET", path]);
        assert_eq!(code, 0, "{text}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// All of a switch's multicast entries.
    pub(crate) fn entries(&self, switch: &str) -> Vec<String> {
        let switch = self.fabric.switch(switch).expect("a switch");
        let output = switch.node().command("bridge").args(["mdb", "show", "dev", "br0"]).output().expect("bridge");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines: Vec<String> = text
            .lines()
            .filter(|line| line.contains("grp 239.6") || line.contains("grp 239.7"))
            .map(str::to_owned)
            .collect();
        lines.sort();
        lines
    }

    pub(crate) fn all_entries(&self) -> BTreeMap<String, Vec<String>> {
        self.fabric.switches().iter().map(|s| (s.name().to_owned(), self.entries(s.name()))).collect()
    }

    /// The first link of a tree between two switches, as (link, from, port).
    pub(crate) fn inner_link(&self, tree: &Value) -> (usize, String, String) {
        let links = tree["links"].as_array().expect("links");
        let is_host = |name: &str| name.starts_with('h');
        for link in links {
            let [from, port, to] = [0, 1, 2].map(|i| link[i].as_str().expect("a name"));
            if !is_host(from) && !is_host(to) {
                return (self.fabric.link(from, to).expect("a link"), from.to_owned(), port.to_owned());
            }
        }
        panic!("no link between switches in {tree}");
    }
}

/// Long polls, as an agent does.
fn listen(mut caller: Caller, tell: &Sender<(u64, Value)>) {
    let mut after = 0;
    loop {
        let path = paths::upcalls(after, POLL_MS);
        match caller.call(Method::Get, &path, None, None, Duration::from_millis(POLL_MS)) {
            Ok(answered) if answered.status == 200 => {
                let at = mono_ns();
                for event in answered.body["events"].as_array().into_iter().flatten() {
                    after = event["number"].as_u64().unwrap_or(after);
                    if tell.send((at, event["event"].clone())).is_err() {
                        return;
                    }
                }
            }
            _ => {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        if tell.send((0, Value::Null)).is_err() {
            return;
        }
    }
}

/// A host as the controller sees it.
pub(crate) struct Member {
    pub(crate) host: Host,
    caller: Caller,
    order: Ordered,
    news: Receiver<(u64, Value)>,
    heard: Vec<(u64, Value)>,
}

impl Member {
    /// Makes a change, and returns the answer.
    pub(crate) fn change(&mut self, method: Method, path: &str, body: &Value) -> Value {
        let (caller, order) = (&mut self.caller, &mut self.order);
        let host = self.host.clone();
        let answered = host.run_in(|| order.change(caller, method, path, body, LIMIT)).expect("namespace");
        let answered = answered.expect("an answer");
        assert_eq!(answered.status, 200, "{} {path}: {}", method.as_str(), answered.body);
        answered.body
    }

    pub(crate) fn lane(&mut self, receivers: &[&str]) -> u64 {
        let body = json!({"name": "l", "receivers": receivers, "size_max_bytes": 200, "period_min_ns": 2_000_000});
        self.change(Method::Post, paths::LANES, &body)["lane"].as_u64().expect("a number")
    }

    /// Waits for a matching upcall; returns its time too, CLOCK_MONOTONIC ns.
    pub(crate) fn upcall(&mut self, what: &str, fits: impl Fn(&Value) -> bool) -> (u64, Value) {
        let begun = Instant::now();
        loop {
            if let Some(at) = self.heard.iter().position(|(_, event)| fits(event)) {
                return self.heard.remove(at);
            }
            let left = LIMIT.checked_sub(begun.elapsed());
            let next = left.and_then(|left| self.news.recv_timeout(left).ok());
            match next {
                Some((_, Value::Null)) => {}
                Some(news) => self.heard.push(news),
                None => panic!("in vain: {what}; there were {:?}", self.heard),
            }
        }
    }

    /// The upcall about a tree, which the sender then uses.
    pub(crate) fn tree(&mut self, lane: u64, tree: u64, generation: u64) -> (u64, Value) {
        self.upcall(&format!("tree {tree} of lane {lane}, generation {generation}"), |event| {
            event["kind"] == "tree"
                && event["lane"] == lane
                && event["tree"] == tree
                && event["generation"] == generation
        })
    }

    pub(crate) fn moved(&mut self, lane: u64, tree: u64, generation: u64) {
        let body = json!({"tree": tree, "generation": generation});
        self.change(Method::Post, &paths::moved(lane), &body);
    }
}

/// All hosts as members of a tree's groups, and the sender's socket.
pub(crate) struct Ears {
    inboxes: Vec<(usize, UdpSocket)>,
    outbox: UdpSocket,
    next: u32,
}

impl Ears {
    pub(crate) fn open(fabric: &Fabric, sender: usize, tree: &Value) -> Ears {
        let groups: Vec<Ipv4Addr> = tree["groups"]
            .as_array()
            .expect("groups")
            .iter()
            .map(|g| g.as_str().expect("text").parse().expect("a group"))
            .collect();
        let mut inboxes = Vec::new();
        for host in fabric.hosts() {
            for group in &groups {
                let inbox = host.run_in(|| {
                    let socket = UdpSocket::bind((*group, PORT))?;
                    for plane in 0..host.addresses().len() {
                        socket.join_multicast_v4(group, &host.address(plane))?;
                    }
                    socket.set_nonblocking(true)?;
                    Ok::<_, std::io::Error>(socket)
                });
                inboxes.push((host.index(), inbox.expect("namespace").expect("a socket")));
            }
        }
        let plane = usize::from(tree["port"] == "p1");
        let source = (fabric.host(sender).address(plane), 0);
        let outbox = fabric.host(sender).run_in(|| UdpSocket::bind(source)).expect("namespace").expect("a socket");
        outbox.set_multicast_loop_v4(false).expect("no loop");
        Ears { inboxes, outbox, next: 0 }
    }

    /// Sends numbered packets to the tree's present group.
    pub(crate) fn send(&mut self, tree: &Value, packets: u32) -> Vec<u32> {
        let group: Ipv4Addr = tree["group"].as_str().expect("text").parse().expect("a group");
        let numbers: Vec<u32> = (self.next..self.next + packets).collect();
        self.next += packets;
        for number in &numbers {
            let _ = self.outbox.send_to(&number.to_ne_bytes(), (group, PORT));
        }
        numbers
    }

    /// The packets that each host got since the last call, once these hosts have got so many: these may take
    /// as long as they need, the others a moment.
    pub(crate) fn got(&self, count: usize, hosts: &[usize]) -> BTreeMap<usize, Vec<u32>> {
        let mut all: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
        let mut look = || {
            for (host, inbox) in &self.inboxes {
                let mut packet = [0_u8; 4];
                while inbox.recv(&mut packet).is_ok() {
                    all.entry(*host).or_default().push(u32::from_ne_bytes(packet));
                }
            }
            hosts.iter().all(|host| all.get(host).is_some_and(|got| got.len() >= count))
        };
        // The caller reports what is missing.
        let begun = Instant::now();
        while !look() && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(2));
        }
        std::thread::sleep(QUIET);
        look();
        all.values_mut().for_each(|numbers| numbers.sort_unstable());
        all
    }

    /// Asserts that exactly these hosts get the packets that are sent now, each packet once.
    pub(crate) fn reach(&mut self, tree: &Value, hosts: &[usize]) {
        let _ = self.got(0, &[]);
        let numbers = self.send(tree, 10);
        let expected: BTreeMap<usize, Vec<u32>> = hosts.iter().map(|host| (*host, numbers.clone())).collect();
        assert_eq!(self.got(numbers.len(), hosts), expected, "{tree}");
    }
}
