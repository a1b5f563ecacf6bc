// SPDX-License-Identifier: Apache-2.0
//! Frames of LLDP (IEEE Std 802.1AB): a port announces its owner to the device at the other end of its
//! cable.
//!
//! ```text
//!  01:80:c2:00:00:0e | source | 88cc | chassis id | port id | time to live | ... | end
//!                                      each: 7 bits type, 9 bits length, value
//! ```
//!
//! No bridge forwards frames to that address (IEEE 802.1Q, Table 8-1), so a frame comes from the next port
//! and from no other. Facts that LLDP has no field for are in organisationally specific values under a
//! locally administered identifier: the speaker's [`Role`], and the rate of its port. Other organisations'
//! values are skipped, and so are unknown types.

use std::fmt::Write;

#[cfg(test)]
mod tests;

/// In the Ethernet header.
pub const ETHERTYPE: u16 = 0x88cc;
/// "Nearest bridge", which no bridge forwards.
pub const NEAREST_BRIDGE: [u8; 6] = [0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e];
/// Largest frame, without its check sequence.
pub const FRAME_MAX_BYTES: usize = 1514;
/// Smallest frame, without its check sequence; a shorter one is filled up.
const FRAME_MIN_BYTES: usize = 60;
const HEADER_BYTES: usize = 14;
/// Longest id or name.
pub const TEXT_MAX_BYTES: usize = 255;

const END: u8 = 0;
const CHASSIS: u8 = 1;
const PORT: u8 = 2;
const TTL: u8 = 3;
const PORT_DESCRIPTION: u8 = 4;
const SYSTEM_NAME: u8 = 5;
const CAPABILITIES: u8 = 7;
const ORGANISATION: u8 = 127;

/// Locally administered: used by no other organisation, but not assigned to us.
const OURS: [u8; 3] = [0x02, 0xf1, 0xde];
const OURS_ROLE: u8 = 1;
const OURS_RATE: u8 = 2;

const CHASSIS_MAC: u8 = 4;
const CHASSIS_LOCAL: u8 = 7;
const PORT_MAC: u8 = 3;
const PORT_INTERFACE: u8 = 5;

/// A system's capabilities, as bits (IEEE 802.1AB, Table 8-4).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Capabilities {
    /// Its capabilities.
    pub available: u16,
    /// The capabilities that are enabled.
    pub enabled: u16,
}

impl Capabilities {
    /// A bridge.
    pub const BRIDGE: u16 = 1 << 2;
    /// A router.
    pub const ROUTER: u16 = 1 << 4;
    /// A host and nothing else.
    pub const STATION: u16 = 1 << 7;
}

/// The speaker, as Fide announces it; other programs announce capabilities.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Role {
    /// A host, for itself.
    Host,
    /// A controller, for the port of a switch that it manages.
    Switch,
}

/// The id of a chassis or a port, and its kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id {
    /// IEEE 802.1AB, Tables 8-2 and 8-3.
    pub subtype: u8,
    /// 1 to [`TEXT_MAX_BYTES`].
    pub value: Vec<u8>,
}

impl Id {
    fn text(&self, mac: u8) -> String {
        if self.subtype == mac { hardware(&self.value) } else { String::from_utf8_lossy(&self.value).into_owned() }
    }
}

/// `02-f1-de-00-00-01`: of letters that names of nodes and ports may have.
fn hardware(bytes: &[u8]) -> String {
    bytes.iter().enumerate().fold(String::new(), |mut text, (n, byte)| {
        let _ = write!(text, "{}{byte:02x}", if n == 0 { "" } else { "-" });
        text
    })
}

/// One frame.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Frame {
    /// Hardware address that it came from.
    pub source: [u8; 6],
    pub chassis: Id,
    pub port: Id,
    /// How long it holds; 0: the speaker takes its announcement back, and all other values are absent.
    pub ttl_s: u16,
    pub port_description: Option<String>,
    pub system_name: Option<String>,
    pub capabilities: Option<Capabilities>,
    /// None: the speaker is not Fide.
    pub role: Option<Role>,
    /// Bits per second that the port sends, if Fide speaks and knows it.
    pub rate_bps: Option<u64>,
}

/// An error in a frame.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    #[error("{0} bytes are no frame; its header has {HEADER_BYTES}")]
    Short(usize),
    #[error("{0} bytes are too long a frame; at most {FRAME_MAX_BYTES} are possible")]
    Long(usize),
    #[error("it was sent to {}, not to {}, so it need not come from the next port", hardware(.0), hardware(&NEAREST_BRIDGE))]
    Destination([u8; 6]),
    #[error("type {0:#06x} is not LLDP's, {ETHERTYPE:#06x}")]
    Ethertype(u16),
    #[error("it ends within the header of a value at byte {0}")]
    Header(usize),
    #[error("the value of type {kind} at byte {at} has {length} bytes, and {left} are left")]
    Overrun { kind: u8, at: usize, length: usize, left: usize },
    #[error("it ends without the value that marks its end")]
    NoEnd,
    #[error("its first values are chassis id, port id and time to live, in this order; {wanted} is not in its place")]
    Order { wanted: &'static str },
    #[error("there are two values of type {0}, of which one is possible")]
    Twice(u8),
    #[error("the {what} has {length} bytes; {right} are possible")]
    Length { what: &'static str, length: usize, right: &'static str },
}

impl Frame {
    /// Fide's announcement at a port, for a host or a switch called `node`.
    #[must_use]
    pub fn ours(role: Role, (node, port): (&str, &str), source: [u8; 6], ttl_s: u16, rate_bps: Option<u64>) -> Frame {
        let does = match role {
            Role::Host => Capabilities::STATION,
            Role::Switch => Capabilities::BRIDGE,
        };
        Frame {
            source,
            chassis: Id { subtype: CHASSIS_LOCAL, value: node.as_bytes().to_vec() },
            port: Id { subtype: PORT_INTERFACE, value: port.as_bytes().to_vec() },
            ttl_s,
            port_description: None,
            system_name: Some(node.to_owned()),
            capabilities: Some(Capabilities { available: does, enabled: does }),
            role: Some(role),
            rate_bps,
        }
    }

    /// Takes back everything that was announced for this port.
    #[must_use]
    pub fn shutdown(&self) -> Frame {
        Frame {
            ttl_s: 0,
            port_description: None,
            system_name: None,
            capabilities: None,
            role: None,
            rate_bps: None,
            ..self.clone()
        }
    }

    /// Name of the node: the system's, or else the chassis'.
    #[must_use]
    pub fn node(&self) -> String {
        match &self.system_name {
            Some(name) if !name.is_empty() => name.clone(),
            _ => self.chassis.text(CHASSIS_MAC),
        }
    }

    /// Name of the port. A program that sends its hardware address as id instead, as lldpd does by default,
    /// has the name in the description.
    #[must_use]
    pub fn port_name(&self) -> String {
        match &self.port_description {
            Some(name) if self.port.subtype == PORT_MAC && !name.is_empty() => name.clone(),
            _ => self.port.text(PORT_MAC),
        }
    }

    /// Whether packets may pass through the speaker.
    #[must_use]
    pub fn forwards(&self) -> bool {
        match (self.role, self.capabilities) {
            (Some(role), _) => role == Role::Switch,
            (None, Some(does)) => does.enabled & (Capabilities::BRIDGE | Capabilities::ROUTER) != 0,
            (None, None) => false,
        }
    }

    /// The frame's bytes, padded to the shortest that Ethernet carries.
    ///
    /// # Errors
    /// [`FrameError::Length`] of an id or a name.
    pub fn emit(&self) -> Result<Vec<u8>, FrameError> {
        let mut frame = [&NEAREST_BRIDGE[..], &self.source, &ETHERTYPE.to_be_bytes()].concat();
        for (kind, what, id) in [(CHASSIS, "chassis id", &self.chassis), (PORT, "port id", &self.port)] {
            if !(1..=TEXT_MAX_BYTES).contains(&id.value.len()) {
                return Err(FrameError::Length { what, length: id.value.len(), right: "1 to 255" });
            }
            put(&mut frame, kind, &[&[id.subtype], &id.value[..]].concat());
        }
        put(&mut frame, TTL, &self.ttl_s.to_be_bytes());
        let texts = [
            (PORT_DESCRIPTION, "port description", &self.port_description),
            (SYSTEM_NAME, "system name", &self.system_name),
        ];
        for (kind, what, text) in texts {
            let Some(text) = text else { continue };
            if text.len() > TEXT_MAX_BYTES {
                return Err(FrameError::Length { what, length: text.len(), right: "0 to 255" });
            }
            put(&mut frame, kind, text.as_bytes());
        }
        if let Some(does) = self.capabilities {
            put(&mut frame, CAPABILITIES, &[does.available.to_be_bytes(), does.enabled.to_be_bytes()].concat());
        }
        if let Some(role) = self.role {
            put(&mut frame, ORGANISATION, &[&OURS[..], &[OURS_ROLE, u8::from(role == Role::Switch)]].concat());
        }
        if let Some(rate) = self.rate_bps {
            put(&mut frame, ORGANISATION, &[&OURS[..], &[OURS_RATE], &rate.to_be_bytes()].concat());
        }
        put(&mut frame, END, &[]);
        frame.resize(frame.len().max(FRAME_MIN_BYTES), 0);
        Ok(frame)
    }

    /// Reads a frame, from its Ethernet header on. Bytes after its end are padding.
    ///
    /// # Errors
    /// The first error. A frame with any error is ignored as a whole (IEEE 802.1AB, 9.2.7.7).
    pub fn parse(bytes: &[u8]) -> Result<Frame, FrameError> {
        if bytes.len() > FRAME_MAX_BYTES {
            return Err(FrameError::Long(bytes.len()));
        }
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(FrameError::Short(bytes.len()));
        };
        let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = *header;
        let ethertype = u16::from_be_bytes([t0, t1]);
        if ethertype != ETHERTYPE {
            return Err(FrameError::Ethertype(ethertype));
        }
        if [d0, d1, d2, d3, d4, d5] != NEAREST_BRIDGE {
            return Err(FrameError::Destination([d0, d1, d2, d3, d4, d5]));
        }
        let mut values = Values { bytes, at: HEADER_BYTES };
        let chassis = id(values.mandatory(CHASSIS, "chassis id")?, "chassis id")?;
        let port = id(values.mandatory(PORT, "port id")?, "port id")?;
        let ttl = exactly(values.mandatory(TTL, "time to live")?, "time to live", "2")?;
        let mut frame = Frame {
            source: [s0, s1, s2, s3, s4, s5],
            chassis,
            port,
            ttl_s: u16::from_be_bytes(ttl),
            port_description: None,
            system_name: None,
            capabilities: None,
            role: None,
            rate_bps: None,
        };
        loop {
            let (kind, value) = values.next()?;
            match kind {
                END if value.is_empty() => return Ok(frame),
                END => return Err(FrameError::Length { what: "end", length: value.len(), right: "0" }),
                CHASSIS | PORT | TTL => return Err(FrameError::Twice(kind)),
                PORT_DESCRIPTION => once(&mut frame.port_description, text(value, "port description")?, kind)?,
                SYSTEM_NAME => once(&mut frame.system_name, text(value, "system name")?, kind)?,
                CAPABILITIES => {
                    let [a, b, c, d] = exactly(value, "capabilities", "4")?;
                    let (available, enabled) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                    once(&mut frame.capabilities, Capabilities { available, enabled }, kind)?;
                }
                ORGANISATION => frame.organisation(value)?,
                _ => {}
            }
        }
    }

    fn organisation(&mut self, value: &[u8]) -> Result<(), FrameError> {
        let Some((&[a, b, c, subtype], value)) = value.split_first_chunk::<4>() else {
            let what = "organisationally specific value";
            return Err(FrameError::Length { what, length: value.len(), right: "4 to 511" });
        };
        match (subtype, [a, b, c] == OURS) {
            (OURS_ROLE, true) => {
                let role = match exactly(value, "role", "1")? {
                    [0] => Role::Host,
                    [1] => Role::Switch,
                    // From a later version: the speaker is unknown.
                    _ => return Ok(()),
                };
                once(&mut self.role, role, ORGANISATION)
            }
            (OURS_RATE, true) => {
                once(&mut self.rate_bps, u64::from_be_bytes(exactly(value, "rate", "8")?), ORGANISATION)
            }
            _ => Ok(()),
        }
    }
}

fn put(frame: &mut Vec<u8>, kind: u8, value: &[u8]) {
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX).min(0x1ff);
    frame.extend((u16::from(kind) << 9 | length).to_be_bytes());
    frame.extend(value);
}

fn exactly<const N: usize>(value: &[u8], what: &'static str, right: &'static str) -> Result<[u8; N], FrameError> {
    value.try_into().map_err(|_| FrameError::Length { what, length: value.len(), right })
}

fn id(value: &[u8], what: &'static str) -> Result<Id, FrameError> {
    match value.split_first() {
        Some((subtype, value)) if (1..=TEXT_MAX_BYTES).contains(&value.len()) => {
            Ok(Id { subtype: *subtype, value: value.to_vec() })
        }
        _ => Err(FrameError::Length { what, length: value.len(), right: "2 to 256" }),
    }
}

/// Bytes that are not UTF-8 become U+FFFD, which no name of a node has.
fn text(value: &[u8], what: &'static str) -> Result<String, FrameError> {
    if value.len() > TEXT_MAX_BYTES {
        return Err(FrameError::Length { what, length: value.len(), right: "0 to 255" });
    }
    Ok(String::from_utf8_lossy(value).into_owned())
}

fn once<T>(place: &mut Option<T>, value: T, kind: u8) -> Result<(), FrameError> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(FrameError::Twice(kind)),
    }
}

struct Values<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Values<'a> {
    /// Type and value.
    fn next(&mut self) -> Result<(u8, &'a [u8]), FrameError> {
        let at = self.at;
        let left = &self.bytes[at..];
        let (header, left) = match left.split_first_chunk::<2>() {
            Some((header, left)) => (u16::from_be_bytes(*header), left),
            None if left.is_empty() => return Err(FrameError::NoEnd),
            None => return Err(FrameError::Header(at)),
        };
        let (kind, length) = ((header >> 9).to_be_bytes()[1], usize::from(header & 0x1ff));
        let value = left.get(..length).ok_or(FrameError::Overrun { kind, at, length, left: left.len() })?;
        self.at = at + 2 + length;
        Ok((kind, value))
    }

    fn mandatory(&mut self, wanted: u8, what: &'static str) -> Result<&'a [u8], FrameError> {
        match self.next()? {
            (kind, value) if kind == wanted => Ok(value),
            _ => Err(FrameError::Order { wanted: what }),
        }
    }
}
