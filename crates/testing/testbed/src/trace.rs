// SPDX-License-Identifier: Apache-2.0
//! Records every system call of one thread, and every place where it waits, by the kernel's own trace events.
//!
//! A separate trace instance records `sys_enter`, `sys_exit` and `sched_switch` of that thread only, so that
//! the thread runs as fast as without a trace. All others pay for each call: an instance whose process was killed is removed by the next
//! sweep ([`crate::sweep`]), where tracefs is mounted as it is by default.

use crate::{Error, Result, names::Owner};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where tracefs is mounted, if it is.
pub(crate) const MOUNTED: &str = "/sys/kernel/tracing";
/// Size of the buffer for the events of one core, KiB: it holds a few hundred thousand calls.
const BUFFER_KIB: &str = "16384";

/// A call by its number, and its subcommand for calls that have many ([`libc::SYS_bpf`],
/// [`libc::SYS_epoll_ctl`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Call {
    /// As in `libc::SYS_*`.
    pub number: i64,
    /// First argument of bpf, second of epoll_ctl.
    pub sub: Option<u64>,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.sub {
            Some(sub) => write!(f, "call {} ({sub})", self.number),
            None => write!(f, "call {}", self.number),
        }
    }
}

/// Everything that the thread `fide-loop` of an agent may ask of the kernel; `docs/internals/agent-loop.md`
/// says for each call what it may wait for.
pub const LOOP_CALLS: [(&str, i64, Option<u64>); 11] = [
    ("epoll_pwait2", libc::SYS_epoll_pwait2, None),
    ("sendto", libc::SYS_sendto, None),
    ("recvfrom", libc::SYS_recvfrom, None),
    ("readv", libc::SYS_readv, None),
    ("read", libc::SYS_read, None),
    ("write", libc::SYS_write, None),
    ("timerfd_settime", libc::SYS_timerfd_settime, None),
    ("bpf(BPF_PROG_TEST_RUN)", libc::SYS_bpf, Some(10)),
    ("epoll_ctl(EPOLL_CTL_ADD)", libc::SYS_epoll_ctl, Some(1)),
    ("epoll_ctl(EPOLL_CTL_DEL)", libc::SYS_epoll_ctl, Some(2)),
    ("setsockopt", libc::SYS_setsockopt, None),
];

/// The one call in which the loop may sleep.
pub const SLEEPS_IN: Call = Call { number: libc::SYS_epoll_pwait2, sub: None };

/// How often a call was made, how often the thread slept in it, and how long the longest call took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Calls.
    pub calls: u64,
    /// Times that the thread gave its core away to wait for something.
    pub sleeps: u64,
    /// Longest call, ns.
    pub longest_ns: u64,
}

/// What a thread did during a trace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traced {
    /// Counts by call.
    pub calls: BTreeMap<Call, Count>,
    /// Sleeps outside of any call: page faults.
    pub faults: u64,
    /// Events that did not fit into the buffer.
    pub lost: u64,
}

impl Traced {
    /// What the thread did that a loop must not do, in words: calls that are not in [`LOOP_CALLS`], sleeps
    /// outside [`SLEEPS_IN`], and also lost events. Empty if there is nothing of that kind.
    #[must_use]
    pub fn waits(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.lost > 0 {
            found.push(format!("{} events of the trace were lost", self.lost));
        }
        if self.faults > 0 {
            found.push(format!("it slept {} times outside of any call", self.faults));
        }
        for (call, count) in &self.calls {
            if !LOOP_CALLS.iter().any(|(_, number, sub)| *call == Call { number: *number, sub: *sub }) {
                found.push(format!("{call} is none of a loop's: {count:?}"));
            }
            if *call != SLEEPS_IN && count.sleeps > 0 {
                found.push(format!("it slept in {call}: {count:?}"));
            }
        }
        found
    }
}

/// A running trace. Dropping it removes it.
#[derive(Debug)]
pub struct Trace {
    instance: PathBuf,
    /// Where we mounted tracefs, if we did.
    mounted: Option<PathBuf>,
}

impl Trace {
    /// As [`Self::of_thread`], if this kernel can trace. If it cannot, returns `None` and prints that the
    /// check is left out.
    ///
    /// # Panics
    /// The kernel can trace, and yet starting the trace failed: without it, the test would not check what it
    /// is for.
    #[track_caller]
    pub fn where_kernel_can(pid: u32, name: &str) -> Option<Self> {
        match root(&format!("fide-{}-looks", std::process::id())) {
            Ok((_, mounted)) => mounted.iter().for_each(|path| unmount(path)),
            Err(why) => {
                crate::say_not_tested(&format!("whether {name} waits: {why}"));
                return None;
            }
        }
        Some(Self::of_thread(pid, name).unwrap_or_else(|why| panic!("{name} of process {pid} is not traced: {why}")))
    }

    /// Traces the thread `name` of a process from now on.
    ///
    /// # Errors
    /// [`Error::Spec`] if there is no such thread, or the kernel has no such events.
    pub fn of_thread(pid: u32, name: &str) -> Result<Self> {
        let tid = thread(pid, name)?;
        let owner = Owner::new()?;
        let label = owner.prefix();
        // A directory of this process' name would be removed with all that is in it.
        let (root, mounted) = root(&format!("tracefs-{label}"))?;
        let trace = Trace { instance: root.join("instances").join(label), mounted };
        let made = fs::create_dir(&trace.instance);
        made.map_err(|e| Error::io(format!("making {}", trace.instance.display()), e))?;
        trace.write("buffer_size_kb", BUFFER_KIB)?;
        trace.write("trace_clock", "mono")?;
        for event in ["raw_syscalls/sys_enter", "raw_syscalls/sys_exit"] {
            trace.write(&format!("events/{event}/filter"), &format!("common_pid == {tid}"))?;
            trace.write(&format!("events/{event}/enable"), "1")?;
        }
        trace.write("events/sched/sched_switch/filter", &format!("prev_pid == {tid}"))?;
        trace.write("events/sched/sched_switch/enable", "1")?;
        Ok(trace)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.instance.join(file);
        fs::write(&path, text).map_err(|e| Error::io(format!("writing {text:?} to {}", path.display()), e))
    }

    /// Ends the trace. Returns what the thread did.
    ///
    /// # Errors
    /// The kernel's.
    pub fn finish(self) -> Result<Traced> {
        self.write("tracing_on", "0")?;
        let text = fs::read_to_string(self.instance.join("trace")).map_err(|e| Error::io("reading a trace", e))?;
        let mut traced = read(&text);
        for core in fs::read_dir(self.instance.join("per_cpu")).map_err(|e| Error::io("reading a trace", e))?.flatten()
        {
            let stats = fs::read_to_string(core.path().join("stats")).unwrap_or_default();
            let lost = stats.lines().filter_map(|line| {
                let (key, value) = line.split_once(": ")?;
                ["overrun", "dropped events"].contains(&key).then(|| value.trim().parse::<u64>().ok())?
            });
            traced.lost += lost.sum::<u64>();
        }
        Ok(traced)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.instance);
        if let Some(mounted) = &self.mounted {
            unmount(mounted);
        }
    }
}

fn unmount(path: &Path) {
    let _ = Command::new("umount").arg(path).status();
    let _ = fs::remove_dir(path);
}

fn thread(pid: u32, name: &str) -> Result<u32> {
    let missing = || Error::Spec(format!("process {pid} has no thread {name}"));
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| missing())?;
    let mut named = tasks
        .flatten()
        .filter(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim_end() == name));
    named.find_map(|task| task.file_name().to_str()?.parse().ok()).ok_or_else(missing)
}

/// Where tracefs is. If it is not mounted, mounts it; the second value is then the mount point to remove.
fn root(label: &str) -> Result<(PathBuf, Option<PathBuf>)> {
    let usable = |root: &Path| root.join("events/raw_syscalls/sys_enter").exists() && root.join("instances").exists();
    if usable(Path::new(MOUNTED)) {
        return Ok((MOUNTED.into(), None));
    }
    let own = std::env::temp_dir().join(label);
    fs::create_dir(&own).map_err(|e| Error::io(format!("making {}", own.display()), e))?;
    let mounted = Command::new("mount").args(["-t", "tracefs", "none"]).arg(&own).status();
    if mounted.is_ok_and(|status| status.success()) && usable(&own) {
        return Ok((own.clone(), Some(own)));
    }
    unmount(&own);
    Err(Error::Spec("this kernel does not trace system calls (tracefs, raw_syscalls)".into()))
}

/// Parses the text of a trace.
fn read(text: &str) -> Traced {
    let mut traced = Traced::default();
    // The call in progress, and when it began.
    let mut inside: Option<(Call, u64)> = None;
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with('#')).collect();
    // When a loop has ended, it frees its resources; nobody waits for those calls, so they do not count.
    let ended = lines.iter().any(|line| line.contains("sys_enter: NR 60 ("));
    let turned = format!("sys_exit: NR {} = ", SLEEPS_IN.number);
    let last = lines.iter().rposition(|line| line.contains(&turned)).filter(|_| ended).unwrap_or(lines.len());
    for line in &lines[..last] {
        let Some((ns, event, rest)) = event(line) else { continue };
        match event {
            "sys_enter" => {
                let Some(call) = call(rest) else { continue };
                traced.calls.entry(call).or_default().calls += 1;
                inside = Some((call, ns));
            }
            "sys_exit" => {
                if let Some((call, since)) = inside.take() {
                    let count = traced.calls.entry(call).or_default();
                    count.longest_ns = count.longest_ns.max(ns.saturating_sub(since));
                }
            }
            // A thread that is only preempted is still runnable, so it did not sleep.
            "sched_switch" if !rest.contains("prev_state=R") => match inside {
                Some((call, _)) => traced.calls.entry(call).or_default().sleeps += 1,
                None => traced.faults += 1,
            },
            _ => {}
        }
    }
    traced
}

/// Time in ns, name and fields: `fide-loop-71 [001] d..2. 12.345678: sys_enter: NR 44 (6, 7f, 52, 0, 0, 0)`.
fn event(line: &str) -> Option<(u64, &str, &str)> {
    let (before, rest) = line.split_once("] ")?.1.split_once(": ")?;
    let (seconds, fraction) = before.split_whitespace().last()?.split_once('.')?;
    let ns = seconds.parse::<u64>().ok()? * 1_000_000_000 + format!("{fraction:0<9}").get(..9)?.parse::<u64>().ok()?;
    let (event, rest) = rest.split_once(": ")?;
    Some((ns, event.trim(), rest))
}

/// `NR 321 (a, 7ff, 50, ...)`, the arguments in hexadecimal.
fn call(rest: &str) -> Option<Call> {
    let (number, arguments) = rest.strip_prefix("NR ")?.split_once(" (")?;
    let number = number.trim().parse().ok()?;
    let sub = match number {
        libc::SYS_bpf => Some(0),
        libc::SYS_epoll_ctl => Some(1),
        _ => None,
    };
    let sub = sub.and_then(|at| u64::from_str_radix(arguments.split(", ").nth(at)?, 16).ok());
    Some(Call { number, sub })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_belong_to_the_call_they_happen_in() {
        let text = "# tracer: nop\n#\n\
             \x20 fide-loop-71    [001] d..1.   12.345678: sys_enter: NR 441 (5, 7ffd, 10, 7ffe, 0, 0)\n\
             \x20 fide-loop-71    [001] d..2.   12.345679: sched_switch: prev_comm=fide-loop prev_pid=71 prev_prio=19 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120\n\
             \x20 fide-loop-71    [001] d..1.   12.346678: sys_exit: NR 441 = 1\n\
             \x20 fide-loop-71    [001] d..2.   12.346679: sched_switch: prev_comm=fide-loop prev_pid=71 prev_prio=19 prev_state=R+ ==> next_comm=x next_pid=9 next_prio=0\n\
             \x20 fide-loop-71    [000] d..2.   12.346680: sched_switch: prev_comm=fide-loop prev_pid=71 prev_prio=19 prev_state=D ==> next_comm=x next_pid=9 next_prio=0\n\
             \x20 fide-loop-71    [001] d..1.   12.346700: sys_enter: NR 321 (3, 7ffd, 10, 7ffe, 0, 0)\n\
             \x20 fide-loop-71    [001] d..2.   12.346701: sched_switch: prev_comm=fide-loop prev_pid=71 prev_prio=19 prev_state=D ==> next_comm=swapper/1 next_pid=0 next_prio=120\n\
             \x20 fide-loop-71    [001] d..1.   12.360700: sys_exit: NR 321 = 0\n";
        let traced = read(text);
        let epoll = Call { number: 441, sub: None };
        let delete = Call { number: libc::SYS_bpf, sub: Some(3) };
        assert_eq!(traced.calls[&epoll], Count { calls: 1, sleeps: 1, longest_ns: 1_000_000 });
        assert_eq!(traced.calls[&delete], Count { calls: 1, sleeps: 1, longest_ns: 14_000_000 });
        assert_eq!((traced.faults, traced.calls.len()), (1, 2));
        assert_eq!(
            traced.waits().len(),
            3,
            "a page fault, a call that is not the loop's, and that it slept: {:?}",
            traced.waits()
        );
    }
}
