// SPDX-License-Identifier: Apache-2.0

use fide_agreement::ViewMember;

use super::*;

const GROUP: u64 = 7;

fn view(number: u32) -> View {
    View::new(number, &[ViewMember { host: 1, incarnation: 10 + number }, ViewMember { host: 2, incarnation: 20 }])
        .unwrap()
}

fn open(dir: &Path) -> (Log, Found) {
    Log::open(dir, GROUP, 5).unwrap()
}

/// The log of a host in its first view.
fn begun(dir: &Path) -> Log {
    let (mut log, _) = open(dir);
    log.append_member(11, 0, &view(1), 0);
    log
}

fn write(log: &mut Log, positions: std::ops::RangeInclusive<u64>) {
    for position in positions {
        log.append_decision(position, format!("value {position}").as_bytes());
    }
}

/// Position of the stored state, and the decisions after it.
fn replayed(log: &Log, until: u64) -> (Option<u64>, Vec<(u64, String)>) {
    let mut replay = Replay::new(log, until).unwrap();
    let base = replay.take_base().map(|base| base.position);
    let mut all = Vec::new();
    while replay.next().unwrap() {
        let (position, value) = replay.last();
        all.push((position, String::from_utf8(value.to_vec()).unwrap()));
    }
    assert!(replay.is_over());
    (base, all)
}

fn expected(positions: std::ops::RangeInclusive<u64>) -> Vec<(u64, String)> {
    positions.map(|position| (position, format!("value {position}"))).collect()
}

#[test]
fn what_was_synced_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, found) = open(dir.path());
    assert_eq!((found.recalled, found.decisions), (Recalled { first: 5, member: None }, 0));
    log.append_member(11, 3, &view(1), 0);
    write(&mut log, 1..=4);
    log.sync().unwrap();
    write(&mut log, 5..=6);
    drop(log);
    let (log, found) = open(dir.path());
    let member = found.recalled.member.unwrap();
    assert_eq!((member.incarnation, member.ballot, member.view, member.position), (11, 3, view(1), Some(4)));
    assert_eq!((found.recalled.first, found.decisions), (5, 4), "a later incarnation opens the same log");
    assert_eq!(replayed(&log, 4), (None, expected(1..=4)));
}

#[test]
fn a_view_makes_later_positions_void() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = begun(dir.path());
    write(&mut log, 1..=6);
    log.append_member(12, 0, &view(2), 4);
    log.append_decision(5, b"another");
    log.sync().unwrap();
    let (log, found) = {
        drop(log);
        open(dir.path())
    };
    assert_eq!(found.recalled.member.unwrap().position, Some(5));
    let mut want = expected(1..=4);
    want.push((5, "another".to_owned()));
    assert_eq!(replayed(&log, 5), (None, want));
}

#[test]
fn stored_state_takes_the_place_of_what_was_before() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = begun(dir.path());
    write(&mut log, 1..=9);
    // Also a state that is older than the end of the log.
    log.store_base(7, b"seven").unwrap();
    let (mut log, found) = {
        drop(log);
        open(dir.path())
    };
    assert_eq!((found.decisions, found.recalled.member.clone().unwrap().position), (2, Some(9)));
    assert_eq!(replayed(&log, 9), (Some(7), expected(8..=9)));
    write(&mut log, 10..=10);
    log.store_base(10, b"ten").unwrap();
    assert!(!dir.path().join("state-7-0").exists() && !path(dir.path(), 1).exists(), "what is not needed goes");
    let (log, found) = {
        drop(log);
        open(dir.path())
    };
    assert_eq!((found.decisions, found.recalled.member.unwrap().view), (0, view(1)));
    assert_eq!(replayed(&log, 10), (Some(10), Vec::new()));
}

#[test]
fn state_of_others_counts_once_it_is_stored() {
    let dir = tempfile::tempdir().unwrap();
    for is_stored in [false, true] {
        let dir = dir.path().join(is_stored.to_string());
        let mut log = begun(&dir);
        write(&mut log, 1..=3);
        log.sync().unwrap();
        let kept = RecalledMember { incarnation: 11, ballot: 0, view: view(1), position: None };
        log.replace_state(50, Recalled { first: 5, member: Some(kept) }).unwrap();
        write(&mut log, 51..=52);
        log.append_member(15, 0, &view(6), 52);
        write(&mut log, 53..=54);
        log.sync().unwrap();
        if is_stored {
            log.store_base(53, b"state").unwrap();
            write(&mut log, 55..=55);
            log.sync().unwrap();
        }
        drop(log);
        let (log, found) = open(&dir);
        let member = found.recalled.member.unwrap();
        if is_stored {
            assert_eq!((member.incarnation, member.view, member.position), (15, view(6), Some(55)));
            assert_eq!(replayed(&log, 55), (Some(53), expected(54..=55)));
        } else {
            assert_eq!((member.incarnation, member.view, member.position), (11, view(1), Some(3)));
            assert_eq!(replayed(&log, 3), (None, expected(1..=3)));
        }
    }
}

#[test]
fn state_in_a_file_of_the_user_is_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = begun(dir.path());
    write(&mut log, 1..=3);
    fs::write(log.base_file(), b"state of three").unwrap();
    assert!(log.take_base_file(3, &[0, 7, 255], crc32c::crc32c(b"state of three")).unwrap());
    let (log, _) = {
        drop(log);
        open(dir.path())
    };
    let base = Replay::new(&log, 3).unwrap().take_base().unwrap();
    assert_eq!(
        (base.position, base.beside, fs::read(base.path).unwrap()),
        (3, vec![0, 7, 255], b"state of three".to_vec())
    );
    assert!(!log.base_file().exists());
    // What a process leaves that ends in between.
    fs::write(log.base_file(), b"half").unwrap();
    fs::write(dir.path().join("state-2"), b"old").unwrap();
    drop(log);
    let (log, _) = open(dir.path());
    assert!(!log.base_file().exists() && !dir.path().join("state-2").exists() && dir.path().join("state-3-0").exists());
}

#[test]
fn state_of_a_member_that_was_excluded_before_the_log_was_told_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (mut log, _) = open(dir.path());
    let kept = RecalledMember { incarnation: 11, ballot: 0, view: view(1), position: Some(50) };
    log.replace_state(50, Recalled { first: 5, member: Some(kept.clone()) }).unwrap();
    log.store_base(50, b"state").unwrap();
    drop(log);
    let (_, found) = open(dir.path());
    assert_eq!(found.recalled, Recalled { first: 5, member: Some(kept) });
}

#[test]
fn log_goes_on_in_further_segments() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = begun(dir.path());
    let long = vec![7; 1 << 20];
    for position in 1..=40 {
        log.append_payload(Identity::of(&long), &long);
        log.append_decision(position, b"long");
        log.sync().unwrap();
    }
    assert!(log.done.len() >= 4);
    let (log, found) = {
        drop(log);
        open(dir.path())
    };
    assert_eq!(found.decisions, 40);
    let mut replay = Replay::new(&log, 40).unwrap();
    for want in 1..=40 {
        assert!(replay.next().unwrap());
        assert_eq!(replay.last(), (want, &b"long"[..]));
        assert_eq!(replay.payload(&Identity::of(&long)), Some(&long[..]));
    }
}

#[test]
fn torn_end_is_cut_and_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = begun(dir.path());
    write(&mut log, 1..=3);
    log.sync().unwrap();
    let end = log.written;
    write(&mut log, 4..=6);
    log.sync().unwrap();
    drop(log);
    // Of the second write, the first sector was lost and the rest arrived.
    let file = fs::OpenOptions::new().write(true).open(path(dir.path(), 1)).unwrap();
    file.write_all_at(&[0; 8], end).unwrap();
    let (mut log, found) = open(dir.path());
    assert_eq!((found.decisions, found.torn > 0), (3, true));
    log.append_decision(4, b"value 4");
    log.sync().unwrap();
    let (log, found) = {
        drop(log);
        open(dir.path())
    };
    assert_eq!(found.decisions, 4, "what the cut left behind is no record");
    assert_eq!(replayed(&log, 4), (None, expected(1..=4)));
}

#[test]
fn damage_is_refused_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = begun(dir.path());
    for position in 1..=5 {
        write(&mut log, position..=position);
        log.sync().unwrap();
    }
    let end = log.written;
    drop(log);
    let file = fs::OpenOptions::new().write(true).open(path(dir.path(), 1)).unwrap();
    file.write_all_at(b"x", end / 2).unwrap();
    let why = Log::open(dir.path(), GROUP, 9).unwrap_err().to_string();
    assert!(why.contains("00000001.seg is damaged at byte") && why.contains("move this folder away"), "{why}");
    let why = Log::open(dir.path(), 8, 9).unwrap_err().to_string();
    assert!(why.contains("other hosts, or another protocol"), "{why}");
    fs::write(dir.path().join(manifest::NAME), "format = 2").unwrap();
    let why = Log::open(dir.path(), GROUP, 9).unwrap_err().to_string();
    assert!(why.contains("manifest.toml is damaged"), "{why}");
}

#[test]
fn lost_part_of_a_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = begun(dir.path());
    write(&mut log, 1..=3);
    log.sync().unwrap();
    drop(log);
    let manifest = fs::read_to_string(dir.path().join(manifest::NAME)).unwrap();
    fs::write(dir.path().join(manifest::NAME), manifest.replace("first = 5", "first = 4")).unwrap();
    let why = Log::open(dir.path(), GROUP, 9).unwrap_err().to_string();
    assert!(why.contains("its checksum does not fit"), "{why}");
    fs::remove_file(dir.path().join(manifest::NAME)).unwrap();
    let why = Log::open(dir.path(), GROUP, 9).unwrap_err().to_string();
    assert!(why.contains("it is lost, and the log is not"), "{why}");
    fs::write(dir.path().join(manifest::NAME), &manifest).unwrap();
    fs::rename(path(dir.path(), 1), path(dir.path(), 2)).unwrap();
    let why = Log::open(dir.path(), GROUP, 9).unwrap_err().to_string();
    assert!(why.contains("00000001.seg is damaged at byte 0: it, or one"), "{why}");
    fs::rename(path(dir.path(), 2), path(dir.path(), 1)).unwrap();
    assert_eq!(open(dir.path()).1.decisions, 3);
}

#[test]
fn process_that_ends_between_first_segment_and_manifest_leaves_nothing_in_the_way() {
    let dir = tempfile::tempdir().unwrap();
    for len in [0, 7, 16] {
        fs::write(path(dir.path(), 1), &record::segment_head(1)[..len]).unwrap();
        let _ = fs::remove_file(dir.path().join(manifest::NAME));
        open(dir.path());
    }
}

#[test]
fn state_from_before_the_users_was_replaced_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = begun(dir.path());
    write(&mut log, 1..=3);
    let kept = RecalledMember { incarnation: 11, ballot: 0, view: view(1), position: None };
    log.replace_state(50, Recalled { first: 5, member: Some(kept) }).unwrap();
    assert!(!log.store_base(3, b"old").unwrap());
    assert!(log.store_base(50, b"new").unwrap());
    drop(log);
    let (log, _) = open(dir.path());
    assert_eq!(replayed(&log, 50), (Some(50), Vec::new()));
}

/// A user's value may look like many records.
#[test]
fn torn_value_that_looks_like_records_is_looked_at_quickly() {
    let mut bytes = record::segment_head(1).to_vec();
    let numbers: Vec<u8> = (0..1 << 20_u32).flat_map(|_| 100_000_u32.to_le_bytes()).collect();
    let at = bytes.len();
    record::push(&mut bytes, 1, 16, &Record::Decision { position: 1, value: &numbers });
    bytes[at + 4] ^= 1;
    let end = record::scan(&bytes, 1, |_, _| Ok::<_, ()>(())).unwrap();
    assert_eq!((end.at, end.damaged), (at, false));
}

/// Where the process of [`on_a_small_disk`] works.
const FULL: &str = "FIDE_FULL_DISK";

/// Runs a test in a process of its own, with a disk of so many megabytes, that it fills.
fn on_a_small_disk(megabytes: u32, test: &str, fill: fn(&Path)) {
    if let Some(dir) = std::env::var_os(FULL) {
        return fill(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mount = format!("mount -t tmpfs -o size={megabytes}m none {} && exec \"$0\" \"$@\"", dir.path().display());
    let run = std::process::Command::new("unshare")
        .args(["--mount", "sh", "-c", &mount])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", &format!("log::tests::{test}"), "--nocapture"])
        .env(FULL, dir.path())
        .output();
    let run = match run {
        Ok(run) if run.status.success() => run,
        Ok(run) if String::from_utf8_lossy(&run.stderr).contains("unshare") => {
            return println!("skipped: {}", String::from_utf8_lossy(&run.stderr));
        }
        Ok(run) => panic!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr)),
        Err(why) => return println!("skipped: unshare: {why}"),
    };
    assert!(String::from_utf8_lossy(&run.stdout).contains("was full"), "{run:?}");
}

#[test]
fn root_full_disk_loses_nothing() {
    on_a_small_disk(1, "root_full_disk_loses_nothing", fill);
}

#[test]
fn root_disk_that_is_full_as_a_segment_ends_loses_nothing() {
    on_a_small_disk(12, "root_disk_that_is_full_as_a_segment_ends_loses_nothing", |dir| {
        let mut log = begun(dir);
        let mut position = 0;
        let mut append = |log: &mut Log, bytes: usize| {
            position += 1;
            log.append_decision(position, &vec![7; bytes]);
            position
        };
        while log.written + (100 << 10) < SEGMENT_BYTES {
            append(&mut log, 50 << 10);
            log.sync().unwrap();
        }
        log.file.write_all_at(&ZEROS, log.room).unwrap();
        log.room += ROOM_BYTES;
        let mut filler = fs::File::create(dir.join("filler")).unwrap();
        while filler.write_all(&[1; 4096]).is_ok() {}
        // There is room for the end of this segment, and not for the next one.
        let rest = usize::try_from(SEGMENT_BYTES - log.written).unwrap();
        let stored = append(&mut log, rest + 8192);
        let why = log.sync().unwrap_err();
        assert!(why.is_full() && log.synced > SEGMENT_BYTES, "{why}");
        println!("the disk was full at {stored}: {why}");
        // Until a write ends in the middle of a record.
        for _ in 0..8 {
            append(&mut log, 100 << 10);
            assert!(log.sync().unwrap_err().is_full());
        }
        assert!(log.waiting_bytes() > 0);
        let behind = log.behind(&why).to_string();
        assert!(behind.contains("wait for room") && behind.contains("start it again"), "{behind}");
        drop((log, filler));
        fs::remove_file(dir.join("filler")).unwrap();
        let (mut log, found) = open(dir);
        let last = found.recalled.member.unwrap().position.unwrap();
        assert!(last >= stored && found.torn > 0, "{last} of {stored}, {} torn", found.torn);
        log.append_decision(last + 1, b"after it");
        log.sync().unwrap();
        drop(log);
        assert_eq!(open(dir).1.recalled.member.unwrap().position, Some(last + 1));
    });
}

/// A process ended, or the power went, before it had begun a segment for which there was no room.
#[test]
fn segment_that_was_not_begun_is_begun_anew() {
    for head in [0, 7] {
        let dir = tempfile::tempdir().unwrap();
        let mut log = begun(dir.path());
        write(&mut log, 1..=4);
        log.sync().unwrap();
        write(&mut log, 5..=6);
        log.file.write_all_at(&log.buffer[..20], log.written).unwrap();
        drop(log);
        fs::write(path(dir.path(), 2), &record::segment_head(2)[..head]).unwrap();
        let (log, found) = open(dir.path());
        assert_eq!((found.recalled.member.unwrap().position, log.number), (Some(4), 1), "{head}");
        assert!(found.torn > 0);
    }
}

/// A segment is begun once the one before is stored, and nothing else is behind its records.
#[test]
fn segment_that_was_begun_shows_that_the_one_before_was_stored() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = begun(dir.path());
    write(&mut log, 1..=4);
    log.sync().unwrap();
    log.file.write_all_at(b"torn", log.written).unwrap();
    drop(log);
    fs::write(path(dir.path(), 2), record::segment_head(2)).unwrap();
    assert!(matches!(Log::open(dir.path(), GROUP, 5), Err(LogError::Damaged { .. })));
    // One between two others is missing.
    fs::rename(path(dir.path(), 2), path(dir.path(), 3)).unwrap();
    fs::write(path(dir.path(), 3), []).unwrap();
    assert!(matches!(Log::open(dir.path(), GROUP, 5), Err(LogError::Damaged { .. })));
}

/// The disk was full, and the host takes over the others' state: what was written of a record goes before the next segment
/// begins. Otherwise a process that ends in between could not read its log again.
#[test]
fn part_of_a_record_goes_before_another_state_begins() {
    for last in [1, SEGMENT_BYTES] {
        let dir = tempfile::tempdir().unwrap();
        let mut log = begun(dir.path());
        write(&mut log, 1..=3);
        log.append_decision(4, &vec![7; usize::try_from(last).unwrap()]);
        // The next segment cannot be begun, so that the process ends where it would be.
        let next = path(dir.path(), 2);
        fs::create_dir(&next).unwrap();
        assert_eq!(log.sync().is_err(), last == SEGMENT_BYTES);
        assert_eq!(log.synced, log.written);
        write(&mut log, 5..=6);
        let part = log.buffer.len() - 20;
        log.file.write_all_at(&log.buffer[..part], log.written).unwrap();
        let kept = RecalledMember { incarnation: 11, ballot: 0, view: view(1), position: None };
        log.replace_state(50, Recalled { first: 5, member: Some(kept) }).unwrap_err();
        drop(log);
        fs::remove_dir(&next).unwrap();
        fs::write(&next, record::segment_head(2)).unwrap();
        let (log, found) = open(dir.path());
        assert_eq!((found.recalled.member.unwrap().position, found.torn, log.number), (Some(4), 0, 2), "{last}");
    }
}

#[test]
fn log_of_a_later_version_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = begun(dir.path());
    log.sync().unwrap();
    let (at, number) = (log.written, log.number);
    let mut unknown = Vec::new();
    record::push(&mut unknown, number, at, &Record::State);
    unknown[16] = 77;
    let sum = crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), &unknown[8..17]);
    unknown[4..8].copy_from_slice(&sum.to_le_bytes());
    log.file.write_all_at(&unknown, at).unwrap();
    drop(log);
    let why = Log::open(dir.path(), GROUP, 5).unwrap_err().to_string();
    assert!(why.contains(&format!("at byte {at}")) && why.contains("start the version that wrote it"), "{why}");
}

fn fill(dir: &Path) {
    let mut log = begun(dir);
    log.sync().unwrap();
    fs::write(dir.join("filler"), vec![1; 500 << 10]).unwrap();
    let long = vec![7; 50 << 10];
    let mut position = 0;
    let why = loop {
        position += 1;
        log.append_decision(position, &long);
        if let Err(why) = log.sync() {
            break why;
        }
    };
    assert!(why.is_full() && position > 1, "{why}");
    println!("the disk was full at {position}: {why}");
    // More is decided meanwhile, and a state is to be stored.
    position += 1;
    log.append_decision(position, &long);
    assert!(log.sync().unwrap_err().is_full());
    assert!(log.store_base(1, &long).unwrap_err().is_full());
    fs::remove_file(dir.join("filler")).unwrap();
    log.sync().unwrap();
    drop(log);
    let (_, found) = open(dir);
    assert_eq!(found.recalled.member.unwrap().position, Some(position));
}

#[test]
fn manifest_of_another_format_is_named_whatever_else_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()));
    let content = "format = 2\nshards = [1, 2]\n";
    let sum = crc32c::crc32c(content.as_bytes());
    fs::write(dir.path().join(manifest::NAME), format!("{content}# crc32c {sum:08x}\n")).unwrap();
    let why = manifest::Manifest::read(dir.path(), 1).unwrap_err().to_string();
    assert!(why.contains("its format is 2, this program knows 1; start the version that wrote it"), "{why}");
}
