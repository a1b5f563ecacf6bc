// SPDX-License-Identifier: Apache-2.0
//! `fide controller`: the resource controller, its certificates, and questions to it.

mod announce;
mod ask;
mod certificates;
mod discover;

use std::{path::PathBuf, process::ExitCode};

use anyhow::anyhow;
use clap::Subcommand;
use fide_controller::{
    config::{self, Config, ConfigError, Place},
    etcd,
    run::{self, RunError},
};
use serde_json::json;

use crate::{
    exit::{Done, Failure, NOT_PERMITTED, UNHEALTHY, USAGE, code_of_credentials, code_of_file},
    explain,
    say::{self, show},
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make an authority and the first controller's certificate
    Init(certificates::Init),
    /// Make a certificate for a host, an operator or another controller
    Issue(certificates::Issue),
    /// Give a member a new certificate and key, with the addresses of its present one
    Renew(certificates::Renew),
    /// Withdraw a member's certificate
    Revoke(certificates::Revoke),
    /// Put a new authority before the present one; until `retire`, both are trusted
    ///
    /// Copy each member's directory to it, `renew` each and copy again, then `retire` and copy once more.
    Rotate(certificates::Rotate),
    /// End the trust in all authorities but the present one
    ///
    /// Refused while a member has a valid certificate from another authority.
    Retire(certificates::Retire),
    /// List all certificates and when they expire
    Certificates(certificates::List),
    /// Run a controller
    ///
    /// SIGHUP reads the certificates again; SIGTERM and SIGINT end it. The switches keep their rules.
    Run(Run),
    /// Check whether a controller would start: read its file and the files that it names, and check the
    /// places where it would write
    ///
    /// Run it as the controller's user.
    Check(Check),
    /// Print every key of a controller's file: type, unit, default, meaning
    ExplainConfig(ExplainConfig),
    /// Find out what is cabled to the switches' ports, and write the result as a topology
    ///
    /// Exit codes: 0 done, 1 the cabling differs from the compared file, or could not be found out, 2 usage,
    /// 4 not permitted.
    Discover(discover::Discover),
    /// Announce this host by LLDP to the switches that it is cabled to, for `fide controller discover`
    ///
    /// Exit codes: 0 done, 1 an interface could not send, 2 usage, 4 not permitted.
    Announce(announce::Announce),
    /// Send one request to a controller, and print its answer as JSON
    ///
    /// Exit codes: 0 done, 1 refused or no answer, 2 the request was wrong, 4 not permitted.
    Ask(ask::Ask),
    /// Show lanes, broken cables and who monitors whom
    Status(ask::Status),
}

#[derive(clap::Args)]
struct Run {
    /// The controller's file
    #[arg(long, value_name = "FILE", default_value = "/etc/fide/controller.toml")]
    config: PathBuf,
    /// At the end, restore what each switch had before, without any lane
    #[arg(long)]
    restore_switches: bool,
}

#[derive(clap::Args)]
struct Check {
    /// The controller's file
    #[arg(long, value_name = "FILE", default_value = "/etc/fide/controller.toml")]
    config: PathBuf,
    /// Also open each switch, without changing it, and look for the topology's ports
    #[arg(long)]
    switches: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Arguments {
    /// See [`crate::reader`].
    pub(crate) fn outlives_its_reader(&self) -> bool {
        matches!(self.command, Command::Run(_) | Command::Discover(_))
    }
}

#[derive(clap::Args)]
struct ExplainConfig {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: Arguments) -> Done {
    match arguments.command {
        Command::Init(arguments) => certificates::init(arguments),
        Command::Issue(arguments) => certificates::issue(arguments),
        Command::Renew(arguments) => certificates::renew(&arguments),
        Command::Revoke(arguments) => certificates::revoke(&arguments),
        Command::Rotate(arguments) => certificates::rotate(&arguments),
        Command::Retire(arguments) => certificates::retire(&arguments),
        Command::Certificates(arguments) => certificates::list(&arguments),
        Command::Run(arguments) => serve(&arguments),
        Command::Check(arguments) => check(&arguments),
        Command::ExplainConfig(arguments) => explain::controller(arguments.json),
        Command::Discover(arguments) => discover::discover(&arguments),
        Command::Announce(arguments) => announce::announce(&arguments),
        Command::Ask(arguments) => ask::ask(&arguments),
        Command::Status(arguments) => ask::status(&arguments),
    }
}

fn load(path: &std::path::Path) -> Result<Config, Failure> {
    config::load(path).map_err(|error| wrong_file(path, error))
}

fn wrong_file(path: &std::path::Path, error: ConfigError) -> Failure {
    match &error {
        // These errors name the file already.
        ConfigError::Read { why, .. } => Failure::new(code_of_file(why), error),
        _ => Failure::new(USAGE, anyhow::Error::from(error).context(path.display().to_string())),
    }
}

fn serve(arguments: &Run) -> Done {
    say::log();
    let config = load(&arguments.config)?;
    // For all threads, because the repair of a cut cable waits for them. Kernels before Linux 6.12 refuse it;
    // the threads then wait their turn like any others.
    let _ = fide_client::wake_eagerly();
    run::run(config, arguments.restore_switches).map(|()| ExitCode::SUCCESS).map_err(failure)
}

fn failure(error: RunError) -> Failure {
    let denied = |why: &std::io::Error| why.kind() == std::io::ErrorKind::PermissionDenied;
    let code = match &error {
        RunError::Tls(error) | RunError::Revoked(error) => code_of_credentials(error),
        RunError::Place { why, .. } => code_of_file(why),
        RunError::NotAController { .. } | RunError::Limits(_) | RunError::Etcd(etcd::Error::Config { .. }) => USAGE,
        RunError::Listen { why, .. } | RunError::Io(why) if denied(why) => NOT_PERMITTED,
        _ => UNHEALTHY,
    };
    Failure::new(code, error)
}

fn check(arguments: &Check) -> Done {
    let config = load(&arguments.config)?;
    run::check(&config).map_err(failure)?;
    let topology = &config.topology;
    let hosts = topology.hosts().count();
    let mut faults = Vec::new();
    if arguments.switches {
        for (section, spec) in config.switches.iter().zip(config.switch_specs()) {
            match config::open(section).and_then(|mut driver| driver.ports()) {
                Ok(ports) => {
                    let there = |port: &&String| ports.iter().any(|state| state.name == **port);
                    let missing: Vec<&str> =
                        spec.ports.iter().filter(|port| !there(port)).map(String::as_str).collect();
                    if !missing.is_empty() {
                        let have: Vec<&str> = ports.iter().map(|state| state.name.as_str()).collect();
                        let (missing, have) = (missing.join(", "), have.join(", "));
                        faults
                            .push(format!("{}: the topology has ports {missing}, the switch has {have}", section.name));
                    }
                }
                Err(error) => faults.push(format!("{}: {error}", section.name)),
            }
        }
    }
    let store = match &config.place {
        Place::File(path) => path.display().to_string(),
        Place::Etcd(etcd) => format!("etcd at {}", etcd.endpoints.join(", ")),
    };
    if arguments.json {
        let (switches, cables) = (config.switches.len(), topology.cables().len());
        show!(
            "{:#}",
            json!({"config": arguments.config, "right": faults.is_empty(), "hosts": hosts, "switches": switches,
                   "cables": cables, "listen": config.listen, "store": store, "faults": faults})
        )?;
    } else if faults.is_empty() {
        show!(
            "{} is right: {hosts} hosts, {} switches, {} cables; listens at {}, keeps its state in {store}",
            arguments.config.display(),
            config.switches.len(),
            topology.cables().len(),
            config.listen
        )?;
    }
    if faults.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(Failure::new(UNHEALTHY, anyhow!("{}", faults.join("\n"))))
}
