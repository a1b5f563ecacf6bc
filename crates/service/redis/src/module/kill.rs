// SPDX-License-Identifier: Apache-2.0
//! `CLIENT KILL` at a follower: Redis counts the replication link among the clients, and a server without it ends.

use super::{hot, with_state};
use crate::redis::{Filtered, peer_of};

/// Whether a CLIENT KILL would end this server's link to this module. Called in the filter.
pub(super) fn ends_link(command: &Filtered) -> bool {
    if !hot(|hot| hot.has_link.get()) {
        return false;
    }
    let words: Vec<&[u8]> = (2..command.len()).map_while(|at| command.get(at)).collect();
    let Some([module, own]) = with_state(|state| state.feed.ends()).flatten() else { return false };
    let (module, own) = (module.to_string(), own.to_string());
    let is_id = |id: u64| peer_of(id).is_some_and(|peer| peer == module);
    fits(&words, module.as_bytes(), own.as_bytes(), &is_id)
}

/// Whether all filters of a CLIENT KILL fit the link. One that is not known here does: a newer Redis may have it.
fn fits(words: &[&[u8]], module: &[u8], own: &[u8], is_id: &dyn Fn(u64) -> bool) -> bool {
    if let [address] = words {
        return *address == module;
    }
    let is = |word: &[u8], text: &str| word.eq_ignore_ascii_case(text.as_bytes());
    // Of more than one of a kind Redis takes the last one.
    let last = |name: &str| words.chunks_exact(2).rev().find(|pair| is(pair[0], name)).map(|pair| pair[1]);
    // Newer versions take more than one.
    let ids = || words.iter().filter_map(|word| std::str::from_utf8(word).ok()?.parse().ok());
    last("id").is_none_or(|_| ids().any(is_id))
        && last("type").is_none_or(|kind| is(kind, "master"))
        && last("addr").is_none_or(|address| address == module)
        && last("laddr").is_none_or(|address| address == own)
        // The link has no user.
        && last("user").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_that_fit_the_link_are_known() {
        let fits = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            fits(&words, b"127.0.0.1:7000", b"127.0.0.1:40000", &|id| id == 7)
        };
        for line in [
            "127.0.0.1:7000",
            "TYPE master",
            "type MASTER skipme no",
            "ID 7",
            "ID 3 ID 7",
            "ID 3 7",
            "ADDR 127.0.0.1:7000",
            "LADDR 127.0.0.1:40000 SKIPME yes",
            "SKIPME yes",
            "MAXAGE 1",
        ] {
            assert!(fits(line), "{line}");
        }
        for line in [
            "127.0.0.1:40000",
            "TYPE normal",
            "TYPE master TYPE normal",
            "ID 8",
            "ID 7 TYPE replica",
            "ADDR 10.0.0.1:7000",
            "LADDR 10.0.0.1:6379",
            "USER default",
            "USER default SKIPME no",
        ] {
            assert!(!fits(line), "{line}");
        }
    }
}
