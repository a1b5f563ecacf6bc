// SPDX-License-Identifier: Apache-2.0
//! `fide rack hangup`: ends this host's TCP connections to hosts that the agent declares dead.
//!
//! **Never by mistake**: only after a verdict on the host, which is final, and only connections to the addresses that this host has in the
//! agent's configuration. One over which something has come since the verdict goes to a host that is back, and stays.

use std::{io, mem, net::Ipv4Addr, time::Duration};

use fide_agent::notify::{Manager, Notify};
use fide_agent_api::protocol::PeerState;
use fide_client::{Client, ConnectOptions, Event, HOST_SLOT, MonitorId, Verdict, Wanted, now_ns};
use serde_json::json;

use crate::{
    ask::SocketArguments,
    diag::{CONNECTED, destroy, list, may_destroy},
    exit::Done,
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
    let (mut is_whole, mut wrong) = (true, None);
    sum.kept = 0;
    for address in addresses {
        let listed = list(diag, CONNECTED, Some(*address))?;
        is_whole &= !listed.changed;
        for found in &listed.all {
            if found.heard_before.is_some_and(|before| before + TICKS < since()) {
                sum.kept += 1;
                continue;
            }
            match destroy(diag, found) {
                Ok(()) => sum.ended += 1,
                // The others all the same.
                Err(error) => wrong = Some(error),
            }
        }
    }
    wrong.map_or(Ok(is_whole), Err)
}

impl Dead {
    /// Of a verdict on a host; none: it is on something else, or on a host that the agent has no addresses of.
    fn of(verdict: &Verdict, client: &Client) -> Option<Self> {
        let evidence = &verdict.evidence;
        if evidence.slot != HOST_SLOT || !verdict.reason.is_failure() {
            return None;
        }
        let agent = client.agent();
        let of = |id: u16| agent.members.get(usize::from(id).checked_sub(1)?);
        let host = of(evidence.host_id)?;
        // An address that this host has, too, says nothing of the other one.
        let own = of(agent.host_id).map(|own| &own.addresses[..]).unwrap_or_default();
        let addresses = host.addresses.iter().filter(|address| !own.contains(address)).copied().collect();
        Some(Self {
            monitor: verdict.monitor,
            name: host.name.clone(),
            addresses,
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
                "us_since_verdict": took_us, "error": result.as_ref().err(),
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
    let options = ConnectOptions {
        path: Some(arguments.socket.path()),
        program: "fide rack hangup".into(),
        ..ConnectOptions::default()
    };
    let mut client = Client::connect(options)?;
    let me = client.agent().host.clone();
    let others: Vec<String> =
        client.agent().members.iter().map(|host| host.name.clone()).filter(|name| *name != me).collect();
    // A host that was dead before is told of by no verdict: since when is not known, and its connections stay.
    let mut earlier = Vec::new();
    for host in &others {
        let monitor = client.monitor(&format!("@{host}"), Wanted::default())?;
        if monitor.state == PeerState::Dead {
            earlier.push((monitor.id, monitor.incarnation));
        }
    }
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
                dead.extend(Dead::of(&verdict, &client));
            }
            Some(Event::Rejoined { incarnation }) => client.rejoined_acknowledge(incarnation)?,
            Some(Event::Dropped { what, refusal }) => say!("fide: {what} is not watched any more: {refusal}"),
            Some(Event::Detached { why }) => say!("fide: the agent went away ({why}); looking for it"),
            _ => {}
        }
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
                let dead = [Ipv4Addr::new(127, 0, 0, 2)];
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
                let aborted = Err(Some(libc::ECONNABORTED));
                assert_eq!(waits.join().expect("read"), aborted);
                assert_eq!(mapped[0].read(&mut [0]).map_err(|error| error.raw_os_error()), aborted);
                other[0].write_all(b"x").expect("it stays");
                other[1].read_exact(&mut [0]).expect("it stays");
            })
            .expect("in its namespace");
    }
}
