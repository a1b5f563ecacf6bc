// SPDX-License-Identifier: Apache-2.0
//! Something made of files, made again when they change.

use std::fmt;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use arc_swap::ArcSwap;

use super::{Error, FILE_BYTES_MAX, Files, WATCH_PERIOD};

/// Inode, size and times of each file; `None` for one that is not there.
type Fingerprint = Vec<Option<(u64, u64, i64, i64, i64, i64)>>;
type Build<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, Error> + Send + Sync>;

/// Something made of the files of a member.
pub struct Reloading<T> {
    files: Vec<PathBuf>,
    /// The file that others must not be able to read.
    key: PathBuf,
    /// The file that may be missing, until it existed once. If missing, it counts as empty.
    optional: Option<PathBuf>,
    build: Build<T>,
    current: ArcSwap<T>,
    /// Grows with each set that is put in force; from 1.
    generation: AtomicU64,
    state: Mutex<State>,
}

struct State {
    /// The files as they were when they were last read, whether they were taken or not.
    read: Fingerprint,
    /// As they were at the last look.
    seen: Fingerprint,
    /// The optional file was there.
    had: bool,
    trouble: Option<Error>,
}

impl<T> Reloading<T> {
    /// Reads the files, and has `build` make it of their content, in the order of [`Files::list`].
    ///
    /// # Errors
    /// The file and what is wrong with it, or `build`'s error.
    pub fn load(
        files: Files,
        build: impl Fn(&Files, &[Vec<u8>]) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<Reloading<T>, Error> {
        let (paths, key, optional) = (files.list(), files.key.clone(), files.optional());
        let build: Build<T> = Box::new(move |contents| build(&files, contents));
        let (read, contents) = contents(&paths, &key, optional.as_deref())?;
        let first = build(&contents)?;
        let had = has(&paths, optional.as_deref(), &read);
        let state = Mutex::new(State { seen: read.clone(), read, had, trouble: None });
        let current = ArcSwap::from_pointee(first);
        Ok(Reloading { files: paths, key, optional, build, current, generation: AtomicU64::new(1), state })
    }

    /// The present set, for new connections.
    #[must_use]
    pub fn current(&self) -> Arc<T> {
        self.current.load_full()
    }

    /// Grows with each set that is put in force.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Why the newest files are not in force, if they are not.
    #[must_use]
    pub fn trouble(&self) -> Option<Error> {
        self.lock().trouble.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Reads the files again, now.
    ///
    /// # Errors
    /// As [`Reloading::load`]; what was in force stays in force.
    pub fn reload(&self) -> Result<(), Error> {
        self.read(&mut self.lock())
    }

    /// Checks whether the files have changed, and reads them if they have and are at rest: files that are
    /// being copied are left to settle. Call it every [`WATCH_PERIOD`]; [`Self::watch`] does. Returns
    /// whether a new set is in force.
    pub fn look(&self) -> bool {
        let mut state = self.lock();
        let now = fingerprint(&self.files);
        let rests = now == state.seen;
        state.seen = now;
        rests && state.seen != state.read && self.read(&mut state).is_ok()
    }

    /// Calls [`Self::look`] for ever.
    pub async fn watch(&self) {
        loop {
            tokio::time::sleep(WATCH_PERIOD).await;
            self.look();
        }
    }

    fn read(&self, state: &mut State) -> Result<(), Error> {
        let before = fingerprint(&self.files);
        let optional = if state.had { None } else { self.optional.as_deref() };
        let made = contents(&self.files, &self.key, optional).and_then(|(_, contents)| (self.build)(&contents));
        // Not read again until they change once more.
        state.read.clone_from(&before);
        match made {
            Ok(made) => {
                if has(&self.files, self.optional.as_deref(), &before) {
                    state.had = true;
                }
                // A reader of the new generation finds a set at least as new.
                self.current.store(Arc::new(made));
                self.generation.fetch_add(1, Ordering::AcqRel);
                if state.trouble.take().is_some() {
                    tracing::info!("the new certificates are in force");
                }
                Ok(())
            }
            Err(why) => {
                if state.trouble.as_ref() != Some(&why) {
                    tracing::warn!("new certificates are not taken, the old ones stay in force: {why}");
                }
                if why == Error::Changing {
                    state.read.clear();
                }
                state.trouble = Some(why.clone());
                Err(why)
            }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Reloading<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reloading").field("files", &self.files).field("generation", &self.generation()).finish()
    }
}

fn fingerprint(files: &[PathBuf]) -> Fingerprint {
    let of = |m: Metadata| (m.ino(), m.len(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    files.iter().map(|path| std::fs::metadata(path).ok().map(of)).collect()
}

/// Whether `optional` is one of the files, and there.
fn has(files: &[PathBuf], optional: Option<&Path>, fingerprint: &Fingerprint) -> bool {
    files.iter().zip(fingerprint).any(|(path, there)| Some(path.as_path()) == optional && there.is_some())
}

/// Reads all files, which must stay as they are meanwhile.
fn contents(files: &[PathBuf], key: &Path, optional: Option<&Path>) -> Result<(Fingerprint, Vec<Vec<u8>>), Error> {
    let before = fingerprint(files);
    let read = |path: &PathBuf| match path.try_exists() {
        Ok(false) if Some(path.as_path()) == optional => Ok(Vec::new()),
        _ => one(path, path == key),
    };
    let contents = files.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    if fingerprint(files) != before {
        return Err(Error::Changing);
    }
    Ok((before, contents))
}

fn one(path: &Path, key: bool) -> Result<Vec<u8>, Error> {
    let refused = |why: String| Error::File { path: path.to_owned(), why };
    let unread =
        |error: std::io::Error| Error::Read { path: path.to_owned(), kind: error.kind(), why: error.to_string() };
    let file = File::open(path).map_err(unread)?;
    let meta = file.metadata().map_err(unread)?;
    if !meta.is_file() {
        return Err(refused("is no file".into()));
    }
    if key && meta.permissions().mode() & 0o007 != 0 {
        return Err(Error::OpenKey { path: path.to_owned() });
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unread)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(refused(format!("is longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}
