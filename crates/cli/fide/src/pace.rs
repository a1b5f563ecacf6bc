// SPDX-License-Identifier: Apache-2.0
//! `fide pace`: messages with deadlines between two hosts, paced to the slowest step, from a shell.

mod bench;
mod key;
mod receive;
mod send;
mod top;
mod tunnel;

use std::{
    net::{SocketAddr, ToSocketAddrs},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use anyhow::anyhow;
use fide_cli::units;
use fide_pace_socket::{
    Algorithm, BindError, ClientKey, Closed, Config, Connection, Endpoint, IDLE_LEAST_NS, ServerKey,
};
use serde_json::{Value, json};

use crate::{
    exit::{Done, Failure, UNHEALTHY, USAGE},
    say::say,
};

#[derive(clap::Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a key, or print what a server's clients need of its key
    Key(key::Arguments),
    /// Send standard input to a host that runs `fide pace recv`
    ///
    /// Exit codes: 0 all was sent, 1 there is no connection, or it has ended, 2 usage.
    Send(send::Arguments),
    /// Wait for `fide pace send`, and write what it sends to standard output
    ///
    /// Exit codes: 0 the sender has sent all, 1 the connection has broken, 2 usage.
    Recv(receive::Arguments),
    /// Carry UDP datagrams of any programs between two hosts
    ///
    /// One end has --from and --to: it takes datagrams of local programs, and connects to the other end. That one has
    /// --accept and --forward: it hands them to a local program, from a port for each of the others, and carries its answers back to the one
    /// that they are for.
    Tunnel(tunnel::Arguments),
    /// Measure how long messages are on their way between two hosts, and which step is the slowest
    ///
    /// One end has --accept, the other HOST:PORT, and prints the figures. Delivery times are by both hosts' clocks, whose
    /// difference is measured; how far that may be wrong is printed, too.
    ///
    /// Exit codes: 0 it has run, 1 there is no connection, or it has ended, 2 usage.
    Bench(bench::Arguments),
    /// Show which step of each connection on this host is the slowest, and what it does
    ///
    /// It shows connections of this user's programs, and of all users' to root: those of `fide pace`, and of programs that
    /// are started with FIDE_PACE_SHOW=1 in their environment, or that ask for it (`Endpoint::show`).
    ///
    /// Exit codes: 0 ended, 1 --once --pid and that process shows nothing, 2 usage.
    Top(top::Arguments),
}

impl Arguments {
    /// Whether it still has something to do when nobody reads what it prints.
    pub(crate) fn outlives_its_reader(&self) -> bool {
        !matches!(self.command, Command::Top(_) | Command::Key(_))
    }
}

/// What all connections have.
#[derive(clap::Args)]
struct Way {
    /// File with the key, as `fide pace key` makes it
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Messages older than this are dropped
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = duration)]
    deadline: Duration,
    /// The share of messages that may be lost, above 0 and below 1: as long as no more are, none waits for a lost one
    #[arg(long, value_name = "SHARE", default_value_t = 0.001, value_parser = share)]
    loss: f64,
    /// Messages that may wait at the sender: more smooth bursts, fewer keep what is sent fresh
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    queue: Option<u16>,
    /// Both ways of the path take equally long: a deadline then has to be longer than one way, and else than a round trip. Where the
    /// way there takes longer, a message can be late by half of the difference
    #[arg(long)]
    even_ways: bool,
    /// After this time without a packet of the other end the connection is over
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = idle)]
    idle: Duration,
    /// How congestion is answered
    #[arg(long, value_name = "NAME", value_enum, default_value_t)]
    congestion: Congestion,
    /// Print one JSON object at the end; `recv`, which has its messages on standard output, on standard error
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Congestion {
    /// Holds a queue of a part of one packet
    #[default]
    Level,
    /// BBR for datagrams, as the paper on X-PACE has it
    Xpace,
}

impl Way {
    fn config(&self, queue: u16) -> Config {
        Config {
            deadline_ns: u64::try_from(self.deadline.as_nanos()).unwrap_or(u64::MAX),
            residual_loss: self.loss,
            queue_max: self.queue.unwrap_or(queue).into(),
            even_ways: self.even_ways,
            idle_ns: u64::try_from(self.idle.as_nanos()).unwrap_or(u64::MAX),
            algorithm: match self.congestion {
                Congestion::Xpace => Algorithm::XPace,
                Congestion::Level => Algorithm::Level,
            },
            ..Config::default()
        }
    }

    fn server(&self, address: &str, queue: u16) -> Result<Endpoint, Failure> {
        let key = ServerKey::parse(&self.text()?).map_err(|why| self.unfit(&why))?;
        let address = resolve(address)?;
        let endpoint = Endpoint::server(address, key, self.config(queue)).map_err(unbound)?;
        show(&endpoint);
        Ok(endpoint)
    }

    fn connect(&self, address: &str, queue: u16) -> Result<Connection, Failure> {
        let key = ClientKey::parse(&self.text()?).map_err(|why| self.unfit(&why))?;
        connect_to_any(&resolve_all(address)?, &key, self.config(queue))
    }

    fn text(&self) -> Result<String, Failure> {
        let unread = |why| Failure::file(&self.key, &why);
        let text = std::fs::read_to_string(&self.key).map_err(unread)?;
        let mode = std::fs::metadata(&self.key).map_err(unread)?.mode() & 0o7777;
        let is_public = matches!(ClientKey::parse(&text), Ok(ClientKey::Public(_)));
        // A pipe or the like is its reader's alone.
        let is_file = self.key.is_file();
        if is_file && !is_public && mode & 0o077 != 0 {
            return Err(self.unfit(&format!(
                "others may read it (mode {mode:04o}), and whoever has it can join the connection: chmod 0400 {}",
                self.key.display()
            )));
        }
        Ok(text)
    }

    fn unfit(&self, why: &impl std::fmt::Display) -> Failure {
        Failure::new(USAGE, anyhow!("{}: {why}", self.key.display()))
    }

    /// What a connection has done, at its end. `recv` has its messages on standard output.
    fn report(&self, connection: &Connection, why: Option<&Closed>, to: Out) -> Result<(), Failure> {
        let counts = connection.counts();
        let (sent, received) = (counts.sent, counts.received);
        if self.json {
            let value = json!({
                "sent": { "messages": sent.messages, "dropped": sent.dropped, "packets": sent.symbols, "again": sent.again,
                    "redundancy": sent.redundancy, "given_up": sent.given_up },
                "received": { "messages": received.delivered, "lost": received.lost, "late": received.late,
                    "restored": received.restored },
                "ended": why.map(ended),
                "bottleneck": bottleneck(connection),
            });
            return match to {
                Out::Standard => crate::say::show_text(&format!("{value}\n")),
                Out::Errors => {
                    say!("{value}");
                    Ok(())
                }
            };
        }
        if sent.messages > 0 {
            say!(
                "fide: {} messages sent ({} dropped as too late, {} packets sent again, {} of redundancy)",
                sent.messages,
                sent.dropped,
                sent.again,
                sent.redundancy
            );
        }
        if received.delivered + received.lost > 0 {
            say!(
                "fide: {} messages received, {} lost ({} of them late)",
                received.delivered,
                received.lost,
                received.late
            );
        }
        Ok(())
    }
}

/// Where the JSON object goes.
#[derive(Debug, Clone, Copy)]
enum Out {
    Standard,
    Errors,
}

/// Who has ended a connection, and why.
fn ended(why: &Closed) -> Value {
    match why {
        Closed::Here => json!({ "by": "here", "reason": null }),
        Closed::There(reason) => json!({ "by": "there", "reason": reason }),
        Closed::Vanished => json!({ "by": "nobody", "reason": "the other end was not heard any more" }),
        Closed::Peer(fault) => json!({ "by": "here", "reason": fault.to_string() }),
    }
}

fn bottleneck(connection: &Connection) -> Value {
    match connection.view().and_then(|view| view.bottleneck) {
        Some((step, ns)) => json!({ "step": step.name(), "pace_ns": ns }),
        None => Value::Null,
    }
}

/// For `fide pace top`.
fn show(endpoint: &Endpoint) {
    if let Err(why) = endpoint.show() {
        say!("fide: {why}");
    }
}

fn unbound(why: BindError) -> Failure {
    let code = match &why {
        BindError::Bind { why, .. } if why.kind() == std::io::ErrorKind::PermissionDenied => crate::exit::NOT_PERMITTED,
        BindError::Bind { .. } | BindError::Config(_) => USAGE,
        BindError::Thread(_) => UNHEALTHY,
    };
    Failure::new(code, why)
}

/// Connects to the first of a host's addresses that answers.
fn connect_to_any(addresses: &[SocketAddr], key: &ClientKey, config: Config) -> Result<Connection, Failure> {
    let endpoint = Endpoint::client().map_err(unbound)?;
    show(&endpoint);
    let mut failed = Vec::new();
    for address in addresses {
        match endpoint.connect(*address, key, config) {
            Ok(connection) => return Ok(connection),
            Err(why) => failed.push(why.to_string()),
        }
    }
    Err(anyhow!("{}", failed.join("; ")).into())
}

/// "host:port", by name or number: the first address.
fn resolve(address: &str) -> Result<SocketAddr, Failure> {
    resolve_all(address).map(|found| found[0])
}

/// The same: all addresses, one at least.
fn resolve_all(address: &str) -> Result<Vec<SocketAddr>, Failure> {
    let wrong = |why: String| {
        Failure::new(USAGE, anyhow!("'{address}' is no address: {why}; use HOST:PORT, such as 192.0.2.7:7000"))
    };
    let found: Vec<_> = address.to_socket_addrs().map_err(|why| wrong(why.to_string()))?.collect();
    if found.is_empty() {
        return Err(wrong("no host has this name".to_owned()));
    }
    Ok(found)
}

/// "250us", "1.5ms", "2s".
fn duration(text: &str) -> Result<Duration, String> {
    units::duration(text)
        .filter(|time| (Duration::from_millis(1)..=Duration::from_secs(60)).contains(time))
        .ok_or_else(|| format!("'{text}' is not a time from 1ms to 60s; use a number and us, ms or s, such as 100ms"))
}

/// "1s" to "3600s".
fn idle(text: &str) -> Result<Duration, String> {
    units::duration(text)
        .filter(|time| (Duration::from_nanos(IDLE_LEAST_NS)..=Duration::from_secs(3600)).contains(time))
        .ok_or_else(|| format!("'{text}' is not a time from 1s to 3600s; use a number and ms or s, such as 5s"))
}

/// Why a connection is over, with where its other end was.
fn lost(connection: &Connection, why: impl std::fmt::Display) -> Failure {
    let why = why.to_string();
    match connection.peer() {
        Some(peer) => Failure::new(UNHEALTHY, anyhow!("{peer}: {why}")),
        None => Failure::new(UNHEALTHY, anyhow!("{why}")),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| format!("'{text}' is no share above 0 and below 1, such as 0.01 for one in a hundred"))
}

/// Ends a connection, and tells the other end, when a signal ends this program.
fn end_on_signal(connection: &Arc<Connection>) {
    let connection = Arc::downgrade(connection);
    // There is one handler in a process, and this is the only command in it.
    let _ = ctrlc::set_handler(move || {
        if let Some(connection) = connection.upgrade() {
            connection.close("ended by a signal");
        }
    });
}

pub(crate) fn run(arguments: &Arguments) -> Done {
    match &arguments.command {
        Command::Key(arguments) => key::run(arguments),
        Command::Send(arguments) => send::run(arguments),
        Command::Recv(arguments) => receive::run(arguments),
        Command::Tunnel(arguments) => tunnel::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Top(arguments) => top::run(arguments),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_of_a_name_is_tried_and_those_that_fail_are_named() {
        let keys = [ServerKey::Secret([7; 32]), ServerKey::Secret([8; 32])];
        let config = Config::default();
        let servers = keys.clone().map(|key| Endpoint::server(([127, 0, 0, 1], 0).into(), key, config).unwrap());
        let addresses = [&servers[0], &servers[1]].map(|server| server.local_address().unwrap());
        let connection = connect_to_any(&addresses, &keys[1].for_clients(), config).unwrap();
        assert_eq!(connection.peer(), Some(addresses[1]));
        let other = ClientKey::Secret([9; 32]);
        let why = connect_to_any(&addresses, &other, config).err().unwrap().to_string();
        assert!(addresses.iter().all(|address| why.contains(&address.to_string())), "{why}");
    }
}
