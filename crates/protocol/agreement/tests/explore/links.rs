// SPDX-License-Identifier: Apache-2.0
//! Members and the messages between them. A heartbeat is a message to each member, and may reach only some.

use std::{collections::BTreeSet, fmt::Debug, hash::Hash};

use fide_agreement::{Decision, HostSet, Message, Start};
use fide_types::host_index;
use stateright::{Model, Property};

use super::{Logs, properties};

/// Rounds of resends, in which everything arrives, until everything has to be done.
const ROUNDS: usize = 16;

/// What may happen, and how often.
#[derive(Clone)]
pub(super) struct World<S> {
    pub(super) members: u16,
    pub(super) setting: S,
    pub(super) proposals: u8,
    pub(super) crashes: u32,
    /// Messages of live members that are lost.
    pub(super) losses: u32,
    /// Whether unanswered messages are resent.
    pub(super) resends: bool,
}

/// What stateright requires of a protocol.
pub(super) trait Protocol:
    Start<Setting: Send + Sync + 'static> + Clone + Debug + PartialEq + Eq + Hash + Send + Sync + 'static
{
    /// Only a leader proposes.
    const LEADER_PROPOSES: bool;
}

/// The world of a protocol.
#[derive(Clone)]
pub(super) struct Of<P: Protocol>(pub(super) World<P::Setting>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct State<P> {
    resends: bool,
    lost: u32,
    members: Vec<P>,
    dead: u64,
    /// Sender, receiver, bytes.
    network: BTreeSet<(u16, u16, Vec<u8>)>,
    /// Crashes that are to be reported: the survivor, and the crashed member.
    notices: BTreeSet<(u16, u16)>,
    logs: Vec<Vec<Vec<u8>>>,
    /// The member that made each proposal; a proposal's value is its number.
    proposed: Vec<u16>,
}

/// `dies`: the member crashes after this many copies of what follows.
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
    /// Messages of a dead sender are lost without limit.
    Lose {
        message: (u16, u16, Vec<u8>),
    },
    /// Unanswered messages are resent: once nothing else can happen, if messages can be lost.
    Resend {
        by: u16,
        dies: Option<usize>,
    },
}

impl<P: Protocol> State<P> {
    fn is_dead(&self, member: u16) -> bool {
        self.dead >> member & 1 == 1
    }

    fn node(&mut self, member: u16) -> &mut P {
        &mut self.members[host_index(member)]
    }

    /// Polls a member after a call; it crashes after this many copies.
    fn drain(&mut self, member: u16, dies: Option<usize>) {
        let at = host_index(member);
        let mut copies = 0;
        loop {
            let mut anything = false;
            while let Some(Decision { value, .. }) = self.members[at].poll_decision() {
                self.logs[at].push(value.to_vec());
                anything = true;
            }
            let others = HostSet::first(self.members.len()).iter().filter(|other| *other != member).collect();
            let node = &mut self.members[at];
            let mut send = |to: HostSet, message: Message<'_>| {
                anything = true;
                let mut bytes = Vec::new();
                message.write(&mut bytes);
                for receiver in to.iter() {
                    if dies.is_none_or(|limit| copies < limit) && self.dead >> receiver & 1 == 0 {
                        self.network.insert((member, receiver, bytes.clone()));
                    }
                    copies += 1;
                }
            };
            while let Some((to, message)) = node.poll_transmit() {
                send(to, message);
            }
            if let Some(message) = node.poll_broadcast() {
                send(others, message);
            }
            if !anything {
                break;
            }
        }
        if dies.is_some() {
            self.crash(member);
        }
    }

    fn receive(&mut self, from: u16, to: u16, bytes: &[u8], dies: Option<usize>) {
        let read = Message::read(bytes).expect("a message");
        self.node(to).receive(from, &read).expect("members send what members take");
        self.drain(to, dies);
    }

    fn crash(&mut self, member: u16) {
        self.dead |= 1 << member;
        self.network.retain(|(_, to, _)| *to != member);
        self.notices.retain(|(to, _)| *to != member);
        let notices: Vec<_> = self.alive().into_iter().map(|to| (to, member)).collect();
        self.notices.extend(notices);
    }
}

impl<P: Protocol> Logs for State<P> {
    fn logs(&self) -> &[Vec<Vec<u8>>] {
        &self.logs
    }

    fn proposed(&self) -> &[u16] {
        &self.proposed
    }

    fn alive(&self) -> BTreeSet<u16> {
        (1..=self.members.len() as u16).filter(|member| !self.is_dead(*member)).collect()
    }

    fn at_rest(&self) -> Option<Self> {
        let quiet = self.network.is_empty() && self.notices.is_empty();
        let mut state = quiet.then(|| self.clone())?;
        for _ in 0..if self.resends { ROUNDS } else { 0 } {
            for member in state.alive() {
                state.node(member).resend();
                state.drain(member, None);
            }
            while let Some((from, to, bytes)) = state.network.pop_first() {
                state.receive(from, to, &bytes, None);
            }
        }
        Some(state)
    }
}

impl<P: Protocol> Model for Of<P> {
    type State = State<P>;
    type Action = Action;

    fn init_states(&self) -> Vec<State<P>> {
        let Self(world) = self;
        let members = HostSet::first(usize::from(world.members));
        let of = |me| P::start(&world.setting, me, members).expect("a member");
        let mut state = State {
            resends: world.resends,
            lost: 0,
            members: (1..=world.members).map(of).collect(),
            dead: 0,
            network: BTreeSet::new(),
            notices: BTreeSet::new(),
            logs: vec![Vec::new(); usize::from(world.members)],
            proposed: Vec::new(),
        };
        (1..=world.members).for_each(|member| state.drain(member, None));
        vec![state]
    }

    fn actions(&self, state: &State<P>, actions: &mut Vec<Action>) {
        let Self(world) = self;
        let may_die = state.dead.count_ones() < world.crashes;
        // Crashes after each number of copies that a member may send in one step are distinguished.
        let deaths = |actions: &mut Vec<Action>, make: &dyn Fn(Option<usize>) -> Action| {
            actions.push(make(None));
            if may_die {
                actions.extend((0..2 * usize::from(world.members)).map(|copies| make(Some(copies))));
            }
        };
        for by in state.alive() {
            let may = !P::LEADER_PROPOSES || state.members[host_index(by)].leader() == by;
            if may && state.proposed.len() < usize::from(world.proposals) {
                deaths(actions, &|dies| Action::Propose { by, dies });
            }
            if may_die {
                actions.push(Action::Crash { member: by });
            }
        }
        for message in &state.network {
            deaths(actions, &|dies| Action::Deliver { message: message.clone(), dies });
            if state.is_dead(message.0) || state.lost < world.losses {
                actions.push(Action::Lose { message: message.clone() });
            }
        }
        if world.resends && state.network.is_empty() && state.notices.is_empty() {
            for by in state.alive() {
                deaths(actions, &|dies| Action::Resend { by, dies });
            }
        }
        for (to, of) in &state.notices {
            deaths(actions, &|dies| Action::Notice { to: *to, of: *of, dies });
        }
    }

    fn next_state(&self, last: &State<P>, action: Action) -> Option<State<P>> {
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
                state.receive(*from, *to, bytes, dies);
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
        let Self(world) = self;
        let mut properties = properties();
        // So a member may answer for what nothing that it holds writes.
        properties.push(Property::always("what is delivered anywhere is held by all", |_, state: &State<P>| {
            let longest = state.logs.iter().max_by_key(|log| log.len()).expect("members");
            state.alive().into_iter().all(|member| {
                let delivered = state.log(member).len();
                let mut missing: BTreeSet<usize> = (delivered..longest.len()).collect();
                let is_known = state.members[host_index(member)].each_held(&mut |held| {
                    let at = usize::try_from(held.instance).expect("few") - 1;
                    if longest.get(at).is_some_and(|value| value == held.value) {
                        missing.remove(&at);
                    }
                });
                is_known && missing.is_empty()
            })
        }));
        if world.crashes + 1 == u32::from(world.members) {
            properties.push(Property::sometimes(
                "all but one die and the last goes on",
                |Self(world): &Self, state: &State<P>| {
                    let all = state.values(world.members).count() == usize::from(world.proposals);
                    state.alive() == BTreeSet::from([world.members]) && all
                },
            ));
        }
        properties
    }
}
