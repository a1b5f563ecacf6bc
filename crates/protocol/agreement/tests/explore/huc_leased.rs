// SPDX-License-Identifier: Apache-2.0
//! HUC with leases: a crash may come between any two copies of a heartbeat, and links may lose messages.

use fide_agreement::{
    Huc, Trust,
    huc::{SET_LEN, Setting},
};

use super::links::{Of, Protocol, World};

impl Protocol for Huc {
    const LEADER_PROPOSES: bool = false;
}

fn world(members: u16, proposals: u8, crashes: u32, losses: u32) -> World<Setting> {
    let setting = Setting { value_max: SET_LEN + 5 * usize::from(proposals), trust: Trust::Lease };
    World { members, setting, proposals, crashes, losses, resends: losses > 0 }
}

fn explore(world: World<Setting>) {
    let World { members, proposals, crashes, losses, .. } = world;
    let name = format!("HUC with leases, {members} members, {proposals} proposals, {crashes} crashes, {losses} losses");
    super::explore(&name, Of::<Huc>(world));
}

#[test]
fn two_members() {
    explore(world(2, 3, 1, 0));
}

#[test]
fn two_members_and_losses() {
    explore(world(2, 2, 1, 2));
}

#[test]
fn three_members_one_proposal() {
    explore(world(3, 1, 2, 0));
}

#[test]
fn three_members_two_proposals() {
    explore(world(3, 2, 2, 0));
}

#[test]
fn three_members_and_a_loss() {
    explore(world(3, 1, 2, 1));
}

/// See `hsuc::planted_faults_are_seen`.
#[cfg(feature = "planted")]
#[test]
fn planted_faults_are_seen() {
    use fide_types::planted::Planted;
    let faults = [
        Planted::DeliversHeld,
        Planted::SkipsLevelling,
        Planted::KeepsKnown,
        Planted::TakesOfTheDead,
        Planted::NeverResends,
        Planted::OverlooksStored,
    ];
    super::finds(&faults, &[world(3, 1, 2, 1), world(3, 2, 2, 0)].map(Of::<Huc>));
    // Two survivors of two deaths: too many orders to explore them all.
    let _alone = super::alone();
    assert!(!levels_too_early());
    fide_types::planted::arm(Some(Planted::LevelsWithOld));
    assert!(levels_too_early(), "a fault that nothing shows");
    fide_types::planted::arm(None);
    assert!(!takes_next_of_the_dead());
    fide_types::planted::arm(Some(Planted::KeepsNext));
    assert!(takes_next_of_the_dead(), "a fault that nothing shows");
    fide_types::planted::arm(None);
}

/// Member 3 waits for reports after the death of member 4, and has two messages of member 1, which dies then.
/// Member 2 has only the first, and has reported that. Does member 3 take the second?
#[cfg(feature = "planted")]
fn takes_next_of_the_dead() -> bool {
    use fide_agreement::{Fcurb, HostSet};
    let mut three = Fcurb::new(Trust::Lease, 3, HostSet::first(4));
    three.receive(1, 1, 1, b"first");
    three.crashed(4);
    three.note_successor(1, 2);
    three.receive(1, 1, 2, b"second");
    three.crashed(1);
    let dead = HostSet::from_iter([1, 4]);
    three.handle_report(2, 4, 0, dead, false);
    three.handle_report(2, 1, 1, dead, false);
    let mut delivered = 0;
    while three.poll().is_some() {
        delivered += 1;
    }
    // The first message, and two crashes.
    delivered != 3
}

/// Member 1 has died, and so has member 2, which alone stores its message. Member 3 knows of both deaths,
/// member 4 only of member 1's. Does member 3 deliver the crash of member 1? Member 2's copy of the message
/// may still reach member 4.
#[cfg(feature = "planted")]
fn levels_too_early() -> bool {
    use fide_agreement::{Fcurb, HostSet, Message, fcurb::Delivery};
    let [mut three, mut four] = [3, 4].map(|me| Fcurb::new(Trust::Lease, me, HostSet::first(4)));
    three.crashed(1);
    four.crashed(1);
    while let Some((_, message)) = four.poll_transmit() {
        if let Message::Report { instance, round, dead, asks } = message {
            three.handle_report(4, round, instance, dead, asks);
        }
    }
    three.crashed(2);
    three.poll() == Some(Delivery::Crashed(1))
}
