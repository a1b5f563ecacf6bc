// SPDX-License-Identifier: Apache-2.0
//! A group's log on the disk of one host: what a durable member ([`crate::Config::durable`]) has stored.
//!
//! ```text
//!  GROUP.log/manifest.toml   where the log begins: the user's state, the last membership, the first segment
//!            state-POSITION  the user's state after that position
//!            NNNNNNNN.seg    what was decided since ([`record`]), in files of some 8 MiB
//! ```
//!
//! **Order.** Records are written in the order in which the group hands them out, and are stored once the
//! `fdatasync` after them has returned. Room is written as zeros ahead of need, so that most of these syncs change
//! no file's length.
//!
//! **Torn ends.** A crash may leave any part of what was written since the last sync. A reader stops at the first
//! record that is not whole, and the rest is zeroed before anything is appended. Each record says up to where its
//! segment was synced when it was written: if a later one shows that the broken one was synced, the disk has
//! lost data, and the log is refused.
//!
//! **Another state.** When the user's state is replaced by that of another member, the log goes on in a new
//! segment that begins with a mark. Until the manifest says that the new state is stored, a reader stops at the
//! mark and has what was there before.
//!
//! **A disk that fails.** A write that finds no room is repeated later. After a sync that failed nobody knows what is on disk, and the member ends. The kernel
//! still has what was written in memory then, and takes it for stored. So a log is read from the disk itself.

mod manifest;
mod record;
mod replay;

use std::{
    fs,
    io::{self, Read, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use fide_agreement::{
    Identity, View,
    group::{Recalled, RecalledMember},
};
use rustix::fs::{Advice, fadvise};

use crate::files;
use manifest::{Base, Manifest};
pub(crate) use record::PAYLOAD_MAX;
use record::{End, Membership, Record};
pub(crate) use replay::Replay;
pub use replay::StoredState;

/// A segment that is longer is followed by another one.
const SEGMENT_BYTES: u64 = 8 << 20;
/// So much room is written ahead.
const ROOM_BYTES: u64 = 256 << 10;
/// What the room is filled with.
static ZEROS: [u8; ROOM_BYTES as usize] = [0; ROOM_BYTES as usize];

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("{path}: {why}; a durable group has to store its log there (state_dir)")]
    Io { path: PathBuf, why: io::Error },
    #[error(
        "{path} is damaged: {why}. If the other hosts have the group's data, remove this folder, and the host takes it over from them"
    )]
    Manifest { path: PathBuf, why: String },
    #[error(
        "{path} is the log of a group with other hosts, or another protocol; name the former ones, or start the version that wrote it. Only if \
         the group's data is elsewhere, move the folder away"
    )]
    OtherGroup { path: PathBuf },
    #[error("{path} has something at byte {at} that this version does not know; start the version that wrote it")]
    Newer { path: PathBuf, at: u64 },
    #[error(
        "{path}: {bytes} bytes wait for room on this disk ({why}), and the others do not wait for them: the member ends, so that they go on \
         without it. Make room, and start it again"
    )]
    Behind { path: PathBuf, bytes: usize, why: String },
    #[error(
        "{path} is damaged at byte {at}: {why}. The disk has lost data that was stored. If the group runs on the other hosts, move this folder \
         away, and the host takes the data over from them; if it does not, they wait for this log: repair the disk. An older copy of the \
         folder is no replacement: what was answered since would be lost"
    )]
    Damaged { path: PathBuf, at: u64, why: &'static str },
    #[error(
        "{path} is the log of a durable group, and this member is not durable: make it so, or move the folder away"
    )]
    NotDurable { path: PathBuf },
}

impl LogError {
    /// There was no room: the same write may succeed later.
    pub(crate) fn is_full(&self) -> bool {
        matches!(self, Self::Io { why, .. } if matches!(why.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

/// A segment that is complete.
#[derive(Debug)]
struct Segment {
    number: u64,
    begun: Begun,
    /// The last position at its end.
    last: u64,
}

/// The last membership at the beginning of a segment, and whether the user's state of it is here.
#[derive(Debug, Clone)]
struct Begun {
    membership: Option<Membership>,
    is_whole: bool,
}

/// The user's state was replaced by one that is not stored.
#[derive(Debug, Clone, Copy)]
struct Replaced {
    /// The segment in which the log of that one begins, ...
    segment: u64,
    /// ... after this position.
    position: u64,
    /// The first incarnation that this host answers for once it is stored.
    first: u32,
}

/// What is found on disk.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) recalled: Recalled,
    /// Decisions since the stored state.
    pub(crate) decisions: u64,
    /// Bytes that a crash had left behind the last whole record.
    pub(crate) torn: u64,
}

#[derive(Debug)]
pub(crate) struct Log {
    dir: PathBuf,
    manifest: Manifest,
    /// The last membership, and whether the user's state of it is here.
    membership: Option<Membership>,
    is_whole: bool,
    /// The last position.
    last: u64,
    done: Vec<Segment>,
    begun: Begun,
    replaced: Option<Replaced>,
    number: u64,
    file: fs::File,
    /// Written up to here; what follows in the file is zeros, up to `room`.
    written: u64,
    room: u64,
    synced: u64,
    /// Records to be written. If there was no room for all of them, a part is behind `written` in the file.
    buffer: Vec<u8>,
    /// Bytes since the stored state.
    since_base: u64,
}

impl Log {
    /// Opens the log in `dir`, or begins one. `first`: the present incarnation, which is the first one that a new
    /// log answers for.
    pub(crate) fn open(dir: &Path, group: u64, first: u32) -> Result<(Self, Found), LogError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |why| LogError::Io { path, why }
        };
        fs::create_dir_all(dir).map_err(io(dir))?;
        // The folder itself is to be there after a power cut.
        let parent = dir.parent().unwrap_or(dir);
        files::sync_dir(parent).map_err(io(parent))?;
        let manifest = match Manifest::read(dir, group)? {
            Some(manifest) => manifest,
            None => {
                // The first segment is made before the manifest, and nothing is written to it before that.
                let first_segment = path(dir, 1);
                for entry in fs::read_dir(dir).map_err(io(dir))? {
                    let entry = entry.map_err(io(dir))?;
                    let is_begun = entry.path() == first_segment
                        && entry.metadata().is_ok_and(|file| file.len() <= record::SEGMENT_HEAD as u64);
                    if !is_begun && !entry.file_name().to_string_lossy().ends_with(".new") {
                        let why = "it is lost, and the log is not".to_owned();
                        return Err(LogError::Manifest { path: dir.join(manifest::NAME), why });
                    }
                }
                begin(dir, 1, 0)?;
                let manifest = Manifest::new(group, first);
                manifest.store(dir)?;
                manifest
            }
        };
        let membership = manifest.membership(&dir.join(manifest::NAME))?;
        if let Some(base) = &manifest.base {
            check_base(dir, base)?;
        }
        // By a manifest whose place is stored for certain.
        files::sync_dir(dir).map_err(io(dir))?;
        remove_left_over(dir, &manifest).map_err(io(dir))?;
        let mut reader = Reader {
            is_whole: manifest.is_whole,
            membership: membership.clone(),
            base: manifest.base.as_ref().map_or(0, |base| base.position),
            last: None,
        };
        let mut begun = Begun { membership, is_whole: manifest.is_whole };
        let (mut done, mut bytes_since, mut torn) = (Vec::new(), 0, 0);
        let mut numbers: Vec<u64> = segments(dir)?;
        for old in numbers.iter().filter(|number| **number < manifest.segments_from) {
            fs::remove_file(path(dir, *old)).map_err(io(dir))?;
        }
        numbers.retain(|number| *number >= manifest.segments_from);
        let is_whole = |(at, number): (usize, &u64)| *number == manifest.segments_from + at as u64;
        if numbers.is_empty() || !numbers.iter().enumerate().all(is_whole) {
            let path = path(dir, manifest.segments_from);
            return Err(LogError::Damaged { path, at: 0, why: "it, or one that follows it, is not there" });
        }
        // A segment that found no room: the log went on in the one before.
        while let [_, .., last] = numbers[..]
            && record::has_no_head(&read(&path(dir, last))?, last)
        {
            fs::remove_file(path(dir, last)).and_then(|()| files::sync_dir(dir)).map_err(io(dir))?;
            numbers.pop();
        }
        let mut open: Option<(u64, u64)> = None;
        for (at, &number) in numbers.iter().enumerate() {
            let before = Begun { membership: reader.membership.clone(), is_whole: reader.is_whole };
            let last_before = reader.last();
            let file = path(dir, number);
            let bytes = read(&file)?;
            let scanned = record::scan(&bytes, number, |_, record| match record {
                Record::State if number == manifest.segments_from => Ok(()),
                Record::State => Err(Stop::OtherState),
                record => reader.take(&record),
            });
            let (end, is_broken) = match scanned {
                Ok(End { at, is_unknown: true, .. }) => return Err(LogError::Newer { path: file, at: at as u64 }),
                Ok(End { at, damaged, .. }) => (at, damaged),
                Err(Stop::OtherState) => {
                    // The last one first: without its mark a later segment would be taken for the log.
                    for later in numbers[at..].iter().rev() {
                        fs::remove_file(path(dir, *later)).and_then(|()| files::sync_dir(dir)).map_err(io(dir))?;
                    }
                    break;
                }
                Err(Stop::Gap) => {
                    return Err(LogError::Damaged { path: file, at: 0, why: "decisions are missing before it" });
                }
            };
            let is_last = at + 1 == numbers.len();
            let rest = &bytes[end.min(bytes.len())..];
            if is_broken || !is_last && rest.iter().any(|byte| *byte != 0) {
                let why = "a record that was stored is not whole";
                return Err(LogError::Damaged { path: file, at: end as u64, why });
            }
            torn += rest.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1);
            bytes_since += end as u64;
            if let Some((number, _)) = open.replace((number, end as u64)) {
                done.push(Segment { number, begun: std::mem::replace(&mut begun, before), last: last_before });
            }
        }
        let (number, written) = open.unwrap_or((manifest.segments_from, 0));
        let (file, written) = begin(dir, number, written)?;
        let last = reader.last();
        let position = reader.is_whole.then_some(last);
        let member = reader.membership.clone().map(|Membership { incarnation, ballot, view }| RecalledMember {
            incarnation,
            ballot,
            view,
            position,
        });
        let decisions = last - reader.base;
        let log = Self {
            dir: dir.to_owned(),
            membership: reader.membership,
            is_whole: reader.is_whole,
            last,
            done,
            begun,
            replaced: None,
            number,
            file,
            written,
            room: written,
            synced: written,
            buffer: Vec::new(),
            since_base: bytes_since,
            manifest,
        };
        let recalled = Recalled { first: log.manifest.first, member };
        Ok((log, Found { recalled, decisions, torn }))
    }

    fn io(&self, number: u64) -> impl Fn(io::Error) -> LogError {
        let path = path(&self.dir, number);
        move |why| LogError::Io { path: path.clone(), why }
    }

    fn push(&mut self, record: &Record<'_>) {
        let before = self.buffer.len();
        record::push(&mut self.buffer, self.number, self.synced, record);
        self.since_base += (self.buffer.len() - before) as u64;
    }

    /// This host is a member of a view that begins after `start`.
    pub(crate) fn append_member(&mut self, incarnation: u32, ballot: u32, view: &View, start: u64) {
        let membership = Membership { incarnation, ballot, view: view.clone() };
        self.push(&Record::Member { membership: membership.clone(), start });
        (self.membership, self.is_whole, self.last) = (Some(membership), true, start);
    }

    pub(crate) fn append_decision(&mut self, position: u64, value: &[u8]) {
        self.push(&Record::Decision { position, value });
        self.last = position;
    }

    /// A payload that the next decision names.
    pub(crate) fn append_payload(&mut self, identity: Identity, bytes: &[u8]) {
        self.push(&Record::Payload { identity, bytes });
    }

    /// Whether something was appended and is not stored.
    pub(crate) fn is_unsynced(&self) -> bool {
        !self.buffer.is_empty() || self.synced < self.written
    }

    /// Bytes that were appended and are not written.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.buffer.len()
    }

    /// Why the member ends rather than waits for room any longer.
    pub(crate) fn behind(&self, why: &LogError) -> LogError {
        LogError::Behind { path: path(&self.dir, self.number), bytes: self.buffer.len(), why: why.to_string() }
    }

    /// Bytes that were appended since the stored state.
    pub(crate) fn since_base(&self) -> u64 {
        self.since_base
    }

    /// Stores everything that was appended.
    ///
    /// # Errors
    /// [`LogError`]. If there was no room ([`LogError::is_full`]), nothing is lost, and the call may be repeated.
    pub(crate) fn sync(&mut self) -> Result<(), LogError> {
        let end = self.written + self.buffer.len() as u64;
        if end > self.room {
            let room = end.next_multiple_of(ROOM_BYTES) + ROOM_BYTES;
            while self.room < room {
                let zeros = &ZEROS[..(room - self.room).min(ROOM_BYTES) as usize];
                // On a disk that is nearly full there may be room for the records all the same.
                match self.file.write_all_at(zeros, self.room).map_err(self.io(self.number)) {
                    Ok(()) => self.room += zeros.len() as u64,
                    Err(why) if why.is_full() => break,
                    Err(why) => return Err(why),
                }
            }
        }
        self.file.write_all_at(&self.buffer, self.written).map_err(self.io(self.number))?;
        self.buffer.clear();
        (self.written, self.room) = (end, self.room.max(end));
        if self.synced < self.written {
            self.file.sync_data().map_err(|why| self.lost(why))?;
            self.synced = self.written;
        }
        if self.written > SEGMENT_BYTES { self.roll() } else { Ok(()) }
    }

    /// A sync has failed: also for want of room, nobody knows now what is on disk.
    fn lost(&self, why: io::Error) -> LogError {
        let why = io::Error::other(format!("syncing failed, so that what was written may be lost: {why}"));
        LogError::Io { path: path(&self.dir, self.number), why }
    }

    /// Ends the segment, of which everything is stored, and begins the next one.
    fn roll(&mut self) -> Result<(), LogError> {
        let next = begin(&self.dir, self.number + 1, 0);
        if next.is_err() {
            // Records go on in this segment, so none may follow it, also after a power cut.
            self.remove_next()?;
        }
        let (file, written) = next?;
        self.file.set_len(self.written).and_then(|()| self.file.sync_data()).map_err(|why| self.lost(why))?;
        let begun = Begun { membership: self.membership.clone(), is_whole: self.is_whole };
        let begun = std::mem::replace(&mut self.begun, begun);
        self.done.push(Segment { number: self.number, begun, last: self.last });
        self.number += 1;
        (self.file, self.written, self.room, self.synced) = (file, written, written, written);
        Ok(())
    }

    /// Removes the next segment, which could not be begun.
    fn remove_next(&self) -> Result<(), LogError> {
        let path = path(&self.dir, self.number + 1);
        let removed = match fs::remove_file(&path) {
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other.and_then(|()| files::sync_dir(&self.dir)),
        };
        removed.map_err(|why| {
            let why = io::Error::other(format!("it could not be begun, and not be removed: {why}"));
            LogError::Io { path, why }
        })
    }

    /// Drops records that are not written, and what a write that found no room has left of them in the file.
    fn drop_unwritten(&mut self) -> Result<(), LogError> {
        self.buffer.clear();
        self.file.set_len(self.written).map_err(self.io(self.number))?;
        self.file.sync_data().map_err(|why| self.lost(why))?;
        (self.room, self.synced) = (self.written, self.written);
        Ok(())
    }

    /// The user has another state in place of the one whose log this is; it is not stored yet. `recalled`: what
    /// is to be known of former incarnations once it is.
    pub(crate) fn replace_state(&mut self, position: u64, recalled: Recalled) -> Result<(), LogError> {
        // What belongs to the former state is of no use. It goes before the next segment begins, which shows that this one is
        // complete.
        self.drop_unwritten()?;
        self.roll()?;
        let member = recalled.member.as_ref();
        self.membership = member.map(|member| Membership {
            incarnation: member.incarnation,
            ballot: member.ballot,
            view: member.view.clone(),
        });
        // The member may have been let in with that state, and excluded, before it was told here.
        self.is_whole = member.is_some_and(|member| member.position == Some(position));
        (self.last, self.since_base) = (position, 0);
        self.begun = Begun { membership: self.membership.clone(), is_whole: self.is_whole };
        self.replaced = Some(Replaced { segment: self.number, position, first: recalled.first });
        self.push(&Record::State);
        self.sync()
    }

    /// Stores the user's state after `position`, given as bytes.
    ///
    /// False, and nothing has changed, if that is a state from before the user's was replaced.
    pub(crate) fn store_base(&mut self, position: u64, state: &[u8]) -> Result<bool, LogError> {
        if self.is_before_replaced(position) {
            return Ok(false);
        }
        let name = self.state_name(position);
        let (path, new) = (self.dir.join(&name), self.base_file());
        files::replace(&path, &new, state).map_err(|why| LogError::Io { path, why })?;
        let (file, bytes, crc32c) = (name, state.len() as u64, crc32c::crc32c(state));
        self.set_base(Base { position, file, bytes, crc32c, beside: String::new() })
    }

    /// Where the user writes its state ([`Log::take_base_file`]).
    pub(crate) fn base_file(&self) -> PathBuf {
        self.dir.join("state.new")
    }

    /// Takes over the user's state after `position` from [`Log::base_file`], and what belongs to it `beside` that.
    pub(crate) fn take_base_file(&mut self, position: u64, beside: &[u8], crc32c: u32) -> Result<bool, LogError> {
        if self.is_before_replaced(position) {
            return Ok(false);
        }
        let (from, name) = (self.base_file(), self.state_name(position));
        // An attempt that found no room later may have renamed it.
        let is_renamed = !from.exists() && self.dir.join(&name).exists();
        let there = if is_renamed { self.dir.join(&name) } else { from.clone() };
        let sync = || {
            let file = fs::File::open(&there)?;
            file.sync_all()?;
            Ok(file.metadata()?.len())
        };
        let bytes = sync().map_err(|why| LogError::Io { path: there.clone(), why })?;
        if !is_renamed {
            let to = self.dir.join(&name);
            files::rename(&from, &to).map_err(|why| LogError::Io { path: to, why })?;
        }
        let beside = beside.iter().map(|byte| format!("{byte:02x}")).collect();
        self.set_base(Base { position, file: name, bytes, crc32c, beside })
    }

    /// The log begins with this state, which is stored. What came before goes.
    fn set_base(&mut self, base: Base) -> Result<bool, LogError> {
        self.sync()?;
        let position = base.position;
        // A segment of its own for what follows: so that those before can go, and to know how long it is.
        if self.replaced.is_none() && self.written > record::SEGMENT_HEAD as u64 {
            self.roll()?;
        }
        let mut manifest = self.manifest.clone();
        manifest.base = Some(base);
        let is_needed = |segment: &&Segment| match self.replaced {
            Some(Replaced { segment: from, .. }) => segment.number >= from,
            None => segment.last > position,
        };
        let (from, begun) = self
            .done
            .iter()
            .find(is_needed)
            .map_or((self.number, &self.begun), |segment| (segment.number, &segment.begun));
        (manifest.segments_from, manifest.is_whole) = (from, begun.is_whole);
        manifest.set_membership(begun.membership.as_ref());
        manifest.first = self.replaced.map_or(manifest.first, |replaced| replaced.first.max(manifest.first));
        manifest.store(&self.dir)?;
        let old = std::mem::replace(&mut self.manifest, manifest);
        self.replaced = None;
        self.since_base = self.written;
        let from = self.manifest.segments_from;
        let gone: Vec<u64> = self.done.iter().map(|segment| segment.number).filter(|number| *number < from).collect();
        self.done.retain(|segment| segment.number >= from);
        // What is left over is removed by the next process.
        gone.into_iter().for_each(|number| drop(fs::remove_file(path(&self.dir, number))));
        if let Some(base) = old.base.filter(|old| self.manifest.base.as_ref().is_some_and(|new| new.file != old.file)) {
            let _ = fs::remove_file(self.dir.join(base.file));
        }
        Ok(true)
    }

    fn is_before_replaced(&self, position: u64) -> bool {
        self.replaced.is_some_and(|replaced| position < replaced.position)
    }

    /// The name of a state's file: another one than that of the state before, also of one at the same position.
    fn state_name(&self, position: u64) -> String {
        let name = format!("state-{position}-{}", self.replaced.map_or(0, |replaced| replaced.segment));
        let is_taken = self.manifest.base.as_ref().is_some_and(|base| base.file == name);
        if is_taken { format!("{name}-again") } else { name }
    }
}

/// What stops the reading of a log.
enum Stop {
    /// Another state begins here, which is not stored.
    OtherState,
    /// Decisions are missing.
    Gap,
}

/// Follows a log from its manifest on.
struct Reader {
    membership: Option<Membership>,
    is_whole: bool,
    base: u64,
    /// The last position in the segments.
    last: Option<u64>,
}

impl Reader {
    fn last(&self) -> u64 {
        self.last.unwrap_or(0).max(self.base)
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), Stop> {
        match record {
            Record::Member { start, .. } if *start > self.last() => return Err(Stop::Gap),
            Record::Member { membership, start } => {
                (self.membership, self.is_whole, self.last) = (Some(membership.clone()), true, Some(*start));
            }
            Record::Decision { position, .. } => {
                let follows = self.last.map_or(*position <= self.base + 1, |last| *position == last + 1);
                if !follows {
                    return Err(Stop::Gap);
                }
                self.last = Some(*position);
            }
            Record::Payload { .. } | Record::State => {}
        }
        Ok(())
    }
}

fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:08}.seg"))
}

/// Reads a segment from the disk itself: after a sync that failed, the kernel's memory has what the disk has not.
fn read(path: &Path) -> Result<Vec<u8>, LogError> {
    let read = || {
        let mut file = fs::File::options().read(true).write(true).open(path)?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|why| LogError::Io { path: path.to_owned(), why })
}

/// The numbers of the segments that are there, in order.
fn segments(dir: &Path) -> Result<Vec<u64>, LogError> {
    let io = |why| LogError::Io { path: dir.to_owned(), why };
    let mut numbers = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let name = entry.map_err(io)?.file_name();
        let number: Option<u64> =
            name.to_str().and_then(|name| name.strip_suffix(".seg")).and_then(|it| it.parse().ok());
        numbers.extend(number);
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// States that are not the log's any more, or never became it.
fn remove_left_over(dir: &Path, manifest: &Manifest) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        let is_state = name.to_str().is_some_and(|name| name.starts_with("state") || name.ends_with(".new"));
        let is_base = manifest.base.as_ref().is_some_and(|base| name == base.file.as_str());
        if is_state && !is_base {
            fs::remove_file(dir.join(name))?;
        }
    }
    Ok(())
}

/// Opens a segment to append after its first `written` bytes, or begins one. Returns where to write.
fn begin(dir: &Path, number: u64, written: u64) -> Result<(fs::File, u64), LogError> {
    let path = path(dir, number);
    let open = || {
        let mut file = fs::OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
        // What is left of a write that was cut off must not be taken for a record later.
        file.set_len(written)?;
        let head = record::segment_head(number);
        if written == 0 {
            file.write_all(&head)?;
        }
        file.sync_all()?;
        files::sync_dir(dir)?;
        Ok((file, written.max(head.len() as u64)))
    };
    open().map_err(|why| LogError::Io { path: path.clone(), why })
}

/// The stored state is there, and as it was written.
fn check_base(dir: &Path, base: &Base) -> Result<(), LogError> {
    let path = dir.join(&base.file);
    let io = |why| LogError::Io { path: path.clone(), why };
    let damaged = |why| Err(LogError::Damaged { path: path.clone(), at: 0, why });
    if fs::metadata(&path).map_err(io)?.len() != base.bytes {
        return damaged("it has another length than was stored");
    }
    if checksum(&path).map_err(io)? == base.crc32c { Ok(()) } else { damaged("its checksum does not fit") }
}

/// The CRC-32C of a file, of any length.
fn checksum(path: &Path) -> io::Result<u32> {
    let (mut file, mut sum) = (fs::File::open(path)?, 0);
    let mut bytes = vec![0; 1 << 20];
    loop {
        match file.read(&mut bytes)? {
            0 => return Ok(sum),
            len => sum = crc32c::crc32c_append(sum, &bytes[..len]),
        }
    }
}

#[cfg(test)]
mod tests;
