// SPDX-License-Identifier: Apache-2.0
//! Tests of the whole detector. The pure parts have theirs beside them.

mod former;
mod former_life;
mod gone;
mod healed;
mod lineages;
mod named;
mod put_back;
mod scenario;
mod seeded;
mod unit;
mod world;

/// Whether a test fails with this fault planted.
#[cfg(feature = "planted")]
fn fails_with(fault: fide_types::planted::Planted, test: fn()) -> bool {
    fide_types::planted::arm_thread(Some(fault));
    let failed = std::panic::catch_unwind(test).is_err();
    fide_types::planted::arm_thread(None);
    failed
}
