// SPDX-License-Identifier: Apache-2.0
//! Whether this host may act now, as what, and until when: [`Permit`], and the fencing token that it
//! carries.
//!
//! A program that asks and then acts may be stopped between the two, for longer than its lease. A host
//! cannot rule that out. The resource that the program writes to can, if it refuses a token below the
//! highest one that it has seen (a fencing token): a host that was excluded has a lower view than every
//! host that acts after it.

/// Id of an agreed view. Ordered; each agreed change of members has a higher one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ViewId {
    /// Highest incarnation among the founders.
    pub generation: u32,
    /// 1 when founded, +1 with each agreed change.
    pub number: u32,
}

/// The members that a majority has agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Its id.
    pub id: ViewId,
    /// Bit id-1: a member.
    pub members: u64,
    /// This host's CLOCK_MONOTONIC from which no host acts by an older view any more. A role that follows
    /// from the members ("the lowest acts") may pass to a host while its former holder is alive and has not
    /// heard of this view yet. So a program that takes a role over from a live member waits until then.
    pub settled_ns: u64,
}

impl View {
    /// Whether the host with this id is a member.
    #[must_use]
    pub fn contains(&self, host_id: u16) -> bool {
        (1..=64).contains(&host_id) && self.members >> (host_id - 1) & 1 == 1
    }

    /// The lowest member's id: a role that every member computes alike.
    #[must_use]
    pub fn lowest(&self) -> Option<u16> {
        (self.members != 0).then(|| self.members.trailing_zeros() as u16 + 1)
    }
}

/// A fencing token. A program passes it to the resource that it writes to, which refuses a lower token than
/// the highest it has seen.
///
/// Tokens of different hosts are ordered by their views: a host that was excluded has a lower token than
/// every host that acts after it. Within one view, tokens distinguish hosts but give no order: a *process*
/// whose exit the kernel saw may have left writes on their way, and its successor in the same view has no
/// higher token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token {
    /// The view that this host holds.
    pub view: ViewId,
    /// The incarnation that it acts as.
    pub incarnation: u32,
}

impl std::fmt::Display for Token {
    /// 24 hexadecimal digits, which sort like the tokens.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:08x}{:08x}{:08x}", self.view.generation, self.view.number, self.incarnation)
    }
}

/// A permit to act ([`crate::Live::may_act`]): as what, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Permit {
    /// This host's id.
    pub host_id: u16,
    /// The incarnation that it acts as.
    pub incarnation: u32,
    /// CLOCK_MONOTONIC at the time of asking.
    pub now_ns: u64,
    /// CLOCK_MONOTONIC after which this permit is over, unless asked for again (sooner if the machine is
    /// suspended, which that clock does not show: ask again before acting); [`crate::LEASE_FOREVER_NS`]: no
    /// limit (trust = "network").
    pub until_ns: u64,
    /// The agreed view; none under policy = "network".
    pub view: Option<View>,
}

impl Permit {
    /// The token for writes under this permit; none under policy = "network", where nothing orders two
    /// hosts.
    #[must_use]
    pub fn token(&self) -> Option<Token> {
        Some(Token { view: self.view?.id, incarnation: self.incarnation })
    }

    /// Whether this host is the lowest member, and no other host still acts by an older view.
    #[must_use]
    pub fn is_lowest(&self) -> bool {
        self.view.is_some_and(|view| view.lowest() == Some(self.host_id) && self.now_ns >= view.settled_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_sort_as_text_and_as_values() {
        let token = |generation, number, incarnation| Token { view: ViewId { generation, number }, incarnation };
        let sorted = [token(1, 1, 9), token(1, 2, 3), token(1, 16, 3), token(2, 1, 0), token(u32::MAX, 0, 1)];
        assert!(sorted.is_sorted());
        let texts: Vec<String> = sorted.iter().map(Token::to_string).collect();
        assert!(texts.is_sorted() && texts.iter().all(|text| text.len() == 24), "{texts:?}");
    }

    #[test]
    fn lowest_member_acts_once_no_older_view_does() {
        let id = ViewId { generation: 1, number: 2 };
        let view = View { id, members: 0b110, settled_ns: 100 };
        let permit = |host_id, now_ns| Permit { host_id, incarnation: 1, now_ns, until_ns: 200, view: Some(view) };
        assert!(permit(2, 100).is_lowest() && !permit(2, 99).is_lowest() && !permit(3, 100).is_lowest());
        assert!(!Permit { view: None, ..permit(2, 100) }.is_lowest());
        assert!(view.contains(3) && !view.contains(1) && !view.contains(0) && !view.contains(65));
    }
}
