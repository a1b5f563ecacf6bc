// SPDX-License-Identifier: Apache-2.0
//! The path between two hosts, and one measurement over it: shared by all commands that send pings.

use std::{
    fs::{self, File, OpenOptions},
    io,
    net::Ipv4Addr,
    path::{Path as FilePath, PathBuf},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use anyhow::anyhow;
use fide_bpf::BpfError;
use fide_jitter_analysis::Schedule;
use fide_latency_probe::{
    PACKET_BYTES, PORT,
    ping::{Plan, Progress},
    port::{Method, PortError},
    session::{self, Measurement, Options, SameMachine, SessionError},
};
use fide_sys::interface;
use indicatif::{ProgressBar, ProgressStyle};

use super::Conditions;
use crate::exit::{Failure, NOT_PERMITTED, UNHEALTHY, UNSUPPORTED, USAGE};

#[derive(clap::Args)]
pub(super) struct Path {
    /// Address of this host on the network to measure
    #[arg(long, value_name = "ADDRESS")]
    from: Ipv4Addr,
    /// Address of the host where `fide jitter pong` runs
    #[arg(long, value_name = "ADDRESS")]
    to: Ipv4Addr,
    /// How packets are sent and received: udp, udp-poll, af-packet, xdp-slot, af-xdp, af-xdp-zc, rdma-ud
    #[arg(long, default_value = "udp")]
    method: Method,
    /// Payload of a packet, in bytes
    #[arg(long, default_value_t = PACKET_BYTES)]
    bytes: usize,
    /// Send one period after the last send, as a busy loop does, instead of on an absolute schedule
    #[arg(long)]
    relative: bool,
    /// Spin between packets instead of sleeping where there is time
    #[arg(long)]
    spin: bool,
    /// Do not record what else runs on the core
    #[arg(long)]
    no_record: bool,
    /// Both ends are this machine and share its clock; CORE is the core that answers
    #[arg(long, value_name = "CORE")]
    same_machine: Option<usize>,
    /// UDP port, the same at both ends
    #[arg(long, default_value_t = PORT)]
    port: u16,
    #[command(flatten)]
    conditions: Conditions,
}

impl Path {
    /// What to measure, checked as far as possible before anything is sent.
    pub(super) fn options(&self, period_us: f64, packets: u64) -> Result<Options, Failure> {
        let period_ns = period_us * 1000.0;
        if !(period_ns.is_finite() && (0.0..=1e15).contains(&period_ns)) {
            return Err(Failure::new(USAGE, anyhow!("--period-us {period_us} is no period")));
        }
        let plan = Plan {
            packets,
            period_ns: period_ns.round() as u64,
            packet_bytes: self.bytes,
            schedule: if self.relative { Schedule::Relative } else { Schedule::Absolute },
            run: fide_latency_probe::random().map_err(|error| Failure::new(UNHEALTHY, error))?,
            spin: self.spin,
        };
        plan.check().map_err(|error| Failure::new(USAGE, error))?;
        Ok(Options {
            method: self.method,
            interface: interface::by_address(self.from)?,
            peer: self.to,
            port: self.port,
            plan,
            wanted: self.conditions.wanted(self.method.polls() || self.spin),
            host_a: self.from.to_string(),
            host_b: self.to.to_string(),
            same_machine: self.same_machine.map(|core| SameMachine { core: Some(core), thread: None }),
            record: !self.no_record,
        })
    }
}

/// Makes Ctrl-C end a measurement and keep its result.
pub(super) fn stop_on_interrupt() -> Result<Arc<Progress>, Failure> {
    let progress = Arc::new(Progress::default());
    let interrupted = progress.clone();
    ctrlc::set_handler(move || interrupted.stop.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::new(UNHEALTHY, error))?;
    Ok(progress)
}

/// Measures, and shows the progress.
pub(super) fn measure(options: &Options, progress: &Arc<Progress>) -> Result<Measurement, Failure> {
    let bar = ProgressBar::new(options.plan.packets);
    if let Ok(style) = ProgressStyle::with_template("{bar:30.cyan} {pos}/{len} sent, {msg} answered, {eta} left") {
        bar.set_style(style.progress_chars("━╸ "));
    }
    let measured = std::thread::scope(|scope| {
        let measuring = scope.spawn(|| session::measure(options, progress));
        while !measuring.is_finished() {
            // Seldom, because drawing takes a core too.
            std::thread::park_timeout(Duration::from_millis(500));
            bar.set_message(progress.answered.load(Ordering::Relaxed).to_string());
            bar.set_position(progress.sent.load(Ordering::Relaxed));
        }
        bar.finish_and_clear();
        measuring.join().unwrap_or(Err(SessionError::Panicked))
    });
    measured.map_err(|error| match error {
        SessionError::Port(error) => failure(error),
        SessionError::Plan(_) => Failure::new(USAGE, error),
        _ => Failure::new(UNHEALTHY, error),
    })
}

/// Where the log goes. The file's former content is discarded only for a finished measurement, not for a
/// failed attempt.
pub(super) struct Out {
    file: File,
    /// The path, if the file did not exist before: an attempt that fails removes it.
    fresh: Option<PathBuf>,
}

impl Out {
    pub(super) fn open(path: &FilePath) -> io::Result<Self> {
        match File::create_new(path) {
            Ok(file) => Ok(Self { file, fresh: Some(path.to_owned()) }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Ok(Self { file: OpenOptions::new().write(true).open(path)?, fresh: None })
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn emptied(mut self) -> io::Result<File> {
        self.fresh = None;
        let file = self.file.try_clone()?;
        // Pipes and devices have no length.
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Ok(file)
    }
}

impl Drop for Out {
    fn drop(&mut self) {
        if let Some(path) = &self.fresh {
            let _ = fs::remove_file(path);
        }
    }
}

/// Packets went out and none came back.
pub(super) fn nobody_answered(options: &Options) -> Failure {
    let (to, port) = (options.peer, options.port);
    let why = anyhow!(
        "nobody answered: does `fide jitter pong --from {to}` run there with the same --port ({port}), and may UDP pass?"
    );
    Failure::new(UNHEALTHY, why)
}

/// The exit code for a port that cannot be opened.
pub(super) fn failure(error: PortError) -> Failure {
    let denied = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    let code = match &error {
        PortError::Open { why, .. } if denied(why) => NOT_PERMITTED,
        PortError::Open { why, .. } if why.kind() == std::io::ErrorKind::AddrInUse => UNHEALTHY,
        PortError::Bpf { why: BpfError::Load { reason, .. }, .. } if reason.contains("ermi") => NOT_PERMITTED,
        PortError::Open { .. }
        | PortError::Bpf { .. }
        | PortError::NoFrames { .. }
        | PortError::NotBuilt { .. }
        | PortError::NoRdmaDevice { .. } => UNSUPPORTED,
        PortError::Interface(_) | PortError::ReflectSends => USAGE,
        PortError::NoNeighbour { .. } | PortError::NoHandshake { .. } => UNHEALTHY,
    };
    Failure::new(code, error)
}
