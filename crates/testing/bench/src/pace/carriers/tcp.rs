// SPDX-License-Identifier: Apache-2.0
//! TCP as the carrier, tuned as §V-A3: small buffers, no delay, acknowledgements at once; or as it comes.

use std::{
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};

use anyhow::Result;
use fide_testbed::Host;
use rustix::net::sockopt;

use super::{Receive, SILENCE, Send};
use crate::flow::Scenario;

pub(super) fn open(
    here: &Host,
    there: &Host,
    to: SocketAddr,
    congestion: &'static str,
    tuned: Option<&Scenario>,
    len: usize,
) -> Result<(Send, Receive)> {
    let listener = there.run_in(|| -> io::Result<TcpListener> {
        let listener = TcpListener::bind(to)?;
        if let Some(scenario) = tuned {
            // Those that are accepted inherit it. The kernel doubles it.
            sockopt::set_socket_recv_buffer_size(&listener, scenario.receive_buffer / 2)?;
        }
        Ok(listener)
    })??;
    let mut sender = here.run_in(|| TcpStream::connect(to))??;
    let (mut receiver, _) = listener.accept()?;
    sockopt::set_tcp_congestion(&sender, congestion)?;
    if let Some(scenario) = tuned {
        sender.set_nodelay(true)?;
        sockopt::set_socket_send_buffer_size(&sender, scenario.send_buffer / 2)?;
    }
    receiver.set_read_timeout(Some(SILENCE))?;
    let is_tuned = tuned.is_some();
    let send = move |message: &[u8]| sender.write_all(message).is_ok();
    let receive = move |into: &mut [u8]| {
        if is_tuned {
            // The kernel forgets it after a while.
            let _ = sockopt::set_tcp_quickack(&receiver, true);
        }
        receiver.read_exact(&mut into[..len]).ok().map(|()| len)
    };
    Ok((Box::new(send), Box::new(receive)))
}
