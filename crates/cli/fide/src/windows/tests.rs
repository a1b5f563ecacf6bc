// SPDX-License-Identifier: Apache-2.0
use std::{fs::File, os::unix::fs::symlink, time::Instant};

use super::*;

const LIMIT: Duration = Duration::from_secs(30);

fn at(path: PathBuf, is_first: bool) -> At {
    At { peer: "h2".parse().expect("a name"), path, is_first }
}

fn file(path: &Path, len: u64) {
    File::create(path).expect("made").set_len(len).expect("long");
}

/// Sends until it comes.
fn comes(from: &mut dyn Polled, to: &mut dyn Polled, packet: &[u8]) {
    let until = Instant::now() + LIMIT;
    let mut buffer = [0; PAYLOAD_MAX + 1];
    loop {
        let _ = from.send(packet);
        let _ = from.receive(&mut buffer);
        if to.receive(&mut buffer).is_some_and(|len| buffer[..len] == *packet) {
            return;
        }
        assert!(Instant::now() < until, "nothing comes");
    }
}

#[test]
fn what_is_no_window_is_refused_with_what_would_be_one() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = |name: &str| dir.path().join(name);
    file(&path("short"), 32 << 10);
    file(&path("odd"), (64 << 10) + 8);
    fs::create_dir(path("bridge")).expect("made");
    symlink(path("none"), path("link")).expect("made");
    for (name, kind, wanted) in [
        ("none", ErrorKind::NotFound, "a file of 65536 bytes or more that both hosts map"),
        ("link", ErrorKind::NotFound, "link is not there, the window to h2"),
        ("short", ErrorKind::InvalidInput, "has 32768 bytes, and heartbeats need 65536: `truncate -s 65536`"),
        ("odd", ErrorKind::InvalidInput, "a window takes a multiple of 16"),
        ("bridge", ErrorKind::NotFound, "bridge/outbound is not there: link it"),
        ("short/deeper", ErrorKind::NotADirectory, "is not there"),
    ] {
        let error = open(&[at(path(name), true)]).expect_err(name);
        assert!(error.kind() == kind && error.to_string().contains(wanted), "{name}: {:?} {error}", error.kind());
    }
    let error = open(&[at("/dev/null".into(), true)]).expect_err("no memory");
    assert!(error.kind() == ErrorKind::InvalidInput && error.to_string().contains("the window to h2"), "{error}");
}

/// The loop would wait for the disk as it writes there, and be ended where there is no room for a page.
#[test]
fn memory_on_a_disk_or_without_room_is_refused() {
    let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory");
    let path = dir.path().join("h1+h2");
    file(&path, FILE_MIN as u64);
    let error = open(&[at(path, true)]).expect_err("on a disk");
    assert!(error.to_string().contains("a file on a disk") && error.kind() == ErrorKind::InvalidInput, "{error}");
    let dir = tempfile::tempdir().expect("a directory");
    let mounted =
        std::process::Command::new("mount").args(["-t", "tmpfs", "-o", "size=32k", "none"]).arg(dir.path()).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return;
    }
    let path = dir.path().join("h1+h2");
    file(&path, FILE_MIN as u64);
    let result = open(&[at(path, true)]);
    let unmounted = std::process::Command::new("umount").arg(dir.path()).status().expect("run");
    assert!(unmounted.success());
    let error = result.expect_err("no room");
    assert!(
        error.kind() == ErrorKind::StorageFull && error.to_string().contains("no room for all of its 65536"),
        "{error}"
    );
}

/// Two planes to as many hosts as a cluster may have, each of which is gone once.
#[test]
fn windows_to_all_hosts_come_again_together() {
    let dirs = [(); MAX_PLANES].map(|()| tempfile::tempdir_in("/dev/shm").expect("a directory in memory"));
    let ats = dirs.each_ref().map(|dir| {
        let path = |number: usize| dir.path().join(number.to_string());
        (1..MAX_HOSTS).map(|number| at(path(number), true)).collect::<Vec<_>>()
    });
    let make = || ats.iter().flatten().for_each(|at| file(&at.path, FILE_MIN as u64));
    make();
    let mut planes = ats.each_ref().map(|ats| open(ats).expect("windows"));
    for at in ats.iter().flatten() {
        fs::remove_file(&at.path).expect("removed");
    }
    make();
    let until = Instant::now() + LIMIT;
    for plane in &mut planes {
        let mut was_cut = false;
        while !was_cut || plane.send(b"x").is_err() {
            was_cut |= plane.send(b"x").is_err();
            assert_eq!(plane.receive(&mut [0; PAYLOAD_MAX + 1]), None);
            assert!(Instant::now() < until, "they do not come again");
        }
    }
}

#[test]
fn packets_go_through_files_links_and_bridges() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = |name: &str| dir.path().join(name);
    file(&path("one"), FILE_MIN as u64);
    symlink(path("one"), path("link")).expect("made");
    for name in ["there", "back"] {
        file(&path(name), FILE_MIN as u64);
    }
    for (end, [outbound, inbound]) in [("here", ["there", "back"]), ("far", ["back", "there"])] {
        fs::create_dir(path(end)).expect("made");
        symlink(path(outbound), path(end).join(BRIDGE[0])).expect("made");
        symlink(path(inbound), path(end).join(BRIDGE[1])).expect("made");
    }
    for [near, far] in [["one", "link"], ["here", "far"]] {
        let [mut near, mut far] =
            [(near, true), (far, false)].map(|(name, is_first)| open(&[at(path(name), is_first)]).expect("a window"));
        comes(&mut *near, &mut *far, &[7; PAYLOAD_MAX]);
        comes(&mut *far, &mut *near, b"back");
    }
}

/// The thread beside the loop finds out, and opens what is there later.
#[test]
fn window_that_is_removed_and_made_again_goes_on() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let path = dir.path().join("h1+h2");
    file(&path, FILE_MIN as u64);
    let [mut near, mut far] = [true, false].map(|is_first| open(&[at(path.clone(), is_first)]).expect("a window"));
    comes(&mut *near, &mut *far, b"first");
    fs::remove_file(&path).expect("removed");
    let until = Instant::now() + LIMIT;
    while near.send(b"lost").is_ok() || far.send(b"lost").is_ok() {
        assert!(Instant::now() < until, "it is not found to be gone");
    }
    assert_eq!(near.receive(&mut [0; PAYLOAD_MAX + 1]), None);
    file(&path, FILE_MIN as u64);
    comes(&mut *near, &mut *far, b"again");
    comes(&mut *far, &mut *near, b"and back");
}
