// SPDX-License-Identifier: Apache-2.0
//! `CONFIG SET masterauth`: this module keeps the password, for other servers. Redis itself has the token of its link to
//! this module in that place.

use crate::redis::{Args, Text};

/// Without the pair of `masterauth` among `CONFIG SET name value ...`, and its value. None: there is none, or the command
/// is wrong in a way that Redis names.
pub(super) fn take_out(args: Args<'_>) -> Option<(Vec<Text>, Vec<u8>)> {
    let at = place_in(&args.to_bytes())?;
    let password = args.get(at + 1)?.to_vec();
    let mut rest = args.retain();
    rest.drain(at..at + 2);
    Some((rest, password))
}

/// Where the only pair of `masterauth` is, among pairs behind two words.
fn place_in(words: &[&[u8]]) -> Option<usize> {
    let mut places = (2..words.len()).step_by(2).filter(|at| words[*at].eq_ignore_ascii_case(b"masterauth"));
    let place = places.next()?;
    (words.len().is_multiple_of(2) && places.next().is_none()).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_found_among_other_settings() {
        let place = |line: &str| place_in(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        assert_eq!(place("CONFIG SET masterauth x"), Some(2));
        assert_eq!(place("CONFIG SET requirepass masterauth MASTERAUTH x"), Some(4));
        assert_eq!(place("CONFIG SET requirepass masterauth"), None, "a value");
        // Redis says what is wrong.
        for line in
            ["CONFIG SET masterauth", "CONFIG SET masterauth x requirepass", "CONFIG SET masterauth x masterauth y"]
        {
            assert_eq!(place(line), None, "{line}");
        }
    }
}
