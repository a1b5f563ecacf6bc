// SPDX-License-Identifier: Apache-2.0
//! A host's record of its group on disk: the last incarnation of its member, so that the next one is higher; which
//! incarnations belong to this record, so that others are not answered for; and that there is a group, so that it is not
//! founded twice.

use std::{
    fs, io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use fide_agreement::{View, group::Incarnations};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::files;

/// Numbers that may be left out, where others know of a higher one: so many steps are possible for a million times.
const JUMP_MAX: u32 = 2048;

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
    /// Incarnations of this record's processes that may have been let in to a view, as ranges. Processes whose record
    /// was lost had others. Not there: a former version wrote the record, and took one number after the other; or the
    /// member is not durable, and answers for no process before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    own: Option<Vec<(u32, u32)>>,
    /// Of that version: numbers below this one may belong to processes whose record was lost.
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
    /// As in `content`.
    own: Incarnations,
    /// They are stored. A program of the former version cannot read that.
    names_own: bool,
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

/// How far above a number that others know of this host takes one. By chance, as another record of this host may do the
/// same.
fn jump() -> u32 {
    let mut bytes = [0; 2];
    // Cannot fail for so few bytes on a kernel that has started.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    2 + u32::from(u16::from_le_bytes(bytes)) % JUMP_MAX
}

/// The clock's seconds since 1970.
fn now_s() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(now.as_secs()).unwrap_or(0)
}

impl Content {
    fn read(text: &str) -> Result<(Self, Incarnations), String> {
        let content: Self = toml::from_str(text).map_err(|why| why.message().to_owned())?;
        let own = match &content.own {
            Some(ranges) => Incarnations::from_ranges(ranges.iter().copied()).map_err(|why| why.to_string())?,
            None => Incarnations::range(content.answers_from.unwrap_or(1), content.incarnation),
        };
        match own.ranges().last() {
            Some((_, last)) if *last > content.incarnation => {
                Err(format!("incarnation {last} of its own is above the last one, {}", content.incarnation))
            }
            _ => Ok((content, own)),
        }
    }
}

impl Record {
    /// Begins a new incarnation, which is stored when this returns. Without a record that may take a second.
    /// `is_durable`: the member goes on to answer for its former processes.
    pub(crate) fn begin(dir: &Path, group: &str, is_durable: bool) -> Result<Self, RecordError> {
        let path = dir.join(format!("{group}.toml"));
        fs::create_dir_all(dir).map_err(|why| RecordError::Io { path: dir.to_owned(), why })?;
        let lock = lock(dir.join(format!("{group}.lock")))?;
        let (is_first, (content, own)) = match fs::read_to_string(&path) {
            Ok(text) => {
                let read = Content::read(&text).map_err(|why| RecordError::Content { path: path.clone(), why })?;
                (false, read)
            }
            Err(missing) if missing.kind() == io::ErrorKind::NotFound => (true, Default::default()),
            Err(why) => return Err(RecordError::Io { path, why }),
        };
        // Higher than all before, also those of another record of this host, whose disk may come back: hosts take
        // less than one number a second. If the clock was set back, the others say so, and the member takes a higher
        // one.
        let next = content.incarnation.checked_add(1);
        let next = next.ok_or(RecordError::LastIncarnation { path: path.clone(), incarnation: content.incarnation })?;
        let incarnation = if is_first { now_s().saturating_add(1) } else { next.max(now_s()) };
        let names_own = is_durable || content.own.is_some();
        let mut record = Self { path, content, own, names_own, is_first, unused: None, _lock: lock };
        record.store(incarnation, record.own.clone())?;
        if is_first || is_durable {
            // A process that began in this second, and whose record was lost, has this number at most. A record does not get
            // ahead of the clock either, by a process that ends again and again at once.
            await_clock(incarnation);
        }
        Ok(record)
    }

    /// The next incarnation, higher than the last one and than `floor`; it is stored when this returns. The
    /// same one is returned until it is [used](Self::used), so that attempts that fail later do not use up
    /// numbers. `own`: the incarnations for which the member answers as that one.
    pub(crate) fn next_incarnation(&mut self, floor: u32, mut own: Incarnations) -> Result<u32, RecordError> {
        if let Some(unused) = self.unused.filter(|unused| *unused > floor) {
            return Ok(unused);
        }
        // A record that a person has put there meanwhile counts. One that cannot be read is replaced.
        let there = fs::read_to_string(&self.path).ok().and_then(|text| Content::read(&text).ok());
        let known = self.content.incarnation.max(there.map_or(0, |(content, _)| content.incarnation));
        let last = known.max(floor);
        // A process of another record, if its disk comes back, takes the number after the one that others know of: not
        // the same one as this process.
        let step = if floor > known { jump() } else { 1 };
        let incarnation = last.checked_add(step).or_else(|| last.checked_add(1));
        let incarnation =
            incarnation.ok_or_else(|| RecordError::LastIncarnation { path: self.path.clone(), incarnation: last })?;
        own.push(incarnation);
        self.store(incarnation, own)?;
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

    /// This incarnation may be let in to a view from now on, so that later ones have to answer for it. Nothing is stored
    /// for the others: a host that starts again and again while its group waits does not use up the ranges.
    pub(crate) fn may_be_let_in(&mut self) -> Result<(), RecordError> {
        let mut own = self.own.clone();
        own.push(self.content.incarnation);
        if own == self.own || !self.names_own { Ok(()) } else { self.store(self.content.incarnation, own) }
    }

    /// Incarnations that were no other record's process, as far as they may have been let in to a view.
    pub(crate) fn own(&self) -> &Incarnations {
        &self.own
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
        self.store_content(Content { founded_with: Some(hosts), ..self.content.clone() })
    }

    fn store(&mut self, incarnation: u32, own: Incarnations) -> Result<(), RecordError> {
        let founded_with = self.content.founded_with.clone();
        let ranges = self.names_own.then(|| own.ranges().to_vec());
        let answers_from = self.content.answers_from.filter(|_| !self.names_own);
        self.store_content(Content { incarnation, own: ranges, answers_from, founded_with })?;
        self.own = own;
        Ok(())
    }

    fn store_content(&mut self, content: Content) -> Result<(), RecordError> {
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
        assert!(third.next_incarnation(0, Incarnations::default()).unwrap() > before);
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

    /// As after a start at that time.
    fn put(dir: &Path, text: &str) {
        fs::write(dir.join("g.toml"), text).unwrap();
    }

    fn ranges(record: &Record) -> &[(u32, u32)] {
        record.own().ranges()
    }

    #[test]
    fn next_process_is_above_every_other_record_of_its_host() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "incarnation = 21\nown = [[20, 21]]");
        // An empty disk meanwhile.
        let empty = tempfile::tempdir().unwrap();
        let other = Record::begin(empty.path(), "g", true).unwrap().incarnation();
        await_clock(other + 1);
        let record = Record::begin(dir.path(), "g", true).unwrap();
        assert!(record.incarnation() > other, "{} and {other}", record.incarnation());
        assert_eq!(ranges(&record), [(20, 21)]);
    }

    #[test]
    fn process_belongs_to_its_record_once_it_may_be_let_in() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "incarnation = 21\nown = [[20, 21]]");
        let mut record = Record::begin(dir.path(), "g", true).unwrap();
        let first = record.incarnation();
        assert_eq!(ranges(&record), [(20, 21)]);
        for _ in 0..2 {
            record.may_be_let_in().unwrap();
            assert_eq!(ranges(&record), [(20, 21), (first, first)]);
        }
        // It was excluded, and goes on as the next one.
        let own = record.own().clone();
        assert_eq!(record.next_incarnation(first, own).unwrap(), first + 1);
        record.used();
        drop(record);
        let mut record = Record::begin(dir.path(), "g", true).unwrap();
        assert!(record.incarnation() > first + 1);
        assert_eq!(ranges(&record), [(20, 21), (first, first + 1)]);
        // Others know of a process whose record was lost: what the member goes on to answer for is before that.
        let (dead, own) = (record.incarnation() + 9, Incarnations::range(20, 21));
        let above = record.next_incarnation(dead, own).unwrap();
        // Not the next one: that is what another disk of this host takes whose record ends with the dead one.
        assert!((dead + 2..dead + 2 + JUMP_MAX).contains(&above), "{above} after {dead}");
        drop(record);
        let record = Record::begin(dir.path(), "g", true).unwrap();
        assert_eq!((record.incarnation(), ranges(&record)), (above + 1, &[(20, 21), (above, above)][..]));
    }

    /// Nobody has heard of them.
    #[test]
    fn processes_that_only_began_use_up_no_ranges() {
        let dir = tempfile::tempdir().unwrap();
        // Each waits for the clock.
        let began: Vec<u32> = (0..3).map(|_| Record::begin(dir.path(), "g", true).unwrap().incarnation()).collect();
        assert!(began.is_sorted_by(|a, b| a < b), "{began:?}");
        assert!(now_s() >= *began.last().unwrap(), "the record is not ahead of the clock");
        assert_eq!(ranges(&Record::begin(dir.path(), "g", true).unwrap()), []);
    }

    /// It was killed as soon as that was stored, beside an older log that was put back.
    #[test]
    fn process_killed_at_once_leaves_a_record_that_answers_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        drop(Record::begin(dir.path(), "g", true).unwrap());
        let again = Record::begin(dir.path(), "g", true).unwrap();
        assert!(!again.is_first());
        assert_eq!(ranges(&again), []);
    }

    /// It took one number after the other, and answered for all of them, or for those from one on.
    #[test]
    fn record_of_the_former_version_means_what_it_meant() {
        for (text, want) in [
            ("incarnation = 21", (1, 21)),
            ("incarnation = 21\nanswers_from = 20\nfounded_with = [1, 2]", (20, 21)),
            ("incarnation = 21\nanswers_from = 21", (21, 21)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            put(dir.path(), text);
            let record = Record::begin(dir.path(), "g", true).unwrap();
            assert_eq!((ranges(&record), record.is_founded()), (&[want][..], text.contains("founded")), "{text}");
            drop(record);
            // And does so once this version has stored it.
            let record = Record::begin(dir.path(), "g", true).unwrap();
            assert_eq!((ranges(&record), record.is_founded()), (&[want][..], text.contains("founded")), "{text}");
        }
    }

    /// A group that is not durable goes back to it server by server.
    #[test]
    fn former_version_reads_the_record_of_a_member_that_is_not_durable() {
        let dir = tempfile::tempdir().unwrap();
        for before in [None, Some("incarnation = 21\nanswers_from = 20")] {
            if let Some(text) = before {
                put(dir.path(), text);
            }
            let mut record = Record::begin(dir.path(), "g", false).unwrap();
            record.next_incarnation(0, Incarnations::range(20, 21)).unwrap();
            record.store_founded(&View::new(1, &[ViewMember { host: 2, incarnation: 1 }]).unwrap()).unwrap();
            let text = fs::read_to_string(dir.path().join("g.toml")).unwrap();
            assert!(!text.contains("own") && text.contains("answers_from = 20") == before.is_some(), "{text}");
        }
        // Beside a log that comes back, what it says still counts.
        put(dir.path(), "incarnation = 21\nown = [[20, 21]]");
        drop(Record::begin(dir.path(), "g", false).unwrap());
        assert_eq!(ranges(&Record::begin(dir.path(), "g", true).unwrap()), [(20, 21)]);
    }

    #[test]
    fn second_process_of_a_group_is_refused_while_the_first_lives() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = Record::begin(dir.path(), "g", true).unwrap();
        let why = Record::begin(dir.path(), "g", true).unwrap_err().to_string();
        assert!(why.contains("g.lock is held by another process") && why.contains("End it first"), "{why}");
        let other = Record::begin(dir.path(), "other", true).unwrap();
        assert_eq!(
            first.next_incarnation(0, Incarnations::default()).unwrap(),
            first.incarnation(),
            "nothing was given out twice"
        );
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
        assert_eq!(record.next_incarnation(0, Incarnations::default()).unwrap(), put + 1);
        record.used();
        fs::write(dir.path().join("g.toml"), "incarnation = \"x\"").unwrap();
        assert_eq!(record.next_incarnation(0, Incarnations::default()).unwrap(), put + 2);
    }

    #[test]
    fn failed_store_is_retried_and_uses_up_no_incarnation() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join("state");
        let mut record = Record::begin(&state_dir, "g", true).unwrap();
        let first = record.incarnation();
        fs::remove_dir_all(&state_dir).unwrap();
        for _ in 0..3 {
            assert!(matches!(record.next_incarnation(0, Incarnations::default()), Err(RecordError::Io { .. })));
            assert_eq!(record.incarnation(), first, "nothing has changed");
        }
        fs::create_dir(&state_dir).unwrap();
        // The agent may refuse to be joined with meanwhile.
        assert_eq!([0; 3].map(|_| record.next_incarnation(first, Incarnations::default()).unwrap()), [first + 1; 3]);
        // Others have said meanwhile which of them they hold dead.
        let above = record.next_incarnation(first + 40, Incarnations::default()).unwrap();
        assert!(above > first + 41);
        assert_eq!([0; 2].map(|_| record.next_incarnation(first + 40, Incarnations::default()).unwrap()), [above; 2]);
        record.used();
        assert_eq!(record.next_incarnation(0, Incarnations::default()).unwrap(), above + 1);
        drop(record);
        assert!(Record::begin(&state_dir, "g", true).unwrap().incarnation() > above + 1);
    }

    #[test]
    fn unreadable_record_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("g.toml"), "incarnation = \"x\"").unwrap();
        let error = Record::begin(dir.path(), "g", true).unwrap_err().to_string();
        assert!(error.contains("g.toml is no record") && error.contains("remove it"), "{error}");
        for own in ["[[0, 3]]", "[[3, 2]]", "[[20, 22]]", "[[1, 2], [2, 3]]", "[1, 2]"] {
            put(dir.path(), &format!("incarnation = 21\nown = {own}"));
            let error = Record::begin(dir.path(), "g", true).unwrap_err().to_string();
            assert!(error.contains("g.toml is no record"), "{own}: {error}");
        }
        fs::write(dir.path().join("g.toml"), format!("incarnation = {}", u32::MAX)).unwrap();
        assert!(matches!(Record::begin(dir.path(), "g", true), Err(RecordError::LastIncarnation { .. })));
    }
}
