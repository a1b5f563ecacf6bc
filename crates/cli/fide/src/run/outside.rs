// SPDX-License-Identifier: Apache-2.0
//! Processes that a program has started and that have left its control group: `systemd-run --scope`, `sudo` and `su` move them. Each of
//! them is stopped, let go on and killed by signals.
//!
//! This process is the reaper of all that its program starts ([`adopt_orphans`]): whoever loses its parent becomes a child of this
//! process, so that all of them are found from here. Two kinds of children are not the program's: those that this process had before,
//! and commands of the operator with what they leave behind, which is in this process' own control group. (A process of the program that is
//! moved into that group and has lost its parent before anybody saw it outside is taken for one of these, and is missed.)

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

/// Processes that one search looks at.
const SEARCH_MAX: usize = 16_384;
/// Processes outside of the group that are known at a time.
pub(super) const OUTSIDE_MAX: usize = 4096;
/// Of these, so many are named.
const NAMED_MAX: usize = 16;
/// Searches of one stop or kill, each for what the last one's findings have started meanwhile.
const PASSES_MAX: usize = 8;
/// Between two passes of a kill.
const PASS: Duration = Duration::from_millis(2);
/// A search while the program is stopped takes at most one part in so many of the time.
const SEARCH_PART: u32 = 20;
/// In the flags of /proc/PID/stat: it executes nothing of its program any more.
const PF_EXITING: u64 = 4;

/// What becomes of orphans that the program leaves: children of this process. Before the program begins.
pub(super) fn adopt_orphans() -> io::Result<()> {
    // Any number means yes.
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// A process or thread. Numbers are given again, so the time of its beginning belongs to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id {
    pub(super) pid: Pid,
    pub(super) start: u64,
}

/// What /proc/PID/stat says.
struct Stat {
    name: String,
    state: char,
    parent: Option<Pid>,
    is_ending: bool,
    start: u64,
}

/// Of a process, or of a thread as `PID/task/TID`.
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

/// The threads of a process that have not ended, as `PID/task/TID`. The first one may have, while others go on.
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

    /// Sends it a signal. Whether it is still there.
    pub(super) fn signal(self, signal: Signal) -> io::Result<bool> {
        let pidfd = match pidfd_open(self.pid, PidfdFlags::empty()) {
            Ok(pidfd) => pidfd,
            Err(rustix::io::Errno::SRCH) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        // From here on the number means this one.
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

    /// Whether signals have stopped it. Its threads are stopped together.
    fn is_stopped(self) -> bool {
        live_threads(self.pid)
            .next()
            .and_then(|thread| stat(&thread))
            .is_some_and(|stat| matches!(stat.state, 'T' | 't'))
    }
}

/// These, and all that they have started: at most [`SEARCH_MAX`], and whether that is all.
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

/// Kills these and all that they have started, in several passes: what forks meanwhile, too.
pub(super) fn kill_all(roots: &[Id]) {
    let mut ids = roots.to_vec();
    for _ in 0..PASSES_MAX {
        ids.retain(|id| id.is_live());
        if ids.is_empty() {
            return;
        }
        // Before they are dead: their children would be another's.
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
    /// By us: it is ours to let it go on.
    stopped: bool,
    refused: bool,
}

#[derive(Default)]
struct Known {
    /// Outside of the group, each after the one that started it.
    seen: Vec<Seen>,
    /// In the group, and stopped by a signal as well.
    held: Vec<Id>,
    /// Children of this process that are not the program's.
    spared: Vec<Id>,
    news: Vec<String>,
    named: usize,
    is_incomplete: bool,
    said_live: bool,
    /// When to search again while the program is stopped.
    next: Option<Instant>,
}

/// Finds and signals what has left the program's control group.
pub(super) struct Outside {
    program: Pid,
    known: Mutex<Known>,
    /// Whoever kills them if this process is killed.
    warden: Weak<OwnedFd>,
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").field("program", &self.program).finish_non_exhaustive()
    }
}

impl Outside {
    /// Before the program begins: all other children that this process has are not the program's.
    pub(super) fn of(program: Pid, warden: Weak<OwnedFd>) -> Self {
        let others = children(getpid()).into_iter().filter(|pid| *pid != program);
        let known = Known { spared: others.filter_map(Id::of).collect(), ..Known::default() };
        Self { program, known: Mutex::new(known), warden }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A child of this process that is not the program's, nor is what it starts.
    pub(super) fn spare(&self, pid: Pid) {
        self.known().spared.extend(Id::of(pid));
    }

    /// Forgets processes that have died, and those that are back in the group. Returns what is left: of those outside, and of those spared.
    /// Nothing is locked while it reads.
    fn forget_dead(&self, group: &Group) -> (Vec<Id>, Vec<Id>) {
        let (seen, spared) = {
            let known = self.known();
            (known.seen.iter().map(|seen| seen.id).collect::<Vec<_>>(), known.spared.clone())
        };
        let (live, dead): (HashSet<Id>, HashSet<Id>) = seen.into_iter().partition(|id| id.is_live());
        let back: HashSet<Id> = live.into_iter().filter(|id| group.holds(id.pid)).collect();
        let gone: HashSet<Id> = spared.into_iter().filter(|id| Id::of(id.pid) != Some(*id)).collect();
        let mut known = self.known();
        // What was stopped meanwhile is to be let go on.
        known.seen.retain(|seen| !dead.contains(&seen.id) && (seen.stopped || !back.contains(&seen.id)));
        known.spared.retain(|id| !gone.contains(id));
        (known.seen.iter().map(|seen| seen.id).collect(), known.spared.clone())
    }

    /// Looks for processes that have left the group. How many were not known. Nobody waits for it: nothing is locked while it reads.
    fn search(&self, group: &Group) -> usize {
        let (seen, spared) = self.forget_dead(group);
        let is_spared = |pid: Pid| spared.iter().any(|id| id.pid == pid);
        let mut roots = vec![self.program];
        roots.extend(seen.iter().map(|id| id.pid));
        // What lost its parent. Of those in our own group nobody knows whether they are the program's.
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
            // What it starts there is not news.
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

    /// Lost where the warden reads nothing: it is not waited for.
    fn tell_warden(&self, id: Id) {
        if let Some(warden) = self.warden.upgrade() {
            let _ = rustix::io::write(&*warden, format!("{} {}\n", id.pid, id.start).as_bytes());
        }
    }

    /// Stops what is known to be outside.
    pub(super) fn stop_known(&self) {
        self.known().stop();
    }

    /// Looks for what is outside, and stops it with what that starts meanwhile.
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

    /// The same while the program is stopped, if it is time for that.
    pub(super) fn stop_again(&self, group: &Group) {
        let next = self.known().next;
        if next.is_none_or(|next| Instant::now() >= next) {
            self.stop(group);
        }
    }

    /// Stops all that is in the group by signals as well.
    pub(super) fn hold(&self, group: &Group) {
        let mut known = self.known();
        for id in group.pids().into_iter().filter(|pid| *pid != self.program).filter_map(Id::of) {
            // One that refuses has the group.
            if !id.is_stopped() && id.signal(Signal::STOP).is_ok_and(|there| there) {
                known.held.push(id);
            }
        }
    }

    /// Lets go on what was stopped here: the last that was started first, or its parent might see it stopped.
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

    /// Looks while the program runs, and ends what is left of orphans that have died. By the thread that starts commands alone.
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

    /// Kills what is outside, and what that starts meanwhile. Says so, once, if some of it has not died when this gives up.
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

    /// Kills what has not died since [`Self::kill`], if it is time for that.
    pub(super) fn kill_again(&self, group: &Group) {
        let (begun, next) = (Instant::now(), self.known().next);
        if next.is_none_or(|next| begun >= next) {
            self.kill_pass(group);
            let now = Instant::now();
            self.known().next = Some(now + (now - begun) * SEARCH_PART);
        }
    }

    /// Whether any was there that does not refuse to be killed.
    fn kill_pass(&self, group: &Group) -> bool {
        self.search(group);
        let mut known = self.known();
        let is_any = known.seen.iter().any(|seen| !seen.refused);
        known.kill();
        is_any
    }

    /// Those outside that are known.
    pub(super) fn pids(&self) -> Vec<Pid> {
        self.known().seen.iter().map(|seen| seen.id.pid).collect()
    }

    /// What to say since the last time.
    pub(super) fn news(&self) -> Vec<String> {
        std::mem::take(&mut self.known().news)
    }
}

impl Known {
    /// Says something of one process, unless that has been done too often.
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

    /// Says once that processes have not died of SIGKILL. Of those that refuse it, that was said.
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
