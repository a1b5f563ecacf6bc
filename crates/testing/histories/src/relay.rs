// SPDX-License-Identifier: Apache-2.0
//! Clients' datagrams into the guest and back: Unix sockets end at its kernel, so they go as UDP in between.
//!
//! Outside, a socket stands in for the guest's member. In the guest, a program hands each datagram to the
//! member by a separate socket for each client. Between both, a datagram begins with the client's number.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs, io,
    net::{SocketAddr, UdpSocket},
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::Context;
use clap::Parser;
use fide_client::now_ns;

use crate::{
    lines::{Answer, Ask, DATAGRAM_MAX, to_bytes},
    register::Op,
};

/// Clients of one relay; further ones are ignored.
const CLIENTS_MAX: usize = 64;
/// Length of the client's number.
const HEAD: usize = 2;
/// How often threads check whether the relay has ended.
const LOOK: Duration = Duration::from_millis(100);

/// State that both outside threads share.
#[derive(Debug, Default)]
struct Shared {
    has_ended: AtomicBool,
    /// Reads are refused until then.
    refuse_until_ns: AtomicU64,
    /// Sockets of clients, by number.
    clients: Mutex<Vec<PathBuf>>,
}

impl Shared {
    fn number(&self, path: &Path) -> Option<u16> {
        let mut clients = self.clients.lock().expect("nobody panics with it");
        let at = clients.iter().position(|client| client == path).or_else(|| {
            (clients.len() < CLIENTS_MAX).then(|| {
                clients.push(path.to_owned());
                clients.len() - 1
            })
        });
        at.map(|at| at as u16)
    }

    fn client(&self, number: u16) -> Option<PathBuf> {
        self.clients.lock().expect("nobody panics with it").get(usize::from(number)).cloned()
    }

    /// The answer to a read that is not passed on.
    fn refusal(&self, ask: &[u8]) -> Option<Vec<u8>> {
        match postcard::from_bytes(ask) {
            Ok(Ask::Op { id, op: Op::Read { .. } }) if now_ns() < self.refuse_until_ns.load(Ordering::SeqCst) => {
                Some(to_bytes(&Answer::NotHere { id, leader: 0 }))
            }
            _ => None,
        }
    }
}

/// The outside end. Its threads end when it is dropped.
#[derive(Debug)]
pub(crate) struct Relay {
    shared: Arc<Shared>,
}

impl Relay {
    /// `socket` is for clients, `wire` leads to the guest.
    pub(crate) fn start(socket: &Path, wire: UdpSocket) -> anyhow::Result<Self> {
        let clients = UnixDatagram::bind(socket).with_context(|| format!("binding {}", socket.display()))?;
        clients.set_read_timeout(Some(LOOK))?;
        wire.set_read_timeout(Some(LOOK))?;
        let shared = Arc::new(Shared::default());
        let (asks, answers) = (clients.try_clone()?, wire.try_clone()?);
        let known = shared.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; HEAD + DATAGRAM_MAX];
            while !known.has_ended.load(Ordering::Relaxed) {
                let Ok((len, from)) = asks.recv_from(&mut bytes[HEAD..]) else { continue };
                let Some(path) = from.as_pathname() else { continue };
                if let Some(refusal) = known.refusal(&bytes[HEAD..HEAD + len]) {
                    let _ = send_now(&asks, &refusal, path);
                } else if let Some(number) = known.number(path) {
                    bytes[..HEAD].copy_from_slice(&number.to_be_bytes());
                    let _ = wire.send(&bytes[..HEAD + len]);
                }
            }
        });
        let known = shared.clone();
        std::thread::spawn(move || {
            let mut bytes = [0; HEAD + DATAGRAM_MAX];
            while !known.has_ended.load(Ordering::Relaxed) {
                let Ok(len) = answers.recv(&mut bytes) else { continue };
                let Some((number, answer)) = split(&bytes[..len]) else { continue };
                if let Some(path) = known.client(number) {
                    let _ = send_now(&clients, answer, &path);
                }
            }
        });
        Ok(Self { shared })
    }

    /// Refuses all reads, until told otherwise.
    pub(crate) fn refuse_reads(&self) {
        self.shared.refuse_until_ns.store(u64::MAX, Ordering::SeqCst);
    }

    /// Refuses reads for so long.
    pub(crate) fn refuse_reads_for(&self, time: Duration) {
        self.shared.refuse_until_ns.store(now_ns() + time.as_nanos() as u64, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
    }
}

/// A client that misses the answer tries again.
fn send_now(socket: &UnixDatagram, bytes: &[u8], to: &Path) -> io::Result<usize> {
    rustix::net::sendto(socket, bytes, rustix::net::SendFlags::DONTWAIT, &rustix::net::SocketAddrUnix::new(to)?)
        .map_err(io::Error::from)
}

fn split(datagram: &[u8]) -> Option<(u16, &[u8])> {
    let (head, rest) = datagram.split_first_chunk::<HEAD>()?;
    Some((u16::from_be_bytes(*head), rest))
}

/// The end in the guest.
#[derive(Debug, Parser)]
#[command(no_binary_name = true)]
struct Args {
    /// Address for datagrams from outside
    #[arg(long)]
    wire: SocketAddr,
    /// The member's socket.
    #[arg(long)]
    member: PathBuf,
    /// Directory for one socket of each client
    #[arg(long)]
    dir: PathBuf,
}

/// Runs the guest's end, as a program.
///
/// # Errors
/// A socket cannot be made.
pub fn main(args: &[String]) -> anyhow::Result<()> {
    let args = Args::try_parse_from(args)?;
    let wire = UdpSocket::bind(args.wire).with_context(|| format!("binding {}", args.wire))?;
    let mut clients: BTreeMap<u16, UnixDatagram> = BTreeMap::new();
    let mut bytes = [0; HEAD + DATAGRAM_MAX];
    loop {
        let (len, outside) = wire.recv_from(&mut bytes)?;
        let Some((number, ask)) = split(&bytes[..len]) else { continue };
        if usize::from(number) >= CLIENTS_MAX {
            continue;
        }
        let socket = match clients.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(client(&args.dir, number, &wire, outside)?),
        };
        // A member that has ended, or is overloaded, does not answer.
        let _ = send_now(socket, ask, &args.member);
    }
}

/// A client's socket in the guest, whose answers go outside.
fn client(dir: &Path, number: u16, wire: &UdpSocket, outside: SocketAddr) -> anyhow::Result<UnixDatagram> {
    let path = dir.join(format!("client-{number}"));
    let _ = fs::remove_file(&path);
    let socket = UnixDatagram::bind(&path).with_context(|| format!("binding {}", path.display()))?;
    let (answers, wire) = (socket.try_clone()?, wire.try_clone()?);
    std::thread::spawn(move || {
        let mut bytes = [0; HEAD + DATAGRAM_MAX];
        bytes[..HEAD].copy_from_slice(&number.to_be_bytes());
        while let Ok(len) = answers.recv(&mut bytes[HEAD..]) {
            let _ = wire.send_to(&bytes[..HEAD + len], outside);
        }
    });
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::register::Id;

    #[test]
    fn reads_alone_are_refused_on_request() {
        let shared = Shared::default();
        let id = Id { client: 1, count: 2 };
        let read = to_bytes(&Ask::Op { id, op: Op::Read { key: 0 } });
        let write = to_bytes(&Ask::Op { id, op: Op::Write { key: 0, value: 3 } });
        assert_eq!(shared.refusal(&read), None);
        shared.refuse_until_ns.store(u64::MAX, Ordering::SeqCst);
        assert_eq!(shared.refusal(&read), Some(to_bytes(&Answer::NotHere { id, leader: 0 })));
        assert_eq!(shared.refusal(&write), None);
        assert_eq!(shared.refusal(&to_bytes(&Ask::Probe { number: 1 })), None);
    }

    #[test]
    fn clients_have_numbers_and_too_many_are_not_heard() {
        let shared = Shared::default();
        let path = |at: usize| PathBuf::from(format!("/c{at}"));
        for at in 0..CLIENTS_MAX {
            assert_eq!(shared.number(&path(at)), Some(at as u16));
        }
        assert_eq!(shared.number(&path(CLIENTS_MAX)), None);
        assert_eq!(shared.number(&path(3)), Some(3));
        assert_eq!(shared.client(3), Some(path(3)));
        assert_eq!(split(&[0, 7, 1]), Some((7, &[1][..])));
        assert_eq!(split(&[0]), None);
    }
}
