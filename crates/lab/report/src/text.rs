// SPDX-License-Identifier: Apache-2.0
//! Strings from files, logs and command lines, made safe to show: on a terminal, in HTML, in SVG.

use std::fmt::{self, Display, Write};

/// Longest line that a page or a drawing shows, characters. A log may hold anything.
pub const LINE_MAX: usize = 1000;
/// Longest name that a table or a message shows, characters.
pub const NAME_MAX: usize = 80;

/// The same character, or a harmless one in its place.
fn safe(c: char) -> char {
    match c {
        '\n' | '\t' => ' ',
        // Characters that change the direction of the text around them, and those that XML forbids.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}' | '\u{fffe}' | '\u{ffff}' => {
            '\u{fffd}'
        }
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

/// A string on one line, for a terminal or a message: no control characters, nothing that changes the
/// direction of text, at most [`NAME_MAX`] characters.
#[must_use]
pub fn clean(text: &str) -> String {
    let mut out: String = text.chars().take(NAME_MAX).map(safe).collect();
    if text.chars().nth(NAME_MAX).is_some() {
        out.push_str("...");
    }
    out
}

/// One line of text in HTML or SVG, also within attributes: no part of it is read as markup.
pub(crate) struct Text<'a>(pub(crate) &'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, c) in self.0.chars().enumerate() {
            if n == LINE_MAX {
                return f.write_str("... (cut)");
            }
            match safe(c) {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// The same for several lines, each at most [`LINE_MAX`] characters.
pub(crate) struct Lines<'a>(pub(crate) &'a str);

impl Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, line) in self.0.split('\n').enumerate() {
            if n > 0 {
                f.write_char('\n')?;
            }
            Text(line).fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn markup_stays_text() {
        let text = Text("<script>alert('x')</script> & \"q\"\u{0}\u{202e}").to_string();
        assert_eq!(text, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &quot;q&quot;\u{fffd}\u{fffd}");
        assert_eq!(Text(&"x".repeat(5000)).to_string().len(), LINE_MAX + "... (cut)".len());
    }

    #[test]
    fn lines_stay_lines() {
        assert_eq!(Text("a\nb\tc").to_string(), "a b c");
        assert_eq!(Lines("a<\nb\tc\n").to_string(), "a&lt;\nb c\n");
        assert_eq!(Lines(&format!("a\n{}", "x".repeat(5000))).to_string().len(), 2 + LINE_MAX + "... (cut)".len());
    }

    #[test]
    fn names_are_cut_and_cleaned() {
        assert_eq!(clean("a\nb\u{1b}[31m\u{202e}"), "a b\u{fffd}[31m\u{fffd}");
        assert_eq!(clean(&"x".repeat(NAME_MAX)).len(), NAME_MAX);
        assert_eq!(clean(&"x".repeat(NAME_MAX + 1)), "x".repeat(NAME_MAX) + "...");
    }

    proptest! {
        #[test]
        fn nothing_gets_through(s in any::<String>()) {
            let text = Text(&s).to_string();
            let live = text.contains(['<', '>', '"', '\'', '\u{0}', '\n']);
            prop_assert!(!live, "{text:?}");
            let lines = Lines(&s).to_string();
            let live = lines.contains(['<', '>', '"', '\'', '\u{0}']);
            prop_assert!(!live, "{lines:?}");
        }
    }
}
