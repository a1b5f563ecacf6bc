// SPDX-License-Identifier: Apache-2.0
//! Restores the old values in a journal.

use std::io;

use serde::Serialize;

use super::{
    Target, TuneError,
    journal::{Entry, Lock},
};
use crate::machine::Machine;

/// The outcome for one setting that had been changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Restored {
    /// The old value was restored.
    Restored,
    /// It already had the old value.
    Already,
    /// It does not exist any more.
    Gone,
    /// Somebody else has set it since; it was left alone.
    LeftAlone { found: String, set: String },
    /// The kernel or a driver refused the old value.
    Failed(String),
}

/// The outcome of an undo.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Undone {
    /// Whether there was a journal.
    pub journal: bool,
    /// Whether it was of an earlier boot; the reboot has restored everything.
    pub void: bool,
    /// For each target, in the order of the undo: its condition, the target, its old value for people, and
    /// the outcome.
    pub restored: Vec<(String, String, String, Restored)>,
    /// Number and fault of each line that could not be read.
    pub damaged: Vec<(usize, String)>,
}

impl Undone {
    /// Whether nothing is left to restore.
    #[must_use]
    pub fn complete(&self) -> bool {
        let done = |restored: &Restored| !matches!(restored, Restored::LeftAlone { .. } | Restored::Failed(_));
        self.restored.iter().all(|(.., restored)| done(restored))
    }
}

/// One target and all changes to it.
struct Item<'a> {
    first: &'a Entry,
    last: &'a Entry,
    /// Values that we set or caused.
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

/// Restores, in reverse order, the first values in the journal of `lock`, and removes the journal once all
/// are restored. Values that somebody else has set since are left alone unless `force`.
///
/// # Errors
/// If the journal cannot be read or removed.
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
    // The change was interrupted: whatever value the kernel made of it is ours.
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
        // A failure does not matter: the value itself comes next.
        let _ = target.write(machine, by_way_of);
    }
    target.write(machine, &item.first.before)?;
    target.read(machine)
}

fn gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}
