// SPDX-License-Identifier: Apache-2.0
//! Quotas: how much of an agent's resources each user may hold, and how much it may ask.
//!
//! Root and the agent's own user are *privileged*: an eighth of everything is reserved for them. Another
//! user may take one more of a resource as long as it holds fewer than are left for users. Alone it can
//! take a half of them; with k others each can take one part of k + 2, and a newcomer always finds some.
//! Privileged users take more than their reserve only while an eighth of everything stays free for users,
//! in whatever order they come. `[limits]` overrides this.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use fide_agent_api::protocol::{ErrorCode, Op, Refusal};

use super::Control;

/// The part of everything that is reserved for privileged users; as much is reserved for all others.
const RESERVE: usize = 8;
/// How much a user may ask at once, and how fast it may ask again; see [`cost`].
const TOKENS_MAX: i64 = 1024;
const TOKENS_PER_SECOND: i64 = 512;

/// Something that the agent has a limited number of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Connections,
    Sessions,
    Watches,
    Processes,
    Lanes,
    /// Requests about lanes that wait for the controller.
    LaneRequests,
}

impl Resource {
    /// Its key in `[limits]`, where it has one.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Sessions => "sessions",
            Self::Watches => "watches",
            Self::Processes => "processes",
            Self::Lanes => "lanes",
            Self::LaneRequests => "requests about lanes",
        }
    }
}

/// The user that asks, and what the configuration gives it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asker {
    pub(crate) uid: u32,
    pub(crate) privileged: bool,
    pub(crate) limit: Option<usize>,
    /// Nothing is reserved for other users.
    pub(crate) only_root: bool,
}

/// Whether this user may take from what is reserved for root. `agent`: the user that the agent runs as.
pub(crate) fn is_privileged(uid: u32, agent: u32) -> bool {
    uid == 0 || uid == agent
}

/// How many of something are in use, by user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// The asking user's.
    pub(crate) own: usize,
    /// Privileged users'.
    pub(crate) root: usize,
    pub(crate) users: usize,
}

impl Usage {
    /// Sums up what each user has; a user may come several times.
    pub(crate) fn of(asker: u32, agent: u32, held: impl Iterator<Item = (u32, usize)>) -> Self {
        let mut usage = Self::default();
        for (uid, count) in held {
            if uid == asker {
                usage.own += count;
            }
            if is_privileged(uid, agent) {
                usage.root += count;
            } else {
                usage.users += count;
            }
        }
        usage
    }

    fn all(self) -> usize {
        self.root + self.users
    }
}

/// Whether `asker` may have one more of the `capacity` that there are.
pub(crate) fn admit(resource: Resource, asker: Asker, usage: Usage, capacity: usize) -> Result<(), Refusal> {
    let name = resource.name();
    let kept = capacity.div_ceil(RESERVE);
    let Usage { own, root, users } = usage;
    // Root takes from its reserve first.
    let left = (capacity - kept).saturating_sub(users + root.saturating_sub(kept));
    if asker.privileged {
        let why = if usage.all() >= capacity {
            format!("{capacity} {name} are in use, the most there can be")
        } else if root >= kept && left <= kept && !asker.only_root {
            format!(
                "root has {root} of {capacity} {name}, other users {users}, and the rest is kept for other users ([limits] only_root)"
            )
        } else {
            return Ok(());
        };
        return Err(full(why, "close one".to_owned()));
    }
    let uid = asker.uid;
    if left == 0 {
        let message = format!("{} of {capacity} {name} are in use, and the rest is kept for root", usage.all());
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

/// The most that a lone user can have.
pub(crate) fn most(capacity: usize, limit: Option<usize>) -> usize {
    let users = capacity - capacity.div_ceil(RESERVE);
    limit.map_or(users / 2, |limit| limit.min(users))
}

/// The cost for a user to register everything that it may have, as its programs do when a new agent
/// starts.
pub(crate) fn credit_of(sessions: usize, processes: usize, watches: usize) -> i64 {
    // Each watch takes two requests: `Monitor`, and `Former` for what the agent before had reported of its
    // target.
    let units = 32 * (sessions + processes) + (2 + 2) * watches;
    i64::try_from(units).unwrap_or(i64::MAX)
}

/// Whether a program may ask this only to get back what the agent before gave it.
pub(crate) fn registers(op: &Op) -> bool {
    matches!(op, Op::Hello { .. } | Op::Join { .. } | Op::Monitor { .. } | Op::Former { .. } | Op::Listen { .. })
}

/// The cost of a request for the agent, and for others.
pub(crate) fn cost(op: &Op) -> i64 {
    match op {
        // A ring is created, or others are notified.
        Op::Hello { .. } | Op::Join { .. } => 32,
        // The loop writes down all that it knows, or the controller is asked.
        Op::Status {}
        | Op::Metrics {}
        | Op::Gaps { .. }
        | Op::OpenLane { .. }
        | Op::ChangeLane { .. }
        | Op::CloseLane { .. } => 16,
        Op::Quit { .. } | Op::Explain { .. } | Op::Events { .. } | Op::TakeOver { .. } => 4,
        Op::Monitor { .. } | Op::Former { .. } | Op::Unmonitor { .. } => 2,
        Op::Listen { .. } | Op::Unlisten { .. } => 2,
    }
}

/// How much each user has asked lately. A user that asks too much waits; it is not refused.
///
/// When an agent has started, all programs of a user come at once, each with everything that it had. For
/// these requests each user has a credit until `grace_until`, apart from its bucket.
#[derive(Debug)]
pub(crate) struct Budgets {
    spent: HashMap<u32, (i64, Instant)>,
    /// How much of its credit each user has used.
    taken: HashMap<u32, i64>,
    credit: i64,
    grace_until: Instant,
}

impl Budgets {
    /// Nobody has asked anything yet.
    pub(crate) fn new(credit: i64, grace_until: Instant) -> Self {
        Self { spent: HashMap::new(), taken: HashMap::new(), credit, grace_until }
    }

    /// Whether `uid` may ask something now.
    pub(crate) fn may_ask(&self, uid: u32, now: Instant) -> bool {
        self.debt(uid, now) < TOKENS_MAX
    }

    /// `uid` has asked something. `registers`: see [`registers`].
    pub(crate) fn charge(&mut self, uid: u32, cost: i64, registers: bool, now: Instant) {
        if registers && now < self.grace_until {
            let taken = self.taken.entry(uid).or_default();
            if *taken + cost <= self.credit {
                *taken += cost;
                return;
            }
        }
        let debt = self.debt(uid, now) + cost;
        self.spent.insert(uid, (debt, now));
    }

    fn debt(&self, uid: u32, now: Instant) -> i64 {
        let Some((debt, at)) = self.spent.get(&uid) else { return 0 };
        (debt - paid(now.saturating_duration_since(*at))).max(0)
    }

    /// Forgets users that have not asked for long.
    pub(crate) fn forget(&mut self, now: Instant) {
        if now >= self.grace_until {
            self.taken = HashMap::new();
        }
        self.spent.retain(|_, (debt, at)| *debt > paid(now.saturating_duration_since(*at)));
    }
}

fn paid(since: Duration) -> i64 {
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX).saturating_mul(TOKENS_PER_SECOND) / 1_000_000
}

impl Control {
    /// The caller's share of a resource, and its limits.
    pub(super) fn asker(&self, uid: u32, resource: Resource) -> Asker {
        let limits = &self.parts.config.limits;
        let limit = match resource {
            Resource::Connections => limits.connections,
            Resource::Sessions => limits.sessions,
            Resource::Watches => limits.watches,
            Resource::Processes => limits.processes,
            Resource::Lanes => limits.lanes,
            Resource::LaneRequests => None,
        };
        let only_root = limits.only_root == Some(true);
        Asker { uid, privileged: is_privileged(uid, self.own_uid), limit, only_root }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 64;

    const ROOT: Asker = Asker { uid: 0, privileged: true, limit: None, only_root: false };

    fn user(uid: u32) -> Asker {
        Asker { uid, privileged: false, limit: None, only_root: false }
    }

    /// One user has everything that is in use.
    fn one(own: usize, users: usize) -> Usage {
        Usage { own, root: 0, users }
    }

    /// Users that take as many as they can beside root, in turn, until none gets any more.
    fn greedy(users: usize, root: usize) -> Vec<usize> {
        let mut own = vec![0; users];
        loop {
            let mut got = false;
            for at in 0..users {
                let usage = Usage { own: own[at], root, users: own.iter().sum() };
                if admit(Resource::Sessions, user(1000), usage, CAPACITY).is_ok() {
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
        assert_eq!(greedy(1, 0), [28]);
        for users in 2..20 {
            let own = greedy(users, 0);
            let used: usize = own.iter().sum();
            assert!(own.iter().max().unwrap() - own.iter().min().unwrap() <= 1, "alike: {own:?}");
            let newcomer = Usage { own: 0, root: 0, users: used };
            assert!(admit(Resource::Sessions, user(7), newcomer, CAPACITY).is_ok(), "a newcomer: {own:?}");
            let root = greedy_root(used);
            assert!(root >= CAPACITY / RESERVE && root + used <= CAPACITY, "{root} beside {used}");
        }
    }

    /// How many root gets that takes as many as it can, beside what users have.
    fn greedy_root(users: usize) -> usize {
        let may = |root| admit(Resource::Sessions, ROOT, Usage { own: root, root, users }, CAPACITY).is_ok();
        (0..=CAPACITY).find(|root| !may(*root)).expect("there is an end")
    }

    #[test]
    fn newcomer_finds_some_in_any_order() {
        let newcomer = |root, users| admit(Resource::Sessions, user(7), Usage { own: 0, root, users }, CAPACITY);
        for first in 1..20 {
            // Users, then root.
            let users: usize = greedy(first, 0).iter().sum();
            let root = greedy_root(users);
            let got = newcomer(root, users);
            assert!(got.is_ok(), "{first} users have {users}, root then came to {root}: {got:?}");
            // Root, then users.
            let root = greedy_root(0);
            let users: usize = greedy(first.min(4), root).iter().sum();
            let got = newcomer(root, users);
            assert!(got.is_ok(), "root has {root}, users then came to {users}: {got:?}");
        }
        // As many as there are at most, by one user and root: an eighth stays free.
        let users = greedy(1, 0)[0];
        assert_eq!((users, greedy_root(users)), (28, 28));
    }

    #[test]
    fn greedy_root_leaves_some_for_users() {
        let mut usage = Usage::default();
        while admit(Resource::Sessions, ROOT, usage, CAPACITY).is_ok() {
            usage = Usage { own: usage.own + 1, root: usage.root + 1, ..usage };
        }
        assert_eq!(usage.root, CAPACITY - CAPACITY / RESERVE);
        let refusal = admit(Resource::Sessions, ROOT, usage, CAPACITY).unwrap_err();
        assert!(
            refusal.message.contains("root has 56 of 64 sessions") && refusal.message.contains("other users"),
            "{refusal}"
        );
        let alone = Asker { only_root: true, ..ROOT };
        assert!(admit(Resource::Sessions, alone, usage, CAPACITY).is_ok());
        assert!(admit(Resource::Sessions, alone, Usage { root: CAPACITY, ..usage }, CAPACITY).is_err());
        assert_eq!(greedy(1, usage.root), [4], "half of what is kept for users");
        assert_eq!(greedy(3, usage.root), [2, 2, 2], "and some are left for a newcomer");
        // What root takes of its own share costs users nothing, and together they never take more than there
        // is.
        assert_eq!(greedy(1, CAPACITY / RESERVE), [28]);
        for root in 0..=usage.root {
            for users in 1..10 {
                let users: usize = greedy(users, root).iter().sum();
                assert!(users > 0 && users + root <= CAPACITY, "{users} {root}");
            }
        }
    }

    #[test]
    fn usage_of_privileged_users_counts_as_roots() {
        let held = [(0, 2), (77, 3), (1000, 4), (1000, 1), (1001, 6)];
        assert_eq!(Usage::of(1000, 77, held.into_iter()), Usage { own: 5, root: 5, users: 11 });
        assert_eq!(Usage::of(0, 0, held.into_iter()), Usage { own: 2, root: 2, users: 14 });
    }

    #[test]
    fn refusals_name_usage_and_remedy() {
        let refusal = admit(Resource::Watches, user(1000), one(448, 448), 1024).unwrap_err();
        assert_eq!(refusal.code, ErrorCode::Full);
        assert!(refusal.message.contains("user 1000 has 448 of 1024 watches"), "{refusal}");
        assert!(refusal.hint.contains("`watches = ...` set under [limits]"), "{refusal}");
        let limited = Asker { limit: Some(3), ..user(1000) };
        assert!(admit(Resource::Lanes, limited, one(2, 8), 16).is_ok());
        let refusal = admit(Resource::Lanes, limited, one(3, 8), 16).unwrap_err();
        assert!(refusal.message.contains("the most that [limits] gives a user"), "{refusal}");
        let generous = Asker { limit: Some(1000), ..user(1000) };
        let refusal = admit(Resource::Sessions, generous, one(56, 56), 64).unwrap_err();
        assert!(refusal.message.contains("kept for root"), "{refusal}");
    }

    #[test]
    fn only_the_user_that_asks_too_much_waits() {
        let start = Instant::now();
        let mut budgets = Budgets::new(1_000_000, start + Duration::from_secs(10));
        let mut asked = 0;
        while budgets.may_ask(1000, start) {
            budgets.charge(1000, cost(&Op::Status {}), registers(&Op::Status {}), start);
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

    /// What all programs of a user ask, with everything that it may have, when their agent has started
    /// again.
    fn come_back(budgets: &mut Budgets, uid: u32, now: Instant) -> (i64, bool) {
        let (sessions, processes, watches) = (most(64, Some(50)), most(64, Some(50)), most(1024, Some(850)));
        let hello = Op::Hello { protocol: 2, program: String::new(), session: None, bell: true };
        let join = Op::Join { name: String::new(), pid: 0, beat_timeout_us: 0 };
        let monitor = Op::Monitor { target: String::new(), timeout_us: 0, pbsize: 0 };
        let former = Op::Former { watch: 1, slot: 0, incarnation: 1, timeout_us: 0 };
        let (mut asked, mut waits) = (0, false);
        for (op, times) in [(hello, sessions), (join, processes), (monitor, watches), (former, watches)] {
            for _ in 0..times {
                waits |= !budgets.may_ask(uid, now);
                budgets.charge(uid, cost(&op), registers(&op), now);
                asked += cost(&op);
            }
        }
        (asked, waits)
    }

    #[test]
    fn reattaching_programs_do_not_wait() {
        let start = Instant::now();
        let mut budgets = Budgets::new(credit_of(50, 50, 850), start + Duration::from_secs(10));
        for uid in [1000, 1001] {
            let (asked, waits) = come_back(&mut budgets, uid, start + Duration::from_secs(1));
            assert!(!waits && asked == credit_of(50, 50, 850) && asked > 4 * TOKENS_MAX, "{asked}");
        }
        // The credit is given once: a user that repeats this waits like anybody.
        assert!(come_back(&mut budgets, 1000, start + Duration::from_secs(1)).1);
        // And not later.
        assert!(come_back(&mut budgets, 1002, start + Duration::from_secs(11)).1);
        budgets.forget(start + Duration::from_secs(11));
        assert!(budgets.taken.is_empty());
    }

    #[test]
    fn most_is_what_a_lone_user_gets() {
        assert_eq!((most(64, None), most(64, Some(3)), most(64, Some(1000))), (28, 3, 56));
    }
}
