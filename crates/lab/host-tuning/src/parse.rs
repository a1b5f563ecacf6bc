// SPDX-License-Identifier: Apache-2.0
//! Parses the kernel's files: CPU lists and masks, tables of counts, lists of choices.
//!
//! Nothing here panics, whatever a file holds.

use std::{collections::BTreeSet, fmt};

/// CPU numbers from this one on are refused (Linux has at most 8192, `CONFIG_NR_CPUS`).
const CPUS_MAX: usize = 1 << 16;

/// A text that the kernel would not write there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} expected, found {found:?}")]
pub struct Malformed {
    what: &'static str,
    found: String,
}

fn malformed(what: &'static str, text: &str) -> Malformed {
    Malformed { what, found: text.chars().take(60).collect() }
}

/// A set of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cpus(BTreeSet<usize>);

impl Cpus {
    /// Parses a list such as `0,2-3`; an empty text, and `(null)`, is the empty set.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn from_list(text: &str) -> Result<Self, Malformed> {
        let text = text.trim();
        if text == "(null)" {
            return Ok(Self::default());
        }
        let mut cpus = BTreeSet::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            match (low.parse::<usize>(), high.parse::<usize>()) {
                (Ok(low), Ok(high)) if low <= high && high < CPUS_MAX => cpus.extend(low..=high),
                _ => return Err(malformed("a list of CPUs such as 0,2-3", text)),
            }
        }
        Ok(Self(cpus))
    }

    /// Parses a mask such as `ff` or `3,00000000`, with the highest word first.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn from_mask(text: &str) -> Result<Self, Malformed> {
        let text = text.trim();
        let fail = || malformed("a mask of CPUs such as ff or 3,00000000", text);
        let groups: Vec<&str> = text.split(',').collect();
        if groups.len() > CPUS_MAX / 32 {
            return Err(fail());
        }
        let mut cpus = BTreeSet::new();
        for (index, group) in groups.iter().rev().enumerate() {
            if group.is_empty() || group.len() > 8 || !group.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return Err(fail());
            }
            let word = u32::from_str_radix(group, 16).map_err(|_| fail())?;
            cpus.extend((0..32).filter(|bit| word >> bit & 1 == 1).map(|bit| index * 32 + bit));
        }
        Ok(Self(cpus))
    }

    #[must_use]
    pub fn holds(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// All CPUs except `cpu`.
    #[must_use]
    pub fn without(&self, cpu: usize) -> Self {
        Self(self.0.iter().copied().filter(|other| *other != cpu).collect())
    }

    /// The CPUs in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }

    /// The mask, as `from_mask` reads it.
    #[must_use]
    pub fn mask(&self) -> String {
        let mut words = vec![0u32; self.0.last().map_or(1, |last| last / 32 + 1)];
        for cpu in &self.0 {
            words[cpu / 32] |= 1 << (cpu % 32);
        }
        let mut words = words.iter().rev();
        let mut text = words.next().map(|word| format!("{word:x}")).unwrap_or_default();
        words.for_each(|word| text += &format!(",{word:08x}"));
        text
    }
}

impl FromIterator<usize> for Cpus {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().filter(|cpu| *cpu < CPUS_MAX).collect())
    }
}

/// The list, as `from_list` reads it.
impl fmt::Display for Cpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for cpu in self.iter() {
            match runs.last_mut() {
                Some((_, high)) if *high + 1 == cpu => *high = cpu,
                _ => runs.push((cpu, cpu)),
            }
        }
        for (index, (low, high)) in runs.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match low == high {
                true => write!(f, "{comma}{low}")?,
                false => write!(f, "{comma}{low}-{high}")?,
            }
        }
        Ok(())
    }
}

/// One line of `/proc/interrupts` or `/proc/softirqs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// `24`, `LOC`, `NET_RX`.
    pub label: String,
    /// By CPU number, as the head of the table names them.
    pub counts: Vec<(usize, u64)>,
    /// Controller and device, or what a label stands for.
    pub name: String,
}

impl Counts {
    /// The count of one CPU.
    #[must_use]
    pub fn on(&self, cpu: usize) -> u64 {
        self.counts.iter().find(|(other, _)| *other == cpu).map_or(0, |(_, count)| *count)
    }
}

/// Parses the whole table. Lines that do not belong to it are left out.
#[must_use]
pub fn counts_table(text: &str) -> Vec<Counts> {
    let mut lines = text.lines();
    let head = lines.next().unwrap_or_default();
    let cpus: Vec<usize> = head.split_whitespace().map_while(|word| word.strip_prefix("CPU")?.parse().ok()).collect();
    let line = |line: &str| {
        let (label, rest) = line.split_once(':')?;
        let mut counts = Vec::new();
        let mut rest = rest.trim_start();
        for cpu in &cpus {
            let (word, after) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
            let Ok(count) = word.parse() else { break };
            counts.push((*cpu, count));
            rest = after.trim_start();
        }
        let name = rest.split_whitespace().collect::<Vec<_>>().join(" ");
        Some(Counts { label: label.trim().to_owned(), counts, name })
    };
    lines.filter_map(line).collect()
}

/// Time stolen from `core` by the hypervisor since boot, in ticks of 10 ms, from `/proc/stat`.
#[must_use]
pub fn steal_ticks(stat: &str, core: usize) -> Option<u64> {
    let name = format!("cpu{core}");
    let mut words =
        stat.lines().map(str::split_whitespace).find_map(|mut words| (words.next()? == name).then_some(words))?;
    words.nth(7)?.parse().ok()
}

/// The chosen word in `always [madvise] never` or `none (full)`; the whole text, if there are no brackets.
#[must_use]
pub fn chosen(text: &str) -> &str {
    let inside = text.split_once(['[', '(']).and_then(|(_, rest)| rest.split_once([']', ')']));
    inside.map_or(text.trim(), |(chosen, _)| chosen.trim())
}

/// Value of `key=` on the kernel's command line; the last one counts. A word without `=` is `""`.
#[must_use]
pub fn boot_parameter<'a>(cmdline: &'a str, key: &str) -> Option<&'a str> {
    let value = |word: &'a str| {
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        (name == key).then_some(value)
    };
    cmdline.split_whitespace().take_while(|word| *word != "--").filter_map(value).last()
}

/// Major and minor number of a kernel release such as `6.18.44-x`.
#[must_use]
pub fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// Soft limit in `/proc/self/limits`; `Some(None)` means unlimited.
#[must_use]
pub fn soft_limit(limits: &str, name: &str) -> Option<Option<u64>> {
    let rest = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match rest.split_whitespace().next()? {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

/// Whether `/proc/cpuinfo` says that a hypervisor runs this.
#[must_use]
pub fn is_guest(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests;
