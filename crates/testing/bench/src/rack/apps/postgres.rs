// SPDX-License-Identifier: Apache-2.0
//! PostgreSQL and pgbench, as Debian has them: rows that are read by their keys, with prepared statements.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use fide_testbed::figures::Goal;
use rustix::process::Signal;

use super::{App, Bed, Over, Running, Server, output, port};

pub(super) const APP: App = App {
    name: "PostgreSQL",
    figures: &[
        ("pgbench_vs_tcp", "per second", Some(Goal::AtLeast(1.3))),
        ("pgbench_of_eight_vs_tcp", "per second", None),
    ],
    start,
};

/// It refuses to run as root.
const USER: &str = "postgres";
/// Where Debian has its programs, by version.
const PLACE: &str = "/usr/lib/postgresql";
/// Clients.
const LOADS: [u32; 2] = [1, 8];
/// 100,000 rows each.
const SCALE: &str = "5";

fn program(name: &str) -> Result<PathBuf> {
    let versions = fs::read_dir(PLACE).with_context(|| format!("no PostgreSQL at {PLACE}"))?;
    let programs = versions.filter_map(|version| Some(version.ok()?.path().join("bin").join(name)));
    programs.filter(|path| path.exists()).max().with_context(|| format!("no {name} at {PLACE}"))
}

fn start(bed: &Bed, over: Over) -> Result<Running> {
    let port = port()?;
    let folder = bed.folder(&format!("postgres-{port}"))?;
    output({
        let mut command = std::process::Command::new("chown");
        command.arg(USER).arg(&folder);
        command
    })?;
    let data = folder.join("data");
    let mut command = bed.command(Over::Tcp, Some(USER), &program("initdb")?);
    command.arg("-D").arg(&data).args(["-A", "trust", "-N"]).current_dir(&folder);
    output(command)?;
    let mut command = bed.command(over, Some(USER), &program("postgres")?);
    command.arg("-D").arg(&data).args(["-p", &port.to_string(), "-h", "127.0.0.1", "-k", "", "-c", "fsync=off"]);
    command.current_dir(&folder);
    let server = Server::start(command, port, &folder.join("log"), Signal::INT)?;
    let mut command = pgbench(bed, Over::Tcp, server.port)?;
    command.args(["-q", "-i", "-s", SCALE, "postgres"]);
    output(command)?;
    Ok((server, Box::new(move |bed, is_short| round(bed, over, port, is_short))))
}

fn pgbench(bed: &Bed, over: Over, port: u16) -> Result<std::process::Command> {
    let mut command = bed.command(over, Some(USER), &program("pgbench")?);
    command.args(["-h", "127.0.0.1", "-p", &port.to_string()]).current_dir(bed.folder.path());
    Ok(command)
}

fn round(bed: &Bed, over: Over, port: u16, is_short: bool) -> Result<Vec<f64>> {
    let rate = |clients: u32| -> Result<f64> {
        let mut command = pgbench(bed, over, port)?;
        command.args(["-S", "-M", "prepared", "-c", &clients.to_string(), "-T", if is_short { "1" } else { "3" }]);
        command.arg("postgres");
        let text = output(command)?;
        let word = text.lines().find_map(|line| line.strip_prefix("tps = "));
        let number = word.and_then(|word| word.split(' ').next()?.parse().ok());
        number.with_context(|| format!("pgbench: {text}"))
    };
    LOADS.into_iter().map(rate).collect()
}
