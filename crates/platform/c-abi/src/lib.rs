// SPDX-License-Identifier: Apache-2.0
//! What every function of a C ABI does at its boundary: arguments are checked, errors become numbers and a
//! text, and panics end.
//!
//! A crate of its own, because the C ABIs of agents' clients and of transports share it, and neither wing may depend on
//! the other. The text of the last error is one for each library that is linked.

use libc::{c_char, c_int, c_void};
use std::{
    cell::RefCell,
    ffi::{CStr, CString},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// A failure for C: a negative errno, and the message for [`last_error`].
#[derive(Debug)]
pub struct Failure(pub c_int, pub String);

/// -EINVAL, and what would be right.
#[must_use]
pub fn invalid(what: &str) -> Failure {
    Failure(-libc::EINVAL, what.to_owned())
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Keeps the message of a failed call for [`last_error`].
fn remember(message: &str) {
    let text = CString::new(message.replace('\0', " ")).unwrap_or_default();
    // Fails while the thread's storage is being torn down; nobody asks for the message then.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
}

/// The message of the last failed call of this thread; empty before the first. It lives until the next one fails.
#[must_use]
pub fn last_error() -> *const c_char {
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Runs `body`; failures and panics become negative codes with a message.
pub fn guard<T: From<i32>>(body: impl FnOnce() -> Result<T, Failure>) -> T {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value,
        Ok(Err(Failure(code, message))) => {
            remember(&message);
            T::from(code)
        }
        Err(_) => {
            remember("internal error in the Fide library (a bug); the handle may be of no further use");
            T::from(-libc::ENOTRECOVERABLE)
        }
    }
}

/// A text, or None for NULL.
///
/// # Errors
/// It is not UTF-8.
///
/// # Safety
/// `text` is null or a NUL-terminated string that outlives the call.
pub unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the contract says.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| invalid(&format!("{what} is not UTF-8")))
}

/// A text that must not be NULL.
///
/// # Errors
/// It is NULL, or not UTF-8.
///
/// # Safety
/// As [`text`].
pub unsafe fn needed<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    // SAFETY: as the contract says.
    unsafe { text(pointer, what) }?.ok_or_else(|| invalid(&format!("{what} is NULL")))
}

/// Bytes of the caller.
///
/// # Errors
/// `data` is NULL and `len` is not 0, or no object is that long.
///
/// # Safety
/// `len` bytes at `data` are readable while the slice is in use.
pub unsafe fn bytes<'a>(data: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if data.is_null() {
        return Err(invalid("data is NULL"));
    }
    if isize::try_from(len).is_err() {
        return Err(invalid(&format!("len is {len}, more than any object has; was a negative number meant?")));
    }
    // SAFETY: as the contract says.
    Ok(unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) })
}

/// Copies a struct whose first field is the size that the caller was compiled with; fields that the caller
/// did not know are zero. None for NULL.
///
/// # Errors
/// The size is less than that of its own field.
///
/// # Safety
/// `given` is null or points to `*given` readable bytes, where `*given` is its `size` field; `T` is valid
/// when zeroed.
pub unsafe fn sized<T: Copy>(given: *const T, what: &str) -> Result<Option<T>, Failure> {
    if given.is_null() {
        return Ok(None);
    }
    // SAFETY: the size field is the first one of `T` (repr(C)), readable by the contract.
    let size = unsafe { given.cast::<usize>().read() };
    if size < size_of::<usize>() {
        return Err(invalid(&format!("{what}.size is {size}; set it to sizeof({what})")));
    }
    let mut copy = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: `size` bytes are readable by the contract, at most size_of::<T>() are written; zero is valid
    // for the rest.
    unsafe {
        std::ptr::copy_nonoverlapping(given.cast::<u8>(), copy.as_mut_ptr().cast::<u8>(), size.min(size_of::<T>()));
        Ok(Some(copy.assume_init()))
    }
}

/// The size that the caller has set in a struct that is to be filled.
///
/// # Errors
/// `out` is NULL, or the size is less than that of its own field.
///
/// # Safety
/// `out` is null or its first field, `size`, is readable.
pub unsafe fn room<T>(out: *const T, what: &str) -> Result<usize, Failure> {
    if out.is_null() {
        return Err(invalid(&format!("the {what} pointer is NULL; pass the address of a {what}")));
    }
    // SAFETY: by the contract.
    let size = unsafe { out.cast::<usize>().read() };
    match size < size_of::<usize>() {
        true => Err(invalid(&format!("{what}.size is {size}; set it to sizeof({what})"))),
        false => Ok(size),
    }
}

/// Writes `value` for a caller that was compiled with a struct of `size` bytes.
///
/// # Safety
/// `size` bytes at `out` are writable.
pub unsafe fn fill<T: Copy>(out: *mut T, value: &T, size: usize) {
    // SAFETY: at most `size_of::<T>()` bytes are read, at most `size` written.
    unsafe {
        std::ptr::copy_nonoverlapping(std::ptr::from_ref(value).cast::<u8>(), out.cast(), size.min(size_of::<T>()));
    }
}
