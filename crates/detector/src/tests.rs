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
