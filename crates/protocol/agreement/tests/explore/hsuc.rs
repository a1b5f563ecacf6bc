// SPDX-License-Identifier: Apache-2.0
//! HSUC.

use fide_agreement::{Hsuc, Links, hsuc::Setting};

use super::links::{Of, Protocol, World};

impl Protocol for Hsuc {
    const LEADER_PROPOSES: bool = true;
}

fn world(members: u16, window: u64, proposals: u8, crashes: u32, losses: u32) -> World<Setting> {
    let links = if losses > 0 { Links::Lossy } else { Links::Reliable };
    let setting = Setting { window, value_max: 16, links };
    World { members, setting, proposals, crashes, losses, resends: losses > 0 }
}

fn explore(world: World<Setting>) {
    let name = format!(
        "HSUC, {} members, window {}, {} proposals, {} crashes, {} losses",
        world.members, world.setting.window, world.proposals, world.crashes, world.losses
    );
    super::explore(&name, Of::<Hsuc>(world));
}

#[test]
fn two_members_two_instances() {
    for window in 1..=2 {
        explore(world(2, window, 2, 1, 0));
    }
}

#[test]
fn three_members_one_instance() {
    explore(world(3, 1, 1, 2, 0));
}

#[test]
fn three_members_two_instances() {
    let large = std::env::var("FIDE_EXPLORE").is_ok_and(|how| how == "large");
    for window in 1..=2 {
        explore(world(3, window, if large { 3 } else { 2 }, 2, 0));
    }
}

/// Links that lose messages of live members, which are resent and arrive out of order and twice.
#[test]
fn two_members_and_losses() {
    for window in 1..=2 {
        explore(world(2, window, 2, 1, 2));
    }
}

#[test]
fn three_members_and_a_loss() {
    explore(world(3, 1, 1, 2, 1));
}

/// Faults planted in the protocol are found. To be run alone in its process, as they are armed for the whole
/// process: `cargo test --release -p fide-agreement --features planted --test explore planted`.
#[cfg(feature = "planted")]
#[test]
fn planted_faults_are_seen() {
    use fide_types::planted::Planted;
    let faults = [
        Planted::DecidesEarly,
        Planted::DecidesAsIfOfTwo,
        Planted::DropsAdopted,
        Planted::AdoptsLower,
        Planted::DeliversAdopted,
        Planted::AckMeansDelivered,
        Planted::NeverResends,
        Planted::WaitsForTheDead,
        Planted::OverlooksStored,
    ];
    super::finds(&faults, &[world(3, 1, 1, 2, 1), world(3, 1, 2, 2, 0)].map(Of::<Hsuc>));
}
