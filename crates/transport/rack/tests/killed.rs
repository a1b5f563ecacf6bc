// SPDX-License-Identifier: Apache-2.0
//! A process that has an end with another one, and is killed between any two steps of what it does: the other process and the other
//! end go on, or see the end.

mod meddled;

use std::{
    net::Shutdown,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use fide_rack::window::Bell;
use meddled::{STEPS, Side, Step, attached, hears, hooks, once, settles, unhooks};

/// Another process, which does something with the second end and is killed before a step. True: it was. Nobody waits for it until it is
/// dropped.
struct Child(libc::pid_t);

impl Child {
    fn begins(side: &Side, at: usize, does: impl FnOnce(&Side)) -> Self {
        side.end.shared();
        // Before the fork, as it allocates.
        let mut kills = once(at, || {
            // SAFETY: takes numbers.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        // Of many words one is as good as another.
        hooks(1, move |step| {
            if step != Step::Read {
                kills(step);
            }
        });
        // SAFETY: the child does what needs no lock of the parent's, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            fide_rack::end::in_child();
            does(side);
            // SAFETY: ends this process.
            unsafe { libc::_exit(0) }
        }
        unhooks();
        assert!(child > 0);
        Self(child)
    }

    /// Waits until it has ended, and leaves it a zombie. Whether it was killed.
    fn was_killed(&self) -> bool {
        // SAFETY: all zeros are one.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let options = libc::WEXITED | libc::WNOWAIT;
        // SAFETY: the place is there.
        let waited = unsafe { libc::waitid(libc::P_PID, self.0.cast_unsigned(), &raw mut info, options) };
        assert_eq!(waited, 0);
        info.si_code == libc::CLD_KILLED
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: it is a child of this process that nobody has waited for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

/// All that comes, until the end or an error, which ends the connection.
fn reads(side: Arc<Side>) -> mpsc::Receiver<Vec<u8>> {
    let (tells, told) = mpsc::channel();
    thread::spawn(move || {
        let (mut got, mut piece) = (Vec::new(), [0; 100]);
        loop {
            match side.read(&mut piece) {
                Ok(None) if side.end.wait(&side.socket, Bell::Message, None).is_ok() => {}
                Ok(Some(count @ 1..)) => got.extend_from_slice(&piece[..count]),
                Ok(Some(0)) => break,
                _ => {
                    let _ = side.socket.shutdown(Shutdown::Both);
                    break;
                }
            }
        }
        tells.send(got)
    });
    told
}

/// Writes all, or what is taken before an error.
fn writes(side: Arc<Side>, count: usize) -> mpsc::Receiver<usize> {
    let (tells, told) = mpsc::channel();
    thread::spawn(move || {
        let mut written = 0;
        while written < count {
            match side.write(&vec![7; count - written]) {
                Ok(None) if side.end.wait(&side.socket, Bell::Room, None).is_ok() => {}
                Ok(Some(more)) => written += more,
                _ => break,
            }
        }
        tells.send(written)
    });
    told
}

/// For each step at which the child is killed, until there are no more.
fn at_each_step(does: impl Fn(&Side), then: impl Fn([Arc<Side>; 2], Child, &str)) {
    for at in 0..10 * STEPS {
        let (sides, _) = attached(0);
        // So that all goes through the ring from the begin.
        sides[0].write(b"!").unwrap();
        assert_eq!(sides[1].read(&mut [0; 8]).unwrap(), Some(1));
        let child = Child::begins(&sides[1], at, &does);
        let was_killed = child.was_killed();
        then(sides, child, &format!("killed at step {at}"));
        if !was_killed {
            return assert!(at > 1, "it has {at} steps");
        }
    }
    panic!("it has more steps");
}

#[test]
fn reader_gets_whole_writes_of_a_process_that_is_killed_and_then_those_of_others() {
    at_each_step(
        |side| _ = side.write(b"written by the child"),
        |[here, there], _child, when| {
            let got = reads(here);
            settles();
            let written = there.write(b"by the parent").is_ok();
            let _ = there.end.shut(&there.socket);
            there.end.close(&there.socket);
            drop(there);
            let got = hears(&got).unwrap_or_else(|| panic!("{when}: its other end waits"));
            let rest = got.strip_prefix(b"written by the child").unwrap_or(&got);
            assert_eq!(rest, if written { &b"by the parent"[..] } else { b"" }, "{when}");
        },
    );
}

/// It closes its connection, as a program does that has found it broken, or is done.
fn closes(side: Arc<Side>) {
    side.end.close(&side.socket);
    drop(side);
}

/// A writer sleeps, and the child reads all, or was about to.
#[test]
fn writer_goes_on_where_a_process_that_read_is_killed_and_others_read() {
    at_each_step(
        |side| while matches!(side.read(&mut [0; 300]), Ok(Some(_))) {},
        |[here, there], _child, when| {
            let written = writes(Arc::clone(&here), 3000);
            let mut is_written = false;
            // The parent reads as one that polls: without a wait.
            for _ in 0..10_000 {
                is_written = written.try_recv().is_ok();
                if is_written || there.read(&mut [0; 100]).is_err() {
                    break;
                }
                thread::sleep(Duration::from_micros(100));
            }
            closes(there);
            assert!(is_written || hears(&written).is_some(), "{when}: the writer waits");
        },
    );
}

/// The same, and the writer sleeps already as the child begins.
#[test]
fn writer_that_sleeps_goes_on_where_a_process_that_read_is_killed_and_others_read() {
    for at in 0..10 * STEPS {
        let ([here, there], _) = attached(0);
        here.fill();
        let written = writes(Arc::clone(&here), 100);
        thread::sleep(Duration::from_millis(3));
        let child = Child::begins(&there, at, |side| _ = side.read(&mut [0; 2000]));
        let was_killed = child.was_killed();
        // The first one may find out that something is broken, and tells what was read.
        let is_broken = (0..2).any(|_| there.read(&mut [0; 2000]).is_err());
        if is_broken {
            closes(there);
        }
        assert!(hears(&written).is_some(), "step {at}: the writer waits");
        if !was_killed {
            return assert!(at > 1, "it has {at} steps");
        }
    }
}

/// The child sleeps, or was about to; so does a thread of the parent.
#[test]
fn sleep_of_a_process_that_is_killed_keeps_no_one_else_asleep() {
    at_each_step(
        // As one who polls does.
        |side| {
            side.end.sleeps();
            side.end.arms(Bell::Message);
            let _ = side.end.is_ready(Bell::Message);
            let _ = side.end.hears(&side.socket);
            let _ = side.end.is_ready(Bell::Message);
            side.end.woke();
        },
        |[here, there], _child, when| {
            let got = reads(Arc::clone(&there));
            thread::sleep(Duration::from_millis(1));
            let written = writes(Arc::clone(&here), 3000);
            let written = hears(&written).unwrap_or_else(|| panic!("{when}: the writer sleeps on"));
            here.end.shut(&here.socket).unwrap();
            let got = hears(&got).unwrap_or_else(|| panic!("{when}: it sleeps on"));
            // Unless the child was killed as it looked at what the parent needs, too.
            let is_whole = (written, got.len()) == (3000, 3000);
            assert!(is_whole || there.read(&mut [0; 8]).is_err(), "{when}: {} of {written}", got.len());
        },
    );
}

/// Both ways, as a thread of the parent waits to read.
#[test]
fn others_go_on_or_see_an_error_where_a_process_that_writes_no_more_is_killed() {
    at_each_step(
        |side| _ = side.end.shut(&side.socket),
        |[here, there], _child, when| {
            let (got_here, got_there) = (reads(Arc::clone(&here)), reads(Arc::clone(&there)));
            thread::sleep(Duration::from_millis(1));
            let written = here.write(b"to the parent").unwrap();
            let _ = there.write(b"to the other end");
            here.end.shut(&here.socket).unwrap();
            let got = hears(&got_there).unwrap_or_else(|| panic!("{when}: it sleeps on"));
            assert!(got.len() == written.unwrap() || there.read(&mut [0; 8]).is_err(), "{when}: {got:?}");
            closes(there);
            hears(&got_here).unwrap_or_else(|| panic!("{when}: the other end sleeps on"));
        },
    );
}
