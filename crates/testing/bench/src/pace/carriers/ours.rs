// SPDX-License-Identifier: Apache-2.0
//! X-PACE as the carrier: a sender that is held, a queue of one message, 100 ms (§V-A3).

use std::net::SocketAddr;

use anyhow::Result;
use fide_pace_socket::{Config, Connection, Endpoint, new_secret};
use fide_testbed::Host;

use super::{Receive, SILENCE, Send};

/// The two ends of a connection: the sender's and the receiver's.
pub(crate) fn pair(here: &Host, there: &Host, to: SocketAddr, config: Config) -> Result<(Connection, Connection)> {
    let key = new_secret();
    // A connection outlives its endpoint's handle.
    let server = there.run_in(|| Endpoint::server(to, key.clone(), config))??;
    let client = here.run_in(Endpoint::client)??;
    let sender = client.connect(to, &key.for_clients(), config)?;
    Ok((sender, server.accept()?))
}

pub(super) fn open(here: &Host, there: &Host, to: SocketAddr, config: Config) -> Result<(Send, Receive)> {
    let (sender, receiver) = pair(here, there, to, config)?;
    let send = move |message: &[u8]| sender.send(message).is_ok();
    let receive = move |into: &mut [u8]| {
        let message = receiver.recv_timeout(SILENCE).ok()??;
        let len = message.bytes.len().min(into.len());
        into[..len].copy_from_slice(&message.bytes[..len]);
        receiver.recycle(message);
        Some(len)
    };
    Ok((Box::new(send), Box::new(receive)))
}
