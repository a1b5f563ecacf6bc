// SPDX-License-Identifier: Apache-2.0
//! A host's record of its group on disk: the last incarnation of its member, so that the next one is higher;
//! and that there is a group, so that it is not founded twice.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fide_agreement::View;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::files;

/// Why a member cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("{path}: {why}; a member has to store its record of the group there (state_dir)")]
    Io { path: PathBuf, why: io::Error },
    #[error(
        "{path} is no record of a group that this version can read: {why}. If a newer version wrote it, start that one. If this host was never in \
         the group, or no member of the group runs, remove it"
    )]
    Content { path: PathBuf, why: String },
    #[error("{path}: incarnation {incarnation} is the highest possible one")]
    LastIncarnation { path: PathBuf, incarnation: u32 },
    /// Two processes would use the same incarnations.
    #[error(
        "{path} is held by another process: a member of this group, or what it has forked, runs on this host already. End it first; `fuser {path}` names it"
    )]
    Held { path: PathBuf },
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Content {
    incarnation: u32,
    /// Numbers below this one may belong to processes whose record was lost. Not there: since the record exists
    /// none was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    answers_from: Option<u32>,
    /// Hosts of the view with which the group was recorded, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    founded_with: Option<Vec<u16>>,
}

/// The record of one group on one host.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    content: Content,
    /// There was no record before this process.
    is_first: bool,
    /// An incarnation that is stored, and of which nobody has heard yet.
    unused: Option<u32>,
    /// Locked as long as this member lives, so that no other process uses the record.
    _lock: fs::File,
}

/// Locks a file that other users may not open, and so may not lock.
fn lock(path: PathBuf) -> Result<fs::File, RecordError> {
    let open = fs::OpenOptions::new().create(true).write(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(|why| RecordError::Io { path: path.clone(), why })?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(RecordError::Held { path }),
        Err(error) => Err(RecordError::Io { path, why: error.into() }),
    }
}

/// Waits until the clock shows `seconds` since 1970, but no longer than the second that it may take.
fn await_clock(seconds: u32) {
    let begun = Instant::now();
    while now_s() < seconds && begun.elapsed() < Duration::from_secs(1) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The clock's seconds since 1970.
fn now_s() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(now.as_secs()).unwrap_or(0)
}

impl Record {
    /// Begins a new incarnation, which is stored when this returns. Without a record that may take a second.
    /// `is_durable`: the member goes on to answer for its former processes.
    pub(crate) fn begin(dir: &Path, group: &str, is_durable: bool) -> Result<Self, RecordError> {
        let path = dir.join(format!("{group}.toml"));
        fs::create_dir_all(dir).map_err(|why| RecordError::Io { path: dir.to_owned(), why })?;
        let lock = lock(dir.join(format!("{group}.lock")))?;
        let (is_first, content) = match fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text)
                .map(|content| (false, content))
                .map_err(|why| RecordError::Content { path: path.clone(), why: why.message().to_owned() })?,
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => (true, Content::default()),
            Err(why) => return Err(RecordError::Io { path, why }),
        };
        // With a record the next number, so that all that a durable member answers for belong to this record.
        // Others answer for nothing before them, and come higher than any process of another record. Without a
        // record higher than all before: hosts take less than one number a second. If the clock was set back,
        // the others say so, and the member takes a higher one.
        let next = content.incarnation.checked_add(1);
        let next = next.ok_or(RecordError::LastIncarnation { path: path.clone(), incarnation: content.incarnation })?;
        let incarnation = match () {
            () if is_first => now_s().saturating_add(1),
            () if is_durable => next,
            () => next.max(now_s()),
        };
        let mut record = Self { path, content, is_first, unused: None, _lock: lock };
        record.store(Content { incarnation, ..record.content.clone() })?;
        if is_first {
            // A process that began in this second, and whose record was lost, has this number at most.
            await_clock(incarnation);
        }
        Ok(record)
    }

    /// The next incarnation, higher than the last one and than `floor`; it is stored when this returns. The
    /// same one is returned until it is [used](Self::used), so that attempts that fail later do not use up
    /// numbers.
    pub(crate) fn next_incarnation(&mut self, floor: u32) -> Result<u32, RecordError> {
        if let Some(unused) = self.unused.filter(|unused| *unused > floor) {
            return Ok(unused);
        }
        // A record that a person has put there meanwhile counts. One that cannot be read is replaced.
        let there = fs::read_to_string(&self.path).ok().and_then(|text| toml::from_str::<Content>(&text).ok());
        let last = self.content.incarnation.max(floor).max(there.map_or(0, |content| content.incarnation));
        let incarnation = last.checked_add(1);
        let incarnation =
            incarnation.ok_or_else(|| RecordError::LastIncarnation { path: self.path.clone(), incarnation: last })?;
        let mut content = Content { incarnation, ..self.content.clone() };
        // Those between are another process's, and so is one that was stored here and not used in time.
        if last > self.content.incarnation || self.unused.is_some_and(|unused| unused <= floor) {
            content.answers_from = Some(incarnation);
        }
        self.store(content)?;
        self.unused = Some(incarnation);
        Ok(incarnation)
    }

    /// The member goes on as the incarnation of [`Self::next_incarnation`].
    pub(crate) fn used(&mut self) {
        self.unused = None;
    }

    pub(crate) fn incarnation(&self) -> u32 {
        self.content.incarnation
    }

    /// A log is there that is older than the record: it answers for nothing that came between.
    pub(crate) fn answer_from_now(&mut self) -> Result<(), RecordError> {
        self.store(Content { answers_from: Some(self.content.incarnation), ..self.content.clone() })
    }

    /// No process of this record had a number below this one, or it was skipped since.
    pub(crate) fn answers_from(&self) -> u32 {
        self.content.answers_from.unwrap_or(0)
    }

    /// Whether no process of this host was in the group before, or wanted to be: there was no record.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first
    }

    /// Whether there is a group, or was one.
    pub(crate) fn is_founded(&self) -> bool {
        self.content.founded_with.is_some()
    }

    /// Records that there is a group, which is stored when this returns.
    pub(crate) fn store_founded(&mut self, view: &View) -> Result<(), RecordError> {
        let hosts = view.members().iter().map(|member| member.host).collect();
        self.store(Content { founded_with: Some(hosts), ..self.content.clone() })
    }

    fn store(&mut self, content: Content) -> Result<(), RecordError> {
        let text = toml::to_string(&content).expect("numbers");
        let new = self.path.with_extension("new");
        files::replace(&self.path, &new, text.as_bytes())
            .map_err(|why| RecordError::Io { path: self.path.clone(), why })?;
        self.content = content;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_agreement::ViewMember;

    #[test]
    fn incarnations_grow_and_the_group_is_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let begin = |group| Record::begin(dir.path(), group, true).unwrap();
        let first = begin("g");
        let (before, was_first) = (first.incarnation(), first.is_first());
        drop(first);
        let mut second = begin("g");
        assert!(second.incarnation() > before && !second.is_founded());
        assert!(was_first && !second.is_first());
        second.store_founded(&View::new(1, &[ViewMember { host: 2, incarnation: 1 }]).unwrap()).unwrap();
        let before = second.incarnation();
        drop(second);
        let mut third = begin("g");
        assert!(third.is_founded() && third.incarnation() > before);
        let before = third.incarnation();
        assert!(third.next_incarnation(0).unwrap() > before);
        third.used();
        let before = third.incarnation();
        assert!(third.is_founded());
        drop(third);
        assert!(begin("g").incarnation() > before);
        assert!(!begin("other").is_founded());
    }

    /// Each loses its record, and all begin one after the other.
    #[test]
    fn host_that_lost_its_record_is_not_taken_for_its_former_process() {
        let mut last = 0;
        for _ in 0..3 {
            let dir = tempfile::tempdir().unwrap();
            let first = Record::begin(dir.path(), "g", true).unwrap().incarnation();
            assert!(first > last);
            last = first;
        }
    }

    #[test]
    fn numbers_of_a_record_follow_each_other_and_skipped_ones_are_not_answered_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = Record::begin(dir.path(), "g", true).unwrap();
        let first = record.incarnation();
        assert_eq!((record.next_incarnation(0).unwrap(), record.answers_from()), (first + 1, 0));
        record.used();
        drop(record);
        let mut record = Record::begin(dir.path(), "g", true).unwrap();
        assert_eq!((record.incarnation(), record.answers_from()), (first + 2, 0));
        // The others know of a process whose record was lost.
        assert_eq!((record.next_incarnation(first + 9).unwrap(), record.answers_from()), (first + 10, first + 10));
        drop(record);
        let record = Record::begin(dir.path(), "g", true).unwrap();
        assert_eq!((record.incarnation(), record.answers_from()), (first + 11, first + 10));
    }

    #[test]
    fn second_process_of_a_group_is_refused_while_the_first_lives() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Record::begin(dir.path(), "g", true).unwrap();
        let why = Record::begin(dir.path(), "g", true).unwrap_err().to_string();
        assert!(why.contains("g.lock is held by another process") && why.contains("End it first"), "{why}");
        let other = Record::begin(dir.path(), "other", true).unwrap();
        assert_eq!(first.next_incarnation(0).unwrap(), first.incarnation(), "nothing was given out twice");
        let last = first.incarnation();
        drop((first, other));
        assert!(Record::begin(dir.path(), "g", true).unwrap().incarnation() > last);
    }

    #[test]
    fn incarnation_is_above_that_of_a_replaced_record() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = Record::begin(dir.path(), "g", true).unwrap();
        let put = record.incarnation() + 7;
        fs::write(dir.path().join("g.toml"), format!("incarnation = {put}")).unwrap();
        assert_eq!(record.next_incarnation(0).unwrap(), put + 1);
        record.used();
        fs::write(dir.path().join("g.toml"), "incarnation = \"x\"").unwrap();
        assert_eq!(record.next_incarnation(0).unwrap(), put + 2);
    }

    #[test]
    fn failed_store_is_retried_and_uses_up_no_incarnation() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("state");
        let mut record = Record::begin(&state_dir, "g", true).unwrap();
        let first = record.incarnation();
        fs::remove_dir_all(&state_dir).unwrap();
        for _ in 0..3 {
            assert!(matches!(record.next_incarnation(0), Err(RecordError::Io { .. })));
            assert_eq!(record.incarnation(), first, "nothing has changed");
        }
        fs::create_dir(&state_dir).unwrap();
        // The agent may refuse to be joined with meanwhile.
        assert_eq!([0; 3].map(|_| record.next_incarnation(first).unwrap()), [first + 1; 3]);
        // Others have said meanwhile which of them they hold dead.
        assert_eq!([0; 3].map(|_| record.next_incarnation(first + 40).unwrap()), [first + 41; 3]);
        record.used();
        assert_eq!(record.next_incarnation(0).unwrap(), first + 42);
        drop(record);
        assert!(Record::begin(&state_dir, "g", true).unwrap().incarnation() > first + 42);
    }

    #[test]
    fn unreadable_record_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("g.toml"), "incarnation = \"x\"").unwrap();
        let error = Record::begin(dir.path(), "g", true).unwrap_err().to_string();
        assert!(error.contains("g.toml is no record") && error.contains("remove it"), "{error}");
        fs::write(dir.path().join("g.toml"), format!("incarnation = {}", u32::MAX)).unwrap();
        assert!(matches!(Record::begin(dir.path(), "g", true), Err(RecordError::LastIncarnation { .. })));
    }
}
