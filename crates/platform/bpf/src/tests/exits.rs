// SPDX-License-Identifier: Apache-2.0
//! The exit watch on real children.

use std::{
    io::Write,
    os::fd::AsFd,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::OnceLock,
    time::{Duration, Instant},
};

use fide_shm::bpf_ring::BpfRing;
use fide_testbed::Lines;
use rustix::process::{Pid, Signal, kill_process};
use zerocopy::FromBytes;

use super::rig::{KEY, LIMIT, loaded};
use crate::{
    ExitWatch, Receive, Registration, Settings,
    intf::{MAX_WATCHED, WAKE_EXIT, WAKE_RING_BYTES, Wake},
};

/// What no shell can do: leave with the main thread first, or become another program in a second thread.
const HELPER: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static char **arguments;

static void wait_for_a_byte(void)
{
	char byte;

	if (read(0, &byte, 1) < 0)
		abort();
}

static void *become(void *unused)
{
	(void)unused;
	usleep(20000);
	execl(arguments[0], arguments[0], "wait", (char *)0);
	abort();
}

static void *remain(void *unused)
{
	(void)unused;
	usleep(20000);
	puts("ready");
	fflush(stdout);
	wait_for_a_byte();
	/* This thread alone: no exit_group. */
	syscall(SYS_exit, 0);
	return 0;
}

static void *work(void *unused)
{
	(void)unused;
	for (volatile unsigned long n = 0;; n++)
		if (n % 1000000 == 0)
			usleep(100);
}

int main(int argc, char **argv)
{
	pthread_t thread;
	const char *mode = argc > 1 ? argv[1] : "wait";

	arguments = argv;
	if (!strcmp(mode, "exec")) {
		pthread_create(&thread, 0, become, 0);
		pause();
	}
	if (!strcmp(mode, "leader-first")) {
		pthread_create(&thread, 0, remain, 0);
		syscall(SYS_exit, 5);
	}
	if (!strcmp(mode, "threads"))
		for (int i = 0; i < 4; i++)
			pthread_create(&thread, 0, work, 0);
	puts("ready");
	fflush(stdout);
	wait_for_a_byte();
	if (!strcmp(mode, "segv"))
		*(volatile int *)0 = 1;
	return 3;
}
"#;

fn helper() -> &'static PathBuf {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    &BUILT
        .get_or_init(|| {
            let dir = tempfile::tempdir().expect("a directory");
            let (source, program) = (dir.path().join("helper.c"), dir.path().join("helper"));
            std::fs::write(&source, HELPER).expect("written");
            // clang is there: the programs under test were compiled with it.
            let status = Command::new("clang").args(["-O1", "-pthread", "-o"]).arg(&program).arg(&source).status();
            assert!(status.expect("clang").success());
            (dir, program)
        })
        .1
}

struct Helper {
    child: Child,
    stdin: Option<ChildStdin>,
    out: Lines,
}

impl Helper {
    fn start(mode: &str) -> Self {
        let mut child = Command::new(helper())
            .arg(mode)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("helper");
        let stdin = child.stdin.take();
        let out = Lines::of(child.stdout.take().expect("piped"));
        let mut helper = Self { child, stdin, out };
        helper.ready();
        helper
    }

    /// Started, but not yet waited for.
    fn ready(&mut self) {
        assert_eq!(self.out.next().as_deref(), Some("ready"));
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn go(&mut self) {
        self.stdin.as_mut().expect("piped").write_all(b"g").expect("written");
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("sent");
    }

    fn registration(&self, slot: u32, cookie: u64) -> Registration {
        Registration { pid: self.pid(), start_ticks: start_ticks(self.pid()), slot, cookie }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("alive");
    let after = &stat[stat.rfind(')').expect("a name") + 2..];
    after.split_ascii_whitespace().nth(22 - 3).expect("starttime").parse().expect("a number")
}

struct Watch {
    receive: Receive,
    watch: ExitWatch,
    ring: BpfRing,
}

impl Watch {
    fn new() -> Option<Self> {
        let settings =
            Settings { me: 1, members: 1, port: 7411, ifindex: [0; 2], any_plane: false, salvage: false, key: KEY.0 };
        let receive = loaded(Receive::load(&settings, None))?;
        let watch = loaded(ExitWatch::attach(receive.wake_fd(), receive.stats_fd(), None))?;
        let ring = BpfRing::map(receive.wake_fd().as_fd(), WAKE_RING_BYTES).expect("wake ring");
        Some(Self { receive, watch, ring })
    }

    fn take(&mut self) -> Vec<Wake> {
        let mut records = Vec::new();
        self.ring
            .drain(usize::MAX, |bytes| records.push(Wake::read_from_prefix(bytes).expect("a whole header").0))
            .expect("ring");
        records
    }

    /// Every record up to the first exit.
    fn until_exit(&mut self) -> Vec<Wake> {
        let until = Instant::now() + LIMIT;
        let mut all = Vec::new();
        while !all.iter().any(|wake: &Wake| wake.kind == WAKE_EXIT) {
            assert!(Instant::now() < until, "no exit was reported");
            std::thread::sleep(Duration::from_millis(1));
            all.extend(self.take());
        }
        all
    }

    /// Ends a watched helper, and compares the record with wait(2).
    fn end(&mut self, mut helper: Helper, slot: u32, by: impl FnOnce(&mut Helper)) -> i32 {
        let cookie = 0xfeed_0000_0000 + u64::from(slot);
        self.watch.watch(&helper.registration(slot, cookie)).expect("watched");
        by(&mut helper);
        let records = self.until_exit();
        let exit = records.iter().find(|wake| wake.kind == WAKE_EXIT).expect("one");
        assert_eq!((exit.subject, exit.cookie, exit.len), (slot, cookie, 0));
        assert!(exit.ns > 0);
        let status = std::os::unix::process::ExitStatusExt::into_raw(helper.child.wait().expect("ended"));
        assert_eq!(exit.detail.cast_signed(), status, "as wait(2) reports it");
        assert!(self.take().is_empty(), "reported once");
        self.watch.unwatch(helper.child.id());
        status
    }
}

#[test]
fn root_every_way_to_end() {
    let Some(mut watch) = Watch::new() else { return };
    assert_eq!(watch.end(Helper::start("wait"), 0, |h| h.signal(Signal::KILL)) & 0x7f, 9);
    assert_eq!(watch.end(Helper::start("wait"), 1, |h| h.signal(Signal::TERM)) & 0x7f, 15);
    assert_eq!(watch.end(Helper::start("segv"), 2, Helper::go) & 0x7f, 11);
    assert_eq!(watch.end(Helper::start("wait"), 63, Helper::go), 3 << 8);
    let stopped = |h: &mut Helper| {
        h.signal(Signal::STOP);
        h.signal(Signal::KILL);
    };
    assert_eq!(watch.end(Helper::start("wait"), 4, stopped) & 0x7f, 9);
    assert_eq!(watch.receive.stats().exits_seen, 5);
}

#[test]
fn root_signals_are_not_reported_only_the_exit() {
    let Some(mut watch) = Watch::new() else { return };
    let helper = Helper::start("wait");
    watch.watch.watch(&helper.registration(7, 70)).expect("watched");
    helper.signal(Signal::STOP);
    helper.signal(Signal::CONT);
    assert!(watch.take().is_empty());
    helper.signal(Signal::KILL);
    let records = watch.until_exit();
    let kinds: Vec<u32> = records.iter().map(|wake| wake.kind).collect();
    assert_eq!(kinds, [WAKE_EXIT]);
    assert_eq!((records[0].subject, records[0].detail, records[0].cookie), (7, 9, 70));
}

#[test]
fn root_the_last_thread_counts_not_the_main_one() {
    let Some(mut watch) = Watch::new() else { return };
    // Its main thread has left when it is ready.
    let helper = Helper::start("leader-first");
    let state = std::fs::read_to_string(format!("/proc/{}/status", helper.pid())).expect("there");
    assert!(state.contains("Z (zombie)"), "{state}");
    assert!(watch.take().is_empty());
    assert_eq!(watch.end(helper, 0, Helper::go) & 0x7f, 0, "by itself, with whichever code wait(2) reports");

    let helper = Helper::start("leader-first");
    assert_eq!(watch.end(helper, 1, |h| h.signal(Signal::KILL)) & 0x7f, 9);
}

#[test]
fn root_a_killed_group_ends_with_its_last_thread() {
    let Some(mut watch) = Watch::new() else { return };
    for round in 0..20 {
        assert_eq!(watch.end(Helper::start("threads"), round, |h| h.signal(Signal::KILL)) & 0x7f, 9);
        // The others are killed when one of them calls exit_group: with its code, not with their signal.
        assert_eq!(watch.end(Helper::start("threads"), round, Helper::go), 3 << 8);
    }
}

#[test]
fn root_a_program_that_becomes_another_in_a_second_thread_goes_on() {
    let Some(mut watch) = Watch::new() else { return };
    let mut child =
        Command::new(helper()).arg("exec").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("helper");
    let stdin = child.stdin.take();
    let out = Lines::of(child.stdout.take().expect("piped"));
    let mut helper = Helper { child, stdin, out };
    watch.watch.watch(&helper.registration(5, 50)).expect("watched");
    // It says so only after it has become the other one.
    helper.ready();
    assert!(watch.take().is_empty(), "an exec is no exit");
    let status = watch.end(helper, 5, Helper::go);
    assert_eq!(status, 3 << 8);
}

#[test]
fn root_unwatched_processes_are_not_reported() {
    let Some(mut watch) = Watch::new() else { return };
    // A pid that was used again: another start.
    let mut reused = Helper::start("wait");
    let right = reused.registration(1, 10);
    watch.watch.watch(&Registration { start_ticks: right.start_ticks + 1, ..right }).expect("watched");
    // One taken away again, and one that was never there.
    let mut unwatched = Helper::start("wait");
    watch.watch.watch(&unwatched.registration(2, 20)).expect("watched");
    watch.watch.unwatch(unwatched.pid());
    watch.watch.unwatch(u32::MAX);
    let mut never = Helper::start("wait");
    for helper in [&mut reused, &mut unwatched, &mut never] {
        helper.signal(Signal::KILL);
        helper.child.wait().expect("ended");
    }
    assert!(watch.take().is_empty());
    assert_eq!(watch.receive.stats().exits_seen, 0);
    // The watch itself works.
    watch.end(Helper::start("wait"), 3, |h| h.signal(Signal::KILL));
}

#[test]
fn root_the_newest_registration_of_a_pid_counts() {
    let Some(mut watch) = Watch::new() else { return };
    let helper = Helper::start("wait");
    watch.watch.watch(&helper.registration(1, 10)).expect("watched");
    assert_eq!(watch.end(helper, 2, Helper::go), 3 << 8);
}

#[test]
fn root_watch_limit_is_an_error() {
    let Some(watch) = Watch::new() else { return };
    let process = |pid| Registration { pid, start_ticks: 1, slot: 0, cookie: 0 };
    // Beyond every pid of this machine (pid_max is at most 2^22).
    let first = 1 << 23;
    for pid in first..first + MAX_WATCHED as u32 {
        watch.watch.watch(&process(pid)).expect("room");
    }
    let error = watch.watch.watch(&process(first - 1)).expect_err("full");
    let crate::BpfError::Map { what, why } = &error else { panic!("{error:?}") };
    assert!(what.contains("under watch"), "{error}");
    assert_eq!(why.raw_os_error(), Some(libc::E2BIG), "{error}");
    watch.watch.unwatch(first);
    watch.watch.watch(&process(first - 1)).expect("room again");
}
