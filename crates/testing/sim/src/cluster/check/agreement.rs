// SPDX-License-Identifier: Apache-2.0
//! Uniform agreement, validity, integrity, log equality, termination (FiDe App. A.1). Values are numbers that
//! are used once, except for payloads that are proposed twice.

use std::collections::HashMap;

use super::{super::state::State, Checked, Violation, violated};

/// The one log, as the first member to deliver each instance has delivered it.
#[derive(Debug, Default)]
pub(in super::super) struct Log {
    instances: Vec<Vec<u8>>,
    /// Instances up to this one were delivered by a member that is not astray. Only astray members have
    /// delivered later ones, and those may change.
    sure: usize,
    /// The state after each instance.
    states: Vec<State>,
    /// By value: the process and incarnation that proposed it last, how often it was proposed, and the
    /// instances that decided it.
    values: HashMap<u64, (Voice, u32, Vec<u64>)>,
}

/// A process, and its incarnation.
type Voice = (u32, u32);

pub(in super::super) fn number(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

impl Log {
    pub(in super::super) fn len(&self) -> u64 {
        self.sure as u64
    }

    pub(in super::super) fn proposed(&mut self, value: u64, by: Voice) {
        let (last, count, _) = self.values.entry(value).or_insert((by, 0, Vec::new()));
        (*last, *count) = (by, *count + 1);
    }

    /// An astray member has delivered an instance. If others deliver another one, theirs is right.
    pub(in super::super) fn delivered_astray(&mut self, state: State, instance: u64, value: &[u8], values: &[u64]) {
        let last = self.states.last().copied().unwrap_or_default();
        let is_next = instance == self.instances.len() as u64 + 1 && state == last;
        if is_next && self.decide(instance, values).is_ok() {
            self.append(instance, value);
        }
    }

    fn append(&mut self, instance: u64, value: &[u8]) {
        let mut after = self.states.last().copied().unwrap_or_default();
        after.apply(instance, value);
        self.states.push(after);
        self.instances.push(value.to_vec());
    }

    /// Removes instances that only astray members have delivered, and that were wrong.
    fn correct(&mut self, at: usize) {
        self.instances.truncate(at);
        self.states.truncate(at);
        for (.., decided) in self.values.values_mut() {
            decided.retain(|instance| *instance <= at as u64);
        }
    }

    /// A member whose user has this state has delivered an instance with these values.
    pub(in super::super) fn delivered(
        &mut self,
        by: u16,
        state: State,
        instance: u64,
        value: &[u8],
        values: &[u64],
    ) -> Checked {
        if instance != state.position + 1 {
            return violated("log order", format!("h{by} delivers instance {instance} after {}", state.position));
        }
        let at = usize::try_from(instance - 1).expect("small");
        if let Some(known) = self.instances.get(at) {
            if known != value && at >= self.sure {
                self.correct(at);
            } else if known != value {
                let text = format!("instance {instance}: h{by} delivers {value:?}, another member delivered {known:?}");
                return violated("uniform agreement", text);
            } else {
                self.sure = self.sure.max(at + 1);
                return Ok(());
            }
        }
        self.decide(instance, values)?;
        self.append(instance, value);
        self.sure = self.instances.len();
        Ok(())
    }

    fn decide(&mut self, instance: u64, values: &[u64]) -> Checked {
        for value in values {
            match self.values.get_mut(value) {
                None => {
                    return violated("validity", format!("instance {instance} has {value}, which no member proposed"));
                }
                Some((_, count, decided)) if decided.len() == *count as usize => {
                    let text =
                        format!("{value} is decided in {decided:?} and in {instance}, and was proposed {count} times");
                    return violated("integrity", text);
                }
                Some((.., decided)) => decided.push(instance),
            }
        }
        Ok(())
    }

    /// A member that answers has delivered everything that any member has delivered.
    pub(in super::super) fn read(&self, at: u16, position: u64) -> Checked {
        if position >= self.len() && position <= self.instances.len() as u64 {
            return Ok(());
        }
        violated(
            "speaks for all",
            format!("h{at} answers after {position} instances; others have delivered {}", self.len()),
        )
    }

    /// A member has taken over the state of another.
    pub(in super::super) fn taken_over(
        &mut self,
        by: u16,
        position: u64,
        state: Option<State>,
    ) -> Result<State, Violation> {
        let want = match position {
            0 => Some(State::default()),
            _ => usize::try_from(position - 1).ok().and_then(|at| self.states.get(at).copied()),
        };
        match (state, want) {
            (Some(state), Some(want)) if state == want => {
                self.sure = self.sure.max(usize::try_from(position).expect("small"));
                Ok(state)
            }
            _ => violated("state transfer", format!("h{by} is given {state:?} at {position}; it was {want:?}")),
        }
    }

    /// The world is quiet, and these members act: host, process, and how many instances each has delivered.
    pub(in super::super) fn settled(&self, members: &[(u16, Voice, u64)]) -> Checked {
        let most = members.iter().map(|(.., delivered)| *delivered).max().unwrap_or_default().max(self.len());
        for (member, _, delivered) in members {
            if *delivered != most {
                return violated("termination", format!("h{member} has delivered {delivered} of {most} instances"));
            }
        }
        for (value, (by, _, decided)) in &self.values {
            let acts = members.iter().find(|(_, pid, _)| pid == by);
            if let Some((member, ..)) = acts.filter(|_| decided.is_empty()) {
                return violated("termination", format!("value {value}, proposed at h{member}, was never decided"));
            }
        }
        Ok(())
    }
}
