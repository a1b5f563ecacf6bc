// SPDX-License-Identifier: Apache-2.0

mod damage;
mod kill;

use super::*;
use crate::testing::{EtcdServer, reopen};
use proptest::prelude::*;

/// Content of record `number`: its length and bytes follow from the number.
fn record(number: u64) -> Vec<u8> {
    (0..number * 7919 % 3000).map(|i| (number * 31 + i) as u8).collect()
}

fn batch(first: u64, count: u64) -> Vec<Vec<u8>> {
    (first..first + count).map(record).collect()
}

/// The contract of every store. `depose` begins another epoch, and returns it.
fn keeps_the_contract(store: &mut dyn Store, first_epoch: u64, mut depose: impl FnMut() -> u64) {
    let mut epoch = first_epoch;
    assert!(matches!(store.append(1, &batch(1, 1)), Err(Error::NotLoaded { .. })));
    assert_eq!(store.load(epoch), Ok(Loaded::default()));
    store.append(1, &batch(1, 3)).unwrap();
    store.append(4, &batch(4, 1)).unwrap();
    // Gaps and repeats change nothing.
    assert!(matches!(store.append(4, &batch(4, 1)), Err(Error::OutOfOrder { last: 4, .. })));
    store.load(epoch).unwrap();
    assert!(matches!(store.append(6, &batch(6, 1)), Err(Error::OutOfOrder { last: 4, .. })));
    assert_eq!(store.load(epoch).unwrap(), Loaded { snapshot: None, records: batch(1, 4) });
    // Nor do entries that are too large.
    assert!(matches!(store.append(5, &[vec![0; RECORD_MAX + 1]]), Err(Error::TooLarge { .. })));
    assert!(matches!(store.append(5, &vec![vec![]; BATCH_MAX + 1]), Err(Error::TooLarge { .. })));
    assert!(matches!(store.append(5, &vec![vec![0; RECORD_MAX]; 3]), Err(Error::TooLarge { .. })));
    assert!(matches!(store.snapshot(4, &vec![0; SNAPSHOT_MAX + 1]), Err(Error::TooLarge { .. })));
    // The largest allowed entries fit.
    store.append(5, &vec![vec![7; RECORD_MAX]; 2]).unwrap();
    store.append(7, &vec![vec![8; 100]; BATCH_MAX]).unwrap();
    let last = 6 + BATCH_MAX as u64;
    assert_eq!(store.load(epoch).unwrap().records.len() as u64, last);
    assert!(matches!(store.snapshot(last - 1, b"old"), Err(Error::OutOfOrder { .. })));
    store.load(epoch).unwrap();
    let state: Vec<u8> = (0..3_000_000u32).map(|i| (i / 7) as u8).collect();
    store.snapshot(last, &state).unwrap();
    store.append(last + 1, &batch(last + 1, 2)).unwrap();
    let loaded = store.load(epoch).unwrap();
    assert_eq!(loaded.snapshot, Some(Snapshot { through: last, state }));
    assert_eq!((loaded.records.clone(), loaded.last()), (batch(last + 1, 2), last + 2));
    store.snapshot(last + 2, b"small").unwrap();
    let small = Loaded { snapshot: Some(Snapshot { through: last + 2, state: b"small".to_vec() }), records: vec![] };
    assert_eq!(store.load(epoch).unwrap(), small);
    // A deposed leader reads and writes nothing.
    for write in [false, true] {
        let next = depose();
        assert!(next > epoch);
        if write {
            let refused = store.append(last + 3, &batch(last + 3, 1));
            assert_eq!(refused, Err(Error::Fenced { place: store.place(), epoch }));
        }
        assert_eq!(store.load(epoch), Err(Error::Fenced { place: store.place(), epoch }));
        epoch = next;
        assert_eq!(store.load(epoch).unwrap(), small);
    }
    let next = depose();
    assert!(matches!(store.snapshot(last + 2, b"not ours"), Err(Error::Fenced { .. }) | Ok(())));
    assert_eq!(store.load(next).unwrap(), small);
    store.append(last + 3, &batch(last + 3, 1)).unwrap();
}

#[test]
fn file_is_for_one_program_and_its_epochs_only_grow() {
    let dir = tempfile::tempdir().unwrap();
    let path = redb_file(dir.path());
    let mut store = Redb::open(&path).unwrap();
    assert_eq!(store.last_epoch(), Ok(0));
    // Only one program has the file open, so an epoch ends where the next begins: another `load`, here with
    // the same epoch.
    let in_use = Redb::open(&path).unwrap_err();
    assert_eq!(in_use, Error::InUse { place: path.display().to_string() });
    store.load(5).unwrap();
    assert!(matches!(store.load(4), Err(Error::Fenced { epoch: 4, .. })));
    assert_eq!(store.last_epoch(), Ok(5));
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
}

/// Drives a file through the contract: an epoch is ended by a second handle, which a file allows only between
/// two calls.
struct Reopened {
    path: PathBuf,
    store: Option<Redb>,
}

impl Store for Reopened {
    fn load(&mut self, epoch: u64) -> Result<Loaded> {
        self.store = None;
        self.store = Some(reopen(&self.path));
        self.store.as_mut().unwrap().load(epoch)
    }
    fn append(&mut self, first: u64, records: &[Vec<u8>]) -> Result<()> {
        match &mut self.store {
            Some(store) => store.append(first, records),
            None => Err(Error::NotLoaded { place: self.place() }),
        }
    }
    fn snapshot(&mut self, through: u64, state: &[u8]) -> Result<()> {
        self.store.as_mut().unwrap().snapshot(through, state)
    }
    fn place(&self) -> String {
        self.path.display().to_string()
    }
}

#[test]
fn file_keeps_the_contract_across_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut store = Reopened { path: redb_file(dir.path()), store: None };
    store.load(1).unwrap();
    store.append(1, &batch(1, 2)).unwrap();
    store.load(2).unwrap();
    store.append(3, &batch(3, 2)).unwrap();
    assert_eq!(store.load(3).unwrap().records, batch(1, 4));
    store.snapshot(4, b"four").unwrap();
    store.append(5, &batch(5, 1)).unwrap();
    let all = Loaded { snapshot: Some(Snapshot { through: 4, state: b"four".to_vec() }), records: batch(5, 1) };
    assert_eq!(store.load(4).unwrap(), all);
    assert!(matches!(store.load(3), Err(Error::Fenced { .. })));
}

#[test]
fn etcd_keeps_the_contract() {
    let Some(server) = EtcdServer::start() else { return };
    let client = server.client();
    let lead = || {
        let key = leader_key("/fide/test");
        let free = crate::etcd::Transaction::default().remove_range(&key, &(key.clone() + "\0"));
        client.transact(&free).unwrap();
        client.transact(&crate::etcd::Transaction::default().put(&key, b"me", 0)).unwrap().revision
    };
    let epoch = lead();
    keeps_the_contract(&mut Etcd::new(client.clone(), "/fide/test"), epoch, lead);
    // Other keys in etcd do not matter, but a newer layout does.
    let put = |key: &str, value: &[u8]| {
        client.transact(&crate::etcd::Transaction::default().put(key, value, 0)).unwrap();
    };
    put("/fide/testing/record/x", b"?");
    let epoch = lead();
    let mut store = Etcd::new(client.clone(), "/fide/test/");
    store.load(epoch).unwrap();
    put("/fide/test/format", b"2");
    assert!(matches!(store.load(epoch), Err(Error::TooNew { found: 2, .. })));
    put("/fide/test/format", b"1");
    put("/fide/test/record/00000000000000000999", b"?");
    assert!(store.load(epoch).unwrap_err().to_string().contains("is missing"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    /// Any order of calls, right and wrong ones, with restarts in between: the file behaves like a list.
    #[test]
    fn file_behaves_like_a_list(steps in prop::collection::vec((0..6u8, 0..5u64, 0..3u64), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let path = redb_file(dir.path());
        let mut store = Redb::open(&path).unwrap();
        let (mut epoch, mut model) = (1, Loaded::default());
        prop_assert_eq!(store.load(epoch).unwrap(), model.clone());
        for (step, count, off) in steps {
            let first = model.last() + 1;
            match step {
                0..=2 => {
                    let done = store.append(first + off, &batch(first + off, count));
                    prop_assert_eq!(done.is_ok(), off == 0, "{:?}", done);
                    if off == 0 {
                        model.records.extend(batch(first, count));
                    }
                }
                3 => {
                    let done = store.snapshot(model.last() + off, &record(count));
                    prop_assert_eq!(done.is_ok(), off == 0);
                    if off == 0 {
                        model = Loaded { snapshot: Some(Snapshot { through: model.last(), state: record(count) }), records: vec![] };
                    }
                }
                4 => {
                    epoch += off;
                    prop_assert_eq!(store.load(epoch).unwrap(), model.clone());
                }
                _ => {
                    drop(store);
                    store = reopen(&path);
                    prop_assert_eq!(store.last_epoch().unwrap(), epoch);
                    prop_assert_eq!(store.load(epoch).unwrap(), model.clone());
                }
            }
        }
        prop_assert_eq!(store.load(epoch).unwrap(), model);
    }
}
