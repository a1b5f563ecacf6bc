// SPDX-License-Identifier: Apache-2.0
//! `fide jitter ping`.

use std::{
    fs::File,
    io::BufWriter,
    net::Ipv4Addr,
    path::PathBuf,
    process::ExitCode,
    sync::{Arc, atomic::Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use fide_bpf::BpfError;
use fide_host::{
    bound::{self, Bound, DEFAULT_FILE, Here, Sample},
    roots::Roots,
};
use fide_jitter::{
    Schedule,
    stats::{Measure, RunStats, StatsOptions, series},
};
use fide_lane::interface;
use fide_pingpong::{
    PACKET_BYTES, PORT,
    ping::{Plan, Progress},
    port::{Method, PortError},
    session::{self, Measurement, Options, SameMachine, SessionError},
};
use indicatif::{ProgressBar, ProgressStyle};

use super::{Conditions, say};
use crate::exit::{Done, Failure, NOT_PERMITTED, UNHEALTHY, UNSUPPORTED, USAGE};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Address of this host on the network to measure
    #[arg(long, value_name = "ADDRESS")]
    from: Ipv4Addr,
    /// Address of the host where `fide jitter pong` runs
    #[arg(long, value_name = "ADDRESS")]
    to: Ipv4Addr,
    /// How packets are sent and received: udp, udp-poll, af-packet, xdp-slot, af-xdp, af-xdp-zc, rdma-ud
    #[arg(long, default_value = "udp")]
    method: Method,
    /// Sending interval
    #[arg(long, default_value_t = 1000.0)]
    period_us: f64,
    /// How many packets
    #[arg(long, default_value_t = 10_000)]
    packets: u64,
    /// Payload of a packet
    #[arg(long, default_value_t = PACKET_BYTES)]
    bytes: usize,
    /// Send one period after the last send, as a busy loop does, instead of on an absolute schedule
    #[arg(long)]
    relative: bool,
    /// Spin between packets instead of sleeping where there is time
    #[arg(long)]
    spin: bool,
    /// Do not record who else runs on the core
    #[arg(long)]
    no_record: bool,
    /// Both ends are this machine and share its clock; with the core that answers
    #[arg(long, value_name = "CORE")]
    same_machine: Option<usize>,
    /// UDP port, the same at both ends
    #[arg(long, default_value_t = PORT)]
    port: u16,
    /// Where to write the log
    #[arg(long, value_name = "FILE", default_value = "jitter.fjl")]
    out: PathBuf,
    /// Write down what was measured as the bound of this interface, for the agent's timeout and `fide doctor`
    #[arg(long)]
    bound: bool,
    /// Where bounds are kept
    #[arg(long, value_name = "FILE", default_value = DEFAULT_FILE)]
    bound_file: PathBuf,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    conditions: Conditions,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    let usage = |error: anyhow::Error| Failure::new(USAGE, error);
    let period_ns = arguments.period_us * 1000.0;
    if !(period_ns.is_finite() && (0.0..=1e15).contains(&period_ns)) {
        return Err(usage(anyhow::anyhow!("--period-us {} is no period", arguments.period_us)));
    }
    let unhealthy = |error: std::io::Error| Failure::new(UNHEALTHY, error);
    let plan = Plan {
        packets: arguments.packets,
        period_ns: period_ns.round() as u64,
        packet_bytes: arguments.bytes,
        schedule: if arguments.relative { Schedule::Relative } else { Schedule::Absolute },
        run: super::random().map_err(unhealthy)?,
        spin: arguments.spin,
    };
    plan.check().map_err(|error| usage(error.into()))?;
    let options = Options {
        method: arguments.method,
        interface: interface::by_address(arguments.from).map_err(|error| usage(error.into()))?,
        peer: arguments.to,
        port: arguments.port,
        plan,
        wanted: arguments.conditions.wanted(arguments.method.polls() || arguments.spin),
        host_a: arguments.from.to_string(),
        host_b: arguments.to.to_string(),
        same_machine: arguments.same_machine.map(|core| SameMachine { core: Some(core), thread: None }),
        record: !arguments.no_record,
    };
    // Before anything is measured: an hour later would be late to learn that it cannot be written.
    let file =
        File::create(&arguments.out).map_err(|error| usage(anyhow::anyhow!("{}: {error}", arguments.out.display())))?;
    let progress = Arc::new(Progress::default());
    let told = progress.clone();
    ctrlc::set_handler(move || told.stop.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::new(UNHEALTHY, error))?;
    let measured = with_bar(&options, &progress).map_err(session_failure)?;
    measured.write(BufWriter::new(file)).map_err(|error| Failure::new(UNHEALTHY, error))?;
    let stats = RunStats::of(&measured.info, &measured.samples, &StatsOptions::default());
    if arguments.bound {
        write_bound(arguments, &options, &measured).map_err(|error| Failure::new(UNHEALTHY, error))?;
    }
    if arguments.json {
        println!("{:#}", say::summary_json(&measured, &stats));
    } else {
        say::summary(&measured, &stats);
        println!("written to {}", arguments.out.display());
    }
    Ok(if stats.answered == 0 { ExitCode::from(UNHEALTHY) } else { ExitCode::SUCCESS })
}

/// The bound of this interface: of the way there and the way back the worse. Between two clocks the variation is known but
/// not the least, for which half of the least round trip stands.
fn write_bound(arguments: &Arguments, options: &Options, measured: &Measurement) -> anyhow::Result<()> {
    let core = options.wanted.core.context("a bound is of a core: measure pinned to the agent's")?;
    let extremes = |measure| {
        let values = series(&measured.info, &measured.samples, measure).values;
        Some((*values.iter().min()?, *values.iter().max()?, values.len()))
    };
    let (there, back) = (extremes(Measure::AToB), extremes(Measure::BToA));
    let (Some(there), Some(back), Some(network)) = (there, back, extremes(Measure::Network)) else {
        anyhow::bail!("no answer came, so there is no bound to write down");
    };
    let jitter_ns = (there.1 - there.0).max(back.1 - back.0).max(0).unsigned_abs();
    let least_ns = (network.0 / 2).max(0).unsigned_abs();
    let roots = Roots::default();
    let here = Here {
        kernel: roots.kernel()?,
        boot_id: roots.boot_id()?,
        core,
        interface: Some(options.interface.name.clone()),
    };
    let sample = Sample { min_ns: least_ns, max_ns: least_ns + jitter_ns, count: there.2.min(back.2) as u64 };
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    bound::write(&arguments.bound_file, &Bound::of_sample(&here, options.method.name(), sample, now_s))?;
    eprintln!("bound of {} written to {}", options.interface.name, arguments.bound_file.display());
    Ok(())
}

/// Measures, and shows how far it is.
fn with_bar(options: &Options, progress: &Arc<Progress>) -> Result<Measurement, SessionError> {
    let bar = ProgressBar::new(options.plan.packets);
    if let Ok(style) = ProgressStyle::with_template("{bar:30.cyan} {pos}/{len} sent, {msg} answered, {eta} left") {
        bar.set_style(style.progress_chars("━╸ "));
    }
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| session::measure(options, progress));
        while !measuring.is_finished() {
            // Seldom: drawing takes a core, too.
            std::thread::park_timeout(Duration::from_millis(500));
            bar.set_message(progress.answered.load(Ordering::Relaxed).to_string());
            bar.set_position(progress.sent.load(Ordering::Relaxed));
        }
        bar.finish_and_clear();
        measuring.join().unwrap_or(Err(SessionError::Panicked))
    })
}

fn session_failure(error: SessionError) -> Failure {
    match error {
        SessionError::Port(error) => failure(error),
        SessionError::Plan(_) => Failure::new(USAGE, error),
        _ => Failure::new(UNHEALTHY, error),
    }
}

/// What a port that cannot be had means for whoever asked for it.
pub(super) fn failure(error: PortError) -> Failure {
    let denied = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    let code = match &error {
        PortError::Open { source, .. } if denied(source) => NOT_PERMITTED,
        PortError::Bpf { source: BpfError::Load { reason, .. }, .. } if reason.contains("ermi") => NOT_PERMITTED,
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
