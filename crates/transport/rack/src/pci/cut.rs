// SPDX-License-Identifier: Apache-2.0
//! SIGBUS in a window: its memory is gone, and zeros are put in its place.
//!
//! The handler finds the window in a table of fixed size. A place of the table is changed by the thread that has it, between two
//! numbers of its version of which the first is odd; the handler passes over a place whose version is odd or changes meanwhile. It never
//! passes over the one it looks for: whoever has an access to a window borrows it, and its place is not changed before it is dropped.

use std::{
    io,
    mem::MaybeUninit,
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering, fence},
    },
};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

/// Memories of windows that a process has at a time: one for each window, two for each window of an NTB.
pub const WINDOWS_MAX: usize = 512;

/// A place of the table.
#[derive(Debug)]
struct Entry {
    version: AtomicUsize,
    /// Of its first byte; 0: it is free.
    start: AtomicUsize,
    /// Bytes.
    len: AtomicUsize,
    is_cut: AtomicBool,
}

static TABLE: [Entry; WINDOWS_MAX] = [const {
    Entry {
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        is_cut: AtomicBool::new(false),
    }
}; WINDOWS_MAX];

/// What SIGBUS did before, or why it could not be changed.
static FORMER: OnceLock<Result<libc::sigaction, i32>> = OnceLock::new();

/// A mapping that the handler replaces, until this is dropped, which has to be before it is unmapped.
#[derive(Debug)]
pub(super) struct Guard(&'static Entry);

/// Why there is none.
pub(super) enum NoGuard {
    /// [`WINDOWS_MAX`] are there.
    Full,
    Handler(io::Error),
}

impl Guard {
    /// Installs the handler if it is the first one.
    ///
    /// # Safety
    /// The bytes are a mapping of this process' own. It is used as shared memory that may become zeros at any time, and is unmapped after
    /// the guard was dropped.
    pub(super) unsafe fn new(start: *mut u8, len: usize) -> Result<Self, NoGuard> {
        if let Err(errno) = FORMER.get_or_init(install) {
            return Err(NoGuard::Handler(io::Error::from_raw_os_error(*errno)));
        }
        for entry in &TABLE {
            let version = entry.version.load(Ordering::Relaxed);
            let is_free = version.is_multiple_of(2) && entry.start.load(Ordering::Relaxed) == 0;
            let takes = || entry.version.compare_exchange(version, version + 1, Ordering::Acquire, Ordering::Relaxed);
            if !is_free || takes().is_err() {
                continue;
            }
            fence(Ordering::Release);
            entry.is_cut.store(false, Ordering::Relaxed);
            entry.len.store(len, Ordering::Relaxed);
            entry.start.store(start.addr(), Ordering::Relaxed);
            entry.version.store(version + 2, Ordering::Release);
            return Ok(Self(entry));
        }
        Err(NoGuard::Full)
    }

    pub(super) fn is_cut(&self) -> bool {
        self.0.is_cut.load(Ordering::Acquire)
    }

    /// As if an access had found that the memory is gone. False: there is no memory for that, and the mapping is as it was.
    pub(super) fn cut(&self) -> bool {
        self.is_cut() || self.0.cut(self.0.start.load(Ordering::Relaxed), self.0.len.load(Ordering::Relaxed))
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Nobody else changes a place that is taken.
        let version = self.0.version.load(Ordering::Relaxed);
        self.0.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.0.start.store(0, Ordering::Relaxed);
        self.0.version.store(version + 2, Ordering::Release);
    }
}

impl Entry {
    /// Its first byte and its length, if an address lies within. Async-signal-safe.
    fn around(&self, address: usize) -> Option<(usize, usize)> {
        let version = self.version.load(Ordering::Acquire);
        let (start, len) = (self.start.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        let is_within = start != 0 && address.checked_sub(start).is_some_and(|offset| offset < len);
        (is_whole && is_within).then_some((start, len))
    }

    /// Puts zeros where its mapping is, of which these are the first byte and the length. Whoever calls it, or was interrupted by a
    /// signal that does, borrows the window. False: there is no memory for that. Async-signal-safe.
    fn cut(&self, start: usize, len: usize) -> bool {
        // Before there are zeros to be read.
        self.is_cut.store(true, Ordering::Release);
        // SAFETY: a mapping that `Guard::new` was told of, and that is not unmapped before the guard is dropped, which is borrowed. Its user
        // expects zeros. Another thread may do the same at the same time: what it has written since then is lost, as it would be anyway.
        let zeros = unsafe {
            let start = ptr::with_exposed_provenance_mut(start);
            mmap_anonymous(start, len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED)
        };
        zeros.is_ok()
    }
}

fn install() -> Result<libc::sigaction, i32> {
    let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let mut former = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: it only asks, and writes all of `former` if it succeeds.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), former.as_mut_ptr()) } != 0 {
        return Err(errno());
    }
    // SAFETY: all zeros are a valid one; the fields are set below.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
    action.sa_sigaction = handler as usize;
    // Where a program has a stack for that, it is also called for those who have none left.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler is async-signal-safe: it reads atomics, and makes system calls. Until FORMER is set, there is no window and
    // it leaves things to the default.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(errno());
    }
    // SAFETY: it was written by the first call.
    Ok(unsafe { former.assume_init() })
}

/// Async-signal-safe.
extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a handler with SA_SIGINFO a valid one; of SIGBUS by the kernel (a code above 0), with an address.
    let (is_kernels, address) = unsafe { ((*info).si_code > 0, (*info).si_addr().addr()) };
    if is_kernels && is_replaced(address) {
        return;
    }
    leave_to_former(signal, info, context, is_kernels);
}

/// Puts zeros where the window is that an address lies in, if there is one. Without memory for them, the access cannot go on.
fn is_replaced(address: usize) -> bool {
    let found = TABLE.iter().find_map(|entry| entry.around(address).map(|around| (entry, around)));
    found.is_some_and(|(entry, (start, len))| entry.cut(start, len))
}

/// As if there were no handler of ours.
fn leave_to_former(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void, is_kernels: bool) {
    // SAFETY: all zeros are the default action.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    let former = match FORMER.get() {
        Some(Ok(former)) => former,
        _ => &default,
    };
    match former.sa_sigaction {
        libc::SIG_IGN if !is_kernels => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the former action was valid. The access is made again, and the kernel ends the process by it; a signal that
            // somebody has sent is sent again, and comes as this handler returns.
            unsafe {
                libc::sigaction(signal, former, ptr::null_mut());
                if !is_kernels {
                    libc::raise(signal);
                }
            }
        }
        handler if former.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: an action with this flag has a function of this kind there.
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: an action without the flag, which is neither of the two above, has a function of this kind there.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
