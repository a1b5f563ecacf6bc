// SPDX-License-Identifier: Apache-2.0
//! Errors as negative errnos, each with its message.

use fide_c_abi::Failure;
use fide_pace_socket::{AcceptError, BindError, Closed, ConnectError, RecvError, SendError, SetUpError, sender};
use libc::c_int;

fn errno(error: &std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Why an endpoint is not made.
pub(crate) fn bind(why: &BindError) -> Failure {
    let code = match why {
        BindError::Bind { why, .. } | BindError::Thread(why) => errno(why),
        BindError::Config(_) => libc::EINVAL,
    };
    Failure(-code, why.to_string())
}

/// Why the system does not do what it was asked.
pub(crate) fn system(what: &str, why: &std::io::Error) -> Failure {
    Failure(-errno(why), format!("{what}: {why}"))
}

/// Why there is no connection.
pub(crate) fn connect(why: &ConnectError) -> Failure {
    let code = match why {
        ConnectError::Begin(fide_pace_socket::BeginError::Full(_)) => libc::ENOSPC,
        ConnectError::Begin(fide_pace_socket::BeginError::Key | fide_pace_socket::BeginError::Config(_)) => {
            libc::EINVAL
        }
        ConnectError::Closed => libc::ESHUTDOWN,
        ConnectError::Family { .. } => libc::EAFNOSUPPORT,
        ConnectError::SetUp { why: SetUpError::Silence { .. }, .. } => libc::ETIMEDOUT,
        ConnectError::SetUp { why: SetUpError::Refused(_), .. } => libc::ECONNREFUSED,
    };
    Failure(-code, why.to_string())
}

/// Why no connection is accepted.
pub(crate) fn accept(why: AcceptError) -> Failure {
    let code = match why {
        AcceptError::Closed => libc::ESHUTDOWN,
        AcceptError::NoServer => libc::EOPNOTSUPP,
    };
    Failure(-code, why.to_string())
}

fn closed(why: &Closed) -> c_int {
    match why {
        Closed::Here => libc::ESHUTDOWN,
        Closed::There(_) => libc::EPIPE,
        Closed::Vanished => libc::ETIMEDOUT,
        Closed::Peer(_) => libc::EPROTO,
    }
}

/// Why a message is not sent.
pub(crate) fn send(why: &SendError) -> Failure {
    let code = match why {
        SendError::Message(sender::SendError::TooLong { .. }) => libc::EMSGSIZE,
        SendError::Message(sender::SendError::Full(_)) => libc::EAGAIN,
        SendError::Message(sender::SendError::Expired | sender::SendError::Deadline { .. }) => libc::ETIME,
        SendError::Closed(why) => closed(why),
    };
    Failure(-code, why.to_string())
}

/// Why no message comes any more.
pub(crate) fn receive(why: &RecvError) -> Failure {
    Failure(-closed(&why.0), why.to_string())
}

/// What was waited for did not come.
pub(crate) fn nothing(what: &str, timeout_us: i64) -> Failure {
    Failure(-libc::EAGAIN, format!("{what} within {timeout_us} us"))
}
