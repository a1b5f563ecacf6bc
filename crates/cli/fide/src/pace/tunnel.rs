// SPDX-License-Identifier: Apache-2.0
//! `fide pace tunnel`: UDP datagrams of any program.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    process::ExitCode,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::anyhow;
use fide_pace_socket::{Closed, Connection, RecvError, SendError};

use super::{Out, Way, end_on_signal, lost, resolve};
use crate::{
    exit::{Done, Failure, UNHEALTHY, USAGE},
    say::say,
};

/// Longest datagram.
const DATAGRAM_MAX: usize = 65_536;
/// Bytes of datagrams that the socket holds while the tunnel does not run, as far as the host lets it: a large video frame.
const BUFFER_BYTES: usize = 4 << 20;
/// How soon a thread that waits for a datagram sees that the connection is over.
const LOOKS_EVERY: Duration = Duration::from_millis(100);
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
            carry(arguments.way.connect(to, QUEUE)?, &Local::Any(socket, Mutex::new(None)), &arguments.way)
        }
        (None, None, Some(accept), Some(forward)) => {
            let socket = towards(resolve(forward)?)?;
            let endpoint = arguments.way.server(accept, QUEUE)?;
            say!("fide: waiting for the other end at {accept}");
            let connection = endpoint.accept().map_err(anyhow::Error::from)?;
            drop(endpoint);
            carry(connection, &Local::One(socket), &arguments.way)
        }
        _ => Err(Failure::new(USAGE, anyhow!("a tunnel's end has --from and --to, or --accept and --forward"))),
    }
}

fn bind(address: SocketAddr) -> Result<UdpSocket, Failure> {
    let socket = UdpSocket::bind(address).and_then(|socket| {
        socket.set_read_timeout(Some(LOOKS_EVERY))?;
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

/// The local end of a tunnel.
enum Local {
    /// Takes datagrams of any program, and answers the one that was last; none until one has sent something.
    Any(UdpSocket, Mutex<Option<SocketAddr>>),
    /// Connected to the one program.
    One(UdpSocket),
}

impl Local {
    fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Any(socket, last) => {
                let (len, from) = socket.recv_from(into)?;
                *last.lock().unwrap_or_else(PoisonError::into_inner) = Some(from);
                Ok(len)
            }
            Self::One(socket) => socket.recv(into),
        }
    }

    /// Lost, if the program is not there.
    fn send(&self, datagram: &[u8]) {
        let _ = match self {
            Self::Any(socket, last) => {
                let last = *last.lock().unwrap_or_else(PoisonError::into_inner);
                last.map_or(Ok(0), |to| socket.send_to(datagram, to))
            }
            Self::One(socket) => socket.send(datagram),
        };
    }
}

/// Both ways until the connection is over.
fn carry(connection: Connection, local: &Local, way: &Way) -> Done {
    let connection = Arc::new(connection);
    end_on_signal(&connection);
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

/// Datagrams of the program into the connection.
fn outwards(connection: &Connection, local: &Local) -> Result<(), Failure> {
    let mut datagram = vec![0; DATAGRAM_MAX];
    loop {
        match local.receive(&mut datagram) {
            Ok(len) => {
                match connection.try_send(&datagram[..len], None) {
                    // What finds the queue full is dropped, as by any router, and counted.
                    Ok(()) | Err(SendError::Message(_)) => {}
                    Err(SendError::Closed(_)) => return Ok(()),
                }
            }
            Err(why) if matches!(why.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // An answer to a datagram that was sent: nobody listens there now.
            Err(why) if why.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(why) => {
                connection.close("the tunnel's socket has failed");
                return Err(Failure::new(UNHEALTHY, anyhow!("the tunnel's socket: {why}")));
            }
        }
        if connection.is_over() {
            return Ok(());
        }
    }
}

/// Messages of the connection to the program.
fn inwards(connection: &Connection, local: &Local) -> Closed {
    loop {
        match connection.recv() {
            Ok(message) => {
                local.send(&message.bytes);
                connection.recycle(message);
            }
            Err(RecvError(why)) => return why,
        }
    }
}
