// SPDX-License-Identifier: Apache-2.0
//! Something that is waited for, in a blocking call or in an event loop.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use fide_pace_socket::now_ns;
use pyo3::{
    IntoPyObjectExt,
    exceptions::{PyRuntimeError, PyTimeoutError},
    prelude::*,
    types::PyBytes,
};

use crate::{
    bell::Bell,
    connection::{Connection, ViewOf},
};

/// A blocking call looks so often whether a signal has come that did not interrupt it.
const SIGNALS_NS: u64 = 100_000_000;

/// What an operation gives.
pub(crate) enum Output {
    Nothing,
    Message(Vec<u8>),
    Connection(fide_pace_socket::Connection),
    View(ViewOf),
}

type Waited = Pin<Box<dyn Future<Output = PyResult<Output>> + Send>>;

struct State {
    /// None: it has ended.
    future: Option<Waited>,
    bell: Arc<Bell>,
    until_ns: Option<u64>,
}

/// Something that is waited for.
#[pyclass(frozen, module = "fide_pace._native")]
pub(crate) struct Operation(Mutex<State>);

/// Sleeps until a time, inside of an operation without a limit, whose bell this is.
pub(crate) fn sleep(bell: Arc<Bell>, time: Duration) -> impl Future<Output = ()> + Send {
    let at_ns = now_ns().saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    std::future::poll_fn(move |_| {
        if now_ns() >= at_ns {
            return Poll::Ready(());
        }
        bell.set_at(at_ns);
        Poll::Pending
    })
}

impl Operation {
    /// `within`: it fails then with a `TimeoutError`; none: it may take for ever.
    pub(crate) fn new<F: Future<Output = PyResult<Output>> + Send + 'static>(
        within: Option<Duration>,
        make: impl FnOnce(Arc<Bell>) -> F,
    ) -> PyResult<Self> {
        let bell = Bell::get()?;
        let within_ns = within.map(|within| u64::try_from(within.as_nanos()).unwrap_or(u64::MAX));
        let until_ns = within_ns.map(|within_ns| now_ns().saturating_add(within_ns));
        let future: Waited = Box::pin(make(Arc::clone(&bell)));
        Ok(Self(Mutex::new(State { future: Some(future), bell, until_ns })))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step(&self) -> Poll<PyResult<Output>> {
        let mut state = self.lock();
        // The bell is set before the future is polled: a ring that comes from then on is not lost.
        state.bell.silence();
        if let Some(until_ns) = state.until_ns {
            state.bell.set_at(until_ns);
        }
        let waker = Waker::from(Arc::clone(&state.bell));
        let Some(future) = &mut state.future else {
            return Poll::Ready(Err(PyRuntimeError::new_err("the operation has ended; begin another one")));
        };
        let result = future.as_mut().poll(&mut Context::from_waker(&waker));
        let is_late = state.until_ns.is_some_and(|until_ns| until_ns <= now_ns());
        let result = match result {
            Poll::Pending if is_late => Poll::Ready(Err(PyTimeoutError::new_err("nothing came within the timeout"))),
            result => result,
        };
        if result.is_ready() {
            state.future = None;
        }
        result
    }
}

fn to_python(py: Python<'_>, output: Output) -> PyResult<Py<PyAny>> {
    match output {
        Output::Nothing => Ok(py.None()),
        Output::Message(bytes) => Ok(PyBytes::new(py, &bytes).into_any().unbind()),
        Output::Connection(connection) => Connection::new(connection).into_py_any(py),
        Output::View(view) => view.into_py_any(py),
    }
}

#[pymethods]
impl Operation {
    /// Waits for the end, without the interpreter's lock. A signal interrupts it, if its handler raises an exception.
    fn run(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        loop {
            let step = || {
                let result = self.step();
                if result.is_pending() {
                    let bell = Arc::clone(&self.lock().bell);
                    // A signal is looked at below.
                    let _ = bell.wait(SIGNALS_NS);
                }
                result
            };
            match py.detach(step) {
                Poll::Ready(result) => return to_python(py, result?),
                Poll::Pending => py.check_signals()?,
            }
        }
    }

    /// Whether it has ended, and what it has given. If not, `fileno` becomes readable when this is to be called again.
    fn poll(&self, py: Python<'_>) -> PyResult<(bool, Py<PyAny>)> {
        match py.detach(|| self.step()) {
            Poll::Ready(result) => Ok((true, to_python(py, result?)?)),
            Poll::Pending => Ok((false, py.None())),
        }
    }

    fn fileno(&self) -> i32 {
        self.lock().bell.fileno()
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        let mut state = self.lock();
        state.future = None;
        Arc::clone(&state.bell).give_back();
    }
}
