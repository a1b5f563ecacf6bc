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
    let dir = tempfile::tempdir().expect("a directory");
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

#[test]
fn packets_go_through_files_links_and_bridges() {
    let dir = tempfile::tempdir().expect("a directory");
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
    let dir = tempfile::tempdir().expect("a directory");
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
