// SPDX-License-Identifier: Apache-2.0
//! A NETLINK_ROUTE socket in a network namespace: one request and its answers at a time.
//!
//! Messages that `netlink-packet-route` knows (links) are its own; the others are a kind and bytes ([`Raw`]).

use crate::{DriverError, Refusal};
use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

/// For one answer; the kernel gives it before `send` returns.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// How often a dump is asked for again because what it lists changed meanwhile.
const DUMP_TRIES: usize = 8;
/// Most messages of one dump; more is an error.
const DUMP_MAX: usize = 1 << 20;

const NLM_F_CAPPED: u16 = 0x100;
const NLM_F_ACK_TLVS: u16 = 0x200;
const NLMSGERR_ATTR_MSG: u16 = 1;
const NLMSGHDR_LEN: usize = 16;

/// A message of any kind, with what follows its header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Raw {
    pub(crate) kind: u16,
    pub(crate) body: Vec<u8>,
}

impl NetlinkSerializable for Raw {
    fn message_type(&self) -> u16 {
        self.kind
    }

    fn buffer_len(&self) -> usize {
        self.body.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..self.body.len()].copy_from_slice(&self.body);
    }
}

impl NetlinkDeserializable for Raw {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        Ok(Raw { kind: header.message_type, body: payload.to_vec() })
    }
}

/// Attribute with a plain value.
pub(crate) fn nla(kind: u16, value: &[u8]) -> DefaultNla {
    DefaultNla::new(kind, value.to_vec())
}

/// Attribute with attributes in it.
pub(crate) fn nest(kind: u16, inner: &[DefaultNla]) -> DefaultNla {
    DefaultNla::new(kind, emit(inner))
}

/// Attributes one after the other.
pub(crate) fn emit(nlas: &[DefaultNla]) -> Vec<u8> {
    let mut bytes = vec![0; nlas.buffer_len()];
    nlas.emit(&mut bytes);
    bytes
}

/// Kinds (without flags) and values of the attributes in `bytes`, up to the first that is not well formed.
pub(crate) fn attributes(bytes: &[u8]) -> Vec<(u16, &[u8])> {
    // An attribute's value ends with the attribute, so it borrows from `bytes`, not from the iterator's item.
    let mut rest = bytes;
    let mut all = Vec::new();
    for nla in NlasIterator::new(bytes).map_while(Result::ok) {
        let len = usize::from(nla.length());
        let Some(value) = rest.get(4..len) else { break };
        all.push((nla.kind(), value));
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// The first attribute of a kind.
pub(crate) fn attribute<'a>(all: &[(u16, &'a [u8])], kind: u16) -> Option<&'a [u8]> {
    all.iter().find(|(k, _)| *k == kind).map(|(_, v)| *v)
}

/// A number in the machine's order at `at`.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Runs `f` on a thread in a network namespace (none: the caller's own).
pub(crate) fn in_namespace<T: Send>(
    netns: Option<&Path>,
    f: impl FnOnce() -> Result<T, DriverError> + Send,
) -> Result<T, DriverError> {
    let Some(path) = netns else { return f() };
    let what = || format!("entering namespace {}", path.display());
    let ns = File::open(path).map_err(|e| DriverError::io(what(), e))?;
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            move_into_link_name_space(ns.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|e| DriverError::io(what(), e))?;
            f()
        });
        match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// What the kernel answers: done, or why not, or no answer at all.
pub(crate) type Answer<T> = Result<T, NetlinkError>;

#[derive(Debug)]
pub(crate) enum NetlinkError {
    Refused(Refusal),
    Io(std::io::Error),
}

impl NetlinkError {
    /// True if the kernel refused with this number.
    pub(crate) fn is(&self, errno: rustix::io::Errno) -> bool {
        matches!(self, NetlinkError::Refused(r) if r.errno == errno.raw_os_error())
    }

    /// With what was asked, and what had been done before.
    pub(crate) fn on(self, what: impl Into<String>) -> DriverError {
        match self {
            NetlinkError::Refused(refusal) => DriverError::refused(what, refusal),
            NetlinkError::Io(e) => DriverError::io(what, e),
        }
    }
}

/// Stays in the namespace where it was opened.
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    pub(crate) fn open(netns: Option<&Path>) -> Result<Netlink, DriverError> {
        let open = || -> std::io::Result<Socket> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.set_ext_ack(true)?;
            socket.set_cap_ack(true)?;
            set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_LIMIT))?;
            Ok(socket)
        };
        let socket = in_namespace(netns, || open().map_err(|e| DriverError::io("opening a netlink socket", e)))?;
        Ok(Netlink { socket, sequence: 0 })
    }

    fn send(&mut self, message: Raw, flags: u16) -> std::io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).map(drop)
    }

    /// A change, acknowledged.
    pub(crate) fn change(&mut self, message: Raw, flags: u16) -> Answer<()> {
        self.send(message, NLM_F_ACK | flags).map_err(NetlinkError::Io)?;
        self.answers(|_| ()).map(drop)
    }

    /// Everything of a kind, consistently.
    pub(crate) fn dump(&mut self, message: Raw) -> Answer<Vec<Raw>> {
        for _ in 0..DUMP_TRIES {
            let (mut all, mut count) = (Vec::new(), 0usize);
            self.send(message.clone(), NLM_F_DUMP).map_err(NetlinkError::Io)?;
            let interrupted = self.answers(|raw| {
                count += 1;
                if count <= DUMP_MAX {
                    all.push(raw);
                }
            })?;
            if count > DUMP_MAX {
                let why = format!("the kernel lists {count} objects, and {DUMP_MAX} are read at most");
                return Err(NetlinkError::Io(std::io::Error::other(why)));
            }
            if !interrupted {
                return Ok(all);
            }
        }
        let why = format!("what it lists changed during each of {DUMP_TRIES} tries; try again");
        Err(NetlinkError::Io(std::io::Error::other(why)))
    }

    /// Reads up to the end of the answer to the last request; whether it was interrupted by a change.
    fn answers(&mut self, mut take: impl FnMut(Raw)) -> Answer<bool> {
        let mut interrupted = false;
        loop {
            let (bytes, _) = self.socket.recv_from_full().map_err(NetlinkError::Io)?;
            for (header, payload) in split(&bytes) {
                // What is left of a request that was given up.
                if header.sequence_number != self.sequence {
                    continue;
                }
                interrupted |= header.flags & NLM_F_DUMP_INTR != 0;
                match payload {
                    NetlinkPayload::InnerMessage(raw) => take(raw),
                    NetlinkPayload::Done(done) if done.code < 0 => {
                        return Err(NetlinkError::Refused(Refusal { errno: -done.code, said: String::new() }));
                    }
                    NetlinkPayload::Done(_) => return Ok(interrupted),
                    NetlinkPayload::Error(e) if e.raw_code() == 0 => return Ok(interrupted),
                    NetlinkPayload::Error(e) => {
                        let said = extended_ack(header.flags, &e.header).unwrap_or_default();
                        return Err(NetlinkError::Refused(Refusal { errno: -e.raw_code(), said }));
                    }
                    _ => {}
                }
            }
        }
    }
}

/// The messages of one datagram; ends at the first that is not well formed.
pub(crate) fn split(mut bytes: &[u8]) -> Vec<(NetlinkHeader, NetlinkPayload<Raw>)> {
    let mut all = Vec::new();
    while let Ok(message) = NetlinkMessage::<Raw>::deserialize(bytes) {
        let len = NetlinkBuffer::new(bytes).length() as usize;
        all.push((message.header, message.payload));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        if bytes.is_empty() {
            break;
        }
    }
    all
}

/// The kernel's words: attributes after the request's header (and, unless capped, the rest of the request).
fn extended_ack(flags: u16, request: &[u8]) -> Option<String> {
    if flags & NLM_F_ACK_TLVS == 0 {
        return None;
    }
    let skip = if flags & NLM_F_CAPPED != 0 { NLMSGHDR_LEN } else { u32_at(request, 0)? as usize };
    let all = attributes(request.get(skip.next_multiple_of(4)..)?);
    let text = attribute(&all, NLMSGERR_ATTR_MSG)?;
    Some(String::from_utf8_lossy(text).trim_end_matches('\0').to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn attributes_are_read_back_up_to_the_first_broken_one() {
        let bytes = emit(&[nla(3, &[1, 2, 3, 4, 5]), nest(0x8001, &[nla(2, b"x\0")]), nla(4, &[])]);
        let all = attributes(&bytes);
        assert_eq!(all.iter().map(|(k, _)| *k).collect::<Vec<_>>(), [3, 1, 4]);
        assert_eq!(attribute(&all, 3), Some(&[1, 2, 3, 4, 5][..]));
        assert_eq!(attributes(all[1].1), [(2, &b"x\0"[..])]);
        assert_eq!(attributes(&bytes[..15]).len(), 1);
        assert_eq!(attributes(&[1, 0]), []);
    }

    proptest! {
        #[test]
        fn any_netlink_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..256), kind in 0u16..90) {
            attributes(&bytes);
            extended_ack(kind, &bytes);
            // With a header that fits, so that what follows it is looked at.
            let mut whole = (16 + bytes.len() as u32).to_ne_bytes().to_vec();
            whole.extend(kind.to_ne_bytes());
            whole.extend([0; 10]);
            whole.extend(&bytes);
            prop_assert!(split(&whole).len() <= 1);
            split(&bytes);
            crate::link::parse(&Raw { kind, body: bytes });
        }
    }

    #[test]
    fn extended_ack_follows_the_requests_header() {
        let mut request = vec![0u8; NLMSGHDR_LEN];
        request[0] = 20;
        let words = emit(&[nla(NLMSGERR_ATTR_MSG, b"no such thing\0")]);
        let capped = [request.clone(), words.clone()].concat();
        assert_eq!(extended_ack(NLM_F_ACK_TLVS | NLM_F_CAPPED, &capped).as_deref(), Some("no such thing"));
        let whole = [request, vec![9; 4], words].concat();
        assert_eq!(extended_ack(NLM_F_ACK_TLVS, &whole).as_deref(), Some("no such thing"));
        assert_eq!(extended_ack(0, &whole), None);
        assert_eq!(extended_ack(NLM_F_ACK_TLVS, &[1]), None);
    }
}
