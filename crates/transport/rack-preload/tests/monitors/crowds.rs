// SPDX-License-Identifier: Apache-2.0
//! Many connections between two programs.

use fide_rack::meet::monitor::Monitor;

use crate::{
    Program,
    under::{MONITOR, until},
};

/// So many at once. All work; where they come faster than the monitor answers, the questions are too many for it, and they stay with TCP.
fn many(connections: u64, how: &[&str]) {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(&directory.path().join(MONITOR)).unwrap();
    let mut server = Program::start(directory.path(), "many.py", &["server"]);
    let (port, connections_given) = (server.line(), connections.to_string());
    let arguments = [&["client", &port, &connections_given], how].concat();
    let mut client = Program::start(directory.path(), "many.py", &arguments);
    until("the client's end", || client.child.try_wait().unwrap().is_some());
    client.lines.iter().for_each(|line| println!("{line}"));
    assert!(client.child.wait().unwrap().success() && server.child.wait().unwrap().success());
    let counts = monitor.view().counts;
    println!("{connections} connections, {} of them paired", counts.paired);
    assert!(counts.paired >= connections / 10, "{counts:?}");
}

#[test]
fn thousand_connections_work() {
    many(1000, &[]);
}

/// It has as many open as it may, so that it cannot take the memory of the last ones.
#[test]
fn program_with_no_file_left_works() {
    many(200, &["full"]);
}

#[test]
fn ten_thousand_connections_work() {
    many(10_000, &[]);
}
