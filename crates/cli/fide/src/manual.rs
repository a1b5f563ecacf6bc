// SPDX-License-Identifier: Apache-2.0
//! `fide completions` and `fide man`: what packagers install beside the program, generated from the command
//! line itself.

use std::{
    fs,
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

use anyhow::anyhow;
use clap::Command;
use clap_complete::Shell;

use crate::{
    exit::{Done, Failure, USAGE},
    say::{show, shown},
};

#[derive(clap::Args)]
pub(crate) struct CompletionsArguments {
    /// Shell that the script is for
    shell: Shell,
}

#[derive(clap::Args)]
pub(crate) struct ManArguments {
    /// Where to write the pages; created if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn completions(arguments: &CompletionsArguments, mut command: Command) -> Done {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "fide", &mut script);
    let mut out = io::stdout().lock();
    shown(out.write_all(&script).and_then(|()| out.flush()))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(arguments: &ManArguments, command: Command) -> Done {
    let out = &arguments.out;
    let at = |error: io::Error| Failure::new(USAGE, anyhow!("{}: {error}", out.display()));
    fs::create_dir_all(out).map_err(at)?;
    clap_mangen::generate_to(command, out).map_err(at)?;
    show!("manual pages written to {}", out.display())?;
    Ok(ExitCode::SUCCESS)
}
