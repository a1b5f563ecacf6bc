// SPDX-License-Identifier: Apache-2.0
//! Workers at real bridges.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use fide_switch::{GroupRange, linux::Linux};
use fide_testbed::fabric::{Cut, Fabric, FabricSpec};
use fide_testbed::supported;

use super::worker::REOPEN_FAILURES;
use super::*;
use crate::core::SwitchOrder;
use crate::leader::Authority;
use crate::shell::pipe;

const LIMIT: Duration = Duration::from_secs(20);
const FAST: Pace = Pace { retry: Duration::from_millis(20), audit: Duration::from_millis(50) };

/// A leadership that the test sets.
#[derive(Debug, Default)]
struct FixedLeadership(AtomicBool);

impl Leadership for FixedLeadership {
    fn authority(&self) -> Authority {
        if self.0.load(Ordering::SeqCst) {
            Authority::Leader { epoch: 1 }
        } else {
            Authority::Standby { leader: None, trouble: None }
        }
    }
    fn deposed(&self) {}
}

struct World {
    fabric: Fabric,
    leads: Arc<FixedLeadership>,
    act: Box<dyn FnMut(SwitchOrder)>,
    running: Running,
    next: Box<dyn Fn(Duration) -> Option<Event>>,
}

fn group(n: u8) -> Ipv4Addr {
    Ipv4Addr::new(239, 64, 0, n)
}

fn order(number: u64, anew: bool, install: &[(u8, &[&str])], remove: &[u8]) -> SwitchOrder {
    let ports = |ports: &[&str]| ports.iter().map(|p| (*p).to_owned()).collect::<BTreeSet<_>>();
    SwitchOrder {
        switch: "l1a".into(),
        number,
        anew,
        install: install.iter().map(|(g, p)| (group(*g), ports(p))).collect(),
        remove: remove.iter().map(|g| group(*g)).collect(),
    }
}

/// The orders arrive before the worker, so that they are merged.
fn world(leads: bool, bound: usize, pace: Pace, orders: Vec<SwitchOrder>) -> Option<World> {
    world_that_opens(Arc::new(AtomicBool::new(true)), leads, bound, pace, orders)
}

/// The switch cannot be opened until the test allows it.
fn world_that_opens(
    opens: Arc<AtomicBool>,
    leads: bool,
    bound: usize,
    pace: Pace,
    orders: Vec<SwitchOrder>,
) -> Option<World> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    let fabric = Fabric::build(FabricSpec::single_pair(2)).unwrap();
    let netns = fabric.switch("l1a").unwrap().node().namespace_path();
    let range = GroupRange::new(crate::core::GROUPS, crate::core::GROUPS_PREFIX).unwrap();
    let open: Opener = Box::new(move || {
        let name = if opens.load(Ordering::SeqCst) { "br0" } else { "lo" };
        Ok(Box::new(Linux::open(Some(&netns), name, range)?))
    });
    let ports = ["h1", "h2", "h3"].map(str::to_owned).into();
    let spec = SwitchSpec { name: "l1a".into(), open, lanes: Lanes::default(), ports };
    let switches = Switches::new(vec![spec]);
    let mut act = switches.act();
    orders.into_iter().for_each(&mut act);
    let leads = Arc::new(FixedLeadership(AtomicBool::new(leads)));
    let (event_sender, next) = pipe(bound);
    let running = switches.start(event_sender, leads.clone(), pace).unwrap();
    Some(World { fabric, leads, act: Box::new(act), running, next: Box::new(next) })
}

impl World {
    fn entries(&self) -> BTreeSet<(String, String)> {
        let node = self.fabric.switch("l1a").unwrap().node();
        let output = node.command("bridge").args(["mdb", "show", "dev", "br0"]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let word = |line: &str, key: &str| {
            let mut words = line.split(' ').skip_while(|word| *word != key);
            words.nth(1).unwrap_or_default().to_owned()
        };
        let lines = text.lines().filter(|line| line.contains("grp 239.64."));
        lines.map(|line| (word(line, "grp"), word(line, "port"))).collect()
    }

    fn until(&self, what: &str, mut fits: impl FnMut(&Event) -> bool) -> Event {
        let begun = Instant::now();
        let mut seen = Vec::new();
        while begun.elapsed() < LIMIT {
            match (self.next)(LIMIT) {
                Some(event) if fits(&event) => return event,
                other => seen.extend(other),
            }
        }
        panic!("in vain: {what}; there were {seen:?}");
    }

    /// The next answer to an order.
    fn applied(&self) -> (u64, Option<String>) {
        let event = self.until("an answer", |event| matches!(event, Event::Applied { .. }));
        let Event::Applied { number, error, .. } = event else { unreachable!() };
        (number, error)
    }

    /// The next answer that an order was refused.
    fn until_error(&self) -> (u64, String) {
        loop {
            if let (number, Some(error)) = self.applied() {
                return (number, error);
            }
        }
    }

    fn eventually(&self, wanted: &[(u8, &str)]) {
        let wanted: BTreeSet<_> = wanted.iter().map(|(g, p)| (group(*g).to_string(), (*p).to_owned())).collect();
        crate::testing::eventually(&format!("{wanted:?}"), || (self.entries() == wanted).then_some(()));
    }

    fn ip(&self, words: &str) {
        let node = self.fabric.switch("l1a").unwrap().node();
        assert!(node.command("ip").args(words.split(' ')).status().unwrap().success(), "{words}");
    }
}

#[test]
fn root_refused_rule_is_reported_once_and_retried() {
    let orders = vec![
        order(1, true, &[(1, &["h1"])], &[]),
        order(2, false, &[(2, &["h1", "h2"])], &[]),
        order(3, false, &[(3, &["h3"])], &[]),
        order(4, false, &[(4, &["h2"])], &[1]),
    ];
    let Some(world) = world(true, 64, FAST, orders) else { return };
    assert_eq!(world.applied(), (2, None));
    let (number, error) = world.applied();
    assert!(number == 3 && error.as_ref().is_some_and(|why| why.contains("no port `h3`")), "{number} {error:?}");
    assert_eq!(world.applied(), (4, None));
    world.eventually(&[(2, "h1"), (2, "h2"), (4, "h2")]);
    // After several tries there was no further report.
    std::thread::sleep(FAST.retry * 10);
    world.ip("link add h3 type veth peer h3peer");
    world.ip("link set h3 master br0");
    world.ip("link set h3 up");
    world.ip("link set h3peer up");
    assert_eq!(world.applied(), (4, None), "that it holds now, and nothing before");
    world.eventually(&[(2, "h1"), (2, "h2"), (3, "h3"), (4, "h2")]);
}

#[test]
fn root_busy_shell_and_many_orders_lose_nothing() {
    let Some(mut world) = world(true, 1, Pace::default(), vec![order(1, true, &[], &[])]) else { return };
    for number in 2..=101 {
        let group = (number % 7) as u8;
        let effect = match number % 3 {
            0 => order(number, false, &[], &[group]),
            1 => order(number, false, &[(group, &["h1"])], &[]),
            _ => order(number, false, &[(group, &["h2"])], &[]),
        };
        (world.act)(effect);
    }
    let last = world.until("the last answer", |event| matches!(event, Event::Applied { number: 101, .. }));
    assert!(matches!(last, Event::Applied { error: None, .. }));
    let wanted: Vec<(u8, &str)> = (0..7)
        .filter_map(|group| {
            let last = (2..=101_u64).rfind(|number| number % 7 == group)?;
            Some((group as u8, ["", "h1", "h2"][(last % 3) as usize])).filter(|(_, port)| !port.is_empty())
        })
        .collect();
    world.eventually(&wanted);
    // The thread that ends leaves the rules.
    let World { running, fabric, leads, act, next } = world;
    running.stop(false);
    let (event_sender, _) = pipe(1);
    let world = World {
        running: Switches::new(vec![]).start(event_sender, leads.clone(), FAST).unwrap(),
        fabric,
        leads,
        act,
        next,
    };
    world.eventually(&wanted);
}

#[test]
fn root_outside_changes_are_repaired_and_reported_and_so_are_carriers() {
    let Some(mut world) = world(true, 64, FAST, vec![order(1, true, &[(1, &["h1", "h2"])], &[])]) else { return };
    let mut ports = std::collections::BTreeMap::new();
    world.until("all carriers", |event| {
        if let Event::Carrier { port, up, .. } = event {
            ports.insert(port.clone(), *up);
        }
        ports.len() == 3
    });
    assert_eq!(ports.into_iter().collect::<Vec<_>>(), [("h1".into(), true), ("h2".into(), true), ("h3".into(), false)]);
    let link = world.fabric.link("h1", "l1a").unwrap();
    world.fabric.cut_link(link, Cut::Carrier).unwrap();
    let carrier = |up: bool| move |event: &Event| matches!(event, Event::Carrier { port, up: is, .. } if port == "h1" && *is == up);
    world.until("h1 goes", carrier(false));
    // The decider has forgotten the carriers.
    (world.act)(order(2, true, &[(1, &["h1", "h2"])], &[]));
    world.until("h1 is still gone", carrier(false));
    world.fabric.restore_link(link).unwrap();
    world.until("h1 comes", carrier(true));

    world.eventually(&[(1, "h1"), (1, "h2")]);
    let node = world.fabric.switch("l1a").unwrap().node();
    let words = ["mdb", "del", "dev", "br0", "port", "h2", "grp", "239.64.0.1"];
    assert!(node.command("bridge").args(words).status().unwrap().success());
    let drift =
        world.until("a difference", |event| matches!(event, Event::Drift { what, .. } if what.contains("239.64.0.1")));
    assert!(matches!(drift, Event::Drift { what, .. } if what.contains("lacks ports {h2}")));
    world.eventually(&[(1, "h1"), (1, "h2")]);
}

/// One rule can only be had in part: outside changes are reported meanwhile, but that rule is not reported
/// again and again.
#[test]
fn root_outside_changes_are_reported_despite_a_lasting_refusal() {
    let orders = vec![order(1, true, &[(1, &["h1", "h2"])], &[]), order(2, false, &[(3, &["h1", "h3"])], &[])];
    let Some(world) = world(true, 64, FAST, orders) else { return };
    let (_, error) = world.until_error();
    assert!(error.contains("no port `h3`"), "{error}");
    let all = [(1, "h1"), (1, "h2"), (3, "h1")];
    world.eventually(&all);
    let is_drift = |event: &Event| matches!(event, Event::Drift { .. });
    let reported = |what: &str| {
        let drift = world.until("what was put right", is_drift);
        assert!(matches!(&drift, Event::Drift { what: said, .. } if said.contains(what)), "{drift:?}, not {what}");
    };
    let meddle = |words: &str| {
        let node = world.fabric.switch("l1a").unwrap().node();
        let mut words = words.split(' ');
        assert!(node.command(words.next().unwrap()).args(words).status().unwrap().success());
    };
    for port in ["h2", "h1", "h2"] {
        meddle(&format!("bridge mdb del dev br0 port {port} grp 239.64.0.1"));
        reported(&format!("239.64.0.1 lacks ports {{{port}}}"));
        world.eventually(&all);
    }
    // As often as would have the switch opened anew, if that refusal counted.
    for _ in 0..REOPEN_FAILURES + 4 {
        meddle("tc qdisc del dev h2 root");
        reported("port h2 does not serve the lanes first");
        std::thread::sleep(FAST.retry);
    }
    // After several tries there was no further report.
    std::thread::sleep(FAST.retry * 10);
    world.ip("link add h3 type veth peer h3peer");
    world.ip("link set h3 master br0");
    let ours = |event: &Event| matches!(event, Event::Drift { what, .. } if what.contains("239.64."));
    let next = world.until("an answer", |event| ours(event) || matches!(event, Event::Applied { .. }));
    assert!(matches!(next, Event::Applied { error: None, .. }), "{next:?}");
}

/// A rule is refused, and then ordered in a form that is accepted: from then on outside changes to it are
/// reported.
#[test]
fn root_outside_changes_to_a_formerly_refused_rule_are_reported() {
    let pace = Pace { retry: Duration::from_secs(2), ..FAST };
    let Some(mut world) = world(true, 64, pace, vec![order(1, true, &[], &[])]) else { return };
    assert_eq!(world.applied(), (1, None));
    (world.act)(order(2, false, &[(3, &["h1", "h3"])], &[]));
    let (_, error) = world.until_error();
    assert!(error.contains("no port `h3`"), "{error}");
    world.eventually(&[(3, "h1")]);
    (world.act)(order(3, false, &[(3, &["h1", "h2"])], &[]));
    world.until("the order that can be had", |event| matches!(event, Event::Applied { number: 3, error: None, .. }));
    let node = world.fabric.switch("l1a").unwrap().node();
    let words = ["mdb", "del", "dev", "br0", "port", "h1", "grp", "239.64.0.3"];
    assert!(node.command("bridge").args(words).status().unwrap().success());
    world
        .until("a difference", |event| matches!(event, Event::Drift { what, .. } if what.contains("lacks ports {h1}")));
    world.eventually(&[(3, "h1"), (3, "h2")]);
}

/// An order of no groups is not carried out either while the switch cannot be read.
#[test]
fn root_empty_order_is_answered_only_when_done() {
    let opens = Arc::new(AtomicBool::new(false));
    let Some(world) = world_that_opens(opens.clone(), true, 64, FAST, vec![order(1, true, &[], &[])]) else { return };
    let (_, error) = world.until_error();
    assert!(error.contains("not a bridge"), "{error}");
    opens.store(true, Ordering::SeqCst);
    assert_eq!(world.applied(), (1, None));
}

/// Groups that a switch had before its controller could reach it are not an outside change.
#[test]
fn root_switch_opened_late_is_repaired_without_reports() {
    let (opens, orders) = (Arc::new(AtomicBool::new(false)), vec![order(1, true, &[(1, &["h1"])], &[])]);
    let Some(world) = world_that_opens(opens.clone(), true, 64, FAST, orders) else { return };
    world.ip("link set br0 type bridge mcast_snooping 1 mcast_querier 1");
    let node = world.fabric.switch("l1a").unwrap().node();
    let words = ["mdb", "add", "dev", "br0", "port", "h2", "grp", "239.64.0.9", "permanent"];
    assert!(node.command("bridge").args(words).status().unwrap().success());
    let (_, error) = world.until_error();
    assert!(error.contains("not a bridge"), "{error}");
    opens.store(true, Ordering::SeqCst);
    let next = world.until("an answer", |event| matches!(event, Event::Applied { .. } | Event::Drift { .. }));
    assert!(matches!(next, Event::Applied { number: 1, error: None, .. }), "{next:?}");
    world.eventually(&[(1, "h1")]);
    let words = ["mdb", "add", "dev", "br0", "port", "h2", "grp", "239.64.0.9", "permanent"];
    assert!(node.command("bridge").args(words).status().unwrap().success());
    world.until("a difference", |event| matches!(event, Event::Drift { what, .. } if what.contains("239.64.0.9")));
}

#[test]
fn root_standby_touches_nothing_and_restore_gives_the_switch_back() {
    let Some(mut world) = world(false, 64, FAST, vec![order(1, true, &[(1, &["h1"])], &[])]) else { return };
    std::thread::sleep(FAST.retry * 5);
    assert!(world.entries().is_empty());
    world.leads.0.store(true, Ordering::SeqCst);
    assert_eq!(world.applied(), (1, None));
    world.eventually(&[(1, "h1")]);
    // Deposed: another leader's work is not undone.
    world.leads.0.store(false, Ordering::SeqCst);
    std::thread::sleep(FAST.retry * 5);
    let node = world.fabric.switch("l1a").unwrap().node();
    let words = ["mdb", "add", "dev", "br0", "port", "h2", "grp", "239.64.0.9", "permanent"];
    assert!(node.command("bridge").args(words).status().unwrap().success());
    std::thread::sleep(FAST.audit * 5);
    world.eventually(&[(1, "h1"), (9, "h2")]);
    // Leads again: an order that is not anew means nothing yet.
    world.leads.0.store(true, Ordering::SeqCst);
    (world.act)(order(2, false, &[(2, &["h1"])], &[]));
    std::thread::sleep(FAST.audit * 5);
    world.eventually(&[(1, "h1"), (9, "h2")]);
    (world.act)(order(3, true, &[(2, &["h1"])], &[]));
    world.eventually(&[(2, "h1")]);
    let World { running, fabric, leads, act, next } = world;
    running.stop(true);
    let (event_sender, _) = pipe(1);
    let world = World {
        running: Switches::new(vec![]).start(event_sender, leads.clone(), FAST).unwrap(),
        fabric,
        leads,
        act,
        next,
    };
    world.eventually(&[]);
}
