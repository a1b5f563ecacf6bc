// SPDX-License-Identifier: Apache-2.0
//! Windows whose memory goes away while they are used, and SIGBUS of others: each in a process of its own.

use std::{
    env,
    fs::File,
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::process::ExitStatusExt,
    },
    process::{Command, ExitStatus},
    ptr,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::Duration,
};

use fide_rack::{
    pci::{PART_MIN, PciError, PciWindow, Side, WINDOWS_MAX},
    window::{WORD, Window},
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// Names the test whose body a process is to run.
const BODY: &str = "FIDE_RACK_TEST_BODY";
const LEN: usize = 16 * PART_MIN;
const ROUNDS: u64 = 200;

/// Runs a test's body in a process of its own: how that ended.
fn ends(test: &str, body: impl FnOnce()) -> Option<ExitStatus> {
    if env::var(BODY).is_ok_and(|name| name == test) {
        body();
        return None;
    }
    let own = env::current_exe().unwrap();
    let ended = Command::new(own).args(["--exact", test, "--nocapture"]).env(BODY, test).status();
    Some(ended.unwrap())
}

fn memory() -> OwnedFd {
    let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memory, 2 * LEN as u64).unwrap();
    memory
}

fn ends_of(memory: &OwnedFd) -> [PciWindow; 2] {
    let end = |side| PciWindow::of_file(File::from(memory.try_clone().unwrap()), side).unwrap();
    [end(Side::First), end(Side::Second)]
}

/// A byte of a file that ends before it.
fn byte_beyond_the_end() -> *mut u8 {
    let memory = memory();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let start = unsafe {
        libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, memory.as_raw_fd(), 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    ftruncate(&memory, 0).unwrap();
    start.cast()
}

fn touch(byte: *mut u8) {
    // SAFETY: it is of a mapping of this process, which is never unmapped; that the access fails is what is tested.
    unsafe { byte.write_volatile(1) };
}

fn no_core() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid for the call.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
}

/// While threads of both ends read and write. Another window is not concerned, and the memory is opened anew.
#[test]
fn memory_that_goes_away_under_use_is_cut() {
    let ended = ends("memory_that_goes_away_under_use_is_cut", || {
        let (memory, other_memory) = (memory(), memory());
        let other = ends_of(&other_memory);
        for round in 0..ROUNDS {
            ftruncate(&memory, 2 * LEN as u64).unwrap();
            let windows = ends_of(&memory);
            let written = AtomicU32::new(0);
            thread::scope(|scope| {
                for (at, window) in windows.iter().enumerate() {
                    let written = &written;
                    scope.spawn(move || {
                        let mut piece = vec![0; LEN - WORD];
                        for turn in 1.. {
                            window.write(WORD, &vec![turn as u8 | 1; LEN - WORD]);
                            window.publish(0, turn);
                            written.fetch_max(turn as u32, Ordering::Relaxed);
                            window.poll(0);
                            window.read(WORD, &mut piece);
                            if window.is_cut() {
                                break;
                            }
                            let are_right = |byte: &u8| *byte == 0 || byte % 2 == 1;
                            assert!(piece.iter().all(are_right), "end {at} has read what nobody has written");
                        }
                        // Writes go nowhere, and reads are of zeros: a private memory of this process.
                        window.write(0, &[1; LEN]);
                        window.publish(0, 1);
                        window.read(WORD, &mut piece);
                        assert_eq!(window.poll(0), 0);
                        assert!(piece.iter().all(|byte| *byte == 0));
                    });
                }
                while u64::from(written.load(Ordering::Relaxed)) < round % 5 {
                    thread::yield_now();
                }
                ftruncate(&memory, 0).unwrap();
            });
            assert!(windows.iter().all(|window| window.is_cut() && !window.is_current()));
            assert!(other.iter().all(|window| !window.is_cut() && window.is_current()));
            other[0].publish(0, round);
            assert_eq!(other[1].poll(0), round);
        }
        // What was a window before is none any more, and its place is free.
        ftruncate(&memory, 2 * LEN as u64).unwrap();
        let [here, there] = ends_of(&memory);
        here.publish(0, 7);
        assert_eq!(there.poll(0), 7);
        assert!(!here.is_cut() && !there.is_cut());
    });
    assert!(ended.is_none_or(|ended| ended.success()), "{ended:?}");
}

/// One that comes and goes on in a thread whose other windows do.
#[test]
fn windows_come_and_go_while_others_are_cut() {
    let ended = ends("windows_come_and_go_while_others_are_cut", || {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let memory = memory();
                    while !is_over.load(Ordering::Relaxed) {
                        let [here, there] = ends_of(&memory);
                        here.publish(0, 7);
                        assert_eq!(there.poll(0), 7);
                        assert!(!here.is_cut() && !there.is_cut());
                    }
                });
            }
            for _ in 0..ROUNDS {
                let memory = memory();
                let [here, there] = ends_of(&memory);
                here.publish(0, 7);
                assert_eq!(there.poll(0), 7);
                ftruncate(&memory, 0).unwrap();
                assert_eq!(there.poll(0), 0);
                assert!(there.is_cut() && !here.is_cut(), "each has a mapping of its own");
                assert!(!here.is_current() || here.poll(0) == 0);
            }
            is_over.store(true, Ordering::Relaxed);
        });
    });
    assert!(ended.is_none_or(|ended| ended.success()), "{ended:?}");
}

#[test]
fn bus_error_of_others_still_ends_the_process() {
    let ended = ends("bus_error_of_others_still_ends_the_process", || {
        no_core();
        let windows = ends_of(&memory());
        touch(byte_beyond_the_end());
        drop(windows);
    });
    assert!(ended.is_none_or(|ended| ended.signal() == Some(libc::SIGBUS)), "{ended:?}");
}

#[test]
fn signal_that_somebody_sends_still_ends_the_process() {
    let ended = ends("signal_that_somebody_sends_still_ends_the_process", || {
        no_core();
        // That of Rust's library waits for the access to be made again.
        former(libc::SIG_DFL, 0);
        let _windows = ends_of(&memory());
        // SAFETY: it concerns only this process.
        unsafe { libc::kill(libc::getpid(), libc::SIGBUS) };
        // It may come to another thread.
        thread::sleep(Duration::from_secs(10));
    });
    assert!(ended.is_none_or(|ended| ended.signal() == Some(libc::SIGBUS)), "{ended:?}");
}

extern "C" fn exits_with_43(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel gave it to the handler.
    let has_address = unsafe { !(*info).si_addr().is_null() };
    // SAFETY: async-signal-safe.
    unsafe { libc::_exit(if has_address { 43 } else { 44 }) };
}

extern "C" fn exits_with_42(_: libc::c_int) {
    // SAFETY: async-signal-safe.
    unsafe { libc::_exit(42) };
}

fn former(action: usize, flags: libc::c_int) {
    // SAFETY: all zeros are a valid one.
    let mut former: libc::sigaction = unsafe { std::mem::zeroed() };
    former.sa_sigaction = action;
    former.sa_flags = flags;
    // SAFETY: the handlers are async-signal-safe.
    assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const former, ptr::null_mut()) }, 0);
}

#[test]
fn former_handler_gets_bus_errors_of_others() {
    let ended = ends("former_handler_gets_bus_errors_of_others", || {
        former(exits_with_43 as *const () as usize, libc::SA_SIGINFO);
        let memory = memory();
        let windows = ends_of(&memory);
        ftruncate(&memory, 0).unwrap();
        assert_eq!(windows[0].poll(0), 0, "one of its own is not for the former");
        touch(byte_beyond_the_end());
    });
    assert!(ended.is_none_or(|ended| ended.code() == Some(43)), "{ended:?}");
}

#[test]
fn former_handler_of_one_argument_gets_bus_errors_of_others() {
    let ended = ends("former_handler_of_one_argument_gets_bus_errors_of_others", || {
        former(exits_with_42 as *const () as usize, 0);
        let _windows = ends_of(&memory());
        touch(byte_beyond_the_end());
    });
    assert!(ended.is_none_or(|ended| ended.code() == Some(42)), "{ended:?}");
}

#[test]
fn signal_that_was_ignored_is_ignored() {
    let ended = ends("signal_that_was_ignored_is_ignored", || {
        former(libc::SIG_IGN, 0);
        let memory = memory();
        let windows = ends_of(&memory);
        // SAFETY: it concerns only this thread.
        unsafe { libc::raise(libc::SIGBUS) };
        ftruncate(&memory, 0).unwrap();
        assert_eq!(windows[0].poll(0), 0);
        assert!(windows[0].is_cut(), "the handler is still there");
        no_core();
        touch(byte_beyond_the_end());
    });
    assert!(ended.is_none_or(|ended| ended.signal() == Some(libc::SIGBUS)), "{ended:?}");
}

#[test]
fn more_windows_than_there_may_be_are_refused() {
    let ended = ends("more_windows_than_there_may_be_are_refused", || {
        let memory = memory();
        let open = || PciWindow::of_file(File::from(memory.try_clone().unwrap()), Side::First);
        let mut windows: Vec<PciWindow> = (0..WINDOWS_MAX).map(|_| open().unwrap()).collect();
        for _ in 0..3 {
            let why = open().unwrap_err();
            assert!(matches!(why, PciError::TooMany) && why.to_string().contains("drop one first"), "{why}");
        }
        windows.swap_remove(17);
        windows.push(open().unwrap());
        assert!(open().is_err());
        ftruncate(&memory, 0).unwrap();
        assert!(windows.iter().all(|window| window.poll(0) == 0 && window.is_cut()), "also the last of them");
    });
    assert!(ended.is_none_or(|ended| ended.success()), "{ended:?}");
}

/// What the kernel is asked to copy does not touch the memory: it would say `EFAULT`, and the window would not be cut.
#[test]
fn bytes_of_a_file_come_into_a_window_that_is_cut() {
    let ended = ends("bytes_of_a_file_come_into_a_window_that_is_cut", || {
        let memory = memory();
        let [here, _there] = ends_of(&memory);
        ftruncate(&memory, 0).unwrap();
        let mut fill = |into: *mut u8, len: usize| {
            // SAFETY: the window has given a place of so many bytes.
            unsafe { into.write_bytes(7, len) };
            Ok::<_, io::Error>(len)
        };
        assert_eq!(here.fill(0, 100, &mut fill).unwrap(), 100);
        assert!(here.is_cut());
    });
    assert!(ended.is_none_or(|ended| ended.success()), "{ended:?}");
}
