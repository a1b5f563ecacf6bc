// SPDX-License-Identifier: Apache-2.0
//! Members on a full disk: none ends, and each continues once there is room.

use std::{fs, path::PathBuf, process::Command};

use fide_counter::{Order, Protocol, Replicas, Reported};
use fide_testbed::{Agents, retry_until};

use super::{LIMIT, World, build, log, logs};

/// Room for one record, but not for the next one beside it, which has to be complete before it replaces the
/// first.
const ONE_RECORD: &str = "size=4k";
const ROOM: &str = "size=64k";

/// A file system for the record of one host's member.
struct Disk {
    dir: PathBuf,
}

impl Disk {
    fn under(agents: &Agents, host: usize, size: &str) -> Self {
        let dir = agents.dir(host).join("group");
        fs::create_dir_all(&dir).expect("made");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", size, "none"]).arg(&dir).status();
        assert!(mounted.is_ok_and(|status| status.success()), "a tmpfs over {}", dir.display());
        Self { dir }
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,{size}");
        let mounted = Command::new("mount").args(["-o", &options]).arg(&self.dir).status();
        assert!(mounted.is_ok_and(|status| status.success()), "{size}");
    }

    fn fill(&self) {
        let _ = fs::write(self.dir.join("filler"), vec![0; 1 << 20]);
        assert!(fs::write(self.dir.join("more"), [0; 64]).is_err(), "it is full");
    }

    fn free(&self) {
        fs::remove_file(self.dir.join("filler")).expect("removed");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.dir).status();
    }
}

/// Waits until the member of a host has reported why it cannot continue.
fn says(agents: &Agents, host: usize, what: &str) {
    retry_until(what, LIMIT, || {
        let log = log(agents, host);
        if log.contains(what) && log.contains("No space left on device") { Ok(()) } else { Err(log) }
    })
    .unwrap_or_else(|why| panic!("{why}"));
}

fn founds(full: usize) {
    let Some((bed, agents, spec)) = build(3, Protocol::Hsuc) else { return };
    let disk = Disk::under(&agents, full, ONE_RECORD);
    let record = disk.dir.join("counter.toml");
    let replicas = std::thread::scope(|scope| {
        let gives_room = scope.spawn(|| {
            says(&agents, full, "cannot store that there is a group");
            assert!(!fs::read_to_string(&record).expect("of its incarnation").contains("founded_with"));
            disk.resize(ROOM);
        });
        let replicas = Replicas::start(bed.hosts(), &agents, spec);
        gives_room.join().expect("it says so");
        replicas.unwrap_or_else(|why| panic!("{why:#}\n{}", logs(&agents, 3)))
    });
    // The host that was let in is a member meanwhile.
    retry_until("the record", LIMIT, || match fs::read_to_string(&record).expect("there") {
        text if text.contains("founded_with = [1, 2, 3]") => Ok(()),
        text => Err(text),
    })
    .unwrap_or_else(|why| panic!("{why}"));
    let mut world = World { replicas, agents, bed, counts: vec![0; 8], counter: 0 };
    world.add(1);
    assert_eq!(world.counter, 8);
    world.agree();
}

#[test]
fn root_founder_on_a_full_disk_founds_the_group_when_there_is_room() {
    founds(1);
}

#[test]
fn root_member_on_a_full_disk_begins_when_there_is_room() {
    founds(3);
}

/// A member that is excluded while its disk is full keeps its state, and is back once there is room.
#[test]
fn root_member_excluded_on_a_full_disk_comes_back_once_there_is_room() {
    let Some((bed, agents, spec)) = build(3, Protocol::Hsuc) else { return };
    let disk = Disk::under(&agents, 3, ROOM);
    let replicas = Replicas::start(bed.hosts(), &agents, spec);
    let replicas = replicas.unwrap_or_else(|why| panic!("{why:#}\n{}", logs(&agents, 3)));
    let mut world = World { replicas, agents, bed, counts: vec![0; 8], counter: 0 };
    world.add(1);
    world.agree();
    disk.fill();
    let before = fs::read_to_string(disk.dir.join("counter.toml")).expect("stored");
    world.bed.isolate(3).unwrap();
    // Nothing is decided before the others have a view without it.
    world.add(1);
    world.bed.rejoin(3).unwrap();
    says(&world.agents, 3, "cannot store as which incarnation it comes back");
    world.replicas.node(3).expect("it runs").order(&Order::State { state: true }).expect("asked");
    let applied = world.wait("what it has", |host, reported| match reported {
        Reported::State { counter, .. } if host == 3 => Some(counter),
        _ => None,
    });
    assert_eq!(applied, 8, "it keeps what was delivered to it");
    disk.free();
    world.wait("it is back", |host, reported| (host == 3 && matches!(reported, Reported::Ready { .. })).then_some(()));
    assert_ne!(fs::read_to_string(disk.dir.join("counter.toml")).expect("stored"), before);
    world.add(1);
    world.agree();
}
