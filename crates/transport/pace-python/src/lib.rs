// SPDX-License-Identifier: Apache-2.0
//! The native part of the Python package `fide_pace`: [`fide_pace_socket`] for `python/fide_pace/__init__.py`, which has the
//! classes that people use.
//!
//! What waits is an [`operation::Operation`], one for blocking and for asynchronous calls: its future is polled here, by
//! whoever waits, and a descriptor becomes readable when it is to be polled again. No thread of the transport ever takes the
//! interpreter's lock, so a busy interpreter delays no packet.

mod bell;
mod connection;
mod endpoint;
mod operation;

use std::time::Duration;

use pyo3::{exceptions::PyValueError, prelude::*};

/// Exceptions of the package: `python/fide_pace/_errors.py`.
pub(crate) mod errors {
    pyo3::import_exception!(fide_pace._errors, ConnectError);
    pyo3::import_exception!(fide_pace._errors, ConnectionClosed);
    pyo3::import_exception!(fide_pace._errors, ConnectionLost);
    pyo3::import_exception!(fide_pace._errors, DeadlineError);
    pyo3::import_exception!(fide_pace._errors, EndpointClosed);
    pyo3::import_exception!(fide_pace._errors, InvalidKey);
    pyo3::import_exception!(fide_pace._errors, MessageTooLong);
    pyo3::import_exception!(fide_pace._errors, QueueFull);
}

/// A time in seconds, as Python has it. None for one that is negative, or none.
pub(crate) fn seconds(seconds: f64) -> Option<Duration> {
    Duration::try_from_secs_f64(seconds).ok()
}

/// How long a call may wait: None for ever, at least not at all.
pub(crate) fn timeout(given: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(given) = given else { return Ok(None) };
    if given.is_nan() {
        return Err(PyValueError::new_err("timeout is not a number; give seconds, or None to wait for ever"));
    }
    Ok(seconds(given.max(0.0)))
}

#[pymodule(name = "_native")]
mod native {
    #[pymodule_export]
    use super::{
        connection::{Changes, Connection},
        endpoint::{Endpoint, client_key, new_private, new_secret, resolve},
        operation::Operation,
    };
}
