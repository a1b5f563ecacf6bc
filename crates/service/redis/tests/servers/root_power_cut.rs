// SPDX-License-Identifier: Apache-2.0
//! `durable disk`, and a power cut: what is on the block devices of all servers is all that is left. What a server has
//! written and not synced is in its kernel's memory, and gone.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use fide_testbed::{retry_until, say_not_tested};

use crate::{
    root_durable::has_state,
    world::{LIMIT, Stops, World},
};

/// Set where this test runs in a mount namespace of its own: nothing that it mounts is left, however it ends.
const INSIDE: &str = "FIDE_TEST_MOUNTS";
const NAME: &str = "root_power_cut::root_acknowledged_writes_are_on_the_disks_when_the_power_is_cut";
const DISK_BYTES: u64 = 48 << 20;
/// So small that the log begins anew with a dump while clients write.
const ARGUMENTS: [&str; 4] = ["durable", "disk", "log-bytes", "100000"];
/// Power cuts, each after so many acknowledged writes more.
const CUTS: usize = 2;
const WRITES: u64 = 1500;

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap_or_else(|why| panic!("{program}: {why}"));
    assert!(output.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&output.stderr));
}

fn mount(image: &Path, dir: &Path) {
    run("mount", &["-o", "loop", &image.display().to_string(), &dir.display().to_string()]);
}

#[test]
fn root_acknowledged_writes_are_on_the_disks_when_the_power_is_cut() {
    if std::env::var_os(INSIDE).is_some() {
        return cut_power();
    }
    if let Err(why) = fide_testbed::supported() {
        return say_not_tested(&format!("a power cut: {why}"));
    }
    let can_mount = Path::new("/dev/loop-control").exists() && Command::new("mkfs.ext4").arg("-V").output().is_ok();
    if !can_mount {
        return say_not_tested("a power cut: no loop devices, or no mkfs.ext4");
    }
    let this = std::env::current_exe().expect("this program");
    let status = Command::new("unshare")
        .args(["--mount", "--propagation", "private"])
        .arg(this)
        .args([NAME, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .status();
    assert!(status.as_ref().is_ok_and(std::process::ExitStatus::success), "{status:?}: see above");
}

fn cut_power() {
    let Some(mut world) = World::with(2, "hsuc", &ARGUMENTS) else { return };
    world.kill_all();
    let scratch = world.bed.scratch().to_owned();
    let image = |host: usize, power_cuts: usize| scratch.join(format!("disk{host}.{power_cuts}"));
    let dirs: Vec<PathBuf> = (1..=2).map(|host| world.agents.dir(host).join("redis")).collect();
    for (host, dir) in (1..).zip(&dirs) {
        fs::remove_dir_all(dir).expect("the former files");
        fs::create_dir(dir).expect("a directory");
        fs::File::create(image(host, 0)).and_then(|file| file.set_len(DISK_BYTES)).expect("an image");
        run("mkfs.ext4", &["-q", "-F", &image(host, 0).display().to_string()]);
        mount(&image(host, 0), dir);
    }
    world.start_all();
    let mut counted = 0;
    for cut in 1..=CUTS {
        let acknowledged = write_until(&mut world, counted + WRITES, || {
            for (host, dir) in (1..).zip(&dirs) {
                // Written, and synced by nobody.
                fs::write(dir.join("unsynced"), "x".repeat(4096)).expect("a file");
                fs::copy(image(host, cut - 1), image(host, cut)).expect("a copy of the disk");
            }
        });
        for (host, dir) in (1..).zip(&dirs) {
            run("umount", &[&dir.display().to_string()]);
            mount(&image(host, cut), dir);
            let unsynced = fs::read(dir.join("unsynced")).unwrap_or_default();
            assert!(!unsynced.contains(&b'x'), "this test does not see what was not synced");
        }
        world.start_all();
        counted = count(&world);
        let known = acknowledged..=acknowledged + 1;
        assert!(known.contains(&counted), "cut {cut}: {counted} of {acknowledged} acknowledged\n{}", world.logs());
        assert!(world.hosts().iter().all(|host| has_state(&world, *host)), "no log began anew: {counted} writes");
        world.assert_alike();
        println!("power cut {cut}: {acknowledged} acknowledged, {counted} there");
    }
}

fn count(world: &World) -> u64 {
    redis::cmd("GET").arg("n").query(&mut world.connect(world.leader())).expect("a number")
}

/// One client counts until so many writes were acknowledged; then all servers are stopped in the middle of writes, `then`
/// is called, and they are killed. Returns how many were acknowledged.
fn write_until(world: &mut World, least: u64, then: impl FnOnce()) -> u64 {
    let (acknowledged, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut connection = world.connect(world.leader());
    thread::scope(|scope| {
        let _stops = Stops(&stop);
        scope.spawn(|| {
            while !stop.load(Relaxed) {
                let Ok(number) = redis::cmd("INCR").arg("n").query::<u64>(&mut connection) else { return };
                acknowledged.store(number, Relaxed);
            }
        });
        let enough = retry_until("writes", LIMIT, || {
            let count = acknowledged.load(Relaxed);
            if count >= least { Ok(()) } else { Err(format!("{count} so far")) }
        });
        enough.unwrap_or_else(|why| panic!("{why}\n{}", world.logs()));
        for host in world.hosts() {
            world.server(host).pause();
        }
        // What was on its way to the client when the servers were stopped.
        thread::sleep(Duration::from_millis(50));
        let count = acknowledged.load(Relaxed);
        then();
        world.kill_all();
        count
    })
}
