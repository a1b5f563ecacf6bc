// SPDX-License-Identifier: Apache-2.0
//! Errors of groups as negative errnos, each with its message.

use fide_client::capi::boundary::Failure;
use fide_group::{Error, LogError, OfferError, RecordError, Refused, RoomError};
use libc::c_int;

fn errno(error: &std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Why a member was not made, or cannot go on.
pub(crate) fn failed(error: Error) -> Failure {
    let code = match error {
        Error::Client(error) => return error.into(),
        Error::Record(RecordError::Io { ref why, .. })
        | Error::Bind { ref why, .. }
        | Error::System { ref why, .. } => errno(why),
        Error::Record(RecordError::Content { .. }) => libc::EBADMSG,
        Error::Log(LogError::Io { ref why, .. }) => errno(why),
        Error::Log(LogError::OtherGroup { .. } | LogError::NotDurable { .. }) => libc::EINVAL,
        Error::Log(LogError::Manifest { .. } | LogError::Damaged { .. } | LogError::Newer { .. }) => libc::EBADMSG,
        Error::Log(LogError::Behind { .. }) => libc::ENOSPC,
        Error::Record(RecordError::LastIncarnation { .. }) => libc::EOVERFLOW,
        Error::Record(RecordError::Held { .. }) => libc::EBUSY,
        Error::Group(_) | Error::NotAMember { .. } | Error::Twice { .. } | Error::NoHosts => libc::EINVAL,
        Error::UnknownHost { .. } => libc::EHOSTUNREACH,
        Error::NoNetwork { .. } => libc::ENETUNREACH,
        Error::OldAgent => libc::EPROTONOSUPPORT,
        Error::TooLong { .. } => libc::EMSGSIZE,
        Error::Heartbeat { .. } => libc::ERANGE,
        Error::PayloadMax { .. } => libc::EINVAL,
    };
    Failure(-code, error.to_string())
}

/// Why a proposal or a removal is refused.
pub(crate) fn refused(refused: Refused) -> Failure {
    let code = match refused {
        Refused::NotLeader { .. } => libc::EREMOTE,
        Refused::TooLong { .. } => libc::EMSGSIZE,
        Refused::Fenced => libc::ESTALE,
        Refused::Full => libc::EAGAIN,
        Refused::Changing => libc::EBUSY,
        Refused::NoMember { .. } => libc::ENOENT,
        Refused::Leads { .. } => libc::EALREADY,
        Refused::Dead { .. } => libc::EHOSTDOWN,
        Refused::NoState { .. } => libc::EAGAIN,
        Refused::Payload(OfferError::Room(why)) => return no_room(why),
        Refused::Payload(OfferError::Unanswered { .. }) => libc::EAGAIN,
    };
    Failure(-code, refused.to_string())
}

/// Why there is no room for a payload or a state.
pub(crate) fn no_room(why: RoomError) -> Failure {
    let code = match why {
        RoomError::TooLong { .. } => libc::EMSGSIZE,
        RoomError::Full { .. } | RoomError::Payloads | RoomError::Arriving { .. } => libc::ENOSPC,
    };
    Failure(-code, why.to_string())
}
