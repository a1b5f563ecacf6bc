// SPDX-License-Identifier: Apache-2.0
//! Damaged files, and disks that are full.

use super::*;
use crate::testing::{CHILD, as_child, eventually};
use std::process::Command;

fn written(path: &std::path::Path) -> Loaded {
    let mut store = Redb::open(path).unwrap();
    store.load(1).unwrap();
    store.append(1, &batch(1, 20)).unwrap();
    store.snapshot(20, &record(77)).unwrap();
    store.append(21, &batch(21, 10)).unwrap();
    store.load(1).unwrap()
}

#[test]
fn foreign_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = redb_file(dir.path());
    std::fs::write(&path, "this is not a database\n".repeat(1000)).unwrap();
    let refused = Redb::open(&path).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
    assert!(refused.to_string().contains(path.to_str().unwrap()) && refused.to_string().contains("backup"));
    let missing = Redb::open(&dir.path().join("no/such/dir")).unwrap_err();
    assert!(matches!(missing, Error::Io { .. }), "{missing}");
}

#[test]
fn interrupted_first_start_is_begun_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = redb_file(dir.path());
    std::fs::write(dir.path().join("state.redb.new"), vec![0; 5000]).unwrap();
    let loaded = written(&path);
    assert_eq!(loaded.last(), 30);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn newer_layout_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = redb_file(dir.path());
    let loaded = written(&path);
    let set = |format: u64| {
        let database = eventually("the file is free", || ::redb::Database::open(&path).ok());
        let write = database.begin_write().unwrap();
        write.open_table(::redb::TableDefinition::<&str, u64>::new("meta")).unwrap().insert("format", format).unwrap();
        write.commit().unwrap();
    };
    set(FORMAT + 1);
    let refused = eventually("the file is free", || match Redb::open(&path).unwrap_err() {
        Error::InUse { .. } => None,
        other => Some(other),
    });
    assert_eq!(refused, Error::TooNew { place: path.display().to_string(), found: FORMAT + 1 });
    set(FORMAT);
    assert_eq!(reopen(&path).load(1).unwrap(), loaded);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(250))]
    /// Bytes changed or cut off anywhere in the file: the content read is right, or there is an error;
    /// never wrong, never a panic.
    #[test]
    fn damage_is_noticed(
        spots in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..200), cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        static GOOD: std::sync::OnceLock<(Vec<u8>, Loaded)> = std::sync::OnceLock::new();
        let (good, loaded) = GOOD.get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            let path = redb_file(dir.path());
            let loaded = written(&path);
            (std::fs::read(&path).unwrap(), loaded)
        });
        let mut bytes = good.clone();
        for (at, to) in spots {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()).max(1));
        }
        // That byte selects the last commit; it is the only one without a checksum.
        let flags_hit = bytes.get(9) != good.get(9);
        let dir = tempfile::tempdir().unwrap();
        let path = redb_file(dir.path());
        std::fs::write(&path, bytes).unwrap();
        let read = Redb::open(&path).and_then(|mut store| {
            let read = store.load(2)?;
            // A file that is read can also be written.
            store.append(read.last() + 1, &batch(read.last() + 1, 3))?;
            assert_eq!(store.load(3)?.records[..read.records.len()], read.records[..]);
            Ok(read)
        });
        match read {
            Ok(read) => prop_assert!(read == *loaded || flags_hit, "{read:?}"),
            Err(e) => prop_assert!(matches!(e, Error::Corrupt { .. } | Error::Io { .. } | Error::TooNew { .. } | Error::Fenced { .. }), "{e:?}"),
        }
    }
}

#[test]
fn root_full_disk_changes_nothing() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: a small tmpfs needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // The tmpfs is in a mount namespace of the child's own and goes with it.
    let output = Command::new("unshare")
        .args(["-m", "sh", "-c", "mount -t tmpfs -o size=8m,mode=700 fide \"$1\" && exec \"$2\" --exact store::tests::damage::child_fills_the_disk --nocapture", "sh"])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("filled"), "{said}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn child_fills_the_disk() {
    let Some(dir) = as_child() else { return };
    let dir = std::path::Path::new(&dir);
    let (path, ballast) = (redb_file(dir), dir.join("ballast"));
    let mut store = Redb::open(&path).unwrap();
    let mut model = store.load(1).unwrap();
    std::fs::write(&ballast, vec![1; 2 << 20]).unwrap();
    let large = |number: u64| vec![number as u8; 50_000];
    for round in 1..=3 {
        let full = loop {
            let next = model.last() + 1;
            match store.append(next, &[large(next), record(next)]) {
                Ok(()) => model.records.extend([large(next), record(next)]),
                Err(e) => break e,
            }
            assert!(model.last() < 1000, "the disk is never full");
        };
        assert!(matches!(&full, Error::Full { place, .. } if *place == path.display().to_string()), "{full:?}");
        assert!(full.to_string().contains("make room"), "{full}");
        // Still there, by this handle and by a new one; and nothing of the batch that failed.
        match store.load(1) {
            Ok(loaded) => assert!(loaded == model),
            Err(e) => assert!(matches!(e, Error::Full { .. }), "{e:?}"),
        }
        std::fs::remove_file(&ballast).unwrap();
        assert!(store.load(1).unwrap() == model);
        drop(store);
        store = reopen(&path);
        assert!(store.load(1).unwrap() == model);
        let last = model.last();
        store.snapshot(last, b"smaller").unwrap();
        store.append(last + 1, &[record(last + 1)]).unwrap();
        model = store.load(1).unwrap();
        eprintln!("filled {round} times, {last} records");
        std::fs::write(&ballast, vec![1; 1 << 20]).unwrap();
    }
}
