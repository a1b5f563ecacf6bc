// SPDX-License-Identifier: Apache-2.0
//! The longest possible promise of an agent, stored before it promises anything. The next life waits for
//! it, if its own timeout is shorter (`Detector::heed_former`).
//!
//! It is the promise that this life *may* come to make from its start on, and not the one that it has made:
//! promises grow with the loop's measurements, and a promise that is not stored must not be made. Storing
//! each growth would have the loop wait for the disk. Leaving it to the control thread would keep promises
//! short, and others' leases with them, just when the network has become worse. The cost: a host that
//! starts again founds no view and drops nobody for up to [`crate::timeout::Timeouts::for_jitter`] of the
//! worst jitter (four floors of its kind of host), even if its former life never promised that much. It is
//! let into a view, and acts, without waiting for that.
//!
//! One line: the boot; the longest promise of this life; the promise of earlier lives, and until when that
//! binds, by that boot's clock. Microseconds, microseconds, nanoseconds.

use std::{fs, io, io::Write, path::Path};

use crate::incarnation::IncarnationError;

/// Stores that a life which starts now may promise up to `most_us`. Returns for how long earlier lives'
/// promises may bind, us; 0 if there were none.
///
/// # Errors
/// [`IncarnationError`] if it cannot be stored, or the file does not hold such a line.
pub fn begin(dir: &Path, boot: &str, now_ns: u64, most_us: u32) -> Result<u32, IncarnationError> {
    let path = dir.join("promise");
    let fail = |why| IncarnationError::Io { path: path.clone(), why };
    let former_us = match fs::read_to_string(&path) {
        Ok(text) => former_us(text.trim(), boot, now_ns).ok_or_else(|| {
            let why =
                format!("holds \"{}\", not a promise: remove it while no agent runs here", text.trim().escape_debug());
            fail(io::Error::new(io::ErrorKind::InvalidData, why))
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(fail(error)),
    };
    let until_ns = now_ns.saturating_add(u64::from(former_us) * 1000);
    let new = dir.join("promise.new");
    let store = || -> io::Result<()> {
        fs::create_dir_all(dir)?;
        let mut file = fs::File::create(&new)?;
        writeln!(file, "{boot} {most_us} {former_us} {until_ns}")?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        fs::File::open(dir)?.sync_all()
    };
    store().map_err(fail)?;
    Ok(former_us)
}

fn former_us(line: &str, boot: &str, now_ns: u64) -> Option<u32> {
    let mut words = line.split_whitespace();
    let before = words.next()?;
    let most_us: u32 = words.next()?.parse().ok()?;
    let former_us: u32 = words.next()?.parse().ok()?;
    let until_ns: u64 = words.next()?.parse().ok()?;
    // The clock of another boot means nothing here.
    let left_us = if before == boot {
        u32::try_from(until_ns.saturating_sub(now_ns).div_ceil(1000)).unwrap_or(u32::MAX).min(former_us)
    } else {
        former_us
    };
    words.next().is_none().then_some(most_us.max(left_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shorter_promise_waits_for_an_earlier_longer_one() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let begin = |now_ns, most_us| begin(dir.path(), "boot", now_ns, most_us).expect("stored");
        assert_eq!(begin(1_000_000, 63_000), 0, "the first");
        assert_eq!(begin(2_000_000, 3_300), 63_000);
        // Started again at once: the first promise still binds, and 20 ms later less of it.
        assert_eq!(begin(2_000_000, 3_300), 63_000);
        assert_eq!(begin(22_000_000, 3_300), 43_000);
        assert_eq!(begin(900_000_000, 3_300), 3_300, "long over");
    }

    #[test]
    fn promise_of_another_boot_binds_in_full() {
        let dir = tempfile::tempdir().expect("temporary directory");
        begin(dir.path(), "one", 1_000_000, 63_000).expect("stored");
        begin(dir.path(), "one", 9_000_000, 3_300).expect("stored");
        assert_eq!(begin(dir.path(), "two", 900_000_000, 3_300).expect("stored"), 63_000);
    }

    #[test]
    fn damaged_promise_is_an_error() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join("promise"), "boot 3").expect("written");
        let error = begin(dir.path(), "boot", 0, 1).expect_err("damaged").to_string();
        assert!(error.contains("not a promise") && error.contains("remove it"), "{error}");
    }
}
