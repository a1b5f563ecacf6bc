// SPDX-License-Identifier: Apache-2.0
//! `fide controller discover` over a real fabric: it finds the fabric as built, and detects swapped cables.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use fide_planner::Topology;
use fide_testbed::fabric::{
    CableFigures, Controller, ControllerFile, ControllerSpec, Fabric, FabricSpec, SwitchKind, ovs_supported,
};
use fide_testbed::{Host, retry_until, supported};
use serde_json::Value;

const FIDE: &str = env!("CARGO_BIN_EXE_fide");
const LIMIT: Duration = Duration::from_secs(30);

/// Two spines, four leaves, four hosts.
fn spec() -> FabricSpec {
    FabricSpec::two_tier(4, 2, 2)
}

/// The cables from l1a to the spines, swapped at the spines.
fn swapped() -> FabricSpec {
    let mut spec = spec();
    let [one, other] = ["s1", "s2"].map(|spine| spec.link_between("l1a", spine).unwrap());
    let end = spec.links[one].b.clone();
    spec.links[one].b = std::mem::replace(&mut spec.links[other].b, end);
    spec
}

/// A host that speaks until it is dropped.
struct Speaking(Child);

impl Speaking {
    fn start(host: &Host, name: &str) -> Speaking {
        let mut command = host.command(FIDE);
        command.args(["controller", "announce", "--name", name, "--for-s", "60", "--every-ms", "200"]);
        command.args(["--interface", "p0", "--interface", "p1"]).stdin(Stdio::null()).stdout(Stdio::null());
        Speaking(command.spawn().unwrap())
    }
}

impl Drop for Speaking {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct World {
    fabric: Fabric,
    config: PathBuf,
}

fn world(spec: FabricSpec) -> Option<World> {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return None;
    }
    let fabric = Fabric::build(spec).unwrap();
    let config = fabric.scratch().join("controller.toml");
    // None of these files exists: only the switches' sections count.
    let file = fabric.controller_file(&ControllerFile {
        listen: "127.0.0.1:7420",
        credentials: Path::new("pki/issued/controller.c1"),
        revoked: Path::new("pki/revoked"),
        store: Path::new("controller.redb"),
        topology: Path::new("found.toml"),
        extra: "",
    });
    std::fs::write(&config, file).unwrap();
    Some(World { fabric, config })
}

impl World {
    fn discover(&self, words: &[&str]) -> (i32, String, String) {
        let mut command = Command::new(FIDE);
        command.args(["controller", "discover", "--wait-s", "2", "--config"]).arg(&self.config).args(words);
        read(command.current_dir(self.fabric.scratch()).output().unwrap())
    }

    fn file(&self, name: &str, text: &str) -> String {
        let path = self.fabric.scratch().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    /// Settings that discovery must not change: queues, and the multicast addresses of ports.
    fn settings(&self) -> Vec<String> {
        let of = |words: &[&str]| -> String {
            let each = self.fabric.switches().iter().map(|switch| {
                let output = switch.node().command(words[0]).args(&words[1..]).output().unwrap();
                read(output).1
            });
            each.collect()
        };
        let text = of(&["tc", "qdisc", "show"]) + &of(&["ip", "maddr"]);
        // Without packet counts, and without groups that bridges join in their own time.
        let kept = text.lines().filter(|line| line.contains("qdisc") || line.contains("01:80:c2"));
        kept.map(|line| line.split(" direct_packets_stat").next().unwrap_or_default().to_owned()).collect()
    }
}

fn read(output: Output) -> (i32, String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

fn topology(text: &str) -> Topology {
    fide_planner::file::parse(text).unwrap_or_else(|error| panic!("{error}: {text}")).topology
}

/// Names and kinds of the nodes; cables with their ports and figures.
fn drawn(topology: &Topology) -> (BTreeSet<String>, BTreeSet<String>) {
    let nodes = topology.nodes().iter().map(|node| format!("{:?} {} {}", node.kind, node.tier, node.name)).collect();
    let cables = topology.cables().iter().map(|cable| {
        let mut ends = [0, 1].map(|n| format!("{}:{}", topology.node(cable.ends[n]).name, cable.ports[n]));
        ends.sort();
        let figures = [cable.bandwidth_bps, cable.queue_bytes, cable.latency_min_ns, cable.jitter_max_ns];
        format!("{} {figures:?}", ends.join("--"))
    });
    (nodes, cables.collect())
}

#[test]
fn root_discovered_network_is_complete_and_can_be_planned() {
    let Some(world) = world(spec().limited(100)) else { return };
    // The rate comes from the ports' queues, not from the controller's file.
    let file = std::fs::read_to_string(&world.config).unwrap();
    let file: Vec<&str> = file.lines().filter(|line| !line.starts_with("rate_bps")).collect();
    std::fs::write(&world.config, file.join("\n")).unwrap();
    let before = world.settings();
    let _speaking: Vec<Speaking> = world.fabric.hosts().iter().map(|host| Speaking::start(host, host.name())).collect();
    // A queue of 1000 packets, in bytes of the smallest; the other figures as given.
    let figures = CableFigures { queue_bytes: 84_000, ..CableFigures::default() };
    let planned = world.fabric.spec().network_file(&figures);
    let given =
        ["--latency-min-ns=1000", "--jitter-max-ns=20000", "--host-latency-min-ns=5000", "--host-jitter-max-ns=50000"];
    // Hosts start in their own time.
    let found = retry_until("all hosts speak", LIMIT, || {
        let (code, out, err) = world.discover(&[&given[..], &["--out", "found.toml", "--force", "--json"]].concat());
        let value: Value = serde_json::from_str(&out).map_err(|error| format!("{code}: {error}: {out}{err}"))?;
        if value["odd"].as_array().is_some_and(Vec::is_empty) { Ok(value) } else { Err(format!("{:#}", value["odd"])) }
    })
    .unwrap();
    assert_eq!(found["cables"].as_array().unwrap().len(), world.fabric.spec().links.len());
    assert_eq!(found["cables"][0]["bandwidth_bps"]["source"], "queue");
    let text = std::fs::read_to_string(world.fabric.scratch().join("found.toml")).unwrap();
    assert_eq!(drawn(&topology(&text)), drawn(&topology(&planned)));
    assert_eq!(world.settings(), before);

    let planned = world.file("planned.toml", &planned);
    let (code, out, err) = world.discover(&["--compare", &planned]);
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.contains("as the compared file says\n") && out.contains("jitter_max_ns: 50 ns (assumed)"), "{out}");
    // Written once: an existing file is not overwritten.
    let (code, _, err) = world.discover(&["--out", "found.toml"]);
    assert!(code == 2 && err.contains("found.toml: exists"), "{code}: {err}");

    // The file is read as it is, by the planner and by the controller.
    let request = "\n[[request]]\nname = \"r\"\nsender = \"h1\"\nreceivers = [\"h2\", \"h3\", \"h4\"]\nsize_max_bytes = 200\n\
                   period_min_us = 2000\n";
    let with_request = world.file("request.toml", &(text + request));
    let (code, out, err) = read(Command::new(FIDE).args(["plan", &with_request]).output().unwrap());
    assert!(code == 0 && out.contains("4 hosts, 6 switches, 16 cables"), "{out}{err}");
    // The check reads the credentials that the controller would use.
    let mut init = Command::new(FIDE);
    init.args(["controller", "init", "pki", "--address", "127.0.0.1"]).current_dir(world.fabric.scratch());
    let (code, out, err) = read(init.output().unwrap());
    assert_eq!(code, 0, "{out}{err}");
    let check = ["controller", "check", "--switches", "--config"];
    let (code, out, err) = read(Command::new(FIDE).args(check).arg(&world.config).output().unwrap());
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn root_switches_of_open_vswitch_are_found_too_and_one_out_of_reach_is_refused() {
    if let Err(why) = ovs_supported() {
        println!("skipped: {why}");
        return;
    }
    let mut spec = spec();
    spec.switches
        .iter_mut()
        .filter(|switch| !switch.name.ends_with('b'))
        .for_each(|switch| switch.kind = SwitchKind::Ovs);
    let Some(world) = world(spec) else { return };
    let _speaking: Vec<Speaking> = world.fabric.hosts().iter().map(|host| Speaking::start(host, host.name())).collect();
    let planned = world.file("planned.toml", &world.fabric.spec().network_file(&CableFigures::default()));
    retry_until("all hosts speak", LIMIT, || match world.discover(&["--compare", &planned]) {
        (0, out, _) if !out.contains("odd:") => Ok(()),
        (code, out, err) => Err(format!("{code}: {out}{err}")),
    })
    .unwrap();

    // A port that is no interface where the driver looks for it.
    let s2 = world.fabric.switch("s2").unwrap().node();
    assert!(s2.command("ip").args(["link", "set", "l2b", "name", "elsewhere"]).status().unwrap().success());
    let (code, out, err) = world.discover(&[]);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("at port l2b cannot be had here: no interface of that name"), "{err}");
    assert!(err.contains("have to be written down"), "{err}");
}

#[test]
fn root_swapped_cables_silent_hosts_and_strangers_are_found_out() {
    let Some(world) = world(swapped()) else { return };
    let planned = world.file("planned.toml", &spec().network_file(&CableFigures::default()));
    let names = ["h1", "h2", "guest"];
    let _speaking: Vec<Speaking> =
        world.fabric.hosts().iter().zip(names).map(|(host, name)| Speaking::start(host, name)).collect();
    let crossed = "crossed: instead of l1a:s1--s1:l1a, l1a:s2--s2:l1a there is l1a:s1--s2:l1a, l1a:s2--s1:l1a";
    let (out, err) = retry_until("three hosts speak", LIMIT, || {
        let (code, out, err) = world.discover(&["--compare", &planned]);
        assert_eq!(code, 1, "{out}{err}");
        let all = ["h1:p0--l1a:h1 ", "h2:p1--l1b:h2 ", "guest:p1--l2b:h3 "].iter().all(|cable| out.contains(cable));
        if all { Ok((out, err)) } else { Err(out) }
    })
    .unwrap();
    for line in [
        crossed,
        "crossed: instead of h3:p0--l2a:h3 there is guest:p0--l2a:h3",
        "missing: h4:p0--l2a:h4; nothing was heard of h4 at all",
        "l2a:h3 hears guest:p0, a host that is not known",
        "l2b:h4 has a carrier, and nobody speaks there",
    ] {
        assert!(out.contains(line), "{line}: {out}{err}");
    }
    assert_eq!(out.matches("crossed:").count(), 3, "{out}");

    // A cable that is cut is missing; its ends have no carrier.
    let link = world.fabric.link("l2a", "s2").unwrap();
    world.fabric.cut_link(link, fide_testbed::fabric::Cut::Carrier).unwrap();
    let (code, out, _) = world.discover(&["--compare", &planned]);
    assert!(code == 1 && out.contains("missing: l2a:s2--s2:l2a\n") && out.contains("l2a:s2 has no carrier"), "{out}");
}

#[test]
fn root_host_hears_its_switches_and_reports_wrong_cables() {
    let Some(world) = world(FabricSpec::single_pair(2)) else { return };
    let h1 = world.fabric.host(1);
    let announce = |words: &[&str]| {
        let mut command = h1.command(FIDE);
        command.args(["controller", "announce"]).args(words);
        command
    };
    let mut announcing = announce(&["--interface", "p0", "--interface", "p1", "--name", "h1", "--for-s", "4"]);
    let announcing = announcing.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (code, out, err) = world.discover(&["--json"]);
    assert_eq!(code, 0, "{out}{err}");
    let (code, out, err) = read(announcing.wait_with_output().unwrap());
    assert_eq!((code, out.as_str()), (0, "h1 speaks at p0, p1 for 4 s\np0 heard l1a:h1\np1 heard l1b:h1\n"), "{err}");

    let (code, out, _) = read(announce(&["--interface", "p0", "--once"]).output().unwrap());
    assert!(code == 0 && out.contains("speaks at p0 once"), "{out}");
    let refused = |words: &[&str], code: i32, why: &str| {
        let (got, out, err) = read(announce(words).output().unwrap());
        assert!(got == code && err.contains(why), "{words:?}: {got}: {out}{err}");
    };
    refused(&["--interface", "eth7", "--name", "h1"], 1, "h1:eth7: there is no interface of that name");
    refused(&["--interface", "p0", "--name", "my host"], 2, "a host cannot be called `my host`");
    refused(&["--config", "/none-such.toml"], 2, "/none-such.toml");

    // As in the cluster's file.
    let addresses = |host: &Host| format!("{:?}", host.addresses().iter().map(ToString::to_string).collect::<Vec<_>>());
    let members: String = world
        .fabric
        .hosts()
        .iter()
        .map(|host| format!("[[member]]\nname = \"{}\"\naddresses = {}\n", host.name(), addresses(host)))
        .collect();
    let file = format!("[cluster]\nkey_file = \"key\"\n[[plane]]\n[[plane]]\n{members}");
    let file = world.file("fide.toml", &file);
    let (code, out, err) = read(announce(&["--config", &file, "--once"]).output().unwrap());
    assert_eq!((code, out.as_str()), (0, "h1 speaks at p0, p1 once\n"), "{err}");

    // No host was heard: there is nothing to write.
    let (code, out, err) = world.discover(&["--out", "none.toml"]);
    assert!(code == 1 && err.contains("no host was heard"), "{out}{err}");
    assert!(!world.fabric.scratch().join("none.toml").exists());
}

#[test]
fn root_controller_warns_of_unplanned_cables_at_its_start() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let fabric = Fabric::build(swapped().managed()).unwrap();
    let spec_of =
        ControllerSpec { program: Some(FIDE.into()), extra: "cables_ms = 1500\n".into(), ..ControllerSpec::default() };
    let mut controller = Controller::start(&fabric, spec_of).unwrap();
    let logged = |controller: &Controller, line: &str| {
        retry_until(line, LIMIT, || {
            let log = std::fs::read_to_string(controller.log()).map_err(|error| error.to_string())?;
            if log.contains(line) { Ok(()) } else { Err(log) }
        })
        .unwrap();
    };
    // The topology is that of the swapped cables; hosts are silent.
    logged(&controller, "the 8 cables that were heard of are as planned");
    controller.stop().unwrap();
    let planned = spec().network_file(&CableFigures::default());
    std::fs::write(fabric.scratch().join("controller/network.toml"), planned).unwrap();
    controller.run(&fabric).unwrap();
    logged(&controller, "cables are not as planned: crossed: instead of l1a:s1--s1:l1a, l1a:s2--s2:l1a");
    controller.stop().unwrap();
}
