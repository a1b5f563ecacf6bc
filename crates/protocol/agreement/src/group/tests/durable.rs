// SPDX-License-Identifier: Apache-2.0
//! Durable groups on disks that store at once, and a network that loses what a test wants lost.

use super::*;

fn is_told(bytes: &[u8]) -> bool {
    let Ok((prefix, message)) = Prefix::read(bytes) else { return false };
    prefix.kind == Kind::Control && matches!(Control::read(message), Ok(Control::Told { .. }))
}

fn store(world: &mut World) {
    for (group, _) in world.members.values_mut() {
        while group.poll_store(HELD).is_some() {}
        group.stored();
    }
}

/// Everything is stored, then all messages are delivered but for those that `lose` takes.
fn round(world: &mut World, lose: &mut dyn FnMut(u16, u16, &[u8]) -> bool) {
    store(world);
    let hosts: Vec<HostId> = world.members.keys().copied().collect();
    let mut sent = Vec::new();
    for host in hosts {
        world.tell(host);
        sent.extend(world.sent(host).into_iter().map(|(to, bytes)| (host, to, bytes)));
    }
    for (from, to, bytes) in sent {
        if !lose(from, to, &bytes)
            && let Some((group, _)) = world.members.get_mut(&to)
        {
            let _ = group.receive(from, &bytes);
        }
    }
}

fn rounds(world: &mut World, count: u32) {
    for _ in 0..count {
        round(world, &mut |_, _, _| false);
        world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
    }
}

/// The leader goes, and what it tells the next one about the last decision of its view is lost.
fn next_leader_hears_of_it(count: u16, goes: fn(&mut Group<Hsuc>)) {
    let mut world = World::of(count);
    world.members.values_mut().for_each(|(group, _)| group.set_durable());
    rounds(&mut world, 30);
    world.group(1).propose(HELD, b"x").unwrap();
    rounds(&mut world, 30);
    assert_eq!(world.state(2), "x");
    goes(world.group(1));
    let mut lost = 0;
    for _ in 0..20 {
        let has_begun = world.group(1).view().is_none_or(|view| view.number() > 1);
        round(&mut world, &mut |from, to, bytes| {
            let is_lost = from == 1 && to == 2 && is_told(bytes) && !has_begun;
            lost += u32::from(is_lost);
            is_lost
        });
    }
    rounds(&mut world, 100);
    assert!(lost > 0, "the test loses nothing");
    assert_eq!((world.group(2).view().unwrap().number(), world.group(2).leader()), (2, Some(2)));
    assert!(world.group(2).may_answer(HELD));
}

#[test]
fn next_leader_is_told_although_the_first_word_is_lost() {
    for count in [2, 3] {
        next_leader_hears_of_it(count, |leader| leader.hand_over(HELD, 2).unwrap());
    }
    next_leader_hears_of_it(3, |leader| leader.remove(HELD, 1).unwrap());
}

/// The user's state of a host that joins may take minutes to store.
#[test]
fn writes_go_on_while_a_new_member_has_no_state_on_disk() {
    let mut world = World::of(2);
    world.members.values_mut().for_each(|(group, _)| group.set_durable());
    rounds(&mut world, 30);
    world.dies(2);
    rounds(&mut world, 30);
    world.joins(2, 90);
    world.group(2).set_durable();
    rounds(&mut world, 60);
    assert_eq!((world.members_of(1), world.group(2).lacks_base()), (vec![1, 2], true));
    world.group(1).propose(HELD, b"y").unwrap();
    rounds(&mut world, 10);
    assert_eq!([1, 2].map(|host| world.state(host)), ["y", "y"]);
    // Alone and without a state on disk it delivers nothing.
    world.dies(1);
    rounds(&mut world, 10);
    assert_eq!(world.group(2).propose(HELD, b"z"), Err(Refused::Changing));
    assert_eq!(world.group(2).view().unwrap().members().len(), 2, "the view without the other is not on disk");
    let position = world.group(2).position();
    world.group(2).base_stored(position);
    rounds(&mut world, 10);
    world.group(2).propose(HELD, b"z").unwrap();
    rounds(&mut world, 10);
    assert_eq!(world.state(2), "yz");
}

/// The lead was handed over by a leader that died, and the decision is not on enough disks yet: the one that leads
/// until it is delivered takes nothing, as it would be nobody's.
#[test]
fn nothing_is_taken_after_a_hand_over_that_is_not_delivered() {
    let mut world = World::of(3);
    world.members.values_mut().for_each(|(group, _)| group.set_durable());
    rounds(&mut world, 30);
    world.group(1).hand_over(HELD, 3).unwrap();
    for _ in 0..6 {
        round(&mut world, &mut |_, _, bytes| {
            let Ok((prefix, message)) = Prefix::read(bytes) else { return false };
            prefix.kind == Kind::Control && matches!(Control::read(message), Ok(Control::Stored { .. }))
        });
    }
    world.dies(1);
    assert_eq!((world.group(2).leader(), world.group(2).view().unwrap().number()), (Some(2), 1));
    assert!(world.group(2).durable.is_closed(), "it is decided");
    assert_eq!(world.group(2).propose(HELD, b"x"), Err(Refused::Changing));
    assert_eq!(world.group(2).propose_payload(HELD, b"x".to_vec()), Err(Refused::Changing));
    rounds(&mut world, 30);
    assert_eq!(world.group(2).leader(), Some(3));
    world.group(3).propose(HELD, b"y").unwrap();
    rounds(&mut world, 30);
    assert_eq!([2, 3].map(|host| world.state(host)), ["y", "y"]);
}
