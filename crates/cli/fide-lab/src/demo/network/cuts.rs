// SPDX-License-Identifier: Apache-2.0
//! Cuts every cable and every switch in turn.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use fide_client::now_ns;
use fide_report::plan::{DrawOptions, draw_before_after};
use fide_testbed::{fabric::Cut, figures::Samples};

use super::{
    super::{ears::Heard, say},
    drawn,
    plane::After,
    site::Site,
};

/// How long everything must be heard after a cut before the cut counts as repaired.
const STEADY: Duration = Duration::from_millis(150);
/// A path that is silent for this long is taken to stay silent.
const LIMIT: Duration = Duration::from_millis(1500);
/// How long all trees may take to be used again after a cut was undone.
const HEAL_LIMIT: Duration = Duration::from_secs(20);
/// How long all others may take to declare a cut-off host dead.
const VERDICT_LIMIT: Duration = Duration::from_secs(4);
/// The host that is cut off at the end.
const CUT_OFF: usize = 4;

/// What is cut.
struct What {
    text: String,
    file: String,
    /// Whether some host has no other path.
    only_way: bool,
    draws: bool,
}

/// The results of all cuts.
pub(super) struct Outcome {
    /// Times from a cut until every host was heard over both trees again, where there was another path.
    pub(super) restored: Samples,
    pub(super) cuts: u64,
    /// Cuts without another path.
    pub(super) without: u64,
    pub(super) false_verdicts: Vec<String>,
    /// Cuts with another path that was not taken.
    pub(super) not_restored: Vec<String>,
    /// All others were notified that the cut-off host is dead.
    pub(super) cut_off_notified: bool,
}

pub(super) struct Cuts {
    out: PathBuf,
    outcome: Outcome,
}

impl Cuts {
    pub(super) fn new(out: &Path) -> Self {
        let outcome = Outcome {
            restored: Samples::default(),
            cuts: 0,
            without: 0,
            false_verdicts: Vec::new(),
            not_restored: Vec::new(),
            cut_off_notified: false,
        };
        Self { out: out.to_owned(), outcome }
    }

    pub(super) fn everything(&mut self, site: &mut Site, draws: bool) -> anyhow::Result<()> {
        let spec = site.fabric.spec().clone();
        let is_host = |node: &str| node.starts_with('h') && node[1..].chars().all(|c| c.is_ascii_digit());
        for kind in [Cut::Carrier, Cut::Silent] {
            let draws = draws && kind == Cut::Carrier;
            for (place, link) in spec.links.iter().enumerate() {
                let (a, b) = (link.a.node.clone(), link.b.node.clone());
                let what = What {
                    text: format!("cable {a}--{b}, {kind:?}"),
                    file: format!("{a}--{b}"),
                    only_way: is_host(&a) || is_host(&b),
                    draws,
                };
                let hits = |from: &str, to: &str| (from == a && to == b) || (from == b && to == a);
                let cut = |site: &Site| Ok(site.fabric.cut_link(place, kind)?);
                let heal = |site: &Site| Ok(site.fabric.restore_link(place).map(drop)?);
                self.one(site, &what, hits, cut, heal)?;
            }
            for switch in &spec.switches {
                let name = &switch.name;
                let beside = |end: &str, other: &str| end == name && is_host(other);
                let what = What {
                    text: format!("switch {name}, {kind:?}"),
                    file: name.clone(),
                    only_way: spec
                        .links
                        .iter()
                        .any(|link| beside(&link.a.node, &link.b.node) || beside(&link.b.node, &link.a.node)),
                    draws,
                };
                let hits = |from: &str, to: &str| from == name || to == name;
                let cut = |site: &Site| Ok(site.fabric.cut_switch(name, kind)?);
                let heal = |site: &Site| Ok(site.fabric.restore_switch(name).map(drop)?);
                self.one(site, &what, hits, cut, heal)?;
            }
        }
        Ok(())
    }

    fn one(
        &mut self,
        site: &mut Site,
        cut_is: &What,
        hits: impl Fn(&str, &str) -> bool,
        cut: impl Fn(&Site) -> anyhow::Result<(u64, u64)>,
        heal: impl Fn(&Site) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let What { text: what, file: name, only_way, draws } = cut_is;
        site.await_trust()?;
        let before = drawn::state(site)?;
        let concerned = drawn::ways(&before, hits);
        let (begun_ns, cut_ns) = cut(site)?;
        let After { restored_ns, silent } = site.tables.follow(cut_ns, &concerned, STEADY, LIMIT);
        self.outcome.cuts += 1;
        let mut notified = match (restored_ns, silent.is_empty()) {
            (_, false) if *only_way => {
                self.outcome.without += 1;
                format!("no other path: {} of the paths between hosts stay silent", silent.len())
            }
            (_, false) => {
                let line = format!("{what}: not restored within {LIMIT:?}: {silent:?}");
                self.outcome.not_restored.push(line);
                "NOT RESTORED".to_owned()
            }
            (Some(restored_ns), true) => {
                let took_ns = restored_ns.saturating_sub(cut_ns);
                if *only_way {
                    self.outcome.without += 1;
                } else {
                    self.outcome.restored.add(took_ns);
                }
                #[allow(clippy::cast_precision_loss, reason = "a second in nanoseconds")]
                let ms = took_ns as f64 / 1e6;
                format!("all heard over both trees again after {ms:.1} ms")
            }
            (None, true) => "no tree went there".to_owned(),
        };
        if *draws {
            let after = drawn::state(site)?;
            let view = DrawOptions { title: format!("{what} is cut"), only: Vec::new() };
            let path = self.out.join(format!("{name}.svg"));
            let drawing = draw_before_after(&before, &after, &view)?;
            std::fs::write(&path, drawing).with_context(|| format!("writing {}", path.display()))?;
        }
        heal(site)?;
        let missing = site.tables.await_all(HEAL_LIMIT);
        if !missing.is_empty() {
            self.outcome
                .not_restored
                .push(format!("{what}: mended, but still silent after {HEAL_LIMIT:?}: {missing:?}"));
        }
        let verdicts: Vec<String> = site.ears.since(begun_ns).filter_map(Heard::death_text).collect();
        if !verdicts.is_empty() {
            notified.push_str(", FALSE VERDICT");
            self.outcome.false_verdicts.extend(verdicts.iter().map(|verdict| format!("{what}: {verdict}")));
        }
        say::line(&format!("  {what:<28} {notified}"));
        Ok(())
    }

    /// Cuts both cables of a host: this time a verdict must come.
    pub(super) fn done(mut self, site: &mut Site) -> anyhow::Result<Outcome> {
        let begun_ns = now_ns();
        let host = format!("h{CUT_OFF}");
        let places: Vec<usize> = site.fabric.spec().links_of(&host);
        for place in &places {
            site.fabric.cut_link(*place, Cut::Silent)?;
        }
        let others = site.fabric.hosts().len() - 1;
        let mut notified = std::collections::BTreeSet::new();
        let target = format!("@{host}");
        // Waits for the whole time, to see events that must not come as well.
        site.ears.wait(begun_ns, VERDICT_LIMIT, |_| None::<()>);
        for heard in site.ears.since(begun_ns) {
            if let Some(verdict) = heard.death() {
                if *verdict.target == *target {
                    notified.insert(heard.host);
                } else if heard.host != CUT_OFF {
                    self.outcome.false_verdicts.push(format!("{host} cut off: {:?}", heard.death_text()));
                }
            }
        }
        self.outcome.cut_off_notified = notified.len() == others;
        say::line(&format!(
            "  both cables of {host:<15} declared dead by {} of {others} others (policy majority)",
            notified.len()
        ));
        for place in places {
            site.fabric.restore_link(place)?;
        }
        Ok(self.outcome)
    }
}
