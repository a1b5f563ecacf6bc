// SPDX-License-Identifier: Apache-2.0
//! Processes that a program has started and that have left its control group: `systemd-run --scope`, `sudo`
//! and `su` move them. Each is stopped, continued and killed by signals.
//!
//! This process is the reaper of everything that its program starts ([`adopt_orphans`]): an orphan becomes a
//! child of this process, so that all of them are found from here. Two kinds of children do not belong to the
//! program: children that this process had before, and the operator's commands with their leftovers, which
//! are in this process' own control group. (A process of the program that is moved into that group and is
//! orphaned before it was seen outside is mistaken for such a leftover, and is missed.)

use std::{
    collections::HashSet,
    fs, io,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError, Weak},
    time::{Duration, Instant},
};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, getpid, pidfd_open, pidfd_send_signal, set_child_subreaper, waitpid,
};

use super::{group::Group, stopper::is_out_of_reach};

/// Processes that one search visits.
const SEARCH_MAX: usize = 16_384;
/// Processes outside of the group that are known at a time.
pub(super) const OUTSIDE_MAX: usize = 4096;
/// How many of them are named.
const NAMED_MAX: usize = 16;
/// Searches of one stop or kill; each finds processes that were started since the last one.
const PASSES_MAX: usize = 8;
/// Time between two passes of a kill.
const PASS: Duration = Duration::from_millis(2);
/// While the program is stopped, searches take at most this part of the time.
const SEARCH_PART: u32 = 20;
/// Flag in /proc/PID/stat: the process runs no instruction of its program any more.
const PF_EXITING: u64 = 4;

/// Makes orphans of the program children of this process. Call before the program begins.
pub(super) fn adopt_orphans() -> io::Result<()> {
    // Any number means yes.
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// A process or thread. Ids are reused, so its start time is part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id {
    pub(super) pid: Pid,
    pub(super) start: u64,
}

/// The relevant fields of /proc/PID/stat.
struct Stat {
    name: String,
    state: char,
    parent: Option<Pid>,
    is_ending: bool,
    start: u64,
}

/// The fields of a process, or of a thread as `PID/task/TID`.
fn stat(of: &str) -> Option<Stat> {
    let text = fs::read_to_string(format!("/proc/{of}/stat")).ok()?;
    let (open, close) = (text.find('(')?, text.rfind(')')?);
    let fields: Vec<&str> = text[close + 1..].split_whitespace().collect();
    Some(Stat {
        name: text.get(open + 1..close)?.to_owned(),
        state: fields.first()?.chars().next()?,
        parent: Pid::from_raw(fields.get(1)?.parse().ok()?),
        is_ending: fields.get(6)?.parse::<u64>().ok()? & PF_EXITING != 0,
        start: fields.get(19)?.parse().ok()?,
    })
}

/// The threads of a process that have not ended, as `PID/task/TID`. The first thread may have ended while
/// others run.
pub(super) fn live_threads(pid: Pid) -> impl Iterator<Item = String> {
    threads(pid).filter(|thread| stat(thread).is_some_and(|stat| !stat.is_ending))
}

fn threads(pid: Pid) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(move |entry| Some(format!("{pid}/task/{}", entry.file_name().to_str()?)))
}

fn children(pid: Pid) -> Vec<Pid> {
    let lists = threads(pid).filter_map(|thread| fs::read_to_string(format!("/proc/{thread}/children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect::<Vec<_>>())
        .collect()
}

impl Id {
    pub(super) fn of(pid: Pid) -> Option<Self> {
        Some(Self { pid, start: stat(&pid.to_string())?.start })
    }

    /// Sends it a signal. False if it is gone.
    pub(super) fn signal(self, signal: Signal) -> io::Result<bool> {
        let pidfd = match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // From here on the id means this process.
        if Self::of(self.pid) != Some(self) {
            return Ok(false);
        }
        match pidfd_send_signal(&pidfd, signal) {
            Ok(()) => Ok(true),
            Err(rustix::io::Errno::SRCH) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn is_live(self) -> bool {
        Self::of(self.pid) == Some(self) && live_threads(self.pid).next().is_some()
    }

    /// Whether a signal has stopped it. Its threads are stopped together.
    fn is_stopped(self) -> bool {
        live_threads(self.pid)
            .next()
            .and_then(|thread| stat(&thread))
            .is_some_and(|stat| matches!(stat.state, 'T' | 't'))
    }
}

/// These processes and all that they have started, at most [`SEARCH_MAX`]; and whether those are all.
fn descendants(roots: Vec<Pid>, spared: impl Fn(Pid) -> bool) -> (Vec<Pid>, bool) {
    let (mut found, mut known, mut todo) = (Vec::new(), HashSet::new(), roots);
    while let Some(pid) = todo.pop() {
        if found.len() >= SEARCH_MAX {
            return (found, false);
        }
        if !spared(pid) && known.insert(pid) {
            found.push(pid);
            todo.extend(children(pid));
        }
    }
    (found, true)
}

/// Kills these processes and all that they have started, in several passes, to reach processes that fork
/// meanwhile.
pub(super) fn kill_all(roots: &[Id]) {
    let mut ids = roots.to_vec();
    for _ in 0..PASSES_MAX {
        ids.retain(|id| id.is_live());
        if ids.is_empty() {
            return;
        }
        // Searched before they are dead: their orphans would get another parent.
        let (all, _) = descendants(ids.iter().map(|id| id.pid).collect(), |_| false);
        let more: Vec<Id> = all.into_iter().filter_map(Id::of).filter(|id| !ids.contains(id)).collect();
        ids.extend(more);
        for id in &ids {
            let _ = id.signal(Signal::KILL);
        }
        std::thread::sleep(PASS);
    }
}

struct Seen {
    id: Id,
    /// Stopped by us, so we have to continue it.
    stopped: bool,
    refused: bool,
}

#[derive(Default)]
struct Known {
    /// Outside of the group, each after its parent.
    seen: Vec<Seen>,
    /// In the group, and stopped by a signal as well.
    held: Vec<Id>,
    /// Children of this process that do not belong to the program.
    spared: Vec<Id>,
    news: Vec<String>,
    named: usize,
    is_incomplete: bool,
    said_live: bool,
    /// When to search again while the program is stopped.
    next: Option<Instant>,
}

/// Finds and signals processes that have left the program's control group.
pub(super) struct Outside {
    program: Pid,
    known: Mutex<Known>,
    /// The warden, which kills them if this process is killed.
    warden: Weak<OwnedFd>,
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Outside {
    /// Before the program begins: all other children of this process do not belong to the program.
    pub(super) fn of(program: Pid, warden: Weak<OwnedFd>) -> Self {
        let others = children(getpid()).into_iter().filter(|pid| *pid != program);
        let known = Known { spared: others.filter_map(Id::of).collect(), ..Known::default() };
        Self { program, known: Mutex::new(known), warden }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Spares a child of this process, and all that it starts: they do not belong to the program.
    pub(super) fn spare(&self, pid: Pid) {
        self.known().spared.extend(Id::of(pid));
    }

    /// Forgets processes that have died, and processes that are back in the group. Returns the remaining ones
    /// outside, and the spared ones. Holds no lock while it reads.
    fn forget_dead(&self, group: &Group) -> (Vec<Id>, Vec<Id>) {
        let (seen, spared) = {
            let known = self.known();
            (known.seen.iter().map(|seen| seen.id).collect::<Vec<_>>(), known.spared.clone())
        };
        let (live, dead): (HashSet<Id>, HashSet<Id>) = seen.into_iter().partition(|id| id.is_live());
        let back: HashSet<Id> = live.into_iter().filter(|id| group.holds(id.pid)).collect();
        let gone: HashSet<Id> = spared.into_iter().filter(|id| Id::of(id.pid) != Some(*id)).collect();
        let mut known = self.known();
        // Processes that were stopped meanwhile have to be continued.
        known.seen.retain(|seen| !dead.contains(&seen.id) && (seen.stopped || !back.contains(&seen.id)));
        known.spared.retain(|id| !gone.contains(id));
        (known.seen.iter().map(|seen| seen.id).collect(), known.spared.clone())
    }

    /// Searches for processes that have left the group; returns how many were unknown. Holds no lock while it
    /// reads.
    fn search(&self, group: &Group) -> usize {
        let (seen, spared) = self.forget_dead(group);
        let is_spared = |pid: Pid| spared.iter().any(|id| id.pid == pid);
        let mut roots = vec![self.program];
        roots.extend(seen.iter().map(|id| id.pid));
        // Orphans. For orphans in our own group it is unknown whether they belong to the program.
        roots.extend(children(getpid()).into_iter().filter(|pid| !is_spared(*pid) && !group.is_beside(*pid)));
        let (all, is_complete) = descendants(roots, is_spared);
        let outside = all.into_iter().filter(|pid| *pid != self.program && !group.holds(*pid));
        let found: Vec<(Id, Stat)> = outside
            .filter_map(|pid| stat(&pid.to_string()).map(|stat| (Id { pid, start: stat.start }, stat)))
            .filter(|(id, _)| !seen.contains(id) && id.is_live())
            .collect();
        let mut known = self.known();
        if !is_complete && !std::mem::replace(&mut known.is_incomplete, true) {
            known.news.push(format!(
                "the program has started more than {SEARCH_MAX} processes that run: whether all are in its control group is not known"
            ));
        }
        let mut count = 0;
        for (id, stat) in found {
            // Another thread may have found it meanwhile.
            if known.seen.len() >= OUTSIDE_MAX || known.seen.iter().any(|seen| seen.id == id) {
                continue;
            }
            count += 1;
            let is_inherited = known.seen.iter().any(|seen| Some(seen.id.pid) == stat.parent);
            known.seen.push(Seen { id, stopped: false, refused: false });
            // Its children there are no news.
            if !is_inherited {
                known.name(&format!(
                    "process {} ({}) of the program has left its control group (as systemd-run, sudo and su do): it is stopped and \
                     killed by signals, with what it starts",
                    id.pid,
                    stat.name.escape_debug()
                ));
            }
            self.tell_warden(id);
        }
        count
    }

    /// Notifies the warden; lost if the warden does not read, because nothing waits for it.
    fn tell_warden(&self, id: Id) {
        if let Some(warden) = self.warden.upgrade() {
            let _ = rustix::io::write(&*warden, format!("{} {}\n", id.pid, id.start).as_bytes());
        }
    }

    /// Stops known processes outside.
    pub(super) fn stop_known(&self) {
        self.known().stop();
    }

    /// Searches for processes outside, and stops them and what they start meanwhile.
    pub(super) fn stop(&self, group: &Group) {
        let begun = Instant::now();
        for pass in 0..PASSES_MAX {
            let found = self.search(group);
            self.known().stop();
            if found == 0 && pass > 0 {
                break;
            }
        }
        let now = Instant::now();
        self.known().next = Some(now + (now - begun) * SEARCH_PART);
    }

    /// The same while the program is stopped, if it is time.
    pub(super) fn stop_again(&self, group: &Group) {
        let next = self.known().next;
        if next.is_none_or(|next| Instant::now() >= next) {
            self.stop(group);
        }
    }

    /// Stops all processes in the group by signals as well.
    pub(super) fn hold(&self, group: &Group) {
        let mut known = self.known();
        for id in group.pids().into_iter().filter(|pid| *pid != self.program).filter_map(Id::of) {
            // If a process refuses, the group still stops it.
            if !id.is_stopped() && id.signal(Signal::STOP).is_ok_and(|there| there) {
                known.held.push(id);
            }
        }
    }

    /// Continues the processes that were stopped here, children before parents: otherwise a parent might see
    /// its child stopped.
    pub(super) fn go_on(&self) {
        let mut known = self.known();
        for id in std::mem::take(&mut known.held).into_iter().rev() {
            let _ = id.signal(Signal::CONT);
        }
        for seen in known.seen.iter_mut().rev() {
            if std::mem::replace(&mut seen.stopped, false) {
                let _ = seen.id.signal(Signal::CONT);
            }
        }
    }

    /// Searches while the program runs, and reaps orphans that have died. Only for the thread that starts
    /// commands.
    pub(super) fn look(&self, group: &Group) {
        self.search(group);
        let spared = self.known().spared.clone();
        for pid in children(getpid()) {
            let is_ours = pid == self.program || spared.iter().any(|id| id.pid == pid);
            if !is_ours && stat(&pid.to_string()).is_some_and(|stat| stat.state == 'Z') {
                let _ = waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
    }

    /// Kills processes outside and what they start meanwhile. Reports once if some of them have not died when
    /// this gives up.
    pub(super) fn kill(&self, group: &Group) {
        for _ in 0..PASSES_MAX {
            if !self.kill_pass(group) {
                return;
            }
            std::thread::sleep(PASS);
        }
        self.search(group);
        self.known().say_live();
    }

    /// Kills processes that have not died since [`Self::kill`], if it is time.
    pub(super) fn kill_again(&self, group: &Group) {
        let (begun, next) = (Instant::now(), self.known().next);
        if next.is_none_or(|next| begun >= next) {
            self.kill_pass(group);
            let now = Instant::now();
            self.known().next = Some(now + (now - begun) * SEARCH_PART);
        }
    }

    /// Whether there was any that can be killed.
    fn kill_pass(&self, group: &Group) -> bool {
        self.search(group);
        let mut known = self.known();
        let is_any = known.seen.iter().any(|seen| !seen.refused);
        known.kill();
        is_any
    }

    /// Known processes outside.
    pub(super) fn pids(&self) -> Vec<Pid> {
        self.known().seen.iter().map(|seen| seen.id.pid).collect()
    }

    /// Reports since the last call.
    pub(super) fn news(&self) -> Vec<String> {
        std::mem::take(&mut self.known().news)
    }
}

impl Known {
    /// Reports something about one process, unless there were too many reports.
    fn name(&mut self, what: &str) {
        self.named += 1;
        match self.named {
            ..=NAMED_MAX => self.news.push(what.to_owned()),
            _ if self.named == NAMED_MAX + 1 => {
                self.news.push("more processes have left it, and are not named".to_owned())
            }
            _ => {}
        }
    }

    fn stop(&mut self) {
        self.each(|seen| {
            if !seen.id.is_stopped() && seen.id.signal(Signal::STOP)? {
                seen.stopped = true;
            }
            Ok(())
        });
    }

    fn kill(&mut self) {
        self.each(|seen| seen.id.signal(Signal::KILL).map(drop));
    }

    /// Reports once that processes have not died of SIGKILL. Processes that refuse it were reported before.
    fn say_live(&mut self) {
        let mut live = self.seen.iter().filter(|seen| !seen.refused).map(|seen| seen.id.pid);
        let Some(pid) = live.next() else { return };
        let more = match live.count() {
            0 => String::new(),
            count => format!(" (and {count} more)"),
        };
        if !std::mem::replace(&mut self.said_live, true) {
            self.news.push(format!(
                "process {pid}{more} of the program, outside of its control group, has not died of SIGKILL yet: it may still act. \
                 `ps -o pid,stat,wchan -p {pid}` shows what it waits for"
            ));
        }
    }

    fn each(&mut self, act: impl Fn(&mut Seen) -> io::Result<()>) {
        let mut seen = std::mem::take(&mut self.seen);
        for one in &mut seen {
            let Err(error) = act(one) else { continue };
            if !std::mem::replace(&mut one.refused, true) {
                let why =
                    if is_out_of_reach(&error) { "it runs as another user".to_owned() } else { error.to_string() };
                self.name(&format!("process {} refuses signals ({why}): no fence stops it", one.id.pid));
            }
        }
        self.seen = seen;
    }
}
