// SPDX-License-Identifier: Apache-2.0
//! `fide agent` and `fide witness`.

use std::{path::PathBuf, process::ExitCode};

use fide_agent::{Options, StartError, config::Config};

use crate::exit::{Done, Failure, NOT_PERMITTED, UNHEALTHY, UNSUPPORTED, USAGE};
use crate::say::tell;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The file that every host of the cluster shares; drop-ins are read from FILE.d/*.toml
    #[arg(long, value_name = "FILE", default_value = "/etc/fide/fide.toml")]
    config: PathBuf,
    /// Which member this host is; by default the one whose addresses it has
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// Directory of the socket, instead of the configured one
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Directory of what must survive a restart, instead of the configured one
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Only say whether the configuration is right
    #[arg(long)]
    check: bool,
    /// Take the configured timeout although this host was measured not to hold it
    #[arg(long)]
    force_timeout: bool,
    /// Replace the running agent without a missed beat; its clients attach again by themselves. If that agent is a systemd
    /// service, this one becomes the service's main process
    #[arg(long)]
    takeover: bool,
}

pub(crate) fn run(arguments: &Arguments, witness: bool) -> Done {
    if arguments.check {
        return check(arguments);
    }
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::try_from_env("FIDE_LOG").unwrap_or_else(|_| "info".into()))
        .with_target(false)
        .with_writer(std::io::stderr)
        .init();
    let options = Options {
        config: arguments.config.clone(),
        host: arguments.host.clone(),
        runtime_dir: arguments.runtime_dir.clone(),
        state_dir: arguments.state_dir.clone(),
        force_timeout: arguments.force_timeout,
        takeover: arguments.takeover,
        witness,
    };
    fide_agent::run(&options).map(|()| ExitCode::SUCCESS).map_err(failure)
}

fn check(arguments: &Arguments) -> Done {
    let config = Config::load(&arguments.config).map_err(|error| Failure::new(USAGE, error))?;
    fide_agent::key::load(&config.key_file).map_err(|error| Failure::new(USAGE, error))?;
    tell!(
        "{} is right: cluster {}, {} members, {} planes, a heartbeat every {} us",
        arguments.config.display(),
        config.cluster,
        config.members.len(),
        config.planes.len(),
        config.heartbeat_ns / 1000
    );
    Ok(ExitCode::SUCCESS)
}

fn failure(error: StartError) -> Failure {
    let permission = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    let code = match &error {
        StartError::Config(_)
        | StartError::Role { .. }
        | StartError::Key(_)
        | StartError::Detector(_)
        | StartError::Timeout(_) => USAGE,
        StartError::Rung { .. } | StartError::Mtu { .. } => UNSUPPORTED,
        StartError::Link { source, .. } | StartError::Io(source) if permission(source) => NOT_PERMITTED,
        StartError::Listen(fide_agent::socket::ListenError::Io { source, .. }) if permission(source) => NOT_PERMITTED,
        _ => UNHEALTHY,
    };
    Failure::new(code, error)
}
