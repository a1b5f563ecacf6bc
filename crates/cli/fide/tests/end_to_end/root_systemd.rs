// SPDX-License-Identifier: Apache-2.0
//! The services of `packaging/fide-agent.service` and `packaging/fide-rack.service` under a real systemd: the first process of its own
//! namespaces, with the programs of this host and none of its units.

mod machine;

use fide_testbed::{end_within, retry_until};
use machine::{LIMIT, Machine};

/// Longer than the watchdog's limit.
const FED: std::time::Duration = std::time::Duration::from_secs(9);

#[test]
fn root_systemd_keeps_restarts_and_stops_the_agent_and_its_successors() {
    let Some(machine) = Machine::boot() else { return };
    let first = machine.main_pid("the service begins", |_| true);
    let incarnation = machine.incarnation();

    // A successor that was started from a shell is the service: it is not restarted, and its watchdog is fed.
    let mut successor = machine.take_over();
    let second = machine.main_pid("a takeover", |pid| pid != first);
    // The predecessor names the successor before it ends.
    retry_until("the end of the predecessor", LIMIT, || match machine.processes() {
        own if own == [second] => Ok(()),
        others => Err(format!("{others:?} are in the service's control group, where {second} alone should be")),
    })
    .unwrap_or_else(|why| panic!("{why}: {}", machine.log()));
    std::thread::sleep(FED);
    assert_eq!((machine.show("MainPID"), machine.restarts()), (second.to_string(), 0), "{}", machine.log());
    assert_eq!(machine.incarnation(), incarnation, "nobody noticed");
    assert!(machine.systemctl("reload"), "{}", machine.log());
    assert_eq!(machine.show("MainPID"), second.to_string());

    // systemd is not its parent, but notices its end all the same.
    machine.signal(second, "KILL");
    end_within(&mut successor, LIMIT).expect("ended");
    let third = machine.main_pid("the end of a successor", |pid| pid != second);
    assert_eq!(machine.restarts(), 1, "{}", machine.log());

    // A process that hangs, and a process whose loop hangs.
    machine.signal(third, "STOP");
    let fourth = machine.main_pid("the watchdog's restart", |pid| pid != third);
    assert_eq!(machine.restarts(), 2, "{}", machine.log());
    let mut successor = machine.take_over();
    let fifth = machine.main_pid("a takeover after a restart", |pid| pid != fourth);
    machine.plant("loop-hangs");
    end_within(&mut successor, LIMIT).expect("ended");
    let sixth = machine.main_pid("a loop that hangs", |pid| pid != fifth);
    assert_eq!(machine.restarts(), 3, "{}", machine.log());

    assert!(machine.systemctl("restart"), "{}", machine.log());
    let seventh = machine.main_pid("systemctl restart", |pid| pid != sixth);
    let mut successor = machine.take_over();
    machine.main_pid("a takeover before systemctl stop", |pid| pid != seventh);
    assert!(machine.systemctl("stop"), "{}", machine.log());
    end_within(&mut successor, LIMIT).expect("ended");
    retry_until("the stop of a successor", LIMIT, || match machine.show("ActiveState").as_str() {
        "inactive" => Ok(()),
        other => Err(other.to_owned()),
    })
    .unwrap_or_else(|why| panic!("{why}: {}", machine.log()));
    retry_until("the end of all of them", LIMIT, || match machine.processes() {
        own if own.is_empty() => Ok(()),
        others => Err(format!("{others:?} are in the control group of a service that was stopped")),
    })
    .unwrap_or_else(|why| panic!("{why}: {}", machine.log()));
    assert!(machine.systemctl("start"), "{}", machine.log());
    machine.main_pid("systemctl start", |_| true);
}

#[test]
fn root_systemd_runs_the_rack_monitor_without_rights_and_starts_it_again() {
    let Some(machine) = Machine::boot() else { return };
    let shell = |script: &str| {
        let output = machine.run(&["sh", "-c", script]);
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).trim().to_owned())
    };
    let require = "fide rack run --require -- true";
    let (is_there, why) = shell(require);
    assert!(!is_there && why.contains("systemctl start fide-rack"), "{why}");
    let (is_started, why) = shell("systemctl start fide-rack");
    assert!(is_started, "{why}: {}", machine.log());
    // `Type=notify`: it is ready. Of root and of others, without their saying whom they trust.
    for words in ["", "setpriv --reuid 1000 --clear-groups "] {
        let (runs, why) = shell(&format!("{words}{require}"));
        assert!(runs && why.is_empty(), "{words}{why}: {}", machine.log());
    }
    let (_, owner) = shell("stat -c '%U %a' /run/fide-rack/monitor.sock");
    assert_eq!(owner, "fide-rack 666");
    let pid = || shell("systemctl show --value --property MainPID fide-rack").1;
    let (first, rights) =
        (pid(), shell("grep -h CapBnd /proc/$(systemctl show --value -p MainPID fide-rack)/status").1);
    assert_eq!(rights.split_whitespace().last(), Some("0000000000000000"));
    machine.signal(first.parse().expect("a number"), "KILL");
    retry_until("the next monitor", LIMIT, || match shell(require) {
        (true, _) if pid() != first => Ok(()),
        (_, why) => Err(why),
    })
    .unwrap_or_else(|why| panic!("{why}: {}", machine.log()));
    let (is_stopped, why) = shell("systemctl stop fide-rack && ! test -e /run/fide-rack");
    assert!(is_stopped, "{why}: {}", machine.log());
}
