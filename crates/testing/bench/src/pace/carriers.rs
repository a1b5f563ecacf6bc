// SPDX-License-Identifier: Apache-2.0
//! What carries messages: X-PACE, TCP, QUIC and SRT, each as its users would have it for fresh data; and a bare socket, which
//! shows what the machine allows.

mod bare;
mod ours;
mod quic;
mod srt;
mod tcp;

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context, Result};
use fide_pace_socket::{Algorithm, Config};
use fide_testbed::Host;

pub(crate) use ours::pair;
pub(crate) use quic::Quic;

use crate::flow::Scenario;

/// A receiver that gets nothing for so long knows that no more comes.
pub(crate) const SILENCE: Duration = Duration::from_secs(3);
/// Bytes of a packet on the link.
pub(crate) const PACKET: usize = 1000;
/// What X-PACE puts around a message of one packet: IP, UDP, the header, the time, the frame, the symbol's description,
/// the tag.
pub(crate) const OURS_AROUND: usize = 79;
/// Bytes of the times in a packet of TCP.
const TCP_TIMES: usize = 12;
/// The share of the link that the source of an SRT stream takes: the rest is SRT's default for what is sent again
/// (`oheadbw`, 25 % more).
const SRT_SHARE: f64 = 0.8;
/// Bytes on the link of a packet of X-PACE with a message, on the average of its run where the network is the bottleneck:
/// now and then FEEDBACK or a time is in it besides. The bare sender's packets are as large, so that they take the link as
/// long.
const BARE_PACKET: usize = 1020;
/// The share of the link that the bare sender takes: what is left empties a queue that a pause of the machine has made.
const BARE_SHARE: f64 = 0.97;

/// One end that sends: returns when the next message may be made. False: the connection is over.
pub(crate) type Send = Box<dyn FnMut(&[u8]) -> bool + std::marker::Send>;
/// One end that takes: the message's length; none if no more comes.
pub(crate) type Receive = Box<dyn FnMut(&mut [u8]) -> Option<usize> + std::marker::Send>;

/// What carries messages.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Carrier {
    Pace(Algorithm),
    Tcp {
        congestion: &'static str,
        is_tuned: bool,
    },
    Quic(Quic),
    Srt,
    /// No product, and compared with none: what this machine allows a sender that knows the link.
    Bare,
}

pub(crate) const XPACE: Carrier = Carrier::Pace(Algorithm::XPace);
pub(crate) const LEVEL: Carrier = Carrier::Pace(Algorithm::Level);
pub(crate) const CUBIC: Carrier = Carrier::Tcp { congestion: "cubic", is_tuned: true };
pub(crate) const BBR: Carrier = Carrier::Tcp { congestion: "bbr", is_tuned: true };
/// With the kernel's own buffers.
pub(crate) const CUBIC_UNTUNED: Carrier = Carrier::Tcp { congestion: "cubic", is_tuned: false };
pub(crate) const BBR_UNTUNED: Carrier = Carrier::Tcp { congestion: "bbr", is_tuned: false };
pub(crate) const DATAGRAMS: Carrier = Carrier::Quic(Quic::Datagrams);
pub(crate) const STREAM: Carrier = Carrier::Quic(Quic::Stream);
pub(crate) const BARE: Carrier = Carrier::Bare;
/// Those that are compared.
pub(crate) const ALL: [Carrier; 9] =
    [XPACE, LEVEL, CUBIC, BBR, CUBIC_UNTUNED, BBR_UNTUNED, DATAGRAMS, STREAM, Carrier::Srt];

impl Carrier {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Pace(Algorithm::XPace) => "pace-xpace".into(),
            Self::Pace(Algorithm::Level) => "pace-level".into(),
            Self::Tcp { congestion, is_tuned: true } => format!("tcp-{congestion}"),
            Self::Tcp { congestion, is_tuned: false } => format!("tcp-{congestion}-untuned"),
            Self::Quic(Quic::Datagrams) => "quic-datagrams".into(),
            Self::Quic(Quic::Stream) => "quic-stream".into(),
            Self::Srt => "srt".into(),
            Self::Bare => "udp-told-the-rate".into(),
        }
    }

    /// Bytes of a message with which a packet on the link has [`PACKET`], or on the average nearly so where a carrier cuts
    /// a stream into packets by itself; [`BARE_PACKET`] for a bare socket.
    pub(crate) fn message_len(self) -> usize {
        match self {
            Self::Pace(_) => PACKET - OURS_AROUND,
            // IP and TCP. Tuned it has no options; otherwise the time of each packet, filled up to words.
            Self::Tcp { is_tuned, .. } => PACKET - 40 - if is_tuned { 0 } else { TCP_TIMES },
            // IP, UDP, a short header with a connection's name of eight bytes, the frame's type and length, the tag.
            Self::Quic(_) => PACKET - (28 + 11 + 3 + 16),
            // IP, UDP, SRT's header.
            Self::Srt => PACKET - (28 + 16),
            // IP, UDP.
            Self::Bare => BARE_PACKET - 28,
        }
    }

    /// How often the sender makes a message by itself, for a carrier that neither holds it nor tells it a pace.
    pub(crate) fn told_gap(self, scenario: &Scenario) -> Option<Duration> {
        (self == Self::Srt).then(|| scenario.pace.div_f64(SRT_SHARE))
    }

    /// Both ends, from the first host to the second one.
    pub(crate) fn open(
        self,
        here: &Host,
        there: &Host,
        to: SocketAddr,
        scenario: &Scenario,
    ) -> Result<(Send, Receive)> {
        let len = self.message_len();
        match self {
            Self::Pace(algorithm) => {
                // The latest data: nothing waits for a lost message while no more than one in a hundred is lost.
                let config = Config { algorithm, residual_loss: 0.01, ..Config::default() };
                ours::open(here, there, to, config)
            }
            Self::Tcp { congestion, is_tuned } => {
                tcp::open(here, there, to, congestion, is_tuned.then_some(scenario), len)
            }
            Self::Quic(kind) => quic::open(here, there, to, kind, scenario, len),
            Self::Srt => srt::open(here, there, to, scenario.pace.div_f64(SRT_SHARE)),
            Self::Bare => {
                let at_full_rate = scenario.pace.mul_f64(BARE_PACKET as f64 / PACKET as f64);
                bare::open(here, there, to, at_full_rate.div_f64(BARE_SHARE))
            }
        }
        .with_context(|| format!("{} in scenario {}", self.name(), scenario.name))
    }
}
