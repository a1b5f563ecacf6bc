// SPDX-License-Identifier: Apache-2.0
//! TCP with CUBIC (RFC 9438), as far as it fills queues: an endless stream, a window, an acknowledgement for each packet,
//! slow start, and one cut for each round trip with losses. Lost packets are not sent again.

/// Bytes of a packet on the link.
pub(crate) const TCP_BYTES: usize = 1079;
/// Of the cubic function, in packets for a second cubed, and what is left of the window by a cut.
const C: f64 = 0.4;
const BETA: f64 = 0.7;
const WINDOW_START: f64 = 10.0;
const WINDOW_MIN: f64 = 2.0;
/// Without acknowledgements for so long all packets count as lost.
pub(crate) const TIMEOUT_NS: u64 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct Cubic {
    window: f64,
    threshold: f64,
    /// The window before the last cut, and when that was.
    before: f64,
    cut_ns: u64,
    /// Packets sent before this one belong to a round trip with a cut.
    cut_until: u64,
    next: u64,
    /// The oldest packet under way.
    oldest: u64,
    acked_ns: u64,
    pub(crate) carried_bytes: u64,
}

impl Cubic {
    pub(crate) fn new() -> Self {
        Self {
            window: WINDOW_START,
            threshold: f64::MAX,
            before: 0.0,
            cut_ns: 0,
            cut_until: 0,
            next: 0,
            oldest: 0,
            acked_ns: 0,
            carried_bytes: 0,
        }
    }

    /// The number of the next packet, if the window has room.
    pub(crate) fn send(&mut self) -> Option<u64> {
        ((self.next - self.oldest) as f64 + 1.0 <= self.window).then(|| {
            self.next += 1;
            self.next - 1
        })
    }

    fn cut(&mut self, now_ns: u64, left: f64) {
        (self.before, self.cut_ns, self.cut_until) = (self.window, now_ns, self.next);
        self.window = (self.window * left).max(WINDOW_MIN);
        self.threshold = self.window;
    }

    /// A packet is acknowledged. The link keeps the order, so packets before it are lost.
    pub(crate) fn acked(&mut self, now_ns: u64, number: u64) {
        self.acked_ns = now_ns;
        if number < self.oldest {
            return;
        }
        if number > self.oldest && self.oldest >= self.cut_until {
            self.cut(now_ns, BETA);
        }
        self.oldest = number + 1;
        if self.window < self.threshold {
            self.window += 1.0;
            return;
        }
        let k = (self.before * (1.0 - BETA) / C).cbrt();
        let passed = (now_ns - self.cut_ns) as f64 / 1e9;
        let wanted = C * (passed - k).powi(3) + self.before;
        self.window += ((wanted - self.window) / self.window).clamp(0.01 / self.window, 0.5);
    }

    pub(crate) fn timeout(&mut self, now_ns: u64) {
        if now_ns >= self.acked_ns + TIMEOUT_NS && self.next > self.oldest {
            self.cut(now_ns, 0.0);
            (self.oldest, self.acked_ns) = (self.next, now_ns);
        }
    }
}
