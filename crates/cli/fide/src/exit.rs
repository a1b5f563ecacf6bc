// SPDX-License-Identifier: Apache-2.0
//! Exit codes, the same for every subcommand.
//!
//! | failure | code |
//! |---|---|
//! | an argument, name, target, event or address is wrong, or a file has no usable content, or is missing | 2 |
//! | the kernel, this host, this build or the agent has no such thing | 3 |
//! | this user lacks a permission: for a file or a socket, in the kernel, or because the agent or controller refuses | 4 |
//! | everything else: no agent, it does not answer, the cluster is unwell, a disk is full | 1 |
//!
//! `fide run` adds 125 to 127 and the program's own. [`Failure`]'s conversions implement this table; a
//! subcommand that knows more sets the code itself.

use std::{fmt, io, io::ErrorKind, path::Path};

use fide_agent::{
    StartError,
    config::{ConfigError, KeyError},
    handover::HandoverError,
    incarnation::IncarnationError,
    key::KeyFileError,
    socket::ListenError,
    trees::TreesError,
    vote::VoteError,
};
use fide_agent_api::protocol::ErrorCode;
use fide_client::Error;
use fide_controller_api::tls;
use fide_sys::interface::InterfaceError;
use rustix::io::Errno;

/// Something is wrong with the cluster, the agent or the watched target.
pub const UNHEALTHY: u8 = 1;
/// The command or a configuration is wrong.
pub const USAGE: u8 = 2;
/// This host cannot do it.
pub const UNSUPPORTED: u8 = 3;
/// The caller may not do it.
pub const NOT_PERMITTED: u8 = 4;
/// `fide run`: the program runs on, and cannot be stopped or ended. 126 and 127 say that it could not begin.
pub const OUT_OF_REACH: u8 = 125;

/// Why a subcommand failed, and with which exit code.
#[derive(Debug)]
pub struct Failure {
    pub code: u8,
    pub error: anyhow::Error,
}

impl Failure {
    pub fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: error.into() }
    }

    /// A file that the caller has named and that cannot be used.
    pub fn file(path: &Path, error: &io::Error) -> Self {
        Self::new(code_of_file(error), anyhow::anyhow!("{}: {error}", path.display()))
    }
}

/// The message, followed by its causes. Errors of this project show their cause or return it as their source,
/// never both. Other errors may do both, so a cause that is shown already is left out.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = String::new();
        // Errors in TOML quote a line with its line end.
        for cause in self.error.chain().map(|cause| cause.to_string().trim_end().to_owned()) {
            if said.is_empty() {
                said = cause;
            } else if !said.contains(&cause) {
                said = format!("{said}: {cause}");
            }
        }
        f.write_str(&said)
    }
}

/// What a subcommand returns.
pub type Done = Result<std::process::ExitCode, Failure>;

/// The exit code for a file that the caller has named.
pub fn code_of_file(error: &io::Error) -> u8 {
    match error.kind() {
        ErrorKind::PermissionDenied => NOT_PERMITTED,
        ErrorKind::NotFound
        | ErrorKind::AlreadyExists
        | ErrorKind::IsADirectory
        | ErrorKind::NotADirectory
        | ErrorKind::DirectoryNotEmpty
        | ErrorKind::ReadOnlyFilesystem
        | ErrorKind::InvalidFilename
        | ErrorKind::InvalidInput
        | ErrorKind::InvalidData => USAGE,
        _ => UNHEALTHY,
    }
}

/// The exit code for a system call that was made on the caller's behalf.
fn code_of_system(error: &io::Error) -> u8 {
    if error.kind() == ErrorKind::PermissionDenied { NOT_PERMITTED } else { UNHEALTHY }
}

fn code_of_errno(errno: Errno) -> u8 {
    code_of_system(&errno.into())
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        let denied = |cause: &&io::Error| code_of_system(cause) == NOT_PERMITTED;
        let permission = error.chain().filter_map(|cause| cause.downcast_ref()).any(|cause| denied(&cause));
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
            Error::Refused(refusal) => code_of_refusal(refusal.code),
            Error::Name(_) | Error::TooMany { .. } => USAGE,
            Error::NoAgent { errno, .. } => code_of_socket(*errno),
            Error::TimeNamespace { .. } => UNSUPPORTED,
            Error::System { errno, .. } => code_of_errno(*errno),
            _ => UNHEALTHY,
        };
        Self::new(code, error)
    }
}

fn code_of_refusal(code: ErrorCode) -> u8 {
    match code {
        ErrorCode::NotPermitted => NOT_PERMITTED,
        ErrorCode::NotSupported | ErrorCode::Version => UNSUPPORTED,
        ErrorCode::BadRequest | ErrorCode::UnknownHost | ErrorCode::TimeoutTooShort | ErrorCode::NotFound => USAGE,
        _ => UNHEALTHY,
    }
}

/// The exit code for an agent's socket at which nobody answers: it is missing, or is not an agent's.
pub fn code_of_socket(errno: Errno) -> u8 {
    match errno {
        Errno::PROTOTYPE | Errno::NOTSOCK | Errno::NAMETOOLONG | Errno::INVAL | Errno::NOTDIR => USAGE,
        errno => code_of_errno(errno),
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::new(code_of_config(&error), error)
    }
}

fn code_of_config(error: &ConfigError) -> u8 {
    match error {
        ConfigError::Read { why, .. } => code_of_file(why),
        _ => USAGE,
    }
}

impl From<KeyError> for Failure {
    fn from(error: KeyError) -> Self {
        Self::new(code_of_key(&error.why), error)
    }
}

impl From<KeyFileError> for Failure {
    fn from(error: KeyFileError) -> Self {
        Self::new(code_of_key(&error), error)
    }
}

fn code_of_key(error: &KeyFileError) -> u8 {
    match error {
        KeyFileError::File(fide_sys::key_file::KeyFileError::Read { why, .. }) | KeyFileError::Write { why, .. } => {
            code_of_file(why)
        }
        KeyFileError::File(fide_sys::key_file::KeyFileError::Mode { .. }) | KeyFileError::Content { .. } => USAGE,
    }
}

impl From<InterfaceError> for Failure {
    fn from(error: InterfaceError) -> Self {
        Self::new(code_of_interface(&error), error)
    }
}

fn code_of_interface(error: &InterfaceError) -> u8 {
    match error {
        InterfaceError::Missing { .. } => USAGE,
        InterfaceError::Down { .. } => UNHEALTHY,
        InterfaceError::List(why) => code_of_system(why),
    }
}

impl From<tls::Error> for Failure {
    fn from(error: tls::Error) -> Self {
        Self::new(code_of_credentials(&error), error)
    }
}

/// The exit code for certificates and keys that the caller has named.
pub fn code_of_credentials(error: &tls::Error) -> u8 {
    match error {
        tls::Error::Read { kind, .. } => code_of_file(&(*kind).into()),
        tls::Error::Changing => UNHEALTHY,
        _ => USAGE,
    }
}

impl From<StartError> for Failure {
    fn from(error: StartError) -> Self {
        let code = match &error {
            StartError::Config(error) => code_of_config(error),
            StartError::Key(error) => code_of_key(&error.why),
            StartError::Interface { why, .. } => code_of_interface(why),
            StartError::Role { .. }
            | StartError::Core { .. }
            | StartError::Detector(_)
            | StartError::Timeout { .. } => USAGE,
            StartError::Rung { .. } | StartError::Mtu { .. } => UNSUPPORTED,
            StartError::Link { why, .. } | StartError::Io(why) => code_of_system(why),
            // These are files and directories that the configuration names.
            StartError::Windows { why, .. }
            | StartError::Incarnation(IncarnationError::Io { why, .. })
            | StartError::Vote(VoteError::Io { why, .. })
            | StartError::Listen(ListenError::Io { why, .. }) => code_of_file(why),
            StartError::Handover(HandoverError::NoAgent { why, .. } | HandoverError::Io(why)) => code_of_system(why),
            StartError::Handover(HandoverError::Refused(refusal)) => code_of_refusal(refusal.code),
            StartError::Trees(TreesError::Credentials(error)) => code_of_credentials(error),
            _ => UNHEALTHY,
        };
        Self::new(code, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error as another project may have it: it shows its cause and returns it as well.
    #[derive(Debug)]
    struct Both(io::Error);

    impl fmt::Display for Both {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "outer, as {}", self.0)
        }
    }

    impl std::error::Error for Both {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn repeated_cause_is_left_out() {
        let said = |error: anyhow::Error| Failure::from(error).to_string();
        let inner = || io::Error::other("the inner one");
        assert_eq!(said(Both(inner()).into()), "outer, as the inner one");
        assert_eq!(said(anyhow::Error::from(inner()).context("outer")), "outer: the inner one");
    }

    #[test]
    fn codes_of_files_and_sockets_match_the_table() {
        let file = |kind: ErrorKind| code_of_file(&kind.into());
        for kind in [ErrorKind::NotFound, ErrorKind::IsADirectory, ErrorKind::InvalidData, ErrorKind::AlreadyExists] {
            assert_eq!(file(kind), USAGE, "{kind}");
        }
        assert_eq!(file(ErrorKind::PermissionDenied), NOT_PERMITTED);
        assert_eq!(file(ErrorKind::StorageFull), UNHEALTHY);
        let socket = [
            (Errno::NOENT, UNHEALTHY),
            (Errno::CONNREFUSED, UNHEALTHY),
            (Errno::AGAIN, UNHEALTHY),
            (Errno::ACCESS, NOT_PERMITTED),
        ];
        for (errno, code) in socket.into_iter().chain([(Errno::PROTOTYPE, USAGE), (Errno::NAMETOOLONG, USAGE)]) {
            assert_eq!(code_of_socket(errno), code, "{errno}");
        }
    }
}
