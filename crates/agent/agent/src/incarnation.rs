// SPDX-License-Identifier: Apache-2.0
//! The number that distinguishes one life of an agent from the next.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

use fide_detector::incarnation::{self, NoIncarnation};

/// Why there is no next incarnation.
#[derive(Debug, thiserror::Error)]
pub enum IncarnationError {
    #[error("{path}: {why}; the agent must remember its incarnation there (state_dir in the configuration)")]
    Io { path: PathBuf, why: io::Error },
    /// Only the clock shows how far earlier lives have come.
    #[error(
        "{path} is not there, and the wall clock is beyond the year 2100 ({clock_s} s since 1970): set the clock, then start the agent"
    )]
    Clock { path: PathBuf, clock_s: u64 },
    #[error(
        "{path} holds {last}, the last incarnation there is: this host cannot get a new one. Stop the agents of all hosts, set the \
         clock, remove this file, change the key (a recording of a former life would end the new ones), start them again"
    )]
    Last { path: PathBuf, last: u32 },
}

/// Takes the next incarnation of this host. It is above every earlier one and every generation of views in
/// `dir`. Should that directory ever be lost, it is still above every earlier one because of the wall clock
/// (seconds since 1970, which fit 32 bits until 2106). It is stored before it is returned, and never
/// returned twice.
///
/// # Errors
/// [`IncarnationError`] if there is none, or it cannot be stored: reusing one would let an old life speak
/// again.
pub fn next(dir: &Path) -> Result<u32, IncarnationError> {
    let clock_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    next_at(dir, None, clock_s)
}

/// As [`next`], and above `present`, the incarnation or generation of a running agent: its directory may
/// have been emptied.
///
/// # Errors
/// [`IncarnationError`].
pub fn next_after(dir: &Path, present: u32) -> Result<u32, IncarnationError> {
    let clock_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    next_at(dir, Some(present), clock_s)
}

/// The file with the newest generation of views that this host has held, or was about to.
const GENERATION: &str = "generation";

/// The newest generation in `dir`, which the next incarnation is above. 0 if none is known; it is then
/// noted anew.
pub fn generation(dir: &Path) -> u32 {
    number(&dir.join(GENERATION)).ok().flatten().unwrap_or(0)
}

/// Notes that this host may found, or hold, a view of this generation: the incarnation of the member that
/// founds it. This host's next incarnation is above it. So a view that is founded later has a later
/// generation, whatever the founders' wall clocks show.
///
/// # Errors
/// The kernel's.
pub fn note_generation(dir: &Path, held: u32) -> io::Result<()> {
    // A damaged file is replaced: its content cannot be known any more.
    if number(&dir.join(GENERATION)).is_ok_and(|noted| noted.is_some_and(|noted| noted >= held)) {
        return Ok(());
    }
    let new = dir.join("generation.new");
    let mut file = fs::File::create(&new)?;
    writeln!(file, "{held}")?;
    file.sync_all()?;
    fs::rename(&new, dir.join(GENERATION))?;
    fs::File::open(dir)?.sync_all()
}

/// The newest generation that this agent knows to be stored, so that the disk is read only for another one.
#[derive(Debug, Default)]
pub struct Noted {
    newest: u32,
    /// The generation whose failure was reported.
    failed: u32,
}

impl Noted {
    /// This generation is stored, with all below.
    pub fn newest(&self) -> u32 {
        self.newest
    }

    /// Stores `held`. Returns a line for the log if that fails, once for each generation; the next call
    /// tries again.
    pub fn note(&mut self, dir: &Path, held: u32) -> Option<String> {
        if held <= self.newest {
            return None;
        }
        match note_generation(dir, held) {
            Ok(()) => {
                self.newest = held;
                None
            }
            Err(_) if self.failed == held => None,
            Err(error) => {
                self.failed = held;
                Some(format!("generation {held} of views could not be noted: {error}"))
            }
        }
    }
}

/// Bits of a process number that count the joins of one life; the bits above hold the incarnation.
const JOIN_BITS: u32 = 12;
/// The bits of an incarnation that are in a process number.
const NUMBERED: u32 = u32::MAX >> JOIN_BITS;

/// The agent that runs as `incarnation` has given a process the number `process`. If its numbers reach into
/// those of later incarnations, these incarnations are skipped: a later life's processes must have higher
/// numbers than all before, because other hosts conclude from that which of two processes of one name is
/// over. Writes once in 4096 joins.
///
/// # Errors
/// [`IncarnationError`], and a later life may be taken for an earlier one.
pub fn reserve(dir: &Path, incarnation: u32, process: u32) -> Result<(), IncarnationError> {
    let beyond = (process >> JOIN_BITS).wrapping_sub(incarnation) & NUMBERED;
    let path = dir.join(FILE);
    if beyond == 0 || number(&path)?.is_some_and(|last| last >= incarnation.saturating_add(beyond)) {
        return Ok(());
    }
    store(dir, &path, incarnation.saturating_add(beyond))
}

pub(crate) const FILE: &str = "incarnation";

/// The number in a file; neither it nor any number below may be given out again.
fn number(path: &Path) -> Result<Option<u32>, IncarnationError> {
    let fail = |why| IncarnationError::Io { path: path.to_owned(), why };
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim().parse().map_err(|_| {
            fail(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("holds \"{}\", not a number", text.trim().escape_debug()),
            ))
        })?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fail(error)),
    }
}

fn store(dir: &Path, path: &Path, number: u32) -> Result<(), IncarnationError> {
    let new = dir.join("incarnation.new");
    let store = || -> io::Result<()> {
        let mut file = fs::File::create(&new)?;
        writeln!(file, "{number}")?;
        file.sync_all()?;
        fs::rename(&new, path)?;
        fs::File::open(dir)?.sync_all()
    };
    store().map_err(|why| IncarnationError::Io { path: path.to_owned(), why })
}

fn next_at(dir: &Path, present: Option<u32>, clock_s: u64) -> Result<u32, IncarnationError> {
    let path = dir.join(FILE);
    fs::create_dir_all(dir).map_err(|why| IncarnationError::Io { path: path.clone(), why })?;
    let last = number(&path)?.max(present);
    // Even if the last incarnation is not known any more: tokens begin with the generation, and must not go
    // back. Without either file the tokens' order depends on wall clocks, as it did when the first view was
    // founded.
    let held = dir.join(GENERATION);
    let generation = number(&held)?;
    let next = match incarnation::next(last, generation, clock_s) {
        Ok(next) => next,
        Err(NoIncarnation::Clock) => return Err(IncarnationError::Clock { path, clock_s }),
        Err(NoIncarnation::Last) => {
            let path = if last == Some(u32::MAX) { path } else { held };
            return Err(IncarnationError::Last { path, last: u32::MAX });
        }
    };
    store(dir, &path, next)?;
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fide_detector::incarnation::BELIEVED_BEFORE_S;

    /// In 2026.
    const NOW_S: u64 = 1_790_000_000;

    #[test]
    fn later_life_numbers_its_processes_higher() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let first = next_at(dir.path(), None, NOW_S).expect("stored");
        let numbered = |incarnation: u32, joins: u32| (incarnation << JOIN_BITS).wrapping_add(joins);
        for joins in [1, 4095] {
            reserve(dir.path(), first, numbered(first, joins)).expect("stored");
            assert_eq!(number(&dir.path().join(FILE)).expect("read"), Some(first), "{joins}: nothing to store");
        }
        let joins = 3 * 4096 + 7;
        reserve(dir.path(), first, numbered(first, joins)).expect("stored");
        // The clock went back: it would be the next number.
        let second = next_at(dir.path(), None, NOW_S - 1000).expect("stored");
        assert!(second > first + 3);
        let is_later = |a: u32, b: u32| (1..1 << 31).contains(&a.wrapping_sub(b));
        assert!(is_later(numbered(second, 1), numbered(first, joins)));
        assert!(!is_later(numbered(first + 1, 1), numbered(first, joins)), "as it would have been");
        // Nothing is taken back.
        reserve(dir.path(), first, numbered(first, joins)).expect("stored");
        assert_eq!(number(&dir.path().join(FILE)).expect("read"), Some(second));
    }

    #[test]
    fn next_incarnation_is_above_every_generation_held() {
        let dir = tempfile::tempdir().expect("temporary directory");
        assert_eq!(next_at(dir.path(), None, 1000).expect("stored"), 1000);
        // Another founder's clock is two hours ahead.
        note_generation(dir.path(), 8200).expect("stored");
        note_generation(dir.path(), 900).expect("nothing to do");
        assert_eq!(generation(dir.path()), 8200);
        assert_eq!(next_at(dir.path(), None, 1010).expect("stored"), 8201);
        assert_eq!(next_at(dir.path(), None, 9000).expect("stored"), 9000);
    }

    #[test]
    fn lost_incarnation_file_still_yields_one_above_every_generation() {
        let dir = tempfile::tempdir().expect("temporary directory");
        note_generation(dir.path(), 8200).expect("stored");
        assert_eq!(next_at(dir.path(), None, 1010).expect("stored"), 8201);
        fs::remove_file(dir.path().join(FILE)).expect("removed");
        note_generation(dir.path(), u32::MAX).expect("stored");
        let why = next_at(dir.path(), None, 1010).expect_err("none is above").to_string();
        assert!(why.contains("generation holds 4294967295"), "{why}");
    }

    #[test]
    fn damaged_generation_is_an_error_until_it_is_noted_again() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join(GENERATION), "x").expect("written");
        let why = next_at(dir.path(), None, 1010).expect_err("damaged").to_string();
        assert!(why.contains("generation: holds \"x\", not a number"), "{why}");
        assert!(!dir.path().join(FILE).exists(), "nothing was stored");
        note_generation(dir.path(), 8200).expect("stored");
        assert_eq!(next_at(dir.path(), None, 1010).expect("stored"), 8201);
    }

    #[test]
    fn failure_to_note_generation_is_reported_once_and_retried() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let missing = dir.path().join("state");
        let mut noted = Noted::default();
        let warning = noted.note(&missing, 70).expect("no such directory");
        assert!(warning.contains("generation 70"), "{warning}");
        assert_eq!(noted.note(&missing, 70), None, "reported already");
        fs::create_dir(&missing).expect("made");
        assert_eq!((noted.note(&missing, 70), number(&missing.join(GENERATION)).expect("read")), (None, Some(70)));
        // Another agent has this host by now, which noted more: nothing is taken back.
        note_generation(&missing, 90).expect("stored");
        assert_eq!((noted.note(&missing, 80), number(&missing.join(GENERATION)).expect("read")), (None, Some(90)));
    }

    #[test]
    fn emptied_directory_yields_an_incarnation_above_the_present_one() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let gone = dir.path().join("state");
        assert_eq!(next_at(&gone, Some(9000), 1000).expect("made anew"), 9001);
        assert_eq!(next_at(&gone, Some(9001), 9005).expect("stored"), 9005);
        fs::write(gone.join(FILE), "9100").expect("written");
        assert_eq!(next_at(&gone, Some(9005), 9006).expect("another agent had this host"), 9101);
    }

    #[test]
    fn it_only_grows() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let first = next(dir.path()).expect("stored");
        let second = next(dir.path()).expect("stored");
        assert!(second > first);
        fs::write(dir.path().join("incarnation"), "4294000000").expect("written");
        assert_eq!(next(dir.path()).expect("stored"), 4_294_000_001);
    }

    #[test]
    fn last_incarnation_is_given_out_once() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join("incarnation"), (u32::MAX - 1).to_string()).expect("written");
        assert_eq!(next(dir.path()).expect("the last one"), u32::MAX);
        for _ in 0..2 {
            let why = next(dir.path()).expect_err("none is left").to_string();
            assert!(why.contains("4294967295") && why.contains("remove this file"), "{why}");
        }
        assert_eq!(fs::read_to_string(dir.path().join("incarnation")).expect("kept").trim(), u32::MAX.to_string());
    }

    #[test]
    fn clock_beyond_2100_is_not_believed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        for clock_s in [BELIEVED_BEFORE_S, u64::from(u32::MAX), u64::MAX] {
            let why = next_at(dir.path(), None, clock_s).expect_err("nothing else to go by").to_string();
            assert!(why.contains("set the clock"), "{why}");
            assert!(!dir.path().join("incarnation").exists(), "nothing was stored");
        }
        assert_eq!(next_at(dir.path(), None, NOW_S).expect("stored"), 1_790_000_000);
        assert_eq!(next_at(dir.path(), None, u64::MAX).expect("stored"), 1_790_000_001, "only the one after the last");
        assert_eq!(next_at(dir.path(), None, BELIEVED_BEFORE_S - 1).expect("stored"), 4_102_444_799);
        assert_eq!(next_at(dir.path(), None, 0).expect("stored"), 4_102_444_800);
    }

    #[test]
    fn damaged_file_is_an_error_not_a_reused_number() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join("incarnation"), "x").expect("written");
        assert!(next(dir.path()).expect_err("damaged").to_string().contains("not a number"));
    }
}
