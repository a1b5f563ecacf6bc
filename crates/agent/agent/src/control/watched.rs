// SPDX-License-Identifier: Apache-2.0
//! Local processes under watch, and how an epoll event finds its process.
//!
//! A slot may get a new process while events about it wait in the same batch: its process quits and another
//! joins. So an event carries the number of the registration, and its process must have exited according to
//! the pidfd.

use std::collections::HashMap;

use super::TOKEN_PROCESS;
use crate::process::Process;

/// Bits of a token for the registration's number. The number must differ from those in one batch and of
/// live processes.
const SERIAL_BITS: u32 = 32;

/// A local process under watch.
pub(super) struct Watched {
    pub(super) process: Process,
    /// The token that epoll returns for this registration, and for no other.
    pub(super) token: u64,
    pub(super) name: String,
    pub(super) cookie: u64,
    /// As its program knows it, from when it joined or came back; after an exclusion the loop has another.
    pub(super) incarnation: u32,
    pub(super) client: u8,
    /// Its effective user when it joined. Only shown; no permission follows from it.
    pub(super) uid: u32,
    /// The user that registered it; root once root has. Only this user and root may end it.
    pub(super) by: u32,
    /// The user that it counts against.
    pub(super) share: u32,
}

/// The epoll token of the `serial`-th registration, which has no slot yet.
pub(super) fn token_of(serial: u64) -> u64 {
    TOKEN_PROCESS | serial & ((1 << SERIAL_BITS) - 1)
}

/// Takes out the process that an event of `token` is about. None if that registration is over, or the
/// process lives.
pub(super) fn take_ended(processes: &mut HashMap<u8, Watched>, token: u64) -> Option<(u8, Watched)> {
    let ended = |(_, watched): &(&u8, &Watched)| watched.token == token && watched.process.has_exited();
    let slot = *processes.iter().find(ended)?.0;
    Some((slot, processes.remove(&slot)?))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn registered(processes: &mut HashMap<u8, Watched>, slot: u8, serial: u64) -> (Child, u64) {
        let child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let process = Process::open(child.id()).expect("alive");
        let token = token_of(serial);
        let watched = Watched {
            process,
            token,
            name: String::new(),
            cookie: serial,
            incarnation: 1,
            client: 0,
            uid: 0,
            by: 0,
            share: 0,
        };
        processes.insert(slot, watched);
        (child, token)
    }

    #[test]
    fn stale_exit_event_takes_out_no_other_process() {
        let mut processes = HashMap::new();
        let (mut left, stale) = registered(&mut processes, 63, 7);
        left.kill().expect("killed");
        left.wait().expect("reaped");
        // It quits, and another joins in its slot, before the event about it is looked at.
        drop(processes.remove(&63).expect("there"));
        assert!(take_ended(&mut processes, stale).is_none(), "nobody has its slot");
        let (mut other, token) = registered(&mut processes, 63, 8);
        assert!(take_ended(&mut processes, stale).is_none(), "its slot has another owner");
        assert!(take_ended(&mut processes, token).is_none(), "the other one lives");
        assert!(processes.contains_key(&63));
        other.kill().expect("killed");
        other.wait().expect("reaped");
        assert!(take_ended(&mut processes, stale).is_none(), "each end has its own event");
        let (slot, watched) = take_ended(&mut processes, token).expect("it ended");
        assert_eq!((slot, watched.cookie, processes.len()), (63, 8, 0));
    }

    #[test]
    fn process_tokens_are_distinct() {
        for serial in [0, 1, u64::MAX] {
            assert_eq!(token_of(serial) >> 32, TOKEN_PROCESS >> 32);
            assert_eq!(token_of(serial) & super::super::TOKEN_CONNECTION, 0);
        }
    }
}
