// SPDX-License-Identifier: Apache-2.0
//! The number that tells one life of an agent from the next.

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
    time::{SystemTime, UNIX_EPOCH},
};

/// Why no incarnation could be had.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {source}; the agent must remember its incarnation there (state_dir in the configuration)")]
pub struct IncarnationError {
    path: PathBuf,
    source: io::Error,
}

/// Takes the next incarnation of this host: above every earlier one in `dir`, and, should that
/// directory ever be lost, above every one of the past by the wall clock (seconds since 1970, which
/// fit 32 bits until 2106). It is on disk before it is returned.
///
/// # Errors
/// [`IncarnationError`] if it cannot be stored: reusing one would let an old life speak again.
pub fn next(dir: &Path) -> Result<u32, IncarnationError> {
    let path = dir.join("incarnation");
    let fail = |source| IncarnationError { path: path.clone(), source };
    fs::create_dir_all(dir).map_err(fail)?;
    let last: u32 = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().map_err(|_| {
            fail(io::Error::new(io::ErrorKind::InvalidData, format!("holds {:?}, not a number", text.trim())))
        })?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(fail(error)),
    };
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let next = u32::try_from(clock).unwrap_or(u32::MAX).max(last.saturating_add(1));
    let new = dir.join("incarnation.new");
    let store = || -> io::Result<()> {
        let mut file = fs::File::create(&new)?;
        writeln!(file, "{next}")?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        fs::File::open(dir)?.sync_all()
    };
    store().map_err(fail)?;
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_damaged_file_is_an_error_not_a_reused_number() {
        let dir = tempfile::tempdir().expect("temporary directory");
        fs::write(dir.path().join("incarnation"), "x").expect("written");
        assert!(next(dir.path()).expect_err("damaged").to_string().contains("not a number"));
    }
}
