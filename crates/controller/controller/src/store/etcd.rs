// SPDX-License-Identifier: Apache-2.0
//! The state in etcd, under one prefix:
//!
//! ```text
//! PREFIX/leader                    of crate::leader; its create revision is the epoch
//! PREFIX/format                    the layout
//! PREFIX/last                      number of the last record
//! PREFIX/record/00000000000000000042
//! PREFIX/snapshot                  {"through", "chunks"}
//! PREFIX/chunk/00000000000000000041/0000
//! ```
//!
//! Every transaction compares the leader key's create revision with the own epoch, and the last number with
//! the own one. So etcd itself refuses a deposed leader's writes. A transaction that is repeated because
//! its answer was lost is found done, because nobody else writes under this epoch.

use super::{Error, FORMAT, Loaded, Result, Snapshot, Store, check_batch, check_snapshot, seal, unseal};
use crate::etcd::{Client, Error as Failure, Outcome, Transaction};

/// Bytes of a value of a snapshot.
const CHUNK_BYTES: usize = 512 * 1024;
/// How often a transaction without answer is sent, the first time included; then it is
/// [`Error::Unavailable`].
const TRIES_MAX: usize = 2;

/// A place under `prefix`.
#[derive(Debug)]
pub struct Etcd {
    client: Client,
    prefix: String,
    /// Epoch and number of the last record.
    at: Option<(u64, u64)>,
    /// The present snapshot; its chunks go with it.
    snapshot: Option<u64>,
}

/// The content of `PREFIX/snapshot`.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Head {
    through: u64,
    chunks: usize,
}

/// The key that the leader of `prefix` holds.
pub(crate) fn leader_key(prefix: &str) -> String {
    format!("{prefix}/leader")
}

impl Etcd {
    /// Does not connect yet.
    pub fn new(client: Client, prefix: &str) -> Etcd {
        Etcd { client, prefix: prefix.trim_end_matches('/').to_owned(), at: None, snapshot: None }
    }

    fn key(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    fn record_key(&self, number: u64) -> String {
        self.key(&format!("record/{number:020}"))
    }

    fn chunks_key(&self, through: u64) -> String {
        self.key(&format!("chunk/{through:020}/"))
    }

    fn failed(&self, failure: Failure) -> Error {
        match failure {
            Failure::NoAnswer { .. } => Error::Unavailable { place: self.place(), why: failure.to_string() },
            Failure::Refused { ref why, .. } if why.contains("database space exceeded") => {
                Error::Full { place: self.place(), why: "etcd's quota; compact and defragment it".into() }
            }
            _ => Error::Io { place: self.place(), why: failure.to_string() },
        }
    }

    fn corrupt(&self, why: String) -> Error {
        Error::Corrupt { place: self.place(), why }
    }

    /// A transaction that only the leader of `epoch` can make. `done` is what [`Self::key`] `last` holds
    /// after it.
    fn begin(&self, epoch: u64, last: u64) -> Transaction {
        let transaction = Transaction::default().if_created(&leader_key(&self.prefix), epoch);
        let last_key = self.key("last");
        let transaction = match last {
            0 => transaction.if_created(&last_key, 0),
            last => transaction.if_value(&last_key, last.to_string().as_bytes()),
        };
        transaction.else_get(&leader_key(&self.prefix)).else_get(&last_key)
    }

    /// Runs a transaction, again if there was no answer. `done` is the number of the last record if it has
    /// taken effect.
    fn run(&self, epoch: u64, transaction: &Transaction, last: u64, done: u64) -> Result<()> {
        let mut tries = 1;
        let Outcome { succeeded, read, .. } = loop {
            match self.client.transact(transaction) {
                Ok(outcome) => break outcome,
                Err(Failure::NoAnswer { .. }) if tries < TRIES_MAX => tries += 1,
                Err(failure) => return Err(self.failed(failure)),
            }
        };
        if succeeded {
            return Ok(());
        }
        let find = |key: String| read.iter().find(move |pair| pair.key == key);
        if find(leader_key(&self.prefix)).is_none_or(|leader| leader.created != epoch) {
            return Err(Error::Fenced { place: self.place(), epoch });
        }
        let there = match find(self.key("last")) {
            None => 0,
            Some(pair) => self.number("last", &pair.value)?,
        };
        // It took effect: the answer to an earlier try was lost.
        if tries > 1 && there == done && done != last {
            return Ok(());
        }
        Err(Error::OutOfOrder { place: self.place(), last: there, got: done })
    }

    fn number(&self, key: &str, value: &[u8]) -> Result<u64> {
        let text = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
        text.ok_or_else(|| self.corrupt(format!("{} is no number", self.key(key))))
    }

    fn at(&self) -> Result<(u64, u64)> {
        self.at.ok_or_else(|| Error::NotLoaded { place: self.place() })
    }

    fn forgetting<T>(&mut self, work: impl FnOnce(&mut Etcd) -> Result<T>) -> Result<T> {
        let done = work(self);
        if done.as_ref().is_err_and(|e| !matches!(e, Error::TooLarge { .. })) {
            self.at = None;
        }
        done
    }

    /// Everything under the prefix, at one revision, and the epoch of its leader.
    fn read(&self, epoch: u64) -> Result<Loaded> {
        let pairs = self.client.range(&self.key("")).map_err(|e| self.failed(e))?;
        let find = |name: &str| {
            let key = self.key(name);
            pairs.iter().find(move |pair| pair.key == key)
        };
        if find("leader").is_none_or(|leader| leader.created != epoch) {
            return Err(Error::Fenced { place: self.place(), epoch });
        }
        match find("format").map(|pair| self.number("format", &pair.value)).transpose()? {
            Some(found) if found > FORMAT => return Err(Error::TooNew { place: self.place(), found }),
            _ => {}
        }
        let mut loaded = Loaded::default();
        if let Some(pair) = find("snapshot") {
            let head: Head = serde_json::from_slice(&pair.value)
                .map_err(|e| self.corrupt(format!("{}: {e}", self.key("snapshot"))))?;
            let chunks = self.chunks_key(head.through);
            // Chunks that are not pointed to are left by an interrupted attempt.
            let sealed: Vec<u8> = pairs
                .iter()
                .filter(|pair| pair.key.starts_with(&chunks))
                .take(head.chunks)
                .flat_map(|pair| pair.value.iter().copied())
                .collect();
            let state = unseal(head.through, &sealed)
                .ok_or_else(|| self.corrupt(format!("the checksum of snapshot {} is wrong", head.through)))?;
            loaded.snapshot = Some(Snapshot { through: head.through, state: state.to_vec() });
        }
        let records = self.key("record/");
        for pair in &pairs {
            let Some(number) = pair.key.strip_prefix(&records) else { continue };
            let next = loaded.last().saturating_add(1);
            if number.parse() != Ok(next) {
                return Err(self.corrupt(format!("record {next} is missing, {number} is there")));
            }
            let record = unseal(next, &pair.value)
                .ok_or_else(|| self.corrupt(format!("the checksum of record {next} is wrong")))?;
            loaded.records.push(record.to_vec());
        }
        let last = find("last").map_or(Ok(0), |pair| self.number("last", &pair.value))?;
        if last != loaded.last() {
            return Err(self.corrupt(format!("the last record is {}, {last} was expected", loaded.last())));
        }
        Ok(loaded)
    }
}

impl Store for Etcd {
    fn load(&mut self, epoch: u64) -> Result<Loaded> {
        self.at = None;
        let loaded = self.read(epoch)?;
        self.snapshot = loaded.snapshot.as_ref().map(|s| s.through);
        self.at = Some((epoch, loaded.last()));
        Ok(loaded)
    }

    fn append(&mut self, first: u64, records: &[Vec<u8>]) -> Result<()> {
        let (epoch, last) = self.at()?;
        check_batch(&self.place(), last, first, records)?;
        if records.is_empty() {
            return Ok(());
        }
        self.forgetting(|store| {
            let done = last + records.len() as u64;
            let mut transaction = store.begin(epoch, last).put(&store.key("last"), done.to_string().as_bytes(), 0);
            if last == 0 {
                transaction = transaction.put(&store.key("format"), FORMAT.to_string().as_bytes(), 0);
            }
            for (number, record) in (first..).zip(records) {
                transaction = transaction.put(&store.record_key(number), &seal(number, record), 0);
            }
            store.run(epoch, &transaction, last, done)?;
            store.at = Some((epoch, done));
            Ok(())
        })
    }

    fn snapshot(&mut self, through: u64, state: &[u8]) -> Result<()> {
        let (epoch, last) = self.at()?;
        check_snapshot(&self.place(), last, through, state)?;
        if through == 0 || self.snapshot == Some(through) {
            return Ok(());
        }
        self.forgetting(|store| {
            let sealed = seal(through, state);
            let prefix = store.chunks_key(through);
            // Chunks of a snapshot that is not pointed to are ignored: overwritten, or removed by a later
            // snapshot.
            for (n, chunk) in sealed.chunks(CHUNK_BYTES).enumerate() {
                let put = store.begin(epoch, last).put(&format!("{prefix}{n:04}"), chunk, 0);
                store.run(epoch, &put, last, last)?;
            }
            let head = Head { through, chunks: sealed.len().div_ceil(CHUNK_BYTES) };
            let head = serde_json::to_vec(&head).map_err(|e| store.corrupt(e.to_string()))?;
            let transaction = store
                .begin(epoch, last)
                .put(&store.key("snapshot"), &head, 0)
                .remove_range(&store.key("record/"), &store.record_key(through + 1))
                .remove_range(&store.key("chunk/"), &prefix);
            store.run(epoch, &transaction, last, last)?;
            store.snapshot = Some(through);
            Ok(())
        })
    }

    fn place(&self) -> String {
        format!("etcd {} at {}", self.prefix, self.client.endpoints())
    }
}
