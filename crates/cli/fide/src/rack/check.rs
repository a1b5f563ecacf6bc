// SPDX-License-Identifier: Apache-2.0
//! `fide rack check`: what of a program would not go over memory, and why, by its files; and of a process, by what it has open.

mod elf;
mod needed;
mod process;
mod program;

use std::{ffi::OsString, path::Path, process::ExitCode};

use serde_json::{Value, json};

use crate::{
    exit::{Done, UNHEALTHY},
    say::show,
};

pub(super) use program::{Judged, is_there};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// The program, as a shell finds it
    #[arg(value_name = "CMD", required_unless_present = "pid")]
    command: Option<OsString>,
    /// A process that runs, instead of a program
    #[arg(long, value_name = "PID", conflicts_with = "command")]
    pid: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Something that is to be known of a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    /// A word for programs.
    pub(super) code: &'static str,
    pub(super) text: String,
    /// It is not accelerated, or must not be.
    pub(super) blocks: bool,
}

impl Finding {
    fn blocks(code: &'static str, text: String) -> Self {
        Self { code, text, blocks: true }
    }

    fn limits(code: &'static str, text: String) -> Self {
        Self { code, text, blocks: false }
    }

    fn object(&self) -> Value {
        json!({ "code": self.code, "blocks": self.blocks, "text": self.text })
    }
}

/// The reasons against it first.
fn listed(findings: &[Finding]) -> String {
    let (against, others): (Vec<_>, Vec<_>) = findings.iter().partition(|finding| finding.blocks);
    let line = |of: &&Finding| {
        let kind = if of.blocks { "no" } else { "note" };
        format!("\n  {kind}: {}", of.text)
    };
    against.iter().chain(&others).map(line).collect()
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let (text, object, is_accelerated) = match (arguments.pid, &arguments.command) {
        (Some(pid), _) => process::judge(pid)?,
        (None, Some(command)) => {
            let judged = Judged::of(command)?;
            (judged.text(), judged.object(), judged.is_accelerated())
        }
        // The command line asks for one of them.
        (None, None) => return Ok(ExitCode::from(crate::exit::USAGE)),
    };
    if arguments.json {
        show!("{object}")?;
    } else {
        show!("{text}")?;
    }
    Ok(if is_accelerated { ExitCode::SUCCESS } else { ExitCode::from(UNHEALTHY) })
}
