// SPDX-License-Identifier: Apache-2.0
//! How the ends of connections between two hosts find each other, turned by hand.

mod linked;

use std::net::{Ipv4Addr, SocketAddr};

use fide_rack::{
    carry::reads_ring,
    link::{
        App, CONNECTIONS_OF_USER_MAX, Layout,
        offers::{Ends, Host, Offers},
    },
    meet::{Asker, Seen},
    shm::ShmWindow,
    window::WORD,
};
use linked::{LINK_WORDS, Program, WORDS};

const SERVER: u16 = 80;

/// Programs that take their memory at once.
#[derive(Default)]
struct Programs {
    /// With the users that they are of.
    given: Vec<(u32, Program)>,
    carried: usize,
}

impl Host for Programs {
    type App = Program;

    fn gives(&mut self, asker: Asker, _: bool) -> Option<Program> {
        let [own, theirs] = ShmWindow::<WORDS>::pair().unwrap();
        reads_ring(&theirs);
        self.given.push((asker.uid, Program::new(own, None)));
        self.given.last().map(|(_, program)| program.clone())
    }

    fn carries(&mut self, _: usize, _: u32, _: &Program) -> Option<u64> {
        self.carried += 1;
        Some(0)
    }

    fn has_taken(&self, _: usize, _: u64) -> bool {
        true
    }

    fn is_full(&self) -> bool {
        false
    }

    fn load(&self, _: usize) -> usize {
        0
    }
}

/// The server's host, and the client's.
struct Both {
    windows: [ShmWindow<LINK_WORDS>; 2],
    offers: [Offers<Programs>; 2],
    hosts: [Programs; 2],
    connections: u32,
}

impl Both {
    fn new() -> Self {
        let windows = ShmWindow::pair().unwrap();
        let layout = Layout::new(LINK_WORDS * WORD, 1).unwrap();
        let mut offers = [(), ()].map(|()| Offers::new(vec!["10.0.0.0/8".parse().unwrap()]));
        for (at, keys) in [[5, 6], [6, 5]].into_iter().enumerate() {
            offers[at].rises(&windows[at], layout, keys);
        }
        Self { windows, offers, hosts: Default::default(), connections: 0 }
    }

    /// Both ends of one more, of these users, ask. Whether it goes over the link.
    fn connects(&mut self, uids: [u32; 2]) -> bool {
        self.connections += 1;
        let number = self.connections;
        // Other ports for each, as of many clients.
        let [_, high, middle, low] = number.to_be_bytes();
        let client = SocketAddr::from((Ipv4Addr::new(10, high, middle, low), 5000));
        let server = SocketAddr::from((Ipv4Addr::new(10, 200, 0, 1), SERVER));
        let before = [0, 1].map(|at| self.hosts[at].carried);
        let ends = [(server, client, Some(1000)), (client, server, None)];
        for (at, (local, peer, syn)) in ends.into_iter().enumerate() {
            let asker = Asker { client: u64::from(uids[at]), id: number, uid: uids[at] };
            let seen = Seen { syn, stamp: Some(1000) };
            self.offers[at].offers(asker, Ends { local, peer }, seen, &mut self.hosts[at]);
        }
        for _ in 0..6 {
            for at in 0..2 {
                self.offers[at].turn(&self.windows[at], 1, &mut self.hosts[at]).unwrap();
            }
        }
        // As their programs take the questions back.
        (0..2).for_each(|at| self.offers[at].withdraws(uids[at].into(), number));
        [0, 1].map(|at| self.hosts[at].carried - before[at])[1] == 1
    }
}

/// Half of the connections are left for others, at either host.
#[test]
fn one_user_does_not_take_all_connections() {
    const USER: u32 = 7;
    for at in 0..2 {
        let mut both = Both::new();
        let mut connects = |user: u32, number: usize| {
            // Of many at the other host.
            let mut uids = [1000 + u32::try_from(number % 8).unwrap(); 2];
            uids[at] = user;
            let goes = both.connects(uids);
            // What is refused is left with TCP at both hosts.
            let left = both.hosts[0].given.iter().filter(|(_, program)| !program.has_carried()).count();
            (
                goes,
                left,
                both.hosts[at].given.iter().find(|(uid, program)| *uid == USER && !program.has_carried()).cloned(),
            )
        };
        for number in 0..CONNECTIONS_OF_USER_MAX {
            assert!(connects(USER, number).0, "{number}");
        }
        for number in 0..3 {
            let (goes, left, _) = connects(USER, number);
            assert_eq!((goes, left), (false, CONNECTIONS_OF_USER_MAX), "at {at}");
        }
        let (goes, _, of_user) = connects(USER + 1, 0);
        assert!(goes, "of another user");
        of_user.unwrap().1.is_carried();
        assert!(connects(USER, 0).0, "one of its own is over");
        assert!(!connects(USER, 0).0);
    }
}
