// SPDX-License-Identifier: Apache-2.0
//! `fide rack hangup`: connections to a host that died end, and no others.

use std::{
    fs,
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    path::Path,
    thread,
};

use fide_testbed::Lines;
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
    let mut hangup = Running::piped(&mut world.fide(1, &["rack", "hangup", "--json"]));
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
    let start = |rights: &[&str]| {
        let mut command = world.bed.host(1).command("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs"]).args(rights);
        command.arg(fide()).args(["rack", "hangup"]).env("FIDE_SOCKET", world.agents.socket(1));
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
}
