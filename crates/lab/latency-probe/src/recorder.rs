// SPDX-License-Identifier: Apache-2.0
//! Records what else ran on the cores of a measurement. A separate thread fetches the kernel's records,
//! seldom, so that it hardly disturbs the measured cores.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use fide_bpf::{
    BpfError,
    culprits::{self, Culprit, kind, softirq_name, vector_name},
};
use fide_jitter_analysis::{CulpritKind, Host, Interference};
use fide_shm::bpf_ring::{BpfRing, BpfRingError};
use zerocopy::FromBytes;

use crate::ping::Detour;

/// Most records that are kept; further ones are only counted.
const RECORDS_MAX: usize = 4_000_000;
/// How often records are fetched from the kernel's ring, which holds 170000 of them.
const TAKE: Duration = Duration::from_millis(100);
/// Anything that ran for less time than this is not recorded: it explains no delay.
pub const LEAST_NS: u64 = 1_000;
/// The culprit of time in which nothing of this kernel ran.
const NOBODY: &str = "hypervisor or firmware";
/// The culprit of a missing timer interrupt: the same, or code that keeps interrupts off.
const LATE: &str = "no timer interrupt: hypervisor, firmware, or interrupts off";

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
pub enum RecorderError {
    #[error(transparent)]
    Bpf(#[from] BpfError),
    #[error("the ring of records: {0}")]
    Ring(BpfRingError),
    #[error("no thread: {0}")]
    Thread(std::io::Error),
}

impl From<BpfRingError> for RecorderError {
    fn from(why: BpfRingError) -> Self {
        Self::Ring(why)
    }
}

impl From<std::io::Error> for RecorderError {
    fn from(why: std::io::Error) -> Self {
        Self::Thread(why)
    }
}

/// Records until it is stopped or dropped.
pub struct Recorder {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Recorded>>,
}

/// What was recorded.
#[derive(Debug, Default)]
pub struct Recorded {
    pub culprits: Vec<Culprit>,
    /// Number of records for which there was no room.
    pub lost: u64,
    /// Events for which this kernel has no trace points.
    pub unseen: Vec<&'static str>,
}

impl Recorder {
    /// Starts to record on these cores; `own_threads` are the bench's own.
    ///
    /// # Errors
    /// [`RecorderError`], if the kernel lacks the trace points or the process lacks the permissions.
    pub fn start(cpus: Vec<usize>, own_threads: Vec<u32>) -> Result<Self, RecorderError> {
        let kernel = culprits::Recorder::attach(&culprits::Settings { cpus, least_ns: LEAST_NS, own_threads })?;
        let mut ring = BpfRing::map(kernel.records_fd(), culprits::RING_BYTES)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = std::thread::Builder::new().name("fide-recorder".to_owned()).spawn(move || {
            let mut recorded = Recorded { unseen: kernel.unseen().to_vec(), ..Recorded::default() };
            let mut beyond = 0;
            loop {
                let last = stopping.load(Ordering::Relaxed);
                let taken = ring.drain(usize::MAX, |bytes| match Culprit::read_from_bytes(bytes) {
                    Ok(culprit) if recorded.culprits.len() < RECORDS_MAX => recorded.culprits.push(culprit),
                    _ => beyond += 1,
                });
                if last || taken.is_err() {
                    recorded.lost = kernel.counts().1 + beyond;
                    return recorded;
                }
                std::thread::park_timeout(TAKE);
            }
        })?;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Stops recording.
    #[must_use]
    pub fn stop(mut self) -> Recorded {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Recorded> {
        let thread = self.thread.take()?;
        self.stop.store(true, Ordering::Relaxed);
        thread.thread().unpark();
        thread.join().ok()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.end();
    }
}

/// Names of culprits, each once.
#[derive(Debug, Default)]
pub struct Names {
    ids: HashMap<String, u32>,
    list: Vec<String>,
}

impl Names {
    fn id(&mut self, name: String) -> u32 {
        let next = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        *self.ids.entry(name).or_insert_with_key(|name| {
            self.list.push(name.clone());
            next
        })
    }

    /// By id.
    #[must_use]
    pub fn list(&self) -> &[String] {
        &self.list
    }
}

/// The records in the form of the log, ordered by their begin.
#[must_use]
pub fn events(culprits: &[Culprit], host: Host, names: &mut Names) -> Vec<Interference> {
    let mut events: Vec<Interference> = culprits
        .iter()
        .map(|culprit| {
            let text = String::from_utf8_lossy(culprit.name.split(|byte| *byte == 0).next().unwrap_or_default());
            let (kind, name) = match culprit.kind {
                kind::INTERRUPT => (CulpritKind::Interrupt, format!("irq {} {text}", culprit.id)),
                kind::SOFTIRQ => (CulpritKind::Softirq, softirq_name(culprit.id).to_owned()),
                kind::VECTOR => (CulpritKind::Interrupt, vector_name(culprit.id).to_owned()),
                kind::LATE => (CulpritKind::Steal, LATE.to_owned()),
                _ => (CulpritKind::Thread, text.into_owned()),
            };
            Interference {
                kind,
                host,
                cpu: culprit.cpu,
                name: names.id(name),
                start_ns: culprit.start_ns.cast_signed(),
                end_ns: culprit.end_ns.cast_signed(),
            }
        })
        .collect();
    events.sort_unstable_by_key(|event| (event.start_ns, event.end_ns));
    events
}

/// Time that the measuring thread on `cpu` missed and in which nothing of this kernel ran: the hypervisor had
/// the core, or the firmware. `events` are ordered by their begin.
#[must_use]
pub fn stolen(
    detours: &[Detour],
    events: &[Interference],
    host: Host,
    cpu: u32,
    names: &mut Names,
) -> Vec<Interference> {
    let mut stolen = Vec::new();
    let here: Vec<&Interference> = events.iter().filter(|event| event.cpu == cpu && event.host == host).collect();
    // Events may nest, and a long one may end after later ones: look back by the longest.
    let longest_ns = here.iter().map(|event| event.end_ns - event.start_ns).max().unwrap_or(0);
    for detour in detours {
        let (start_ns, end_ns) = (detour.start_ns.cast_signed(), detour.end_ns.cast_signed());
        let first = here.partition_point(|event| event.start_ns < start_ns - longest_ns);
        let mut clear_from = start_ns;
        let mut hole = (start_ns, start_ns);
        for event in here[first..].iter().take_while(|event| event.start_ns < end_ns) {
            if event.start_ns - clear_from > hole.1 - hole.0 {
                hole = (clear_from, event.start_ns);
            }
            clear_from = clear_from.max(event.end_ns);
        }
        if end_ns - clear_from > hole.1 - hole.0 {
            hole = (clear_from, end_ns);
        }
        // It must be more than half of the detour, in one piece: smaller holes are the time between one event
        // and the next.
        if 2 * (hole.1 - hole.0) > end_ns - start_ns {
            let name = names.id(NOBODY.to_owned());
            stolen.push(Interference { kind: CulpritKind::Steal, host, cpu, name, start_ns: hole.0, end_ns: hole.1 });
        }
    }
    stolen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn culprit(kind: u32, id: u32, name: &[u8], start_ns: u64, end_ns: u64) -> Culprit {
        let mut text = [0; 16];
        text[..name.len()].copy_from_slice(name);
        Culprit { start_ns, end_ns, cpu: 1, kind, id, reserved: 0, name: text }
    }

    #[test]
    fn culprits_have_names_and_an_order() {
        let mut names = Names::default();
        let all = [
            culprit(kind::THREAD, 77, b"kworker/1:0", 500, 900),
            culprit(kind::INTERRUPT, 24, b"virtio0", 100, 200),
            culprit(kind::SOFTIRQ, 3, b"", 200, 300),
            culprit(kind::VECTOR, 1, b"", 300, 400),
            culprit(kind::THREAD, 78, b"kworker/1:0", 900, 950),
            culprit(kind::LATE, 0, b"", 950, 990),
        ];
        let events = events(&all, Host::B, &mut names);
        let named: Vec<(&str, &str)> =
            events.iter().map(|e| (e.kind.name(), names.list()[e.name as usize].as_str())).collect();
        assert_eq!(
            named,
            [
                ("interrupt", "irq 24 virtio0"),
                ("softirq", "net_rx"),
                ("interrupt", "local timer"),
                ("thread", "kworker/1:0"),
                ("thread", "kworker/1:0"),
                ("steal", LATE)
            ]
        );
        assert_eq!(names.list().len(), 5);
    }

    #[test]
    fn unexplained_time_was_stolen() {
        let mut names = Names::default();
        let events = events(
            &[culprit(kind::THREAD, 1, b"a", 1_000, 9_000), culprit(kind::VECTOR, 1, b"", 20_000, 21_000)],
            Host::A,
            &mut names,
        );
        let detours = [
            Detour { start_ns: 900, end_ns: 9_100 },
            Detour { start_ns: 20_000, end_ns: 60_000 },
            Detour { start_ns: 70_000, end_ns: 90_000 },
        ];
        let stolen = stolen(&detours, &events, Host::A, 1, &mut names);
        let spans: Vec<(i64, i64)> = stolen.iter().map(|e| (e.start_ns, e.end_ns)).collect();
        assert_eq!(spans, [(21_000, 60_000), (70_000, 90_000)]);
        assert!(stolen.iter().all(|e| e.kind == CulpritKind::Steal && names.list()[e.name as usize] == NOBODY));
        assert!(
            super::stolen(&detours[..1], &events, Host::A, 0, &mut names).len() == 1,
            "another core's event is no excuse"
        );
    }
}
