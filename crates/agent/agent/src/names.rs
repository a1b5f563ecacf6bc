// SPDX-License-Identifier: Apache-2.0
//! Who may join under which name.
//!
//! A process' name decides what others do: a process that joins as `redis` decides what redis' watchers do.
//! The configuration assigns names to users (`[[name]]`). Any other name belongs to the first user that
//! joins under it, for as long as the agent runs, so that nobody takes it while its program is down.

use std::{collections::HashMap, ffi::CString, mem::MaybeUninit, ptr};

/// Names that one user keeps; with one more, it loses the one that it has not used for longest.
const KEPT_MAX: usize = 128;
/// Users that keep names; with one more, the user that has not joined for longest loses its names.
const USERS_MAX: usize = 256;

/// Bytes of a host's entry for a user or a group.
const TEXT_MAX: usize = 64 << 10;

/// Names that are assigned to users and groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// A name, in which `*` stands for any characters.
    pub pattern: String,
    pub users: Vec<u32>,
    pub groups: Vec<u32>,
}

/// The user that asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    /// The user that it counts against, whose names are its own.
    pub share: u32,
    pub groups: Vec<u32>,
}

/// Why a user may not join under a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotYours<'a> {
    /// This rule assigns the name to others.
    Rule(&'a Rule),
    /// No rule covers it, and only names of rules may be used.
    Unlisted,
    /// This user has joined under it before.
    Kept { by: u32 },
}

/// The names that users have joined under.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct Kept {
    names: HashMap<String, (u32, u64)>,
    uses: u64,
}

/// Whether `name` fits `pattern`.
#[must_use]
pub fn fits(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
    let mut last = None;
    for part in parts {
        if let Some(middle) = last.replace(part) {
            // The first match is as good as any: it leaves the most room for the rest.
            let Some(at) = rest.find(middle) else { return false };
            rest = &rest[at + middle.len()..];
        }
    }
    last.map_or(rest.is_empty(), |last| rest.ends_with(last))
}

/// The id of a user by name or number; `None` if this host knows no user of that name.
#[must_use]
pub fn user_id(name: &str) -> Option<u32> {
    if let Ok(id) = name.parse() {
        return Some(id);
    }
    let name = CString::new(name).ok()?;
    let (mut found, mut text) = (MaybeUninit::<libc::passwd>::uninit(), vec![0; TEXT_MAX]);
    let mut result = ptr::null_mut();
    // SAFETY: all of it is writable for the length that is given, and outlives the call.
    unsafe { libc::getpwnam_r(name.as_ptr(), found.as_mut_ptr(), text.as_mut_ptr(), text.len(), &raw mut result) };
    // SAFETY: null, or `found`, which was filled then.
    unsafe { result.as_ref() }.map(|found| found.pw_uid)
}

/// The id of a group by name or number; `None` if this host knows no group of that name.
#[must_use]
pub fn group_id(name: &str) -> Option<u32> {
    if let Ok(id) = name.parse() {
        return Some(id);
    }
    let name = CString::new(name).ok()?;
    let (mut found, mut text) = (MaybeUninit::<libc::group>::uninit(), vec![0; TEXT_MAX]);
    let mut result = ptr::null_mut();
    // SAFETY: all of it is writable for the length that is given, and outlives the call.
    unsafe { libc::getgrnam_r(name.as_ptr(), found.as_mut_ptr(), text.as_mut_ptr(), text.len(), &raw mut result) };
    // SAFETY: null, or `found`, which was filled then.
    unsafe { result.as_ref() }.map(|found| found.gr_gid)
}

impl Kept {
    /// Whether `caller`, who is not privileged, may join under `name`.
    ///
    /// # Errors
    /// [`NotYours`].
    pub fn check<'a>(
        &self,
        rules: &'a [Rule],
        only_listed: bool,
        name: &str,
        caller: &Caller,
    ) -> Result<(), NotYours<'a>> {
        let mut named = rules.iter().filter(|rule| fits(&rule.pattern, name)).peekable();
        if let Some(first) = named.peek().copied() {
            let allowed = |rule: &Rule| {
                rule.users.contains(&caller.uid) || rule.groups.iter().any(|group| caller.groups.contains(group))
            };
            return if named.any(allowed) { Ok(()) } else { Err(NotYours::Rule(first)) };
        }
        if only_listed {
            return Err(NotYours::Unlisted);
        }
        match self.names.get(name) {
            // Kept under its own id, from before it was a subordinate one.
            Some((by, _)) if ![caller.share, caller.uid].contains(by) => Err(NotYours::Kept { by: *by }),
            _ => Ok(()),
        }
    }

    /// Notes that the user `uid` has joined under `name`. A privileged user may use any name, and does not
    /// take it from the user that has it.
    pub fn keep(&mut self, name: &str, uid: u32, privileged: bool) {
        if privileged && self.names.contains_key(name) {
            return;
        }
        self.uses += 1;
        self.names.insert(name.to_owned(), (uid, self.uses));
        let oldest = |names: &HashMap<String, (u32, u64)>, of: u32| {
            let own = names.iter().filter(|(_, (by, _))| *by == of);
            own.min_by_key(|(_, (_, used))| *used).map(|(name, _)| name.clone())
        };
        if self.names.values().filter(|(by, _)| *by == uid).count() > KEPT_MAX
            && let Some(name) = oldest(&self.names, uid)
        {
            self.names.remove(&name);
        }
        let mut last_use: HashMap<u32, u64> = HashMap::new();
        for (by, used) in self.names.values() {
            let last = last_use.entry(*by).or_default();
            *last = (*last).max(*used);
        }
        if last_use.len() > USERS_MAX
            && let Some((user, _)) = last_use.into_iter().min_by_key(|(_, used)| *used)
        {
            self.names.retain(|_, (by, _)| *by != user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(uid: u32, groups: &[u32]) -> Caller {
        Caller { uid, share: uid, groups: groups.to_vec() }
    }

    #[test]
    fn users_and_groups_are_known_by_name_and_number() {
        assert_eq!((user_id("root"), group_id("root"), user_id("77")), (Some(0), Some(0), Some(77)));
        assert_eq!((user_id("no such user"), group_id("no such group"), user_id("")), (None, None, None));
    }

    #[test]
    fn star_stands_for_any_characters() {
        for (pattern, name) in
            [("redis", "redis"), ("redis*", "redis"), ("redis*", "redis-7"), ("*", "x"), ("a*c*e", "abcde")]
        {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("redis", "redis2"), ("redis*", "xredis"), ("*db", "db1"), ("a*c*e", "ace2"), ("ab*ba", "aba")]
        {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn name_of_a_rule_is_reserved_for_its_users_and_groups() {
        let rules = [
            Rule { pattern: "redis*".into(), users: vec![10], groups: vec![] },
            Rule { pattern: "redis-test".into(), users: vec![], groups: vec![7] },
        ];
        let kept = Kept::default();
        assert_eq!(kept.check(&rules, false, "redis-1", &caller(10, &[])), Ok(()));
        assert_eq!(kept.check(&rules, false, "redis-1", &caller(11, &[7])), Err(NotYours::Rule(&rules[0])));
        assert_eq!(kept.check(&rules, false, "redis-test", &caller(11, &[7])), Ok(()));
        assert_eq!(kept.check(&rules, false, "other", &caller(11, &[])), Ok(()));
        assert_eq!(kept.check(&rules, true, "other", &caller(11, &[])), Err(NotYours::Unlisted));
    }

    #[test]
    fn joining_as_root_leaves_the_name_with_its_user() {
        let mut kept = Kept::default();
        kept.keep("redis", 10, false);
        kept.keep("redis", 0, true);
        assert_eq!(kept.check(&[], false, "redis", &caller(10, &[])), Ok(()));
        assert_eq!(kept.check(&[], false, "redis", &caller(11, &[])), Err(NotYours::Kept { by: 10 }));
        // A name that nobody had before is root's.
        kept.keep("mysql", 0, true);
        assert_eq!(kept.check(&[], false, "mysql", &caller(10, &[])), Err(NotYours::Kept { by: 0 }));
    }

    #[test]
    fn name_of_an_id_survives_becoming_subordinate() {
        let mut kept = Kept::default();
        kept.keep("redis", 100_005, false);
        let of = |share: u32, uid: u32| Caller { uid, share, groups: Vec::new() };
        assert_eq!(kept.check(&[], false, "redis", &of(1000, 100_005)), Ok(()));
        assert_eq!(kept.check(&[], false, "redis", &of(1000, 100_006)), Err(NotYours::Kept { by: 100_005 }));
        kept.keep("redis", 1000, false);
        assert_eq!(kept.check(&[], false, "redis", &of(1000, 100_006)), Ok(()));
    }

    #[test]
    fn unlisted_name_stays_its_first_users() {
        let mut kept = Kept::default();
        kept.keep("redis", 10, false);
        assert_eq!(kept.check(&[], false, "redis", &caller(11, &[])), Err(NotYours::Kept { by: 10 }));
        assert_eq!(kept.check(&[], false, "redis", &caller(10, &[])), Ok(()));
        // A user that joins under many names loses its own oldest ones.
        for n in 0..2 * KEPT_MAX {
            kept.keep(&format!("n{n}"), 11, false);
        }
        assert_eq!(kept.check(&[], false, "redis", &caller(11, &[])), Err(NotYours::Kept { by: 10 }));
        assert_eq!(kept.names.len(), KEPT_MAX + 1);
        for uid in 1000..1000 + 2 * u32::try_from(USERS_MAX).expect("small") {
            kept.keep("redis", 10, false);
            kept.keep(&format!("of-{uid}"), uid, false);
        }
        assert_eq!(kept.check(&[], false, "redis", &caller(11, &[])), Err(NotYours::Kept { by: 10 }));
        assert!(kept.names.len() <= USERS_MAX);
    }
}
