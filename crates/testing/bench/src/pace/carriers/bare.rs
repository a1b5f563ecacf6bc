// SPDX-License-Identifier: Apache-2.0
//! No transport: a UDP socket at each end, without feedback and without encryption. Its sender is told the rate of the link
//! and keeps just below it, so it has next to no queue of its own. What its messages take longer than the optimum, this
//! machine has taken.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    num::NonZeroU64,
    time::Duration,
};

use anyhow::Result;
use fide_sys::clock::mono_ns;
use fide_testbed::Host;
use rustix::{
    thread::{ClockId, clock_nanosleep_absolute, set_current_timer_slack},
    time::Timespec,
};

use super::{Receive, SILENCE, Send};

/// `gap`: between two packets.
pub(super) fn open(here: &Host, there: &Host, to: SocketAddr, gap: Duration) -> Result<(Send, Receive)> {
    let receiver = there.run_in(|| UdpSocket::bind(to))??;
    receiver.set_read_timeout(Some(SILENCE))?;
    let sender = here.run_in(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))??;
    sender.connect(to)?;
    let mut is_prompt = false;
    let send = move |message: &[u8]| {
        if !std::mem::replace(&mut is_prompt, true) {
            // As X-PACE does in the thread that sends: the kernel may wake others 50 us late.
            let _ = set_current_timer_slack(NonZeroU64::new(1));
        }
        if sender.send(message).is_err() {
            return false;
        }
        // From when it has left, not from when it was due: a sender that is late makes up for nothing, so it has no bursts.
        sleep_until(Duration::from_nanos(mono_ns()) + gap);
        true
    };
    let receive = move |into: &mut [u8]| receiver.recv(into).ok();
    Ok((Box::new(send), Box::new(receive)))
}

/// `due`: by CLOCK_MONOTONIC.
fn sleep_until(due: Duration) {
    let at =
        Timespec { tv_sec: i64::try_from(due.as_secs()).unwrap_or(i64::MAX), tv_nsec: i64::from(due.subsec_nanos()) };
    // A signal ends it early.
    while Duration::from_nanos(mono_ns()) < due {
        let _ = clock_nanosleep_absolute(ClockId::Monotonic, &at);
    }
}
