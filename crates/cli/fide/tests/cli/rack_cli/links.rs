// SPDX-License-Identifier: Apache-2.0
//! Programs whose connections go over a link, and monitors that are killed.

use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

use fide_rack::{
    carry::reads_ring,
    meet::ask::{Asks, Told},
};
use fide_sys::tcp::keeps_syn;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{Host, LIMIT, Process, fide, library};

const CONNECTIONS: usize = 3;

/// Two hosts with a link between them, which is never lost for silence.
struct Rack {
    hosts: [Host; 2],
    monitors: [Process; 2],
    _memory: tempfile::TempDir,
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

impl Rack {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("rack").tempdir_in("/dev/shm").unwrap();
        let memory = directory.path().join("memory");
        File::create_new(&memory).unwrap().set_len(4 << 20).unwrap();
        let hosts = [Host::new(), Host::new()];
        let monitors = [("first", 0), ("second", 1)].map(|(side, at)| {
            let link = format!("{},side={side},peer=127.0.0.0/8,lost-after=1h", memory.display());
            let mut command = fide(&["monitor", "--json", "--socket", &hosts[at].socket(), "--link", &link]);
            let mut monitor = Process::start(command.stderr(Stdio::null()));
            assert!(monitor.line().contains("ready"));
            monitor
        });
        let rack = Self { hosts, monitors, _memory: directory };
        until("the link stands", || rack.hosts.iter().all(|host| host.top()["links"][0]["is_up"] == true));
        rack
    }

    /// A server and a client that wait for each other over the link, and the server's port.
    fn programs(&self, dead: &Path) -> ([Process; 2], String) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/rack_cli/links.py");
        let start = |host: &Host, words: &[&str]| {
            let all = [&["python3", script.to_str().unwrap()], words].concat();
            let options =
                ["--library", library().to_str().unwrap(), "--dead", dead.to_str().unwrap()].map(str::to_owned);
            let mut command = fide(&["run", "--monitor", &host.socket()]);
            Process::start(command.args(options).arg("--").args(all))
        };
        let [one, other] = &self.hosts;
        let mut server = start(one, &["server"]);
        let port = server.line();
        let mut client = start(other, &["client", &port]);
        assert_eq!(client.line(), "asked");
        until("all go over the link", || {
            client.asks_again();
            self.hosts.iter().all(|host| {
                let top = host.top();
                let over = top["connections"].as_array().unwrap().iter();
                over.filter(|connection| connection["over"] == "link").count() == CONNECTIONS
            })
        });
        // Bytes of before may still be those of TCP.
        client.asks_again();
        client.input.as_mut().unwrap().write_all(b"last\n").unwrap();
        [&mut client, &mut server].into_iter().for_each(|program| assert_eq!(program.line(), "waits"));
        ([server, client], port)
    }
}

/// What each wait of a program ended with.
fn ended(program: &mut Process) -> Vec<String> {
    let mut lines: Vec<_> = (0..CONNECTIONS).map(|_| program.line()).collect();
    lines.sort_unstable();
    lines.iter().map(|line| line.split(' ').next_back().unwrap().to_owned()).collect()
}

/// The process that guards the connections of a monitor.
fn guard_of(monitor: &Process) -> Option<i32> {
    let children = format!("/proc/{0}/task/{0}/children", monitor.child.id());
    let children = fs::read_to_string(children).unwrap();
    children.split_whitespace().find_map(|pid| {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        command.contains("__rack-guard").then(|| pid.parse().ok()).flatten()
    })
}

fn is_there(pid: i32) -> bool {
    // One that nobody has waited for yet is over, too.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).is_some_and(|state| state != "Z")
}

/// Neither monitor is left to see that the other one is silent.
#[test]
fn programs_see_the_end_as_both_monitors_are_killed_at_once() {
    let dead = tempfile::tempdir().unwrap();
    for (killed, is_dead, error) in [
        (&[0, 1][..], false, "ECONNRESET"),
        (&[0, 1], true, "ETIMEDOUT"),
        (&[0], false, "ECONNRESET"),
        (&[1], false, "ECONNRESET"),
    ] {
        let mut rack = Rack::new();
        let (mut programs, _) = rack.programs(dead.path());
        let guards = rack.monitors.each_ref().map(|monitor| guard_of(monitor).expect("a guard"));
        // As `fide rack hangup` says it.
        let file = dead.path().join("127.0.0.1");
        if is_dead {
            File::create(&file).unwrap();
        }
        for at in killed {
            rack.monitors[*at].child.kill().unwrap();
        }
        for program in &mut programs {
            assert_eq!(ended(program), [error; CONNECTIONS], "{killed:?}");
        }
        let _ = fs::remove_file(&file);
        drop(rack);
        until("no guard is left", || !guards.into_iter().any(is_there));
    }
}

/// The client's program is told that it may go over, and has not taken its memory; the server's has.
#[test]
fn connections_that_have_not_gone_over_outlive_their_monitors() {
    for killed in [&[0, 1][..], &[0], &[1]] {
        let mut rack = Rack::new();
        let guards = rack.monitors.each_ref().map(|monitor| guard_of(monitor).expect("a guard"));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        keeps_syn(&listener).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        let asks = [(0, &client), (1, &server)].map(|(at, end)| {
            let asks = Asks::connect(Path::new(&rack.hosts[at].socket())).unwrap();
            asks.ask(end).unwrap();
            asks
        });
        let given = [1, 0].map(|at| match asks[at].told().unwrap() {
            Some(Told::Paired { window, .. }) => {
                if at == 1 {
                    reads_ring(&window);
                }
                window
            }
            told => panic!("{told:?}"),
        });
        for at in killed {
            rack.monitors[*at].child.kill().unwrap();
        }
        until("their guards are done", || killed.iter().all(|at| !is_there(guards[*at])));
        for (mut from, mut to) in [(&client, &server), (&server, &client)] {
            from.write_all(b"over TCP").unwrap();
            let mut got = [0; 8];
            to.read_exact(&mut got).unwrap();
            assert_eq!(&got, b"over TCP", "{killed:?}");
        }
        drop((given, asks));
    }
}

/// As in a unit with `PrivateNetwork=`, whose monitor would carry nothing, and say nothing of it.
#[test]
fn root_monitor_with_links_says_that_it_is_not_in_the_network_of_programs() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let host = Host::new();
    let memory = tempfile::Builder::new().prefix("rack").tempfile_in("/dev/shm").unwrap();
    memory.as_file().set_len(4 << 20).unwrap();
    for (peer, is_alone) in [("10.0.0.2", true), ("127.0.0.0/8", false)] {
        let link = format!("{},side=first,peer={peer}", memory.path().display());
        let mut command = Command::new("unshare");
        command.args(["--net", super::FIDE, "rack", "monitor", "--socket", &host.socket(), "--link", &link]);
        let mut monitor = Process::start(command.stderr(Stdio::piped()));
        assert!(monitor.line().contains("ready"));
        monitor.signal(Signal::TERM);
        assert_eq!(monitor.ends(), 0);
        let mut said = String::new();
        monitor.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(said.contains("PrivateNetwork=no"), is_alone, "{said}");
    }
}

/// As `fide rack hangup` ends them: of a host that is declared dead, and by somebody else.
#[test]
fn root_connections_over_a_link_that_are_ended_from_outside_time_out_if_the_host_is_dead() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let dead = tempfile::tempdir().unwrap();
    for (is_dead, errors) in [(true, ["ETIMEDOUT"; 2]), (false, ["ECONNRESET", "ECONNABORTED"])] {
        let rack = Rack::new();
        let (mut programs, port) = rack.programs(dead.path());
        let file = dead.path().join("127.0.0.1");
        if is_dead {
            File::create(&file).unwrap();
        }
        // The client's ends.
        let destroyed = Command::new("ss").args(["-K", "dst", "127.0.0.1", "dport", "=", &port]).output().unwrap();
        assert!(
            destroyed.status.success() && String::from_utf8_lossy(&destroyed.stdout).contains(&port),
            "{destroyed:?}"
        );
        for (program, error) in programs.iter_mut().zip(errors) {
            assert_eq!(ended(program), [error; CONNECTIONS]);
        }
        let _ = fs::remove_file(&file);
    }
}

/// It ends with its monitor, and takes no signal of others; one that is killed is missed by nobody until both monitors are.
#[test]
fn guard_is_there_as_long_as_its_monitor_has_links() {
    let host = Host::new();
    assert_eq!(guard_of(&host.monitor()), None, "it has no link");
    let mut rack = Rack::new();
    let guards = rack.monitors.each_ref().map(|monitor| guard_of(monitor).expect("a guard"));
    let signal = |pid, signal| kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    [Signal::TERM, Signal::INT, Signal::HUP].into_iter().for_each(|which| signal(guards[0], which));
    let ([mut server, mut client], _) = rack.programs(rack.hosts[0].directory.path());
    assert!(is_there(guards[0]));
    signal(guards[0], Signal::KILL);
    until("it is killed", || !is_there(guards[0]));
    let top: Value = rack.hosts[0].top();
    assert_eq!(top["connections"].as_array().unwrap().len(), CONNECTIONS, "{top}");
    // One program ends: what it has closed is seen, with its guard and without.
    client.child.kill().unwrap();
    assert_eq!(ended(&mut server), ["b''"; CONNECTIONS]);
    // Signals end the monitors, and they their guards.
    for monitor in &mut rack.monitors {
        monitor.signal(Signal::TERM);
        assert_eq!(monitor.ends(), 0);
    }
    until("no guard is left", || !guards.into_iter().any(is_there));
}
