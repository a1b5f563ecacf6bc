// SPDX-License-Identifier: Apache-2.0
//! `fide pace key`: makes keys.

use std::{path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use fide_pace_socket::{ServerKey, new_private, new_secret};

use crate::{
    exit::{Done, Failure, USAGE},
    say::show,
};

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// A private key for a server, whose clients get the public one: they are sure of the server, and anybody with the
    /// public key may connect. Without this: a secret for both ends
    #[arg(long)]
    private: bool,
    /// Print what clients need of this key
    #[arg(long, value_name = "FILE", conflicts_with = "private")]
    public: Option<PathBuf>,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    if let Some(path) = &arguments.public {
        let text = std::fs::read_to_string(path).map_err(|why| Failure::file(path, &why))?;
        let key = ServerKey::parse(&text).map_err(|why| Failure::new(USAGE, anyhow!("{}: {why}", path.display())))?;
        show!("{}", key.for_clients().to_text())?;
        return Ok(ExitCode::SUCCESS);
    }
    let key = if arguments.private { new_private() } else { new_secret() };
    show!("{}", key.to_text())?;
    Ok(ExitCode::SUCCESS)
}
