// SPDX-License-Identifier: Apache-2.0
//! How the two ends of a connection between two hosts find each other ([`crate::meet`] within one).
//!
//! ```text
//!  client's proxy                                     server's proxy
//!    │ Offer: its addresses, its clock now ──────────────► │
//!    │ ◄──── Offer: its addresses, the first segment's stamp │
//!    │                                                       │ they are one: the server's program is given memory, and maps it
//!    │ ◄─────────────────── Open: the connection's number     │
//!    │ the client's program is given memory                    │
//! ```
//!
//! The server's program has the memory before the client's, which then writes there at once: the proxies read it. A program that is given
//! memory, and never takes it, changes nothing.
//!
//! An offer names the addresses of its connection to the other host, which is trusted with them. It is made, and taken, only for connections
//! with the addresses that are said to be that host's: it cannot take part in those with others.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use crate::{
    carry::READS_RING_AT,
    link::{
        App, BATCH, CONNECTIONS_OF_USER_MAX, Cut, Layout,
        frame::{Frame, HEADER, In, Kind, Out, SHORT_MAX},
    },
    meet::{Asker, Seen},
    stream::READS_NO_MORE_AT,
    window::Window,
};

/// Ends that wait, of each host. Further ones stay with TCP.
pub const OFFERS_MAX: usize = 4096;
/// And of one user.
pub const OFFERS_OF_USER_MAX: usize = OFFERS_MAX / 2;
/// What is to be said and finds no room. There is one for each end that waits, or was offered.
const SAYS_MAX: usize = 4 * OFFERS_MAX;
/// Turns after which connections that are over are forgotten.
const FORGETS_EVERY: u32 = 128;
/// Bytes of an offer.
const OFFER_LEN: usize = 2 * 18 + 2 * 5;
/// Bits before an IPv4 address that is mapped into IPv6.
const MAPPED_BITS: u8 = 96;
/// The number of the ring by which the proxies talk.
const RING: u32 = 0;

/// Addresses that a host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    bits: u8,
}

/// What is no network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no address, and no network such as 10.1.2.0/24 or fd00::/64")]
pub struct NoNetwork(String);

impl FromStr for Network {
    type Err = NoNetwork;

    fn from_str(text: &str) -> Result<Self, NoNetwork> {
        // As in a list of users.
        let text = text.trim();
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let no = || NoNetwork(text.to_owned());
        if bits.is_some_and(|bits| !bits.bytes().all(|digit| digit.is_ascii_digit())) {
            return Err(no());
        }
        let first: IpAddr = address.parse().map_err(|_| no())?;
        let most = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| no()))?;
        match first.to_canonical() {
            _ if bits > most => Err(no()),
            // Connections with IPv4 addresses that are mapped into IPv6 have the former.
            mapped if mapped.is_ipv4() && first.is_ipv6() && bits >= MAPPED_BITS => {
                Ok(Self { first: mapped, bits: bits - MAPPED_BITS })
            }
            _ => Ok(Self { first, bits }),
        }
    }
}

/// As it is read.
impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.first, self.bits)
    }
}

impl Network {
    #[must_use]
    pub fn has(self, address: IpAddr) -> bool {
        let masked = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()).checked_shr(32_u32.saturating_sub(self.bits.into())),
            IpAddr::V6(address) => address.to_bits().checked_shr(128_u32.saturating_sub(self.bits.into())),
        };
        address.is_ipv4() == self.first.is_ipv4() && masked(address) == masked(self.first)
    }

    /// As [`Network::has`], of a host that is not this one: addresses of the loopback are every host's own, and meant only where the network
    /// has no other ones.
    #[must_use]
    pub fn has_of_other(self, address: IpAddr) -> bool {
        self.has(address) && (self.is_of_loopback() || !address.is_loopback())
    }

    /// It has addresses of the loopback alone.
    #[must_use]
    pub fn is_of_loopback(self) -> bool {
        match self.first {
            IpAddr::V4(first) => first.is_loopback() && self.bits >= 8,
            IpAddr::V6(first) => first.is_loopback() && self.bits == 128,
        }
    }
}

/// An end of a connection to the other host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ends {
    pub local: SocketAddr,
    pub peer: SocketAddr,
}

impl Ends {
    fn other(self) -> Self {
        Self { local: self.peer, peer: self.local }
    }
}

/// What does what is decided here.
pub trait Host {
    type App: App;

    /// Memory for the program that has asked, which is told of it. `reads_ring`: the other host's program has its memory. None: there is
    /// none.
    fn gives(&mut self, asker: Asker, reads_ring: bool) -> Option<Self::App>;

    /// Has a partition carry a connection. The number of the request; none: it has too many.
    fn carries(&mut self, partition: usize, connection: u32, app: &Self::App) -> Option<u64>;

    /// Whether the partition has taken it.
    fn has_taken(&self, partition: usize, request: u64) -> bool;

    /// It carries as many as it may.
    fn is_full(&self) -> bool;

    /// Connections of a partition.
    fn load(&self, partition: usize) -> usize;
}

/// Of this host's ends.
#[derive(Debug)]
struct Own<A> {
    asker: Asker,
    ends: Ends,
    seen: Seen,
    is: Is<A>,
}

#[derive(Debug)]
enum Is<A> {
    Waiting,
    /// It was given memory; the offer of the other end.
    Given {
        app: A,
        other: u32,
    },
    Taken {
        app: A,
        other: u32,
        connection: u32,
        partition: usize,
        request: u64,
    },
}

/// A connection that goes over the link.
#[derive(Debug)]
struct Carries<A> {
    app: A,
    uid: u32,
    /// It was opened here: the other host may refuse it.
    is_opened_here: bool,
}

#[derive(Debug, Clone, Copy)]
enum Say {
    Offer { offer: u32 },
    Withdrawn { offer: u32 },
    Refused { connection: u32 },
}

/// Ends that wait for each other.
#[derive(Debug)]
pub struct Offers<H: Host> {
    networks: Vec<Network>,
    own: HashMap<u32, Own<H::App>>,
    of_asker: HashMap<(u64, u32), u32>,
    at: HashMap<Ends, u32>,
    /// Of the other host, by its addresses, and those by number.
    others: HashMap<Ends, (u32, Seen)>,
    ends_of: HashMap<u32, Ends>,
    /// Those of `own` that are not [`Is::Waiting`].
    opening: Vec<u32>,
    /// Connections that go over the link, until they are over.
    carried: HashMap<u32, Carries<H::App>>,
    says: VecDeque<Say>,
    last_offer: u32,
    last_connection: u32,
    turns: u32,
    /// None also during a turn.
    talks: Option<(In, Out)>,
    stands: bool,
}

impl<H: Host> Offers<H> {
    /// With a host that has addresses of these networks.
    #[must_use]
    pub fn new(networks: Vec<Network>) -> Self {
        Self {
            networks,
            own: HashMap::new(),
            of_asker: HashMap::new(),
            at: HashMap::new(),
            others: HashMap::new(),
            ends_of: HashMap::new(),
            opening: Vec::new(),
            carried: HashMap::new(),
            says: VecDeque::new(),
            last_offer: 0,
            last_connection: 0,
            turns: 0,
            talks: None,
            stands: false,
        }
    }

    /// Whether an end with this peer is to be offered.
    #[must_use]
    pub fn is_for(&self, peer: SocketAddr) -> bool {
        self.networks.iter().any(|network| network.has_of_other(peer.ip()))
    }

    /// Ends of this host that wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.own.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.own.is_empty()
    }

    /// The link stands, with these keys.
    pub fn rises(&mut self, link: &impl Window, layout: Layout, keys: [u64; 2]) {
        let place = layout.talk();
        self.stands = true;
        self.talks = Some((In::new(link, place, keys, RING, SHORT_MAX), Out::new(link, place, keys, RING)));
        // Of two that open connections one takes the odd numbers.
        self.last_connection = u32::from(keys[0] > keys[1]);
        let waiting = self.own.keys().map(|offer| Say::Offer { offer: *offer });
        self.says = waiting.collect();
    }

    /// The link is lost: who was given memory keeps to TCP, and who waits waits on.
    pub fn falls(&mut self) {
        (self.talks, self.stands) = (None, false);
        self.others.clear();
        self.ends_of.clear();
        self.says.clear();
        self.carried.clear();
        for offer in std::mem::take(&mut self.opening) {
            self.forgets(offer);
        }
    }

    fn takes(&mut self, offer: u32) -> Option<Own<H::App>> {
        let own = self.own.remove(&offer)?;
        self.of_asker.remove(&(own.asker.client, own.asker.id));
        self.at.remove(&own.ends);
        Some(own)
    }

    fn forgets(&mut self, offer: u32) {
        if let Some(Own { is: Is::Given { app, .. } | Is::Taken { app, .. }, .. }) = self.takes(offer) {
            app.is_carried();
        }
    }

    fn says(&mut self, say: Say) {
        if self.stands && self.says.len() < SAYS_MAX {
            self.says.push_back(say);
        }
    }

    /// An end of this host waits. Nothing, if as many wait as may.
    pub fn offers(&mut self, asker: Asker, ends: Ends, seen: Seen, host: &mut H) {
        let of_user = self.own.values().filter(|own| own.asker.uid == asker.uid).count();
        let is_full = self.own.len() >= OFFERS_MAX || of_user >= OFFERS_OF_USER_MAX || self.says.len() >= SAYS_MAX / 2;
        let is_there = self.of_asker.contains_key(&(asker.client, asker.id)) || self.at.contains_key(&ends);
        if is_full || is_there || !self.is_for(ends.peer) {
            return;
        }
        self.last_offer = self.last_offer.wrapping_add(1);
        let offer = self.last_offer;
        if self.own.contains_key(&offer) {
            return;
        }
        self.own.insert(offer, Own { asker, ends, seen, is: Is::Waiting });
        self.of_asker.insert((asker.client, asker.id), offer);
        self.at.insert(ends, offer);
        self.says(Say::Offer { offer });
        self.meets(offer, host);
    }

    /// An end of this host waits no more: its question was taken back, or answered.
    pub fn withdraws(&mut self, client: u64, id: u32) {
        let Some(offer) = self.of_asker.get(&(client, id)).copied() else { return };
        // One that was given memory has been answered.
        if self.own.get(&offer).is_some_and(|own| matches!(own.is, Is::Waiting)) {
            self.forgets(offer);
            self.says(Say::Withdrawn { offer });
        }
    }

    /// A program of this host has ended.
    pub fn left(&mut self, client: u64) {
        let its: Vec<_> = self.of_asker.keys().filter(|(of, _)| *of == client).copied().collect();
        its.into_iter().for_each(|(client, id)| self.withdraws(client, id));
    }

    /// Whether a user of this host has as many connections as one may, those that are about to be opened among them.
    fn is_full_for(&self, uid: u32) -> bool {
        let carried = self.carried.values().filter(|carries| carries.uid == uid && !carries.app.is_over());
        let opening = self.opening.iter().filter(|offer| self.own.get(offer).is_some_and(|own| own.asker.uid == uid));
        carried.count() + opening.count() >= CONNECTIONS_OF_USER_MAX
    }

    /// If this host has the server's end, and the other one the client's: the program is given memory.
    fn meets(&mut self, offer: u32, host: &mut H) {
        let Some(own) = self.own.get(&offer) else { return };
        let Some((other, seen)) = self.others.get(&own.ends.other()).copied() else { return };
        if matches!(own.is, Is::Waiting)
            && own.seen.syn.is_some()
            && own.seen.is_one_with(seen)
            && !self.is_full_for(own.asker.uid)
            && let Some(app) = host.gives(own.asker, false)
            && let Some(own) = self.own.get_mut(&offer)
        {
            own.is = Is::Given { app, other };
            self.opening.push(offer);
        }
    }

    /// Hears and says what there is. Whether there was something.
    ///
    /// # Errors
    /// [`Cut`].
    pub fn turn(&mut self, link: &impl Window, partitions: usize, host: &mut H) -> Result<bool, Cut> {
        let Some((mut heard, mut out)) = self.talks.take() else { return Ok(false) };
        let result = self.talks_with(link, (&mut heard, &mut out), partitions, host);
        self.talks = Some((heard, out));
        result
    }

    fn talks_with(
        &mut self,
        link: &impl Window,
        (heard, out): (&mut In, &mut Out),
        partitions: usize,
        host: &mut H,
    ) -> Result<bool, Cut> {
        let mut was_busy = false;
        for _ in 0..BATCH {
            // Each may have to be answered.
            if self.says.len() >= SAYS_MAX {
                break;
            }
            let Some(Frame { connection: number, kind, carried }) = heard.next(link)? else { break };
            was_busy = true;
            self.hears(number, kind, carried, partitions, host)?;
        }
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(FORGETS_EVERY) {
            self.carried.retain(|_, carries| !carries.app.is_over());
        }
        for at in (0..self.opening.len()).rev() {
            let offer = self.opening[at];
            if !self.opens(offer, link, out, partitions, host)? {
                self.opening.swap_remove(at);
                // The partition has it, if it was opened.
                let _ = self.takes(offer);
            }
        }
        while let Some(say) = self.says.front() {
            if !self.say(*say, link, out)? {
                break;
            }
            self.says.pop_front();
        }
        Ok(was_busy)
    }

    fn say(&self, say: Say, link: &impl Window, out: &mut Out) -> Result<bool, Cut> {
        match say {
            Say::Offer { offer } => match self.own.get(&offer) {
                Some(own) if matches!(own.is, Is::Waiting) => {
                    out.send_short(link, offer, Kind::Offer, &written(own.ends, own.seen))
                }
                _ => Ok(true),
            },
            Say::Withdrawn { offer } => out.send_short(link, offer, Kind::Withdrawn, &[]),
            Say::Refused { connection } => out.send_short(link, connection, Kind::Refused, &[]),
        }
    }

    /// An end of this host that was given memory goes on. False: it is done with.
    fn opens(
        &mut self,
        offer: u32,
        link: &impl Window,
        out: &mut Out,
        partitions: usize,
        host: &mut H,
    ) -> Result<bool, Cut> {
        let Some(own) = self.own.get_mut(&offer) else { return Ok(false) };
        match &own.is {
            Is::Waiting => Ok(true),
            Is::Given { app, .. } if app.is_over() => Ok(false),
            Is::Given { app, other } => {
                // The other end waits no more, or its program never takes its memory.
                let has_closed = app.is_gone() || app.window().poll(READS_NO_MORE_AT) != 0;
                if has_closed || !self.ends_of.contains_key(other) {
                    app.is_carried();
                    return Ok(false);
                }
                if app.window().poll(READS_RING_AT) == 0 {
                    return Ok(true);
                }
                let partition = (0..partitions).min_by_key(|partition| host.load(*partition)).unwrap_or(0);
                // A number is never used again in a session.
                let connection = self.last_connection.checked_add(2);
                let request = connection.and_then(|connection| host.carries(partition, connection, app));
                let (Some(connection), Some(request)) = (connection, request) else {
                    app.is_carried();
                    return Ok(false);
                };
                self.last_connection = connection;
                let Is::Given { app, other } = std::mem::replace(&mut own.is, Is::Waiting) else { return Ok(false) };
                own.is = Is::Taken { app, other, connection, partition, request };
                Ok(true)
            }
            Is::Taken { other, connection, partition, request, app } => {
                if !host.has_taken(*partition, *request) {
                    return Ok(true);
                }
                if app.is_over() {
                    return Ok(false);
                }
                let mut carried = [0; 8];
                carried[..4].copy_from_slice(&other.to_le_bytes());
                #[allow(clippy::cast_possible_truncation, reason = "at most PARTITIONS_MAX")]
                carried[4..].copy_from_slice(&(*partition as u32).to_le_bytes());
                if !out.send_short(link, *connection, Kind::Open, &carried)? {
                    return Ok(true);
                }
                let (connection, other) = (*connection, *other);
                if let Some(ends) = self.ends_of.remove(&other) {
                    self.others.remove(&ends);
                }
                if let Some(Own { is: Is::Taken { app, .. }, asker, .. }) = self.takes(offer) {
                    self.carried.insert(connection, Carries { app, uid: asker.uid, is_opened_here: true });
                }
                Ok(false)
            }
        }
    }

    fn hears(&mut self, number: u32, kind: Kind, carried: &[u8], partitions: usize, host: &mut H) -> Result<(), Cut> {
        let malformed = Cut::Frame { kind: kind as u8, len: HEADER + carried.len() };
        match kind {
            Kind::Offer => {
                let (ends, seen) = read(carried).ok_or(malformed)?;
                // One host has so many, and not with others' addresses.
                if self.others.len() < OFFERS_MAX && self.is_for(ends.local) && !self.ends_of.contains_key(&number) {
                    if let Some((former, _)) = self.others.insert(ends, (number, seen)) {
                        self.ends_of.remove(&former);
                    }
                    self.ends_of.insert(number, ends);
                    if let Some(offer) = self.at.get(&ends.other()).copied() {
                        self.meets(offer, host);
                    }
                }
            }
            Kind::Withdrawn => {
                if let Some(ends) = self.ends_of.remove(&number) {
                    self.others.remove(&ends);
                }
            }
            Kind::Open => {
                let (offer, partition) = carried.split_at_checked(4).ok_or(malformed)?;
                let word = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).map_err(|_| malformed);
                let (offer, partition) = (word(offer)?, word(partition)? as usize);
                if partition >= partitions {
                    return Err(malformed);
                }
                let own = self.own.get(&offer).filter(|own| matches!(own.is, Is::Waiting) && own.seen.syn.is_none());
                let uid = own.map_or(0, |own| own.asker.uid);
                let app = own
                    .filter(|_| !host.is_full() && !self.is_full_for(uid))
                    .and_then(|own| host.gives(own.asker, true));
                match app.filter(|app| host.carries(partition, number, app).is_some() || !is_given_up(app)) {
                    Some(app) => {
                        _ = self.takes(offer);
                        self.carried.insert(number, Carries { app, uid, is_opened_here: false });
                    }
                    None => self.says(Say::Refused { connection: number }),
                }
            }
            Kind::Refused => {
                if self.carried.get(&number).is_some_and(|carries| carries.is_opened_here)
                    && let Some(carries) = self.carried.remove(&number)
                {
                    carries.app.is_carried();
                }
            }
            _ => return Err(malformed),
        }
        Ok(())
    }
}

/// Its program may have the memory already, and writes there.
fn is_given_up(app: &impl App) -> bool {
    app.resets();
    true
}

fn written(ends: Ends, seen: Seen) -> [u8; OFFER_LEN] {
    let mut bytes = [0; OFFER_LEN];
    for (at, address) in [ends.local, ends.peer].into_iter().enumerate() {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        bytes[18 * at..][..16].copy_from_slice(&ip.octets());
        bytes[18 * at + 16..][..2].copy_from_slice(&address.port().to_le_bytes());
    }
    for (at, stamp) in [seen.syn, seen.stamp].into_iter().enumerate() {
        bytes[36 + 5 * at] = stamp.is_some().into();
        bytes[36 + 5 * at + 1..][..4].copy_from_slice(&stamp.unwrap_or(0).to_le_bytes());
    }
    bytes
}

fn read(bytes: &[u8]) -> Option<(Ends, Seen)> {
    let bytes: &[u8; OFFER_LEN] = bytes.try_into().ok()?;
    let address = |at: usize| -> Option<SocketAddr> {
        let ip: [u8; 16] = bytes[at..][..16].try_into().ok()?;
        let port = u16::from_le_bytes(bytes[at + 16..][..2].try_into().ok()?);
        Some((IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), port).into())
    };
    let stamp = |at: usize| -> Option<Option<u32>> {
        let stamp = u32::from_le_bytes(bytes[at + 1..][..4].try_into().ok()?);
        match bytes[at] {
            0 => Some(None),
            1 => Some(Some(stamp)),
            _ => None,
        }
    };
    let ends = Ends { local: address(0)?, peer: address(18)? };
    Some((ends, Seen { syn: stamp(36)?, stamp: stamp(41)? }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn networks_have_their_addresses() {
        let has = |network: &str, address: &str| network.parse::<Network>().unwrap().has(address.parse().unwrap());
        assert!(has("10.1.2.0/24", "10.1.2.255") && !has("10.1.2.0/24", "10.1.3.0"));
        assert!(has("10.1.2.3", "10.1.2.3") && !has("10.1.2.3", "10.1.2.2"));
        assert!(has("0.0.0.0/0", "9.9.9.9") && !has("0.0.0.0/0", "::1"));
        assert!(has("fd00::/8", "fd12::1") && !has("fd00::/8", "fe00::1") && has("::/0", "::1"));
        assert!(has("::ffff:10.1.2.0/120", "10.1.2.255") && !has("::ffff:10.1.2.0/120", "10.1.3.0"));
        assert!(has(" ::ffff:10.1.2.3 ", "10.1.2.3") && has("::ffff:0.0.0.0/96", "9.9.9.9"));
        for text in ["", "10.1.2", "10.1.2.3/33", "fd00::/129", "10.0.0.0/", "10.0.0.0/+8", "fe80::1%eth0", "host"] {
            let why = text.parse::<Network>().unwrap_err().to_string();
            assert!(why.contains("10.1.2.0/24"), "{why}");
        }
    }

    /// All hosts have it.
    #[test]
    fn loopback_is_another_hosts_only_where_nothing_else_is_meant() {
        let has =
            |network: &str, address: &str| network.parse::<Network>().unwrap().has_of_other(address.parse().unwrap());
        assert!(has("127.0.0.0/8", "127.0.0.1") && has("127.0.0.1", "127.0.0.1") && has("::1", "::1"));
        assert!(has("0.0.0.0/0", "10.0.0.2") && !has("0.0.0.0/0", "127.0.0.1") && !has("126.0.0.0/7", "127.0.0.1"));
        assert!(has("::/0", "fd00::1") && !has("::/0", "::1"));
    }

    proptest! {
        #[test]
        fn offers_are_read_as_they_are_written(
            local in any::<SocketAddr>(), peer in any::<SocketAddr>(), syn in any::<Option<u32>>(), stamp in any::<Option<u32>>(),
        ) {
            let canonical = |address: SocketAddr| SocketAddr::from((address.ip().to_canonical(), address.port()));
            let ends = Ends { local: canonical(local), peer: canonical(peer) };
            let seen = Seen { syn, stamp };
            prop_assert_eq!(read(&written(ends, seen)), Some((ends, seen)));
        }
    }
}
