// SPDX-License-Identifier: Apache-2.0
//! The little of netlink that a fence needs: a request, and its answers as kinds and bytes.

use std::{io, time::Duration};

use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// For one answer; the kernel gives it at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Most messages of one answer; more is an error.
const ANSWERS_MAX: usize = 1 << 18;

const NLM_F_REQUEST: u16 = 1;
pub(super) const NLM_F_ACK: u16 = 4;
pub(super) const NLM_F_DUMP: u16 = 0x300;
pub(super) const NLM_F_EXCL: u16 = 0x200;
pub(super) const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;

/// A netlink socket, which stays in the network namespace where it was opened.
pub(super) struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// What follows a netlink header, with the kind that the header has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Message {
    pub(super) kind: u16,
    pub(super) body: Vec<u8>,
}

impl Netlink {
    pub(super) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_LIMIT))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Asks, and reads up to the end of the answer.
    ///
    /// # Errors
    /// The kernel's refusal, by its number.
    pub(super) fn ask(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<Vec<Message>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        bytes.extend(u32::try_from(HEADER + body.len()).map_err(io::Error::other)?.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
        let mut all = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            for (sequence, message) in split(&bytes) {
                match message.kind {
                    // What is left of a request that was given up.
                    _ if sequence != self.sequence => {}
                    NLMSG_DONE => return Ok(all),
                    NLMSG_ERROR => match number(&message.body, 0).map(u32::cast_signed) {
                        Some(0) => return Ok(all),
                        Some(negative) => return Err(io::Error::from_raw_os_error(negative.wrapping_neg())),
                        None => return Err(io::Error::other("an answer that is cut off")),
                    },
                    _ if all.len() >= ANSWERS_MAX => return Err(io::Error::other("more answers than are read")),
                    _ => all.push(message),
                }
            }
        }
    }
}

/// The messages of one datagram, with their sequence numbers; ends at the first that is not well formed.
pub(super) fn split(mut bytes: &[u8]) -> Vec<(u32, Message)> {
    let mut all = Vec::new();
    while let (Some(len), Some(kind), Some(sequence)) = (number(bytes, 0), bytes.get(4..6), number(bytes, 8)) {
        let len = len as usize;
        let Some(body) = bytes.get(HEADER..len) else { break };
        let kind = u16::from_ne_bytes([kind[0], kind[1]]);
        all.push((sequence, Message { kind, body: body.to_vec() }));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// Where the attributes in `bytes` have their values, by kind; ends at the first that is not well formed.
pub(super) fn attributes(bytes: &[u8]) -> Vec<(u16, std::ops::Range<usize>)> {
    let mut all = Vec::new();
    let mut at = 0usize;
    while let Some(head) = bytes.get(at..at.saturating_add(4)) {
        let len = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        let kind = u16::from_ne_bytes([head[2], head[3]]);
        if len < 4 || bytes.get(at..at + len).is_none() {
            break;
        }
        all.push((kind, at + 4..at + len));
        at += len.next_multiple_of(4);
    }
    all
}

pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(4 + value.len()).unwrap_or(u16::MAX).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A number in the machine's order at `at`.
pub(super) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_end_at_what_is_broken() {
        let bytes = [attribute(2, &[10, 99, 0, 9]), attribute(3, b"lo:vip\0")].concat();
        let found = attributes(&bytes);
        assert_eq!(
            found.iter().map(|(kind, at)| (*kind, &bytes[at.clone()])).collect::<Vec<_>>(),
            [(2, &[10, 99, 0, 9][..]), (3, b"lo:vip\0")]
        );
        assert_eq!(attributes(&bytes[..9]).len(), 1);
        assert_eq!(attributes(&[3, 0, 1, 0]), []);
        assert_eq!(attributes(&[]), []);
    }

    #[test]
    fn messages_end_at_what_is_broken() {
        let one =
            [&20u32.to_ne_bytes()[..], &7u16.to_ne_bytes(), &[0, 0], &5u32.to_ne_bytes(), &[0; 4], b"body"].concat();
        let message = Message { kind: 7, body: b"body".to_vec() };
        assert_eq!(split(&[&one[..], &one[..]].concat()), [(5, message.clone()), (5, message.clone())]);
        assert_eq!(split(&[&one[..], &one[..17]].concat()), [(5, message)]);
        assert_eq!(split(&[0; 32]), []);
    }
}
