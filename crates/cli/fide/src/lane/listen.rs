// SPDX-License-Identifier: Apache-2.0
//! `fide lane listen`: prints what other hosts send.

use std::{io, iter, process::ExitCode, thread, time::Duration};

use fide_agent::signals::Signals;
use fide_client::{Client, Event};
use fide_lane::lane_of;
use rustix::event::{PollFd, PollFlags, poll};
use serde_json::{Value, json};

use super::{Out, connect, describe};
use crate::{ask::SocketArguments, exit::Done};

/// The bits of a packet's sequence number below the lane's index.
const NUMBER_MASK: u64 = u64::MAX >> 8;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Services to listen to, 1 to 255
    #[arg(required = true, value_name = "SERVICE", value_parser = clap::value_parser!(u8).range(1..))]
    services: Vec<u8>,
    #[command(flatten)]
    socket: SocketArguments,
    /// End with exit code 0 after N messages
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print the bytes in hexadecimal
    #[arg(long)]
    hex: bool,
    /// Print one JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let mut client = connect(&arguments.socket, "fide lane listen")?;
    let out = Out { json: arguments.json };
    for service in &arguments.services {
        client.listen(*service)?;
    }
    let signals = Signals::block()?;
    let services: Vec<String> = arguments.services.iter().map(u8::to_string).collect();
    let host = client.agent().host.clone();
    out.tell(
        &json!({ "kind": "listening", "host": host, "services": arguments.services }),
        &format!("listening on {host} to {}", services.join(", ")),
    )?;
    // Older kernels refuse; then this waits like any other program.
    let _ = fide_client::wake_eagerly();
    let mut left = arguments.count;
    loop {
        while let Some(event) = client.poll_event()? {
            let heard = match message(&client, &event, arguments.hex) {
                Some((value, line)) => {
                    left = left.map(|left| left - 1);
                    out.say(&value, &line)?
                }
                None => match describe(&event) {
                    Some((value, line)) => out.tell(&value, &line)?,
                    None => true,
                },
            };
            // Nobody reads any more, or enough was read.
            if !heard || left == Some(0) {
                return Ok(ExitCode::SUCCESS);
            }
        }
        let mut fds = [PollFd::new(&signals, PollFlags::IN), PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(io::Error::from(error).into()),
        }
        if signals.take().is_some() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// Looks at a record, a millisecond apart: on a busy machine its agent may be interrupted as it writes it.
const LOOKS: usize = 20;

fn host_name(client: &Client, host: u16) -> String {
    let look = || {
        let record = client.table().host(host);
        if record.is_none() {
            thread::sleep(Duration::from_millis(1));
        }
        record
    };
    let record = iter::repeat_with(look).take(LOOKS).flatten().next();
    let name = record.map(|record| record.name().to_owned()).filter(|name| !name.is_empty());
    // Its agent was killed as it wrote.
    name.unwrap_or_else(|| format!("host {host}"))
}

fn message(client: &Client, event: &Event, as_hex: bool) -> Option<(Value, String)> {
    let Event::LaneMessage { host_id, incarnation, service, seq, rx_ns, plane, bytes } = event else { return None };
    let host = host_name(client, *host_id);
    let (lane, number) = (lane_of(*seq), seq & NUMBER_MASK);
    let mut value = json!({
        "kind": "message", "host": host, "host_id": host_id, "incarnation": incarnation, "service": service,
        "lane": lane, "number": number, "plane": plane, "rx_ns": rx_ns,
    });
    let text = if as_hex {
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        value["hex"] = hex.clone().into();
        hex
    } else {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let line = format!("\"{}\"", text.escape_debug());
        value["text"] = text.into();
        line
    };
    let (seconds, rest) = (rx_ns / 1_000_000_000, rx_ns % 1_000_000_000);
    Some((
        value,
        format!("{seconds}.{rest:09} {host} service {service} lane {lane} packet {number} plane {plane}: {text}"),
    ))
}
