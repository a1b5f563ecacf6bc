// SPDX-License-Identifier: Apache-2.0
//! SRT as the carrier, by Debian's srt-tools, as programs without SRT in them use it: a `srt-live-transmit` at each host,
//! live mode, 100 ms of latency, UDP to the one and from the other over the host's loopback.
//!
//! So a delivery has two local hops more than the other carriers' and the tool's own loop, which looks at its UDP socket
//! every few milliseconds. SRT delivers each message as late after its sending as the latency says, which makes times alike,
//! and sends again meanwhile what was lost. It neither holds the sender nor tells it a pace, so the sender is told the rate
//! of the link beforehand and keeps four fifths of it; SRT is told the same (`inputbw`), and has its default of a quarter
//! more for repetitions (`oheadbw`).

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use fide_testbed::Host;

use super::{PACKET, Receive, SILENCE, Send};

/// Of Debian's srt-tools.
const PROGRAM: &str = "srt-live-transmit";
/// As §V-A3 has it for X-PACE.
const LATENCY_MS: u64 = 100;
/// Where the sending host's process takes datagrams, and where the other one's sends them.
const INTO: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 7001);
const OUT: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 7002);
/// Something has come through within this.
const START: Duration = Duration::from_secs(10);
/// Between two tries.
const TRY: Duration = Duration::from_millis(100);
/// A process that nobody has ended by then ends by itself.
const LIFE_S: u64 = 180;

/// A process that is ended with its end.
struct Process(Child);

impl Process {
    fn start(mut command: Command, from: &str, to: &str) -> Result<Self> {
        command.args(["-q", &format!("-t:{LIFE_S}"), from, to]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let started = command.spawn().with_context(|| format!("{PROGRAM}: install Debian's srt-tools"))?;
        Ok(Self(started))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `gap`: how often a message is made.
pub(super) fn open(here: &Host, there: &Host, to: SocketAddr, gap: Duration) -> Result<(Send, Receive)> {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes a second of a link")]
    let rate = (PACKET as f64 / gap.as_secs_f64()) as u64;
    let receiver = there.run_in(|| UdpSocket::bind(OUT))??;
    let listener = format!("srt://{to}?mode=listener&latency={LATENCY_MS}");
    let caller = format!("srt://{to}?mode=caller&latency={LATENCY_MS}&maxbw=0&inputbw={rate}&oheadbw=25");
    let udp = |(address, port): (Ipv4Addr, u16)| format!("udp://{address}:{port}");
    let of_receiver = Process::start(there.command(PROGRAM), &listener, &udp(OUT))?;
    let of_sender = Process::start(here.command(PROGRAM), &udp(INTO), &caller)?;
    let sender = here.run_in(|| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)))??;
    await_first(&sender, &receiver)?;
    receiver.set_read_timeout(Some(SILENCE))?;
    let send = move |message: &[u8]| {
        let _runs = &of_sender;
        // A datagram that the process has no room for is lost, as its user would see it.
        sender.send_to(message, INTO).is_ok()
    };
    let receive = move |into: &mut [u8]| {
        let _runs = &of_receiver;
        receiver.recv(into).ok()
    };
    Ok((Box::new(send), Box::new(receive)))
}

/// Sends until something comes through, and takes all of that.
fn await_first(sender: &UdpSocket, receiver: &UdpSocket) -> Result<()> {
    let mut buffer = [0; 64];
    let since = Instant::now();
    receiver.set_read_timeout(Some(TRY))?;
    loop {
        // Until the process listens there, nobody does.
        let _ = sender.send_to(&[0], INTO);
        if receiver.recv(&mut buffer).is_ok() {
            break;
        }
        if since.elapsed() > START {
            bail!("nothing came through two {PROGRAM} within {} s", START.as_secs());
        }
    }
    receiver.set_read_timeout(Some(Duration::from_millis(3 * LATENCY_MS)))?;
    while receiver.recv(&mut buffer).is_ok() {}
    Ok(())
}
