// SPDX-License-Identifier: Apache-2.0
//! Strict priority at a port: HTB with a class per sub-lane and one for the rest, and u32 filters on the
//! DSCP.
//!
//! ```text
//!  f1de: htb ── f1de:1 rate R ─┬─ f1de:10  prio 0  rate R            first sub-lane
//!                              ├─ f1de:11  prio 1  rate 1k ceil R    second ...
//!                              └─ f1de:ff  prio 7  rate 1k ceil R    everything else
//! ```
//!
//! HTB serves classes within their own `rate` before those that borrow, each in order of `prio`. So the first
//! sub-lane is given the whole rate, and the others so little that they always borrow. Without a rate, R is
//! more than any device takes, and the device's pace decides when the next packet is chosen.

mod codec;

use crate::link::Link;
use crate::netlink::{Answer, Netlink, NetlinkError, Raw, attribute, attributes, u32_at};
use crate::{DriverError, Egress, Lanes};
use codec::{Class, Filter, TCM_LEN, Tcm};
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use std::collections::BTreeMap;

const RTM_NEWQDISC: u16 = 36;
const RTM_DELQDISC: u16 = 37;
const RTM_GETQDISC: u16 = 38;
const RTM_NEWTCLASS: u16 = 40;
const RTM_DELTCLASS: u16 = 41;
const RTM_GETTCLASS: u16 = 42;
const RTM_NEWTFILTER: u16 = 44;
const RTM_DELTFILTER: u16 = 45;
const RTM_GETTFILTER: u16 = 46;

const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TC_H_ROOT: u32 = 0xffff_ffff;
/// Handle of our own queueing discipline.
const HANDLE: u32 = 0xf1de_0000;
const REST: u32 = 0xff;
const FIRST_LANE: u32 = 0x10;
/// More than any device takes: 100 Gbit/s in bytes.
const UNLIMITED: u64 = 12_500_000_000;
/// 1 kbit/s in bytes: a packet now and then.
const LITTLE: u64 = 125;
const LAST_PRIO: u32 = 7;
/// Queueing disciplines without classes, which can be made again from their kind and options alone.
const CLASSLESS: [&str; 7] = ["fq_codel", "fq", "pfifo", "bfifo", "pfifo_fast", "sfq", "codel"];

/// A port's queueing discipline before ours.
#[derive(Debug, Clone)]
pub(crate) enum Before {
    /// The kernel's default for every port.
    Default,
    /// Another program's choice: messages that make it again, in order.
    Made(Vec<Raw>),
}

fn get(netlink: &mut Netlink, kind: u16, port: u32, parent: u32) -> Answer<Vec<Raw>> {
    let tcm = Tcm { port, handle: 0, parent, info: 0 };
    let all = netlink.dump(Raw { kind, body: tcm.emit() })?;
    // The kernel lists queueing disciplines of all ports.
    Ok(all.into_iter().filter(|r| Tcm::parse(&r.body).is_some_and(|t| t.port == port)).collect())
}

fn root(netlink: &mut Netlink, port: u32) -> Answer<Option<Raw>> {
    let all = get(netlink, RTM_GETQDISC, port, 0)?;
    Ok(all.into_iter().find(|r| Tcm::parse(&r.body).is_some_and(|t| t.parent == TC_H_ROOT)))
}

fn text_of(raw: &Raw) -> String {
    let all = attributes(raw.body.get(TCM_LEN..).unwrap_or_default());
    String::from_utf8_lossy(attribute(&all, TCA_KIND).unwrap_or_default()).trim_end_matches('\0').to_string()
}

/// Gives a port the queues, completing existing ones. Returns what was there before, unless the queues were
/// ours already.
pub(crate) fn prepare(netlink: &mut Netlink, port: (&str, u32), lanes: &Lanes) -> Result<Option<Before>, DriverError> {
    let (name, index) = port;
    let on = |what: &str| format!("port {name}: {what}");
    let present = root(netlink, index).map_err(|e| e.on(on("reading its queueing discipline")))?;
    let ours = present.as_ref().is_some_and(|r| Tcm::parse(&r.body).is_some_and(|t| t.handle == HANDLE));
    let before = match present {
        _ if ours => None,
        Some(root) => Some(remember(netlink, port, root)?),
        None => Some(Before::Default),
    };
    if !ours {
        netlink
            .change(Raw { kind: RTM_NEWQDISC, body: codec::htb(index, HANDLE, REST) }, NLM_F_CREATE | NLM_F_REPLACE)
            .map_err(|e| e.on(on("making queues of strict priority (HTB)")))?;
    }
    complete(netlink, index, name, lanes).map_err(|e| e.on(on("making classes and filters")))?;
    Ok(before)
}

/// Classes, then filters into them; correct ones are left alone.
fn complete(netlink: &mut Netlink, port: u32, name: &str, lanes: &Lanes) -> Answer<()> {
    let (classes, filters) = wanted(name, lanes);
    let present = read_classes(netlink, port)?;
    for (id, class) in &classes {
        if present.get(id) != Some(class) {
            let body = class.emit(port, HANDLE | id);
            netlink.change(Raw { kind: RTM_NEWTCLASS, body }, NLM_F_CREATE | NLM_F_REPLACE)?;
        }
    }
    let present_filters = read_filters(netlink, port)?;
    if !present_filters.iter().all(|f| filters.contains(f)) {
        // A filter that leads elsewhere: all are removed, and for this moment the lanes are served with the
        // rest.
        netlink.change(Raw { kind: RTM_DELTFILTER, body: Filter::all(port, HANDLE) }, 0)?;
    }
    let present_filters = read_filters(netlink, port)?;
    for filter in filters.iter().filter(|f| !present_filters.contains(f)) {
        netlink.change(Raw { kind: RTM_NEWTFILTER, body: filter.emit(port, HANDLE) }, NLM_F_CREATE | NLM_F_EXCL)?;
    }
    for id in present.keys().filter(|id| !classes.contains_key(id)) {
        let tcm = Tcm { port, handle: HANDLE | id, parent: 0, info: 0 };
        netlink.change(Raw { kind: RTM_DELTCLASS, body: tcm.emit() }, 0)?;
    }
    Ok(())
}

fn wanted(name: &str, lanes: &Lanes) -> (BTreeMap<u32, Class>, Vec<Filter>) {
    let rate = lanes.rate_of(name).map_or(UNLIMITED, |bps| bps / 8);
    let leaf = |rate_bytes, prio| Class { parent: HANDLE | 1, rate_bytes, ceil_bytes: rate, prio };
    let whole = Class { parent: TC_H_ROOT, ..leaf(rate, 0) };
    let mut classes = BTreeMap::from([(1, whole), (REST, leaf(LITTLE.min(rate), LAST_PRIO))]);
    let mut filters = Vec::new();
    for (i, dscps) in (0u32..).zip(&lanes.sub_lanes) {
        classes.insert(FIRST_LANE + i, leaf(if i == 0 { rate } else { LITTLE.min(rate) }, i));
        filters.extend(dscps.iter().map(|d| Filter { dscp: *d, class: HANDLE | (FIRST_LANE + i) }));
    }
    (classes, filters)
}

fn read_classes(netlink: &mut Netlink, port: u32) -> Answer<BTreeMap<u32, Class>> {
    let all = get(netlink, RTM_GETTCLASS, port, 0)?;
    let ours = all.iter().filter_map(|r| {
        let handle = Tcm::parse(&r.body)?.handle;
        (handle & 0xffff_0000 == HANDLE).then_some((handle & 0xffff, Class::parse(&r.body)?))
    });
    Ok(ours.collect())
}

fn read_filters(netlink: &mut Netlink, port: u32) -> Answer<Vec<Filter>> {
    Ok(get(netlink, RTM_GETTFILTER, port, HANDLE)?.iter().filter_map(|r| Filter::parse(&r.body)).collect())
}

/// How a port differs from the state that [`prepare`] left, in words; none if it does not.
pub(crate) fn fault(netlink: &mut Netlink, port: (&str, u32), lanes: &Lanes) -> Result<Option<String>, DriverError> {
    let (name, index) = port;
    look(netlink, index, name, lanes).map_err(|e| e.on(format!("port {name}: reading its queues")))
}

fn look(netlink: &mut Netlink, port: u32, name: &str, lanes: &Lanes) -> Answer<Option<String>> {
    let present = root(netlink, port)?;
    let ours = present.as_ref().is_some_and(|r| Tcm::parse(&r.body).is_some_and(|t| t.handle == HANDLE));
    if !ours {
        let kind = present.as_ref().map_or("none".into(), text_of);
        return Ok(Some(format!("its queueing discipline is {kind}, not htb f1de:")));
    }
    let (classes, filters) = wanted(name, lanes);
    let (present, present_filters) = (read_classes(netlink, port)?, read_filters(netlink, port)?);
    if let Some((id, _)) = classes.iter().find(|(id, c)| present.get(id) != Some(c)) {
        return Ok(Some(format!("class f1de:{id:x} is missing or not as set")));
    }
    if let Some(f) = filters.iter().find(|f| !present_filters.contains(f)) {
        return Ok(Some(format!("DSCP {} has no filter into its class", f.dscp)));
    }
    let other = present_filters.iter().find(|f| !filters.contains(f));
    Ok(other.map(|f| format!("DSCP {} is filtered into class {:x}:{:x}", f.dscp, f.class >> 16, f.class & 0xffff)))
}

/// The limits of a port: how long a lane's queue is, and which rate limits it, ours or another program's.
///
/// A class of ours has HTB's default queue for a class: of the interface's default length.
pub(crate) fn egress(netlink: &mut Netlink, link: &Link) -> Result<Egress, DriverError> {
    let limit = limit(netlink, link.index);
    let limit_bps = limit.map_err(|e| e.on(format!("port {}: reading its queues", link.state.name)))?;
    let queue_packets = Some(link.queue_packets).filter(|packets| *packets > 0);
    Ok(Egress { limit_bps, queue_packets })
}

/// Bit/s. An HTB limits a port if all classes are within one.
fn limit(netlink: &mut Netlink, port: u32) -> Answer<Option<u64>> {
    let Some(present) = root(netlink, port)? else { return Ok(None) };
    let rate = match text_of(&present).as_str() {
        "tbf" => codec::tbf_rate(&present.body),
        "htb" => {
            let all = get(netlink, RTM_GETTCLASS, port, 0)?;
            let roots: Vec<&Raw> =
                all.iter().filter(|r| Tcm::parse(&r.body).is_some_and(|t| t.parent == TC_H_ROOT)).collect();
            match roots.as_slice() {
                [one] => Class::parse(&one.body).map(|class| class.ceil_bytes),
                _ => None,
            }
        }
        _ => None,
    };
    Ok(rate.filter(|bytes| *bytes < UNLIMITED).map(|bytes| bytes.saturating_mul(8)))
}

/// Whether a port has queues of ours.
fn is_ours(netlink: &mut Netlink, port: u32) -> Answer<bool> {
    Ok(root(netlink, port)?.is_some_and(|r| Tcm::parse(&r.body).is_some_and(|t| t.handle == HANDLE)))
}

/// Removes our queues, if they are there, and makes the former ones again. Another program's later choice
/// stays.
pub(crate) fn restore(netlink: &mut Netlink, port: (&str, u32), before: Option<&Before>) -> Result<(), DriverError> {
    let (name, index) = port;
    let on = |what: &str| format!("port {name}: {what}");
    if !is_ours(netlink, index).map_err(|e| e.on(on("reading its queueing discipline")))? {
        return Ok(());
    }
    let tcm = Tcm { port: index, handle: HANDLE, parent: TC_H_ROOT, info: 0 };
    netlink.change(Raw { kind: RTM_DELQDISC, body: tcm.emit() }, 0).map_err(|e| e.on(on("removing its queues")))?;
    if let Some(Before::Made(messages)) = before {
        for message in messages {
            netlink
                .change(message.clone(), NLM_F_CREATE | NLM_F_REPLACE)
                .map_err(|e| e.on(on("making its former queueing discipline again")))?;
        }
    }
    Ok(())
}

/// Messages that make a root queueing discipline again.
fn remember(netlink: &mut Netlink, port: (&str, u32), root: Raw) -> Result<Before, DriverError> {
    let (name, index) = port;
    let Some(tcm) = Tcm::parse(&root.body) else { return Ok(Before::Default) };
    // The kernel's own choice has no handle.
    if tcm.handle == 0 {
        return Ok(Before::Default);
    }
    let kind = text_of(&root);
    let refuse = |what: &str| {
        Err(DriverError::Unsupported {
            what: format!("strict priority at port {name}"),
            why: format!(
                "it has a queueing discipline `{kind}`{what} that could not be put back as it was; remove it by `tc \
                 qdisc del dev {name} root`, and call this again"
            ),
        })
    };
    let mut messages = vec![again(RTM_NEWQDISC, &root)];
    if CLASSLESS.contains(&kind.as_str()) {
        return Ok(Before::Made(messages));
    }
    let htb = if kind == "htb" { codec::htb_again(&root.body) } else { None };
    match htb {
        Some(body) => messages = vec![Raw { kind: RTM_NEWQDISC, body }],
        None => return refuse(""),
    }
    match htb_parts(netlink, index, tcm.handle).map_err(|e| e.on(format!("port {name}: reading its queues")))? {
        Some(parts) => messages.extend(parts),
        None => return refuse(" with parts of other kinds"),
    }
    Ok(Before::Made(messages))
}

/// Classes and filters of an HTB, in the order in which they can be made; none if there are parts that
/// cannot be made again.
fn htb_parts(netlink: &mut Netlink, port: u32, handle: u32) -> Result<Option<Vec<Raw>>, NetlinkError> {
    let inner = get(netlink, RTM_GETQDISC, port, 0)?;
    if inner.iter().filter_map(|r| Tcm::parse(&r.body)).any(|t| t.parent & 0xffff_0000 == handle) {
        return Ok(None);
    }
    let mut messages = Vec::new();
    let mut made = vec![TC_H_ROOT, handle];
    let mut classes = get(netlink, RTM_GETTCLASS, port, 0)?;
    while !classes.is_empty() {
        // Parents first; a class whose parent never comes belongs to another discipline.
        let fits = |r: &Raw| Tcm::parse(&r.body).is_some_and(|t| made.contains(&t.parent));
        let (next, later): (Vec<_>, Vec<_>) = classes.into_iter().partition(fits);
        if next.is_empty() {
            return Ok(None);
        }
        made.extend(next.iter().filter_map(|r| Tcm::parse(&r.body)).map(|t| t.handle));
        messages.extend(next.iter().map(|r| again(RTM_NEWTCLASS, r)));
        classes = later;
    }
    for filter in get(netlink, RTM_GETTFILTER, port, handle)? {
        if text_of(&filter) != "u32" {
            return Ok(None);
        }
        messages.extend(codec::u32_again(&filter.body).map(|body| Raw { kind: RTM_NEWTFILTER, body }));
    }
    Ok(Some(messages))
}

/// A listed queueing discipline or class as a message that makes it.
fn again(kind: u16, raw: &Raw) -> Raw {
    let all = attributes(raw.body.get(TCM_LEN..).unwrap_or_default());
    let kept = all.iter().filter(|(k, _)| [TCA_KIND, TCA_OPTIONS].contains(k));
    let kept: Vec<_> = kept.map(|(k, v)| crate::netlink::nla(*k, v)).collect();
    let mut body = raw.body[..TCM_LEN.min(raw.body.len())].to_vec();
    // In a list this counts references; in a request it means an ingress block.
    body[16..].fill(0);
    body.extend(crate::netlink::emit(&kept));
    Raw { kind, body }
}
