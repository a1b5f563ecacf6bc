// SPDX-License-Identifier: Apache-2.0
//! `fide plan`: a topology and requests in, trees and contracts out.

mod odds;
mod table;

use std::{
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::anyhow;
use fide_planner::{
    Planner,
    file::{FILE_MAX_BYTES, parse},
};
use fide_report::{
    plan::{DrawOptions, Figures, Plan, Refused, draw, to_json},
    text::clean,
};

use crate::exit::{Done, Failure, UNHEALTHY, USAGE};
use crate::replace::replace;
use crate::say::{say, show_text};

/// How our drawings begin: a file that begins otherwise is not overwritten.
const DRAWING: &[u8] = b"<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"fide-plan\"";

/// The planner's packet model in short; the full model is on the first page of `fide_planner`.
const MODEL: &str = "\
What the figures mean:
  A packet costs its UDP payload and 66 bytes on the wire (UDP 8, IPv4 20, Ethernet 14, check
  sequence 4, preamble and gap 20), at least 84.
  Latency begins when the sender's host has put the packet into the egress queue of its port. It
  ends when the last bit has arrived at the receiver's host and been processed for as long as the
  latency and jitter of the host's cable say. Time in programs and agents is not part of it.
  On each hop a packet may wait for one frame of best-effort traffic or of a lower priority that is
  being sent already, for all other planned packets of its own and higher priorities at whatever
  phases, and for what is reserved on the cable. Then it is sent, and travels within the cable's
  latency and jitter. Switches store a packet as a whole before they forward it.
  Senders keep to their size and period, and ports serve priorities strictly. The contract spans
  all trees of a request: it holds as long as one of them works.

--json prints all of this as numbers, with every cable; docs/develop/plan-json.md lists the fields.";

#[derive(clap::Args)]
#[command(after_long_help = MODEL)]
pub(crate) struct Arguments {
    /// Topology, limits and requests (TOML); examples/plan/README.md shows how
    #[arg(required_unless_present = "odds")]
    file: Option<PathBuf>,
    /// Draw the network and its trees into OUT [default: FILE's name with .svg, here]
    #[arg(long, value_name = "OUT", num_args = 0..=1, requires = "file")]
    svg: Option<Option<PathBuf>>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print how likely all trees of a request fail together; without FILE, the published figures
    #[arg(long)]
    odds: bool,
    /// Show and draw only these requests; all requests are planned
    #[arg(long, value_name = "NAME", num_args = 1.., requires = "file")]
    only: Vec<String>,
    /// Overwrite OUT even if it is not a drawing of a plan
    #[arg(long, requires = "svg")]
    force: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    let Some(path) = &arguments.file else {
        return odds::published(arguments.json);
    };
    // Messages quote the file: control characters in it stay off the terminal.
    let shown = |c: char| if c.is_control() && c != '\n' { '\u{fffd}' } else { c };
    let named = |error: &dyn std::fmt::Display| {
        let said: String = error.to_string().chars().map(shown).collect();
        Failure::new(USAGE, anyhow!("{}: {said}", path.display()))
    };
    let file = parse(&read(path).map_err(|error| Failure::file(path, &error))?).map_err(|error| named(&error))?;
    file.rates.check().map_err(|error| named(&error))?;
    let mut planner = Planner::new(file.topology, file.limits).map_err(|error| named(&error))?;
    if let Some(name) = arguments.only.iter().find(|name| !file.requests.iter().any(|request| request.name == **name)) {
        let all: Vec<String> = file.requests.iter().take(8).map(|request| clean(&request.name)).collect();
        let more = if file.requests.len() > all.len() { ", ..." } else { "" };
        return Err(named(&format!("--only {}: its requests are {}{more}", clean(name), all.join(", "))));
    }
    let svg = arguments.svg.as_ref().map(|out| target(path, out.as_deref(), arguments.force)).transpose()?;
    let mut refused = Vec::new();
    for request in file.requests {
        if let Err(why) = planner.request(request.clone()) {
            refused.push(Refused { request, why: why.to_string() });
        }
    }
    let plan = Plan { planner: &planner, rates: file.rates, generator: file.generator.as_ref(), refused: &refused };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let drawing = match &svg {
        Some(_) => {
            let view = DrawOptions { title: name.into_owned(), only: arguments.only.clone() };
            Some(draw(plan, &view).map_err(|error| named(&error))?)
        }
        None => None,
    };
    print(arguments, &plan)?;
    if let (Some(to), Some(drawing)) = (svg, drawing) {
        replace(&to, drawing.as_bytes()).map_err(|error| Failure::file(&to, &error))?;
        say!("written to {}", to.display());
    }
    Ok(ExitCode::from(if refused.is_empty() { 0 } else { UNHEALTHY }))
}

fn print(arguments: &Arguments, plan: &Plan<'_>) -> Result<(), Failure> {
    let text = if arguments.json {
        format!("{:#}\n", to_json(*plan, &arguments.only))
    } else {
        let figures = Figures::of(*plan).only(&arguments.only);
        let mut text = table::text(plan, &figures, &arguments.only);
        if arguments.odds {
            text += &odds::of_plan(&plan.rates, &figures);
        }
        text
    };
    show_text(&text)
}

/// Reads a text file, and no more of it than one byte beyond the longest plan.
fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("no text (UTF-8) from byte {at} on; a plan is a TOML file"))
    })
}

/// Where the drawing goes.
fn target(file: &Path, out: Option<&Path>, force: bool) -> Result<PathBuf, Failure> {
    let stem = file.file_stem().unwrap_or_default();
    let to = out.map_or_else(|| Path::new(stem).with_added_extension("svg"), Path::to_owned);
    if force || !to.exists() {
        return Ok(to);
    }
    let wrong = |why: String| Err(Failure::new(USAGE, anyhow!("{}: {why}", to.display())));
    let mut begin = Vec::new();
    let read = File::open(&to).and_then(|file| file.take(DRAWING.len() as u64).read_to_end(&mut begin));
    match read {
        Err(error) => Err(Failure::file(&to, &error)),
        Ok(0) => Ok(to),
        Ok(_) if begin == DRAWING => Ok(to),
        Ok(_) => {
            wrong("exists, and is not a drawing of a plan; --force overwrites it, --svg OUT names another".to_owned())
        }
    }
}
