// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::etcd::{Client, Config};
use crate::store::{self, Store};
use crate::testing::{EtcdServer, as_child, client, eventually, respawn, say};
use rustix::process::Signal;
use std::time::Duration;

const PREFIX: &str = "/fide/leader-test";

fn candidate(name: &str) -> Candidate {
    Candidate { name: name.into(), address: format!("{name}:7000") }
}

fn start(client: Client, name: &str) -> Elected {
    let options = ElectedOptions { prefix: PREFIX.into(), candidate: candidate(name), ttl_s: TTL_MIN_S };
    Elected::start(client, options).unwrap()
}

fn epoch_of(leader: &Elected) -> Option<u64> {
    match leader.authority() {
        Authority::Leader { epoch } => Some(epoch),
        _ => None,
    }
}

/// A controller that only writes as long as it leads.
#[test]
fn child_leads_and_writes() {
    let Some(arguments) = as_child() else { return };
    let (endpoint, name) = arguments.split_once(' ').unwrap();
    let leader = start(client(endpoint), name);
    let mut store = store::Etcd::new(client(endpoint), PREFIX);
    let mut known: Option<Candidate> = None;
    let epoch = loop {
        match leader.authority() {
            Authority::Leader { epoch } => break epoch,
            Authority::Standby { leader: Some(who), .. } if known.as_ref() != Some(&who) => {
                say(format!("behind {}", who.name));
                known = Some(who);
            }
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let mut last = store.load(epoch).unwrap().last();
    say(format!("leads {epoch}"));
    while leader.authority() == (Authority::Leader { epoch }) {
        match store.append(last + 1, &[format!("{name} {}", last + 1).into_bytes()]) {
            Ok(()) => last += 1,
            Err(store::Error::Unavailable { .. }) => match store.load(epoch) {
                Ok(loaded) => last = loaded.last(),
                Err(_) => continue,
            },
            Err(refused) => {
                say(format!("refused {refused:?}"));
                break;
            }
        }
        say(format!("ack {last}"));
        std::thread::sleep(Duration::from_millis(5));
    }
    say(format!("leads no more: {:?}", leader.authority()));
    // It tries whatever the clock shows.
    let refused = store.append(last + 1, &[b"of a deposed leader".to_vec()]);
    say(format!("at last {refused:?}"));
    std::thread::sleep(crate::testing::PATIENCE);
}

const CHILD_LEADS: &str = "leader::tests::child_leads_and_writes";

#[test]
fn other_controller_follows_a_killed_leader() {
    let Some(server) = EtcdServer::start() else { return };
    let (mut one, one_says) = respawn(CHILD_LEADS, &format!("{} one", server.endpoint()));
    let first: u64 = one_says.find("leads").parse().unwrap();
    let (_two, two_says) = respawn(CHILD_LEADS, &format!("{} two", server.endpoint()));
    assert_eq!(two_says.find("behind"), "one");
    let mut acknowledged = 0;
    while acknowledged < 20 {
        acknowledged = one_says.find("ack").parse::<u64>().unwrap();
    }
    one.kill();
    while let Some(line) = one_says.next() {
        acknowledged = line.strip_prefix("ack ").map_or(acknowledged, |n| n.parse::<u64>().unwrap());
    }
    let second: u64 = two_says.find("leads").parse().unwrap();
    assert!(second > first);
    for _ in 0..5 {
        two_says.find("ack");
    }
    // All writes that the first has acknowledged are there, in one order with the second's.
    let probe = server.client();
    let records = probe.range(&format!("{PREFIX}/record/")).unwrap();
    let writers: Vec<String> = records
        .iter()
        .enumerate()
        .map(|(n, pair)| {
            let text = String::from_utf8(pair.value[4..].to_vec()).unwrap();
            text.strip_suffix(&format!(" {}", n + 1)).unwrap().to_owned()
        })
        .collect();
    let of_one = writers.iter().take_while(|w| *w == "one").count();
    assert!(of_one as u64 >= acknowledged && acknowledged >= 20, "{of_one} {acknowledged}");
    assert!(writers[of_one..].iter().all(|w| w == "two") && writers.len() >= of_one + 5);
}

#[test]
fn leader_paused_past_its_lease_cannot_write() {
    let Some(server) = EtcdServer::start() else { return };
    let (one, one_says) = respawn(CHILD_LEADS, &format!("{} one", server.endpoint()));
    one_says.find("ack");
    one.signal(Signal::STOP);
    let (_two, two_says) = respawn(CHILD_LEADS, &format!("{} two", server.endpoint()));
    two_says.find("leads");
    two_says.find("ack");
    one.signal(Signal::CONT);
    // It sees that at once on its own clock; etcd would refuse it all the same.
    one_says.find("leads no more");
    let refused = one_says.find("at last");
    assert!(refused.starts_with("Err(Fenced") || refused.starts_with("Err(NotLoaded"), "{refused}");
    two_says.find("ack");
    let probe = server.client();
    let records = probe.range(&format!("{PREFIX}/record/")).unwrap();
    let text = |pair: &crate::etcd::Pair| String::from_utf8_lossy(&pair.value[4..]).into_owned();
    assert!(records.iter().all(|pair| !text(pair).contains("deposed")));
    let seconds = records.iter().skip_while(|pair| text(pair).starts_with("one"));
    assert!(seconds.map(text).all(|text| text.starts_with("two")));
}

#[test]
fn leader_only_reads_while_etcd_is_away() {
    let Some(mut server) = EtcdServer::start() else { return };
    let leader = start(server.client(), "one");
    let epoch = eventually("a leader", || epoch_of(&leader));
    let mut store = store::Etcd::new(server.client(), PREFIX);
    store.load(epoch).unwrap();
    store.append(1, &[b"first".to_vec()]).unwrap();
    for hang in [false, true] {
        // Gone, or there and silent.
        if hang {
            server.signal(Signal::STOP)
        } else {
            server.kill()
        }
        let why = eventually("it notices", || match leader.authority() {
            Authority::ReadOnly { epoch: same, why } if same == epoch => Some(why),
            _ => None,
        });
        assert!(why.contains("no answer from etcd"), "{why}");
        let last = store.load(epoch).map(|l| l.last());
        assert!(matches!(last, Err(store::Error::Unavailable { .. })), "{last:?}");
        if hang {
            server.signal(Signal::CONT)
        } else {
            server.run()
        }
        // With its old lease if that still runs: nobody else wants to lead. etcd counts a lease anew when it
        // starts, so it does; after a pause it may have ended, and the next epoch begins.
        let again = eventually("it leads again", || epoch_of(&leader));
        assert!(again >= epoch);
        if hang && again != epoch {
            assert!(matches!(store.load(epoch), Err(store::Error::Fenced { .. })));
            continue;
        }
        assert_eq!(store.load(epoch).unwrap().records[0], b"first");
        let last = store.load(epoch).unwrap().last();
        store.append(last + 1, &[b"again".to_vec()]).unwrap();
    }
}

#[test]
fn stopping_leader_gives_way_and_deposed_one_stands_again() {
    let Some(server) = EtcdServer::start() else { return };
    let one = start(server.client(), "one");
    let first = eventually("a leader", || epoch_of(&one));
    let two = start(server.client(), "two");
    let behind = eventually("it sees the leader", || match two.authority() {
        Authority::Standby { leader, .. } => leader,
        other => panic!("{other:?}"),
    });
    assert_eq!(behind, candidate("one"));
    drop(one);
    // The lease was given back, so nobody waits for its end.
    let second = eventually("the other leads", || epoch_of(&two));
    assert!(second > first);
    two.deposed();
    assert!(matches!(two.authority(), Authority::Standby { .. }));
    assert!(eventually("it stands again", || epoch_of(&two)) > second);
}

#[test]
fn nobody_leads_without_etcd() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let leader = start(client(&format!("http://{closed}")), "one");
    // Peers that ask get the reason.
    let why = eventually("it says why", || match leader.authority() {
        Authority::Standby { leader: None, trouble } => trouble,
        other => panic!("{other:?}"),
    });
    assert!(why.contains("no answer from etcd"), "{why}");
    for (bad, says) in [
        (vec![], "no endpoint"),
        (vec!["1.2.3.4:2379".to_owned()], "http://"),
        (vec!["https://a:1".to_owned()], "authority"),
    ] {
        let refused = Client::new(&Config { endpoints: bad, tls: None, timeout: Duration::from_secs(1) }).unwrap_err();
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

#[test]
fn hanging_etcd_member_is_waited_for_once() {
    let Some(server) = EtcdServer::start() else { return };
    // Connections to it are made, and nobody answers.
    let hangs = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    hangs.set_nonblocking(true).unwrap();
    let endpoints = vec![format!("http://{}", hangs.local_addr().unwrap()), server.endpoint()];
    let client = Client::new(&Config { endpoints, ..server.config() }).unwrap();
    for _ in 0..5 {
        client.get("/x").unwrap();
    }
    let calls = std::iter::from_fn(|| hangs.accept().ok()).count();
    assert_eq!(calls, 1);
    // Also for a leader with a copy of the client.
    let leader = start(client, "one");
    eventually("a leader", || epoch_of(&leader));
    assert!(hangs.accept().is_err());
}

#[test]
fn etcd_is_reached_by_mutual_tls() {
    use crate::pki::{CA_DAYS, Request, init, issue};
    let dir = tempfile::tempdir().unwrap();
    let pki = dir.path().join("pki");
    let who = |name: &str| Request { addresses: vec!["127.0.0.1".into()], ..Request::new(name.parse().unwrap()) };
    let member = init(&pki, CA_DAYS, &who("controller.etcd")).unwrap().dir;
    let client = issue(&pki, &who("controller.c1")).unwrap().dir;
    let Some(server) = EtcdServer::start_with(Some([member, client])) else { return };
    let leader = start(server.client(), "one");
    eventually("a leader", || epoch_of(&leader));
    let mut anonymous = server.config();
    anonymous.tls.as_mut().unwrap().client = None;
    let refused = Client::new(&anonymous).unwrap().get("/x").unwrap_err();
    assert!(matches!(refused, crate::etcd::Error::NoAnswer { .. }), "{refused}");
    // Another authority than its own.
    let other = dir.path().join("other");
    let other = init(&other, CA_DAYS, &who("controller.c1")).unwrap().dir;
    let mut stranger = server.config();
    stranger.tls.as_mut().unwrap().authorities = other.join(crate::pki::CA_FILE);
    assert!(Client::new(&stranger).unwrap().get("/x").is_err());
}

/// A server that answers HTTP and is not etcd.
#[test]
fn server_that_is_not_etcd_is_named() {
    use std::io::{Read, Write};
    let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    let answers = ["{\"kvs\": [{\"key\": \"???\"}]}", "hello", "{\"kvs\": 7}"];
    let serving = std::thread::spawn(move || {
        for body in answers {
            let (mut peer, _) = socket.accept().unwrap();
            let mut request = Vec::new();
            // Only its body ends so.
            while !request.ends_with(b"}") {
                let mut part = [0; 4096];
                let got = peer.read(&mut part).unwrap();
                request.extend(&part[..got]);
            }
            write!(peer, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
                .unwrap();
        }
    });
    let client = client(&format!("http://{address}"));
    for _ in 0..2 {
        let why = client.get("/x").unwrap_err().to_string();
        assert!(why.contains("is http://127.0.0.1") && why.contains("3.4"), "{why}");
    }
    assert_eq!(client.get("/x"), Ok(None));
    serving.join().unwrap();
}

#[test]
fn lock_has_one_holder_and_names_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let lock = Single::lock(&path, "c1").unwrap();
    let refused = Single::lock(&path, "c2").unwrap_err().to_string();
    assert!(refused.contains("controller c1") && refused.contains(&std::process::id().to_string()), "{refused}");
    let single = lock.lead(41);
    assert_eq!(single.authority(), Authority::Leader { epoch: 42 });
    assert!(Single::lock(&path, "c2").is_err());
    drop(single);
    eventually("the lock is free", || Single::lock(&path, "c2").ok());
    let nowhere = Single::lock(&dir.path().join("no/lock"), "c1").unwrap_err().to_string();
    assert!(nowhere.contains("no/lock"), "{nowhere}");
}

#[test]
fn child_holds_the_lock() {
    let Some(path) = as_child() else { return };
    let _lock = Single::lock(std::path::Path::new(&path), "killed").unwrap();
    say("holds".into());
    std::thread::sleep(crate::testing::PATIENCE);
}

#[test]
fn lock_is_released_by_a_killed_holder() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lock");
    let (mut child, says) = respawn("leader::tests::child_holds_the_lock", path.to_str().unwrap());
    says.find("holds");
    assert!(Single::lock(&path, "next").unwrap_err().to_string().contains("controller killed"));
    child.kill();
    eventually("the lock is free", || Single::lock(&path, "next").ok());
}
