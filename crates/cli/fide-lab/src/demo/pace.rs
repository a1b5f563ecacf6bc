// SPDX-License-Identifier: Apache-2.0
//! `fide-lab demo pace`: the same messages over two equal links, paced by X-PACE and not paced by TCP, side by side: how long
//! each is on its way.

mod drawn;
mod flows;
mod outcome;
mod view;

use std::{
    path::PathBuf,
    process::ExitCode,
    sync::atomic::AtomicBool,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, ensure};
use fide_sys::clock::mono_ns;
use fide_testbed::{Spec, Stops, Testbed, emulator::Emulator, figures::Machine};

use super::{interrupted, make_out, say};
use fide_cli::exit::{Done, Failure, UNSUPPORTED};
use fide_cli::say::tell;
use flows::Flow;
use outcome::Outcome;
use view::View;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// How long both send
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..=300))]
    seconds: u32,
    /// TCP's congestion control: CUBIC is not paced, BBR paces itself
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    against: Against,
    /// Use TCP with small buffers, without delay, with acknowledgements at once; without this, as the kernel has it
    #[arg(long)]
    tuned: bool,
    /// Use TCP as the kernel has it, which is the default
    #[arg(long, conflicts_with = "tuned")]
    untuned: bool,
    /// Directory for pace.svg
    #[arg(long, value_name = "DIR", default_value = "target/demo")]
    out: PathBuf,
    /// Print everything as one JSON document on stdout, and nothing else there
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
enum Against {
    #[default]
    Cubic,
    Bbr,
}

impl Against {
    /// As the kernel knows it.
    fn name(self) -> &'static str {
        match self {
            Self::Bbr => "bbr",
            Self::Cubic => "cubic",
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    fide_testbed::supported().map_err(|error| Failure::new(UNSUPPORTED, anyhow::Error::from(error)))?;
    make_out(&arguments.out)?;
    ctrlc::set_handler(interrupted).context("waiting for an interrupt")?;
    say::line(&format!(
        "Two pairs of hosts in network namespaces, each with a link of its own: {}.\n\
         An application sends messages of {} bytes on the link as fast as it may, for {} s: over one link paced by X-PACE, \
         over the other by TCP {}, {} and {}.\n\
         Nothing outside these namespaces is touched, and all of it is removed at the end.",
        flows::LINK_IN_WORDS,
        flows::PACKET_BYTES,
        arguments.seconds,
        arguments.against.name().to_uppercase(),
        if arguments.tuned { "with small buffers" } else { "as it comes" },
        if arguments.against == Against::Bbr { "paced by itself" } else { "not paced" },
    ));
    let testbed = Testbed::build(Spec { planes: 1, ..Spec::hosts(4) }).context("building four hosts")?;
    let there = flows::link();
    let between =
        |from: usize| Emulator::between(testbed.host(from), testbed.host(from + 1), [there, flows::back()], 7);
    let _links = [between(1).context("the link of X-PACE")?, between(3).context("the link of TCP")?];
    let paced = flows::paced(testbed.host(1), testbed.host(2))?;
    let tcp = flows::tcp(testbed.host(3), testbed.host(4), arguments.against.name(), arguments.tuned)
        .map_err(|why| Failure::new(UNSUPPORTED, why))?;
    let outcome = side_by_side(arguments, paced, tcp)?;
    finish(arguments, &outcome)
}

/// Both flows at once, for as long as was asked for.
fn side_by_side(arguments: &Arguments, paced: Flow, tcp: Flow) -> anyhow::Result<Outcome> {
    let (begun_ns, begun, stop) = (mono_ns(), Instant::now(), AtomicBool::new(false));
    let flows = [paced, tcp];
    let taken = flows.each_ref().map(|flow| flow.taken.clone());
    let names = flows.each_ref().map(|flow| flow.name.clone());
    let slowest = flows[0].slowest.clone();
    let view = View::new(&names, &taken, slowest.as_ref());
    thread::scope(|scope| -> anyhow::Result<()> {
        let stops = Stops(&stop);
        let stop = &stop;
        let mut running = Vec::new();
        for Flow { mut send, mut receive, taken, name, .. } in flows {
            running.push((format!("the sender of {name}"), {
                let taken = taken.clone();
                scope.spawn(move || flows::give(&mut *send, &taken, stop))
            }));
            running.push((format!("the receiver of {name}"), scope.spawn(move || flows::take(&mut *receive, &taken))));
        }
        scope.spawn(|| view.run(stop));
        let length = Duration::from_secs(arguments.seconds.into());
        while begun.elapsed() < length {
            ensure!(running.iter().all(|(_, thread)| !thread.is_finished()), "a flow has ended before its time");
            thread::sleep(Duration::from_millis(20));
        }
        drop(stops);
        for (what, thread) in running {
            thread.join().map_err(|_| anyhow!("{what} has panicked"))?;
        }
        Ok(())
    })?;
    let runs = names.into_iter().zip(taken).map(|(name, taken)| taken.run(name)).collect::<Vec<_>>();
    for run in &runs {
        ensure!(!run.messages.is_empty(), "no message came by {}", run.name);
    }
    Ok(Outcome { machine: Machine::here(), begun_ns, seconds: arguments.seconds, runs })
}

fn finish(arguments: &Arguments, outcome: &Outcome) -> Done {
    let path = arguments.out.join("pace.svg");
    std::fs::write(&path, drawn::svg(outcome)?).with_context(|| format!("writing {}", path.display()))?;
    let path = path.display().to_string();
    if arguments.json {
        tell!("{:#}", outcome.to_json(&path));
    } else {
        tell!("\n{}\n{}", drawn::terminal(outcome), outcome.table());
        tell!("drawing: {path}");
    }
    Ok(ExitCode::SUCCESS)
}
