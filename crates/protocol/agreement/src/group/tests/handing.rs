// SPDX-License-Identifier: Apache-2.0
//! A leader hands the lead over to another member.

use super::*;

#[test]
fn successor_leads_and_nothing_is_lost() {
    let mut world = World::of(3);
    world.writes(1, "a");
    // Under way when the lead is handed over.
    world.group(1).propose(HELD, b"b").unwrap();
    assert_eq!(world.group(1).hand_over(HELD, 3), Ok(()));
    assert_eq!(world.group(1).propose(HELD, b"x"), Err(Refused::Changing));
    world.settle();
    assert_eq!((1..=3).map(|host| world.group(host).leader()).collect::<Vec<_>>(), [Some(3); 3]);
    assert_eq!(world.members_of(1), [3, 1, 2], "the others keep their order");
    assert!(world.group(3).may_answer(HELD) && !world.group(1).may_answer(HELD));
    assert_eq!(world.group(1).propose(HELD, b"x"), Err(Refused::NotLeader { leader: 3 }));
    world.writes(3, "c");
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["abc"; 3]);
    // The former leader is the next one.
    world.dies(3);
    world.writes(1, "d");
    assert_eq!([1, 2].map(|host| world.state(host)), ["abcd"; 2]);
}

#[test]
fn lead_goes_round() {
    let mut world = World::of(3);
    for (from, to) in [(1, 2), (2, 3), (3, 1), (1, 3)] {
        assert_eq!(world.group(from).hand_over(HELD, to), Ok(()));
        world.settle();
        world.writes(to, "x");
    }
    assert_eq!((world.members_of(2), world.state(2).as_str()), (vec![3, 1, 2], "xxxx"));
    assert_eq!(world.standings(), [Standing::Member; 3]);
}

#[test]
fn lead_is_handed_to_a_live_member_by_the_leader_only() {
    let mut world = World::of(3);
    assert_eq!(world.group(2).hand_over(HELD, 3), Err(Refused::NotLeader { leader: 1 }));
    assert_eq!(world.group(1).hand_over(RUN_OUT, 2), Err(Refused::Fenced));
    assert_eq!(world.group(1).hand_over(HELD, 1), Err(Refused::Leads { host: 1 }));
    assert_eq!(world.group(1).hand_over(HELD, 4), Err(Refused::NoMember { host: 4 }));
    world.group(1).down(3, 30);
    assert_eq!(world.group(1).hand_over(HELD, 3), Err(Refused::Dead { host: 3 }));
    world.group(1).admission.note_proposed(false);
    assert_eq!(world.group(1).hand_over(HELD, 2), Err(Refused::Changing));
}

/// It is in the view, and still asks for the decisions before it.
#[test]
fn member_without_state_does_not_lead() {
    let mut world = World::of(1);
    world.writes(1, "a");
    world.joins(2, 20);
    let view = View::new(2, &[member(1, 10), member(2, 20)]).unwrap();
    world.group(1).begin_next(view);
    world.group(2).resend(HELD);
    for (_, asks) in world.sent(2) {
        world.group(1).receive(2, &asks).unwrap();
    }
    assert_eq!(world.group(1).hand_over(HELD, 2), Err(Refused::NoState { host: 2 }));
    world.run();
    // It has acknowledged something.
    world.writes(1, "b");
    assert_eq!(world.group(1).hand_over(HELD, 2), Ok(()));
    world.settle();
    world.writes(2, "c");
    assert_eq!([1, 2].map(|host| world.state(host)), ["abc"; 2]);
}

#[test]
fn payload_under_way_is_decided_before_the_next_leader() {
    let mut world = World::of(2);
    world.group(1).propose_payload(HELD, vec![7; 500]).unwrap();
    assert_eq!(world.group(1).hand_over(HELD, 2), Ok(()));
    assert_eq!(world.group(1).propose_payload(HELD, vec![8; 10]), Err(Refused::Changing));
    world.run();
    world.writes(2, "a");
    assert_eq!([1, 2].map(|host| world.state(host)), ["[500]a"; 2]);
}

#[test]
fn leader_goes_on_if_its_successor_dies_first() {
    let mut world = World::of(3);
    world.group(1).propose_payload(HELD, vec![7; 500]).unwrap();
    assert_eq!(world.group(1).hand_over(HELD, 2), Ok(()));
    // The payload is still under way, and the view not proposed.
    world.dies(2);
    world.run();
    assert_eq!(world.members_of(3), [1, 3]);
    world.writes(1, "a");
    // This one dies when the view is proposed.
    assert_eq!(world.group(1).hand_over(HELD, 3), Ok(()));
    world.dies(3);
    world.run();
    world.writes(1, "b");
    assert_eq!(world.state(1), "[500]ab");
}

/// The successor has delivered its view, and the others have not.
#[test]
fn view_of_a_successor_that_died_survives() {
    let mut world = World::of(3);
    world.group(1).hand_over(HELD, 2).unwrap();
    let deliver = |world: &mut World, from: u16, only: &[u16]| {
        for (to, bytes) in world.sent(from) {
            if only.contains(&to) {
                world.group(to).receive(from, &bytes).unwrap();
            }
        }
    };
    deliver(&mut world, 1, &[2, 3]);
    deliver(&mut world, 2, &[1]);
    deliver(&mut world, 3, &[1]);
    world.tell(1);
    deliver(&mut world, 1, &[2]);
    world.tell(2);
    assert_eq!((world.group(2).leader(), world.group(3).leader()), (Some(2), Some(1)));
    // Nothing is decided in the new view before all are in it.
    world.group(2).propose(HELD, b"a").unwrap();
    deliver(&mut world, 2, &[1]);
    world.tell(2);
    assert_eq!(world.state(2), "");
    world.dies(2);
    world.run();
    assert_eq!((world.members_of(3), world.group(3).leader()), (vec![1, 3], Some(1)));
    world.writes(1, "b");
    assert_eq!(world.state(1), world.state(3));
}

#[test]
fn no_member_is_taken_out_while_the_lead_is_handed_over() {
    let mut world = World::of(3);
    world.group(1).hand_over(HELD, 2).unwrap();
    assert_eq!(world.group(1).remove(HELD, 3), Err(Refused::Changing));
    world.settle();
    assert_eq!(world.group(2).remove(HELD, 3), Ok(()));
    world.run();
    assert_eq!(world.members_of(1), [2, 1]);
}

#[test]
fn host_is_let_in_while_the_lead_is_handed_over() {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.joins(3, 30);
    world.group(3).resend(HELD);
    world.settle();
    world.group(1).hand_over(HELD, 2).unwrap();
    world.run();
    assert_eq!((world.standings(), world.group(1).leader()), (vec![Standing::Member; 3], Some(2)));
    assert_eq!(world.members_of(2), [2, 1, 3]);
    world.writes(2, "b");
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["ab"; 3]);
}
