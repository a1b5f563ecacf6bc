// SPDX-License-Identifier: Apache-2.0
//! Tests of the testbed itself: it carries packets, a cut stops them, and nothing of it is left behind.

use fide_testbed::{FloodSpec, Lines, Multicast, Spec, Testbed, Tree, retry_until, supported, sweep};
use std::net::{Ipv4Addr, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const PORT: u16 = 7000;
const LIMIT: Duration = Duration::from_secs(20);

macro_rules! root_or_skip {
    () => {
        if let Err(why) = supported() {
            println!("skipped: {why}");
            return;
        }
    };
}

/// Sends a packet from one host. Returns whether it arrived at the other within `wait`.
fn hears(bed: &Testbed, from: usize, to: usize, plane: usize, wait: Duration) -> bool {
    let target = (bed.host(to).address(plane), PORT);
    let inbox = bed.host(to).run_in(|| UdpSocket::bind(target)).unwrap().unwrap();
    inbox.set_read_timeout(Some(wait)).unwrap();
    let source = (bed.host(from).address(plane), 0);
    let outbox = bed.host(from).run_in(|| UdpSocket::bind(source)).unwrap().unwrap();
    outbox.send_to(b"hello", target).unwrap();
    inbox.recv(&mut [0; 16]).is_ok()
}

const SOON: Duration = Duration::from_secs(5);
const NEVER: Duration = Duration::from_millis(100);

fn left_over(prefix: &str) -> Vec<String> {
    [Path::new("/run/netns"), &std::env::temp_dir()]
        .iter()
        .flat_map(|d| std::fs::read_dir(d).into_iter().flatten().flatten())
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| n.starts_with(prefix))
        .collect()
}

/// The common prefix of all names of one testbed.
fn prefix_of(namespace: &str) -> String {
    namespace.rsplit_once('-').unwrap().0.to_string()
}

#[test]
fn root_every_pair_hears_each_other_on_every_plane() {
    root_or_skip!();
    let bed = Testbed::build(Spec::default()).unwrap();
    for from in 1..=3 {
        for to in (1..=3).filter(|t| *t != from) {
            for plane in 0..2 {
                assert!(hears(&bed, from, to, plane, SOON), "h{from} to h{to} on {plane}");
            }
        }
    }
}

#[test]
fn root_a_cut_takes_one_plane_and_a_restore_gives_it_back() {
    root_or_skip!();
    let bed = Testbed::build(Spec::default()).unwrap();
    let (before, after) = bed.cut(2, 0).unwrap();
    assert!(before < after);
    assert!(!hears(&bed, 1, 2, 0, NEVER) && !hears(&bed, 2, 1, 0, NEVER));
    assert!(hears(&bed, 1, 2, 1, SOON) && hears(&bed, 1, 3, 0, SOON));
    let link = bed.host(2).command("ip").args(["link", "show", "p0"]).output().unwrap();
    assert!(String::from_utf8_lossy(&link.stdout).contains("LOWER_UP"), "a cut is not seen as a lost carrier");
    bed.restore(2, 0).unwrap();
    assert!(hears(&bed, 1, 2, 0, SOON));

    bed.isolate(3).unwrap();
    assert!(!hears(&bed, 1, 3, 0, NEVER) && !hears(&bed, 1, 3, 1, NEVER));
    bed.rejoin(3).unwrap();
    assert!(hears(&bed, 1, 3, 0, SOON) && hears(&bed, 1, 3, 1, SOON));

    bed.unplug(2, 1).unwrap();
    let link = bed.host(2).command("ip").args(["link", "show", "p1"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&link.stdout).contains("LOWER_UP"));
    bed.plug(2, 1).unwrap();
    retry_until("the plugged link", LIMIT, || hears(&bed, 1, 2, 1, NEVER).then_some(()).ok_or("silent".into()))
        .unwrap();
}

#[test]
fn root_one_way_deafness_and_other_pairs_are_independent() {
    root_or_skip!();
    let bed = Testbed::build(Spec::default()).unwrap();
    bed.deafen(2, 1).unwrap();
    bed.deafen(2, 3).unwrap();
    for plane in 0..2 {
        assert!(!hears(&bed, 1, 2, plane, NEVER) && !hears(&bed, 3, 2, plane, NEVER));
        assert!(hears(&bed, 2, 1, plane, SOON) && hears(&bed, 1, 3, plane, SOON));
    }
    bed.undeafen(2, 1).unwrap();
    assert!(hears(&bed, 1, 2, 0, SOON) && !hears(&bed, 3, 2, 0, NEVER));
    bed.deafen(2, 1).unwrap();
    assert!(!hears(&bed, 1, 2, 1, NEVER));
}

#[test]
fn root_multicast_follows_its_tree() {
    root_or_skip!();
    let group = Ipv4Addr::new(239, 70, 0, 1);
    let heard_by = |multicast: Multicast| -> Vec<usize> {
        let bed = Testbed::build(Spec { multicast, ..Spec::default() }).unwrap();
        // All of them are members, so the switch alone decides which hosts get a packet.
        let inboxes: Vec<_> = [2, 3].map(|h| (h, member_inbox(&bed, h, group))).into_iter().collect();
        let source = (bed.host(1).address(0), 0);
        let outbox = bed.host(1).run_in(|| UdpSocket::bind(source)).unwrap().unwrap();
        let mut heard = Vec::new();
        // The bridge trusts its own querier only after a moment: so only the last of several packets counts.
        for turn in 0..10u8 {
            std::thread::sleep(Duration::from_millis(50));
            outbox.send_to(&[turn], (group, PORT)).unwrap();
        }
        for (host, inbox) in &inboxes {
            inbox.set_read_timeout(Some(NEVER)).unwrap();
            let mut last = [0u8; 1];
            while inbox.recv(&mut last).is_ok() {}
            if last[0] == 9 {
                heard.push(*host);
            }
        }
        heard
    };
    assert_eq!(heard_by(Multicast::Flood), [2, 3]);
    let tree = Tree { plane: 0, group, receivers: vec![2] };
    assert_eq!(heard_by(Multicast::Trees(vec![tree])), [2]);
}

fn member_inbox(bed: &Testbed, host: usize, group: Ipv4Addr) -> UdpSocket {
    let address = bed.host(host).address(0);
    bed.host(host)
        .run_in(move || {
            let s = UdpSocket::bind((group, PORT))?;
            s.join_multicast_v4(&group, &address)?;
            Ok::<_, std::io::Error>(s)
        })
        .unwrap()
        .unwrap()
}

#[test]
fn root_a_flood_keeps_its_bounds() {
    root_or_skip!();
    let bed = Testbed::build(Spec { rate_mbit: Some(10), ..Spec::default() }).unwrap();
    let spec = FloodSpec { from: 1, to: 2, plane: 0, rate_mbit: 40, duration_ns: 10_000_000_000, max_packets: 500 };
    let report = bed.flood(spec).unwrap().wait();
    assert_eq!(report.packets + report.refused, 500);
    assert!(hears(&bed, 1, 2, 1, SOON));
    assert!(bed.flood(FloodSpec { to: 1, ..spec }).is_err());
    assert!(bed.flood(FloodSpec { plane: 2, ..spec }).is_err());
    let long = FloodSpec { duration_ns: u64::MAX, ..spec };
    assert!(bed.flood(long).is_err());
}

#[test]
fn root_only_marked_packets_go_in_the_priority_class() {
    root_or_skip!();
    let bed = Testbed::build(Spec { rate_mbit: Some(10), ..Spec::hosts(2) }).unwrap();
    let switch = format!("{}-s0", prefix_of(bed.host(1).namespace()));
    let sent = |class: &str| -> u64 {
        let out = Command::new("tc").args(["-n", &switch, "-s", "class", "show", "dev", "h2"]).output().unwrap();
        // class htb 1:10 ... \n Sent 43 bytes 1 pkt (...
        let text = String::from_utf8(out.stdout).unwrap();
        let of_class = text.split_once(&format!("htb {class} ")).unwrap().1;
        let packets = of_class.split_once(" pkt").unwrap().0;
        packets.rsplit_once(' ').unwrap().1.parse().unwrap()
    };
    const CS7: u8 = 56 << 2;
    const EF: u8 = 46 << 2;
    for (tos, class) in [(0, "1:20"), (CS7, "1:10"), (EF, "1:10")] {
        let before = sent(class);
        let source = (bed.host(1).address(0), 0);
        let outbox = bed.host(1).run_in(|| UdpSocket::bind(source)).unwrap().unwrap();
        rustix::net::sockopt::set_ip_tos(&outbox, tos).unwrap();
        outbox.send_to(b"x", (bed.host(2).address(0), PORT)).unwrap();
        assert_eq!(sent(class), before + 1, "tos {tos:#x}");
    }
}

#[test]
fn root_dropping_it_takes_its_processes_and_files_along() {
    root_or_skip!();
    let bed = Testbed::build(Spec::hosts(2)).unwrap();
    let prefix = prefix_of(bed.host(1).namespace());
    std::fs::write(bed.scratch().join("log"), "x").unwrap();
    let mut sleeper = bed.host(1).command("sleep").arg("60").spawn().unwrap();
    assert_eq!(bed.processes().unwrap(), [sleeper.id()]);
    assert!(!left_over(&prefix).is_empty());
    drop(bed);
    assert!(!sleeper.wait().unwrap().success());
    assert_eq!(left_over(&prefix), Vec::<String>::new());
}

#[test]
fn root_kept_namespaces_stay_until_the_sweep() {
    root_or_skip!();
    let mut bed = Testbed::build(Spec::hosts(1)).unwrap();
    let scratch = bed.scratch().to_path_buf();
    bed.keep_scratch();
    drop(bed);
    assert!(scratch.is_dir());
    std::fs::remove_dir(&scratch).unwrap();
}

/// Not a test, but the creator that the next tests kill. It builds a testbed, prints its name, and waits to
/// be killed.
#[test]
fn root_helper_creator() {
    if std::env::var_os("FIDE_TESTBED_CREATOR").is_none() {
        return;
    }
    let bed = Testbed::build(Spec::hosts(2)).unwrap();
    let mut sleeper = bed.host(2).command("sleep").arg("60").spawn().unwrap();
    println!("\nbuilt {} {}", bed.host(1).namespace(), sleeper.id());
    let _ = sleeper.wait();
}

struct Creator {
    child: std::process::Child,
    prefix: String,
    sleeper: i32,
}

fn creator() -> Creator {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "root_network::root_helper_creator", "--nocapture"])
        .env("FIDE_TESTBED_CREATOR", "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let built = Lines::of(child.stdout.take().unwrap())
        .find_map(|l| l.strip_prefix("built ").map(String::from))
        .expect("the creator builds");
    let (namespace, sleeper) = built.split_once(' ').unwrap();
    Creator { child, prefix: prefix_of(namespace), sleeper: sleeper.parse().unwrap() }
}

fn runs(pid: i32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else {
        return false;
    };
    !stat.contains(") Z ")
}

#[test]
fn root_killing_the_creator_leaves_nothing() {
    root_or_skip!();
    let mut creator = creator();
    assert!(!left_over(&creator.prefix).is_empty());
    creator.child.kill().unwrap();
    creator.child.wait().unwrap();
    retry_until("the reaper", LIMIT, || {
        let left = left_over(&creator.prefix);
        let gone = left.is_empty() && !runs(creator.sleeper);
        gone.then_some(()).ok_or(format!("still there: {left:?}"))
    })
    .unwrap();
}

#[test]
fn root_sweep_removes_only_leftovers_of_killed_reapers() {
    root_or_skip!();
    let mine = Testbed::build(Spec::hosts(1)).unwrap();
    let mut creator = creator();
    // The reaper is the only child of the creator that runs the shell. Without the reaper, nobody cleans up.
    let reaper = children(creator.child.id())
        .into_iter()
        .find(|pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.contains("fide-reaper")))
        .expect("a reaper");
    kill(reaper);
    creator.child.kill().unwrap();
    creator.child.wait().unwrap();
    assert!(!left_over(&creator.prefix).is_empty());
    // Another test's build may sweep at the same moment; either way, the left-overs are removed.
    sweep().unwrap();
    retry_until("the sweep", LIMIT, || {
        let left = left_over(&creator.prefix);
        let gone = left.is_empty() && !runs(creator.sleeper);
        gone.then_some(()).ok_or(format!("still there: {left:?}"))
    })
    .unwrap();
    assert!(!left_over(&prefix_of(mine.host(1).namespace())).is_empty());
}

/// Each costs every system call of the machine some time.
#[test]
fn root_sweep_removes_traces_of_dead_runs_alone() {
    root_or_skip!();
    let instances = std::path::Path::new("/sys/kernel/tracing/instances");
    if !instances.exists() {
        eprintln!("not tested: tracefs is not mounted there");
        return;
    }
    let pid = std::process::id();
    let ticks: u64 = prefix_of(Testbed::build(Spec::hosts(1)).unwrap().host(1).namespace())
        .split('-')
        .nth(2)
        .and_then(|ticks| ticks.parse().ok())
        .unwrap();
    let [living, dead] = [ticks, ticks - 1].map(|ticks| instances.join(format!("fide-{pid}-{ticks}-{pid}")));
    for instance in [&living, &dead] {
        std::fs::create_dir(instance).unwrap();
    }
    // Another test's build may sweep at the same moment.
    sweep().unwrap();
    let left = [&living, &dead].map(|instance| instance.exists());
    std::fs::remove_dir(&living).unwrap();
    assert_eq!(left, [true, false]);
}

fn children(pid: u32) -> Vec<u32> {
    let mut all = Vec::new();
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        let list = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
        all.extend(list.split_ascii_whitespace().filter_map(|p| p.parse::<u32>().ok()));
    }
    all
}

fn kill(pid: u32) {
    let done = Command::new("kill").args(["-KILL", &pid.to_string()]).status().unwrap();
    assert!(done.success());
    while runs(pid as i32) {
        std::thread::yield_now();
    }
}
