// SPDX-License-Identifier: Apache-2.0
//! HSUC.

use std::collections::BTreeSet;

use fide_agreement::{Agreement, Decision, HostSet, Hsuc, Links, Message, hsuc::Setting};
use stateright::{Model, Property};

use super::{Told, properties};

/// How much happens.
#[derive(Clone)]
pub(super) struct World {
    members: u16,
    window: u64,
    proposals: u8,
    crashes: u32,
    /// Messages of the living that are lost.
    losses: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State {
    lost: u32,
    members: Vec<Hsuc>,
    dead: u64,
    /// Sender, receiver, bytes.
    network: BTreeSet<(u16, u16, Vec<u8>)>,
    /// Who is to be told of whose crash.
    notices: BTreeSet<(u16, u16)>,
    logs: Vec<Vec<Vec<u8>>>,
    /// Who made each proposal; its value is its number.
    proposed: Vec<u16>,
}

/// `dies`: after so many copies of what follows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    Propose {
        by: u16,
        dies: Option<usize>,
    },
    Deliver {
        message: (u16, u16, Vec<u8>),
        dies: Option<usize>,
    },
    Notice {
        to: u16,
        of: u16,
        dies: Option<usize>,
    },
    Crash {
        member: u16,
    },
    /// Of a dead sender as often as may be.
    Lose {
        message: (u16, u16, Vec<u8>),
    },
    /// What was not answered is sent again: once nothing else can happen, when messages can be lost.
    Resend {
        by: u16,
        dies: Option<usize>,
    },
}

impl State {
    fn is_dead(&self, member: u16) -> bool {
        self.dead >> member & 1 == 1
    }

    fn node(&mut self, member: u16) -> &mut Hsuc {
        &mut self.members[usize::from(member) - 1]
    }

    /// What follows from the last call at a member; it dies after so many copies.
    fn drain(&mut self, member: u16, dies: Option<usize>) {
        let at = usize::from(member) - 1;
        let mut copies = 0;
        loop {
            let mut anything = false;
            while let Some(Decision { value, .. }) = self.members[at].poll_decision() {
                self.logs[at].push(value.to_vec());
                anything = true;
            }
            while let Some((to, message)) = self.members[at].poll_transmit() {
                anything = true;
                let mut bytes = Vec::new();
                message.write(&mut bytes);
                for receiver in to.iter() {
                    if dies.is_none_or(|limit| copies < limit) && self.dead >> receiver & 1 == 0 {
                        self.network.insert((member, receiver, bytes.clone()));
                    }
                    copies += 1;
                }
            }
            if !anything {
                break;
            }
        }
        if dies.is_some() {
            self.crash(member);
        }
    }

    fn crash(&mut self, member: u16) {
        self.dead |= 1 << member;
        self.network.retain(|(_, to, _)| *to != member);
        self.notices.retain(|(to, _)| *to != member);
        let told: Vec<_> = self.alive().into_iter().map(|to| (to, member)).collect();
        self.notices.extend(told);
    }
}

impl Told for State {
    fn logs(&self) -> &[Vec<Vec<u8>>] {
        &self.logs
    }

    fn proposed(&self) -> &[u16] {
        &self.proposed
    }

    fn alive(&self) -> BTreeSet<u16> {
        (1..=self.members.len() as u16).filter(|member| !self.is_dead(*member)).collect()
    }

    /// Nothing is under way, and nobody has anything to send again.
    fn is_quiet(&self) -> bool {
        let settled = |member: u16| {
            let mut member = self.members[usize::from(member) - 1].clone();
            member.resend();
            member.resend();
            member.poll_transmit().is_none()
        };
        self.network.is_empty() && self.notices.is_empty() && self.alive().into_iter().all(settled)
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let members = HostSet::first(usize::from(self.members));
        let links = if self.losses > 0 { Links::Lossy } else { Links::Reliable };
        let of = |me| Hsuc::new(&Setting { window: self.window, value_max: 16, links }, me, members).expect("a member");
        vec![State {
            lost: 0,
            members: (1..=self.members).map(of).collect(),
            dead: 0,
            network: BTreeSet::new(),
            notices: BTreeSet::new(),
            logs: vec![Vec::new(); usize::from(self.members)],
            proposed: Vec::new(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let may_die = state.dead.count_ones() < self.crashes;
        // As many copies as a member may send in one step are told apart by what reaches whom.
        let deaths = |actions: &mut Vec<Action>, make: &dyn Fn(Option<usize>) -> Action| {
            actions.push(make(None));
            if may_die {
                actions.extend((0..2 * usize::from(self.members)).map(|copies| make(Some(copies))));
            }
        };
        for by in state.alive() {
            let leads = state.members[usize::from(by) - 1].leader() == by;
            if leads && state.proposed.len() < usize::from(self.proposals) {
                deaths(actions, &|dies| Action::Propose { by, dies });
            }
            if may_die {
                actions.push(Action::Crash { member: by });
            }
        }
        for message in &state.network {
            deaths(actions, &|dies| Action::Deliver { message: message.clone(), dies });
            if state.is_dead(message.0) || state.lost < self.losses {
                actions.push(Action::Lose { message: message.clone() });
            }
        }
        if self.losses > 0 && state.network.is_empty() && state.notices.is_empty() {
            for by in state.alive() {
                deaths(actions, &|dies| Action::Resend { by, dies });
            }
        }
        for (to, of) in &state.notices {
            deaths(actions, &|dies| Action::Notice { to: *to, of: *of, dies });
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Propose { by, dies } => {
                let value = [state.proposed.len() as u8 + 1];
                state.node(by).propose(&value).ok()?;
                state.proposed.push(by);
                state.drain(by, dies);
            }
            Action::Deliver { message, dies } => {
                let (from, to, bytes) = &message;
                state.network.remove(&message);
                let read = Message::read(bytes).expect("a message");
                state.node(*to).receive(*from, &read).expect("members send what members take");
                state.drain(*to, dies);
            }
            Action::Notice { to, of, dies } => {
                state.notices.remove(&(to, of));
                state.node(to).crashed(of);
                state.drain(to, dies);
            }
            Action::Crash { member } => state.crash(member),
            Action::Lose { message } => {
                state.lost += u32::from(!state.is_dead(message.0));
                state.network.remove(&message);
            }
            Action::Resend { by, dies } => {
                state.node(by).resend();
                state.drain(by, dies);
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = properties();
        if self.crashes + 1 == u32::from(self.members) {
            properties.push(Property::sometimes(
                "all but one die and the last goes on",
                |world: &World, state: &State| {
                    let all = state.values(world.members).count() == usize::from(world.proposals);
                    state.alive() == BTreeSet::from([world.members]) && all
                },
            ));
        }
        properties
    }
}

fn explore(world: World) {
    let name = format!(
        "HSUC, {} members, window {}, {} proposals, {} crashes, {} losses",
        world.members, world.window, world.proposals, world.crashes, world.losses
    );
    super::explore(&name, world);
}

#[test]
fn two_members_two_instances() {
    for window in 1..=2 {
        explore(World { members: 2, window, proposals: 2, crashes: 1, losses: 0 });
    }
}

#[test]
fn three_members_one_instance() {
    explore(World { members: 3, window: 1, proposals: 1, crashes: 2, losses: 0 });
}

#[test]
fn three_members_two_instances() {
    let large = std::env::var("FIDE_EXPLORE").is_ok_and(|how| how == "large");
    for window in 1..=2 {
        explore(World { members: 3, window, proposals: if large { 3 } else { 2 }, crashes: 2, losses: 0 });
    }
}

/// Links that lose messages of the living, so that they are sent again and arrive out of order and twice.
#[test]
fn two_members_and_losses() {
    for window in 1..=2 {
        explore(World { members: 2, window, proposals: 2, crashes: 1, losses: 2 });
    }
}

#[test]
fn three_members_and_a_loss() {
    explore(World { members: 3, window: 1, proposals: 1, crashes: 2, losses: 1 });
}

/// Faults planted in the protocol are seen. Alone in its process, as they are planted for all of it:
/// `cargo test --release -p fide-agreement --features planted --test explore planted`.
#[cfg(feature = "planted")]
#[test]
fn planted_faults_are_seen() {
    use fide_detector::planted::{Planted, arm};
    use stateright::Checker;
    let faults = [
        Planted::DecidesEarly,
        Planted::DropsAdopted,
        Planted::AdoptsLower,
        Planted::TellsAdopted,
        Planted::AckMeansTold,
        Planted::NeverResends,
        Planted::WaitsForTheDead,
    ];
    for fault in faults {
        arm(Some(fault));
        let worlds = [
            World { members: 3, window: 1, proposals: 1, crashes: 2, losses: 1 },
            World { members: 3, window: 1, proposals: 2, crashes: 2, losses: 0 },
        ];
        let seen = worlds.into_iter().find_map(|world| {
            let checker = super::checked(world);
            let mut found: Vec<_> = checker.discoveries().into_keys().collect();
            found.retain(|property| *property != "all but one die and the last goes on");
            (!found.is_empty()).then(|| format!("{found:?} after {} states", checker.unique_state_count()))
        });
        arm(None);
        println!("{fault:?}: {}", seen.expect("a fault that nothing shows"));
    }
}
