// SPDX-License-Identifier: Apache-2.0
//! The properties that must hold. Each file checks one of them, and sees of the code under test only what its
//! users see.

mod agreement;
mod calm;
mod deaths;
mod host_views;
mod hosts;
mod leader;
mod leases;
mod masters;
mod register;
mod tokens;
mod verdicts;
mod views;

use std::fmt;

pub(super) use agreement::{Log, number};
pub(super) use calm::Calm;
pub(super) use deaths::Deaths;
pub(super) use host_views::HostViews;
pub(super) use hosts::no_lease_outlives_its_view;
pub(super) use leader::one_leader;
pub(super) use leases::leased;
pub(super) use masters::Masters;
pub(super) use register::Register;
pub(super) use tokens::Tokens;
pub(super) use verdicts::{Beliefs, Verdicts};
pub(super) use views::Views;

/// A property that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub property: &'static str,
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.property, self.text)
    }
}

pub(super) type Checked = Result<(), Violation>;

pub(super) fn violated<T>(property: &'static str, text: String) -> Result<T, Violation> {
    Err(Violation { property, text })
}
