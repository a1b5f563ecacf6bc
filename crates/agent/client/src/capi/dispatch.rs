// SPDX-License-Identifier: Apache-2.0
//! Turns events into upcalls, and runs the optional thread that does so for programs without an event loop.

use super::*;
use crate::{Event, Evidence, Reason};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec},
    fd::{AsFd, BorrowedFd},
    io::Errno,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
};

/// Events of one fide_dispatch; further ones keep the descriptor readable or are taken by the next call.
const DISPATCH_MAX: c_int = 256;
/// Longest text handed to C, with its NUL; the rest is cut off. Targets have at most 63 bytes.
const TEXT_MAX: usize = 256;

/// A running dispatcher thread.
pub(super) struct Dispatcher {
    thread: JoinHandle<()>,
    stop: Arc<Stop>,
}

struct Stop {
    wanted: AtomicBool,
    wake: OwnedFd,
}

/// The handle, on its way into the dispatcher thread.
struct Shared(*const Fide);
// SAFETY: every field of Fide may be used from several threads; the thread ends before the handle is freed.
unsafe impl Send for Shared {}

fn failed(call: &str, errno: Errno) -> Failure {
    Failure(-errno.raw_os_error(), format!("{call}: {errno}"))
}

/// Dispatches the events that are there. If there are none, waits once and dispatches again.
pub(super) fn dispatch(fide: &Fide, timeout_ms: c_int, stop: Option<BorrowedFd<'_>>) -> Result<c_int, Failure> {
    let mut count = dispatch_ready(fide, stop.is_some())?;
    if count > 0 || timeout_ms == 0 {
        return Ok(count);
    }
    if let Some(spin) = fide.spin {
        let event = fide.client().wait_event(Some(spin))?;
        if let Some(event) = event {
            upcall(fide, &event);
            return Ok(1 + dispatch_ready(fide, stop.is_some())?);
        }
    }
    let timeout = (timeout_ms > 0)
        .then(|| Timespec { tv_sec: i64::from(timeout_ms / 1000), tv_nsec: i64::from(timeout_ms % 1000) * 1_000_000 });
    let also = stop.unwrap_or(fide.epoll.as_fd());
    let mut fds = [fide.epoll.as_fd(), also].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    rustix::event::poll(&mut fds, timeout.as_ref()).map_err(|errno| failed("poll", errno))?;
    count += dispatch_ready(fide, stop.is_some())?;
    Ok(count)
}

fn dispatch_ready(fide: &Fide, in_thread: bool) -> Result<c_int, Failure> {
    for count in 0..DISPATCH_MAX {
        if in_thread && stopping(fide) {
            return Ok(count);
        }
        // Taken under the lock, delivered without it.
        let event = fide.client().poll_event()?;
        let Some(event) = event else { return Ok(count) };
        upcall(fide, &event);
    }
    Ok(DISPATCH_MAX)
}

fn stopping(fide: &Fide) -> bool {
    let dispatcher = fide.dispatcher.lock().unwrap_or_else(PoisonError::into_inner);
    dispatcher.as_ref().is_none_or(|dispatcher| dispatcher.stop.wanted.load(Ordering::Acquire))
}

pub(super) fn start(fide: &Fide) -> Result<c_int, Failure> {
    let mut dispatcher = fide.dispatcher.lock().unwrap_or_else(PoisonError::into_inner);
    // A dispatcher that has ended by itself makes room for another.
    if dispatcher.as_ref().is_some_and(|dispatcher| !dispatcher.thread.is_finished()) {
        return Err(Failure(-libc::EALREADY, "a dispatcher thread is running already".into()));
    }
    let wake = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| failed("eventfd", errno))?;
    let stop = Arc::new(Stop { wanted: AtomicBool::new(false), wake });
    let (shared, own_stop) = (Shared(fide), Arc::clone(&stop));
    let body = move || run(shared, &own_stop);
    let thread =
        without_signals(|| std::thread::Builder::new().name("fide-dispatch".into()).spawn(body)).map_err(|error| {
            Failure(-error.raw_os_error().unwrap_or(libc::EAGAIN), format!("starting a thread: {error}"))
        })?;
    *dispatcher = Some(Dispatcher { thread, stop });
    Ok(0)
}

/// A new thread inherits the signal mask. Blocking all signals leaves the program's signals to the
/// program's threads.
fn without_signals<R>(spawn: impl FnOnce() -> R) -> R {
    // SAFETY: both sets are local and initialized by the calls; only this thread's mask changes, and is put
    // back.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed::<libc::sigset_t>(), std::mem::zeroed::<libc::sigset_t>());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        let result = spawn();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

fn run(shared: Shared, stop: &Stop) {
    // The whole wrapper moves into this thread, not only its pointer.
    let Shared(fide) = shared;
    // SAFETY: fide_close joins this thread before it frees the handle.
    let fide = unsafe { &*fide };
    while !stop.wanted.load(Ordering::Acquire) {
        let why = match catch_unwind(AssertUnwindSafe(|| dispatch(fide, -1, Some(stop.wake.as_fd())))) {
            Ok(Ok(_)) => continue,
            Ok(Err(Failure(code, _))) if code == -libc::EINTR => continue,
            Ok(Err(Failure(_, why))) => why,
            Err(_) => "a panic; this is a bug of the library".into(),
        };
        // A damaged ring or a bug: no more events can come, and the program has to know that. The table and
        // its lease still show whether it may act.
        let upcalls = *fide.upcalls.lock().unwrap_or_else(PoisonError::into_inner);
        notice(upcalls, FideNoticeKind::DispatchEnded, 0, 0, &why);
        return;
    }
}

pub(super) fn stop(fide: &Fide) -> Result<c_int, Failure> {
    let taken = {
        let mut dispatcher = fide.dispatcher.lock().unwrap_or_else(PoisonError::into_inner);
        if dispatcher.as_ref().is_some_and(|d| d.thread.thread().id() == std::thread::current().id()) {
            let message = "an upcall of the dispatcher thread cannot stop it or close the handle";
            return Err(Failure(-libc::EDEADLK, message.into()));
        }
        dispatcher.take()
    };
    if let Some(Dispatcher { thread, stop }) = taken {
        stop.wanted.store(true, Ordering::Release);
        // Cannot fail: the counter of this eventfd is 0 or 1.
        let _ = rustix::io::write(&stop.wake, &1u64.to_ne_bytes());
        let _ = thread.join();
    }
    Ok(0)
}

/// `text` with a NUL, on the stack, for the time of an upcall.
pub(super) fn with_text<R>(text: &str, body: impl FnOnce(*const c_char) -> R) -> R {
    let mut buffer = [0u8; TEXT_MAX];
    let len = text.floor_char_boundary(TEXT_MAX - 1);
    buffer[..len].copy_from_slice(&text.as_bytes()[..len]);
    body(buffer.as_ptr().cast())
}

fn verdict_of(monitor: MonitorId, target: *const c_char, reason: Option<Reason>, evidence: &Evidence) -> FideVerdict {
    let (reason, code) = match reason {
        None => (FideReason::None, 0),
        Some(Reason::Exited(code)) => (FideReason::Exited, code),
        Some(Reason::Killed(signal)) => (FideReason::Killed, signal),
        Some(Reason::Left) => (FideReason::Left, 0),
        Some(Reason::HostSilent) => (FideReason::HostSilent, 0),
        Some(Reason::Stalled) => (FideReason::Stalled, 0),
        Some(Reason::Recovered) => (FideReason::Recovered, 0),
    };
    FideVerdict {
        monitor: monitor.0 as c_int,
        reason,
        target,
        code,
        incarnation: evidence.incarnation,
        host_id: evidence.host_id,
        slot: evidence.slot,
        plane: evidence.plane,
        direct: evidence.direct.into(),
        seq: evidence.seq,
        rx_ns: evidence.rx_ns,
        at_ns: evidence.at_ns.unwrap_or(0),
    }
}

fn notice(upcalls: Upcalls, kind: FideNoticeKind, host_id: u16, value: u64, text: &str) {
    if let Some(call) = upcalls.table.on_notice {
        with_text(text, |text| {
            // SAFETY: fide_set_upcalls was promised that the function may be called with `user`; the notice
            // and its text live until it returns.
            unsafe { call(upcalls.user, &FideNotice { kind, host_id, value, text }) }
        });
    }
}

/// Calls the function that is meant for `event`, if there is one.
fn upcall(fide: &Fide, event: &Event) {
    let upcalls = *fide.upcalls.lock().unwrap_or_else(PoisonError::into_inner);
    let Upcalls { table, user } = upcalls;
    let notice = |kind, host_id, value, text: &str| notice(upcalls, kind, host_id, value, text);
    match event {
        Event::Verdict(verdict) => {
            let call = if verdict.reason.is_failure() { table.on_failure } else { table.on_change };
            if let Some(call) = call {
                with_text(&verdict.target, |target| {
                    let verdict = verdict_of(verdict.monitor, target, Some(verdict.reason), &verdict.evidence);
                    // SAFETY: as above.
                    unsafe { call(user, &verdict) }
                });
            }
        }
        Event::Up { monitor, target, evidence } => {
            if let Some(call) = table.on_up {
                // SAFETY: as above.
                with_text(target, |target| unsafe { call(user, &verdict_of(*monitor, target, None, evidence)) });
            }
        }
        Event::Piggyback { monitor, target, evidence, bytes } => {
            if let Some(call) = table.on_piggyback_rcv {
                with_text(target, |target| {
                    let message = FideMessage {
                        monitor: monitor.0 as c_int,
                        incarnation: evidence.incarnation,
                        target,
                        data: bytes.as_ptr().cast(),
                        len: bytes.len(),
                        pb_seq: evidence.seq,
                        rx_ns: evidence.rx_ns,
                    };
                    // SAFETY: as above; the bytes live until the function returns.
                    unsafe { call(user, &message) }
                });
            }
        }
        Event::TimeoutChanged { monitor, timeout } => {
            if let Some(call) = table.on_timeout_changed {
                // SAFETY: as above.
                unsafe { call(user, monitor.0 as c_int, timeout.as_micros().min(u32::MAX.into()) as u32) }
            }
        }
        Event::MonitorRequest { process, watcher_host_id, watcher, pbsize } => {
            if let Some(call) = table.on_monitor_req {
                with_text(watcher, |watcher| {
                    // SAFETY: as above.
                    unsafe { call(user, process.0 as c_int, watcher, *watcher_host_id, (*pbsize).into()) }
                });
            }
        }
        Event::PbsizeChanged { process, pbsize } => {
            if let Some(call) = table.on_pbsize_changed {
                // SAFETY: as above.
                unsafe { call(user, process.0 as c_int, (*pbsize).into()) }
            }
        }
        Event::LaneMessage { .. } | Event::LaneChanged { .. } | Event::LaneTerminated { .. } => {
            lanes::upcall(upcalls, event);
        }
        Event::Fenced => notice(FideNoticeKind::Fenced, 0, 0, ""),
        Event::Unfenced => notice(FideNoticeKind::Unfenced, 0, 0, ""),
        Event::PathLost { host_id, plane } => notice(FideNoticeKind::PathLost, *host_id, (*plane).into(), ""),
        Event::PathRestored { host_id, plane } => notice(FideNoticeKind::PathRestored, *host_id, (*plane).into(), ""),
        Event::Rejoined { incarnation } => notice(FideNoticeKind::Rejoined, 0, (*incarnation).into(), ""),
        Event::ObserverStalled { host_id } => notice(FideNoticeKind::ObserverStalled, *host_id, 0, ""),
        Event::Detached { why } => notice(FideNoticeKind::Detached, 0, 0, why),
        Event::Reattached { resumed } => notice(FideNoticeKind::Reattached, 0, (*resumed).into(), ""),
        Event::Dropped { what, refusal } => {
            notice(FideNoticeKind::Dropped, 0, 0, &format!("{what}: {refusal}"));
        }
        Event::Lost { count } => notice(FideNoticeKind::Lost, 0, *count, ""),
    }
}
