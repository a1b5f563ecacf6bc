// SPDX-License-Identifier: Apache-2.0
//! Reads the decisions of a log again, after its stored state.

use std::{
    collections::VecDeque,
    fs,
    path::{Path, PathBuf},
};

use fide_agreement::Identity;

use super::{
    Log, LogError, path,
    record::{self, Record},
};

/// A user's state on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredState {
    /// Of the last decision in it.
    pub position: u64,
    pub path: PathBuf,
    /// What was given with the file.
    pub beside: Vec<u8>,
}

/// With their identities.
type Payloads = Vec<(Identity, Vec<u8>)>;

/// The stored state of a log, and the decisions since, in order.
#[derive(Debug)]
pub(crate) struct Replay {
    /// None at the beginning of a group.
    base: Option<StoredState>,
    base_position: u64,
    dir: PathBuf,
    /// Decisions up to this one are replayed.
    until: u64,
    /// Segments to be read, with their numbers.
    segments: VecDeque<(u64, PathBuf)>,
    /// For each membership in the log: the records before it that it makes void are those after this position.
    voids: Vec<(u64, u64)>,
    /// Records read so far.
    read: u64,
    /// Of the segment that was read last: what is left of it.
    queue: VecDeque<(u64, Vec<u8>, Payloads)>,
    payloads: Payloads,
    value: Vec<u8>,
    position: u64,
}

impl Replay {
    /// `until`: the position of the group as it goes on.
    pub(crate) fn new(log: &Log, until: u64) -> Result<Self, LogError> {
        let numbers = log.done.iter().map(|segment| segment.number).chain([log.number]);
        let segments: VecDeque<(u64, PathBuf)> = numbers.map(|number| (number, path(&log.dir, number))).collect();
        let (mut voids, mut count) = (Vec::new(), 0);
        for (number, path) in &segments {
            let bytes = read(path)?;
            let end = record::scan(&bytes, *number, |_, record| {
                count += 1;
                if let Record::Member { start, .. } = record {
                    voids.push((count, start));
                }
                Ok::<_, LogError>(())
            });
            end?;
        }
        let base = log.manifest.base.as_ref().map(|base| StoredState {
            position: base.position,
            path: log.dir.join(&base.file),
            beside: from_hex(&base.beside),
        });
        let base_position = base.as_ref().map_or(0, |base| base.position);
        Ok(Self {
            dir: log.dir.clone(),
            base,
            base_position,
            until,
            segments,
            voids,
            read: 0,
            queue: VecDeque::new(),
            payloads: Vec::new(),
            value: Vec::new(),
            position: base_position,
        })
    }

    /// The stored state, until it is taken.
    pub(crate) fn base(&self) -> Option<&StoredState> {
        self.base.as_ref()
    }

    pub(crate) fn take_base(&mut self) -> Option<StoredState> {
        self.base.take()
    }

    /// Whether everything was replayed.
    pub(crate) fn is_over(&self) -> bool {
        self.base.is_none() && self.position >= self.until
    }

    /// The position of the user's state.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// Goes on to the next decision, which [`Replay::last`] then has. Whether there is one.
    pub(crate) fn next(&mut self) -> Result<bool, LogError> {
        while self.position < self.until {
            if let Some((position, value, payloads)) = self.queue.pop_front() {
                if position != self.position + 1 {
                    // Once more in the next call: nothing follows a hole.
                    self.queue.push_front((position, value, payloads));
                    let (path, why) = (self.dir.clone(), "decisions are missing in it");
                    return Err(LogError::Damaged { path, at: 0, why });
                }
                (self.position, self.value, self.payloads) = (position, value, payloads);
                return Ok(true);
            }
            let Some((number, path)) = self.segments.front().cloned() else {
                let (path, why) = (self.dir.clone(), "decisions are missing at its end");
                return Err(LogError::Damaged { path, at: 0, why });
            };
            self.read_segment(number, &path)?;
            self.segments.pop_front();
        }
        Ok(false)
    }

    /// The decision that was read last: its position and value.
    pub(crate) fn last(&self) -> (u64, &[u8]) {
        (self.position, &self.value)
    }

    fn read_segment(&mut self, number: u64, path: &Path) -> Result<(), LogError> {
        let bytes = read(path)?;
        let mut payloads = Vec::new();
        let Self { voids, read, queue, base_position, until, .. } = self;
        record::scan(&bytes, number, |_, record| {
            *read += 1;
            match record {
                Record::Payload { identity, bytes } => payloads.push((identity, bytes.to_vec())),
                Record::Decision { position, value } => {
                    let payloads = std::mem::take(&mut payloads);
                    let is_void = voids.iter().any(|(at, start)| *at > *read && *start < position);
                    if !is_void && position > *base_position && position <= *until {
                        queue.push_back((position, value.to_vec(), payloads));
                    }
                }
                Record::Member { .. } | Record::State => {}
            }
            Ok::<_, LogError>(())
        })?;
        Ok(())
    }

    /// A payload that the last decision names.
    pub(crate) fn payload(&self, identity: &Identity) -> Option<&[u8]> {
        self.payloads.iter().find(|(named, _)| named == identity).map(|(_, bytes)| bytes.as_slice())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LogError> {
    fs::read(path).map_err(|why| LogError::Io { path: path.to_owned(), why })
}

fn from_hex(digits: &str) -> Vec<u8> {
    let value = |digit: u8| (digit as char).to_digit(16).unwrap_or(0) as u8;
    digits.as_bytes().as_chunks().0.iter().map(|[high, low]| value(*high) << 4 | value(*low)).collect()
}
