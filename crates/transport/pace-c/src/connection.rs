// SPDX-License-Identifier: Apache-2.0
//! Messages out and in; what may be asked; changes; the end.

use std::time::Duration;

use fide_c_abi::{Failure, bytes, fill, guard, invalid, room, text};
use fide_pace_socket::{Message, View};
use libc::{c_char, c_int, c_void};

use crate::{
    FidePaceConnection, FidePaceCounts, FidePaceMessage, FidePaceOnChange, FidePaceView, failure,
    handles::{self, Open},
};

fn deadline(us: i64) -> Result<Option<Duration>, Failure> {
    let wrong = || {
        let why =
            format!("deadline_us is {us}, which is in the past; give the time from now, or 0 for the configuration's");
        Failure(-libc::ETIME, why)
    };
    let us = u64::try_from(us).map_err(|_| wrong())?;
    Ok((us > 0).then(|| Duration::from_micros(us)))
}

/// Sends a message, and returns when the next one may be made: a loop around it is paced to the slowest step. `deadline_us`:
/// from now to the delivery; 0: as the connection is configured. Returns 0; -EBADF if `connection` is none; -EMSGSIZE for more
/// than 4 MiB; -ETIME for a deadline in the past, or above half an hour; -EAGAIN if as many messages wait as are allowed, which happens only beside
/// fide_pace_try_send; -EPIPE if the other end has closed the connection, -ESHUTDOWN if this one has, -ETIMEDOUT if the other
/// one vanished, -EPROTO if it is at fault.
///
/// # Safety
/// `len` bytes at `data` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_send(
    connection: FidePaceConnection,
    data: *const c_void,
    len: usize,
    deadline_us: i64,
) -> c_int {
    guard(|| {
        let open = handles::connection(connection)?;
        // SAFETY: by the contract.
        let data = unsafe { bytes(data, len) }?;
        open.connection.send_within(data, deadline(deadline_us)?).map_err(|why| failure::send(&why))?;
        Ok(0)
    })
}

/// Puts a message into the queue, and returns at once. Returns as fide_pace_send does; -EAGAIN if the queue is full.
///
/// # Safety
/// `len` bytes at `data` are readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_try_send(
    connection: FidePaceConnection,
    data: *const c_void,
    len: usize,
    deadline_us: i64,
) -> c_int {
    guard(|| {
        let open = handles::connection(connection)?;
        // SAFETY: by the contract.
        let data = unsafe { bytes(data, len) }?;
        open.connection.try_send(data, deadline(deadline_us)?).map_err(|why| failure::send(&why))?;
        Ok(0)
    })
}

/// Takes the next message into `into`; waits for it no longer than a time, or for ever if that is negative. `message`: what is
/// told of it, or NULL. Returns its bytes; -EBADF if `connection` is none; -EAGAIN if none has come; -EMSGSIZE if there is less
/// room than it has bytes, and the next call gets it; -EPIPE, -ESHUTDOWN, -ETIMEDOUT, -EPROTO as fide_pace_send, once all that
/// came was taken.
///
/// # Safety
/// `len` bytes at `into` are writable; `message` is NULL or a fide_pace_message whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_recv(
    connection: FidePaceConnection,
    into: *mut c_void,
    len: usize,
    timeout_us: i64,
    message: *mut FidePaceMessage,
) -> i64 {
    guard(|| {
        let open = handles::connection(connection)?;
        // SAFETY: by the contract.
        let told = if message.is_null() { 0 } else { unsafe { room(message, "fide_pace_message") }? };
        if into.is_null() && len > 0 {
            return Err(invalid("into is NULL, and len is not 0"));
        }
        let next = next(&open, timeout_us)?;
        // Who does not ask for it takes no lock for it.
        let is_asked = told > std::mem::offset_of!(FidePaceMessage, expires_in_us);
        let expires_in = is_asked.then(|| open.connection.expires_in(&next)).flatten();
        let expires_in_us = expires_in.map_or(-1, |time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX));
        let filled = FidePaceMessage { size: told, number: next.number, len: next.bytes.len(), expires_in_us };
        if !message.is_null() {
            // SAFETY: by the contract.
            unsafe { fill(message, &filled, told) };
        }
        if filled.len > len {
            let why = format!("the message has {} bytes, and there is room for {len}: it is kept", filled.len);
            *open.kept() = Some(next);
            return Err(Failure(-libc::EMSGSIZE, why));
        }
        if filled.len > 0 {
            // SAFETY: at most `len` bytes, which are writable by the contract; `into` is not null.
            unsafe { std::ptr::copy_nonoverlapping(next.bytes.as_ptr(), into.cast(), filled.len) };
        }
        open.connection.recycle(next);
        Ok(i64::try_from(filled.len).unwrap_or(i64::MAX))
    })
}

fn next(open: &Open, timeout_us: i64) -> Result<Message, Failure> {
    if let Some(message) = open.kept().take() {
        return Ok(message);
    }
    let next = match u64::try_from(timeout_us) {
        Ok(us) => open.connection.recv_timeout(Duration::from_micros(us)),
        Err(_) => open.connection.recv().map(Some),
    };
    let next = next.map_err(|why| failure::receive(&why))?;
    next.ok_or_else(|| failure::nothing("no message has come", timeout_us))
}

/// What is known of the way from here to the other end. Returns 0; -EBADF if `connection` is none; -ESHUTDOWN if it is over.
///
/// # Safety
/// `view` is NULL or a fide_pace_view whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_get_view(connection: FidePaceConnection, view: *mut FidePaceView) -> c_int {
    // SAFETY: by the contract.
    guard(|| unsafe { fill_view(connection, view, |open| open.connection.view()) })
}

/// The same of the way from the other end to here, for who receives: the slowest step of what comes, and how long that is on its way.
/// Returns as fide_pace_get_view does.
///
/// # Safety
/// `view` is NULL or a fide_pace_view whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_get_incoming_view(connection: FidePaceConnection, view: *mut FidePaceView) -> c_int {
    // SAFETY: by the contract.
    guard(|| unsafe { fill_view(connection, view, |open| open.connection.incoming_view()) })
}

/// # Safety
/// `view` is null or a fide_pace_view whose `size` is set.
unsafe fn fill_view(
    connection: FidePaceConnection,
    view: *mut FidePaceView,
    of: impl FnOnce(&Open) -> Option<View>,
) -> Result<c_int, Failure> {
    let open = handles::connection(connection)?;
    // SAFETY: by the contract.
    let size = unsafe { room(view, "fide_pace_view") }?;
    let found = of(&open).ok_or_else(over)?;
    let filled = FidePaceView { size, ..FidePaceView::from(&found) };
    // SAFETY: by the contract.
    unsafe { fill(view, &filled, size) };
    Ok(0)
}

fn over() -> Failure {
    Failure(-libc::ESHUTDOWN, "the connection is over".to_owned())
}

/// What became of messages so far. Returns 0; -EBADF if `connection` is none.
///
/// # Safety
/// `counts` is NULL or a fide_pace_counts whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_get_counts(connection: FidePaceConnection, counts: *mut FidePaceCounts) -> c_int {
    guard(|| {
        let open = handles::connection(connection)?;
        // SAFETY: by the contract.
        let size = unsafe { room(counts, "fide_pace_counts") }?;
        let filled = FidePaceCounts { size, ..FidePaceCounts::from(open.connection.counts()) };
        // SAFETY: by the contract.
        unsafe { fill(counts, &filled, size) };
        Ok(0)
    })
}

/// A time, or -EAGAIN while none is known.
fn time(connection: FidePaceConnection, what: &str, of: impl FnOnce(&Open) -> Option<Duration>) -> i64 {
    guard(|| {
        let open = handles::connection(connection)?;
        match of(&open) {
            Some(time) => Ok(i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)),
            None if open.connection.is_over() => Err(over()),
            None => Err(Failure(-libc::EAGAIN, what.to_owned())),
        }
    })
}

/// The time that the slowest step takes for a message: the time between two messages that nothing waits for. Returns
/// nanoseconds; -EBADF if `connection` is none; -EAGAIN if it is not known yet; -ESHUTDOWN if the connection is over.
#[unsafe(no_mangle)]
pub extern "C" fn fide_pace_bottleneck_pace_ns(connection: FidePaceConnection) -> i64 {
    time(connection, "no pace is known yet", |open| open.connection.bottleneck_pace())
}

/// From now to the delivery of a message that is sent now. Returns nanoseconds, and errors as
/// fide_pace_bottleneck_pace_ns; -EAGAIN if it would wait for feedback.
#[unsafe(no_mangle)]
pub extern "C" fn fide_pace_expected_delay_ns(connection: FidePaceConnection) -> i64 {
    time(connection, "a message would wait for feedback", |open| open.connection.expected_delay())
}

/// When a message would leave at once: an application that sleeps until then, and sends, is paced. From this call on until it
/// sends, it waits: that time is none of its own work. Returns nanoseconds from now, and errors as fide_pace_bottleneck_pace_ns;
/// -EAGAIN if it is after the next feedback.
#[unsafe(no_mangle)]
pub extern "C" fn fide_pace_next_send_in_ns(connection: FidePaceConnection) -> i64 {
    time(connection, "a message may leave after the next feedback", |open| open.connection.next_send_in())
}

/// When the application will send next, if it sends periodically by itself: for those who schedule it; 0: it is late. Returns
/// nanoseconds from now, and errors as fide_pace_bottleneck_pace_ns; -EAGAIN if it does not send periodically, or has stopped.
#[unsafe(no_mangle)]
pub extern "C" fn fide_pace_expected_send_in_ns(connection: FidePaceConnection) -> i64 {
    time(connection, "the application does not send periodically", |open| open.connection.expected_send_in())
}

/// When the next message is to be expected, if they come periodically; 0: one waits, or is late. Returns nanoseconds from now,
/// and errors as fide_pace_bottleneck_pace_ns; -EAGAIN if they do not come periodically, or have stopped.
#[unsafe(no_mangle)]
pub extern "C" fn fide_pace_next_recv_in_ns(connection: FidePaceConnection) -> i64 {
    time(connection, "messages do not come periodically", |open| open.connection.next_recv_in())
}

/// A callback of the user, and what is passed back to it.
struct Callback {
    function: unsafe extern "C" fn(*mut c_void, *const FidePaceView),
    context: *mut c_void,
}

// SAFETY: `context` is passed back and never looked at; fide_pace_on_change says that it is used on another thread.
unsafe impl Send for Callback {}

impl Callback {
    fn call(&self, view: &View) {
        let view = FidePaceView::from(view);
        // SAFETY: the function is the user's for this, by the contract of fide_pace_on_change; `view` lives through the call.
        unsafe { (self.function)(self.context, &view) };
    }
}

/// Calls back with the view as it is now, once the bottleneck is known, and whenever another step is the slowest one or its pace
/// differs by more than an eighth: on a thread of the library, and never twice at a time for one call of this function. The
/// callback may call any function. It ends with the connection: none runs when fide_pace_close has returned, unless that was called
/// by it. Returns 0; -EBADF if `connection` is none; -EINVAL if `callback` is NULL; -EAGAIN if the host gives no further thread.
///
/// # Safety
/// `callback` may be called with `context` on another thread until the connection is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_on_change(
    connection: FidePaceConnection,
    callback: FidePaceOnChange,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        let open = handles::connection(connection)?;
        let function = callback.ok_or_else(|| invalid("callback is NULL; pass a function"))?;
        let callback = Callback { function, context };
        let watch = open.connection.on_change(move |view| callback.call(view));
        open.add_watch(watch.map_err(|why| failure::system("no thread to call back on", &why))?);
        Ok(0)
    })
}

/// Waits until everything that was sent has arrived or expired, but no longer than a time, nor than the connection stands. Returns 1 if
/// it has, 0 if not; -EBADF if `connection` is none.
#[unsafe(no_mangle)]
pub extern "C" fn fide_pace_finish(connection: FidePaceConnection, timeout_us: u64) -> c_int {
    guard(|| Ok(handles::connection(connection)?.connection.finish(Duration::from_micros(timeout_us)).into()))
}

/// Ends a connection, and tells the other end why; NULL: without a reason. What has not left is dropped: fide_pace_finish before.
/// Calls of other threads that wait on it return -ESHUTDOWN. Returns 0; -EBADF if `connection` is none, or closed already.
///
/// # Safety
/// `reason` is NULL or a NUL-terminated string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fide_pace_close(connection: FidePaceConnection, reason: *const c_char) -> c_int {
    guard(|| {
        // SAFETY: by the contract.
        let reason = unsafe { text(reason, "reason") }?.unwrap_or_default();
        let open = handles::take_connection(connection)?;
        open.connection.close(reason);
        open.end_watches();
        Ok(0)
    })
}
