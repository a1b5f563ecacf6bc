// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::world::World;

fn setting(window: u64) -> Setting {
    Setting { window, value_max: 64, links: Links::Reliable }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Under any order of messages and any crashes, logs are prefixes of each other, and contain only
    /// proposed values, each once. Once the world is quiet, all live members have the same log.
    #[test]
    fn members_agree_under_any_schedule(
        members in 1usize..=5, window in 1u64..=4, steps in prop::collection::vec((0u8..100, any::<u16>()), 0..400),
    ) {
        World::<Hsuc>::new(members, &setting(window)).follow(&steps)?;
    }

    /// The same where any message may be lost or come twice, as long as unanswered messages are resent.
    #[test]
    fn members_agree_over_lossy_links(
        members in 1usize..=5, window in 1u64..=4, steps in prop::collection::vec((0u8..150, any::<u16>()), 0..400),
    ) {
        World::<Hsuc>::new(members, &Setting { links: Links::Lossy, ..setting(window) }).follow(&steps)?;
    }
}

/// Runs in rounds until nothing is under way: a message that is sent in one round arrives in the next.
/// Returns the rounds until all had decided, and the number of messages.
fn rounds(world: &mut World<Hsuc>) -> (usize, usize) {
    let (mut rounds, mut sent) = (0, 0);
    while !world.network.is_empty() {
        let now = std::mem::take(&mut world.network);
        sent += now.len();
        rounds += 1;
        for (from, to, bytes) in now {
            world.deliver(from, to, &bytes);
        }
    }
    (rounds, sent)
}

/// FiDe Table 1.
#[test]
fn decision_takes_three_delays_and_three_messages_per_member() {
    for members in 2..=9 {
        let mut world = World::<Hsuc>::new(members, &setting(1));
        world.propose(1);
        assert_eq!(rounds(&mut world), (3, 3 * (members - 1)), "{members} members");
        assert!((1..=members as u16).all(|member| world.log(member).len() == 1));
    }
}

/// The one that adopts a proposal decides it at once, also if its acknowledgement is lost, and again if the proposal
/// comes again; and it is the leader then that learns of the decision.
#[test]
fn of_two_members_the_one_that_adopts_a_proposal_decides() {
    let lossy = Setting { links: Links::Lossy, ..setting(2) };
    let [mut leader, mut other] = [1, 2].map(|me| Hsuc::new(&lossy, me, HostSet::first(2)).unwrap());
    [&mut leader, &mut other].into_iter().for_each(Agreement::decide_before_leader);
    let pass = |from: u16, to: &mut Hsuc, messages: &[(HostSet, Vec<u8>)]| {
        messages.iter().for_each(|(_, bytes)| to.receive(from, &Message::read(bytes).unwrap()).unwrap());
    };
    for value in [b"a", b"b"] {
        leader.propose(value).unwrap();
        pass(1, &mut other, &sent(&mut leader));
    }
    let decided = |member: &mut Hsuc| std::iter::from_fn(|| member.poll_decision().map(|of| of.instance)).count();
    assert_eq!((decided(&mut leader), decided(&mut other)), (0, 2));
    sent(&mut other);
    assert!(!leader.resend() && leader.resend(), "the answers may be under way, and then they are lost");
    pass(1, &mut other, &sent(&mut leader));
    pass(2, &mut leader, &sent(&mut other));
    assert_eq!((decided(&mut leader), sent(&mut leader)), (2, Vec::new()), "nothing is announced");
    // With a value in the window that its leader has not decided, the other one is alone, and leads.
    leader.propose(b"c").unwrap();
    pass(1, &mut other, &sent(&mut leader));
    assert_eq!(decided(&mut other), 1);
    other.crashed(1);
    assert!(other.speaks_for_all());
    // Or the leader is.
    leader.crashed(2);
    assert_eq!(decided(&mut leader), 1);
}

/// App. A.3, "Complexity": a leader's crash costs two more delays, and each of the others relays to each.
#[test]
fn leader_crash_costs_two_delays_and_a_window_of_relays() {
    for members in 3..=9usize {
        let mut world = World::<Hsuc>::new(members, &setting(1));
        // One instance is decided; the next one is proposed to all, and not acknowledged yet.
        world.propose(1);
        rounds(&mut world);
        world.propose(1);
        let proposals = std::mem::take(&mut world.network);
        for (from, to, bytes) in proposals {
            world.deliver(from, to, &bytes);
        }
        world.crash(1, 0);
        world.network.clear();
        while world.notice(0) {}
        let others = members - 1;
        let relays = others * (others - 1);
        // The new leader's proposal, the acknowledgements, and its decision.
        assert_eq!(rounds(&mut world), (3, relays + 3 * (others - 1)), "{members} members");
        assert!((2..=members as u16).all(|member| world.log(member).len() == 2));
    }
}

/// Over lossy links, where a member that has decided answers a proposal with the decision: W values to each
/// member would delay the next leader.
#[test]
fn crash_relays_a_window_in_one_message_without_values() {
    let (members, window) = (4u16, 32);
    let mut world = World::<Hsuc>::new(members.into(), &Setting { links: Links::Lossy, ..setting(window) });
    for _ in 0..2 * window {
        world.propose(1);
        rounds(&mut world);
    }
    world.crash(1, 0);
    world.network.clear();
    while world.notice(0) {}
    let others = usize::from(members - 1);
    assert_eq!(world.network.len(), others * (others - 1));
    assert!(world.network.iter().all(|(.., bytes)| bytes.len() < 64), "{:?}", world.network);
    let (_, answers) = rounds(&mut world);
    assert_eq!(answers, 2 * others * (others - 1), "each of which is answered once");
}

/// The last decision of a dead leader reached only one member: the others know it only from that member.
#[test]
fn relayed_decision_needs_no_value_after_an_acknowledgement() {
    let mut world = World::<Hsuc>::new(3, &Setting { links: Links::Lossy, ..setting(4) });
    world.propose(1);
    for _ in 0..2 {
        let now = std::mem::take(&mut world.network);
        now.into_iter().for_each(|(from, to, bytes)| world.deliver(from, to, &bytes));
    }
    let to_three: Vec<_> = world.network.iter().filter(|(_, to, _)| *to == 3).cloned().collect();
    world.crash(1, 0);
    world.network.clear();
    to_three.into_iter().for_each(|(from, to, bytes)| world.deliver(from, to, &bytes));
    assert_eq!((world.log(2).len(), world.log(3).len()), (0, 1));
    world.network.clear();
    // Member 3 hears of the death first.
    assert!(world.notice(1));
    rounds(&mut world);
    assert_eq!(world.log(2), world.log(3));
}

#[test]
fn all_but_one_may_crash() {
    let mut world = World::<Hsuc>::new(5, &setting(2));
    for dead in 1..5 {
        world.propose(dead);
        world.propose(dead);
        rounds(&mut world);
        world.crash(dead, 0);
        while world.notice(0) {}
        rounds(&mut world);
    }
    world.propose(5);
    assert_eq!(world.log(5).len(), 9);
    world.check().unwrap();
}

/// Alg. 2 relays only at the crash. Here the decision comes after it.
#[test]
fn decision_after_its_leaders_crash_is_relayed() {
    let mut world = World::<Hsuc>::new(3, &setting(1));
    world.propose(1);
    let now = std::mem::take(&mut world.network);
    now.into_iter().for_each(|(from, to, bytes)| world.deliver(from, to, &bytes));
    let acks = std::mem::take(&mut world.network);
    acks.into_iter().for_each(|(from, to, bytes)| world.deliver(from, to, &bytes));
    assert_eq!(world.log(1).len(), 1);
    // Its decision is on its way to member 3 only, and arrives after the report of its death.
    let late: Vec<_> = world.network.iter().filter(|(_, to, _)| *to == 3).cloned().collect();
    world.crash(1, 0);
    world.network.clear();
    while world.notice(0) {}
    for (from, to, bytes) in late {
        world.deliver(from, to, &bytes);
    }
    rounds(&mut world);
    assert_eq!((world.log(2), world.log(3)), (world.log(1), world.log(1)));
}

#[test]
fn foreign_message_changes_nothing() {
    let mut member = Hsuc::new(&setting(2), 2, HostSet::first(3)).unwrap();
    let before = member.clone();
    let refused: BTreeMap<&str, (u16, Message<'_>)> = BTreeMap::from([
        ("4 is not in this group", (4, Message::Ack { instance: 1, round: 2 })),
        ("9 is not in this group", (1, Message::Ack { instance: 1, round: 9 })),
        ("a proposal of round 1 from member 3", (3, Message::Propose { instance: 1, round: 1, value: b"x" })),
        ("instance 5, while 0", (1, Message::Propose { instance: 5, round: 1, value: b"x" })),
        ("instance 0", (1, Message::Decide { instance: 0, round: 1, value: b"x" })),
        ("instance 18446744073709551615", (1, Message::Ack { instance: u64::MAX, round: 2 })),
        ("a value of 65 bytes", (1, Message::Decide { instance: 1, round: 1, value: &[0; 65] })),
    ]);
    for (says, (from, message)) in refused {
        let error = member.receive(from, &message).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    // An acknowledgement of no proposal, and one of another round.
    member.receive(3, &Message::Ack { instance: 1, round: 2 }).unwrap();
    member.receive(3, &Message::Ack { instance: 1, round: 1 }).unwrap();
    assert_eq!(member, before);
    assert_eq!(member.propose(b"x"), Err(Refused::NotLeader { leader: 1 }));
    assert_eq!(Hsuc::new(&setting(1), 4, HostSet::first(3)), Err(ConfigError::NotAMember { me: 4 }));
    assert_eq!(Hsuc::new(&setting(0), 1, HostSet::first(3)), Err(ConfigError::Window { window: 0 }));
    assert_eq!(
        Hsuc::new(&Setting { value_max: 4, ..setting(1) }, 1, HostSet::first(3)),
        Err(ConfigError::ValueMax { max: 4 })
    );
}

#[test]
fn proposals_share_an_instance_and_wait_within_bounds() {
    let mut leader = Hsuc::new(&setting(1), 1, HostSet::first(2)).unwrap();
    assert_eq!(leader.propose(&[0; 61]), Err(Refused::TooLong { len: 61, max: 60 }));
    // Two values at once share an instance.
    leader.propose(b"first").unwrap();
    leader.propose(b"second").unwrap();
    while leader.poll_transmit().is_some() {}
    // The window is used up: these values wait for the next instance together.
    for _ in 0..8 {
        leader.propose(b"next").unwrap();
    }
    assert_eq!(leader.propose(b"next"), Err(Refused::Full));
    assert!(leader.poll_transmit().is_none());
    leader.receive(2, &Message::Ack { instance: 1, round: 1 }).unwrap();
    let first: Vec<_> = batch::values(leader.poll_decision().unwrap().value).map(<[u8]>::to_vec).collect();
    assert_eq!(first, [b"first".to_vec(), b"second".to_vec()]);
    let sent: Vec<_> = std::iter::from_fn(|| leader.poll_transmit().map(|(_, message)| message.instance())).collect();
    assert_eq!(sent, [1, 2]);
    leader.receive(2, &Message::Ack { instance: 2, round: 1 }).unwrap();
    assert_eq!(batch::values(leader.poll_decision().unwrap().value).count(), 8);
}

fn sent(member: &mut Hsuc) -> Vec<(HostSet, Vec<u8>)> {
    std::iter::from_fn(|| {
        member.poll_transmit().map(|(to, message)| {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            (to, bytes)
        })
    })
    .collect()
}

#[test]
fn unanswered_message_is_resent_after_a_whole_period() {
    let mut leader = Hsuc::new(&Setting { links: Links::Lossy, ..setting(1) }, 1, HostSet::first(3)).unwrap();
    leader.propose(b"x").unwrap();
    let proposed = sent(&mut leader);
    leader.resend();
    assert_eq!(sent(&mut leader), [], "an answer may be under way");
    leader.resend();
    assert_eq!(sent(&mut leader), proposed);
    leader.receive(3, &Message::Ack { instance: 1, round: 1 }).unwrap();
    leader.resend();
    assert_eq!(sent(&mut leader), [(HostSet::from_iter([2]), proposed[0].1.clone())]);
    leader.receive(2, &Message::Ack { instance: 1, round: 1 }).unwrap();
    assert!(leader.poll_decision().is_some());
    let chosen = Message::Chosen { instance: 1, round: 1 };
    assert_eq!(Message::read(&sent(&mut leader)[0].1).unwrap(), chosen, "who has acknowledged it has the value");
    leader.receive(2, &Message::Delivered { instance: 1 }).unwrap();
    leader.resend();
    leader.resend();
    let again = sent(&mut leader);
    assert_eq!(again[0].0, HostSet::from_iter([3]));
    assert!(matches!(Message::read(&again[0].1), Ok(Message::Decide { instance: 1, round: 1, .. })), "with the value");
    leader.receive(3, &Message::Delivered { instance: 1 }).unwrap();
    leader.resend();
    assert_eq!(sent(&mut leader), []);
}

#[test]
fn repeated_message_is_answered_again() {
    let mut member = Hsuc::new(&Setting { links: Links::Lossy, ..setting(1) }, 2, HostSet::first(3)).unwrap();
    let propose = Message::Propose { instance: 1, round: 1, value: b"x" };
    member.receive(1, &propose).unwrap();
    let acked = sent(&mut member);
    member.receive(1, &propose).unwrap();
    assert_eq!(sent(&mut member), acked);
    member.receive(1, &Message::Decide { instance: 1, round: 1, value: b"x" }).unwrap();
    assert!(member.poll_decision().is_some());
    assert_eq!(sent(&mut member), []);
    let delivered = |member: &mut Hsuc| {
        sent(member).iter().map(|(_, bytes)| Message::read(bytes).unwrap().instance()).collect::<Vec<_>>()
    };
    member.resend();
    assert_eq!(delivered(&mut member), [1], "of itself, once");
    member.resend();
    assert_eq!(delivered(&mut member), [0; 0]);
    member.receive(1, &Message::Decide { instance: 1, round: 1, value: b"x" }).unwrap();
    assert_eq!(delivered(&mut member), [1]);
    // A leader that does not know the decision gets it.
    member.receive(1, &propose).unwrap();
    let answer = sent(&mut member);
    assert_eq!(Message::read(&answer[0].1).unwrap(), Message::Decide { instance: 1, round: 1, value: b"x" });
}

#[test]
fn new_leader_speaks_for_all_after_inherited_decisions() {
    let mut member = Hsuc::new(&setting(1), 2, HostSet::first(3)).unwrap();
    member.receive(1, &Message::Propose { instance: 1, round: 1, value: b"x" }).unwrap();
    assert!(!member.speaks_for_all());
    member.crashed(1);
    assert!(!member.speaks_for_all(), "1 may have decided");
    member.receive(3, &Message::Ack { instance: 1, round: 2 }).unwrap();
    assert!(member.poll_decision().is_some());
    assert!(member.speaks_for_all());
}

#[test]
fn consecutive_acks_and_decisions_share_a_message() {
    let [mut leader, mut member] = [1, 2].map(|me| Hsuc::new(&setting(8), me, HostSet::first(3)).unwrap());
    // A third one would have to acknowledge, too.
    [&mut leader, &mut member].into_iter().for_each(|member| member.crashed(3));
    for value in [b"a", b"b", b"c", b"d"] {
        leader.propose(value).unwrap();
        leader.propose_as_leader();
    }
    let proposed = sent(&mut leader);
    // The third is still on its way.
    for at in [0, 1, 3] {
        member.receive(1, &Message::read(&proposed[at].1).unwrap()).unwrap();
    }
    let read = |sent: &[(HostSet, Vec<u8>)]| -> Vec<String> {
        sent.iter().map(|(_, bytes)| format!("{:?}", Message::read(bytes).unwrap())).collect()
    };
    let acked = sent(&mut member);
    assert_eq!(read(&acked), ["AckRange { instance: 1, last: 2, round: 1 }", "Ack { instance: 4, round: 1 }"]);
    acked.iter().for_each(|(_, bytes)| leader.receive(2, &Message::read(bytes).unwrap()).unwrap());
    let chosen = sent(&mut leader);
    assert_eq!(read(&chosen), ["ChosenRange { instance: 1, last: 2, round: 1 }", "Chosen { instance: 4, round: 1 }"]);
    chosen.iter().for_each(|(_, bytes)| member.receive(1, &Message::read(bytes).unwrap()).unwrap());
    let delivered = |member: &mut Hsuc| std::iter::from_fn(|| member.poll_decision().map(|of| of.instance)).count();
    assert_eq!((delivered(&mut leader), delivered(&mut member)), (2, 2));
    // A range is no longer than the number of slots, and does not go beyond reach.
    let before = leader.clone();
    let mut refused = |instance, last| leader.receive(2, &Message::AckRange { instance, last, round: 1 }).unwrap_err();
    assert_eq!(refused(1, 19), MessageError::Future { instance: 19, delivered: 2 });
    assert_eq!(refused(0, 2), MessageError::Future { instance: 2, delivered: 2 });
    let mut later = Hsuc { delivered: 100, ..before.clone() };
    let wide = later.receive(2, &Message::AckRange { instance: 90, last: 114, round: 1 });
    assert_eq!(wide, Err(MessageError::Range { instance: 90, last: 114 }));
    assert_eq!(leader, before);
}
