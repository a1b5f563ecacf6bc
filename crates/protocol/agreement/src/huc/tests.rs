// SPDX-License-Identifier: Apache-2.0

use std::collections::{BTreeMap, BTreeSet};

use proptest::{prelude::*, test_runner::TestCaseError};

use super::*;

const VALUE_MAX: usize = 256;

const SETTING: Setting = Setting { value_max: VALUE_MAX, trust: Trust::Network };

/// Members, links that reorder, and an FCURB that keeps its promises and no more.
struct World {
    members: BTreeMap<u16, Huc>,
    dead: BTreeSet<u16>,
    network: Vec<(u16, u16, Vec<u8>)>,
    /// Broadcasts: sender, bytes, members that have yet to deliver it, whether any member has.
    broadcasts: Vec<(u16, Vec<u8>, BTreeSet<u16>, bool)>,
    notices: Vec<(u16, u16)>,
    logs: BTreeMap<u16, Vec<Vec<u8>>>,
    proposed: BTreeMap<Vec<u8>, u16>,
}

impl World {
    fn new(members: usize) -> Self {
        let ids = 1..=u16::try_from(members).unwrap();
        let mut world = Self {
            members: ids.clone().map(|me| (me, Huc::new(&SETTING, me, HostSet::first(members)).unwrap())).collect(),
            dead: BTreeSet::new(),
            network: Vec::new(),
            broadcasts: Vec::new(),
            notices: Vec::new(),
            logs: ids.clone().map(|me| (me, Vec::new())).collect(),
            proposed: BTreeMap::new(),
        };
        ids.for_each(|me| world.drain(me));
        world
    }

    fn alive(&self) -> Vec<u16> {
        self.members.keys().copied().filter(|member| !self.dead.contains(member)).collect()
    }

    fn drain(&mut self, member: u16) {
        let everybody: BTreeSet<u16> = self.alive().into_iter().collect();
        let node = self.members.get_mut(&member).unwrap();
        loop {
            let mut any = false;
            if let Some(decision) = node.poll_decision() {
                let log = self.logs.get_mut(&member).unwrap();
                log.push(decision.value.to_vec());
                assert_eq!(decision.instance, log.len() as u64);
                any = true;
            }
            let mut bytes = Vec::new();
            if let Some((to, message)) = node.poll_transmit() {
                message.write(&mut bytes);
                self.network.extend(to.iter().map(|to| (member, to, bytes.clone())));
                any = true;
            }
            bytes.clear();
            if let Some(message) = node.poll_broadcast() {
                message.write(&mut bytes);
                self.broadcasts.push((member, bytes, everybody.clone(), false));
                any = true;
            }
            if !any {
                return;
            }
        }
    }

    fn propose(&mut self, member: u16) {
        let value = (self.proposed.len() as u32 + 1).to_le_bytes().to_vec();
        if !self.dead.contains(&member) && self.members.get_mut(&member).unwrap().propose(&value).is_ok() {
            self.proposed.insert(value, member);
            self.drain(member);
        }
    }

    fn receive(&mut self, which: usize) {
        if self.network.is_empty() {
            return;
        }
        let (from, to, bytes) = self.network.swap_remove(which % self.network.len());
        if !self.dead.contains(&to) {
            let message = Message::read(&bytes).unwrap();
            self.members.get_mut(&to).unwrap().receive(from, &message).expect("members send what members take");
            self.drain(to);
        }
    }

    /// One member delivers one broadcast, its own or another's.
    fn deliver(&mut self, which: usize) {
        let places: Vec<(usize, u16)> = (0..self.broadcasts.len())
            .flat_map(|at| self.broadcasts[at].2.iter().map(move |to| (at, *to)).collect::<Vec<_>>())
            .collect();
        let Some(&(at, to)) = places.get(which % places.len().max(1)) else { return };
        let (from, bytes, ..) = self.broadcasts[at].clone();
        self.broadcasts[at].2.remove(&to);
        self.broadcasts[at].3 = true;
        if to == from {
            self.members.get_mut(&to).unwrap().broadcast_left();
        } else {
            let message = Message::read(&bytes).unwrap();
            self.members.get_mut(&to).unwrap().receive(from, &message).expect("FCURB keeps its promises");
        }
        self.drain(to);
    }

    /// A broadcast that nobody has delivered is lost for all, or for none.
    fn crash(&mut self, member: u16, lost: bool) {
        if self.dead.contains(&member) || self.alive().len() == 1 {
            return;
        }
        self.dead.insert(member);
        self.broadcasts.retain(|(from, _, _, heard)| *from != member || *heard || !lost);
        self.broadcasts.iter_mut().for_each(|(_, _, to, _)| to.retain(|other| *other != member));
        self.notices.extend(self.alive().into_iter().map(|survivor| (survivor, member)));
    }

    /// Fail-consistency: a survivor delivers the broadcasts of the dead member first.
    fn notice(&mut self, which: usize) {
        if self.notices.is_empty() {
            return;
        }
        let (survivor, dead) = self.notices[which % self.notices.len()];
        if self.broadcasts.iter().any(|(from, _, to, _)| *from == dead && to.contains(&survivor)) {
            return;
        }
        self.notices.retain(|notice| *notice != (survivor, dead));
        if !self.dead.contains(&survivor) {
            self.members.get_mut(&survivor).unwrap().crashed(dead);
            self.drain(survivor);
        }
    }

    fn step(&mut self, what: u8, which: u16) {
        let (alive, index) = (self.alive(), usize::from(which));
        match what {
            0..20 => self.propose(alive[index % alive.len()]),
            20..60 => self.receive(index),
            60..85 => self.deliver(index),
            85..94 => self.notice(index),
            _ => self.crash(alive[index % alive.len()], index / 7 % 2 == 0),
        }
    }

    fn calm(&mut self) {
        for _ in 0..10_000 {
            if self.network.is_empty()
                && self.notices.is_empty()
                && self.broadcasts.iter().all(|(_, _, to, _)| to.is_empty())
            {
                return;
            }
            self.receive(0);
            self.deliver(0);
            self.notice(0);
        }
        panic!("it does not come to rest");
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let longest = self.logs.values().max_by_key(|log| log.len()).unwrap();
        let mut seen = BTreeSet::new();
        for log in self.logs.values() {
            prop_assert!(longest.starts_with(log), "{log:?} and {longest:?}");
        }
        for value in longest.iter().flat_map(|value| batch::values(value)) {
            prop_assert!(self.proposed.contains_key(value) && seen.insert(value.to_vec()), "{value:?} in {longest:?}");
        }
        Ok(())
    }

    fn check_quiet(&self) -> Result<(), TestCaseError> {
        let alive = self.alive();
        let decided: BTreeSet<&[u8]> = self.logs[&alive[0]].iter().flat_map(|value| batch::values(value)).collect();
        for member in &alive {
            prop_assert_eq!(&self.logs[member], &self.logs[&alive[0]]);
        }
        for (value, by) in &self.proposed {
            prop_assert!(!alive.contains(by) || decided.contains(value.as_slice()), "{value:?} of {by} in {decided:?}");
        }
        Ok(())
    }
}

const LEASED: Setting = Setting { trust: Trust::Lease, ..SETTING };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Under leases: heartbeats may reach only some members, and any message may be lost, come twice, or come
    /// late.
    #[test]
    fn leased_members_agree_over_lossy_links(
        members in 1usize..=5, value_max in 20usize..64, steps in prop::collection::vec((0u8..150, any::<u16>()), 0..400),
    ) {
        crate::world::World::<Huc>::new(members, &Setting { value_max, ..LEASED }).follow(&steps)?;
    }

    /// In any order, with any crashes, as long as FCURB keeps its promises.
    #[test]
    fn members_agree_under_any_schedule(
        members in 1usize..=5, steps in prop::collection::vec((0u8..100, any::<u16>()), 0..400),
    ) {
        let mut world = World::new(members);
        for (what, which) in steps {
            world.step(what, which);
            world.check()?;
        }
        world.calm();
        world.check()?;
        world.check_quiet()?;
    }
}

/// FiDe Table 1: two message delays, O(N) messages. A broadcast rides on a heartbeat, and is no message of
/// its own.
#[test]
fn decision_takes_a_proposal_per_member_and_one_heartbeat() {
    for members in 2..=9 {
        let mut world = World::new(members);
        // Every member has announced that it has nothing to say.
        assert_eq!(world.network.len(), members - 1);
        world.calm();
        for member in 1..=members as u16 {
            world.propose(member);
        }
        assert_eq!(
            (world.network.len(), world.broadcasts.len()),
            (members - 1, 1),
            "the leader's decides; others come too late"
        );
        world.broadcasts.clear();
        let mut world = World::new(members);
        world.network.clear();
        for member in (1..=members as u16).rev() {
            world.propose(member);
        }
        assert_eq!(world.network.len(), members - 1, "one delay");
        while !world.network.is_empty() {
            world.receive(0);
        }
        assert_eq!(world.broadcasts.len(), 1, "two");
        world.calm();
        let all: Vec<u32> =
            batch::values(&world.logs[&1][0]).map(|v| u32::from_le_bytes(v.try_into().unwrap())).collect();
        assert_eq!(all.len(), members, "what all had to say");
    }
}

/// App. A.4, "Complexity": a leader's crash costs one delay, and a proposal of each member to the next
/// leader.
#[test]
fn leader_crash_costs_one_delay_and_a_proposal_per_member() {
    for members in 3..=9usize {
        let mut world = World::new(members);
        world.calm();
        world.propose(2);
        world.network.clear();
        world.crash(1, true);
        while !world.notices.is_empty() {
            world.notice(0);
        }
        assert_eq!(world.network.len(), members - 2, "{members} members");
        world.calm();
        assert!((2..=members as u16).all(|member| world.logs[&member].len() == 1));
    }
}

#[test]
fn all_but_one_may_crash() {
    let mut world = World::new(5);
    world.calm();
    for dead in 1..5 {
        world.propose(dead);
        world.propose(5);
        world.calm();
        world.crash(dead, true);
        world.calm();
    }
    world.propose(5);
    world.calm();
    world.check().unwrap();
    let decided: usize = world.logs[&5].iter().map(|value| batch::values(value).count()).sum();
    assert_eq!(decided, 9);
}

#[test]
fn late_proposal_is_in_the_next_instance() {
    let mut leader = Huc::new(&SETTING, 1, HostSet::first(2)).unwrap();
    leader.receive(2, &Message::Propose { instance: 1, round: 2, value: b"" }).unwrap();
    leader.propose(b"a").unwrap();
    assert!(leader.poll_broadcast().is_some());
    let mut late = Vec::new();
    assert!(batch::push(&mut late, b"b", 64));
    leader.receive(2, &Message::Propose { instance: 1, round: 2, value: &late }).unwrap();
    leader.broadcast_left();
    assert_eq!(batch::values(leader.poll_decision().unwrap().value).collect::<Vec<_>>(), [b"a"]);
    leader.receive(2, &Message::Propose { instance: 2, round: 2, value: &late }).unwrap();
    assert!(leader.poll_broadcast().is_some());
    leader.broadcast_left();
    assert_eq!(batch::values(leader.poll_decision().unwrap().value).collect::<Vec<_>>(), [b"b"]);
}

#[test]
fn foreign_message_changes_nothing() {
    let mut member = Huc::new(&SETTING, 2, HostSet::first(3)).unwrap();
    let decided = [0; SET_LEN];
    let cases: [(&str, u16, Message<'_>); 9] = [
        ("4 is not in this group", 4, Message::Propose { instance: 1, round: 4, value: b"" }),
        ("a proposal of round 1 from member 3", 3, Message::Propose { instance: 1, round: 1, value: b"" }),
        ("instance 3, while 0", 3, Message::Propose { instance: 3, round: 3, value: b"" }),
        ("a value of 249 bytes", 3, Message::Propose { instance: 1, round: 3, value: &[0; 249] }),
        ("instance 2, while 0", 1, Message::Decide { instance: 2, round: 1, value: &decided }),
        ("a value of 7 bytes", 1, Message::Decide { instance: 1, round: 1, value: &[0; 7] }),
        ("a value of 257 bytes", 1, Message::Decide { instance: 1, round: 1, value: &[0; 257] }),
        ("does not have", 1, Message::Ack { instance: 1, round: 1 }),
        ("does not have", 1, Message::Delivered { instance: 1 }),
    ];
    let before = member.clone();
    for (says, from, message) in cases {
        let error = member.receive(from, &message).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(member, before);
    member.crashed(1);
    let late = Message::Decide { instance: 1, round: 1, value: &decided };
    assert_eq!(member.receive(1, &late), Err(MessageError::AfterCrash { from: 1 }));
    assert_eq!(member.propose(&[0; 245]), Err(Refused::TooLong { len: 245, max: 244 }));
    assert_eq!(Huc::new(&SETTING, 4, HostSet::first(3)).unwrap_err(), ConfigError::NotAMember { me: 4 });
    let small = Huc::new(&Setting { value_max: 12, ..SETTING }, 1, HostSet::first(3)).unwrap_err();
    assert_eq!(small, ConfigError::ValueMax { max: 12 });
}

#[test]
fn proposal_without_room_has_the_next_turn() {
    // There is room for one of two proposals.
    let setting = Setting { value_max: SET_LEN + 16, ..SETTING };
    let mut members: Vec<Huc> = (1..=2).map(|me| Huc::new(&setting, me, HostSet::first(2)).unwrap()).collect();
    members.iter_mut().for_each(|member| member.propose(&[member.me as u8; 12]).unwrap());
    let mut delivered = Vec::new();
    while delivered.len() < 2 {
        let [leader, other] = members.as_mut_slice() else { unreachable!() };
        let proposed: Vec<u8> = other.poll_transmit().map(|(_, message)| message.value().to_vec()).unwrap_or_default();
        let instance = leader.delivered() + 1;
        leader.receive(2, &Message::Propose { instance, round: 2, value: &proposed }).unwrap();
        let decided = leader.poll_broadcast().expect("somebody's turn").value().to_vec();
        leader.broadcast_left();
        other.receive(1, &Message::Decide { instance, round: 1, value: &decided }).unwrap();
        let value = leader.poll_decision().unwrap().value.to_vec();
        assert_eq!(other.poll_decision().unwrap().value, value);
        delivered.extend(batch::values(&value).map(|value| value[0]));
    }
    assert_eq!(delivered, [2, 1], "each its turn, nothing twice");
}

#[test]
fn leased_leader_solicits_missing_proposals() {
    let mut leader = Huc::new(&LEASED, 1, HostSet::first(3)).unwrap();
    leader.resend();
    assert_eq!(leader.poll_transmit(), None, "nobody has anything to say");
    leader.receive(2, &Message::Propose { instance: 1, round: 2, value: b"" }).unwrap();
    leader.propose(b"x").unwrap();
    leader.resend();
    leader.resend();
    let asked = leader.poll_transmit();
    assert_eq!(asked, Some((HostSet::from_iter([3]), Message::Solicit { instance: 1, round: 1 })));
    let mut member = Huc::new(&LEASED, 3, HostSet::first(3)).unwrap();
    let nothing = Message::Propose { instance: 1, round: 3, value: b"" };
    assert_eq!(member.poll_transmit(), Some((HostSet::from_iter([1]), nothing)));
    member.receive(1, &Message::Solicit { instance: 1, round: 1 }).unwrap();
    assert_eq!(member.poll_transmit(), Some((HostSet::from_iter([1]), nothing)), "once more");
    member.receive(2, &Message::Solicit { instance: 1, round: 2 }).unwrap();
    assert_eq!(member.poll_transmit(), None, "2 does not lead");
}

/// A client of the leader proposes one value after the other: each costs a heartbeat and its
/// acknowledgements.
#[test]
fn leased_silent_member_says_so_with_its_acknowledgement() {
    let mut leader = Huc::new(&LEASED, 1, HostSet::first(2)).unwrap();
    let mut member = Huc::new(&LEASED, 2, HostSet::first(2)).unwrap();
    let nothing = |instance| Message::Propose { instance, round: 2, value: b"" };
    assert_eq!(member.poll_transmit(), Some((HostSet::from_iter([1]), nothing(1))));
    leader.receive(2, &nothing(1)).unwrap();
    for instance in 1..4 {
        leader.propose(&[7]).unwrap();
        let mut bytes = Vec::new();
        leader.poll_broadcast().expect("at once: nobody has to be asked").write(&mut bytes);
        member.receive(1, &Message::read(&bytes).unwrap()).unwrap();
        let mut said = Vec::new();
        while let Some((_, message)) = member.poll_transmit() {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            said.push(bytes);
        }
        for bytes in &said {
            leader.receive(2, &Message::read(bytes).unwrap()).unwrap();
        }
        assert_eq!(said.len(), 2, "that it holds it, and that it has nothing to say next");
        assert_eq!(leader.poll_decision().expect("decided").instance, instance);
        let (_, chosen) = leader.poll_transmit().expect("it says so");
        member.receive(1, &chosen).unwrap();
        assert_eq!(member.poll_decision().expect("decided").instance, instance);
        assert_eq!(member.poll_transmit(), None, "it has said so");
    }
    // A value that comes after all is another proposal.
    member.propose(b"x").unwrap();
    assert!(matches!(member.poll_transmit(), Some((_, Message::Propose { instance: 4, value: [_, ..], .. }))));
}

/// The leader to which a member announced its silence dies before it leads the next instance.
#[test]
fn next_leased_leader_hears_anew_of_silence() {
    let mut member = Huc::new(&LEASED, 3, HostSet::first(3)).unwrap();
    assert!(member.poll_transmit().is_some());
    let mut value = 1u64.to_le_bytes().to_vec();
    value.extend_from_slice(&[1, 0, 7]);
    member.receive(1, &Message::Decide { instance: 1, round: 1, value: &value }).unwrap();
    while member.poll_transmit().is_some() {}
    member.crashed(1);
    while member.poll_transmit().is_some() {}
    // Member 2 stores the decision too, and knows of the death.
    let dead = HostSet::from_iter([1]);
    member.receive(2, &Message::Report { instance: 1, round: 1, dead, asks: false }).unwrap();
    assert_eq!(member.poll_decision().expect("decided").instance, 1);
    assert!(member.poll_decision().is_none());
    let mut said = Vec::new();
    while let Some((to, message)) = member.poll_transmit() {
        said.extend(matches!(message, Message::Propose { instance: 2, round: 3, value: [] }).then_some(to));
    }
    assert_eq!(said, [HostSet::from_iter([2])]);
}

/// All messages of `member`; one may be the broadcast.
fn said(member: &mut Huc) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    let mut push = |message: Message<'_>| {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        all.push(bytes);
    };
    while let Some((_, message)) = member.poll_transmit() {
        push(message);
    }
    member.poll_broadcast().into_iter().for_each(push);
    all
}

/// Member 2 levels after member 3's death, while its leader has decided and goes on. Nothing is resent.
#[test]
fn leased_leader_may_be_a_decision_ahead_of_a_levelling_member() {
    let mut members: Vec<Huc> = (1..=2).map(|me| Huc::new(&LEASED, me, HostSet::first(3)).unwrap()).collect();
    let [leader, member] = members.as_mut_slice() else { unreachable!() };
    let hand = |to: &mut Huc, from: u16, all: &[Vec<u8>]| {
        all.iter().for_each(|bytes| to.receive(from, &Message::read(bytes).unwrap()).unwrap());
    };
    hand(leader, 2, &said(member));
    leader.receive(3, &Message::Propose { instance: 1, round: 3, value: b"" }).unwrap();
    leader.propose(b"a").unwrap();
    leader.propose(b"b").unwrap();
    hand(member, 1, &said(leader));
    // It acknowledges the decision, and announces that it has nothing to say in the next instance.
    hand(leader, 2, &said(member));
    leader.crashed(3);
    member.crashed(3);
    hand(leader, 2, &said(member));
    assert_eq!(leader.poll_decision().expect("decided").instance, 1);
    assert!(leader.poll_decision().is_none());
    let late = said(leader);
    let next = late.last().expect("a broadcast");
    assert!(matches!(Message::read(next), Ok(Message::Decide { instance: 2, round: 1, .. })));
    // It overtakes the leader's report about the dead member.
    hand(member, 1, std::slice::from_ref(next));
    assert!(member.poll_decision().is_none(), "while it levels");
    assert!(said(member).is_empty(), "what it has not taken it does not acknowledge");
    hand(member, 1, &late[..late.len() - 1]);
    assert_eq!(member.poll_decision().expect("decided").instance, 1);
    assert!(member.poll_decision().is_none());
    let answers = said(member);
    let of = |bytes: &Vec<u8>| format!("{:?}", Message::read(bytes).unwrap());
    let is = |message: Message<'_>| answers.iter().any(|bytes| of(bytes) == format!("{message:?}"));
    assert!(is(Message::Ack { instance: 2, round: 1 }), "{answers:?}");
    assert!(is(Message::Propose { instance: 3, round: 2, value: b"" }), "{answers:?}");
    hand(leader, 2, &answers);
    assert_eq!(leader.poll_decision().expect("decided").instance, 2);
    hand(member, 1, &said(leader));
    assert_eq!(member.poll_decision().expect("decided").instance, 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Where links reorder but lose no message of a live member, nothing has to be resent.
    #[test]
    fn leased_members_need_no_resend_over_lossless_links(
        members in 1usize..=5, value_max in 20usize..64, steps in prop::collection::vec((0u8..100, any::<u16>()), 0..400),
    ) {
        let mut world = crate::world::World::<Huc>::new(members, &Setting { value_max, ..LEASED });
        for (what, which) in steps {
            world.step(what, which);
            world.check()?;
        }
        world.arrives();
        world.check()?;
        world.check_quiet()?;
    }
}

/// The leader's clients always have something to say. A client of member 2 proposes just after member 2 has
/// announced its silence in the next instance: its value misses that instance, and the one after waits for
/// it.
#[test]
fn value_after_silence_misses_one_instance() {
    let mut members: Vec<Huc> = (1..=2).map(|me| Huc::new(&LEASED, me, HostSet::first(2)).unwrap()).collect();
    let [leader, member] = members.as_mut_slice() else { unreachable!() };
    let hand = |to: &mut Huc, from: u16, all: &[Vec<u8>]| {
        all.iter().for_each(|bytes| to.receive(from, &Message::read(bytes).unwrap()).unwrap());
    };
    hand(leader, 2, &said(member));
    let mut decided = Vec::new();
    for instance in 1..=4 {
        leader.propose(b"of 1").unwrap();
        hand(member, 1, &said(leader));
        hand(leader, 2, &said(member));
        if instance == 1 {
            member.propose(b"of 2").unwrap();
            hand(leader, 2, &said(member));
        }
        // Its clients propose before it goes on.
        leader.propose(b"of 1").unwrap();
        let value = leader.poll_decision().map(|decision| decision.value.to_vec()).unwrap_or_default();
        decided.extend(batch::values(&value).any(|value| value == b"of 2").then_some(instance));
        hand(member, 1, &said(leader));
        while member.poll_decision().is_some() {}
        hand(leader, 2, &said(member));
    }
    assert_eq!(decided, [3]);
}

/// Clients of members 1 and 3 have something to say in every other instance, those of member 2 always; a
/// decision has room for one member.
#[test]
fn every_member_has_its_turn() {
    let setting = Setting { value_max: SET_LEN + 16, ..SETTING };
    let mut leader = Huc::new(&setting, 1, HostSet::first(3)).unwrap();
    let of = |member: u8| {
        let mut batch = Vec::new();
        assert!(batch::push(&mut batch, &[member; 12], 16));
        batch
    };
    let mut had = HostSet::EMPTY;
    for instance in 1..=6 {
        let is_even = instance % 2 == 0;
        if is_even {
            let _ = leader.propose(&[1; 12]);
        }
        let third = if is_even { Vec::new() } else { of(3) };
        leader.receive(2, &Message::Propose { instance, round: 2, value: &of(2) }).unwrap();
        leader.receive(3, &Message::Propose { instance, round: 3, value: &third }).unwrap();
        let decided = leader.poll_broadcast().expect("somebody's turn").value().to_vec();
        had = HostSet(had.0 | u64::from_le_bytes(decided[..SET_LEN].try_into().unwrap()));
        leader.broadcast_left();
        assert!(leader.poll_decision().is_some());
    }
    assert_eq!(had, HostSet::first(3));
}
