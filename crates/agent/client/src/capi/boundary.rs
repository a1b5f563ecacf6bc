// SPDX-License-Identifier: Apache-2.0
//! The boundary of the C ABI, for this crate and `fide-group-c`, whose functions are in the same library; and what errors of
//! clients are for C.

use crate::{Declined, Error};
use fide_agent_api::protocol::ErrorCode;

pub use fide_c_abi::*;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::NoAgent { errno, .. } | Error::System { errno, .. } => errno.raw_os_error(),
            Error::Refused(refusal) => match refusal.code {
                ErrorCode::Version => libc::EPROTONOSUPPORT,
                ErrorCode::NameTaken => libc::EEXIST,
                ErrorCode::NotPermitted => libc::EPERM,
                ErrorCode::UnknownHost => libc::EHOSTUNREACH,
                ErrorCode::TimeoutTooShort => libc::ERANGE,
                ErrorCode::Full => libc::ENOSPC,
                ErrorCode::NoCapacity => libc::EBUSY,
                ErrorCode::NotFound => libc::ENOENT,
                ErrorCode::BadRequest => libc::EINVAL,
                ErrorCode::Gone => libc::ESRCH,
                ErrorCode::NotSupported => libc::EOPNOTSUPP,
                ErrorCode::Other => libc::EPROTO,
            },
            Error::Name(_) => libc::EINVAL,
            Error::Protocol { .. } | Error::Memory(_) | Error::BpfRing(_) => libc::EPROTO,
            Error::TimeNamespace { .. } => libc::ENOTSUP,
            Error::Inbox(_) => libc::EIO,
            Error::Timeout { .. } => libc::ETIMEDOUT,
            Error::Detached(_) | Error::HungUp { .. } => libc::ENOTCONN,
            Error::Unregistered(_) => libc::ENOENT,
            Error::NotRejoined { .. } => libc::ESTALE,
            Error::TooMany { .. } => libc::ENOSPC,
        };
        Self(-code, error.to_string())
    }
}

impl From<Declined> for Failure {
    fn from(declined: Declined) -> Self {
        let code = match declined {
            Declined::TooLarge { .. } | Declined::MessageTooLarge { .. } => libc::EMSGSIZE,
            Declined::Service => libc::EINVAL,
            Declined::NoLane => libc::ENOENT,
            Declined::Detached => libc::ENOTCONN,
            Declined::Full => libc::EAGAIN,
            Declined::NotJoined => libc::ENOENT,
            Declined::Broken => libc::EIO,
        };
        Self(-code, declined.to_string())
    }
}
