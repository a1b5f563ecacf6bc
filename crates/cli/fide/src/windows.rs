// SPDX-License-Identifier: Apache-2.0
//! A plane of an agent whose heartbeats go through memory that two hosts map (`fide_rack::plane`).
//!
//! The loop reads and writes the memory, and calls nobody. A thread of its own asks whether the files are still there, which takes system
//! calls, and opens those anew that come back.

use std::{
    fs,
    hash::{BuildHasher, Hasher, RandomState},
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use fide_agent::{config::Window as At, privileges};
use fide_net::link::Polled;
use fide_rack::{
    pci::{PciError, PciWindow, Side, WINDOWS_MAX},
    plane::{Plane, packet_max},
    window::Window,
};
use fide_types::{MAX_HOSTS, MAX_PLANES, PAYLOAD_MAX};

/// Bytes of the shortest file: room for 20 of the longest heartbeats each way, while a host does not look.
const FILE_MIN: usize = 64 << 10;
/// File systems as `statfs` names them: of devices, and in memory (tmpfs, ramfs, hugetlbfs).
const SYSFS: u32 = 0x6265_6572;
const IN_MEMORY: [u32; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6];
/// Windows of two planes to all hosts, each of a bridge, and those that take their place while the loop still has them.
const _: () = assert!(WINDOWS_MAX >= MAX_PLANES * (MAX_HOSTS - 1) * BRIDGE.len() * 2);
/// Between two looks at the files. Until one finds that a device is gone, packets are written to whatever has its addresses.
const LOOK: Duration = Duration::from_millis(10);
/// Looks until a window that is gone is tried anew.
const LOOKS_UNTIL_AGAIN: u32 = 100;
/// Of a bridge, in the directory that stands for its window.
const BRIDGE: [&str; 2] = ["outbound", "inbound"];

/// Opens the window to each of these hosts.
///
/// # Errors
/// The first that is not there or is no window, and what would be right.
pub(crate) fn open(windows: &[At]) -> io::Result<Box<dyn Polled>> {
    let (mut again, mut watched) = (Vec::new(), Vec::new());
    for at in windows {
        let window = Arc::new(open_one(at)?);
        // The loop takes one before the next is opened.
        let (give, take) = sync_channel(1);
        again.push(take);
        watched.push(Watched { at: at.clone(), window, give, gone_for: None, said: None, former: Vec::new() });
    }
    let plane = Plane::new(watched.iter().map(|watched| Arc::clone(&watched.window)), number());
    thread::Builder::new().name("fide-windows".to_owned()).spawn(move || watch(watched))?;
    Ok(Box::new(Windows { plane, again }))
}

/// Another one each time.
fn number() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[derive(Debug)]
struct Windows {
    plane: Plane,
    /// Of each host, a window in place of one that is gone.
    again: Vec<Receiver<Arc<PciWindow>>>,
}

impl Polled for Windows {
    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.plane.send(payload).map_err(|_| ErrorKind::NetworkDown.into())
    }

    fn receive(&mut self, buffer: &mut [u8; PAYLOAD_MAX + 1]) -> Option<usize> {
        for (peer, again) in self.again.iter().enumerate() {
            if self.plane.is_cut(peer)
                && let Ok(window) = again.try_recv()
            {
                self.plane.replace(peer, window);
            }
        }
        self.plane.receive(buffer)
    }
}

fn open_one(at: &At) -> io::Result<PciWindow> {
    let peer = at.peer.as_str();
    // A link is followed here: what the file is, its own name and directory say.
    let path = real(&at.path, || {
        format!(
            "{} is not there, the window to {peer}: name so a file of {FILE_MIN} bytes or more that both hosts map, or a link to a device's \
             file resourceN, or for a bridge a directory with links `outbound` and `inbound`",
            at.path.display()
        )
    })?;
    let side = if at.is_first { Side::First } else { Side::Second };
    let window = if path.is_dir() {
        let part = |name| {
            let part = path.join(name);
            let missing = || {
                format!("{} is not there: link it to the bridge's memory that goes to, or from, {peer}", part.display())
            };
            real(&part, missing).and_then(|part| {
                in_memory(&part, peer)?;
                Ok(part)
            })
        };
        PciWindow::of_ntb(part(BRIDGE[0])?, part(BRIDGE[1])?)
    } else {
        in_memory(&path, peer)?;
        PciWindow::open(&path, side)
    };
    let window = window.map_err(|error| io::Error::new(kind(&error), format!("the window to {peer}: {error}")))?;
    let len = 2 * window.len();
    if len < FILE_MIN || packet_max(&window) < PAYLOAD_MAX {
        let says = format!(
            "the window to {peer}: {} has {len} bytes, and heartbeats need {FILE_MIN}: `truncate -s {FILE_MIN}` a file, or take a larger BAR",
            at.path.display()
        );
        return Err(io::Error::new(ErrorKind::InvalidInput, says));
    }
    Ok(window)
}

/// The loop never waits for what is in memory, nor for a device.
///
/// # Errors
/// It could wait.
fn in_memory(path: &Path, peer: &str) -> io::Result<()> {
    #[allow(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "numbers of 32 bits, whatever their type"
    )]
    let of = rustix::fs::statfs(path)?.f_type as u32;
    // What is no file is refused for that.
    let is_file = fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    if !is_file || of == SYSFS || IN_MEMORY.contains(&of) || is_dax(path) {
        return Ok(());
    }
    let says = format!(
        "the window to {peer}: {}: a file on a disk, for which the agent would wait at times: make it in memory, as in /dev/shm",
        path.display()
    );
    Err(io::Error::new(ErrorKind::InvalidInput, says))
}

/// Its mappings are the memory itself.
fn is_dax(path: &Path) -> bool {
    let found = rustix::fs::statx(rustix::fs::CWD, path, rustix::fs::AtFlags::empty(), rustix::fs::StatxFlags::empty());
    found.is_ok_and(|found| found.stx_attributes.contains(rustix::fs::StatxAttributes::DAX))
}

/// Where a path leads.
fn real(path: &Path, missing: impl Fn() -> String) -> io::Result<PathBuf> {
    fs::canonicalize(path).map_err(|why| match why.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => io::Error::new(why.kind(), missing()),
        kind => io::Error::new(kind, format!("{}: {why}", path.display())),
    })
}

fn kind(error: &PciError) -> ErrorKind {
    match error {
        PciError::Missing { .. } => ErrorKind::NotFound,
        PciError::Permission { .. } | PciError::NotEnabled { .. } => ErrorKind::PermissionDenied,
        PciError::NotMemory { .. } | PciError::Length { .. } | PciError::Long { .. } | PciError::Differ { .. } => {
            ErrorKind::InvalidInput
        }
        PciError::NoRoom { .. } => ErrorKind::StorageFull,
        PciError::System { why, .. } | PciError::Mapping { why, .. } | PciError::Handler(why) => why.kind(),
        PciError::TooMany => ErrorKind::Other,
    }
}

/// A window that the loop uses.
struct Watched {
    at: At,
    window: Arc<PciWindow>,
    give: SyncSender<Arc<PciWindow>>,
    /// Looks since it is gone.
    gone_for: Option<u32>,
    /// Why it could not be opened anew.
    said: Option<String>,
    /// Those before it, which the loop may still have: its thread is not to unmap them.
    former: Vec<Arc<PciWindow>>,
}

impl Watched {
    fn look(&mut self) {
        self.former.retain(|former| Arc::strong_count(former) > 1);
        let (peer, path) = (self.at.peer.as_str(), self.at.path.display());
        match &mut self.gone_for {
            None if self.window.is_current() => {}
            None => {
                tracing::warn!(
                    "the window to {peer} is gone: {path} was removed, or is another file now: its heartbeats are lost on this plane"
                );
                self.gone_for = Some(0);
            }
            Some(looks) => {
                *looks += 1;
                if looks.is_multiple_of(LOOKS_UNTIL_AGAIN) {
                    self.open_again();
                }
            }
        }
    }

    fn open_again(&mut self) {
        match open_one(&self.at).map(Arc::new) {
            Ok(window) if self.give.try_send(Arc::clone(&window)).is_ok() => {
                tracing::info!("the window to {} is there again", self.at.peer.as_str());
                self.former.push(std::mem::replace(&mut self.window, window));
                (self.gone_for, self.said) = (None, None);
            }
            // The loop has not taken the one before.
            Ok(_) => {}
            Err(why) => {
                let says = Some(why.to_string());
                if self.said != says {
                    tracing::warn!("the window is not opened anew yet: {why}");
                    self.said = says;
                }
            }
        }
    }
}

fn watch(mut windows: Vec<Watched>) {
    let _ = privileges::drop_excess();
    loop {
        thread::sleep(LOOK);
        windows.iter_mut().for_each(Watched::look);
    }
}

#[cfg(test)]
mod tests;
