// SPDX-License-Identifier: Apache-2.0
//! Three controllers, one etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fide_controller_api::client::{Answered, Caller};
use fide_controller_api::sequence::Sequence;
use fide_controller_api::{Code, Method, paths};
use fide_testbed::{Stops, retry_until};
use rustix::process::Signal;
use serde_json::json;

use super::common::{Host, LIMIT, Running, Site, lane_of, listen, numbered};
use super::etcd::Etcd;

/// Lanes that each host requests before and after a leader is killed.
const LANES: usize = 8;

struct Three {
    etcd: Etcd,
    site: Site,
    running: Vec<Option<Running>>,
}

impl Three {
    fn start() -> Option<Three> {
        let etcd = Etcd::start()?;
        let site = Site::new(3, 4, 3, &etcd.section());
        let running = (1..=3).map(|n| Some(site.start(&format!("c{n}")))).collect();
        Some(Three { etcd, site, running })
    }

    /// The leader, as its own answer proves.
    fn leader(&self, caller: &mut Caller) -> usize {
        retry_until("a leader", LIMIT, || match caller.call(Method::Get, paths::SELF, None, None, Duration::ZERO) {
            Ok(answered) if answered.status == 200 && !answered.stale => Ok(caller.address()),
            other => Err(format!("{other:?}")),
        })
        .map(|leads| self.site.addresses.iter().position(|address| *address == leads).expect("one of them"))
        .expect("a leader")
    }

    /// Each controller's report about itself: a leader's name and address, or why it cannot lead.
    fn said_by(&self, n: usize) -> (String, String) {
        let tls = fide_controller_api::tls::Files::of_member(&self.site.credentials("operator.op"));
        let tls = fide_controller_api::tls::ClientTls::load(tls).expect("credentials");
        let mut caller = Caller::new(vec![self.site.addresses[n]], std::sync::Arc::new(tls)).expect("a caller");
        match caller.call(Method::Get, paths::SELF, None, None, Duration::ZERO) {
            Ok(answered) if answered.status == 200 => ("leads".into(), String::new()),
            Ok(answered) => (text(&answered), answered.message().to_owned()),
            Err(error) => ("unreachable".into(), error.to_string()),
        }
    }
}

/// An answer's code, if it is an error.
fn text(answered: &Answered) -> String {
    answered.code().map_or_else(String::new, |code| code.to_string())
}

/// Each host requests `more` lanes. Once `at` are acknowledged, `done_to_them` is called.
fn ask_all(hosts: &mut [Host], more: usize, at: usize, done_to_them: impl FnOnce()) -> BTreeMap<String, u64> {
    std::thread::scope(|scope| {
        let (acknowledge, acknowledged) = channel();
        let asking: Vec<_> = hosts
            .iter_mut()
            .enumerate()
            .map(|(n, host)| {
                let acknowledge = acknowledge.clone();
                scope.spawn(move || -> Vec<(String, u64)> {
                    let receiver = format!("h{}", (n + 1) % 4 + 1);
                    let ask = |_| {
                        let lane = host.lane(&receiver);
                        acknowledge.send(()).expect("somebody counts");
                        lane
                    };
                    (0..more).map(ask).collect()
                })
            })
            .collect();
        for _ in 0..at {
            acknowledged.recv_timeout(LIMIT).expect("an acknowledgement");
        }
        done_to_them();
        asking.into_iter().flat_map(|asking| asking.join().expect("a host")).collect()
    })
}

fn held(site: &Site, acknowledged: &BTreeMap<String, u64>) {
    assert_eq!(&site.lanes(), acknowledged, "what was acknowledged is not what is held");
}

#[test]
fn a_killed_leader_and_an_absent_etcd_lose_nothing() {
    let Some(mut three) = Three::start() else { return };
    let mut operator = three.site.caller("operator.op");
    let first = three.leader(&mut operator);
    let mut hosts: Vec<Host> = (1..=3).map(|n| three.site.host(&format!("h{n}"))).collect();
    let mut h4 = three.site.caller("host.h4");
    let number = |number| Sequence { incarnation: 1, number };
    let once = numbered(&mut h4, number(1), &lane_of("once", "h1"));
    assert_eq!(once.status, 200, "{}", once.body);
    let mut acknowledged = BTreeMap::from([("once".to_owned(), once.body["lane"].as_u64().expect("a number"))]);

    let end = AtomicBool::new(false);
    let heard = std::thread::scope(|scope| {
        let caller = three.site.caller("host.h2");
        let stops = Stops(&end);
        let listening = scope.spawn(|| listen(caller, &end));

        // Killed while hosts wait for their answers.
        let killed = three.running[first].take();
        acknowledged.extend(ask_all(&mut hosts, 2 * LANES, LANES, || drop(killed)));
        let second = three.leader(&mut operator);
        assert_ne!(second, first);
        held(&three.site, &acknowledged);
        // The second controller knows the requests that the first one carried out: none is repeated or
        // reordered.
        let again = numbered(&mut h4, number(1), &lane_of("once", "h1"));
        assert_eq!(again, once);
        let early = numbered(&mut h4, number(3), &lane_of("early", "h1"));
        assert_eq!((early.status, early.code()), (409, Some(Code::OutOfOrder)));
        assert_eq!(early.body["error"]["expected"], "1.2");
        let other = numbered(&mut h4, number(1), &lane_of("other", "h1"));
        assert_eq!((other.status, other.code()), (409, Some(Code::NumberReused)));
        // Numbers of lanes are not reused, whichever controller gave them.
        let last = hosts[0].lane("h2");
        hosts[0].release(last.1);
        let next = hosts[0].lane("h2");
        assert!(acknowledged.values().all(|number| *number < last.1) && last.1 < next.1, "{last:?} {next:?}");
        acknowledged.insert(next.0, next.1);

        // The first controller is back, and follows.
        three.running[first] = Some(three.site.start(&format!("c{}", first + 1)));
        retry_until("it follows", LIMIT, || match three.said_by(first) {
            (code, message) if code == "not_leader" && message.contains(&format!("c{} at", second + 1)) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .expect("it follows");

        // etcd hangs. Every controller answers why it changes nothing, and what to do.
        three.etcd.running.as_ref().expect("it runs").signal(Signal::STOP);
        let away = |three: &Three, caller: &mut Caller| {
            let mut answers = BTreeSet::new();
            retry_until("all three say it", LIMIT, || {
                let body = lane_of("twice", "h1");
                match caller.call(Method::Post, paths::LANES, Some(&body), Some(number(2)), Duration::ZERO) {
                    Ok(answered) => {
                        assert_eq!(answered.status, 503, "{}", answered.body);
                        assert!(answered.message().contains("with the same number"), "{}", answered.body);
                        if answered.message().contains("no answer from etcd") {
                            answers.insert(text(&answered));
                        }
                    }
                    Err(error) => return Err(error.to_string()),
                }
                let all: Vec<_> = (0..3).map(|n| three.said_by(n)).collect();
                // The leader still reports its state, and the others report why they do not lead.
                let why =
                    all.iter().filter(|(code, _)| code == "not_leader").all(|(_, m)| m.contains("no answer from etcd"));
                if why && answers.contains("read_only") { Ok(()) } else { Err(format!("{answers:?} {all:?}")) }
            })
            .expect("all three say it");
        };
        away(&three, &mut h4);
        let (code, _, said) =
            three.site.ask(&["PUT", &paths::cable("h1--h2"), "{\"in_use\": true}", "--patience-s", "0"]);
        assert!(code == 1 && said.contains("no controller has answered") && said.contains("etcd"), "{code} {said}");
        three.etcd.running.as_ref().expect("it runs").signal(Signal::CONT);
        let twice = numbered(&mut h4, number(2), &lane_of("twice", "h1"));
        assert_eq!(twice.status, 200, "{}", twice.body);
        acknowledged.insert("twice".into(), twice.body["lane"].as_u64().expect("a number"));
        held(&three.site, &acknowledged);

        // etcd is killed under load, and comes back with its data.
        let etcd = &mut three.etcd;
        acknowledged.extend(ask_all(&mut hosts, LANES, LANES, || {
            etcd.running = None;
            etcd.run();
        }));
        held(&three.site, &acknowledged);
        assert_eq!(numbered(&mut h4, number(2), &lane_of("twice", "h1")), twice);
        drop(stops);
        listening.join().expect("it listens")
    });
    // Upcalls continued: no number is missing, and h2 was notified of every lane that it sends or receives on.
    assert!(heard.keys().copied().eq(1..=heard.len() as u64), "{:?}", heard.keys());
    let notified: BTreeSet<u64> =
        heard.values().filter(|event| event["kind"] == "tree").filter_map(|event| event["lane"].as_u64()).collect();
    let mine = acknowledged.iter().filter(|(name, _)| ["h1-", "h2-"].iter().any(|host| name.starts_with(host)));
    let missing: Vec<_> = mine.filter(|(_, lane)| !notified.contains(lane)).collect();
    assert!(missing.is_empty(), "{missing:?} of {notified:?}");
    let body = json!({"tree": 0, "generation": 0});
    let moved = hosts[0].change(Method::Post, &paths::moved(acknowledged["h1-1"]), &body);
    assert_eq!(moved.expect("an answer").status, 200);
}

/// A cable to etcd that can be cut: it passes connections on until then.
struct Cable {
    address: SocketAddr,
    ends: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Cable {
    fn to(etcd: SocketAddr) -> Cable {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let cable =
            Cable { address: listener.local_addr().expect("an address"), ends: Arc::new(Mutex::new(Some(Vec::new()))) };
        let ends = cable.ends.clone();
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let mut ends = ends.lock().expect("no panic");
                let Some(ends) = ends.as_mut() else { return };
                let Ok(far) = TcpStream::connect(etcd) else { continue };
                for (mut from, mut to) in [(&near, &far), (&far, &near)]
                    .map(|(from, to)| (from.try_clone().expect("a copy"), to.try_clone().expect("a copy")))
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                ends.extend([near, far]);
            }
        });
        cable
    }

    fn cut(&self) {
        for end in self.ends.lock().expect("no panic").take().into_iter().flatten() {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// The leader still answers, and does not know that another one leads.
#[test]
fn leader_cut_off_from_etcd_alone_keeps_no_host() {
    let Some(etcd) = Etcd::start() else { return };
    let cable = Cable::to(etcd.address());
    let site = Site::new(2, 2, 1, &etcd.section());
    let file = site.path().join("c1.toml");
    let text = std::fs::read_to_string(&file).expect("a file");
    let text = text.replace(&etcd.address().to_string(), &cable.address.to_string());
    std::fs::write(&file, text).expect("a file");
    let mut three = Three { etcd, site, running: Vec::new() };
    let mut operator = three.site.caller("operator.op");
    three.running.push(Some(three.site.start("c1")));
    assert_eq!(three.leader(&mut operator), 0);
    three.running.push(Some(three.site.start("c2")));
    let mut host = three.site.host("h1");
    let first = host.lane("h2");
    cable.cut();
    // The request goes to the leader that the host knows.
    let second = host.lane("h2");
    assert!(second.1 > first.1);
    assert_eq!(three.said_by(1).0, "leads");
}
