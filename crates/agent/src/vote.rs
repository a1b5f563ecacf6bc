// SPDX-License-Identifier: Apache-2.0
//! What a witness remembers: its vote on disk before it says it, and how often it has started as this incarnation.
//!
//! ```json
//! {"lives": 2, "hosts": ["h1", "h2", "w"], "vote": {"incarnation": 1790000000, "id": {...}, "members": {...}, "promised": 0, "accepted": null}}
//! ```

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use fide_detector::Vote;
use serde::{Deserialize, Serialize};

const FILE: &str = "vote.json";

/// Why a witness cannot begin, or go on.
#[derive(Debug, thiserror::Error)]
pub enum VoteError {
    #[error("{path}: {source}; a witness must remember its vote there (state_dir in the configuration)")]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{path} holds no vote: {why}; restore it, or remove it: the witness is then another one, which the others have to let in"
    )]
    Damaged { path: PathBuf, why: String },
    #[error(
        "{path} is a vote among {}, in this order, and the configuration has {}: restore the configuration, or remove the file: the \
         witness is then another one, which the others have to let in", .stored.join(", "), .configured.join(", ")
    )]
    Hosts { path: PathBuf, stored: Vec<String>, configured: Vec<String> },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    lives: u32,
    /// Whom the vote means: it knows hosts by their places.
    hosts: Vec<String>,
    vote: Vote,
}

/// The file, and what it holds.
#[derive(Debug)]
pub struct Votes {
    dir: PathBuf,
    hosts: Vec<String>,
    stored: Option<Record>,
    lives: u32,
}

impl Votes {
    /// What was stored in `dir`, if anything was. `hosts`: the names of all, in the order of their ids.
    ///
    /// # Errors
    /// [`VoteError`]: what is there is no vote, is one among other hosts, or cannot be read.
    pub fn open(dir: &Path, hosts: Vec<String>) -> Result<Self, VoteError> {
        let path = dir.join(FILE);
        let stored: Option<Record> = match fs::read(&path) {
            Ok(bytes) => match serde_json::from_slice(&bytes) {
                Ok(record) => Some(record),
                Err(error) => return Err(VoteError::Damaged { path, why: error.to_string() }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(VoteError::Io { path, source }),
        };
        if let Some(stored) = stored.as_ref().filter(|stored| stored.hosts != hosts) {
            return Err(VoteError::Hosts { path, stored: stored.hosts.clone(), configured: hosts });
        }
        let lives = stored.as_ref().map_or(0, |record| record.lives);
        Ok(Self { dir: dir.to_path_buf(), hosts, stored, lives })
    }

    /// Another life of the incarnation that the vote is of: the vote, and which life. None if there is no vote.
    pub fn recall(&mut self) -> Option<(Vote, u32)> {
        let Record { vote, lives, .. } = *self.stored.as_ref()?;
        self.lives = lives.saturating_add(1);
        Some((vote, self.lives))
    }

    /// On disk when it returns; nothing is done where it is already.
    ///
    /// # Errors
    /// [`VoteError`]: the vote must not be said.
    pub fn store(&mut self, vote: &Vote) -> Result<(), VoteError> {
        if self.stored.as_ref().is_some_and(|stored| stored.lives == self.lives && stored.vote == *vote) {
            return Ok(());
        }
        let record = Record { lives: self.lives, hosts: self.hosts.clone(), vote: *vote };
        let (path, new) = (self.dir.join(FILE), self.dir.join("vote.new"));
        let write = || -> io::Result<()> {
            fs::create_dir_all(&self.dir)?;
            let mut file = fs::File::create(&new)?;
            file.write_all(&serde_json::to_vec(&record)?)?;
            file.sync_all()?;
            fs::rename(&new, &path)?;
            fs::File::open(&self.dir)?.sync_all()
        };
        write().map_err(|source| VoteError::Io { path: path.clone(), source })?;
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
    fn a_vote_is_there_after_a_restart_which_is_another_life() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut votes = open(dir.path(), &["a", "b", "w"]).expect("none yet");
        assert_eq!(votes.recall(), None);
        votes.store(&vote(7, 256)).expect("stored");
        for life in 1..=2 {
            let mut votes = open(dir.path(), &["a", "b", "w"]).expect("one");
            assert_eq!(votes.recall(), Some((vote(7, 256), life)));
            // That it lives is to be stored too, before it says anything.
            votes.store(&vote(7, 256)).expect("stored");
        }
    }

    #[test]
    fn a_vote_among_others_is_refused() {
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
    fn what_is_no_vote_is_not_taken_for_none() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join(FILE), b"{\"lives\": 1, \"hosts\": []}").expect("written");
        let error = open(dir.path(), &[]).expect_err("damaged").to_string();
        assert!(error.contains("missing field `vote`") && error.contains("restore it"), "{error}");
    }

    #[test]
    fn what_cannot_be_stored_is_said() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("file");
        fs::write(&file, b"").expect("written");
        let mut votes = Votes { dir: file, hosts: Vec::new(), stored: None, lives: 0 };
        assert!(votes.store(&vote(1, 0)).expect_err("no directory").to_string().contains("must remember its vote"));
    }
}
