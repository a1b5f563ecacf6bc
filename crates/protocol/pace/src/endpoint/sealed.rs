// SPDX-License-Identifier: Apache-2.0
//! Sealed packets that come, and from where.

use std::net::SocketAddr;

use super::{CLOSES_NS, ConnectionId, Endpoint, Event, Now, Stage, paths::Came};
use crate::packet::{AT_ONCE, Arrival, HEADER_LEN, TAG_LEN};

impl Endpoint {
    pub(super) fn sealed(
        &mut self,
        now: Now,
        from: SocketAddr,
        datagram: &[u8],
        arrival: Arrival,
    ) -> Option<ConnectionId> {
        let Now { callers_ns, own_ns } = now;
        let header = datagram.get(1..HEADER_LEN).filter(|_| datagram.len() >= HEADER_LEN + TAG_LEN);
        let Some((id, number)) = header.and_then(|header| Some((header.first_chunk()?, header.last_chunk()?))) else {
            self.dropped.malformed += 1;
            return None;
        };
        let (id, number) = (u32::from_be_bytes(*id), u32::from_be_bytes(*number));
        let Some(connection) = self.connections.get_mut(&id) else {
            self.dropped.unknown += 1;
            return None;
        };
        let number = connection.transport.whole_number(number);
        if self.plain.len() < datagram.len() {
            self.plain.resize(datagram.len(), 0);
        }
        let Some(len) = connection.sealer.open(number, &datagram[HEADER_LEN..], &mut self.plain) else {
            self.dropped.forged += 1;
            return None;
        };
        let is_newest = connection.transport.largest_received().is_none_or(|largest| number > largest);
        match connection.stage {
            Stage::Unconfirmed { .. } => {
                connection.stage = Stage::Stands;
                self.unconfirmed -= 1;
                self.events.push_back(Event::Accepted(ConnectionId(id), connection.paths.current()));
            }
            Stage::Stands => {}
            Stage::Over { .. } => {
                // Each packet counts once, so that copies of one make no flood.
                if connection.transport.take_number(number) && is_newest && own_ns >= connection.closes_ns {
                    connection.closes_ns = own_ns + CLOSES_NS;
                    connection.transport.asked_after_end(callers_ns, &self.plain[..len]);
                    connection.transport.close_again();
                    self.refresh(id, now);
                }
                return None;
            }
        }
        // An error ends the connection, which `refresh` sees.
        let _ = connection.transport.open(callers_ns, number, &self.plain[..len], arrival);
        let before = connection.paths.current();
        while let Some(echo) = connection.transport.take_answered() {
            connection.paths.answered(own_ns, from, echo);
        }
        let round_trip_ns = connection.transport.round_trip_ns();
        let came = Came { from, number, is_newest, len: datagram.len(), round_trip_ns };
        let secret = &self.secret;
        let asks = connection.paths.came(own_ns, came, |which| challenge(secret, id, number, which));
        asks.into_iter().flatten().for_each(|echo| connection.transport.challenge(echo));
        self.moved(id, now, before);
        self.refresh(id, now);
        Some(ConnectionId(id))
    }

    /// Notes whether the peer is elsewhere now.
    pub(super) fn moved(&mut self, id: u32, now: Now, before: SocketAddr) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let address = connection.paths.current();
        if address != before {
            // Another port is another mapping of a NAT, as a rule, on the same path: RFC 9000 §9.4.
            connection.transport.moved(now.callers_ns, address.ip() == before.ip());
            self.events.push_back(Event::Moved(ConnectionId(id), address));
        }
    }
}

/// Bytes that are to come back: those who do not see them cannot guess them.
fn challenge(secret: &[u8; 32], id: u32, number: u64, which: u8) -> [u8; 8] {
    let mut hasher = blake3::Hasher::new_keyed(secret);
    hasher.update(&id.to_be_bytes()).update(&number.to_be_bytes()).update(&[which]);
    let mut echo: [u8; 8] = hasher.finalize().as_bytes().first_chunk().copied().unwrap_or_default();
    echo[0] |= AT_ONCE;
    echo
}
