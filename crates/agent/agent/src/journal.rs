// SPDX-License-Identifier: Apache-2.0
//! The events that this agent has seen, to answer "who declared it dead, and why?".

use std::{
    collections::{HashMap, VecDeque},
    time::{SystemTime, UNIX_EPOCH},
};

use fide_detector::{Event, Evidence, HostSet, Reason, Verdict, Via};
use fide_types::HostId;
use fide_wire::HOST_SLOT;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{command::Record, config::Config, process::STATUS_UNKNOWN};

/// Kinds of entries. Each has its own room, so that many entries of one kind do not push out another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shelf {
    /// Hosts that come and go, views, exclusions.
    Hosts,
    /// Processes that ended.
    Ends,
    /// Processes that joined.
    Joins,
    /// Paths, stalls, fences, timeouts.
    Trouble,
    /// Changes that programs can cause as often as they like: stalled, recovered, watched.
    Changes,
}

/// Entries kept of each kind; see [`crowded`] for which one is forgotten.
const KEPT: [usize; 5] = [1024, 1024, 1024, 512, 512];
/// Entries on the last three shelves that are logged at once, and then per second; the journal has all of
/// them.
const LOGGED_AT_ONCE: u32 = 100;
const LOGGED_PER_SECOND: u32 = 10;
/// Entries in one answer.
const ANSWERED_MAX: usize = 100;

/// One thing that happened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// `HOST-NUMBER`: unique for this run of the agent.
    pub id: String,
    /// Its number, from 1.
    pub seq: u64,
    /// Milliseconds since 1970, for people.
    unix_ms: u64,
    record: Record,
    /// Name of the process that it is about, which may be forgotten elsewhere by the time somebody asks.
    process: Option<String>,
}

/// The last entries. An agent that takes over goes on with the journal of the one before.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Journal {
    host: String,
    /// The entries by [`Shelf`], each oldest first.
    shelves: [VecDeque<Entry>; KEPT.len()],
    next: u64,
    logged: Logged,
    names: HashMap<(u16, u8), String>,
    /// Final verdicts other than `left`, silences of hosts among them.
    pub failures: u64,
    /// Seconds from a local or remote exit to the verdict are not comparable across hosts; verdicts
    /// by timeout are, and their total is kept for the metrics.
    pub silences: u64,
}

impl Journal {
    /// An empty one, of the host called `host`.
    #[must_use]
    pub fn new(host: &str) -> Self {
        Self {
            host: host.to_owned(),
            shelves: Default::default(),
            next: 1,
            logged: Logged::default(),
            names: HashMap::new(),
            failures: 0,
            silences: 0,
        }
    }

    /// Notes a record of the loop.
    pub fn add(&mut self, record: Record) -> &Entry {
        let process = match record.event {
            Event::Up { host, slot, name, .. } if slot != HOST_SLOT => {
                self.names.insert((host, slot), name.as_str().to_owned());
                Some(name.as_str().to_owned())
            }
            Event::Verdict(verdict) => {
                if verdict.reason.is_final() && verdict.reason != Reason::Left {
                    self.failures += 1;
                }
                if verdict.reason == Reason::HostSilent && verdict.slot == HOST_SLOT {
                    self.silences += 1;
                }
                self.names.get(&(verdict.host, verdict.slot)).cloned()
            }
            _ => None,
        };
        let shelf = shelf(&record.event);
        let (entries, kept) = (&mut self.shelves[shelf as usize], KEPT[shelf as usize]);
        if entries.len() >= kept {
            entries.remove(crowded(entries));
        }
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        entries.push_back(Entry {
            id: format!("{}-{}", self.host, self.next),
            seq: self.next,
            unix_ms: u64::try_from(unix_ms).unwrap_or(u64::MAX),
            record,
            process,
        });
        self.next += 1;
        self.shelves[shelf as usize].back().expect("just pushed")
    }

    /// Whether a record is to be logged, and if so, how many were left out since the last one.
    pub fn may_log(&mut self, record: &Record) -> Option<u64> {
        match shelf(&record.event) {
            Shelf::Hosts | Shelf::Ends => Some(0),
            Shelf::Joins | Shelf::Trouble | Shelf::Changes => self.logged.may(record.now_ns),
        }
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.shelves.iter().flatten()
    }

    /// The entry with this id.
    #[must_use]
    pub fn find(&self, id: &str) -> Option<&Entry> {
        self.entries().find(|entry| entry.id == id)
    }

    /// Entries with a number above `since`, of one kind or all, oldest first; at most the last
    /// [`ANSWERED_MAX`].
    #[must_use]
    pub fn last(&self, since: u64, wanted: Option<&str>) -> Vec<&Entry> {
        let of_kind = |entry: &&Entry| wanted.is_none_or(|wanted| wanted == kind(&entry.record.event));
        let mut entries: Vec<&Entry> = self.entries().filter(|entry| entry.seq > since).filter(of_kind).collect();
        entries.sort_unstable_by_key(|entry| entry.seq);
        entries.split_off(entries.len().saturating_sub(ANSWERED_MAX))
    }

    /// First and last id, for a message.
    #[must_use]
    pub fn range(&self) -> String {
        let by_seq = |entry: &&Entry| entry.seq;
        match (self.entries().min_by_key(by_seq), self.entries().max_by_key(by_seq)) {
            (Some(first), Some(last)) => format!("{} to {}, the oldest not of every kind", first.id, last.id),
            _ => "none yet".to_owned(),
        }
    }
}

fn shelf(event: &Event) -> Shelf {
    match event {
        Event::Up { slot: HOST_SLOT, .. }
        | Event::Excluded { .. }
        | Event::PutBack { .. }
        | Event::ViewChanged { .. } => Shelf::Hosts,
        Event::Up { .. } => Shelf::Joins,
        Event::Verdict(verdict) if !verdict.reason.is_final() => Shelf::Changes,
        Event::Verdict(Verdict { slot: HOST_SLOT, .. }) => Shelf::Hosts,
        Event::Verdict(_) => Shelf::Ends,
        Event::Piggyback { .. } | Event::MonitorRequest { .. } => Shelf::Changes,
        Event::PathLost { .. }
        | Event::PathRestored { .. }
        | Event::ObserverStalled { .. }
        | Event::Fenced { .. }
        | Event::Unfenced { .. }
        | Event::TimeoutChanged { .. } => Shelf::Trouble,
    }
}

/// Which entry is forgotten: the oldest one of the subject with the most entries, within the host with the
/// most entries. So a program that comes and goes all the time displaces only its own past, and so does a
/// host that has gone mad.
fn crowded(entries: &VecDeque<Entry>) -> usize {
    let mut hosts: HashMap<u16, usize> = HashMap::new();
    let mut subjects: HashMap<(u16, &str), usize> = HashMap::new();
    fn subject(entry: &Entry) -> (u16, &str) {
        (about(&entry.record.event), entry.process.as_deref().unwrap_or(""))
    }
    for entry in entries {
        let subject = subject(entry);
        *hosts.entry(subject.0).or_default() += 1;
        *subjects.entry(subject).or_default() += 1;
    }
    // Among equals the first, which is the oldest.
    let rank = |at: &usize| {
        let subject = subject(&entries[*at]);
        (hosts[&subject.0], subjects[&subject], std::cmp::Reverse(*at))
    };
    (0..entries.len()).max_by_key(rank).unwrap_or(0)
}

/// The host that an event is about; 0 for this one.
fn about(event: &Event) -> u16 {
    match *event {
        Event::Up { host, .. }
        | Event::Piggyback { host, .. }
        | Event::PathLost { host, .. }
        | Event::PathRestored { host, .. }
        | Event::MonitorRequest { host, .. }
        | Event::TimeoutChanged { host, .. } => host,
        Event::Verdict(verdict) => verdict.host,
        Event::Excluded { .. }
        | Event::PutBack { .. }
        | Event::ViewChanged { .. }
        | Event::ObserverStalled { .. }
        | Event::Fenced { .. }
        | Event::Unfenced { .. } => 0,
    }
}

/// How much was logged lately.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Logged {
    /// When all lines so far are paid for.
    paid_ns: u64,
    left_out: u64,
}

impl Logged {
    fn may(&mut self, now: u64) -> Option<u64> {
        const LINE_NS: u64 = 1_000_000_000 / LOGGED_PER_SECOND as u64;
        let paid_ns = self.paid_ns.max(now);
        if paid_ns - now > u64::from(LOGGED_AT_ONCE - 1) * LINE_NS {
            self.left_out += 1;
            return None;
        }
        self.paid_ns = paid_ns + LINE_NS;
        Some(std::mem::take(&mut self.left_out))
    }
}

fn host_name(config: &Config, host: HostId) -> &str {
    config.members.get(usize::from(host).wrapping_sub(1)).map_or("?", |member| member.name.as_str())
}

fn hosts(config: &Config, set: HostSet) -> Vec<&str> {
    set.iter().map(|host| host_name(config, host)).collect()
}

impl Entry {
    fn subject(&self, config: &Config, host: HostId, slot: u8) -> String {
        let host = host_name(config, host);
        if slot == HOST_SLOT {
            return format!("@{host}");
        }
        self.process.as_ref().map_or_else(|| format!("slot {slot}@{host}"), |name| format!("{name}@{host}"))
    }

    /// One line for a person.
    #[must_use]
    pub fn text(&self, config: &Config) -> String {
        match self.record.event {
            Event::Up { host, slot, incarnation, .. } => {
                format!("{} is up, incarnation {incarnation}", self.subject(config, host, slot))
            }
            Event::Verdict(verdict) => {
                let subject = self.subject(config, verdict.host, verdict.slot);
                format!("{subject} {}: {}", verdict_text(verdict.reason), why(config, &verdict))
            }
            Event::Piggyback { host, slot, len, .. } => {
                format!("{len} bytes from {}", self.subject(config, host, slot))
            }
            Event::PathLost { host, plane } => format!(
                "plane {plane} from {} is silent while the other is heard: a network fault, no death",
                host_name(config, host)
            ),
            Event::PathRestored { host, plane } => {
                format!("plane {plane} from {} is heard again", host_name(config, host))
            }
            Event::ObserverStalled { gap_ns, withheld } => {
                format!("this host did not run for {} us; {withheld} suspicions of its own are withheld", gap_ns / 1000)
            }
            Event::Fenced { .. } => "this host is fenced: it cannot prove to be heard".to_owned(),
            Event::Unfenced { .. } => "this host is heard again and may act".to_owned(),
            Event::Excluded { by, incarnation } => {
                format!("{} goes on without incarnation {incarnation} of this host", host_name(config, by))
            }
            Event::PutBack { by, incarnation } => format!(
                "{} has acknowledged what incarnation {incarnation} of this host has yet to send: this machine was put back to a snapshot, \
                 or a clone of it runs",
                host_name(config, by)
            ),
            Event::ViewChanged { id, members } => {
                format!("view {}.{} is {}", id.generation, id.number, hosts(config, members).join(", "))
            }
            Event::MonitorRequest { host, slot, timeout_us, pbsize, .. } => format!(
                "{} watches {}, wishing {timeout_us} us and {pbsize} bytes",
                host_name(config, host),
                if slot == HOST_SLOT { "this host".to_owned() } else { format!("slot {slot}") }
            ),
            Event::TimeoutChanged { host, timeout_ns } => {
                format!("the timeout for {} is {} us now", host_name(config, host), timeout_ns / 1000)
            }
        }
    }

    /// Everything known about it.
    #[must_use]
    pub fn to_json(&self, config: &Config) -> Value {
        let mut value = json!({
            "id": self.id,
            "seq": self.seq,
            "unix_ms": self.unix_ms,
            "monotonic_ns": self.record.now_ns,
            "text": self.text(config),
            "kind": kind(&self.record.event),
        });
        if let Event::Verdict(verdict) = self.record.event {
            value["subject"] = json!(self.subject(config, verdict.host, verdict.slot));
            value["incarnation"] = json!(verdict.incarnation);
            value["verdict"] = verdict_json(verdict.reason);
            value["evidence"] = evidence(config, &verdict.evidence);
        }
        if let Event::Excluded { by, incarnation } | Event::PutBack { by, incarnation } = self.record.event {
            value["by"] = json!(host_name(config, by));
            value["incarnation"] = json!(incarnation);
        }
        if let Event::ObserverStalled { gap_ns, withheld } = self.record.event {
            value["gap_ns"] = json!(gap_ns);
            value["withheld"] = json!(withheld);
        }
        value
    }
}

fn kind(event: &Event) -> &'static str {
    match event {
        Event::Up { .. } => "up",
        Event::Verdict(_) => "verdict",
        Event::Piggyback { .. } => "piggyback",
        Event::PathLost { .. } => "path_lost",
        Event::PathRestored { .. } => "path_restored",
        Event::ObserverStalled { .. } => "observer_stalled",
        Event::Fenced { .. } => "fenced",
        Event::Unfenced { .. } => "unfenced",
        Event::Excluded { .. } => "excluded",
        Event::PutBack { .. } => "put_back",
        Event::ViewChanged { .. } => "view_changed",
        Event::MonitorRequest { .. } => "monitor_request",
        Event::TimeoutChanged { .. } => "timeout_changed",
    }
}

fn verdict_text(reason: Reason) -> String {
    match reason {
        Reason::Exited(STATUS_UNKNOWN) => "exited with an unknown status".to_owned(),
        Reason::Exited(code) => format!("exited with code {code}"),
        Reason::Killed(signal) => format!("was killed by signal {signal}"),
        Reason::Left => "left".to_owned(),
        Reason::HostSilent => "is silent".to_owned(),
        Reason::Stalled => "stalled".to_owned(),
        Reason::Recovered => "recovered".to_owned(),
    }
}

fn verdict_json(reason: Reason) -> Value {
    match reason {
        Reason::Exited(code) => json!({ "exited": { "code": code } }),
        Reason::Killed(signal) => json!({ "exited": { "signal": signal } }),
        Reason::Left => json!("left"),
        Reason::HostSilent => json!("host_silent"),
        Reason::Stalled => json!("stalled"),
        Reason::Recovered => json!("recovered"),
    }
}

fn why(config: &Config, verdict: &Verdict) -> String {
    let evidence = &verdict.evidence;
    let newest = evidence.last_rx_ns.into_iter().max().unwrap_or(0);
    match evidence.via {
        Via::Local => "this host's own kernel saw it".to_owned(),
        Via::Notice | Via::Roster if verdict.reason == Reason::Left => "it said so".to_owned(),
        Via::Notice => format!("{}'s kernel saw it and sent a notice", host_name(config, verdict.host)),
        Via::Roster => format!("{}'s kernel saw it; a heartbeat reported it", host_name(config, verdict.host)),
        Via::Timeout => format!(
            "no heartbeat on any plane for {} us, timeout {} us",
            evidence.decided_ns.saturating_sub(newest) / 1000,
            evidence.timeout_ns / 1000
        ),
        Via::View => format!("agreed by {}", hosts(config, evidence.votes).join(", ")),
        Via::Goodbye => "its host said goodbye".to_owned(),
        Via::Superseded => format!("its host came back as incarnation {}", evidence.superseded_by),
    }
}

fn via_name(via: Via) -> &'static str {
    match via {
        Via::Notice => "notice",
        Via::Roster => "roster",
        Via::Timeout => "timeout",
        Via::View => "view",
        Via::Goodbye => "goodbye",
        Via::Superseded => "superseded",
        Via::Local => "local",
    }
}

fn evidence(config: &Config, evidence: &Evidence) -> Value {
    let silent =
        |rx_ns: &u64| if *rx_ns == 0 { Value::Null } else { json!(evidence.decided_ns.saturating_sub(*rx_ns)) };
    json!({
        "observer": host_name(config, evidence.observer),
        "via": via_name(evidence.via),
        "decided_ns": evidence.decided_ns,
        "last_seq": evidence.last_seq,
        "silent_ns_by_plane": evidence.last_rx_ns.iter().take(config.planes.len()).map(silent).collect::<Vec<_>>(),
        "timeout_ns": evidence.timeout_ns,
        "at_ns": evidence.at_ns,
        "own_stalls": evidence.own_stalls,
        "withheld": evidence.withheld,
        "votes": hosts(config, evidence.votes),
        "superseded_by": evidence.superseded_by,
        "piggybacks_lost": evidence.piggybacks_lost,
    })
}

#[cfg(test)]
mod tests;
