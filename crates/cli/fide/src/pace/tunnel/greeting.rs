// SPDX-License-Identifier: Apache-2.0
//! Two ends of a tunnel say first which version of tunnels they speak. A tunnel of before flows says nothing, and would take the number of a
//! flow for a part of the datagram: neither end hands anything on before it has heard the other one.
//!
//! ```text
//!  --accept ──── greeting, each 200 ms until it is answered ───► --from
//!           ◄─── greeting for each that comes ──────────────────
//! ```
//!
//! The end with `--from` says nothing first: what comes to a tunnel of before goes to its program.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use fide_pace_socket::{Connection, SendError};

use super::flows::{FLOW_LEN, NO_FLOW};
use crate::exit::{Failure, UNHEALTHY};

/// What stands before each datagram, and how: to be changed with it.
const VERSION: u8 = 2;
const TEXT: &[u8] = b"fide pace tunnel ";
const LEN: usize = FLOW_LEN + TEXT.len() + 1;
/// From one greeting to the next.
const EVERY: Duration = Duration::from_millis(200);
/// An end that has not greeted for so long is of before; longer than some losses.
const WITHIN: Duration = Duration::from_secs(5);

fn greeting() -> [u8; LEN] {
    let mut bytes = [VERSION; LEN];
    bytes[..FLOW_LEN].copy_from_slice(&NO_FLOW.to_be_bytes());
    bytes[FLOW_LEN..LEN - 1].copy_from_slice(TEXT);
    bytes
}

/// The version that a message says; none: it is no greeting.
fn version(message: &[u8]) -> Option<u8> {
    message.strip_prefix(&NO_FLOW.to_be_bytes())?.strip_prefix(TEXT)?.first().copied()
}

/// Whether a message is a greeting.
pub(super) fn is_greeting(message: &[u8]) -> bool {
    version(message).is_some()
}

/// Greets. It is lost, if there is no room for it.
pub(super) fn greet(connection: &Connection) {
    // Whatever the deadline of datagrams is.
    match connection.try_send(&greeting(), Some(2 * WITHIN)) {
        Ok(()) | Err(SendError::Message(_) | SendError::Closed(_)) => {}
    }
}

/// Waits for the other end's greeting, or until the connection is over. The end that connected only answers.
pub(super) fn exchange(connection: &Connection, begins: bool) -> Result<(), Failure> {
    // The end that was connected to is patient: the other one may have nothing to say yet.
    let mut since = (!begins).then(Instant::now);
    loop {
        if begins {
            greet(connection);
        }
        match connection.recv_timeout(EVERY) {
            Ok(Some(message)) => match version(&message.bytes) {
                Some(VERSION) => break,
                other => {
                    since.get_or_insert_with(Instant::now);
                    connection.recycle(message);
                    if let Some(other) = other {
                        return Err(refused(connection, &format!("version {other}")));
                    }
                }
            },
            Ok(None) => {}
            // It is seen by who waits for messages.
            Err(_) => return Ok(()),
        }
        if since.is_some_and(|since| since.elapsed() >= WITHIN) {
            return Err(refused(connection, "none that it names"));
        }
    }
    if !begins {
        greet(connection);
    }
    Ok(())
}

fn refused(connection: &Connection, other: &str) -> Failure {
    let why = format!(
        "one end of the tunnel speaks version {VERSION} of tunnels, the other one {other}: run the same release of Fide at both"
    );
    connection.close(&why);
    Failure::new(UNHEALTHY, anyhow!("{why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greeting_says_its_version_and_nothing_else_is_one() {
        assert_eq!(version(&greeting()), Some(VERSION));
        for message in [&b""[..], b"\xff\xff\xff\xff", TEXT, &greeting()[..LEN - 1], &greeting()[1..]] {
            assert_eq!(version(message), None, "{message:?}");
        }
    }
}
