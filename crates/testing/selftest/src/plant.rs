// SPDX-License-Identifier: Apache-2.0
//! Disturbances of known period and length: a thread, a burst of timer interrupts, a burst of received packets.

use std::{
    io,
    net::{Ipv4Addr, SocketAddrV4, UdpSocket},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

use fide_net::isolation::{pin, set_fifo};
use fide_sys::clock::mono_ns;

/// Name of a thread that plants a disturbance.
pub const PLANTED_BY: &str = "planted";
/// Higher than any measuring thread.
const PRIORITY: i32 = 85;
/// Windows that are kept: more than any run has.
const WINDOWS_MAX: usize = 1 << 20;

/// When the core was taken, CLOCK_MONOTONIC ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    pub start_ns: u64,
    pub end_ns: u64,
}

/// A disturbance that goes on until it is stopped or dropped.
pub struct Plant {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Window>>>,
}

impl Plant {
    /// A real-time thread that takes `core` every `period_ns`, from when its timer runs out until
    /// `duration_ns` later. The time that it takes to wake up is part of that, since the core does nothing
    /// else meanwhile.
    ///
    /// # Errors
    /// The kernel's, without the right to SCHED_FIFO.
    pub fn thread(core: usize, period_ns: u64, duration_ns: u64) -> io::Result<Self> {
        Self::start(core, period_ns, move |due_ns| {
            let end_ns = due_ns + duration_ns;
            while mono_ns() < end_ns {
                std::hint::spin_loop();
            }
            Ok(())
        })
    }

    /// So many timers that run out together on `core`, in one interrupt, every `period_ns`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn interrupts(core: usize, period_ns: u64, timers: usize) -> io::Result<Self> {
        let timers: Vec<OwnedFd> = (0..timers).map(|_| timer()).collect::<io::Result<_>>()?;
        Self::start(core, period_ns, move |due_ns| {
            // Armed from this core, the timers run out on it, after this thread is asleep again.
            let at_ns = due_ns + period_ns / 2;
            timers.iter().try_for_each(|timer| arm(timer, at_ns))
        })
    }

    /// So many packets at once to `to` every `period_ns`, from a thread on another core than the one that
    /// receive packet steering selects on the receiving side.
    ///
    /// # Errors
    /// The kernel's.
    pub fn packets(core: usize, period_ns: u64, from: Ipv4Addr, to: SocketAddrV4, packets: usize) -> io::Result<Self> {
        let socket = UdpSocket::bind((from, 0))?;
        socket.set_nonblocking(true)?;
        Self::start(core, period_ns, move |_| {
            for _ in 0..packets {
                // A full queue is noise as well.
                let _ = socket.send_to(&[0; 1000], to);
            }
            Ok(())
        })
    }

    fn start(
        core: usize,
        period_ns: u64,
        mut disturb: impl FnMut(u64) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new().name(PLANTED_BY.to_owned()).spawn(move || {
            let mut windows = Vec::with_capacity(WINDOWS_MAX);
            let taken = pin(core).and_then(|()| set_fifo(PRIORITY));
            let failed = taken.is_err();
            let _ = ready.send(taken);
            if failed {
                return windows;
            }
            let mut due = mono_ns() + period_ns;
            while !stopping.load(Ordering::Relaxed) && windows.len() < WINDOWS_MAX {
                sleep_until(due);
                let start_ns = mono_ns();
                if disturb(due).is_err() {
                    break;
                }
                windows.push(Window { start_ns, end_ns: mono_ns() });
                // A thread that missed its next time must not lag behind for ever.
                due += period_ns * (mono_ns().saturating_sub(due) / period_ns).max(1);
            }
            windows
        })?;
        is_ready.recv().map_err(io::Error::other)??;
        Ok(Self { stop, thread: Some(thread) })
    }

    /// Ends the disturbance, and returns when it had the core.
    #[must_use]
    pub fn stop(mut self) -> Vec<Window> {
        self.end()
    }

    fn end(&mut self) -> Vec<Window> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Plant {
    fn drop(&mut self) {
        self.end();
    }
}

pub(crate) fn sleep_until(due_ns: u64) {
    let at = libc::timespec {
        tv_sec: (due_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (due_ns % 1_000_000_000).cast_signed(),
    };
    // SAFETY: the time outlives the call; nothing is written.
    while unsafe {
        libc::clock_nanosleep(libc::CLOCK_MONOTONIC, libc::TIMER_ABSTIME, &raw const at, std::ptr::null_mut())
    } == libc::EINTR
    {}
}

fn timer() -> io::Result<OwnedFd> {
    // SAFETY: no memory is handed over; the descriptor is ours alone.
    unsafe {
        let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK);
        if fd < 0 { Err(io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

fn arm(timer: &OwnedFd, at_ns: u64) -> io::Result<()> {
    let never = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let at = libc::timespec {
        tv_sec: (at_ns / 1_000_000_000).cast_signed(),
        tv_nsec: (at_ns % 1_000_000_000).cast_signed(),
    };
    let setting = libc::itimerspec { it_interval: never, it_value: at };
    // SAFETY: the setting outlives the call; nothing is written back.
    let result = unsafe {
        libc::timerfd_settime(timer.as_raw_fd(), libc::TFD_TIMER_ABSTIME, &raw const setting, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
