// SPDX-License-Identifier: Apache-2.0
//! Uniform agreement, validity, integrity, log equality, termination (FiDe App. A.1). Values are numbers that are used once, but for payloads
//! that are proposed twice.

use std::collections::HashMap;

use super::{super::state::State, Checked, Violation, violated};

/// The one log that there may be, as whoever was first has told it.
#[derive(Debug, Default)]
pub(in super::super) struct Log {
    instances: Vec<Vec<u8>>,
    /// After each instance.
    states: Vec<State>,
    /// By value: which process proposed it last, as which incarnation, how often it was proposed, and in which instances it was decided.
    values: HashMap<u64, (Voice, u32, Vec<u64>)>,
}

/// A process, and its incarnation.
type Voice = (u32, u32);

pub(in super::super) fn number(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

impl Log {
    pub(in super::super) fn len(&self) -> u64 {
        self.instances.len() as u64
    }

    pub(in super::super) fn proposed(&mut self, value: u64, by: Voice) {
        let (last, count, _) = self.values.entry(value).or_insert((by, 0, Vec::new()));
        (*last, *count) = (by, *count + 1);
    }

    /// A member whose user has this state has told an instance with these values.
    pub(in super::super) fn told(
        &mut self,
        by: u16,
        state: State,
        instance: u64,
        value: &[u8],
        values: &[u64],
    ) -> Checked {
        if instance != state.position + 1 {
            return violated("log order", format!("h{by} tells instance {instance} after {}", state.position));
        }
        let at = usize::try_from(instance - 1).expect("small");
        if let Some(known) = self.instances.get(at) {
            if known != value {
                let text = format!("instance {instance}: h{by} tells {value:?}, somebody told {known:?}");
                return violated("uniform agreement", text);
            }
            return Ok(());
        }
        for value in values {
            match self.values.get_mut(value) {
                None => {
                    return violated("validity", format!("instance {instance} has {value}, which nobody proposed"));
                }
                Some((_, count, decided)) if decided.len() == *count as usize => {
                    let text =
                        format!("{value} is decided in {decided:?} and in {instance}, and was proposed {count} times");
                    return violated("integrity", text);
                }
                Some((.., decided)) => decided.push(instance),
            }
        }
        let mut after = self.states.last().copied().unwrap_or_default();
        after.tell(instance, value);
        self.states.push(after);
        self.instances.push(value.to_vec());
        Ok(())
    }

    /// Who answers has told all that anybody has told.
    pub(in super::super) fn read(&self, at: u16, position: u64) -> Checked {
        if position == self.len() {
            return Ok(());
        }
        violated("speaks for all", format!("h{at} answers after {position} instances; others have told {}", self.len()))
    }

    /// A member has taken over the state of another.
    pub(in super::super) fn taken_over(
        &self,
        by: u16,
        position: u64,
        state: Option<State>,
    ) -> Result<State, Violation> {
        let want = match position {
            0 => Some(State::default()),
            _ => usize::try_from(position - 1).ok().and_then(|at| self.states.get(at).copied()),
        };
        match (state, want) {
            (Some(state), Some(want)) if state == want => Ok(state),
            _ => violated("state transfer", format!("h{by} is given {state:?} at {position}; it was {want:?}")),
        }
    }

    /// The world is quiet, and these members act: host, process, how many instances it has told.
    pub(in super::super) fn settled(&self, members: &[(u16, Voice, u64)]) -> Checked {
        for (member, _, told) in members {
            if *told != self.len() {
                return violated("termination", format!("h{member} has told {told} of {} instances", self.len()));
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
