// SPDX-License-Identifier: Apache-2.0
//! A whole measurement at host A: conditions, ping, recorder, and a log with all results.

use std::{
    collections::BTreeMap,
    io::Write,
    net::Ipv4Addr,
    sync::{Arc, mpsc},
    time::{SystemTime, UNIX_EPOCH},
};

use fide_bpf::culprits::Culprit;
use fide_jitter_analysis::{Host, Interference, LogError, LogWriter, RunInfo, Samples};
use fide_sys::interface::Interface;

use crate::{
    ping::{self, Measured, Plan, PlanError, Progress},
    port::{self, Method, PortError},
    recorder::{self, Names, Recorded, Recorder},
    setting::{self, Wanted},
};

/// Name of the thread that answers.
pub const PONG: &[u8] = b"fide-pong";
/// Name of the condition that says why a run ended before its last packet.
pub const ENDED: &str = "ended";

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    pub method: Method,
    pub interface: Interface,
    pub peer: Ipv4Addr,
    pub port: u16,
    pub plan: Plan,
    pub wanted: Wanted,
    pub host_a: String,
    pub host_b: String,
    /// Set if host B is this machine too: then both share one clock, and B's core is also recorded.
    pub same_machine: Option<SameMachine>,
    /// Whether to record what ran on the cores of the measurement.
    pub record: bool,
}

impl Options {
    /// The core of the thread that answers, if host B is this machine too.
    fn core_b(&self) -> Option<usize> {
        self.same_machine.and_then(|same| same.core)
    }
}

/// Details of host B if it is this machine too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SameMachine {
    pub core: Option<usize>,
    /// The thread that answers.
    pub thread: Option<u32>,
}

/// The result of a measurement.
#[derive(Debug, Default)]
pub struct Measurement {
    pub info: RunInfo,
    pub samples: Samples,
    /// Ordered by their begin.
    pub events: Vec<Interference>,
    /// Names that events refer to.
    pub names: Vec<String>,
    pub events_lost: u64,
    pub send_failed: u64,
    pub ignored: u64,
    /// Why the run ended before the last packet, if it did.
    pub ended: Option<String>,
    restarts: Vec<(u64, u32)>,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Port(#[from] PortError),
    #[error("no thread to measure in: {0}")]
    Thread(std::io::Error),
    #[error("the measuring thread panicked")]
    Panicked,
}

impl From<std::io::Error> for SessionError {
    fn from(why: std::io::Error) -> Self {
        Self::Thread(why)
    }
}

/// Measures, in a separate thread in the caller's network namespace.
///
/// # Errors
/// [`SessionError`]; in that case nothing has been sent.
pub fn measure(options: &Options, progress: &Arc<Progress>) -> Result<Measurement, SessionError> {
    options.plan.check()?;
    let (ready, is_ready) = mpsc::sync_channel(1);
    let (go, may_go) = mpsc::sync_channel::<()>(1);
    let (own, watched) = (options.clone(), progress.clone());
    let thread = std::thread::Builder::new().name("fide-ping".to_owned()).spawn(move || {
        let setting = setting::take(&own.wanted);
        let mut port = port::open_on(own.wanted.pages, own.method, &own.interface, Some(own.peer), own.port)?;
        let id = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let _ = ready.send((id, setting.found.clone(), port.name()));
        // If no word comes, the session is over already.
        let _ = may_go.recv();
        Ok::<Measured, SessionError>(ping::run(port.as_mut(), own.plan, own.wanted.pages, &watched)?)
    })?;
    let Ok((id, mut conditions, rung)) = is_ready.recv() else {
        return match thread.join() {
            Ok(Err(error)) => Err(error),
            _ => Err(SessionError::Panicked),
        };
    };
    // If the thread could not be pinned, it may run on any core.
    let pinned = options.wanted.core.filter(|core| conditions.get("core") == Some(&core.to_string()));
    let recorder = start_recorder(options, pinned, id, &mut conditions);
    let started = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos());
    let _ = go.send(());
    let measured = thread.join().map_err(|_| SessionError::Panicked)??;
    let mut recorded = recorder.map(Recorder::stop).unwrap_or_default();
    let culprits = std::mem::take(&mut recorded.culprits);

    let mut names = Names::default();
    let events = events_of(options, pinned, culprits, &measured, &mut names);
    note_outcome(&mut conditions, &recorded, &measured);
    let core = |core: Option<usize>| core.and_then(|core| u32::try_from(core).ok());
    let (core_a, core_b) = (core(pinned), core(options.core_b()));
    let info = RunInfo {
        method: rung,
        period_ns: options.plan.period_ns,
        schedule: options.plan.schedule,
        start_ns: measured.start_ns.cast_signed(),
        packet_bytes: u32::try_from(options.plan.packet_bytes).unwrap_or(u32::MAX),
        host_a: options.host_a.clone(),
        host_b: options.host_b.clone(),
        started_unix_ns: i64::try_from(started).unwrap_or(i64::MAX),
        same_clock: options.same_machine.is_some(),
        cores: [core_a, core_b, core_b, core_a],
        isolation: conditions,
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    Ok(Measurement {
        samples: samples_of(&measured, info.period_ns),
        info,
        events,
        names: names.list().to_vec(),
        events_lost: recorded.lost + measured.detours_more,
        send_failed: measured.send_failed,
        ignored: measured.ignored,
        ended: measured.ended,
        restarts: measured.restarts,
    })
}

/// The events on the cores of the measurement, of both hosts.
fn events_of(
    options: &Options,
    pinned: Option<usize>,
    culprits: Vec<Culprit>,
    measured: &Measured,
    names: &mut Names,
) -> Vec<Interference> {
    // The id of an answering thread in another process is not known here, so its name excludes it.
    let others: Vec<_> = culprits.into_iter().filter(|culprit| !culprit.name.starts_with(PONG)).collect();
    let mut events = recorder::events(&others, Host::A, names);
    if let (Some(core), true) = (pinned, options.record) {
        let core = u32::try_from(core).unwrap_or(u32::MAX);
        let stolen = recorder::stolen(&measured.detours, &events, Host::A, core, names);
        events.extend(stolen);
        events.sort_unstable_by_key(|event| (event.start_ns, event.end_ns));
    }
    // If both hosts are this machine, what ran on B's core counts as B's.
    let core_b = options.core_b();
    for event in &mut events {
        if core_b.is_some_and(|core| core as u32 == event.cpu) && pinned != core_b {
            event.host = Host::B;
        }
    }
    events
}

/// Adds the conditions that are only known at the end.
fn note_outcome(conditions: &mut BTreeMap<String, String>, recorded: &Recorded, measured: &Measured) {
    if !recorded.unseen.is_empty() {
        conditions.insert("culprits_unseen".to_owned(), recorded.unseen.join(", "));
    }
    conditions.insert("huge_pages".to_owned(), measured.huge_pages.clone());
    conditions.insert("send_failed".to_owned(), measured.send_failed.to_string());
    conditions.insert("ignored".to_owned(), measured.ignored.to_string());
    if let Some(why) = &measured.ended {
        conditions.insert(ENDED.to_owned(), why.clone());
    }
}

/// The samples. A restart of the answering side stands before the first sample that its new incarnation answered.
fn samples_of(measured: &Measured, period_ns: u64) -> Samples {
    let mut samples = Samples::new();
    let mut restarts = measured.restarts.iter().peekable();
    for sample in &measured.samples {
        if let Some((_, incarnation)) = restarts.next_if(|(id, _)| *id <= sample.id) {
            samples.restart(*incarnation);
        }
        samples.push(sample, period_ns);
    }
    samples
}

fn start_recorder(
    options: &Options,
    pinned: Option<usize>,
    thread: u32,
    conditions: &mut BTreeMap<String, String>,
) -> Option<Recorder> {
    let same = options.same_machine.unwrap_or_default();
    let cores: Vec<usize> = pinned.into_iter().chain(same.core).collect();
    let mut note = |text: String| conditions.insert("culprits".to_owned(), text);
    if !options.record {
        note("not recorded: not asked for".to_owned());
        return None;
    }
    if cores.is_empty() {
        note("not recorded: the measuring thread has no core of its own".to_owned());
        return None;
    }
    match Recorder::start(cores, [thread].into_iter().chain(same.thread).collect()) {
        Ok(recorder) => {
            note("recorded".to_owned());
            Some(recorder)
        }
        Err(error) => {
            note(format!("not recorded: {error}"));
            None
        }
    }
}

impl Measurement {
    /// Writes the whole measurement as a log.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn write(&self, to: impl Write) -> Result<(), LogError> {
        let mut log = LogWriter::create(to, &self.info)?;
        for (id, name) in (0u32..).zip(&self.names) {
            log.name(id, name)?;
        }
        let mut restarts = self.restarts.iter().peekable();
        for row in 0..self.samples.len() {
            let Some(sample) = self.samples.get(row) else { break };
            if let Some((_, incarnation)) = restarts.next_if(|(id, _)| *id <= sample.id) {
                log.restart(*incarnation)?;
            }
            log.sample(&sample)?;
        }
        for event in &self.events {
            log.event(event)?;
        }
        log.events_lost(self.events_lost);
        log.finish().map(drop)
    }
}
