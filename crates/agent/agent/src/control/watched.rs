// SPDX-License-Identifier: Apache-2.0
//! Local processes under watch, and whose end an event of epoll is about.
//!
//! A slot may change hands while events about it wait in the same batch: its process quits and another joins. So an event
//! carries a number of the registration, and the process that it is about has to have exited by its pidfd.

use std::collections::HashMap;

use super::TOKEN_PROCESS;
use crate::process::Process;

/// Bits of a token that are the registration's number. It has to be unlike those of one batch, and of those that live.
const SERIAL_BITS: u32 = 32;

/// A local process under watch.
pub(super) struct Watched {
    pub(super) process: Process,
    /// What epoll says of this registration, and of no other.
    pub(super) token: u64,
    pub(super) name: String,
    pub(super) cookie: u64,
    /// As its program was told when it joined or came back; after an exclusion the loop has another.
    pub(super) incarnation: u32,
    pub(super) client: u8,
    /// Its effective user when it joined: for people, and no ground to permit anything.
    pub(super) uid: u32,
    /// The user who asked for it; root once root has. Besides root nobody else may end it.
    pub(super) by: u32,
    /// In whose share it counts.
    pub(super) share: u32,
}

/// A token of epoll for whoever is registered as the `serial`-th: before it has a slot.
pub(super) fn token_of(serial: u64) -> u64 {
    TOKEN_PROCESS | serial & ((1 << SERIAL_BITS) - 1)
}

/// Takes the process out that an event of `token` is about; none if that registration is over, or the process lives.
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
    fn end_of_a_process_that_left_takes_out_nobody_else() {
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
        assert!(take_ended(&mut processes, stale).is_none(), "each is told by its own event");
        let (slot, watched) = take_ended(&mut processes, token).expect("it ended");
        assert_eq!((slot, watched.cookie, processes.len()), (63, 8, 0));
    }

    #[test]
    fn tokens_of_processes_are_no_others() {
        for serial in [0, 1, u64::MAX] {
            assert_eq!(token_of(serial) >> 32, TOKEN_PROCESS >> 32);
            assert_eq!(token_of(serial) & super::super::TOKEN_CONNECTION, 0);
        }
    }
}
