// SPDX-License-Identifier: Apache-2.0
//! The part of netlink that this program needs: a request, and its answers as kinds and bytes.

use std::{io, time::Duration};

use netlink_sys::{Socket, SocketAddr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// How long one answer may take; the kernel answers at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// Most messages of one answer; more is an error.
const ANSWERS_MAX: usize = 1 << 18;

/// Changes that are asked for at once: their answers have room in a socket's queue.
const CHANGES_MAX: usize = 64;
/// Attempts to read a list that changes meanwhile.
const LISTS_MAX: usize = 8;

const NLM_F_REQUEST: u16 = 1;
/// The list changed while the kernel wrote it, so it may lack entries that were there all the time.
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;
pub(crate) const NLM_F_EXCL: u16 = 0x200;
pub(crate) const NLM_F_CREATE: u16 = 0x400;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const HEADER: usize = 16;

/// A netlink socket, which stays in the network namespace where it was opened.
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

/// The part of a message after its header, with kind and flags of the header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) kind: u16,
    flags: u16,
    pub(crate) body: Vec<u8>,
}

/// The answer to one request, as its datagrams come.
#[derive(Debug, Default)]
struct Answer {
    sequence: u32,
    all: Vec<Message>,
    changed: bool,
}

/// A list that the kernel gave.
#[derive(Debug)]
pub(crate) struct List {
    pub(crate) all: Vec<Message>,
    /// The list changed during every attempt to read it: entries that are not in it may exist all the same.
    pub(crate) changed: bool,
}

impl Answer {
    /// Takes a datagram; true if the answer ends with it.
    fn take(&mut self, bytes: &[u8]) -> io::Result<bool> {
        for (sequence, message) in split(bytes) {
            // The rest of the answer to a request that was given up.
            if sequence != self.sequence {
                continue;
            }
            self.changed |= message.flags & NLM_F_DUMP_INTR != 0;
            match message.kind {
                // The end of a list carries a number, too: with an error of the kernel, entries are missing.
                NLMSG_DONE | NLMSG_ERROR => match number(&message.body, 0).map(u32::cast_signed) {
                    Some(0..) => return Ok(true),
                    Some(negative) => return Err(io::Error::from_raw_os_error(negative.wrapping_neg())),
                    None => return Err(io::Error::other("an answer that is cut off")),
                },
                _ if self.all.len() >= ANSWERS_MAX => return Err(io::Error::other("more answers than are read")),
                _ => self.all.push(message),
            }
        }
        Ok(false)
    }
}

impl Netlink {
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_LIMIT))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Asks for a change, and waits until it is done.
    ///
    /// # Errors
    /// The kernel's refusal, by its number.
    pub(crate) fn change(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.send(kind, flags | NLM_F_ACK, body)?;
        self.receive().map(drop)
    }

    /// Asks for some changes, [`CHANGES_MAX`] at once, and waits until they are done: the result of each.
    ///
    /// # Errors
    /// The kernel's where it does not answer: some may be done.
    pub(crate) fn change_all(&mut self, kind: u16, bodies: &[Vec<u8>]) -> io::Result<Vec<io::Result<()>>> {
        let mut all = Vec::with_capacity(bodies.len());
        for bodies in bodies.chunks(CHANGES_MAX) {
            let mut bytes = Vec::new();
            let first = self.sequence.wrapping_add(1);
            for body in bodies {
                self.write(&mut bytes, kind, NLM_F_ACK, body)?;
            }
            self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0)?;
            let mut results: Vec<Option<io::Result<()>>> = bodies.iter().map(|_| None).collect();
            while results.iter().any(Option::is_none) {
                let (bytes, _) = self.socket.recv_from_full()?;
                for (sequence, message) in split(&bytes) {
                    let Some(result) = results.get_mut(sequence.wrapping_sub(first) as usize) else { continue };
                    *result = Some(match (message.kind, number(&message.body, 0).map(u32::cast_signed)) {
                        (NLMSG_ERROR, Some(0)) => Ok(()),
                        (NLMSG_ERROR, Some(negative)) => Err(io::Error::from_raw_os_error(negative.wrapping_neg())),
                        _ => Err(io::Error::other("an answer that says nothing")),
                    });
                }
            }
            all.extend(results.into_iter().flatten());
        }
        Ok(all)
    }

    /// Asks for a list, and again if it changes while it is read, up to [`LISTS_MAX`] times.
    ///
    /// # Errors
    /// The kernel's refusal, by its number.
    pub(crate) fn list(&mut self, kind: u16, body: &[u8]) -> io::Result<List> {
        let mut list = self.list_once(kind, body, || {})?;
        for _ in 1..LISTS_MAX {
            if !list.changed {
                break;
            }
            list = self.list_once(kind, body, || {})?;
        }
        Ok(list)
    }

    /// One attempt; `meanwhile` runs after the kernel has begun to write the list.
    fn list_once(&mut self, kind: u16, body: &[u8], meanwhile: impl FnOnce()) -> io::Result<List> {
        self.send(kind, NLM_F_DUMP, body)?;
        meanwhile();
        let Answer { all, changed, .. } = self.receive()?;
        Ok(List { all, changed })
    }

    fn send(&mut self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(HEADER + body.len());
        self.write(&mut bytes, kind, flags, body)?;
        self.socket.send_to(&bytes, &SocketAddr::new(0, 0), 0).map(drop)
    }

    /// One more request of a datagram.
    fn write(&mut self, bytes: &mut Vec<u8>, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        bytes.extend(u32::try_from(HEADER + body.len()).map_err(io::Error::other)?.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend((NLM_F_REQUEST | flags).to_ne_bytes());
        bytes.extend(self.sequence.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        Ok(())
    }

    /// Reads up to the end of the answer to the last request.
    fn receive(&mut self) -> io::Result<Answer> {
        let mut answer = Answer { sequence: self.sequence, ..Answer::default() };
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            if answer.take(&bytes)? {
                return Ok(answer);
            }
        }
    }
}

/// The messages of one datagram, with their sequence numbers; ends at the first malformed one.
pub(crate) fn split(mut bytes: &[u8]) -> Vec<(u32, Message)> {
    let mut all = Vec::new();
    while let (Some(len), Some(head), Some(sequence)) = (number(bytes, 0), bytes.get(4..8), number(bytes, 8)) {
        let len = len as usize;
        let Some(body) = bytes.get(HEADER..len) else { break };
        let kind = u16::from_ne_bytes([head[0], head[1]]);
        let flags = u16::from_ne_bytes([head[2], head[3]]);
        all.push((sequence, Message { kind, flags, body: body.to_vec() }));
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
    }
    all
}

/// Ranges of the attributes' values in `bytes`, by kind; ends at the first malformed one.
pub(crate) fn attributes(bytes: &[u8]) -> Vec<(u16, std::ops::Range<usize>)> {
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

pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = u16::try_from(4 + value.len()).unwrap_or(u16::MAX).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// A number in the machine's order at `at`.
pub(crate) fn number(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at.checked_add(4)?)?.try_into().ok()?))
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
mod tests {
    use super::*;

    #[test]
    fn attributes_end_at_the_first_broken_one() {
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

    fn message(kind: u16, flags: u16, sequence: u32, body: [u8; 4]) -> Vec<u8> {
        let words = [&20u32.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &sequence.to_ne_bytes()];
        [&words.concat()[..], &[0; 4], &body].concat()
    }

    #[test]
    fn messages_end_at_the_first_broken_one() {
        let one = message(7, 2, 5, *b"body");
        let message = Message { kind: 7, flags: 2, body: b"body".to_vec() };
        assert_eq!(split(&[&one[..], &one[..]].concat()), [(5, message.clone()), (5, message.clone())]);
        assert_eq!(split(&[&one[..], &one[..17]].concat()), [(5, message)]);
        assert_eq!(split(&[0; 32]), []);
    }

    #[test]
    fn list_changed_during_reading_is_marked() {
        let mut answer = Answer { sequence: 5, ..Answer::default() };
        let of_another = message(7, NLM_F_DUMP_INTR, 4, *b"body");
        assert!(!answer.take(&[message(7, 2, 5, *b"body"), of_another].concat()).expect("well formed"));
        assert!(!answer.changed, "another request's list");
        assert!(!answer.take(&message(7, 2 | NLM_F_DUMP_INTR, 5, *b"body")).expect("well formed"));
        assert!(answer.take(&message(NLMSG_DONE, 2, 5, [0; 4])).expect("well formed"));
        assert_eq!((answer.all.len(), answer.changed), (2, true));
        // If nothing follows the change, only the end shows it.
        let mut answer = Answer { sequence: 5, ..Answer::default() };
        assert!(answer.take(&message(NLMSG_DONE, 2 | NLM_F_DUMP_INTR, 5, [0; 4])).expect("well formed"));
        assert!(answer.changed);
    }

    #[test]
    fn list_with_an_error_is_none() {
        let end = |words: &[u8]| {
            let mut answer = Answer { sequence: 5, ..Answer::default() };
            assert!(!answer.take(&message(7, 2, 5, *b"body")).expect("well formed"));
            answer.take(words)
        };
        assert!(end(&message(NLMSG_DONE, 2, 5, [0; 4])).expect("whole"));
        // As many entries as there are, from kernels that count them.
        assert!(end(&message(NLMSG_DONE, 2, 5, 1i32.to_ne_bytes())).expect("whole"));
        let refused = end(&message(NLMSG_DONE, 2, 5, (-libc::ENOMEM).to_ne_bytes())).expect_err("entries are missing");
        assert_eq!(refused.raw_os_error(), Some(libc::ENOMEM));
        let mut short = message(NLMSG_DONE, 2, 5, [0; 4]);
        short.truncate(HEADER);
        short[..4].copy_from_slice(&u32::try_from(HEADER).expect("small").to_ne_bytes());
        assert!(end(&short).expect_err("it does not say whether it is whole").to_string().contains("cut off"));
    }

    #[test]
    fn refusal_ends_an_answer() {
        let mut answer = Answer { sequence: 5, ..Answer::default() };
        let refused = answer.take(&message(NLMSG_ERROR, 0, 5, (-libc::EPERM).to_ne_bytes())).expect_err("refused");
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        let mut answer = Answer { sequence: 5, ..Answer::default() };
        assert!(answer.take(&message(NLMSG_ERROR, 0, 5, [0; 4])).expect("done"));
    }

    /// More than the kernel gives at once.
    #[test]
    fn root_changed_list_is_read_again() {
        const ADDRESSES: u32 = 1500;
        const RTM_NEWADDR: u16 = 20;
        const RTM_GETADDR: u16 = 22;
        if let Err(why) = fide_testbed::supported() {
            println!("skipped: {why}");
            return;
        }
        let bed = fide_testbed::Testbed::build(fide_testbed::Spec::hosts(1)).expect("a testbed");
        bed.host(1)
            .run_in(|| {
                let mut route = Netlink::open(netlink_sys::protocols::NETLINK_ROUTE).expect("netlink");
                let mut add = |number: u32| {
                    let [.., high, low] = number.to_be_bytes();
                    // On the loopback interface.
                    let body = [&[2, 32, 0, 0, 1, 0, 0, 0][..], &attribute(2, &[10, 99, high, low])].concat();
                    route.change(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &body).expect("added");
                };
                (0..ADDRESSES).for_each(&mut add);
                let mut lists = Netlink::open(netlink_sys::protocols::NETLINK_ROUTE).expect("netlink");
                let family = [2, 0, 0, 0, 0, 0, 0, 0];
                let once = lists.list_once(RTM_GETADDR, &family, || add(ADDRESSES)).expect("a list");
                assert!(once.changed, "{} addresses", once.all.len());
                let list = lists.list(RTM_GETADDR, &family).expect("a list");
                assert!(!list.changed);
                assert!(list.all.len() > ADDRESSES as usize, "{}", list.all.len());
            })
            .expect("in its namespace");
    }
}
