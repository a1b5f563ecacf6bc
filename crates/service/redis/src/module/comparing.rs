// SPDX-License-Identifier: Apache-2.0
//! The servers compare their data now and then: what each does at which position, without Redis.
//!
//! ```text
//!  leader                                     every server
//!  remark "compare N" ── decided at P ──►  its data is that of P exactly: forks, the child takes a digest
//!  collects them      ◄── FIDE.DIGEST ───  its digest, or that it took none
//!  remark "digests of N" ── decided ────►  counts; one whose digest is not the right one ends
//! ```
//!
//! **Whose data is right** is what all servers find in the log ([`right_one`]), so no two of them think differently.
//! A leader that dies or hands over meanwhile takes the comparison with it. N is the first position that P may be, so
//! numbers grow whoever leads.

use std::time::{Duration, Instant};

use super::{
    compared::{Collected, Early, Found, Last, Own, Said},
    state::{Act, Mode, State},
};
use crate::remark::{Difference, Digest, Remark, Settings, right_one};

/// Servers whose digest has not come after this long are left out: they hold a lot of data, or have no memory left.
const PATIENCE: Duration = Duration::from_secs(600);
/// The version of this module's messages from which on there are remarks.
const REMARKS_FROM: u8 = 2;

impl State {
    /// FIDE.COMPARE. Returns the number of the comparison.
    pub(super) fn ask_to_compare(&mut self, has_child: bool) -> Result<u64, String> {
        if self.mode != Mode::Leader {
            return Err(match self.leader() {
                Some((name, address)) if !self.member.leads() => {
                    format!("ERR the leader is {name} at {address}: ask there, FIDE.COMPARE")
                }
                _ => format!("TRYAGAIN this server is {}; ask again", self.mode.name()),
            });
        }
        if !self.may_remark() {
            return Err(format!(
                "ERR a server of this group, or one that is about to join it, speaks version {} of this module's messages, which has no \
                 comparisons; finish the upgrade",
                self.member.service_version()
            ));
        }
        if let Some(number) = self.compare.asked.or(self.compare.collected.as_ref().map(|collected| collected.number)) {
            return Err(format!("TRYAGAIN comparison {number} is under way; FIDE.STATUS says when it has ended"));
        }
        if has_child {
            return Err(
                "TRYAGAIN a child of this server is at work (a dump, for example); ask again when it has ended"
                    .to_owned(),
            );
        }
        let number = self.fed + 1;
        self.compare.asked = Some(number);
        Ok(number)
    }

    fn settings(&self) -> Settings {
        Settings { port: self.port, ..self.compare.settings }
    }

    /// Whether all servers know what a remark is.
    fn may_remark(&self) -> bool {
        self.member.service_version() >= REMARKS_FROM
    }

    /// What this leader says with the unit of this turn. `every`: the time between two comparisons, if there is one.
    /// `has_child`: Redis has a child now, and could have no second one.
    pub(super) fn take_remarks(&mut self, every: Option<Duration>, has_child: impl FnOnce() -> bool) -> Vec<u8> {
        let mut bytes = Vec::new();
        let view = self.view_number();
        let is_due = every.is_some_and(|every| self.compare.begun.is_some_and(|begun| begun.elapsed() >= every));
        let is_news = self.compare.told_in != Some(view);
        let has_all = self.compare.collected.as_ref().is_some_and(|collected| self.has_all(collected));
        if !(is_due || is_news || has_all || self.compare.asked.is_some()) || !self.may_remark() {
            return bytes;
        }
        if is_news {
            self.compare.told_in = Some(view);
            Remark::Settings(self.settings()).write(&mut bytes);
        }
        if has_all && let Some(collected) = self.compare.collected.take() {
            let of = collected.of.into_iter().filter_map(|(host, digest)| Some((host, digest?))).collect();
            Remark::Digests { number: collected.number, leader: self.member.host(), of }.write(&mut bytes);
        }
        let asked = self.compare.asked.take();
        let is_free = self.compare.collected.is_none();
        if let Some(number) =
            asked.or_else(|| (is_due && is_free && self.member.has_others() && !has_child()).then(|| self.fed + 1))
        {
            self.compare.begun = Some(Instant::now());
            self.compare.collected = Some(Collected { number, since: Instant::now(), of: Vec::new() });
            Remark::Compare { number }.write(&mut bytes);
        }
        bytes
    }

    /// Whether all live servers have said what they found, or had the time to.
    fn has_all(&self, collected: &Collected) -> bool {
        let (_, hosts) = self.member.view().unwrap_or_default();
        let me = self.member.host();
        let is_awaited = |host: &u16| *host == me || self.member.lives(*host);
        collected.since.elapsed() > PATIENCE
            || hosts.iter().filter(|host| is_awaited(host)).all(|host| collected.of.iter().any(|(of, _)| of == host))
    }

    /// FIDE.DIGEST, at the leader: what a server has found.
    pub(super) fn collect(&mut self, host: u16, number: u64, digest: Option<Digest>) {
        let (_, hosts) = self.member.view().unwrap_or_default();
        if let Some(collected) = self.compare.collected.as_mut().filter(|collected| collected.number == number)
            && hosts.contains(&host)
            && !collected.of.iter().any(|(of, _)| *of == host)
        {
            collected.of.push((host, digest));
        }
    }

    /// Does what the leader has said.
    pub(super) fn follow_remarks(&mut self) {
        for Said { remark, position, numbered } in self.compare.take_said() {
            match remark {
                Remark::Compare { number } => {
                    self.compare.early = None;
                    self.compare.own = Some(Own { number, position, numbered, found: Found::Due });
                }
                Remark::Digests { number, leader, of } => self.judge(number, leader, of),
                Remark::Settings(of_leader) => self.check_settings(of_leader),
            }
        }
    }

    /// A server that differs in these would not find others, or not execute what they wrote.
    fn check_settings(&mut self, of_leader: Settings) {
        let Some(Difference { name, here, there, remedy }) = self.settings().difference(of_leader) else { return };
        let leader = self.leader().map_or_else(|| "the leader".to_owned(), |(name, _)| name);
        self.mode = Mode::Out;
        self.act(Act::End(format!(
            "`{name}` is {here} on this server, and {there} on {leader}, which leads; {remedy}, and start this one again"
        )));
    }

    /// Whether a child is to take the digest now. A comparison whose position is past is left out.
    pub(super) fn digest_due(&mut self) -> Option<Own> {
        let own = self.compare.own.filter(|own| own.found == Found::Due)?;
        match self.mode {
            Mode::Leader if self.fed == own.position && self.is_clean() => Some(own),
            // The position comes by the replication link.
            Mode::Following | Mode::Leading if self.applied < own.position => None,
            Mode::Following | Mode::Leading if self.applied == own.position => Some(own),
            _ => {
                self.found(own.number, None);
                None
            }
        }
    }

    pub(super) fn digest_runs(&mut self) {
        if let Some(own) = &mut self.compare.own {
            own.found = Found::Running;
        }
    }

    /// The child has ended with these of [`Digest`], or there was none. Returns what the leader is to be told.
    pub(super) fn found(&mut self, number: u64, data: Option<([u8; 20], u64, u64)>) -> Option<(u64, Option<Digest>)> {
        let own = self.compare.own.as_mut().filter(|own| own.number == number)?;
        let numbered = own.numbered;
        let digest = data.map(|(data, deadlines, functions)| Digest { data, deadlines, functions, numbered });
        own.found = digest.map_or(Found::Nothing, Found::Digest);
        self.compare.skipped += u64::from(digest.is_none());
        if let Some(Early { number, leader, of }) = self.compare.early.take() {
            self.end_if_wrong(number, leader, &of);
        }
        if self.member.leads() {
            self.collect(self.member.host(), number, digest);
            return None;
        }
        Some((number, digest))
    }

    fn judge(&mut self, number: u64, leader: u16, of: Vec<(u16, Digest)>) {
        let right = right_one(leader, &of);
        let is_wrong = |digest: &Digest| right != Some(*digest);
        let is_alike = of.windows(2).all(|two| two[0].1 == two[1].1);
        let name = |host: u16| self.member.name(host).unwrap_or_else(|| host.to_string());
        let wrong = of.iter().filter(|(_, digest)| !is_alike && is_wrong(digest));
        let differ: Vec<String> = wrong.map(|(host, _)| name(*host)).collect();
        let all: Vec<String> = of.iter().map(|(host, digest)| format!("{} has {digest}", name(*host))).collect();
        self.compare.compared += 1;
        self.compare.differed += u64::from(!is_alike);
        self.compare.last = Some(Last { number, servers: of.len(), differ });
        if !is_alike {
            let what = if right.is_some() { "" } else { ", and nobody knows who is right: compare again" };
            self.say(format!("comparison {number} found servers whose data differs{what}: {}", all.join("; ")));
        }
        if self.compare.is_running() {
            self.compare.early = Some(Early { number, leader, of });
        } else {
            self.end_if_wrong(number, leader, &of);
        }
    }

    /// A server whose data differs has no place in the group.
    fn end_if_wrong(&mut self, number: u64, leader: u16, of: &[(u16, Digest)]) {
        let Some(Own { number: mine, position, found: Found::Digest(digest), .. }) = self.compare.own else { return };
        if !of.contains(&(self.member.host(), digest)) {
            return;
        }
        let Some(right) = right_one(leader, of).filter(|right| mine == number && *right != digest) else { return };
        self.mode = Mode::Out;
        self.act(Act::End(format!(
            "comparison {number}: at position {position} the data of this server differs from the group's. Here: {digest}. The group: \
             {right}. Start it again, it takes over the group's data"
        )));
    }
}
