// SPDX-License-Identifier: Apache-2.0
//! What this client has registered, and which events were delivered already: pure bookkeeping, no memory or
//! sockets.
//!
//! A record is about an exact (host, slot, incarnation). A record with a watch id is for that monitor. A
//! record without one comes from the kernel's receive program, and is for every monitor that has seen that
//! incarnation up.

use crate::event::{Event, Evidence, MonitorId, ProcessId, Verdict};
use crate::granted::Wanted;
use fide_agent_api::event::{Event as AgentEvent, EventRecord, FLAG_DIRECT};
use fide_agent_api::protocol::{JoinOk, MonitorOk, PeerState};
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fide_types::{HOST_SLOT, HostId, Reason};

/// Most monitors of one client.
pub(crate) const MONITORS_MAX: usize = 4096;
/// Most processes of one client: the slots of a host.
pub(crate) const PROCESSES_MAX: usize = fide_types::MAX_PROCESSES;
/// Incarnations that each monitor remembers; late records of older ones are ignored.
const SUBJECTS_MAX: usize = 4;
/// A process number begins with its host's incarnation, shifted by this much.
const PROCESS_SHIFT: u32 = 12;

/// One incarnation of a monitor's target.
#[derive(Debug, Clone, Copy)]
struct Subject {
    host: HostId,
    slot: u8,
    incarnation: u32,
    up_delivered: bool,
    over: bool,
    stalled: bool,
    seen: Window,
}

/// Which of the last 64 piggyback numbers were delivered.
#[derive(Debug, Clone, Copy, Default)]
struct Window {
    highest: u64,
    bits: u64,
}

impl Window {
    /// Notes `seq`; `false` if it was delivered already or is too old to know.
    fn accept(&mut self, seq: u64) -> bool {
        if seq > self.highest {
            let shift = seq - self.highest;
            self.bits = if shift >= 64 { 0 } else { self.bits << shift };
            self.bits |= 1;
            self.highest = seq;
            return true;
        }
        let age = self.highest - seq;
        if age >= 64 || self.bits >> age & 1 == 1 {
            return false;
        }
        self.bits |= 1 << age;
        true
    }
}

/// A monitor as asked for and as granted.
#[derive(Debug, Clone)]
pub struct Monitored {
    /// "name@host", or "@host".
    pub target: Arc<str>,
    pub(crate) wanted: Wanted,
    /// The agent's id; 0 while the agent does not know of it.
    pub watch: u32,
    pub(crate) granted: MonitorOk,
    /// The longest timeout that former agents had granted, until the present agent has it; 0 then.
    pub(crate) former_timeout_us: u32,
    /// Newest last, at most [`SUBJECTS_MAX`].
    subjects: Vec<Subject>,
}

/// A process as asked for and as granted.
#[derive(Debug, Clone)]
pub struct JoinedProcess {
    /// Its name.
    pub name: Arc<str>,
    pub(crate) pid: u32,
    pub(crate) beat_timeout_us: u32,
    /// Slot, incarnation, room for messages.
    pub granted: JoinOk,
}

/// All monitors and processes of this client.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    /// By [`MonitorId`].
    pub monitors: BTreeMap<u32, Monitored>,
    /// By [`ProcessId`].
    pub processes: BTreeMap<u32, JoinedProcess>,
    next_id: u32,
    /// Records about subjects that no monitor watches.
    pub(crate) unknown: u64,
    /// Records of events that were delivered already.
    pub(crate) duplicates: u64,
}

impl Registry {
    fn new_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id
    }

    /// A monitor that the agent has granted.
    pub fn add_monitor(&mut self, target: &str, wanted: Wanted, granted: MonitorOk) -> MonitorId {
        let id = self.new_id();
        let mut monitored = Monitored {
            target: target.into(),
            wanted,
            watch: 0,
            granted: granted.clone(),
            former_timeout_us: 0,
            subjects: Vec::new(),
        };
        monitored.register(granted);
        self.monitors.insert(id, monitored);
        MonitorId(id)
    }

    /// A process that the agent has registered.
    pub fn add_process(&mut self, name: &str, pid: u32, beat_timeout_us: u32, granted: JoinOk) -> ProcessId {
        let id = self.new_id();
        self.processes.insert(id, JoinedProcess { name: name.into(), pid, beat_timeout_us, granted });
        ProcessId(id)
    }

    /// The newest known incarnation of a monitor's target: (host, slot, incarnation, declared dead).
    pub(crate) fn newest(&self, monitor: MonitorId) -> Option<(u16, u8, u32, bool)> {
        let subject = self.monitors.get(&monitor.0)?.subjects.last()?;
        Some((subject.host, subject.slot, subject.incarnation, subject.over))
    }

    /// The newest incarnation of a monitor's target, if it was delivered as up and its end was not: (slot,
    /// incarnation).
    pub(crate) fn open(&self, monitor: u32) -> Option<(u8, u32)> {
        let subject = self.monitors.get(&monitor)?.subjects.iter().rev().find(|s| s.up_delivered || s.over)?;
        (!subject.over).then_some((subject.slot, subject.incarnation))
    }

    /// Takes one record in; the events for the user go to `deliver`.
    pub fn feed(&mut self, record: &EventRecord, event: AgentEvent<'_>, mut deliver: impl FnMut(Event)) {
        let evidence = Evidence {
            host_id: record.host,
            slot: record.slot,
            incarnation: record.incarnation,
            seq: record.seq,
            rx_ns: record.rx_ns,
            at_ns: (record.at_ns != 0).then_some(record.at_ns),
            plane: record.plane,
            direct: record.flags & FLAG_DIRECT != 0,
        };
        match event {
            AgentEvent::Up { .. } => {
                let Some((id, monitored)) = by_watch(&mut self.monitors, record.watch) else {
                    self.unknown += 1;
                    return;
                };
                if monitored.is_succeeded(record) {
                    self.duplicates += 1;
                    return;
                }
                let subject = monitored.subject_or_new(record);
                if std::mem::replace(&mut subject.up_delivered, true) {
                    self.duplicates += 1;
                    return;
                }
                deliver(Event::Up { monitor: id, target: Arc::clone(&monitored.target), evidence });
            }
            AgentEvent::Verdict(reason) => self.each_subject(record, |id, target, subject| {
                if !subject.judge(reason) {
                    return false;
                }
                deliver(Event::Verdict(Verdict { monitor: id, target: Arc::clone(target), reason, evidence }));
                true
            }),
            AgentEvent::Piggyback(bytes) => self.each_subject(record, |id, target, subject| {
                if subject.over || !subject.seen.accept(record.seq) {
                    return false;
                }
                deliver(Event::Piggyback { monitor: id, target: Arc::clone(target), evidence, bytes: bytes.into() });
                true
            }),
            AgentEvent::TimeoutChanged { timeout_us } => match by_watch(&mut self.monitors, record.watch) {
                Some((monitor, monitored)) => {
                    monitored.granted.timeout_us = timeout_us;
                    deliver(Event::TimeoutChanged { monitor, timeout: Duration::from_micros(timeout_us.into()) });
                }
                None => self.unknown += 1,
            },
            AgentEvent::MonitorReq { pbsize, watcher } => match self.process_in(record.slot) {
                Some((process, _)) => deliver(Event::MonitorRequest {
                    process,
                    watcher_host_id: record.host,
                    watcher: String::from_utf8_lossy(watcher).into(),
                    pbsize: pbsize.min(u16::MAX.into()) as u16,
                }),
                None => self.unknown += 1,
            },
            AgentEvent::PbsizeChanged { pbsize } => match self.process_in(record.slot) {
                Some((process, joined)) => {
                    joined.granted.pbsize = pbsize.min(u16::MAX.into()) as u16;
                    deliver(Event::PbsizeChanged { process, pbsize: joined.granted.pbsize });
                }
                None => self.unknown += 1,
            },
            AgentEvent::Fenced => deliver(Event::Fenced),
            AgentEvent::Unfenced => deliver(Event::Unfenced),
            AgentEvent::PathLost => deliver(Event::PathLost { host_id: record.host, plane: record.plane }),
            AgentEvent::PathRestored => deliver(Event::PathRestored { host_id: record.host, plane: record.plane }),
            // Only wakes the client, which reads the incarnation from the table.
            AgentEvent::Rejoined => {}
            AgentEvent::ObserverStalled => deliver(Event::ObserverStalled { host_id: record.host }),
            // The lanes take these before.
            AgentEvent::LaneMessage { .. } | AgentEvent::LaneChanged(_) | AgentEvent::LaneTerminated { .. } => {
                self.unknown += 1
            }
        }
    }

    fn process_in(&mut self, slot: u8) -> Option<(ProcessId, &mut JoinedProcess)> {
        let found = self.processes.iter_mut().find(|(_, joined)| joined.granted.slot == slot)?;
        Some((ProcessId(*found.0), found.1))
    }

    /// Calls `deliver` for each monitor that the record is for; `deliver` returns whether it was news.
    fn each_subject(
        &mut self,
        record: &EventRecord,
        mut deliver: impl FnMut(MonitorId, &Arc<str>, &mut Subject) -> bool,
    ) {
        let mut known = false;
        let mut count = |news: bool, duplicates: &mut u64| {
            known = true;
            if !news {
                *duplicates += 1;
            }
        };
        if let Some((id, monitored)) = by_watch(&mut self.monitors, record.watch) {
            // The agent names the watch: believed even if the `up` was lost in a full ring.
            let target = Arc::clone(&monitored.target);
            if monitored.is_succeeded(record) {
                self.duplicates += 1;
                return;
            }
            count(deliver(id, &target, monitored.subject_or_new(record)), &mut self.duplicates);
        } else if record.watch == 0 {
            for (id, monitored) in &mut self.monitors {
                if let Some(subject) = monitored.subjects.iter_mut().find(|s| s.is(record)) {
                    count(deliver(MonitorId(*id), &monitored.target, subject), &mut self.duplicates);
                }
            }
        }
        if !known {
            self.unknown += 1;
        }
    }
}

fn by_watch(monitors: &mut BTreeMap<u32, Monitored>, watch: u32) -> Option<(MonitorId, &mut Monitored)> {
    if watch == 0 {
        return None;
    }
    let found = monitors.iter_mut().find(|(_, monitored)| monitored.watch == watch)?;
    Some((MonitorId(*found.0), found.1))
}

impl Monitored {
    /// The agent, or a new one, has registered it.
    pub fn register(&mut self, granted: MonitorOk) {
        self.watch = granted.watch;
        if granted.state != PeerState::Unknown && granted.incarnation != 0 {
            let record = EventRecord {
                host: granted.host_id,
                slot: granted.slot,
                incarnation: granted.incarnation,
                ..Default::default()
            };
            // A new agent may have heard only a machine that was put back to a time before this client's last
            // event.
            if !self.is_succeeded(&record) {
                self.subject_or_new(&record);
            }
        }
        self.granted = granted;
    }

    /// Whether the record is about a process of which nothing was delivered, and that began before a known
    /// one. A new agent reports all that it hears; but the later process was delivered as up, which means
    /// that the earlier one is over.
    fn is_succeeded(&self, record: &EventRecord) -> bool {
        let life = |incarnation: u32| incarnation >> PROCESS_SHIFT;
        let later = |of: &Subject| {
            of.host == record.host
                && life(of.incarnation) == life(record.incarnation)
                && of.incarnation > record.incarnation
        };
        record.slot != HOST_SLOT && !self.subjects.iter().any(|of| of.is(record)) && self.subjects.iter().any(later)
    }

    fn subject_or_new(&mut self, record: &EventRecord) -> &mut Subject {
        let at = self.subjects.iter().position(|s| s.is(record)).unwrap_or_else(|| {
            if self.subjects.len() == SUBJECTS_MAX {
                self.subjects.remove(0);
            }
            self.subjects.push(Subject {
                host: record.host,
                slot: record.slot,
                incarnation: record.incarnation,
                up_delivered: false,
                over: false,
                stalled: false,
                seen: Window::default(),
            });
            self.subjects.len() - 1
        });
        &mut self.subjects[at]
    }
}

impl Subject {
    fn is(&self, record: &EventRecord) -> bool {
        (self.host, self.slot, self.incarnation) == (record.host, record.slot, record.incarnation)
    }

    /// Notes a verdict; `false` if it is no news.
    fn judge(&mut self, reason: Reason) -> bool {
        if self.over {
            return false;
        }
        match reason {
            Reason::Stalled => !std::mem::replace(&mut self.stalled, true),
            Reason::Recovered => std::mem::replace(&mut self.stalled, false),
            _ => {
                self.over = true;
                true
            }
        }
    }
}

#[cfg(test)]
mod tests;
