// SPDX-License-Identifier: Apache-2.0
//! Restoring what a journal says was there.

use std::io;

use serde::Serialize;

use super::{
    Target, TuneError,
    journal::{Entry, Lock},
};
use crate::machine::Machine;

/// What became of one thing that had been changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Restored {
    /// It is as it was.
    Restored,
    /// It was as it had been.
    Already,
    /// It is not there any more.
    Gone,
    /// Somebody else has set it since; it was left alone.
    LeftAlone { found: String, set: String },
    /// The kernel or a driver did not take the old value.
    Failed(String),
}

/// What an undo did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Undone {
    /// There was a journal.
    pub journal: bool,
    /// It was of another boot, which has restored everything.
    pub void: bool,
    /// By target, in the order of the undo: its condition, itself, its old value for people, and
    /// what became of it.
    pub restored: Vec<(String, String, String, Restored)>,
    /// Number and fault of each line that could not be read.
    pub damaged: Vec<(usize, String)>,
}

impl Undone {
    /// Nothing is left to restore.
    #[must_use]
    pub fn complete(&self) -> bool {
        let done = |restored: &Restored| !matches!(restored, Restored::LeftAlone { .. } | Restored::Failed(_));
        self.restored.iter().all(|(.., restored)| done(restored))
    }
}

/// One target and all that was done to it.
struct Item<'a> {
    first: &'a Entry,
    last: &'a Entry,
    /// Values that are there because of us.
    ours: Vec<&'a str>,
}

fn items(entries: &[Entry]) -> Vec<Item<'_>> {
    let mut items: Vec<Item<'_>> = Vec::new();
    for entry in entries {
        let ours = entry.to.iter().chain(&entry.now).chain(&entry.by_way_of).map(String::as_str);
        match items.iter_mut().find(|item| item.first.target == entry.target) {
            Some(item) => {
                item.ours.extend(ours);
                item.last = entry;
            }
            None => items.push(Item { first: entry, last: entry, ours: ours.collect() }),
        }
    }
    items
}

/// Restores, in reverse order, what the journal of `lock` says was there first, and takes the journal
/// away once all of it is. What somebody else has set since is left alone unless `force`.
///
/// # Errors
/// If the journal cannot be read or taken away.
pub fn undo(machine: &dyn Machine, lock: &Lock, boot_id: &str, force: bool) -> Result<Undone, TuneError> {
    let Some(contents) = lock.read()? else { return Ok(Undone::default()) };
    let mut undone = Undone { journal: true, damaged: contents.damaged, ..Undone::default() };
    if !contents.boot_id.is_empty() && contents.boot_id != boot_id {
        undone.void = true;
        lock.remove()?;
        return Ok(undone);
    }
    for item in items(&contents.entries).into_iter().rev() {
        let target = &item.first.target;
        let restored = restore(machine, &item, force);
        let was = target.show(&item.first.before);
        undone.restored.push((item.first.id.clone(), target.to_string(), was, restored));
    }
    if undone.complete() {
        lock.remove()?;
    }
    Ok(undone)
}

fn restore(machine: &dyn Machine, item: &Item<'_>, force: bool) -> Restored {
    let (target, before) = (&item.first.target, &item.first.before);
    let found = match target.read(machine) {
        Ok(found) => found,
        Err(error) if gone(&error) => return Restored::Gone,
        Err(error) => return Restored::Failed(error.to_string()),
    };
    if target.same(&found, before) {
        return Restored::Already;
    }
    // Cut off in the middle: whatever the kernel made of it, it is ours.
    let cut_off = item.last.now.is_none();
    if !force && !cut_off && !item.ours.iter().any(|ours| target.same(ours, &found)) {
        let set = item.last.now.as_deref().map(|now| target.show(now)).unwrap_or_default();
        return Restored::LeftAlone { found: target.show(&found), set };
    }
    match write_back(machine, target, item) {
        Ok(now) if target.same(&now, before) => Restored::Restored,
        Ok(now) => Restored::Failed(format!("it became {} instead", target.show(&now))),
        Err(error) if gone(&error) => Restored::Gone,
        Err(error) => Restored::Failed(error.to_string()),
    }
}

fn write_back(machine: &dyn Machine, target: &Target, item: &Item<'_>) -> io::Result<String> {
    if let Some(by_way_of) = &item.first.by_way_of {
        // Only a help; the value itself comes next.
        let _ = target.write(machine, by_way_of);
    }
    target.write(machine, &item.first.before)?;
    target.read(machine)
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}
