// SPDX-License-Identifier: Apache-2.0
//! `fide agent` and `fide witness`.

use std::{path::PathBuf, process::ExitCode};

use clap::ValueEnum;
use fide_agent::{Options, config::Config, key};
use fide_types::Time;

use crate::{
    exit::Done,
    explain,
    say::{log, show},
    windows,
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The file that every host of the cluster shares; drop-ins are read from FILE.d/*.toml
    #[arg(long, value_name = "FILE", default_value = "/etc/fide/fide.toml")]
    config: PathBuf,
    /// This host's name in the file; by default, the member that has this host's addresses
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Directory for the socket, instead of the configured one
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Directory for state that must survive a restart, instead of the configured one
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Only check whether an agent would start: read all files, inspect this host, and measure for the
    /// timeout as a start does. Run it as the agent's user. `--check=file` reads only the files, to check the
    /// configuration of another host
    #[arg(long, value_enum, value_name = "WHAT", num_args = 0..=1, require_equals = true, default_missing_value = "host",
          conflicts_with = "takeover")]
    check: Option<Check>,
    /// Use the configured timeout even if the measurement shows that this host cannot hold it
    #[arg(long)]
    force_timeout: bool,
    /// Replace the running agent without a missed beat; its clients attach again by themselves. If that agent
    /// is a systemd service, this one becomes the service's main process
    #[arg(long)]
    takeover: bool,
    /// Make a key for a cluster in a new file of mode 0400, to be copied to every host
    #[arg(long, value_name = "FILE", conflicts_with_all = ["check", "takeover", "explain_config"])]
    make_key: Option<PathBuf>,
    /// Print every key of the configuration: type, unit, default, meaning
    #[arg(long, conflicts_with_all = ["check", "takeover"])]
    explain_config: bool,
    /// Print the keys as JSON
    #[arg(long, requires = "explain_config")]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Check {
    /// Files and this host
    Host,
    /// Files
    File,
}

pub(crate) fn run(arguments: &Arguments, witness: bool) -> Done {
    if arguments.explain_config {
        return explain::agent(arguments.json);
    }
    if let Some(path) = &arguments.make_key {
        key::make(path)?;
        show!("{} holds a new key: copy it to every host of the cluster, and name it as key_file", path.display())?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options {
        config: arguments.config.clone(),
        host: arguments.host.clone(),
        runtime_dir: arguments.runtime_dir.clone(),
        state_dir: arguments.state_dir.clone(),
        force_timeout: arguments.force_timeout,
        takeover: arguments.takeover,
        witness,
        windows: Some(windows::open),
    };
    match arguments.check {
        Some(Check::Host) => check_host(arguments, &options),
        Some(Check::File) => check_files(arguments),
        None => {
            log();
            fide_agent::run(&options)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn right(arguments: &Arguments, config: &Config) -> String {
    format!(
        "{} is right: cluster {}, {} members, {} planes, a heartbeat every {}",
        arguments.config.display(),
        config.cluster,
        config.members.len(),
        config.planes.len(),
        Time::ns(config.heartbeat_ns)
    )
}

fn check_host(arguments: &Arguments, options: &Options) -> Done {
    let checked = fide_agent::check(options)?;
    show!(
        "{}; this host is {}, its loop on core {}, its timeout {}",
        right(arguments, &checked.config),
        checked.host,
        checked.core,
        Time::ns(checked.timeout_ns)
    )?;
    Ok(ExitCode::SUCCESS)
}

fn check_files(arguments: &Arguments) -> Done {
    let config = Config::load(&arguments.config)?;
    if let Some(name) = &arguments.host {
        config.identify(Some(name), &[])?;
    }
    config.key()?;
    show!("{}", right(arguments, &config))?;
    Ok(ExitCode::SUCCESS)
}
