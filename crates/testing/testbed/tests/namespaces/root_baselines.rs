// SPDX-License-Identifier: Apache-2.0
//! Victims die on command, and each baseline notices.

use fide_testbed::baseline::{Bfd, Knobs, Memberlist, TcpFin, watch_pidfd};
use fide_testbed::{Error, Spec, Testbed, Victim, VictimSpec, supported};
use rustix::process::Signal;
use std::os::unix::process::ExitStatusExt;

const LIMIT_NS: u64 = 20_000_000_000;

/// Runs `body` with a testbed of `hosts` hosts, or prints why not.
fn with_bed(hosts: usize, body: impl FnOnce(&Testbed)) {
    match supported() {
        Ok(()) => body(&Testbed::build(Spec::hosts(hosts)).unwrap()),
        Err(why) => println!("skipped: {why}"),
    }
}

#[test]
fn victim_dies_on_command() {
    let spec = VictimSpec { resident_mib: 8, threads: 2, exit_code: 7, ..VictimSpec::default() };
    let end = |signal: Signal| {
        let mut victim = Victim::spawn(None, &spec).unwrap();
        victim.signal(signal).unwrap();
        victim.wait().unwrap()
    };
    assert_eq!(end(Signal::KILL).signal(), Some(9));
    assert_eq!(end(Signal::TERM).signal(), Some(15));
    assert_eq!(end(Signal::USR1).signal(), Some(11));
    assert_eq!(end(Signal::USR2).code(), Some(7));
}

#[test]
fn failed_victim_reports_why() {
    let spec = VictimSpec { resident_mib: usize::MAX, ..VictimSpec::default() };
    let why = Victim::spawn(None, &spec).unwrap_err().to_string();
    assert!(why.contains("a victim was not ready"), "{why}");
}

#[test]
fn a_pidfd_tells_of_an_exit() {
    let victim = Victim::spawn(None, &VictimSpec::default()).unwrap();
    let notice = watch_pidfd(victim.pid()).unwrap();
    let killed = victim.kill().unwrap();
    assert!(notice.wait(LIMIT_NS).unwrap() > killed);
}

#[test]
fn root_a_fin_tells_of_an_exit() {
    with_bed(2, |bed| {
        let watcher = TcpFin::listen(bed.host(1), 0).unwrap();
        let spec = VictimSpec { tcp: Some(watcher.address()), ..VictimSpec::default() };
        let victim = Victim::spawn(Some(bed.host(2)), &spec).unwrap();
        let notice = watcher.watch().unwrap();
        let killed = victim.kill().unwrap();
        assert!(notice.wait(LIMIT_NS).unwrap() > killed);
    });
}

#[test]
fn root_bfd_tells_of_a_silent_host_twice() {
    with_bed(2, |bed| {
        let bfd = match Bfd::start(bed, (1, 2), 0, 10, 3) {
            Err(why @ Error::MissingProgram { .. }) => return println!("skipped: {why}"),
            started => started.unwrap(),
        };
        assert!(bfd.silence(bed).unwrap() > 0);
        assert!(bfd.silence(bed).unwrap() > 0);
    });
}

#[test]
fn root_memberlist_tells_of_a_silent_host_twice() {
    with_bed(3, |bed| {
        let mut list = match Memberlist::start(bed, Knobs::at_probe_interval(100)) {
            Err(why @ Error::MissingProgram { .. }) => return println!("skipped: {why}"),
            started => started.unwrap(),
        };
        assert!(list.silence(bed, 3).unwrap() > 0);
        assert!(list.silence(bed, 3).unwrap() > 0);
    });
}
