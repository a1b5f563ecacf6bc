// SPDX-License-Identifier: Apache-2.0
//! Uniform agreement, validity, integrity, log equality, termination (FiDe App. A.1). Values are numbers that are used once.

use std::collections::HashMap;

use fide_agreement::batch;

use super::{Checked, violated};

/// The one log that there may be, as whoever was first has told it.
#[derive(Debug, Default)]
pub(in super::super) struct Log {
    instances: Vec<Vec<u8>>,
    /// By value: who proposed it, and in which instance it was decided.
    values: HashMap<u64, (u16, Option<u64>)>,
}

pub(in super::super) fn number(value: &[u8]) -> Option<u64> {
    value.try_into().ok().map(u64::from_le_bytes)
}

impl Log {
    pub(in super::super) fn len(&self) -> u64 {
        self.instances.len() as u64
    }

    pub(in super::super) fn proposed(&mut self, value: u64, by: u16) {
        self.values.insert(value, (by, None));
    }

    /// A member has told an instance, after so many others.
    pub(in super::super) fn told(&mut self, by: u16, told_before: u64, instance: u64, value: &[u8]) -> Checked {
        if instance != told_before + 1 {
            return violated("log order", format!("h{by} tells instance {instance} after {told_before}"));
        }
        let at = usize::try_from(instance - 1).expect("small");
        if let Some(known) = self.instances.get(at) {
            if known != value {
                let text = format!("instance {instance}: h{by} tells {value:?}, somebody told {known:?}");
                return violated("uniform agreement", text);
            }
            return Ok(());
        }
        for value in batch::values(value) {
            let known = number(value).and_then(|number| self.values.get_mut(&number));
            match known {
                None => {
                    return violated("validity", format!("instance {instance} has {value:?}, which nobody proposed"));
                }
                Some((_, Some(other))) => {
                    return violated("integrity", format!("{value:?} is decided in {other} and in {instance}"));
                }
                Some((_, decided)) => *decided = Some(instance),
            }
        }
        self.instances.push(value.to_vec());
        Ok(())
    }

    /// The world is quiet, and these members act: each with how many instances it has told.
    pub(in super::super) fn settled(&self, members: &[(u16, u64)]) -> Checked {
        for (member, told) in members {
            if *told != self.len() {
                return violated("termination", format!("h{member} has told {told} of {} instances", self.len()));
            }
        }
        for (value, (by, decided)) in &self.values {
            if decided.is_none() && members.iter().any(|(member, _)| member == by) {
                return violated("termination", format!("value {value}, proposed at h{by}, was never decided"));
            }
        }
        Ok(())
    }
}
