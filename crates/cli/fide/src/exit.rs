// SPDX-License-Identifier: Apache-2.0
//! Exit codes, the same for every subcommand.

use std::io;

use fide_agent_api::protocol::ErrorCode;
use fide_client::Error;

/// Something is wrong with the cluster, the agent or what was watched.
pub const UNHEALTHY: u8 = 1;
/// The command or a configuration is wrong.
pub const USAGE: u8 = 2;
/// This host cannot do it.
pub const UNSUPPORTED: u8 = 3;
/// The caller may not do it.
pub const NOT_PERMITTED: u8 = 4;
/// `fide run`: the program goes on, and cannot be stopped or ended. Beside 126 and 127, which say that it could not begin.
pub const OUT_OF_REACH: u8 = 125;

/// Why a subcommand failed, and with which exit code.
pub struct Failure {
    pub code: u8,
    pub error: anyhow::Error,
}

impl Failure {
    pub fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: error.into() }
    }
}

/// What a subcommand returns.
pub type Done = Result<std::process::ExitCode, Failure>;

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let permission = error.chain().any(|cause| {
            cause.downcast_ref::<io::Error>().is_some_and(|cause| cause.kind() == io::ErrorKind::PermissionDenied)
        });
        Self { code: if permission { NOT_PERMITTED } else { UNHEALTHY }, error }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        anyhow::Error::from(error).into()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match &error {
            Error::Refused(refusal) => match refusal.code {
                ErrorCode::NotPermitted => NOT_PERMITTED,
                ErrorCode::NotSupported | ErrorCode::Version => UNSUPPORTED,
                ErrorCode::BadRequest | ErrorCode::UnknownHost | ErrorCode::TimeoutTooShort | ErrorCode::NotFound => {
                    USAGE
                }
                _ => UNHEALTHY,
            },
            _ => return anyhow::Error::from(error).into(),
        };
        Self::new(code, error)
    }
}
