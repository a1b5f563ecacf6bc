// SPDX-License-Identifier: Apache-2.0
//! Whether a bridge looks at its multicast entries.
//!
//! It does so only while snooping is on and a querier is known; else it floods. A bridge may be its own
//! querier. It trusts itself after the response interval that is in force when it becomes one: 10 s by
//! default, during which it would flood, so the interval is a hundredth of a second for that moment.

use crate::DriverError;
use crate::link::{self, RTM_NEWLINK};
use crate::netlink::{Answer, Netlink, Raw};
use netlink_packet_core::Emitable;
use netlink_packet_route::link::{InfoBridge, InfoData, InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use std::time::Duration;

const RTM_GETLINK: u16 = 18;
/// Hundredths of a second.
const SHORT_INTERVAL: u64 = 1;
/// That interval, in ticks of the kernel's that may be as long, and some more.
const TRUST: Duration = Duration::from_millis(30);

/// Settings that matter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Snooping {
    snooping: bool,
    querier: bool,
    response_interval: u64,
}

fn read(netlink: &mut Netlink, (name, index): (&str, u32)) -> Result<Snooping, DriverError> {
    let all = netlink.dump(Raw { kind: RTM_GETLINK, body: bytes(&LinkMessage::default()) });
    let all = all.map_err(|e| e.on(format!("reading bridge {name}")))?;
    let ours = all.iter().filter_map(link::message).filter(|(header, _)| header.index == index).flat_map(|(_, a)| a);
    let mut found = None;
    for info in ours.filter_map(|a| if let LinkAttribute::LinkInfo(i) = a { Some(i) } else { None }).flatten() {
        let LinkInfo::Data(InfoData::Bridge(settings)) = info else { continue };
        let mut s = Snooping::default();
        for setting in settings {
            match setting {
                InfoBridge::MulticastSnooping(on) => s.snooping = on,
                InfoBridge::MulticastQuerier(on) => s.querier = on,
                InfoBridge::MulticastQueryResponseInterval(t) => s.response_interval = t,
                _ => {}
            }
        }
        found = Some(s);
    }
    found.ok_or_else(|| DriverError::Open { switch: format!("bridge {name}"), why: "it is gone; open it again".into() })
}

fn bytes(message: &LinkMessage) -> Vec<u8> {
    let mut bytes = vec![0; message.buffer_len()];
    message.emit(&mut bytes);
    bytes
}

fn set(netlink: &mut Netlink, index: u32, settings: Vec<InfoBridge>) -> Answer<()> {
    let mut message = LinkMessage::default();
    message.header.index = index;
    let info = vec![LinkInfo::Kind(InfoKind::Bridge), LinkInfo::Data(InfoData::Bridge(settings))];
    message.attributes.push(LinkAttribute::LinkInfo(info));
    netlink.change(Raw { kind: RTM_NEWLINK, body: bytes(&message) }, 0)
}

/// Why entries have no effect, in words.
pub(super) fn inert(netlink: &mut Netlink, bridge: (&str, u32)) -> Result<Option<String>, DriverError> {
    let s = read(netlink, bridge)?;
    Ok(match (s.snooping, s.querier) {
        (false, _) => Some("multicast snooping is off, and the bridge floods".into()),
        (true, false) => Some("the bridge is no querier, and floods while it knows none".into()),
        (true, true) => None,
    })
}

/// Makes entries count, where they do not; gives what was set before.
pub(super) fn enable(netlink: &mut Netlink, bridge: (&str, u32)) -> Result<Snooping, DriverError> {
    let before = read(netlink, bridge)?;
    let mut steps = Vec::new();
    if !before.snooping {
        steps.push(InfoBridge::MulticastSnooping(true));
    }
    if !before.querier {
        steps.push(InfoBridge::MulticastQueryResponseInterval(SHORT_INTERVAL));
        steps.push(InfoBridge::MulticastQuerier(true));
        steps.push(InfoBridge::MulticastQueryResponseInterval(before.response_interval));
    }
    // One at a time: the kernel takes the settings of one message in an order of its own.
    apply(netlink, bridge, steps)?;
    if !before.querier {
        // Nothing tells when the bridge trusts itself.
        std::thread::sleep(TRUST);
    }
    Ok(before)
}

/// As it was.
pub(super) fn set_back(netlink: &mut Netlink, bridge: (&str, u32), before: Snooping) -> Result<(), DriverError> {
    let now = read(netlink, bridge)?;
    let mut steps = Vec::new();
    if now.querier != before.querier {
        steps.push(InfoBridge::MulticastQuerier(before.querier));
    }
    if now.snooping != before.snooping {
        steps.push(InfoBridge::MulticastSnooping(before.snooping));
    }
    apply(netlink, bridge, steps)
}

fn apply(netlink: &mut Netlink, (name, index): (&str, u32), steps: Vec<InfoBridge>) -> Result<(), DriverError> {
    let mut applied = Vec::new();
    for step in steps {
        let what = format!("{step:?}");
        set(netlink, index, vec![step])
            .map_err(|e| e.on(format!("bridge {name}: setting {what}")).with_applied(&applied))?;
        applied.push(what);
    }
    Ok(())
}
