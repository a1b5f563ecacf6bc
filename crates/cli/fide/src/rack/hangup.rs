// SPDX-License-Identifier: Apache-2.0
//! `fide rack hangup`: ends this host's TCP connections to hosts that the agent declares dead.
//!
//! **Never by mistake**: only after a verdict on the host, which is final, and only connections to the addresses that this host has in the
//! agent's configuration. One over which something has come since the verdict goes to a host that is back, and stays.
//!
//! Programs under `fide rack run` see `ETIMEDOUT`: before the connections end it is said which addresses are dead ([`fide_rack::dead`]).

use std::{
    ffi::OsStr,
    io, mem,
    net::Ipv4Addr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::anyhow;
use fide_agent::notify::{Manager, Notify};
use fide_agent_api::protocol::PeerState;
use fide_client::{Client, ConnectOptions, Event, HOST_SLOT, MonitorId, Verdict, Wanted, now_ns};
use fide_rack::dead::{Directory, OF_HOST, Unfit};
use serde_json::json;

use crate::{
    ask::SocketArguments,
    diag::{CONNECTED, FAMILIES, Found, destroy_all, list_to, may_destroy},
    exit::{Done, Failure, UNHEALTHY, code_of_file},
    netlink::Netlink,
    say::{say, show, tell},
};

/// How far the kernel's ticks may be off, in what it says of the time since something came.
const TICKS: Duration = Duration::from_millis(20);
/// After an attempt at which the kernel refused something, or its list of sockets has changed.
const RETRY: Duration = Duration::from_millis(100);
/// Such attempts for one verdict; after that it is said that connections may be left.
const ATTEMPTS_MAX: u32 = 50;

#[derive(clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    socket: SocketArguments,
    /// Where to say which addresses are dead, for programs under `fide rack run --dead` with the same directory; by default /run/fide-hangup,
    /// where all look
    #[arg(long, value_name = "DIR")]
    dead: Option<PathBuf>,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

/// A host that was declared dead, and to which there may be connections left.
#[derive(Debug)]
struct Dead {
    monitor: MonitorId,
    name: String,
    addresses: Vec<Ipv4Addr>,
    incarnation: u32,
    /// Of the verdict, CLOCK_MONOTONIC.
    since_ns: u64,
    attempts: u32,
    sum: Sum,
}

/// What became of the connections to a host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    ended: usize,
    /// Something has come over them since the verdict.
    kept: usize,
}

/// Ends the connections to some addresses over which nothing has come since a time ago. False: there may be more.
///
/// # Errors
/// The kernel's; what was ended before is counted.
fn end(diag: &mut Netlink, addresses: &[Ipv4Addr], since: impl Fn() -> Duration, sum: &mut Sum) -> io::Result<bool> {
    if addresses.is_empty() {
        return Ok(true);
    }
    let (mut is_whole, mut wrong) = (true, None);
    sum.kept = 0;
    // Each family's before the next one is listed: the kernel walks all its sockets for a list.
    for family in FAMILIES {
        let listed = list_to(diag, family, CONNECTED, addresses)?;
        is_whole &= !listed.changed;
        let is_heard = |found: &&Found| found.heard_before.is_some_and(|before| before + TICKS < since());
        let (heard, silent): (Vec<_>, Vec<_>) = listed.all.iter().partition(is_heard);
        sum.kept += heard.len();
        for result in destroy_all(diag, &silent)? {
            match result {
                Ok(()) => sum.ended += 1,
                // The others all the same.
                Err(error) => wrong = Some(error),
            }
        }
    }
    wrong.map_or(Ok(is_whole), Err)
}

/// Those of a host: one that this host has, too, says nothing of the other one.
fn addresses(client: &Client, of_host: &[Ipv4Addr]) -> Vec<Ipv4Addr> {
    let agent = client.agent();
    let own = usize::from(agent.host_id).checked_sub(1).and_then(|own| agent.members.get(own));
    let own = own.map(|own| &own.addresses[..]).unwrap_or_default();
    of_host.iter().filter(|address| !own.contains(address)).copied().collect()
}

/// Which addresses are dead, as programs are told.
struct Says {
    /// None: nothing is said.
    directory: Arc<Mutex<Option<Directory>>>,
    dead: Vec<(MonitorId, Vec<Ipv4Addr>)>,
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Says {
    /// In a directory; in that of the host only if this process may.
    fn open(asked: Option<&Path>) -> Result<Self, Failure> {
        let of_host = Path::new(OsStr::from_bytes(OF_HOST.to_bytes()));
        let directory = match (Directory::open(asked.unwrap_or(of_host)), asked) {
            (Ok(directory), at) => {
                if let Some(at) = at.filter(|_| !directory.is_believed_by_all()) {
                    let name = at.display();
                    say!(
                        "fide: only programs of the owner of {name} believe it, and others see ECONNABORTED: chown root {name} for all"
                    );
                }
                Some(directory)
            }
            (Err(why), Some(_)) => {
                let code = match &why {
                    Unfit::Io { why, .. } => code_of_file(why),
                    Unfit::Used(_) | Unfit::Writable(_) => UNHEALTHY,
                };
                return Err(Failure::new(code, anyhow!("--dead: {why}")));
            }
            (Err(why), None) => {
                say!("fide: programs under `fide rack run` see ECONNABORTED, too, and not ETIMEDOUT: {why}");
                None
            }
        };
        Ok(Self { directory: Arc::new(Mutex::new(directory)), dead: Vec::new() })
    }

    /// Has nothing be said any more as a signal ends this process.
    fn end_by_signal(&self) -> Result<(), Failure> {
        let directory = Arc::clone(&self.directory);
        let ends = move || {
            // Held until the end: nothing is said anew.
            let mut held = locked(&directory);
            drop(held.take());
            process::exit(0);
        };
        Ok(ctrlc::set_handler(ends).map_err(anyhow::Error::from)?)
    }

    fn each(&self, addresses: &[Ipv4Addr], what: impl Fn(&Directory, Ipv4Addr) -> io::Result<()>) {
        let held = locked(&self.directory);
        let Some(directory) = &*held else { return };
        for address in addresses {
            if let Err(why) = what(directory, *address) {
                say!("fide: {address} in the directory of dead addresses: {why}");
            }
        }
    }

    fn dead(&mut self, host: MonitorId, addresses: &[Ipv4Addr]) {
        self.each(addresses, |directory, address| directory.is_dead(address.into()));
        self.dead.retain(|(of, _)| *of != host);
        self.dead.push((host, addresses.to_vec()));
    }

    /// Of those that are up again nothing is said any more.
    fn back(&mut self, is_up: impl Fn(MonitorId) -> bool) {
        let (back, dead) = mem::take(&mut self.dead).into_iter().partition(|(host, _)| is_up(*host));
        self.dead = dead;
        let back: Vec<_> = back;
        back.iter().for_each(|(_, of)| self.each(of, |directory, address| directory.is_up(address.into())));
    }
}

impl Drop for Says {
    fn drop(&mut self) {
        drop(locked(&self.directory).take());
    }
}

impl Dead {
    /// Of a verdict on a host; none: it is on something else, or on a host that the agent has no addresses of.
    fn of(verdict: &Verdict, client: &Client) -> Option<Self> {
        let evidence = &verdict.evidence;
        if evidence.slot != HOST_SLOT || !verdict.reason.is_failure() {
            return None;
        }
        let host = client.agent().members.get(usize::from(evidence.host_id).checked_sub(1)?)?;
        Some(Self {
            monitor: verdict.monitor,
            name: host.name.clone(),
            addresses: addresses(client, &host.addresses),
            incarnation: evidence.incarnation,
            since_ns: evidence.rx_ns,
            attempts: 0,
            sum: Sum::default(),
        })
    }

    /// Tries; what has become of it, once that is over.
    fn try_to_end(&mut self, diag: &mut Netlink) -> Option<Result<Sum, String>> {
        self.attempts += 1;
        let since = || Duration::from_nanos(now_ns().saturating_sub(self.since_ns));
        match end(diag, &self.addresses, since, &mut self.sum) {
            Ok(true) => Some(Ok(self.sum)),
            _ if self.attempts < ATTEMPTS_MAX => None,
            Ok(false) => Some(Err("the kernel's list of sockets changes each time while it is read".to_owned())),
            Err(error) => Some(Err(error.to_string())),
        }
    }
}

fn report(arguments: &Arguments, dead: &Dead, result: &Result<Sum, String>) {
    let took_us = now_ns().saturating_sub(dead.since_ns) / 1000;
    let Sum { ended, kept } = dead.sum;
    if arguments.json {
        tell!(
            "{}",
            json!({
                "kind": "hung_up", "host": dead.name, "incarnation": dead.incarnation, "ended": ended, "kept": kept,
                "verdict_ns": dead.since_ns, "us_since_verdict": took_us, "error": result.as_ref().err(),
            })
        );
    } else {
        let kept = if kept > 0 { format!("; {kept} are used again, and stay") } else { String::new() };
        tell!("{} is dead: {ended} connections to it were ended, {took_us} us after the verdict{kept}", dead.name);
    }
    if let Err(why) = result {
        say!("fide: connections to {} may be left: {why}", dead.name);
    }
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let mut diag = may_destroy("fide rack hangup")?;
    let mut says = Says::open(arguments.dead.as_deref())?;
    says.end_by_signal()?;
    let options = ConnectOptions {
        path: Some(arguments.socket.path()),
        program: "fide rack hangup".into(),
        ..ConnectOptions::default()
    };
    let mut client = Client::connect(options)?;
    let me = client.agent().host.clone();
    let members = client.agent().members.iter().filter(|host| host.name != me);
    let others: Vec<_> = members.map(|host| (host.name.clone(), addresses(&client, &host.addresses))).collect();
    // A host that was dead before is told of by no verdict: since when is not known, and its connections stay.
    let mut earlier = Vec::new();
    for (host, addresses) in &others {
        let monitor = client.monitor(&format!("@{host}"), Wanted::default())?;
        if monitor.state == PeerState::Dead {
            // A former one may have ended them.
            says.dead(monitor.id, addresses);
            earlier.push((monitor.id, monitor.incarnation));
        }
    }
    let others: Vec<String> = others.into_iter().map(|(host, _)| host).collect();
    // Older kernels refuse; then this waits like any other program.
    let _ = fide_client::wake_eagerly();
    if arguments.json {
        show!("{}", json!({ "kind": "ready", "host": me, "watches": others }))?;
    } else {
        show!("ready: ends connections to {} when the agent declares them dead", others.join(", "))?;
    }
    Notify::new(Manager::from_env()).ready();
    let mut dead: Vec<Dead> = Vec::new();
    loop {
        match client.wait_event((!dead.is_empty()).then_some(RETRY))? {
            Some(Event::Verdict(verdict)) if !earlier.contains(&(verdict.monitor, verdict.evidence.incarnation)) => {
                if let Some(one) = Dead::of(&verdict, &client) {
                    says.dead(one.monitor, &one.addresses);
                    dead.push(one);
                }
            }
            Some(Event::Rejoined { incarnation }) => client.rejoined_acknowledge(incarnation)?,
            Some(Event::Dropped { what, refusal }) => say!("fide: {what} is not watched any more: {refusal}"),
            Some(Event::Detached { why }) => say!("fide: the agent went away ({why}); looking for it"),
            _ => {}
        }
        says.back(|host| client.peer_state(host) == PeerState::Alive);
        for mut one in mem::take(&mut dead) {
            // A host that is back already has connections of its own.
            let result = match client.peer_state(one.monitor) {
                PeerState::Alive => Some(Ok(one.sum)),
                _ => one.try_to_end(&mut diag),
            };
            match result {
                Some(result) => report(arguments, &one, &result),
                None => dead.push(one),
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
        thread,
    };

    use super::*;

    /// Both ends of a connection.
    fn connection(at: &str, to: &str) -> [TcpStream; 2] {
        let listener = TcpListener::bind((at, 0)).expect("bound");
        let here = TcpStream::connect((to, listener.local_addr().expect("bound").port())).expect("connected");
        let (there, _) = listener.accept().expect("accepted");
        [here, there]
    }

    #[test]
    fn root_connections_are_ended_by_address_and_those_heard_since_stay() {
        if let Err(why) = fide_testbed::supported() {
            println!("skipped: {why}");
            return;
        }
        let bed = fide_testbed::Testbed::build(fide_testbed::Spec::hosts(1)).expect("a testbed");
        bed.host(1)
            .run_in(|| {
                let mut diag = may_destroy("a test").expect("root may");
                // Of several addresses, among which there is no connection to the first.
                let dead = [9, 2, 8].map(|last| Ipv4Addr::new(127, 0, 0, last));
                let (mut to_dead, mut other) =
                    (connection("127.0.0.2", "127.0.0.2"), connection("127.0.0.3", "127.0.0.3"));
                let mut mapped = connection("::", "::ffff:127.0.0.2");
                let mut sum = Sum::default();
                // Heard since a verdict long ago.
                to_dead[1].write_all(b"x").expect("written");
                let long = Duration::from_secs(3600);
                assert!(end(&mut diag, &dead, || long, &mut sum).expect("listed"));
                // The ends that have connected there; the others are at 127.0.0.1.
                assert_eq!(sum, Sum { ended: 0, kept: 2 });
                to_dead[0].read_exact(&mut [0]).expect("it stays");
                // And one who waits.
                let mut waits = to_dead[0].try_clone().expect("cloned");
                let waits = thread::spawn(move || waits.read(&mut [0]).map_err(|error| error.raw_os_error()));
                let mut sum = Sum::default();
                assert!(end(&mut diag, &dead, || Duration::ZERO, &mut sum).expect("listed"));
                assert_eq!(sum, Sum { ended: 2, kept: 0 });
                // More than are ended at once, and each is.
                let mut many: Vec<_> = (0..150).map(|_| connection("127.0.0.8", "127.0.0.8")).collect();
                assert!(end(&mut diag, &dead, || Duration::ZERO, &mut sum).expect("listed"));
                assert_eq!(sum, Sum { ended: 152, kept: 0 });
                for [here, _] in &mut many {
                    let aborted = here.read(&mut [0]).map_err(|error| error.raw_os_error());
                    assert_eq!(aborted, Err(Some(libc::ECONNABORTED)));
                }
                let aborted = Err(Some(libc::ECONNABORTED));
                assert_eq!(waits.join().expect("read"), aborted);
                assert_eq!(mapped[0].read(&mut [0]).map_err(|error| error.raw_os_error()), aborted);
                other[0].write_all(b"x").expect("it stays");
                other[1].read_exact(&mut [0]).expect("it stays");
            })
            .expect("in its namespace");
    }
}
