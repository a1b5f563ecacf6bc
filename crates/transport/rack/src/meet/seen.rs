// SPDX-License-Identifier: Apache-2.0
//! What a monitor remembers of the questions that it has answered, for people who look. It knows no bytes: they go past it, and are counted
//! in the memory alone. Nor does it know the end of a connection: whoever looks compares with what the kernel has.

use std::{collections::VecDeque, time::Instant};

use fide_sys::tcp::TcpEnd;

use super::Refused;

/// Connections that are remembered as paired. With one more, the oldest is forgotten, and counted.
pub const PAIRS_MAX: usize = 4096;
/// Questions that are remembered as not paired. With one more, the oldest is forgotten.
pub const LEFT_MAX: usize = 256;

/// A program that has asked, as it was when it connected to the monitor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// 0: it lives in a pid namespace that the monitor cannot see.
    pub pid: u32,
    pub uid: u32,
}

impl Program {
    /// On another host.
    pub const ELSEWHERE: Self = Self { pid: 0, uid: u32::MAX };
}

/// A connection whose ends were sent memory. Whether they use it is theirs.
#[derive(Debug, Clone, Copy)]
pub struct Pair {
    /// The client's end.
    pub end: TcpEnd,
    pub client: Program,
    pub server: Program,
    /// The client asked first: its part of the memory is the first one.
    pub is_client_first: bool,
    /// The number of the memory's file, as `/proc/PID/maps` shows it.
    pub memory: u64,
    pub at: Instant,
}

impl Pair {
    /// The end that this host has; of two, the client's.
    #[must_use]
    pub fn own(&self) -> TcpEnd {
        if self.client == Program::ELSEWHERE { self.end.other() } else { self.end }
    }
}

/// Why a connection stays with TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    Refused(Refused),
    /// Its program has taken the question back.
    TakenBack,
}

/// An end of a connection that stays with TCP.
#[derive(Debug, Clone, Copy)]
pub struct Left {
    pub program: Program,
    /// None: no socket of a connection came.
    pub end: Option<TcpEnd>,
    pub why: Why,
    pub at: Instant,
}

/// An end of a connection whose other end has not asked.
#[derive(Debug, Clone, Copy)]
pub struct Waits {
    pub program: Program,
    pub end: TcpEnd,
    pub since: Instant,
}

/// Since the monitor began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub asked: u64,
    /// Connections.
    pub paired: u64,
    /// Ends, by [`Refused::ALL`].
    pub refused: [u64; Refused::ALL.len()],
    pub taken_back: u64,
    /// Programs that were sent away: too many, or of a user that is not served.
    pub sent_away: u64,
    /// Connections that were forgotten, as there were too many.
    pub forgotten: u64,
}

/// What a monitor knows now.
#[derive(Debug, Clone, Default)]
pub struct View {
    pub counts: Counts,
    pub programs: Vec<Program>,
    /// The oldest first.
    pub pairs: Vec<Pair>,
    /// The oldest first.
    pub left: Vec<Left>,
    pub waits: Vec<Waits>,
    /// To other hosts.
    pub links: Vec<crate::proxy::View>,
}

#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) counts: Counts,
    pub(super) pairs: VecDeque<Pair>,
    pub(super) left: VecDeque<Left>,
}

impl Seen {
    pub(super) fn paired(&mut self, pair: Pair) {
        self.counts.paired += 1;
        if self.pairs.len() == PAIRS_MAX {
            self.pairs.pop_front();
            self.counts.forgotten += 1;
        }
        self.pairs.push_back(pair);
    }

    /// A process that the program of an end has forked goes on with it.
    pub(super) fn goes_over(&mut self, end: TcpEnd, to: Program) {
        for pair in self.pairs.iter_mut().rev() {
            if pair.end == end {
                pair.client = to;
                return;
            }
            if pair.end == end.other() {
                pair.server = to;
                return;
            }
        }
    }

    pub(super) fn left(&mut self, left: Left) {
        match left.why {
            Why::Refused(why) => {
                let at = Refused::ALL.iter().position(|of| *of == why).unwrap_or(0);
                self.counts.refused[at] += 1;
            }
            Why::TakenBack => self.counts.taken_back += 1,
        }
        if self.left.len() == LEFT_MAX {
            self.left.pop_front();
        }
        self.left.push_back(left);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::*;

    #[test]
    fn oldest_make_way_and_are_counted() {
        let at = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let end = TcpEnd { netns: 1, local: at(1), peer: at(2) };
        let program = Program { pid: 1, uid: 0 };
        let mut seen = Seen::default();
        for memory in 0..=PAIRS_MAX as u64 {
            seen.paired(Pair {
                end,
                client: program,
                server: program,
                is_client_first: true,
                memory,
                at: Instant::now(),
            });
        }
        assert_eq!((seen.pairs.len(), seen.pairs[0].memory), (PAIRS_MAX, 1));
        assert_eq!((seen.counts.paired, seen.counts.forgotten), (PAIRS_MAX as u64 + 1, 1));
        let child = Program { pid: 2, uid: 0 };
        seen.goes_over(end.other(), child);
        let newest = seen.pairs[PAIRS_MAX - 1];
        assert_eq!((newest.client, newest.server, seen.pairs[0].server), (program, child, program));
        for why in [Why::TakenBack, Why::Refused(Refused::Unproven)] {
            for _ in 0..LEFT_MAX {
                seen.left(Left { program, end: Some(end), why, at: Instant::now() });
            }
        }
        assert!(seen.left.len() == LEFT_MAX && seen.left[0].why == Why::Refused(Refused::Unproven));
        assert_eq!(seen.counts.taken_back, LEFT_MAX as u64);
        assert_eq!(seen.counts.refused, [0, 0, 0, 0, 0, LEFT_MAX as u64, 0]);
    }
}
