// SPDX-License-Identifier: Apache-2.0
//! The network: bodies of requests and answers.

use serde::{Deserialize, Serialize};

use crate::identity::Identity;

/// The state of the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    pub cables: Vec<Cable>,
    pub waiting_for_switches: Vec<Waiting>,
}

/// A cable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cable {
    /// Its name.
    pub cable: String,
    /// It has a carrier at both ends, and no operator has taken it out of use.
    pub works: bool,
    /// Receivers behind it got one copy of two.
    pub suspected: bool,
    /// An operator has taken it out of use.
    pub drained: bool,
    /// Number of trees that use it.
    pub trees: usize,
}

impl Cable {
    /// Whether trees may use it.
    #[must_use]
    pub fn is_well(&self) -> bool {
        self.works && !self.suspected && !self.drained
    }
}

/// A tree whose rules are not yet in all switches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    pub lane: u64,
    pub tree: u8,
    pub switches: Vec<String>,
}

/// `PUT` of a cable by an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CableRequest {
    pub in_use: bool,
}

/// The answer to [`CableRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CableSet {
    pub cable: String,
    pub in_use: bool,
}

/// The caller as the controller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Myself {
    pub identity: Identity,
    /// Whether the network has a host of this name.
    pub in_topology: bool,
}
