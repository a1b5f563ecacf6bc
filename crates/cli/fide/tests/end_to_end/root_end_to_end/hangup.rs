// SPDX-License-Identifier: Apache-2.0
//! `fide rack hangup`: connections to a host that died end, and no others.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::chown,
    path::Path,
    process::Stdio,
    thread,
};

use fide_rack::dead::OF_HOST;
use fide_testbed::Lines;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::common::{LIMIT, Running, World, calm, fide, output, until_true, world};

/// The ends of a connection, at the host that connects and at the one that listens.
fn connection(world: &World, from: usize, to: usize, plane: usize) -> [TcpStream; 2] {
    let address = world.bed.host(to).address(plane);
    let listener = world.bed.host(to).run_in(|| TcpListener::bind((address, 0)).expect("bound")).expect("there");
    let at = listener.local_addr().expect("bound");
    let here = world.bed.host(from).run_in(|| TcpStream::connect(at).expect("connected")).expect("there");
    let (there, _) = listener.accept().expect("accepted");
    for end in [&here, &there] {
        // Of what must not last: a test that fails ends.
        end.set_read_timeout(Some(LIMIT)).expect("set");
    }
    [here, there]
}

/// Both ways.
fn works([here, there]: &[TcpStream; 2]) {
    for (mut from, mut to) in [(here, there), (there, here)] {
        from.write_all(b"x").expect("written");
        to.read_exact(&mut [0]).expect("read");
    }
}

/// The error with which a read of an end fails.
fn error_of(end: &TcpStream) -> io::Result<Option<i32>> {
    match (&mut &*end).read(&mut [0]) {
        Ok(count) => Err(io::Error::other(format!("{count} bytes"))),
        Err(error) => Ok(error.raw_os_error()),
    }
}

#[test]
fn root_connections_to_a_dead_host_end_at_once() {
    let Some(mut world) = world(3, calm()) else { return };
    let mut hangup =
        Running::piped(world.fide(1, &["rack", "hangup", "--json", "--dead"]).arg(world.bed.scratch().join("dead")));
    let mut lines = Lines::of(hangup.0.stdout.take().expect("piped")).within(LIMIT);
    lines.find_words("ready");

    // One that it began, one that it accepted over the other plane, one that sends, and those of others.
    let (begun, accepted) = (connection(&world, 1, 2, 0), connection(&world, 2, 1, 1));
    let (sends, to_third) = (connection(&world, 1, 2, 1), connection(&world, 1, 3, 0));
    let within = connection(&world, 1, 1, 0);
    for all in [&begun, &accepted, &sends, &to_third, &within] {
        works(all);
    }
    let errors: Vec<_> = thread::scope(|scope| {
        let waits = [&begun[0], &accepted[1]].map(|end| scope.spawn(move || error_of(end)));
        let writes = scope.spawn(|| {
            let error = std::iter::repeat_with(|| (&sends[0]).write_all(&[7; 1 << 16])).find_map(Result::err);
            Ok(error.expect("an error").raw_os_error())
        });
        world.bed.isolate(2).expect("cut");
        waits.into_iter().chain([writes]).map(|thread| thread.join().expect("ended").expect("an error")).collect()
    });
    assert_eq!(errors, [Some(libc::ECONNABORTED); 3]);
    let said: Value = serde_json::from_str(&lines.find_words("hung_up")).expect("JSON");
    assert_eq!((&said["host"], &said["ended"], &said["kept"]), (&"h2".into(), &3.into(), &0.into()), "{said}");
    works(&to_third);
    works(&within);

    // It comes back, and has new connections. One that leaves is not dead.
    world.bed.rejoin(2).expect("restored");
    world.settled(&[1, 2, 3]);
    let again = connection(&world, 1, 2, 0);
    works(&again);
    world.agents.stop(3).expect("ended");
    until_true("h3 has left", || {
        let status = world.status(1);
        status["peers"].as_array().expect("a list").iter().any(|peer| peer["host"] == "h3" && peer["state"] == "left")
    });
    works(&to_third);
    works(&again);
    hangup.kill();
    let rest = lines.rest();
    assert!(!rest.contains("hung_up"), "{rest}");
}

/// The right in `packaging/fide-hangup.service` suffices, and is needed. A host that is itself cut off gives no verdicts, and ends nothing.
#[test]
fn root_hangup_needs_one_right_and_a_majority() {
    let Some(world) = world(3, calm()) else { return };
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../packaging/fide-hangup.service");
    let unit = fs::read_to_string(unit).expect("the unit");
    let setting = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=')).expect("there");
    assert_eq!(setting("ExecStart"), "/usr/bin/fide rack hangup");
    assert_eq!((setting("CapabilityBoundingSet"), setting("AmbientCapabilities")), ("CAP_NET_ADMIN", "CAP_NET_ADMIN"));
    let directory = OF_HOST.to_str().expect("UTF-8").strip_prefix("/run/");
    assert_eq!((Some(setting("RuntimeDirectory")), setting("RuntimeDirectoryMode")), (directory, "0755"));
    let dead = world.bed.scratch().join("dead");
    fs::create_dir(&dead).expect("made");
    chown(&dead, Some(65534), None).expect("given to the unit's user");
    let start = |rights: &[&str]| {
        let mut command = world.bed.host(1).command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]).args(rights);
        command.arg(fide()).args(["rack", "hangup", "--dead"]).arg(&dead).env("FIDE_SOCKET", world.agents.socket(1));
        command
    };
    let (code, _, err) = output(&mut start(&["--bounding-set", "-all", "--inh-caps", "-all"]));
    assert!(code == Some(4) && err.contains("CAP_NET_ADMIN"), "{code:?} {err}");
    let right = ["--bounding-set", "-all,+net_admin", "--inh-caps", "-all,+net_admin", "--ambient-caps", "+net_admin"];
    let mut hangup = Running::piped(&mut start(&right));
    let mut lines = Lines::of(hangup.0.stdout.take().expect("piped")).within(LIMIT);
    lines.find_words("ready: ends connections to h2, h3");
    let accepted = connection(&world, 2, 1, 0);
    works(&accepted);
    world.bed.isolate(1).expect("cut");
    until_true("h1 is fenced", || world.status(1)["fenced"] == true);
    until_true("h1 is excluded", || world.verdicts(2).iter().any(|text| text.contains("h1")));
    world.bed.rejoin(1).expect("restored");
    world.settled(&[1, 2, 3]);
    works(&accepted);
    world.bed.isolate(2).expect("cut");
    assert_eq!(error_of(&accepted[1]).expect("an error"), Some(libc::ECONNABORTED));
    lines.find_words("h2 is dead: 1 connections to it were ended");
    assert!(dead.join(world.bed.host(2).address(0).to_string()).exists());
}

/// Waits in several ways, and says by which error each of them ended, and when.
const WAITS: &str = r#"
import errno, select, socket, sys, threading, time
host, port, other, other_port = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
lock = threading.Lock()
def says(*words):
    with lock:
        print(*words, flush=True)
def connection(host=host, port=port):
    end = socket.create_connection((host, port))
    end.send(b"x")
    assert end.recv(1) == b"x"
    return end
def waits(how, call):
    try:
        why = call()
    except OSError as error:
        why = error.errno
    says("ended", how, errno.errorcode.get(why, why), time.monotonic_ns())
def in_poll(end):
    end.setblocking(False)
    poll = select.poll()
    poll.register(end, select.POLLIN)
    return poll
def polls(end):
    in_poll(end).poll()
    return end.recv(1)
def asks(end):
    in_poll(end).poll()
    return end.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
def epolls(end):
    end.setblocking(False)
    poll = select.epoll()
    poll.register(end, select.EPOLLIN | select.EPOLLET)
    poll.poll()
    return end.recv(1)
def sends(end):
    while True:
        end.send(bytes(1 << 16))
def dupped(end):
    other = end.dup()
    end.close()
    return other.recv(1)
listener = socket.create_server(("0.0.0.0", 0))
says("listens", listener.getsockname()[1])
accepted = listener.accept()[0]
if "alone" in sys.argv:
    ways = [("other", lambda: connection(other, other_port).recv(1))]
else:
    ends = [connection() for _ in range(6)]
    calls = [socket.socket.recv, polls, asks, epolls, sends, dupped]
    args = [(1,)] + [()] * 5
    ways = [(call.__name__, lambda call=call, end=end, more=more: call(end, *more)) for call, end, more in zip(calls, ends, args)]
    ways += [("accepted", lambda: accepted.recv(1))]
threads = [threading.Thread(target=waits, args=way) for way in ways]
[thread.start() for thread in threads]
says("waits", len(threads))
if "alone" not in sys.argv:
    sys.stdin.readline()
    waits("connects", lambda: socket.create_connection((host, port)))
[thread.join() for thread in threads]
"#;

/// Answers each byte, and neither closes nor reads on.
fn echoes(world: &World, host: usize) -> SocketAddr {
    let address = world.bed.host(host).address(0);
    let listener = world.bed.host(host).run_in(|| TcpListener::bind((address, 0)).expect("bound")).expect("there");
    let at = listener.local_addr().expect("bound");
    thread::spawn(move || {
        let mut kept = Vec::new();
        for end in listener.incoming() {
            let mut end = end.expect("accepted");
            let mut byte = [0];
            let _ = end.read_exact(&mut byte).and_then(|()| end.write_all(&byte));
            kept.push(end);
        }
    });
    at
}

/// Programs know how to handle a timeout, and not a connection that was aborted on this side.
#[test]
fn root_programs_under_rack_run_see_a_timeout_at_once() {
    let Some(world) = world(3, calm()) else { return };
    let dead = world.bed.scratch().join("dead");
    let mut hangup = Running::piped(world.fide(1, &["rack", "hangup", "--json", "--dead"]).arg(&dead));
    let mut lines = Lines::of(hangup.0.stdout.take().expect("piped")).within(LIMIT);
    lines.find_words("ready");
    let (second, third) = (echoes(&world, 2), echoes(&world, 3));
    let under = |program: &[&str]| {
        let mut command = world.fide(1, &["rack", "run", "--monitor", "/nowhere/a.sock", "--dead"]);
        command.arg(&dead).arg("--").args(program).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    };
    let starts = |more: &[&str]| {
        let ports = [second, third].map(|at| at.port().to_string());
        let hosts = [second, third].map(|at| at.ip().to_string());
        let named = ["python3", "-c", WAITS, &hosts[0], &ports[0], &hosts[1], &ports[1]];
        let mut program = Running(under(&[&named, more].concat()).spawn().expect("started"));
        let mut said = Lines::of(program.0.stdout.take().expect("piped")).within(LIMIT);
        let listens = said.find_words("listens");
        let port = listens.rsplit(' ').next().and_then(|port| port.parse().ok()).expect("a port");
        let at = SocketAddr::from((world.bed.host(1).address(0), port));
        let from = world.bed.host(2).run_in(|| TcpStream::connect(at).expect("connected")).expect("there");
        said.find_words("waits");
        (program, said, from)
    };
    let (mut waits, mut said, _from) = starts(&[]);
    // Of others, whose library looks at errors by number.
    let redis = world.bed.host(2).address(0).to_string();
    let directory = world.bed.scratch().to_str().expect("UTF-8");
    let server = ["--bind", &redis, "--protected-mode", "no", "--save", "", "--dir", directory];
    let mut client = None;
    let server = world.bed.host(2).command("redis-server").args(server).stdout(Stdio::null()).spawn().map(Running);
    match &server {
        Ok(_) => {
            until_true("a server that answers", || {
                let (_, out, _) = output(world.bed.host(1).command("redis-cli").args(["-h", &redis, "ping"]));
                out.contains("PONG")
            });
            let mut waits = Running(
                under(&["redis-cli", "-h", &redis, "blpop", "none", "0"])
                    .stderr(Stdio::piped())
                    .spawn()
                    .expect("started"),
            );
            let (out, err) = (waits.0.stdout.take().expect("piped"), waits.0.stderr.take().expect("piped"));
            until_true("it waits", || {
                let (_, out, _) =
                    output(world.bed.host(1).command("redis-cli").args(["-h", &redis, "info", "clients"]));
                out.contains("blocked_clients:1")
            });
            client = Some((waits, Lines::of(out).within(LIMIT), Lines::of(err).within(LIMIT)));
        }
        Err(why) => println!("without redis: {why}"),
    }

    world.bed.isolate(2).expect("cut");
    // Its first segment is lost.
    waits.0.stdin.take().expect("piped").write_all(b"go\n").expect("it reads");
    let hung_up: Value = serde_json::from_str(&lines.find_words("hung_up")).expect("JSON");
    let at_ns = hung_up["verdict_ns"].as_u64().expect("a time");
    println!("ended by fide rack hangup {} us after the verdict", hung_up["us_since_verdict"]);
    let ways = ["recv", "polls", "asks", "epolls", "sends", "dupped", "accepted", "connects"];
    let mut ended = Vec::new();
    for _ in ways {
        let line = said.find_words("ended");
        let [how, why, at] = line.split(' ').skip(1).collect::<Vec<_>>()[..] else { panic!("{line}") };
        let us = at.trim().parse::<u64>().expect("a time").saturating_sub(at_ns) / 1000;
        println!("{how} fails with {why} {us} us after the verdict");
        assert_eq!(why, "ETIMEDOUT", "{how}");
        ended.push(how.to_owned());
    }
    ended.sort_unstable();
    let mut ways = ways.map(str::to_owned);
    ways.sort_unstable();
    assert_eq!(ended, ways);
    assert_eq!(waits.code(), Some(0));
    if let Some((mut client, mut out, mut err)) = client {
        client.code();
        let said = out.rest() + &err.rest();
        println!("redis-cli: {said}");
        assert!(!said.contains("abort") && said.to_lowercase().contains("time"), "{said}");
    }

    // What something else ends is as it was, whoever is dead.
    let files = || {
        let entries = fs::read_dir(&dead).expect("there").map(|entry| entry.expect("read").file_name());
        entries.map(|name| name.into_string().expect("an address")).collect::<BTreeSet<_>>()
    };
    let planes = [0, 1].map(|plane| world.bed.host(2).address(plane).to_string());
    assert_eq!(files(), BTreeSet::from(planes));
    let mut other = world.bed.host(1).command("ss");
    let ports = [third.ip().to_string(), third.port().to_string()];
    world.bed.rejoin(2).expect("restored");
    world.settled(&[1, 2, 3]);
    until_true("nobody is dead", || files().is_empty());
    let (_waits, mut said, _from) = starts(&["alone"]);
    until_true("it is ended", || {
        output(other.args(["-K", "dst", &ports[0], "dport", "=", &ports[1]])).1.contains(&ports[1])
    });
    assert!(said.find_words("ended").contains("ECONNABORTED"));

    // Nothing is said of hosts by one that has ended.
    world.bed.isolate(3).expect("cut");
    until_true("h3 is dead", || files().len() == 2);
    let pid = Pid::from_child(&hangup.0);
    kill_process(pid, Signal::TERM).expect("it runs");
    assert_eq!((hangup.code(), files()), (Some(0), BTreeSet::new()));
    // One that begins says it of those that are dead already.
    let mut hangup = Running::piped(world.fide(1, &["rack", "hangup", "--dead"]).arg(&dead));
    Lines::of(hangup.0.stdout.take().expect("piped")).within(LIMIT).find_words("ready");
    assert_eq!(files().len(), 2);
}
