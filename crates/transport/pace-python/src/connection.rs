// SPDX-License-Identifier: Apache-2.0
//! Connections.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use fide_pace_socket::{Closed, RecvError, SendError, Step, View, sender};
use pyo3::{prelude::*, types::PyBytes};

use crate::{
    errors,
    operation::{Operation, Output, sleep},
    seconds, timeout,
};

/// What Python's `View` is made of, in the order of its fields; times in seconds.
pub(crate) type ViewOf = (
    Option<&'static str>,
    Option<f64>,
    [Option<f64>; Step::ALL.len()],
    Option<u64>,
    f64,
    u16,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<f64>,
    Option<(f64, f64, i64)>,
);

fn of_ns(ns: u64) -> f64 {
    Duration::from_nanos(ns).as_secs_f64()
}

fn view_of(view: &View) -> ViewOf {
    (
        view.bottleneck.map(|(step, _)| step.name()),
        view.bottleneck.map(|(_, ns)| of_ns(ns)),
        Step::ALL.map(|step| Some(view.paces.get(step)).filter(|ns| *ns > 0).map(of_ns)),
        view.network_bytes_per_s,
        of_ns(view.delay_ns),
        view.waiting_there,
        view.send_period_ns.map(of_ns),
        view.receive_period_ns.map(of_ns),
        view.total_ns.map(of_ns),
        view.one_way_ns.map(of_ns),
        view.peer_clock.map(|clock| (clock.us as f64 / 1e6, of_ns(clock.uncertainty_us * 1000), view.drift_ppm)),
    )
}

fn closed(why: &Closed, text: String) -> PyErr {
    match why {
        Closed::Here | Closed::There(_) => errors::ConnectionClosed::new_err(text),
        Closed::Vanished | Closed::Peer(_) => errors::ConnectionLost::new_err(text),
    }
}

fn unsent(why: SendError) -> PyErr {
    let text = why.to_string();
    match &why {
        SendError::Message(sender::SendError::TooLong { .. }) => errors::MessageTooLong::new_err(text),
        SendError::Message(sender::SendError::Full(_)) => errors::QueueFull::new_err(text),
        SendError::Message(sender::SendError::Expired | sender::SendError::Deadline { .. }) => {
            errors::DeadlineError::new_err(text)
        }
        SendError::Closed(why) => closed(why, text),
    }
}

fn unreceived(why: RecvError) -> PyErr {
    closed(&why.0, why.to_string())
}

fn deadline(given: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(given) = given else { return Ok(None) };
    let Some(found) = seconds(given).filter(|found| !found.is_zero()) else {
        let why = format!("deadline is {given} s, which is in the past; give seconds from now, more than 0");
        return Err(errors::DeadlineError::new_err(why));
    };
    Ok(Some(found))
}

/// A connection that stands.
#[pyclass(frozen, module = "fide_pace._native")]
pub(crate) struct Connection(Arc<fide_pace_socket::Connection>);

impl Connection {
    pub(crate) fn new(connection: fide_pace_socket::Connection) -> Self {
        Self(Arc::new(connection))
    }
}

#[pymethods]
impl Connection {
    fn send(&self, data: &[u8], within: Option<f64>) -> PyResult<Operation> {
        let (connection, data, within) = (Arc::clone(&self.0), data.to_vec(), deadline(within)?);
        Operation::new(None, |bell| async move {
            let sent = connection.send_within_async(&data, within, |time| sleep(Arc::clone(&bell), time));
            sent.await.map_err(unsent)?;
            Ok(Output::Nothing)
        })
    }

    fn try_send(&self, py: Python<'_>, data: &[u8], within: Option<f64>) -> PyResult<()> {
        let within = deadline(within)?;
        py.detach(|| self.0.try_send(data, within)).map_err(unsent)
    }

    fn recv(&self, within: Option<f64>) -> PyResult<Operation> {
        let connection = Arc::clone(&self.0);
        Operation::new(timeout(within)?, |_| async move {
            Ok(Output::Message(connection.recv_async().await.map_err(unreceived)?.bytes))
        })
    }

    fn try_recv<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let message = py.detach(|| self.0.try_recv()).map_err(unreceived)?;
        Ok(message.map(|message| {
            let bytes = PyBytes::new(py, &message.bytes);
            self.0.recycle(message);
            bytes
        }))
    }

    fn view(&self, py: Python<'_>) -> Option<ViewOf> {
        py.detach(|| self.0.view()).as_ref().map(view_of)
    }

    fn incoming_view(&self, py: Python<'_>) -> Option<ViewOf> {
        py.detach(|| self.0.incoming_view()).as_ref().map(view_of)
    }

    fn expected_delay(&self) -> Option<f64> {
        self.0.expected_delay().as_ref().map(Duration::as_secs_f64)
    }

    fn next_send_in(&self) -> Option<f64> {
        self.0.next_send_in().as_ref().map(Duration::as_secs_f64)
    }

    fn expected_send_in(&self) -> Option<f64> {
        self.0.expected_send_in().as_ref().map(Duration::as_secs_f64)
    }

    fn next_recv_in(&self) -> Option<f64> {
        self.0.next_recv_in().as_ref().map(Duration::as_secs_f64)
    }

    fn changes(&self) -> Changes {
        Changes(Arc::new(Mutex::new(self.0.changes())))
    }

    /// Messages sent, dropped here, received, lost, and of these late.
    fn counts(&self) -> (u64, u64, u64, u64, u64) {
        let counts = self.0.counts();
        let (sent, received) = (counts.sent, counts.received);
        (sent.messages, sent.dropped, received.delivered, received.lost, received.late)
    }

    fn peer(&self) -> Option<String> {
        self.0.peer().map(|address| address.to_string())
    }

    fn is_idle(&self) -> bool {
        self.0.finish(Duration::ZERO)
    }

    fn close(&self, py: Python<'_>, reason: &str) {
        py.detach(|| self.0.close(reason));
    }

    fn is_over(&self) -> bool {
        self.0.is_over()
    }
}

/// Changes of a connection's bottleneck.
#[pyclass(frozen, module = "fide_pace._native")]
pub(crate) struct Changes(Arc<Mutex<fide_pace_socket::Changes>>);

#[pymethods]
impl Changes {
    fn next(&self, within: Option<f64>) -> PyResult<Operation> {
        let changes = Arc::clone(&self.0);
        Operation::new(timeout(within)?, |_| async move {
            let mut now = changes.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let view = now.wait_async().await.map_err(unreceived)?;
            *changes.lock().unwrap_or_else(PoisonError::into_inner) = now;
            Ok(Output::View(view_of(&view)))
        })
    }
}
