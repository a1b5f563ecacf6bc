// SPDX-License-Identifier: Apache-2.0
//! A witness' memory: its vote, stored before it is sent, and how often it has started as this incarnation.
//!
//! ```json
//! {"format": 1, "lives": 2, "hosts": ["h1", "h2", "w"], "vote": {"incarnation": 1790000000, "id": {...}, "members": {...}, "wait_us": 9000,
//!  "promised": 0, "accepted": null, "binds_us": 0, "promise_us": 63000}}
//! ```
//!
//! **Other versions.** A missing field gets no default: the promises of an earlier version that did not
//! store them are not known, and a guess that is too short would end a lease too early. A higher `format`
//! may hold promises that this version would forget. Both are refused, with the remedy.
//!
//! **The stored promise is at least the one that binds**, and not always equal: that one shrinks from turn
//! to turn while an earlier life's promise runs out, and storing each value would have the loop wait for
//! its disk in every turn. The next change of the vote stores its present value.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use fide_detector::Vote;
use serde::{Deserialize, Serialize};

const FILE: &str = "vote.json";
/// Raised when a version stores data that earlier ones must not ignore.
const FORMAT: u32 = 1;

/// Why a witness cannot begin, or go on.
#[derive(Debug, thiserror::Error)]
pub enum VoteError {
    #[error("{path}: {why}; a witness must remember its vote there (state_dir in the configuration)")]
    Io { path: PathBuf, why: io::Error },
    #[error(
        "{path} holds no vote: {why}; restore it, or remove it: the witness is then another one, which the others have to let in"
    )]
    Damaged { path: PathBuf, why: String },
    #[error(
        "{path} was written by an earlier version, which did not store all that it promised ({why}): stop that version on every host, \
         then remove the file: the witness is then another one, which the others have to let in"
    )]
    Earlier { path: PathBuf, why: String },
    #[error(
        "{path} was written by a later version (format {format}, this one knows {FORMAT}): start that version again, or remove the file: \
         the witness is then another one, which the others have to let in"
    )]
    Later { path: PathBuf, format: u32 },
    #[error(
        "{path} is a vote among {}, in this order, and the configuration has {}: restore the configuration, or remove the file: the \
         witness is then another one, which the others have to let in", .stored.join(", "), .configured.join(", ")
    )]
    Hosts { path: PathBuf, stored: Vec<String>, configured: Vec<String> },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    #[serde(default = "first_format")]
    format: u32,
    lives: u32,
    /// The hosts that the vote refers to: it refers to hosts by position.
    hosts: Vec<String>,
    vote: Vote,
}

/// The format of files that name none.
fn first_format() -> u32 {
    1
}

/// Decides whether this version may read the rest.
#[derive(Deserialize)]
struct Head {
    #[serde(default = "first_format")]
    format: u32,
}

impl Record {
    fn parse(bytes: &[u8], path: &Path) -> Result<Self, VoteError> {
        let damaged = |error: &serde_json::Error| VoteError::Damaged { path: path.to_owned(), why: error.to_string() };
        let head: Head = serde_json::from_slice(bytes).map_err(|error| damaged(&error))?;
        if head.format > FORMAT {
            return Err(VoteError::Later { path: path.to_owned(), format: head.format });
        }
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(|error| damaged(&error))?;
        let is_a_vote = value["lives"].is_u64() && value["vote"]["incarnation"].is_u64();
        Self::deserialize(value).map_err(|error| match error.to_string() {
            why if is_a_vote && why.starts_with("missing field") => VoteError::Earlier { path: path.to_owned(), why },
            why => VoteError::Damaged { path: path.to_owned(), why },
        })
    }

    /// Whether `vote` may be sent while this is stored.
    fn covers(&self, lives: u32, vote: &Vote) -> bool {
        let same = Vote { promise_us: self.vote.promise_us, ..*vote } == self.vote;
        self.lives == lives && same && self.vote.promise_us >= vote.promise_us
    }
}

/// The file, and its content.
#[derive(Debug)]
pub struct Votes {
    dir: PathBuf,
    hosts: Vec<String>,
    stored: Option<Record>,
    lives: u32,
}

impl Votes {
    /// The stored vote in `dir`, if there is one. `hosts`: the names of all, in the order of their ids.
    ///
    /// # Errors
    /// [`VoteError`]: the file holds no vote, or one among other hosts, or cannot be read.
    pub fn open(dir: &Path, hosts: Vec<String>) -> Result<Self, VoteError> {
        let path = dir.join(FILE);
        let stored: Option<Record> = match fs::read(&path) {
            Ok(bytes) => Some(Record::parse(&bytes, &path)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(why) => return Err(VoteError::Io { path, why }),
        };
        if let Some(stored) = stored.as_ref().filter(|stored| stored.hosts != hosts) {
            return Err(VoteError::Hosts { path, stored: stored.hosts.clone(), configured: hosts });
        }
        let lives = stored.as_ref().map_or(0, |record| record.lives);
        Ok(Self { dir: dir.to_path_buf(), hosts, stored, lives })
    }

    /// Begins another life of the vote's incarnation. Returns the vote, and the number of the life; none if
    /// there is no vote.
    pub fn recall(&mut self) -> Option<(Vote, u32)> {
        let Record { vote, lives, .. } = *self.stored.as_ref()?;
        self.lives = lives.saturating_add(1);
        Some((vote, self.lives))
    }

    /// Stores the vote before it returns, with a promise that is at least this one. Does nothing if that is
    /// stored already.
    ///
    /// # Errors
    /// [`VoteError`]: the vote must not be sent.
    pub fn store(&mut self, vote: &Vote) -> Result<(), VoteError> {
        if self.stored.as_ref().is_some_and(|stored| stored.covers(self.lives, vote)) {
            return Ok(());
        }
        let record = Record { format: FORMAT, lives: self.lives, hosts: self.hosts.clone(), vote: *vote };
        let (path, new) = (self.dir.join(FILE), self.dir.join("vote.new"));
        let write = || -> io::Result<()> {
            fs::create_dir_all(&self.dir)?;
            let mut file = fs::File::create(&new)?;
            file.write_all(&serde_json::to_vec(&record)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            fs::File::open(&self.dir)?.sync_all()
        };
        write().map_err(|why| VoteError::Io { path: path.clone(), why })?;
        self.stored = Some(record);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_wire::{Membership, ViewId};

    fn open(dir: &Path, hosts: &[&str]) -> Result<Votes, VoteError> {
        Votes::open(dir, hosts.iter().map(|host| (*host).to_owned()).collect())
    }

    fn vote(incarnation: u32, promised: u32) -> Vote {
        let mut members = Membership::EMPTY;
        members.insert(3, incarnation);
        let id = ViewId { generation: incarnation, number: 1 };
        let accepted = Some((promised, members));
        Vote { incarnation, id, members, wait_us: 9000, promised, accepted, binds_us: 5000, promise_us: 63_000 }
    }

    #[test]
    fn vote_survives_a_restart_as_another_life() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut votes = open(dir.path(), &["a", "b", "w"]).expect("none yet");
        assert_eq!(votes.recall(), None);
        votes.store(&vote(7, 256)).expect("stored");
        for life in 1..=2 {
            let mut votes = open(dir.path(), &["a", "b", "w"]).expect("one");
            assert_eq!(votes.recall(), Some((vote(7, 256), life)));
            // The new life has to be stored too, before anything is sent.
            votes.store(&vote(7, 256)).expect("stored");
        }
    }

    /// Each file that is found is removed, so that every write shows.
    fn has_written(dir: &Path) -> bool {
        fs::remove_file(dir.join(FILE)).is_ok()
    }

    #[test]
    fn shrinking_promise_is_not_written_every_turn() {
        let dir = tempfile::tempdir().expect("temporary directory");
        open(dir.path(), &["a", "b", "w"]).expect("none yet").store(&vote(7, 256)).expect("stored");
        let mut votes = open(dir.path(), &["a", "b", "w"]).expect("one");
        votes.recall().expect("a vote");
        // The earlier life's promise runs out, turn by turn.
        let mut written = 0;
        for promise_us in (3_300..=63_000).rev().step_by(100) {
            votes.store(&Vote { promise_us, ..vote(7, 256) }).expect("stored");
            written += usize::from(has_written(dir.path()));
        }
        assert_eq!(written, 1, "that it lives again");
        votes.store(&Vote { promise_us: 63_001, ..vote(7, 256) }).expect("stored");
        assert!(has_written(dir.path()), "a longer promise");
        votes.store(&Vote { promise_us: 3_300, ..vote(7, 257) }).expect("stored");
        let stored = open(dir.path(), &["a", "b", "w"]).expect("one").stored.expect("one");
        assert_eq!(
            stored.vote,
            Vote { promise_us: 3_300, ..vote(7, 257) },
            "with the next change it is the one that holds"
        );
    }

    #[test]
    fn files_of_other_versions_are_refused_with_the_remedy() {
        let dir = tempfile::tempdir().expect("temporary directory");
        open(dir.path(), &["w"]).expect("none yet").store(&vote(7, 256)).expect("stored");
        let path = dir.path().join(FILE);
        let now: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
        let refusal = |change: &dyn Fn(&mut serde_json::Value)| {
            let mut other = now.clone();
            change(&mut other);
            fs::write(&path, other.to_string()).expect("written");
            open(dir.path(), &["w"]).map(|_| ()).map_err(|error| error.to_string())
        };
        // As it was before promises had a length.
        for field in ["wait_us", "binds_us", "promise_us"] {
            let error = refusal(&|file| drop(file["vote"].as_object_mut().expect("an object").remove(field)));
            let error = error.expect_err("nothing is known of what it promised");
            assert!(
                error.contains("an earlier version") && error.contains(field) && error.contains("remove"),
                "{error}"
            );
        }
        let error = refusal(&|file| file["format"] = 2.into()).expect_err("of a later version");
        assert!(error.contains("a later version (format 2") && error.contains("start that version again"), "{error}");
        assert_eq!(refusal(&|file| drop(file.as_object_mut().expect("an object").remove("format"))), Ok(()));
    }

    #[test]
    fn vote_among_other_hosts_is_refused() {
        let dir = tempfile::tempdir().expect("temporary directory");
        open(dir.path(), &["a", "b", "w"]).expect("none yet").store(&vote(7, 256)).expect("stored");
        let why = open(dir.path(), &["b", "a", "w"]).expect_err("their places have changed").to_string();
        assert!(
            why.contains("among a, b, w") && why.contains("has b, a, w") && why.contains("remove the file"),
            "{why}"
        );
        assert!(open(dir.path(), &["a", "b", "c", "w"]).is_err());
        assert!(open(dir.path(), &["a", "b", "w"]).is_ok());
    }

    #[test]
    fn invalid_vote_is_not_taken_for_none() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join(FILE), b"{\"lives\": 1, \"hosts\": []}").expect("written");
        let error = open(dir.path(), &[]).expect_err("damaged").to_string();
        assert!(error.contains("missing field `vote`") && error.contains("restore it"), "{error}");
    }

    #[test]
    fn failure_to_store_is_reported() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("file");
        fs::write(&file, b"").expect("written");
        let mut votes = Votes { dir: file, hosts: Vec::new(), stored: None, lives: 0 };
        assert!(votes.store(&vote(1, 0)).expect_err("no directory").to_string().contains("must remember its vote"));
    }
}
