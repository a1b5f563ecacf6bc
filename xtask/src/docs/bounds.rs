// SPDX-License-Identifier: Apache-2.0
//! Checks that `docs/internals/bounds.md` agrees with the constants of the source.

use super::{files_below, read, shown};
use crate::run::root_dir;
use std::iter::Peekable;
use std::vec::IntoIter;

const TABLE: &str = "docs/internals/bounds.md";
const TYPES: [&str; 13] =
    ["usize", "u8", "u16", "u32", "u64", "u128", "i8", "i16", "i32", "i64", "i128", "Duration", "std::time::Duration"];

/// A constant: the file that has it, its name, and the expression it is set to.
struct Constant {
    file: String,
    name: String,
    text: String,
}

fn constants() -> Vec<Constant> {
    let mut all = Vec::new();
    for path in files_below(&root_dir().join("crates"), &["rs", "h"]) {
        let file = shown(&path);
        if !file.contains("/src/") || file.contains("tests") {
            continue;
        }
        let text = read(&path);
        if file.ends_with(".h") {
            // The kernel's programs and their loaders share the header.
            let defines = text.lines().filter_map(|line| line.strip_prefix("#define FIDE_")?.split_once(' '));
            all.extend(defines.map(|(name, value)| Constant {
                file: file.clone(),
                name: name.to_owned(),
                text: value.to_owned(),
            }));
            continue;
        }
        for (at, _) in text.match_indices("const ") {
            let Some((head, value)) = text[at + 6..].split_once(" = ") else { continue };
            let Some((name, kind)) = head.split_once(": ") else { continue };
            if let Some((value, _)) = value.split_once(';').filter(|_| TYPES.contains(&kind)) {
                all.push(Constant { file: file.clone(), name: name.to_owned(), text: value.to_owned() });
            }
        }
    }
    all
}

/// Words, numbers and signs of an expression.
fn tokens(text: &str) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let mut token = c.to_string();
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        if is_word(c) {
            while let Some(c) = chars.next_if(|c| is_word(*c)) {
                token.push(c);
            }
        } else if (c == '<' || c == '>') && chars.peek() == Some(&c) {
            token.extend(chars.next());
        }
        if !c.is_whitespace() {
            all.push(token);
        }
    }
    all
}

/// The value of an expression of integers, constants and durations (in nanoseconds); `None` for any other
/// expression.
struct Evaluation<'a> {
    tokens: Peekable<IntoIter<String>>,
    file: &'a str,
    all: &'a [Constant],
}

impl<'a> Evaluation<'a> {
    fn of(text: &str, file: &'a str, all: &'a [Constant]) -> Option<u128> {
        let mut this = Evaluation { tokens: tokens(text).into_iter().peekable(), file, all };
        let value = this.shifts()?;
        this.tokens.next().is_none().then_some(value)
    }

    fn eat(&mut self, any: &[&str]) -> Option<String> {
        self.tokens.next_if(|token| any.contains(&token.as_str()))
    }

    fn shifts(&mut self) -> Option<u128> {
        let mut value = self.sums()?;
        while let Some(sign) = self.eat(&["<<", ">>"]) {
            let by = u32::try_from(self.sums()?).ok()?;
            value = if sign == "<<" { value.checked_shl(by)? } else { value.checked_shr(by)? };
        }
        Some(value)
    }

    fn sums(&mut self) -> Option<u128> {
        let mut value = self.products()?;
        while let Some(sign) = self.eat(&["+", "-"]) {
            let other = self.products()?;
            value = if sign == "+" { value.checked_add(other)? } else { value.checked_sub(other)? };
        }
        Some(value)
    }

    fn products(&mut self) -> Option<u128> {
        let mut value = self.atom()?;
        while let Some(sign) = self.eat(&["*", "/"]) {
            let other = self.atom()?;
            value = if sign == "*" { value.checked_mul(other)? } else { value.checked_div(other)? };
        }
        Some(value)
    }

    fn atom(&mut self) -> Option<u128> {
        let token = self.tokens.next()?;
        let value = if token == "(" {
            let value = self.shifts()?;
            self.eat(&[")"])?;
            value
        } else if token.starts_with(|c: char| c.is_ascii_digit()) {
            token.replace('_', "").parse().ok()?
        } else if let Some((_, unit)) = token.split_once("Duration::from_") {
            self.eat(&["("])?;
            let value = self.shifts()?;
            self.eat(&[")"])?;
            value
                * of_unit(match unit {
                    "secs" => "s",
                    "millis" => "ms",
                    "micros" => "us",
                    "nanos" => "ns",
                    _ => return None,
                })?
        } else if let Some((_, "MAX")) = token.rsplit_once("::").filter(|(kind, _)| TYPES.contains(kind)) {
            match token.as_str() {
                "u16::MAX" => u128::from(u16::MAX),
                "u32::MAX" => u128::from(u32::MAX),
                _ => return None,
            }
        } else {
            let name = token.rsplit("::").next()?;
            let (here, elsewhere): (Vec<_>, Vec<_>) =
                self.all.iter().filter(|c| c.name == name).partition(|c| c.file == self.file);
            let found = here.first().or(elsewhere.first())?;
            Evaluation::of(&found.text, &found.file, self.all)?
        };
        while self.eat(&["as"]).is_some() {
            self.tokens.next()?;
        }
        Some(value)
    }
}

/// How many bytes or nanoseconds a unit stands for.
fn of_unit(unit: &str) -> Option<u128> {
    Some(match unit {
        "" | "bytes" | "ns" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return None,
    })
}

/// "64 KiB" or "131,072", and whether it is a time.
fn of_table(text: &str) -> Option<(u128, bool)> {
    let (number, unit) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
    let number: u128 = number.replace(',', "").parse().ok()?;
    Some((number * of_unit(unit)?, ["ns", "us", "ms", "s"].contains(&unit)))
}

/// Nanoseconds in the unit that ends a constant's name; 1 if there is none.
fn scale(name: &str) -> u128 {
    let unit = name.rsplit('_').next().unwrap_or_default().to_lowercase();
    of_unit(&unit).filter(|_| ["ns", "us", "ms", "s"].contains(&unit.as_str())).unwrap_or(1)
}

/// What is wrong with one bound of the table: `at` is `module::NAME`, `value` what the table says.
fn problem(at: &str, value: &str, all: &[Constant]) -> Option<String> {
    let Some((wanted, is_time)) = of_table(value) else { return Some(format!("{at}: {value:?} is not a number")) };
    let (module, name) = at.rsplit_once("::").unwrap_or(("", at));
    let named: Vec<&Constant> = all.iter().filter(|constant| constant.name == name).collect();
    let tail = format!("/{}", module.replace("::", "/"));
    let in_module =
        |c: &&&Constant| c.file.ends_with(&format!("{tail}.rs")) || c.file.ends_with(&format!("{tail}/src/lib.rs"));
    let mut of_module: Vec<&Constant> = named.iter().filter(in_module).copied().collect();
    if of_module.is_empty() {
        // The constant has moved to another module; its name still leads to it.
        of_module = named;
    }
    let values: Vec<Option<u128>> = of_module
        .iter()
        .map(|c| Some(Evaluation::of(&c.text, &c.file, all)? * if is_time { scale(name) } else { 1 }))
        .collect();
    (!values.contains(&Some(wanted))).then(|| match of_module.as_slice() {
        [] => format!("{at}: no constant of the source has that name"),
        _ => format!("{at}: the table says {value}, the source {}", {
            of_module.iter().map(|c| format!("{} in {}", c.text, c.file)).collect::<Vec<_>>().join(", ")
        }),
    })
}

#[test]
fn table_of_bounds_agrees_with_the_source() {
    let (all, text) = (constants(), read(&root_dir().join(TABLE)));
    let (mut problems, mut checked) = (Vec::new(), 0);
    for row in text.lines().filter(|line| line.starts_with("| ")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").collect();
        let [_, values, names, _] = cells[..] else { continue };
        let names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
        let values: Vec<&str> = values.split(';').collect();
        if names.is_empty() {
            continue;
        }
        if names.len() != values.len() {
            problems.push(format!("the row needs as many values as constants: {row}"));
            continue;
        }
        checked += names.len();
        problems.extend(names.iter().zip(values).filter_map(|(name, value)| problem(name, value, &all)));
    }
    assert!(problems.is_empty(), "{TABLE}:\n{}", problems.join("\n"));
    assert!(checked >= 50, "{TABLE} names only {checked} constants: has its form changed?");
}

#[test]
fn expressions_of_constants_are_understood() {
    let constant = |name: &str, text: &str| Constant { file: "a.rs".into(), name: name.into(), text: text.into() };
    let all = [constant("A", "4"), constant("B", "2 * wire::A + 1"), constant("C_MS", "20")];
    let value = |text: &str| Evaluation::of(text, "a.rs", &all);
    for (text, wanted) in [
        ("1 << 20", 1 << 20),
        ("64 * 64 + 64", 4160),
        ("(1 + 2) * 1_000", 3000),
        ("B as usize / 3", 3),
        ("2048 + A", 2052),
        ("Duration::from_millis(3)", 3_000_000),
    ] {
        assert_eq!(value(text), Some(wanted), "{text}");
    }
    assert_eq!(value("if cfg!(test) { 1 } else { 2 }"), None);
    assert_eq!(problem("a::B", "9", &all), None);
    assert_eq!(problem("a::C_MS", "20 ms", &all), None);
    assert!(problem("a::B", "10", &all).is_some_and(|why| why.contains("the table says 10")));
    assert!(problem("a::D", "1", &all).is_some());
    assert_eq!(of_table("64 KiB"), Some((65_536, false)));
    assert_eq!(of_table("131,072"), Some((131_072, false)));
}
