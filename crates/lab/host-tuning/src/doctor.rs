// SPDX-License-Identifier: Apache-2.0
//! Every condition of a host that adds jitter, judged (FiDe §3.2 and §5, X-Lane §4.3).
//!
//! Judging only reads. A condition's text contains nothing that changes by itself, so that two looks at an
//! unchanged host are equal. Values that vary are measured separately, in [`crate::measure`].

mod clocks;
mod cores;
mod interrupts;
mod kernel;
mod memory;
mod network;
mod scheduler;

pub(crate) use cores::MSR_SMI_COUNT;
pub(crate) use interrupts::irqs;
pub(crate) use network::{JIFFY_NS_USUAL, budget_wanted_us, has_priorities, queues};

use std::path::PathBuf;

use serde::Serialize;

use crate::{
    condition::{Condition, Effect, Finding, Group, Judged, Kind},
    machine::Machine,
    parse::{Cpus, boot_parameter},
    roots::{Roots, Unread},
};

/// The host that is examined.
pub struct Host<'a> {
    pub roots: Roots,
    pub machine: &'a dyn Machine,
    /// Core of the agent's loop.
    pub core: usize,
    /// Interfaces of the planes.
    pub interfaces: Vec<String>,
    /// By how much one host's clock may run faster than another's: `drift_ppm` of the configuration.
    pub drift_ppm: u32,
}

impl Host<'_> {
    /// Half of `drift_ppm`: of two hosts, one may be too fast by this much and the other too slow by as much.
    pub(crate) fn off_max_ppm(&self) -> u64 {
        u64::from(self.drift_ppm / 2)
    }

    /// The cores that are online.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn online(&self) -> Result<Cpus, Box<dyn std::error::Error>> {
        Ok(Cpus::from_list(&self.roots.sys("devices/system/cpu/online")?)?)
    }

    /// The cores that are online, without the loop's core.
    ///
    /// # Errors
    /// If the kernel does not say.
    pub fn others(&self) -> Result<Cpus, Box<dyn std::error::Error>> {
        Ok(self.online()?.without(self.core))
    }

    fn boot_parameter(&self, key: &str) -> Result<Option<String>, Unread> {
        let cmdline = self.roots.proc("cmdline")?;
        Ok(boot_parameter(&cmdline, key).map(str::to_owned))
    }

    /// A file of the loop's core.
    fn core_file(&self, path: &str) -> Result<String, Unread> {
        self.roots.sys(format!("devices/system/cpu/cpu{}/{path}", self.core))
    }

    fn core_dir(&self, path: &str) -> PathBuf {
        self.roots.sys.join(format!("devices/system/cpu/cpu{}/{path}", self.core))
    }

    fn interface_file(&self, interface: &str, path: &str) -> Result<String, Unread> {
        self.roots.sys(format!("class/net/{interface}/{path}"))
    }

    /// Names of the interfaces that are up, except loopback.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn up(roots: &Roots) -> Result<Vec<String>, Unread> {
        let flags = |name: &String| {
            let flags = roots.sys(format!("class/net/{name}/flags")).ok()?;
            u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()
        };
        let names = Roots::list(&roots.sys.join("class/net"))?.into_iter();
        // IFF_UP, IFF_LOOPBACK.
        Ok(names.filter(|name| flags(name).is_some_and(|flags| flags & 1 == 1 && flags & 8 == 0)).collect())
    }
}

type Judge = fn(&Host<'_>) -> Judged;
type JudgeInterface = fn(&Host<'_>, &str) -> Judged;

enum By {
    Host(Judge),
    Interface(JudgeInterface),
}

/// All conditions, in the order of reports.
fn all() -> impl Iterator<Item = &'static (Kind, By)> {
    [cores::ALL, interrupts::ALL, scheduler::ALL, memory::ALL, network::ALL, kernel::ALL, clocks::ALL]
        .into_iter()
        .flatten()
}

/// Stable names of all conditions, in the order of reports.
pub fn ids() -> impl Iterator<Item = &'static str> {
    all().map(|(kind, _)| kind.id)
}

/// Judges every condition. Conditions of interfaces come once for each interface; if there is none, once.
#[must_use]
pub fn conditions(host: &Host<'_>) -> Vec<Condition> {
    let mut conditions = Vec::new();
    for (kind, by) in all() {
        match by {
            By::Host(judge) => conditions.push(condition(host, kind, None, judge(host))),
            By::Interface(_) if host.interfaces.is_empty() => {
                let none = match Roots::list(&host.roots.sys.join("class/net")) {
                    Ok(_) => Finding::not_applicable("no interface but loopback is up"),
                    Err(unread) => Finding::unknown(unread),
                };
                conditions.push(condition(host, kind, None, Ok(none)));
            }
            By::Interface(judge) => {
                for interface in &host.interfaces {
                    conditions.push(condition(host, kind, Some(interface), judge(host, interface)));
                }
            }
        }
    }
    conditions
}

fn condition(host: &Host<'_>, kind: &Kind, interface: Option<&String>, judged: Judged) -> Condition {
    let finding = judged.unwrap_or_else(Finding::unknown);
    let fill = |text: &str| {
        let others = host.others().map_or_else(|_| "all others".to_owned(), |others| others.to_string());
        text.replace("{core}", &host.core.to_string())
            .replace("{others}", &others)
            .replace("{off}", &host.off_max_ppm().to_string())
            .replace("{if}", interface.map_or("IF", String::as_str))
    };
    let (how, change) = finding.change.unwrap_or((kind.how, kind.change.to_owned()));
    Condition {
        id: kind.id,
        group: kind.group,
        interface: interface.cloned(),
        title: kind.title,
        verdict: finding.verdict,
        found: finding.found,
        wanted: fill(kind.wanted),
        cost: kind.cost,
        how,
        change: fill(&change),
    }
}

/// The number of conditions with each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Summary {
    pub bad: usize,
    pub unknown: usize,
    pub good: usize,
    pub not_applicable: usize,
}

impl Summary {
    #[must_use]
    pub fn of(conditions: &[Condition]) -> Self {
        let count = |verdict| conditions.iter().filter(|condition| condition.verdict == verdict).count();
        Self {
            bad: count(Effect::Bad),
            unknown: count(Effect::Unknown),
            good: count(Effect::Good),
            not_applicable: count(Effect::NotApplicable),
        }
    }
}

#[cfg(test)]
mod tests;
