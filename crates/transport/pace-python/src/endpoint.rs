// SPDX-License-Identifier: Apache-2.0
//! Keys, and endpoints.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    sync::Arc,
};

use fide_pace_socket::{
    AcceptError, Algorithm, BindError, ClientKey, Config, ConnectError, IDLE_LEAST_NS, KeyError, ServerKey,
    new_private as private, new_secret as secret,
};
use pyo3::{
    exceptions::{PyOSError, PyValueError},
    prelude::*,
};

use crate::{
    errors,
    operation::{Operation, Output},
    seconds, timeout,
};

/// A secret for both ends.
#[pyfunction]
pub(crate) fn new_secret() -> String {
    secret().to_text()
}

/// A private key for a server.
#[pyfunction]
pub(crate) fn new_private() -> String {
    private().to_text()
}

fn invalid(why: KeyError) -> PyErr {
    errors::InvalidKey::new_err(why.to_string())
}

/// The key that the clients of a server have.
#[pyfunction]
pub(crate) fn client_key(server_key: &str) -> PyResult<String> {
    Ok(ServerKey::parse(server_key).map_err(invalid)?.for_clients().to_text())
}

/// An address with numbers, for one with a name. It may ask the network.
#[pyfunction]
pub(crate) fn resolve(py: Python<'_>, address: &str) -> PyResult<String> {
    let wrong = |why: String| PyValueError::new_err(format!("{address:?} is no address: {why}; write HOST:PORT"));
    let found = py.detach(|| address.to_socket_addrs().map(|mut found| found.next()));
    let found = found.map_err(|why| wrong(why.to_string()))?;
    Ok(found.ok_or_else(|| wrong("the name has no address".to_owned()))?.to_string())
}

fn parse(address: &str) -> PyResult<SocketAddr> {
    address.parse().map_err(|_| PyValueError::new_err(format!("{address:?} is no address: write HOST:PORT")))
}

/// How connections are to be, as Python has it: deadline, loss, queue, congestion, even_ways, idle.
type Options = (f64, f64, u32, String, bool, f64);

fn config((deadline, loss, queue, congestion, even_ways, idle): Options) -> PyResult<Config> {
    let wrong = |what: String| Err(PyValueError::new_err(what));
    let deadline = match seconds(deadline).map(|deadline| u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX)) {
        Some(ns) if ns > 0 => ns,
        _ => return wrong(format!("deadline is {deadline}; give seconds, more than 0")),
    };
    if !(0.0..1.0).contains(&loss) {
        return wrong(format!("loss is {loss}; it is a share, at least 0 and less than 1"));
    }
    if queue == 0 {
        return wrong("queue is 0; at least one message has to wait".to_owned());
    }
    let algorithm = match congestion.as_str() {
        "level" => Algorithm::Level,
        "xpace" => Algorithm::XPace,
        other => return wrong(format!("congestion is {other:?}; use \"level\" or \"xpace\"")),
    };
    let idle_ns = match seconds(idle).map(|idle| u64::try_from(idle.as_nanos()).unwrap_or(u64::MAX)) {
        Some(ns) if ns >= IDLE_LEAST_NS => ns,
        _ => return wrong(format!("idle is {idle}; give seconds, at least {}", IDLE_LEAST_NS / 1_000_000_000)),
    };
    let queue_max = queue as usize;
    Ok(Config {
        deadline_ns: deadline,
        residual_loss: loss,
        queue_max,
        algorithm,
        even_ways,
        idle_ns,
        ..Config::default()
    })
}

fn bind(why: BindError) -> PyErr {
    let of_system = match &why {
        BindError::Bind { why, .. } | BindError::Thread(why) => why,
        BindError::Config(why) => return PyValueError::new_err(why.to_string()),
    };
    match of_system.raw_os_error() {
        Some(errno) => PyOSError::new_err((errno, why.to_string())),
        None => PyOSError::new_err(why.to_string()),
    }
}

fn connect(why: ConnectError) -> PyErr {
    match why {
        ConnectError::Closed => errors::EndpointClosed::new_err(why.to_string()),
        ConnectError::Begin(fide_pace_socket::BeginError::Key) => errors::InvalidKey::new_err(why.to_string()),
        _ => errors::ConnectError::new_err(why.to_string()),
    }
}

/// A socket, its thread, and connections from it and to it.
#[pyclass(frozen, module = "fide_pace._native")]
pub(crate) struct Endpoint(Arc<fide_pace_socket::Endpoint>);

#[pymethods]
impl Endpoint {
    #[staticmethod]
    fn client() -> PyResult<Self> {
        let endpoint = fide_pace_socket::Endpoint::client().map_err(bind)?;
        Ok(Self(Arc::new(endpoint)))
    }

    #[staticmethod]
    fn server(address: &str, key: &str, options: Options) -> PyResult<Self> {
        let key = ServerKey::parse(key).map_err(invalid)?;
        let config = config(options)?;
        let endpoint = fide_pace_socket::Endpoint::server(parse(address)?, key, config).map_err(bind)?;
        Ok(Self(Arc::new(endpoint)))
    }

    fn local_address(&self) -> PyResult<String> {
        Ok(self.0.local_address()?.to_string())
    }

    fn connect(&self, address: &str, key: &str, options: Options) -> PyResult<Operation> {
        let key = ClientKey::parse(key).map_err(invalid)?;
        let config = config(options)?;
        let (endpoint, address) = (Arc::clone(&self.0), parse(address)?);
        Operation::new(None, |_| async move {
            let connection = endpoint.connect_async(address, &key, config).await.map_err(connect)?;
            Ok(Output::Connection(connection))
        })
    }

    #[pyo3(signature = (within))]
    fn accept(&self, within: Option<f64>) -> PyResult<Operation> {
        let endpoint = Arc::clone(&self.0);
        Operation::new(timeout(within)?, |_| async move {
            let accepted = endpoint.accept_async().await.map_err(|why| match why {
                AcceptError::Closed => errors::EndpointClosed::new_err(why.to_string()),
                AcceptError::NoServer => {
                    PyValueError::new_err("this endpoint has no key for clients: make it with `server`")
                }
            });
            accepted.map(Output::Connection)
        })
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}
