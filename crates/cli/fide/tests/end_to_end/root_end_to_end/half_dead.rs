// SPDX-License-Identifier: Apache-2.0
//! An agent that has lost one of its threads ends as a whole; an agent with a full disk comes back once there
//! is room.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use fide_testbed::AgentsSpec;
use serde_json::Value;

use super::common::{LIMIT, World, calm, output, until, until_true, world};

/// Agents in which faults can be planted.
fn faulty() -> AgentsSpec {
    AgentsSpec { env: vec![("FIDE_FAULTS".into(), "1".into())], ..calm() }
}

fn plant(world: &World, host: usize, fault: &str) {
    fs::write(world.agents.dir(host).join("state/fault"), fault).expect("planted");
}

/// Whether a program of the kernel is attached to an interface of a host.
fn has_xdp(world: &World, host: usize) -> bool {
    let (_, out, _) = output(world.bed.host(host).command("ip").args(["link", "show", "p0"]));
    out.contains("xdp")
}

/// Waits until the agent of a host has ended with a failure and left nothing attached; returns its log.
fn ended(world: &mut World, host: usize) -> String {
    let status = world.agents.await_end(host, LIMIT).expect("it ends");
    assert_eq!(status.code(), Some(1), "{status}: {}", world.agents.log_tail(host));
    // The kernel takes programs off some time after their last descriptor is closed.
    until_true("XDP is detached", || !has_xdp(world, host));
    world.agents.log(host)
}

#[test]
fn root_a_panic_of_either_thread_ends_the_agent() {
    let Some(mut world) = world(3, faulty()) else { return };
    let mut eyes = world.client(2);
    for (host, fault, thread) in [(1, "loop-panics", "fide-loop"), (3, "control-panics", "main")] {
        let monitor = eyes.watch(&format!("@h{host}"));
        assert!(has_xdp(&world, host));
        plant(&world, host, fault);
        let log = ended(&mut world, host);
        assert!(
            log.contains("panics, as planted") && log.contains(&format!("the thread {thread} has panicked")),
            "{log}"
        );
        eyes.verdict(&monitor);
        world.agents.restart(host).expect("nothing is in its way");
        world.settled(&[1, 2, 3]);
    }
}

#[test]
fn root_hanging_loop_feeds_no_watchdog_and_ends_the_agent() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("notify");
    let manager = UnixDatagram::bind(&path).expect("a socket");
    manager.set_nonblocking(true).expect("set");
    let mut spec = faulty();
    spec.env.push(("NOTIFY_SOCKET".into(), path.display().to_string()));
    spec.env.push(("WATCHDOG_USEC".into(), "400000".into()));
    let Some(mut world) = world(1, spec) else { return };
    let fed = |limit: Duration| {
        let begun = Instant::now();
        let mut fed = 0;
        while begun.elapsed() < limit {
            let mut message = [0; 256];
            match manager.recv(&mut message) {
                Ok(len) => fed += u32::from(message[..len].windows(8).any(|part| part == b"WATCHDOG")),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        fed
    };
    assert!(fed(Duration::from_secs(2)) > 0, "it is fed while the loop turns");
    plant(&world, 1, "loop-hangs");
    until_true("the fault is taken", || !world.agents.dir(1).join("state/fault").exists());
    fed(Duration::from_millis(500));
    assert_eq!(fed(Duration::from_secs(2)), 0, "it is not fed while the loop hangs");
    let log = ended(&mut world, 1);
    assert!(log.contains("the loop has ended, and so does this agent"), "{log}");
}

/// A tiny file system over the state directory of a host, whose agent is restarted with it.
struct TinyDisk {
    state: PathBuf,
}

impl TinyDisk {
    fn under(world: &mut World, host: usize) -> Self {
        let state = world.agents.dir(host).join("state");
        let mount = |source: &Path| {
            let tmpfs = ["-t", "tmpfs", "-o", "size=64k", "none"];
            Command::new("mount").args(tmpfs).arg(source).status().is_ok_and(|status| status.success())
        };
        world.agents.kill(host).expect("killed");
        assert!(mount(&state), "a tmpfs over {}", state.display());
        let disk = Self { state };
        world.agents.restart(host).expect("an agent");
        disk
    }

    fn fill(&self) {
        // Fills the disk; a part that does not fit is an error.
        let _ = fs::write(self.state.join("filler"), vec![0; 1 << 20]);
        assert!(fs::write(self.state.join("more"), [0; 64]).is_err(), "it is full");
    }

    fn free(&self) {
        fs::remove_file(self.state.join("filler")).expect("removed");
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["--lazy"]).arg(&self.state).status();
    }
}

#[test]
fn root_host_excluded_on_a_full_disk_comes_back_once_there_is_room() {
    let Some(mut world) = world(3, calm()) else { return };
    let disk = TinyDisk::under(&mut world, 3);
    world.settled(&[1, 2, 3]);
    let before = world.status(3)["incarnation"].as_u64().expect("a number");
    disk.fill();
    world.bed.isolate(3).expect("cut");
    until("the others go on without it", || {
        let members = world.status(1)["view"]["members"].clone();
        if members.as_array().map(Vec::len) == Some(2) { Ok(()) } else { Err(members.to_string()) }
    });
    world.bed.rejoin(3).expect("restored");
    let excluded = until("it knows, and says why it cannot", || match world.status(3)["excluded"].clone() {
        Value::Null => Err("nothing".to_owned()),
        excluded if excluded["attempts"].as_u64() < Some(3) => Err(excluded.to_string()),
        excluded => Ok(excluded),
    });
    assert!(excluded["why"].as_str().is_some_and(|why| why.contains("incarnation")), "{excluded}");
    let (code, out, _) = output(&mut world.fide(3, &["status"]));
    assert!(code == Some(1) && out.contains("EXCLUDED by the others, and cannot begin again"), "{code:?} {out}");
    assert_eq!(world.status(3)["fenced"], true);
    disk.free();
    world.settled(&[1, 2, 3]);
    let status = world.status(3);
    assert!(status["excluded"].is_null() && status["incarnation"].as_u64() > Some(before), "{status}");
}

#[test]
fn root_a_witness_without_its_disk_ends() {
    let mut spec = calm();
    spec.member_extra.insert(3, "role = \"witness\"".into());
    let Some(mut world) = world(3, spec) else { return };
    let disk = TinyDisk::under(&mut world, 3);
    world.settled(&[1, 2, 3]);
    disk.fill();
    world.agents.kill(2).expect("killed");
    let log = ended(&mut world, 3);
    assert!(log.contains("a witness must remember its vote there"), "{log}");
    // With room, it continues as the same incarnation, and so does h1.
    disk.free();
    world.agents.restart(3).expect("an agent");
    until("h1 goes on", || match world.status(1)["fenced"].as_bool() {
        Some(false) => Ok(()),
        _ => Err(world.status(1).to_string()),
    });
}
