// SPDX-License-Identifier: Apache-2.0
//! `fide controller discover`: finds out by LLDP what is cabled.

use std::{
    collections::BTreeSet,
    fmt::{Display, Write as _},
    fs::File,
    io::{self, Read, Write as _},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::anyhow;
use fide_controller::{
    cables::{self, CablesError, DriverError},
    config,
};
use fide_discover::{Difference, Figure, Given, Survey, compare, write};
use fide_planner::{
    Topology,
    file::{FILE_MAX_BYTES, parse},
};
use fide_report::units::{count_of, rate, time};
use serde::Serialize;
use serde_json::{Value, json};

use super::wrong_file;
use crate::columns::columns;
use crate::exit::{Done, Failure, NOT_PERMITTED, UNHEALTHY, USAGE};
use crate::replace::replace;
use crate::say::{say, show_text};

#[derive(clap::Args)]
pub(super) struct Discover {
    /// The controller's file; only its [[switch]] sections are read
    #[arg(long, value_name = "FILE", default_value = "/etc/fide/controller.toml")]
    config: PathBuf,
    /// How long to speak and listen; lldpd on a host speaks every 30 s
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
    wait_s: u64,
    /// Write a topology to FILE, for `fide plan` and `fide controller run`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Overwrite the file that --out names
    #[arg(long, requires = "out")]
    force: bool,
    /// Report where the cabling differs from this topology
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// A host that is expected; may be given several times. Other hosts are reported as odd. By default, the
    /// hosts of --compare
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    #[command(flatten)]
    figures: Figures,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Figures that ports do not report. One that is not given here is assumed to be the planner's default, and
/// is marked as assumed.
#[derive(clap::Args)]
struct Figures {
    /// Bandwidth of cables whose ports report none
    #[arg(long, value_name = "BPS")]
    bandwidth_bps: Option<u64>,
    /// Wire bytes that the lane's queue holds at ports that do not report it
    #[arg(long, value_name = "BYTES")]
    queue_bytes: Option<u64>,
    /// Shortest time from switch to switch
    #[arg(long, value_name = "NS")]
    latency_min_ns: Option<u64>,
    /// How much longer a packet may take from switch to switch
    #[arg(long, value_name = "NS")]
    jitter_max_ns: Option<u64>,
    /// Shortest time between a host and its switch
    #[arg(long, value_name = "NS")]
    host_latency_min_ns: Option<u64>,
    /// How much longer a packet may take between a host and its switch
    #[arg(long, value_name = "NS")]
    host_jitter_max_ns: Option<u64>,
}

impl Figures {
    fn given(&self) -> Given {
        Given {
            bandwidth_bps: self.bandwidth_bps,
            queue_bytes: self.queue_bytes,
            latency_min_ns: self.latency_min_ns,
            jitter_max_ns: self.jitter_max_ns,
            host_latency_min_ns: self.host_latency_min_ns,
            host_jitter_max_ns: self.host_jitter_max_ns,
        }
    }
}

pub(super) fn discover(arguments: &Discover) -> Done {
    let switches = config::load_switches(&arguments.config).map_err(|error| wrong_file(&arguments.config, error))?;
    if switches.is_empty() {
        let why = "there is no [[switch]], so there are no ports to listen at; give one for each switch";
        return Err(Failure::new(USAGE, anyhow!("{}: {why}", arguments.config.display())));
    }
    let planned = arguments.compare.as_deref().map(read).transpose()?;
    if let Some(out) = arguments.out.as_deref().filter(|out| !arguments.force && out.exists()) {
        return Err(named(out, &"exists; --force overwrites it, --out FILE names another"));
    }
    let hosts: BTreeSet<String> = match &planned {
        Some(topology) if arguments.host.is_empty() => {
            topology.hosts().map(|host| topology.node(host).name.clone()).collect()
        }
        _ => arguments.host.iter().cloned().collect(),
    };
    let (given, stop) = (arguments.figures.given(), stop_at_signals()?);
    let known = (!hosts.is_empty()).then_some(&hosts);
    let survey =
        cables::look(&switches, Duration::from_secs(arguments.wait_s), &stop, known, &given).map_err(failure)?;
    if stop.load(Ordering::Relaxed) {
        return Err(Failure::new(UNHEALTHY, anyhow!("interrupted before all could be heard")));
    }
    let differences = planned.as_ref().map(|topology| compare(&survey, topology));
    let text = if arguments.json {
        in_json(&survey, differences.as_deref())
    } else {
        in_words(&survey, differences.as_deref())
    };
    let shown = show_text(&text);
    // The result is saved even where it cannot be shown.
    if let Some(out) = &arguments.out {
        save(out, &survey, &given, arguments.force)?;
    }
    shown?;
    let right = differences.is_none_or(|differences| differences.is_empty());
    Ok(ExitCode::from(if right { 0 } else { UNHEALTHY }))
}

/// A flag that an interrupt sets, so that announcements are withdrawn in that case too.
pub(super) fn stop_at_signals() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let stopping = stop.clone();
    ctrlc::set_handler(move || stopping.store(true, Ordering::Relaxed))
        .map_err(|error| Failure::new(UNHEALTHY, error))?;
    Ok(stop)
}

fn named(path: &Path, why: &dyn Display) -> Failure {
    // Messages quote the file: control characters in it stay off the terminal.
    let shown = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    let said: String = why.to_string().chars().map(shown).collect();
    Failure::new(USAGE, anyhow!("{}: {said}", path.display()))
}

fn failure(error: CablesError) -> Failure {
    let code = match &error {
        CablesError::Probe(error) if error.denied() => NOT_PERMITTED,
        CablesError::Switch { why: DriverError::Io { why, .. }, .. }
            if why.kind() == io::ErrorKind::PermissionDenied =>
        {
            NOT_PERMITTED
        }
        _ => UNHEALTHY,
    };
    Failure::new(code, error)
}

fn read(path: &Path) -> Result<Topology, Failure> {
    let mut text = String::new();
    File::open(path)
        .and_then(|file| file.take(FILE_MAX_BYTES as u64 + 1).read_to_string(&mut text))
        .map_err(|error| Failure::file(path, &error))?;
    Ok(parse(&text).map_err(|error| named(path, &error))?.topology)
}

fn save(out: &Path, survey: &Survey, given: &Given, force: bool) -> Result<(), Failure> {
    if survey.hosts.is_empty() {
        let why = "not written: no host was heard, and a topology has hosts; run `fide controller announce` on them";
        return Err(Failure::new(UNHEALTHY, anyhow!("{}: {why}", out.display())));
    }
    let text = write(survey, given);
    parse(&text).map_err(|error| named(out, &format!("not written, as the planner would not read it: {error}")))?;
    let written = if force {
        replace(out, text.as_bytes())
    } else {
        File::create_new(out).and_then(|mut file| file.write_all(text.as_bytes()))
    };
    written.map_err(|error| Failure::file(out, &error))?;
    say!("written to {}", out.display());
    Ok(())
}

/// Each item's fields, and its text as `said`.
fn with_words<T: Serialize + Display>(all: &[T]) -> Vec<Value> {
    let one = |thing: &T| {
        let mut value = json!(thing);
        value["said"] = thing.to_string().into();
        value
    };
    all.iter().map(one).collect()
}

fn in_json(survey: &Survey, differences: Option<&[Difference]>) -> String {
    let mut value = json!(survey);
    value["odd"] = with_words(&survey.odd).into();
    value["differences"] = differences.map_or(Value::Null, |differences| with_words(differences).into());
    format!("{value:#}\n")
}

fn in_words(survey: &Survey, differences: Option<&[Difference]>) -> String {
    let mut text = format!(
        "{}, {} switch{}, {}\n\n",
        count_of(survey.hosts.len(), "host"),
        survey.switches.len(),
        if survey.switches.len() == 1 { "" } else { "es" },
        count_of(survey.cables.len(), "cable")
    );
    let from = |figure: Figure, value: String| format!("{value} ({})", figure.source);
    if !survey.cables.is_empty() {
        let rows: Vec<Vec<String>> = survey
            .cables
            .iter()
            .map(|cable| {
                let bandwidth = from(cable.bandwidth_bps, rate(cable.bandwidth_bps.value));
                let queue = from(cable.queue_bytes, format!("{} bytes", cable.queue_bytes.value));
                vec![format!("{}--{}", cable.a, cable.b), bandwidth, queue]
            })
            .collect();
        text += &columns(&["cable", "bandwidth", "lane's queue"], &[0], &rows);
        text.push('\n');
    }
    for (name, figure) in survey.latencies.named() {
        let _ = writeln!(text, "{name}: {}", from(figure, time(figure.value)));
    }
    let mut list = |title: &str, lines: Vec<String>| {
        if !lines.is_empty() {
            let _ = writeln!(text, "\n{title}\n{}", lines.join("\n"));
        }
    };
    list("odd:", survey.odd.iter().map(|odd| format!("  {odd}")).collect());
    let differences = differences.map(|all| all.iter().map(|one| format!("  {one}")).collect::<Vec<_>>());
    list("not as the compared file says:", differences.clone().unwrap_or_default());
    if differences.is_some_and(|all| all.is_empty()) {
        text += "\nas the compared file says\n";
    }
    text
}
