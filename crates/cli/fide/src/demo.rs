// SPDX-License-Identifier: Apache-2.0
//! `fide demo`: becomes `fide-lab demo`, where that is. The test harness that demos need is not in this program.

use std::{ffi::OsString, os::unix::process::CommandExt, path::PathBuf, process::Command};

use anyhow::anyhow;

use crate::exit::{Done, Failure, UNSUPPORTED, code_of_file};

const LAB: &str = "fide-lab";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Words after `fide-lab demo`: `redis`, `agreement`, or none for processes and hosts that die; `fide demo
    /// redis --help` lists the options of one
    #[arg(value_name = "WORDS", trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Beside this program, else in one of the directories of PATH.
fn lab() -> Option<PathBuf> {
    let beside = std::env::current_exe().ok().and_then(|this| Some(this.parent()?.to_owned()));
    let path = std::env::var_os("PATH").unwrap_or_default();
    beside.into_iter().chain(std::env::split_paths(&path)).map(|dir| dir.join(LAB)).find(|file| file.is_file())
}

/// Does not return if the demo begins.
pub(crate) fn run(arguments: &Arguments) -> Done {
    let Some(lab) = lab() else {
        let why = "the demos need fide-lab, which is neither beside this program nor in PATH, as it is not for \
                   production hosts; in Fide's sources, `cargo xtask demo redis` builds and runs it";
        return Err(Failure::new(UNSUPPORTED, anyhow!(why)));
    };
    let error = Command::new(&lab).arg("demo").args(&arguments.words).exec();
    Err(Failure::new(code_of_file(&error), anyhow!("{} does not start: {error}", lab.display())))
}
