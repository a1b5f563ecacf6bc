// SPDX-License-Identifier: Apache-2.0
//! Reads `/proc`, `/sys` and `/dev`, or copies of them.

use std::{
    fmt,
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

/// Most bytes that are read of a file; `/proc/interrupts` of a thousand cores is shorter.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The directories of the kernel's files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    pub proc: PathBuf,
    pub sys: PathBuf,
    pub dev: PathBuf,
    pub boot: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self::under(Path::new("/"))
    }
}

impl Roots {
    /// The tree below `dir`, which contains `proc`, `sys`, `dev` and `boot`: `/`, or a copy of another host's
    /// files.
    #[must_use]
    pub fn under(dir: &Path) -> Self {
        Self { proc: dir.join("proc"), sys: dir.join("sys"), dev: dir.join("dev"), boot: dir.join("boot") }
    }

    /// A file in `/proc`, without white space at its ends.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn proc(&self, path: impl AsRef<Path>) -> Result<String, Unread> {
        read(&self.proc.join(path))
    }

    /// A file in `/sys`, without white space at its ends.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn sys(&self, path: impl AsRef<Path>) -> Result<String, Unread> {
        read(&self.sys.join(path))
    }

    /// Names in a directory of `/sys` or `/proc`: first the numbers by value, then the rest by name.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn list(dir: &Path) -> Result<Vec<String>, Unread> {
        let fail = |source| Unread { path: dir.to_owned(), source };
        let mut names = Vec::new();
        for entry in fs::read_dir(dir).map_err(fail)? {
            names.push(entry.map_err(fail)?.file_name().to_string_lossy().into_owned());
        }
        names.sort_by_cached_key(|name| (name.parse::<u64>().unwrap_or(u64::MAX), natural(name)));
        Ok(names)
    }

    /// Model specific register `register` of `core`.
    ///
    /// # Errors
    /// [`Unread`]: without the msr driver, without permission, or if the processor has no such register.
    pub fn msr(&self, core: usize, register: u64) -> Result<u64, Unread> {
        let path = self.dev.join(format!("cpu/{core}/msr"));
        let mut value = [0; 8];
        let read = File::open(&path).and_then(|file| file.read_exact_at(&mut value, register));
        read.map(|()| u64::from_ne_bytes(value)).map_err(|source| Unread { path, source })
    }

    /// Whether the running kernel was built with `key=y`.
    ///
    /// # Errors
    /// [`Unread`] if its configuration is neither in `/boot` nor in `/proc`.
    pub fn built_with(&self, key: &str) -> Result<bool, Unread> {
        let path = self.boot.join(format!("config-{}", self.kernel()?));
        let config = match read(&path) {
            Ok(config) => config,
            Err(unread) => {
                let packed = self.proc.join("config.gz");
                let unpacked = packed.exists().then(|| Command::new("zcat").arg(&packed).output().ok()).flatten();
                let unpacked = unpacked.filter(|output| output.status.success()).ok_or(unread)?;
                String::from_utf8_lossy(&unpacked.stdout).into_owned()
            }
        };
        let wanted = format!("{key}=y");
        Ok(config.lines().any(|line| line.trim() == wanted))
    }

    /// Identity of this boot.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn boot_id(&self) -> Result<String, Unread> {
        self.proc("sys/kernel/random/boot_id")
    }

    /// Release of the running kernel.
    ///
    /// # Errors
    /// [`Unread`].
    pub fn kernel(&self) -> Result<String, Unread> {
        self.proc("sys/kernel/osrelease")
    }
}

/// Sort key that puts `rx-10` after `rx-9`.
fn natural(name: &str) -> (String, u64, String) {
    let at = name.find(|c: char| c.is_ascii_digit()).unwrap_or(name.len());
    let digits = name[at..].find(|c: char| !c.is_ascii_digit()).map_or(name.len(), |len| at + len);
    (name[..at].to_owned(), name[at..digits].parse().unwrap_or(0), name[digits..].to_owned())
}

/// Reads one file of the kernel as text. Bytes that are not UTF-8 are replaced, so that the parser reports
/// them.
pub(crate) fn read(path: &Path) -> Result<String, Unread> {
    exact(path).map(|text| text.trim().to_owned())
}

/// The same, without removing white space.
pub(crate) fn exact(path: &Path) -> Result<String, Unread> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes));
    match read {
        Ok(_) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(source) => Err(Unread { path: path.to_owned(), source }),
    }
}

/// A file that could not be read.
#[derive(Debug)]
pub struct Unread {
    pub path: PathBuf,
    pub source: io::Error,
}

impl Unread {
    /// Whether the file does not exist, as opposed to not permitted or broken.
    #[must_use]
    pub fn missing(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        match self.source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => write!(f, "{path} is not there"),
            io::ErrorKind::PermissionDenied => write!(f, "{path}: no permission; run as root"),
            _ => write!(f, "{path}: {}", self.source),
        }
    }
}

impl std::error::Error for Unread {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_in_the_order_of_their_numbers() {
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["rx-10", "rx-9", "tx-0", "24", "7", "default_smp_affinity"] {
            fs::write(dir.path().join(name), "").expect("written");
        }
        assert_eq!(
            Roots::list(dir.path()).expect("a list"),
            ["7", "24", "default_smp_affinity", "rx-9", "rx-10", "tx-0"]
        );
    }

    #[test]
    fn an_unread_file_says_why() {
        let roots = Roots::under(Path::new("/nowhere"));
        let error = roots.proc("stat").expect_err("not there");
        assert!(error.missing());
        assert_eq!(error.to_string(), "/nowhere/proc/stat is not there");
    }
}
