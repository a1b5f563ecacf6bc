// SPDX-License-Identifier: Apache-2.0
//! What each user may have of an agent, and how much it may ask.
//!
//! Root and the agent's own user are *privileged*: an eighth of everything is theirs alone. Another user may take one
//! more of anything as long as it holds fewer than are left for users: alone it comes to a half of them, with k
//! others each comes to one part of k + 2, and a newcomer always finds some. `[limits]` says otherwise.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use fide_client::protocol::{ErrorCode, Op, Refusal};

/// Part of everything that is kept for privileged users.
const RESERVE: usize = 8;
/// What a user may ask at once, and how fast it may ask again; see [`cost`].
const TOKENS_MAX: i64 = 1024;
const TOKENS_PER_SECOND: i64 = 512;

/// Something of which there is only so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Connections,
    Sessions,
    Watches,
    Processes,
    Lanes,
}

impl Resource {
    /// As `[limits]` calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Sessions => "sessions",
            Self::Watches => "watches",
            Self::Processes => "processes",
            Self::Lanes => "lanes",
        }
    }
}

/// Who asks, and what the configuration gives a user of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) uid: u32,
    pub(crate) privileged: bool,
    pub(crate) limit: Option<usize>,
}

/// Whether `asker`, who holds `own` of the `used` of `capacity`, may have one more.
pub(crate) fn admit(resource: Resource, asker: Asker, own: usize, used: usize, capacity: usize) -> Result<(), Refusal> {
    let name = resource.name();
    if asker.privileged {
        return if used < capacity {
            Ok(())
        } else {
            Err(full(format!("{capacity} {name} are in use, the most there can be"), "close one".to_owned()))
        };
    }
    let uid = asker.uid;
    let left = (capacity - capacity.div_ceil(RESERVE)).saturating_sub(used);
    if left == 0 {
        let message = format!("{used} of {capacity} {name} are in use, and the rest is kept for root");
        return Err(full(message, "close one".to_owned()));
    }
    match asker.limit {
        Some(limit) if own >= limit => Err(full(
            format!("user {uid} has {own} {name}, the most that [limits] gives a user"),
            format!("close one, or have `{name}` raised under [limits] in fide.toml"),
        )),
        None if own >= left => Err(full(
            format!("user {uid} has {own} of {capacity} {name} already, and {left} are left for all users"),
            format!("close one, or have `{name} = ...` set under [limits] in fide.toml"),
        )),
        _ => Ok(()),
    }
}

fn full(message: String, hint: String) -> Refusal {
    Refusal::new(ErrorCode::Full, message, hint)
}

/// What a request costs the agent, and others.
pub(crate) fn cost(op: &Op) -> i64 {
    match op {
        // A ring is made; others hear of it.
        Op::Hello { .. } | Op::Join { .. } => 32,
        // The loop writes down all it knows; the controller is asked.
        Op::Status {} | Op::Metrics {} | Op::OpenLane { .. } | Op::ChangeLane { .. } | Op::CloseLane { .. } => 16,
        Op::Quit { .. } | Op::Explain { .. } | Op::Events { .. } | Op::TakeOver { .. } => 4,
        Op::Monitor { .. } | Op::Former { .. } | Op::Unmonitor { .. } => 2,
        Op::Listen { .. } | Op::Unlisten { .. } => 2,
    }
}

/// What each user has asked lately. A user that asks too much waits; it is not refused.
#[derive(Debug, Default)]
pub(crate) struct Budgets {
    spent: HashMap<u32, (i64, Instant)>,
}

impl Budgets {
    /// Whether `uid` may ask something now.
    pub(crate) fn may_ask(&self, uid: u32, now: Instant) -> bool {
        self.debt(uid, now) < TOKENS_MAX
    }

    /// `uid` has asked something.
    pub(crate) fn charge(&mut self, uid: u32, cost: i64, now: Instant) {
        let debt = self.debt(uid, now) + cost;
        self.spent.insert(uid, (debt, now));
    }

    fn debt(&self, uid: u32, now: Instant) -> i64 {
        let Some((debt, at)) = self.spent.get(&uid) else { return 0 };
        (debt - paid(now.saturating_duration_since(*at))).max(0)
    }

    /// Forgets who has not asked for long.
    pub(crate) fn forget(&mut self, now: Instant) {
        self.spent.retain(|_, (debt, at)| *debt > paid(now.saturating_duration_since(*at)));
    }
}

fn paid(since: Duration) -> i64 {
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX).saturating_mul(TOKENS_PER_SECOND) / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 64;

    fn user(uid: u32) -> Asker {
        Asker { uid, privileged: false, limit: None }
    }

    /// Users who take as many as they can, one after the other, until none gets any more.
    fn greedy(users: usize) -> Vec<usize> {
        let mut own = vec![0; users];
        loop {
            let mut got = false;
            for at in 0..users {
                let used = own.iter().sum();
                if admit(Resource::Sessions, user(1000), own[at], used, CAPACITY).is_ok() {
                    own[at] += 1;
                    got = true;
                }
            }
            if !got {
                return own;
            }
        }
    }

    #[test]
    fn greedy_users_leave_some_for_newcomers_and_root() {
        assert_eq!(greedy(1), [28]);
        for users in 2..20 {
            let own = greedy(users);
            let used: usize = own.iter().sum();
            assert!(own.iter().max().unwrap() - own.iter().min().unwrap() <= 1, "alike: {own:?}");
            assert!(admit(Resource::Sessions, user(7), 0, used, CAPACITY).is_ok(), "a newcomer: {own:?}");
            let root = Asker { uid: 0, privileged: true, limit: None };
            assert!((used..CAPACITY).all(|used| admit(Resource::Sessions, root, used, used, CAPACITY).is_ok()));
            assert!(admit(Resource::Sessions, root, 0, CAPACITY, CAPACITY).is_err());
        }
    }

    #[test]
    fn refusals_say_who_has_how_many_and_what_helps() {
        let refusal = admit(Resource::Watches, user(1000), 448, 448, 1024).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Full);
        assert!(refusal.message.contains("user 1000 has 448 of 1024 watches"), "{refusal}");
        assert!(refusal.hint.contains("`watches = ...` set under [limits]"), "{refusal}");
        let limited = Asker { limit: Some(3), ..user(1000) };
        assert!(admit(Resource::Lanes, limited, 2, 8, 16).is_ok());
        let refusal = admit(Resource::Lanes, limited, 3, 8, 16).unwrap_err();
        assert!(refusal.message.contains("the most that [limits] gives a user"), "{refusal}");
        let generous = Asker { limit: Some(1000), ..user(1000) };
        let refusal = admit(Resource::Sessions, generous, 56, 56, 64).unwrap_err();
        assert!(refusal.message.contains("kept for root"), "{refusal}");
    }

    #[test]
    fn user_that_asks_too_much_waits_and_others_do_not() {
        let (mut budgets, start) = (Budgets::default(), Instant::now());
        let mut asked = 0;
        while budgets.may_ask(1000, start) {
            budgets.charge(1000, cost(&Op::Status {}), start);
            asked += 1;
        }
        assert_eq!(asked, TOKENS_MAX / 16);
        assert!(budgets.may_ask(1001, start));
        let later = start + Duration::from_secs(1);
        assert!(budgets.may_ask(1000, later));
        budgets.forget(later);
        assert_eq!(budgets.spent.len(), 1);
        budgets.forget(start + Duration::from_secs(60));
        assert!(budgets.spent.is_empty());
    }
}
