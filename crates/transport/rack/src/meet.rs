// SPDX-License-Identifier: Apache-2.0
//! How the two ends of a TCP connection within a host find each other, to go on over memory that both share.
//!
//! ```text
//!  client                            monitor                            server
//!    │ connect() ─────────────────── TCP, by the kernel ──────────────── │ accept()
//!    │ Ask, with its socket ───────────► │                               │
//!    │                                   │ ◄─────── Ask, with its socket │
//!    │ ◄───────────────── Paired, memory │ Paired, memory ─────────────► │
//!    │ ◄════════════════════════ the memory ═══════════════════════════► │
//! ```
//!
//! The TCP connection stays under it: a listener, its backlog, addresses, and what a firewall says of them are the kernel's, the
//! death of a process is seen as the end of its socket, and bytes go that way until both ends have the memory, and for ever if one
//! of them does not ask.
//!
//! **Who may have the memory.** Whoever has the socket of an end: it is handed to the monitor with the question, so that the
//! kernel, and not the asker, says which connection it is an end of. The monitor keeps it while the question waits, so that nobody
//! else can have these addresses meanwhile, and both sockets have to stand at one time. That they name each other is not enough,
//! as with NAT they may be ends of two connections: the client has to have sent the first segment that the server's kernel has kept
//! ([`fide_sys::tcp`]). So a server has that kept before it listens, and asks within a minute.
//!
//! **Forks.** A process that a server forks asks again about the socket that it has from there, once the server has closed it. Its question takes
//! the place of the server's, and if that was answered, and the answer not used, it gets the same memory.
//!
//! **Older kernels** give all connections between the same two addresses one clock (where `secure_tcp_ts_off` does not know of ports). There
//! the segment tells the client's host, and not its socket: where a rule redirects ports of an address to other ones of it, a local user can
//! have a socket that names the server's, and the memory of a connection that is another user's.
//!
//! Ends in two namespaces do not find each other yet.

pub mod ask;
pub mod carried;
pub mod guard;
mod held;
mod lately;
pub mod monitor;
pub mod seen;
pub mod wire;

use std::collections::HashMap;

use fide_sys::tcp::TcpEnd;

/// Words of the memory for each direction: 128 KiB.
pub const WORDS: usize = 1 << 14;
/// Longest time from the first segment of a connection to the question of both its ends: another client's stamp is as near to it with
/// a chance of one in 70,000.
const SINCE_MAX_MS: u32 = 60_000;
/// The kernel rounds a stamp to a millisecond, and the clock that it is compared with by itself.
const ROUNDED_MS: u32 = 2;
/// Questions that wait in one monitor, and those of one user. Further ones are refused: these connections stay with TCP. One whose other
/// end waits already is not: it is answered soon.
pub const WAITING_MAX: usize = 32_768;
pub const WAITING_OF_USER_MAX: usize = 16_384;

/// Who asks: a connection to the monitor, and the number of its question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Asker {
    pub client: u64,
    pub id: u32,
    pub uid: u32,
}

/// What was seen of a socket as it was asked about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The stamp of the first segment, if this is the server's, in milliseconds.
    pub syn: Option<u32>,
    /// Its clock for stamps, in milliseconds.
    pub stamp: Option<u32>,
}

impl Seen {
    /// Whether they are the two ends of one connection: one is the server's, and the other has sent the segment that it began with.
    #[must_use]
    pub fn is_one_with(self, other: Self) -> bool {
        let (stamp, syn) = match (self.syn, other.syn) {
            (Some(syn), None) => (other.stamp, syn),
            (None, Some(syn)) => (self.stamp, syn),
            _ => return false,
        };
        stamp.is_some_and(|stamp| stamp.wrapping_add(ROUNDED_MS).wrapping_sub(syn) <= SINCE_MAX_MS)
    }
}

/// A question that waits for that of the other end, or for its answer. `T`: what is kept for it.
#[derive(Debug)]
pub struct Waiting<T> {
    pub asker: Asker,
    pub kept: T,
    /// Its answer is on the way to its client.
    is_answered: bool,
}

/// Why a question is not asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum Refused {
    #[error("as many questions wait as the monitor keeps, or keeps for one user")]
    Full = 1,
    #[error("this program has asked already, or another one that has the socket asks since")]
    Twice = 2,
    #[error("no socket of a TCP connection that stands came with the question")]
    Socket = 3,
    #[error("the socket is connected to itself")]
    Itself = 4,
    #[error("the monitor has no memory for one more connection")]
    Memory = 5,
    #[error(
        "nothing shows that the socket with the other addresses is the other end: the server has to listen with TCP_SAVE_SYN, TCP needs timestamps, and both have to ask within a minute"
    )]
    Unproven = 6,
    #[error("an address of it is in none of the networks that the monitor serves (--allow-networks)")]
    Network = 7,
}

impl Refused {
    pub const ALL: [Self; 7] =
        [Self::Full, Self::Twice, Self::Socket, Self::Itself, Self::Memory, Self::Unproven, Self::Network];

    #[must_use]
    pub fn of(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|why| *why as u8 == code)
    }

    /// A word for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Twice => "twice",
            Self::Socket => "socket",
            Self::Itself => "itself",
            Self::Memory => "memory",
            Self::Unproven => "unproven",
            Self::Network => "network",
        }
    }
}

/// What becomes of a question.
#[derive(Debug)]
pub enum Asked<T> {
    Waits,
    /// So does that of the other end, by whom both are to be looked at ([`Pairs::pair`]).
    Met(Asker),
    Refused(Refused, T),
}

/// Questions that wait.
///
/// What is kept for a question is given back to its own client alone: to look at another one's socket, or to close it, may take as long as
/// that one likes.
#[derive(Debug)]
pub struct Pairs<T> {
    waiting: HashMap<TcpEnd, Waiting<T>>,
    ends: HashMap<(u64, u32), TcpEnd>,
    of_user: HashMap<u32, usize>,
    most: usize,
    most_of_user: usize,
}

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Self::new(WAITING_MAX, WAITING_OF_USER_MAX)
    }
}

impl<T> Pairs<T> {
    /// With room for so many questions, and for so many of one user.
    #[must_use]
    pub fn new(most: usize, most_of_user: usize) -> Self {
        Self { waiting: HashMap::new(), ends: HashMap::new(), of_user: HashMap::new(), most, most_of_user }
    }

    /// Questions that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What is kept for those that wait.
    pub fn all(&self) -> impl Iterator<Item = &T> {
        self.waiting.values().map(|waiting| &waiting.kept)
    }

    /// An end of a connection asks for the other one.
    pub fn ask(&mut self, end: TcpEnd, asker: Asker, kept: T) -> Asked<T> {
        if end.local == end.peer {
            return Asked::Refused(Refused::Itself, kept);
        }
        if self.waiting.contains_key(&end) || self.ends.contains_key(&(asker.client, asker.id)) {
            return Asked::Refused(Refused::Twice, kept);
        }
        let other = self.waiting.get(&end.other()).filter(|other| !other.is_answered).map(|other| other.asker);
        let of_user = self.of_user.get(&asker.uid).copied().unwrap_or(0);
        if other.is_none() && (self.waiting.len() >= self.most || of_user >= self.most_of_user) {
            return Asked::Refused(Refused::Full, kept);
        }
        self.of_user.insert(asker.uid, of_user + 1);
        self.ends.insert((asker.client, asker.id), end);
        self.waiting.insert(end, Waiting { asker, kept, is_answered: false });
        other.map_or(Asked::Waits, Asked::Met)
    }

    /// Another program that has the socket of this end is about to ask: its question takes the place of one that waits, which is returned.
    /// None: none does, it is that program's own, or it may not go.
    pub fn make_room(&mut self, end: TcpEnd, client: u64, may_go: impl FnOnce(&T) -> bool) -> Option<Waiting<T>> {
        self.waiting.get(&end).filter(|waiting| waiting.asker.client != client && may_go(&waiting.kept))?;
        self.take(end)
    }

    /// A question and that of the other end, if both wait, and for no answer yet.
    #[must_use]
    pub fn pair(&self, client: u64, id: u32) -> Option<[&Waiting<T>; 2]> {
        let end = *self.ends.get(&(client, id))?;
        let both = [self.waiting.get(&end)?, self.waiting.get(&end.other())?];
        both.iter().all(|one| !one.is_answered).then_some(both)
    }

    /// Both are about to be answered: no other one meets them. False: one of them was taken back.
    pub fn answers(&mut self, one: Asker, other: Asker) -> bool {
        let are_paired = self.pair(one.client, one.id).is_some_and(|pair| pair.map(|of| of.asker) == [one, other]);
        for Asker { client, id, .. } in [one, other] {
            if are_paired
                && let Some(end) = self.ends.get(&(client, id))
                && let Some(waiting) = self.waiting.get_mut(end)
            {
                waiting.is_answered = true;
            }
        }
        are_paired
    }

    fn take(&mut self, end: TcpEnd) -> Option<Waiting<T>> {
        let waiting = self.waiting.remove(&end)?;
        let Asker { client, id, uid } = waiting.asker;
        self.ends.remove(&(client, id));
        if let Some(of_user) = self.of_user.get_mut(&uid) {
            *of_user -= 1;
            if *of_user == 0 {
                self.of_user.remove(&uid);
            }
        }
        Some(waiting)
    }

    /// A question is taken back, or answered; what was kept for it. None: it does not wait.
    pub fn cancel(&mut self, client: u64, id: u32) -> Option<T> {
        let end = *self.ends.get(&(client, id))?;
        self.take(end).map(|waiting| waiting.kept)
    }

    /// As [`Pairs::cancel`], if no answer is on the way.
    pub fn cancel_unanswered(&mut self, client: u64, id: u32) -> Option<T> {
        let end = self.ends.get(&(client, id))?;
        self.waiting.get(end).filter(|waiting| !waiting.is_answered)?;
        self.cancel(client, id)
    }

    /// A client is gone; what was kept for all of its questions.
    pub fn gone(&mut self, client: u64) -> Vec<T> {
        let ids: Vec<u32> = self.ends.keys().filter(|(of, _)| *of == client).map(|(_, id)| *id).collect();
        ids.into_iter().filter_map(|id| self.cancel(client, id)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use proptest::prelude::*;

    use super::*;

    fn end(netns: u64, local: u16, peer: u16) -> TcpEnd {
        let at = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        TcpEnd { netns, local: at(local), peer: at(peer) }
    }

    fn asker(client: u64, id: u32) -> Asker {
        Asker { client, id, uid: u32::try_from(client).unwrap() }
    }

    #[test]
    fn ends_of_one_connection_meet_whoever_asks_first() {
        let mut pairs = Pairs::default();
        assert!(matches!(pairs.ask(end(1, 80, 5000), asker(1, 7), "server"), Asked::Waits));
        assert!(matches!(pairs.ask(end(1, 80, 5001), asker(1, 8), "another"), Asked::Waits));
        assert!(matches!(pairs.ask(end(2, 5000, 80), asker(2, 1), "in another namespace"), Asked::Waits));
        assert!(pairs.pair(1, 7).is_none());
        match pairs.ask(end(1, 5000, 80), asker(2, 2), "client") {
            Asked::Met(other) => assert_eq!(other, asker(1, 7)),
            asked => panic!("{asked:?}"),
        }
        let kept = |pairs: &Pairs<_>, client, id| pairs.pair(client, id).map(|pair| pair.map(|one| one.kept));
        assert_eq!(kept(&pairs, 1, 7), Some(["server", "client"]));
        assert_eq!(kept(&pairs, 2, 2), Some(["client", "server"]));
        assert!(!pairs.answers(asker(1, 7), asker(2, 3)) && pairs.answers(asker(1, 7), asker(2, 2)));
        assert!(pairs.pair(1, 7).is_none() && pairs.pair(2, 2).is_none(), "they are answered");
        assert!(!pairs.answers(asker(1, 7), asker(2, 2)));
        assert_eq!((pairs.cancel(1, 7), pairs.cancel(2, 2)), (Some("server"), Some("client")));
        assert_eq!(pairs.len(), 2);
    }

    /// One that was answered may still be there as the next one with the addresses of its other end asks.
    #[test]
    fn what_is_answered_is_not_met() {
        let mut pairs = Pairs::default();
        assert!(matches!(pairs.ask(end(1, 80, 81), asker(1, 1), ()), Asked::Waits));
        assert!(matches!(pairs.ask(end(1, 81, 80), asker(2, 1), ()), Asked::Met(_)));
        assert!(pairs.answers(asker(1, 1), asker(2, 1)));
        assert_eq!(pairs.cancel(2, 1), Some(()));
        assert!(matches!(pairs.ask(end(1, 81, 80), asker(3, 1), ()), Asked::Waits));
        assert!(pairs.pair(3, 1).is_none());
    }

    #[test]
    fn one_end_asks_once_and_not_for_itself() {
        let mut pairs = Pairs::default();
        let refused = |asked: Asked<()>| match asked {
            Asked::Refused(why, ()) => why,
            asked => panic!("{asked:?}"),
        };
        assert_eq!(refused(pairs.ask(end(1, 80, 80), asker(1, 1), ())), Refused::Itself);
        assert!(matches!(pairs.ask(end(1, 80, 81), asker(1, 1), ()), Asked::Waits));
        assert_eq!(refused(pairs.ask(end(1, 80, 81), asker(2, 1), ())), Refused::Twice);
        assert_eq!(refused(pairs.ask(end(1, 90, 91), asker(1, 1), ())), Refused::Twice, "another with its number");
        assert!(pairs.make_room(end(1, 80, 81), 1, |()| true).is_none(), "its own");
        assert!(pairs.make_room(end(1, 80, 81), 2, |()| false).is_none(), "it may not go");
        assert_eq!(refused(pairs.ask(end(1, 80, 81), asker(2, 1), ())), Refused::Twice);
        assert_eq!(pairs.make_room(end(1, 80, 81), 2, |()| true).map(|before| before.asker), Some(asker(1, 1)));
        assert!(matches!(pairs.ask(end(1, 80, 81), asker(2, 1), ()), Asked::Waits));
        assert_eq!((pairs.len(), pairs.cancel(1, 1), pairs.cancel(2, 1)), (1, None, Some(())));
    }

    #[test]
    fn one_user_does_not_take_all_places() {
        let mut pairs = Pairs::default();
        let ends = || (1..=u16::MAX).map(|port| end(1, port, 80)).filter(|end| end.local != end.peer);
        let mut ask = |client: u64, netns: u64| {
            let asks = ends()
                .enumerate()
                .map(|(id, end)| pairs.ask(TcpEnd { netns, ..end }, asker(client, u32::try_from(id).unwrap()), ()));
            asks.take_while(|asked| matches!(asked, Asked::Waits)).count()
        };
        assert_eq!(ask(1, 1), WAITING_OF_USER_MAX);
        assert_eq!(ask(2, 2), WAITING_OF_USER_MAX);
        assert_eq!(ask(3, 3), WAITING_MAX - 2 * WAITING_OF_USER_MAX);
        assert_eq!(pairs.gone(1).len(), WAITING_OF_USER_MAX);
        let mut ask = |client: u64| matches!(pairs.ask(end(9, 1, 2), asker(client, 1), ()), Asked::Waits);
        assert!(ask(3), "there is room again");
    }

    #[test]
    fn one_whose_other_end_waits_needs_no_place() {
        let mut pairs = Pairs::new(1, 1);
        assert!(matches!(pairs.ask(end(1, 80, 81), asker(1, 1), ()), Asked::Waits));
        assert!(matches!(pairs.ask(end(1, 90, 91), asker(1, 2), ()), Asked::Refused(Refused::Full, ())));
        assert!(matches!(pairs.ask(end(1, 81, 80), asker(1, 3), ()), Asked::Met(_)));
    }

    proptest! {
        /// Whatever is asked, taken back and left, in whatever order: what is kept is what waits, and counts are right.
        #[test]
        fn nothing_is_kept_of_what_does_not_wait(
            steps in prop::collection::vec((0..3_u8, 1..4_u64, 0..6_u32, 1..4_u16, 1..4_u16), 1..200),
        ) {
            let mut pairs = Pairs::default();
            for (step, client, id, local, peer) in steps {
                match step {
                    0 => {
                        if let Asked::Met(other) = pairs.ask(end(1, local, peer), asker(client, id), ()) {
                            let pair = pairs.pair(client, id).map(|pair| pair.map(|one| one.asker));
                            prop_assert_eq!(pair, Some([asker(client, id), other]));
                            prop_assert_eq!(pairs.answers(other, asker(client, id)), true);
                        }
                    }
                    1 => _ = pairs.cancel(client, id),
                    _ => _ = pairs.gone(client),
                }
                prop_assert_eq!(pairs.waiting.len(), pairs.ends.len());
                prop_assert_eq!(pairs.of_user.values().sum::<usize>(), pairs.waiting.len());
                for (end, waiting) in &pairs.waiting {
                    let other = pairs.waiting.get(&end.other());
                    prop_assert!(waiting.is_answered || other.is_none_or(|other| other.is_answered), "two ends wait for each other");
                    prop_assert_eq!(pairs.ends.get(&(waiting.asker.client, waiting.asker.id)), Some(end));
                }
            }
            (0..4).for_each(|client| _ = pairs.gone(client));
            prop_assert!(pairs.is_empty() && pairs.of_user.is_empty());
        }
    }
}
