// SPDX-License-Identifier: Apache-2.0
//! TCP as the carrier, tuned as §V-A3: small buffers, no delay, acknowledgements at once, neither times nor selective
//! acknowledgements; or as it comes.

use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use fide_testbed::{Host, emulator::DEVICE};
use rustix::net::sockopt;

use super::{PACKET, Receive, SILENCE, Send};
use crate::flow::Scenario;

/// What the paper's TCP does without. Its `tcp_low_latency` has done nothing since Linux 4.14.
const OFF: [&str; 2] = ["/proc/sys/net/ipv4/tcp_timestamps", "/proc/sys/net/ipv4/tcp_sack"];

/// Turns options of TCP off in a host's namespace, with which that is gone.
fn turn_off(host: &Host) -> Result<()> {
    host.run_in(|| {
        OFF.into_iter().try_for_each(|path| {
            fs::write(path, "0").with_context(|| format!("writing 0 to {path}"))?;
            let is = fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
            ensure!(is.trim() == "0", "{path} is {} after 0 was written there", is.trim());
            Ok(())
        })
    })?
}

/// Packets have as many bytes as the scenario says: TCP would join several messages, and cut them anywhere.
fn limit_packets(host: &Host) -> Result<()> {
    let packet = PACKET.to_string();
    let mut ip = Command::new("ip");
    ip.args(["-n", host.namespace(), "link", "set", DEVICE, "mtu", &packet]);
    let output = ip.output().context("starting `ip` of Debian's iproute2")?;
    ensure!(
        output.status.success(),
        "`ip link set {DEVICE} mtu {packet}`: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

pub(super) fn open(
    here: &Host,
    there: &Host,
    to: SocketAddr,
    congestion: &'static str,
    tuned: Option<&Scenario>,
    len: usize,
) -> Result<(Send, Receive)> {
    [here, there].into_iter().try_for_each(limit_packets)?;
    if tuned.is_some() {
        [here, there].into_iter().try_for_each(turn_off)?;
    }
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
