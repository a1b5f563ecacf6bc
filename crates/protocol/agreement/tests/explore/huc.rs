// SPDX-License-Identifier: Apache-2.0
//! HUC. A broadcast reaches all live members or none, and each before its sender's crash is reported.

use std::collections::BTreeSet;

use fide_agreement::{
    Agreement, Decision, HostSet, Huc, Message, Trust,
    huc::{SET_LEN, Setting},
};
use fide_types::host_index;
use stateright::{Model, Property};

use super::{Logs, properties};

#[derive(Clone)]
pub(super) struct World {
    members: u16,
    proposals: u8,
    crashes: u32,
}

/// A broadcast: its bytes, the members that have yet to deliver it, whether any member has.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Broadcast {
    from: u16,
    bytes: Vec<u8>,
    to: BTreeSet<u16>,
    heard: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    members: Vec<Huc>,
    dead: BTreeSet<u16>,
    network: BTreeSet<(u16, u16, Vec<u8>)>,
    broadcasts: BTreeSet<Broadcast>,
    /// Crashes that are to be reported: the survivor, and the crashed member.
    notices: BTreeSet<(u16, u16)>,
    logs: Vec<Vec<Vec<u8>>>,
    /// The member that made each proposal; a proposal's value is its number.
    proposed: Vec<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Propose {
        by: u16,
    },
    Receive {
        message: (u16, u16, Vec<u8>),
    },
    /// Only of a dead sender.
    Lose {
        message: (u16, u16, Vec<u8>),
    },
    Deliver {
        broadcast: Broadcast,
        to: u16,
    },
    Notice {
        to: u16,
        of: u16,
    },
    /// `lost`: the broadcasts that nobody has delivered are lost.
    Crash {
        member: u16,
        lost: bool,
    },
}

impl State {
    fn node(&mut self, member: u16) -> &mut Huc {
        &mut self.members[host_index(member)]
    }

    fn drain(&mut self, member: u16) {
        let (at, alive) = (host_index(member), self.alive());
        loop {
            let mut any = false;
            if let Some(Decision { value, .. }) = self.members[at].poll_decision() {
                self.logs[at].push(value.to_vec());
                any = true;
            }
            if let Some((to, message)) = self.members[at].poll_transmit() {
                let mut bytes = Vec::new();
                message.write(&mut bytes);
                let to = to.iter().filter(|to| alive.contains(to));
                self.network.extend(to.map(|to| (member, to, bytes.clone())));
                any = true;
            }
            if let Some(message) = self.members[at].poll_broadcast() {
                let mut bytes = Vec::new();
                message.write(&mut bytes);
                self.broadcasts.insert(Broadcast { from: member, bytes, to: alive.clone(), heard: false });
                any = true;
            }
            if !any {
                return;
            }
        }
    }

    fn crash(&mut self, member: u16, lost: bool) {
        self.dead.insert(member);
        self.network.retain(|(_, to, _)| *to != member);
        self.notices.retain(|(to, _)| *to != member);
        let alive = self.alive();
        let kept = std::mem::take(&mut self.broadcasts).into_iter();
        let kept = kept.filter(|broadcast| broadcast.from != member || broadcast.heard || !lost);
        self.broadcasts = kept
            .map(|broadcast| Broadcast { to: &broadcast.to & &alive, ..broadcast })
            .filter(|broadcast| !broadcast.to.is_empty())
            .collect();
        self.notices.extend(alive.into_iter().map(|to| (to, member)));
    }
}

impl Logs for State {
    fn logs(&self) -> &[Vec<Vec<u8>>] {
        &self.logs
    }

    fn proposed(&self) -> &[u16] {
        &self.proposed
    }

    fn alive(&self) -> BTreeSet<u16> {
        (1..=self.members.len() as u16).filter(|member| !self.dead.contains(member)).collect()
    }

    fn at_rest(&self) -> Option<Self> {
        let quiet = self.network.is_empty() && self.notices.is_empty() && self.broadcasts.is_empty();
        quiet.then(|| self.clone())
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let members = HostSet::first(usize::from(self.members));
        let value_max = SET_LEN + 5 * usize::from(self.members) * usize::from(self.proposals);
        let of = |me| Huc::new(&Setting { value_max, trust: Trust::Network }, me, members).expect("a member");
        let mut state = State {
            members: (1..=self.members).map(of).collect(),
            dead: BTreeSet::new(),
            network: BTreeSet::new(),
            broadcasts: BTreeSet::new(),
            notices: BTreeSet::new(),
            logs: vec![Vec::new(); usize::from(self.members)],
            proposed: Vec::new(),
        };
        (1..=self.members).for_each(|member| state.drain(member));
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let may_die = (state.dead.len() as u32) < self.crashes;
        for member in state.alive() {
            if state.proposed.len() < usize::from(self.proposals) {
                actions.push(Action::Propose { by: member });
            }
            if may_die {
                actions.extend([true, false].map(|lost| Action::Crash { member, lost }));
            }
        }
        for message in &state.network {
            actions.push(Action::Receive { message: message.clone() });
            if state.dead.contains(&message.0) {
                actions.push(Action::Lose { message: message.clone() });
            }
        }
        for broadcast in &state.broadcasts {
            actions.extend(broadcast.to.iter().map(|to| Action::Deliver { broadcast: broadcast.clone(), to: *to }));
        }
        for (to, of) in &state.notices {
            // Fail-consistency.
            if !state.broadcasts.iter().any(|broadcast| broadcast.from == *of && broadcast.to.contains(to)) {
                actions.push(Action::Notice { to: *to, of: *of });
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Propose { by } => {
                let value = [state.proposed.len() as u8 + 1];
                state.node(by).propose(&value).ok()?;
                state.proposed.push(by);
                state.drain(by);
            }
            Action::Receive { message } => {
                state.network.remove(&message);
                let (from, to, bytes) = &message;
                let read = Message::read(bytes).expect("a message");
                state.node(*to).receive(*from, &read).expect("members send what members take");
                state.drain(*to);
            }
            Action::Lose { message } => drop(state.network.remove(&message)),
            Action::Deliver { broadcast, to } => {
                let mut rest = state.broadcasts.take(&broadcast).expect("it is under way");
                rest.to.remove(&to);
                rest.heard = true;
                if !rest.to.is_empty() {
                    state.broadcasts.insert(rest);
                }
                if to == broadcast.from {
                    state.node(to).broadcast_left();
                } else {
                    let read = Message::read(&broadcast.bytes).expect("a message");
                    state.node(to).receive(broadcast.from, &read).expect("FCURB keeps its promises");
                }
                state.drain(to);
            }
            Action::Notice { to, of } => {
                state.notices.remove(&(to, of));
                state.node(to).crashed(of);
                state.drain(to);
            }
            Action::Crash { member, lost } => state.crash(member, lost),
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = properties();
        properties.push(Property::sometimes("all decide all", |world: &World, state: &State| {
            (1..=world.members).all(|member| state.values(member).count() == usize::from(world.proposals))
        }));
        properties
    }
}

fn explore(world: World) {
    let name = format!("HUC, {} members, {} proposals, {} crashes", world.members, world.proposals, world.crashes);
    super::explore(&name, world);
}

#[test]
fn two_members() {
    explore(World { members: 2, proposals: 3, crashes: 1 });
}

#[test]
fn three_members_two_proposals() {
    explore(World { members: 3, proposals: 2, crashes: 2 });
}
