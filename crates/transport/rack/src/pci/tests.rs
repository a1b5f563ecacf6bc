// SPDX-License-Identifier: Apache-2.0
use std::{
    fs,
    io::{Read, Write},
    os::fd::OwnedFd,
};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tempfile::TempDir;

use super::*;
use crate::{
    ring::{Place, Receiver, SendError, Sender},
    stream::halves,
};

/// Bytes of each part: small, so that rings are often full.
const LEN: usize = PART_MIN;
const PLACE: Place = Place { told_at: 0, at: 64, len: LEN - 64 };

fn memory(len: usize) -> OwnedFd {
    let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, len as u64).unwrap();
    memory
}

/// Both ends of one memory, each with a mapping of its own.
fn of_one_memory() -> [PciWindow; 2] {
    let here = memory(2 * LEN);
    let there = here.try_clone().unwrap();
    [(here, Side::First), (there, Side::Second)].map(|(file, side)| PciWindow::of_file(file.into(), side).unwrap())
}

/// Both ends of two memories, as of a bridge: what is outbound here is inbound there.
fn of_two_memories() -> [PciWindow; 2] {
    let dir = tempfile::tempdir().unwrap();
    let [a, b] = ["a", "b"].map(|name| file(&dir, name, LEN));
    [PciWindow::of_ntb(&a, &b).unwrap(), PciWindow::of_ntb(&b, &a).unwrap()]
}

fn pair(is_ntb: bool) -> [PciWindow; 2] {
    if is_ntb { of_two_memories() } else { of_one_memory() }
}

fn file(dir: &TempDir, name: &str, len: usize) -> std::path::PathBuf {
    let path = dir.path().join(name);
    File::create(&path).unwrap().set_len(len as u64).unwrap();
    path
}

fn bytes(count: usize, seed: u64) -> Vec<u8> {
    (0..count as u64).map(|at| ((at ^ seed).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Of whatever lengths, and however far the receiver is behind.
    #[test]
    fn messages_come_whole_and_in_order(
        is_ntb in any::<bool>(), steps in prop::collection::vec((0..=PLACE.most(), 0..4_usize), 1..300),
    ) {
        let windows = pair(is_ntb);
        let (mut sender, mut receiver) = (Sender::new(&windows[0], PLACE), Receiver::new(&windows[1], PLACE));
        let mut waiting = std::collections::VecDeque::new();
        for (sent, (len, reads)) in (0..).zip(steps) {
            let message = bytes(len, sent);
            match sender.send(&windows[0], &message) {
                Ok(()) => waiting.push_back(message),
                Err(why) => prop_assert_eq!(why, SendError::Full),
            }
            for _ in 0..reads {
                let (mut got, expected) = (Vec::new(), waiting.pop_front());
                prop_assert_eq!(receiver.receive(&windows[1], &mut got).unwrap(), expected.as_ref().map(Vec::len));
                prop_assert_eq!(got, expected.unwrap_or_default());
            }
        }
        prop_assert!(windows.iter().all(PciWindow::is_current) != is_ntb, "the files of a bridge were removed");
    }

    /// Both ways at a time, whatever the lengths of writes and reads; each end sleeps now and then.
    #[test]
    fn both_ways_carry_all_bytes(
        is_ntb in any::<bool>(), writes in prop::collection::vec(0..9000_usize, 1..20), read in 1..5000_usize, seed in any::<u64>(),
    ) {
        let [(mut here_reads, mut here_writes), (mut there_reads, mut there_writes)] = pair(is_ntb).map(halves);
        let all = bytes(writes.iter().sum(), seed);
        let mut got = Vec::new();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = vec![0; read];
                loop {
                    let count = there_reads.read(&mut buffer).unwrap();
                    if count == 0 {
                        break drop(there_writes);
                    }
                    there_writes.write_all(&buffer[..count]).unwrap();
                }
            });
            scope.spawn(|| {
                let mut rest = &all[..];
                for len in &writes {
                    let (now, later) = rest.split_at(*len);
                    here_writes.write_all(now).unwrap();
                    rest = later;
                }
                drop(here_writes);
            });
            here_reads.read_to_end(&mut got).unwrap();
        });
        prop_assert!(got == all, "{} of {} bytes, or others", got.len(), all.len());
    }

    /// Whatever the other end writes, and whenever: an error at most, and no message longer than there may be.
    #[test]
    fn whatever_the_other_end_writes_is_checked(
        is_ntb in any::<bool>(),
        writes in prop::collection::vec((0..LEN / WORD, prop_oneof![any::<u64>(), 0..2000_u64, Just(0)], 0..3_usize), 1..200),
    ) {
        let windows = pair(is_ntb);
        let (mut sender, mut receiver) = (Sender::new(&windows[0], PLACE), Receiver::new(&windows[0], PLACE));
        for (at, word, turns) in writes {
            windows[1].publish(at * WORD, word);
            for _ in 0..turns {
                let mut got = Vec::new();
                if let Ok(Some(len)) = receiver.receive(&windows[0], &mut got) {
                    prop_assert!(len == got.len() && len <= PLACE.most());
                }
                let _ = sender.send(&windows[0], &[7; 40]);
            }
        }
    }
}

#[test]
fn ends_see_what_the_other_one_writes_and_not_what_they_write() {
    for is_ntb in [false, true] {
        let [here, there] = pair(is_ntb);
        assert_eq!([here.len(), there.len()], [LEN; 2]);
        here.write(8, b"nine here");
        there.write(8, b"and there");
        here.publish(LEN - WORD, 7);
        let read = |window: &PciWindow| {
            let mut got = [0; 9];
            window.read(8, &mut got);
            (got, window.poll(LEN - WORD))
        };
        assert_eq!(read(&there), (*b"nine here", 7));
        assert_eq!(read(&here), (*b"and there", 0));
        // Words are written whole.
        let mut after = [7; 16];
        there.read(16, &mut after);
        assert_eq!(&after, b"e\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    }
}

#[test]
fn offset_beyond_the_part_of_an_end_panics() {
    let [here, _there] = of_one_memory();
    for at in [LEN, LEN - WORD + 1, 4] {
        assert!(std::panic::catch_unwind(|| here.publish(at, 1)).is_err(), "{at}");
        assert!(std::panic::catch_unwind(|| here.poll(at)).is_err(), "{at}");
    }
    assert!(std::panic::catch_unwind(|| here.write(LEN - WORD, &[1; 9])).is_err());
    assert!(std::panic::catch_unwind(|| here.read(LEN - WORD, &mut [1; 9])).is_err());
}

#[test]
fn naps_grow_until_something_is_read_or_written() {
    let [here, there] = of_one_memory();
    for naps in 1..10 {
        here.sleep(Bell::Room, None);
        assert_eq!(here.naps.load(Ordering::Relaxed), naps.min(NAPS_UNTIL_LONGEST + 1));
    }
    // The longest that there may be is the last one.
    assert!(NAPS[0] * (1 << NAPS_UNTIL_LONGEST) >= NAPS[1] && NAPS[0] * (1 << (NAPS_UNTIL_LONGEST - 1)) < NAPS[1]);
    here.poll(0);
    assert_ne!(here.naps.load(Ordering::Relaxed), 0, "it has only looked");
    here.write(0, &[1]);
    assert_eq!(here.naps.load(Ordering::Relaxed), 0);
    assert_eq!(there.sleeper(Bell::Message), 0);
}

/// As the kernel leaves the mapping of a device that is not there any more, or that is another one.
#[test]
fn file_that_was_removed_or_replaced_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("memory");
    type Away<'a> = &'a dyn Fn();
    let aways: [Away<'_>; 5] = [
        &|| fs::remove_file(&path).unwrap(),
        &|| {
            fs::remove_file(&path).unwrap();
            // The number of a file is not given to another one while it is mapped.
            file(&dir, "memory", 2 * LEN);
        },
        &|| File::options().write(true).open(&path).unwrap().set_len(2 * LEN as u64 - 8).unwrap(),
        // Who opens it from now on has other halves.
        &|| File::options().write(true).open(&path).unwrap().set_len(4 * LEN as u64).unwrap(),
        &|| {
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink(&path, &path).unwrap();
        },
    ];
    for away in aways {
        let _ = fs::remove_file(&path);
        file(&dir, "memory", 2 * LEN);
        let [here, there] = [Side::First, Side::Second].map(|side| PciWindow::open(&path, side).unwrap());
        away();
        // The memory is still there.
        here.publish(0, 7);
        assert_eq!(there.poll(0), 7);
        assert!(!there.is_cut() && !there.is_current() && there.is_cut());
        assert_eq!(there.poll(0), 0);
        here.publish(0, 8);
        there.publish(0, 8);
        assert_eq!([here.poll(0), there.poll(0)], [0; 2]);
        assert!(!there.is_current() && !here.is_cut(), "each has a mapping of its own");
        let again = fs::exists(&path).unwrap_or(false).then(|| PciWindow::open(&path, Side::First));
        assert!(again.is_none_or(|again| again.is_err() || again.is_ok_and(|again| again.is_current())));
    }
}

/// A thread that has given up its rights does not see what root has opened.
#[test]
fn file_that_may_not_be_looked_for_any_more_is_still_there() {
    use std::os::unix::fs::PermissionsExt;

    let dir = tempfile::tempdir().unwrap();
    let inner = dir.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let path = inner.join("memory");
    File::create(&path).unwrap().set_len(2 * LEN as u64).unwrap();
    let window = PciWindow::open(&path, Side::First).unwrap();
    let mode = |mode| fs::set_permissions(&inner, fs::Permissions::from_mode(mode)).unwrap();
    mode(0);
    std::thread::scope(|threads| {
        let looks = || {
            let user = rustix::process::Uid::from_raw(65_534);
            // Root may look everywhere; this thread alone is another user's.
            let _ = rustix::thread::set_thread_uid(user);
            (fs::metadata(&path).unwrap_err().kind(), window.is_current(), window.is_cut())
        };
        assert_eq!(threads.spawn(looks).join().unwrap(), (std::io::ErrorKind::PermissionDenied, true, false));
    });
    mode(0o700);
    fs::remove_file(&path).unwrap();
    assert!(!window.is_current());
}

fn refused(path: impl AsRef<Path>) -> String {
    PciWindow::open(path, Side::First).unwrap_err().to_string()
}

#[test]
fn files_that_are_no_memory_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let missing = refused(dir.path().join("resource2"));
    assert!(missing.contains("there is no such file") && missing.contains("or has no such BAR"), "{missing}");
    assert!(refused(dir.path()).contains("a directory: name the file resourceN"));
    assert!(refused("/dev/null").contains("neither a file of a BAR nor one of memory"));
    for len in [0, 2 * PART_MIN - 16, 2 * PART_MIN + 8] {
        let why = refused(file(&dir, "memory", len));
        assert!(why.contains(&format!("has {len} bytes: a window takes a multiple of 16, and 2048 at least")), "{why}");
    }
    // Nothing of it is mapped: a process that locks its memory would have all of it at once.
    let why = refused(file(&dir, "memory", 1 << 40));
    assert!(why.contains("has 1099511627776 bytes: a window that is no device's takes 67108864 at most"), "{why}");
    let [a, b] = [("a", PART_MIN), ("b", 2 * PART_MIN)].map(|(name, len)| file(&dir, name, len));
    let why = PciWindow::of_ntb(a, b).unwrap_err().to_string();
    assert!(why.contains("the outbound memory has 1024 bytes, and the inbound one 2048: make them equal"), "{why}");
    // A file that may not be mapped for writing.
    let sealed = memory(2 * PART_MIN);
    let read_only = File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&sealed))).unwrap();
    let why = PciWindow::of_file(read_only, Side::First).unwrap_err().to_string();
    assert!(why.contains("mmap of shared memory: Permission denied"), "{why}");
}

/// As sysfs shows a device: ports, registers, memory, and one that it has not.
#[test]
fn bars_that_are_no_memory_are_refused_and_the_device_is_enabled() {
    let dir = tempfile::tempdir().unwrap();
    let lines = "\
        0x000000000000c000 0x000000000000c03f 0x0000000000040101\n\
        0x00000000febd1000 0x00000000febd10ff 0x0000000000040200\n\
        0x00000000fe000000 0x00000000fe3fffff 0x000000000014220c\n\
        0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
    fs::write(dir.path().join("resource"), lines).unwrap();
    let enabled = || fs::read_to_string(dir.path().join("enable")).unwrap();
    fs::write(dir.path().join("enable"), "0\n").unwrap();
    let bar = |name| file(&dir, name, 2 * PART_MIN);
    let ports = refused(bar("resource0"));
    assert!(ports.contains("a BAR of ports") && ports.contains("resource has 2 as the third last digit"), "{ports}");
    assert!(refused(bar("resource3")).contains("the device has no such BAR"));
    assert!(refused(bar("resource4_wc")).contains("`resource` has no such line"));
    assert_eq!(enabled(), "0\n", "nothing was opened");
    let long = PciWindow::open(file(&dir, "resource2", 1 << 30), Side::First);
    assert!(long.is_ok(), "a device may have as much as it likes");
    for name in ["resource2", "resource2_wc"] {
        fs::write(dir.path().join("enable"), "0\n").unwrap();
        let window = PciWindow::open(bar(name), Side::First).unwrap();
        assert!(window.is_current());
        assert_eq!(enabled(), "1");
    }
    // Of one that is enabled, nothing is changed.
    fs::write(dir.path().join("enable"), "2\n").unwrap();
    PciWindow::open(bar("resource2"), Side::First).unwrap();
    assert_eq!(enabled(), "2\n");
}
