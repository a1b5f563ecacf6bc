// SPDX-License-Identifier: Apache-2.0
//! `fide pace tunnel`: UDP datagrams of any programs.
//!
//! ```text
//!  message   u32 the flow, the datagram; or what two ends say first ([`greeting`])
//! ```

mod flows;
mod greeting;
mod local;

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    process::ExitCode,
    sync::Arc,
    thread,
};

use anyhow::anyhow;
use fide_pace_socket::{Closed, Connection, RecvError};
use flows::FLOW_LEN;
use local::{Local, Programs, Sockets};

use super::{Out, Way, end_on_signal, lost, resolve};
use crate::{
    exit::{Done, Failure, UNHEALTHY, USAGE},
    say::say,
};

/// Bytes of datagrams that the socket holds while the tunnel does not run, as far as the host lets it: a large video frame.
const BUFFER_BYTES: usize = 4 << 20;
/// Datagrams that may wait at the sender, unless the user says otherwise: a burst of one video frame.
const QUEUE: u16 = 64;

#[derive(clap::Args)]
pub(super) struct Arguments {
    /// Take datagrams of local programs here, as ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS:PORT", requires = "to")]
    from: Option<String>,
    /// Connect to the tunnel's other end, as HOST:PORT
    #[arg(long, value_name = "HOST:PORT", requires = "from")]
    to: Option<String>,
    /// Wait for the tunnel's other end here, as ADDRESS:PORT
    #[arg(long, value_name = "ADDRESS:PORT", requires = "forward", conflicts_with = "from")]
    accept: Option<String>,
    /// Hand datagrams to the program here, as HOST:PORT
    #[arg(long, value_name = "HOST:PORT", requires = "accept")]
    forward: Option<String>,
    #[command(flatten)]
    way: Way,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let ends = (&arguments.from, &arguments.to, &arguments.accept, &arguments.forward);
    match ends {
        (Some(from), Some(to), None, None) => {
            let socket = bind(resolve(from)?)?;
            say!("fide: datagrams to {from} are carried to {to}");
            let local = Local::Many(Programs::new(socket));
            carry(arguments.way.connect(to, QUEUE)?, &local, &arguments.way)
        }
        (None, None, Some(accept), Some(forward)) => {
            let program = resolve(forward)?;
            // Whether there is a way to it is said now.
            towards(program)?;
            let local = Local::One(Sockets::new(program)?);
            let endpoint = arguments.way.server(accept, QUEUE)?;
            say!("fide: waiting for the other end at {accept}");
            let connection = endpoint.accept().map_err(anyhow::Error::from)?;
            drop(endpoint);
            carry(connection, &local, &arguments.way)
        }
        _ => Err(Failure::new(USAGE, anyhow!("a tunnel's end has --from and --to, or --accept and --forward"))),
    }
}

fn bind(address: SocketAddr) -> Result<UdpSocket, Failure> {
    let socket = UdpSocket::bind(address).and_then(|socket| {
        socket.set_nonblocking(true)?;
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES);
        Ok(socket)
    });
    socket.map_err(|why| Failure::new(crate::exit::code_of_file(&why), anyhow!("no UDP socket at {address}: {why}")))
}

/// A socket that takes datagrams of one program alone, which is there.
fn towards(program: SocketAddr) -> Result<UdpSocket, Failure> {
    let any = if program.is_ipv4() { (Ipv4Addr::UNSPECIFIED, 0).into() } else { (Ipv6Addr::UNSPECIFIED, 0).into() };
    let socket = bind(any)?;
    let unfit = |why| Failure::new(crate::exit::code_of_file(&why), anyhow!("no way to {program}: {why}"));
    socket.connect(program).map_err(unfit)?;
    Ok(socket)
}

/// Both ways until the connection is over.
fn carry(connection: Connection, local: &Local, way: &Way) -> Done {
    let connection = Arc::new(connection);
    end_on_signal(&connection);
    greeting::exchange(&connection, matches!(local, Local::One(_)))?;
    let (last, why) = thread::scope(|scope| {
        let inwards = scope.spawn(|| inwards(&connection, local));
        let last = outwards(&connection, local);
        (last, inwards.join())
    });
    let why = why.map_err(|_| anyhow!("a thread of the tunnel has ended by itself"))?;
    way.report(&connection, Some(&why), Out::Standard)?;
    last?;
    match why {
        Closed::Here => Ok(ExitCode::SUCCESS),
        Closed::There(_) => Ok(ExitCode::SUCCESS),
        why => Err(lost(&connection, RecvError(why))),
    }
}

/// Datagrams of programs into the connection.
fn outwards(connection: &Connection, local: &Local) -> Result<(), Failure> {
    let mut buffer = vec![0; local::ROOM];
    while !connection.is_over() {
        // What finds the queue full is dropped, as by any router, and counted. The end is seen above.
        if let Err(why) = local.receive(&mut buffer, |message| _ = connection.try_send(message, None)) {
            connection.close("the tunnel's socket has failed");
            return Err(Failure::new(UNHEALTHY, anyhow!("the tunnel's socket: {why}")));
        }
    }
    Ok(())
}

/// Messages of the connection to programs.
fn inwards(connection: &Connection, local: &Local) -> Closed {
    loop {
        let message = match connection.recv() {
            Ok(message) => message,
            Err(RecvError(why)) => return why,
        };
        if greeting::is_greeting(&message.bytes) {
            // The first answer was lost, or comes yet.
            if matches!(local, Local::Many(_)) {
                greeting::greet(connection);
            }
        } else if let Some((flow, datagram)) = message.bytes.split_first_chunk::<FLOW_LEN>() {
            local.send(u32::from_be_bytes(*flow), datagram);
        }
        connection.recycle(message);
    }
}
