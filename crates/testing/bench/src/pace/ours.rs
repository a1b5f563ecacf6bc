// SPDX-License-Identifier: Apache-2.0
//! X-PACE as the carrier: a sender that is held, a queue of one message, 100 ms (§V-A3).

use std::{net::SocketAddr, time::Instant};

use anyhow::Result;
use fide_pace_socket::{Algorithm, Config, Endpoint, new_secret};
use fide_testbed::Host;

use crate::flow::{Receive, SILENCE, Send};

pub(crate) fn open(here: &Host, there: &Host, to: SocketAddr, algorithm: Algorithm) -> Result<(Send, Receive)> {
    let (key, config) = (new_secret(), Config { algorithm, ..Config::default() });
    let server = there.run_in(|| Endpoint::server(to, key.clone(), config))??;
    let client = here.run_in(Endpoint::client)??;
    let sender = client.connect(to, &key.for_clients(), config)?;
    let receiver = server.accept()?;
    let send = move |message: &[u8]| sender.send(message).is_ok();
    let receive = move |into: &mut [u8]| {
        let _stays = &server;
        let since = Instant::now();
        loop {
            match receiver.recv_timeout(SILENCE) {
                Ok(Some(message)) => {
                    let len = message.bytes.len().min(into.len());
                    into[..len].copy_from_slice(&message.bytes[..len]);
                    receiver.recycle(message);
                    return Some(len);
                }
                Ok(None) if since.elapsed() < SILENCE => {}
                Ok(None) | Err(_) => return None,
            }
        }
    };
    Ok((Box::new(send), Box::new(receive)))
}
