// SPDX-License-Identifier: Apache-2.0
//! Messages of traffic control (linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h).

use super::{TC_H_ROOT, TCA_KIND, TCA_OPTIONS, attribute, attributes, u32_at};
use crate::netlink::{emit, nest, nla};

/// struct tcmsg.
pub(super) const TCM_LEN: usize = 20;
const ETH_P_IP: u32 = 0x0800;

const TCA_HTB_PARMS: u16 = 1;
const TCA_HTB_INIT: u16 = 2;
const TCA_HTB_RATE64: u16 = 6;
const TCA_HTB_CEIL64: u16 = 7;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const HTB_VERSION: u32 = 3;
const RATE2QUANTUM: u32 = 10;
/// struct tc_htb_opt: two of struct tc_ratespec, then five numbers.
const PARMS_LEN: usize = 44;
const CEIL_AT: usize = 12;
const PRIO_AT: usize = 40;
/// Byte and place of the rate in struct tc_ratespec. With this link layer the kernel needs no rate table.
const LINKLAYER_ETHERNET: u8 = 1;
const RATE_AT: usize = 8;
/// A tick of the packet scheduler is 64 ns.
const TICK_NS: u64 = 64;
/// Bytes in turn between classes of one priority: a full frame.
const QUANTUM: u32 = 1514;
/// What a class may send at once: two full frames, and what its rate gives in a millisecond.
const BURST_MIN: u64 = 2 * 1514;

const TCA_U32_CLASSID: u16 = 1;
const TCA_U32_SEL: u16 = 5;
const TCA_U32_FLAGS: u16 = 11;
/// Skip hardware, skip software, verbose; not whether it is in hardware.
const FLAGS_OF_REQUESTS: u32 = 0b1_0011;
const TC_U32_TERMINAL: u8 = 1;
/// struct tc_u32_sel, then its keys.
const SEL_LEN: usize = 16;
/// The TOS byte is the second of the IPv4 header; the DSCP is its upper six bits.
const DSCP_MASK: [u8; 4] = [0, 0xfc, 0, 0];
/// Of our filters; lower goes first.
const FILTER_PRIO: u32 = 1;

/// The part that all these messages begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tcm {
    pub(super) port: u32,
    pub(super) handle: u32,
    pub(super) parent: u32,
    pub(super) info: u32,
}

impl Tcm {
    pub(super) fn emit(&self) -> Vec<u8> {
        [0, self.port, self.handle, self.parent, self.info].iter().flat_map(|n| n.to_ne_bytes()).collect()
    }

    pub(super) fn parse(body: &[u8]) -> Option<Tcm> {
        let at = |at| u32_at(body, at);
        Some(Tcm { port: at(4)?, handle: at(8)?, parent: at(12)?, info: at(16)? })
    }

    fn with(&self, kind: &[u8], options: &[netlink_packet_core::DefaultNla]) -> Vec<u8> {
        [self.emit(), emit(&[nla(TCA_KIND, kind), nest(TCA_OPTIONS, options)])].concat()
    }
}

fn options(body: &[u8]) -> Option<&[u8]> {
    attribute(&attributes(body.get(TCM_LEN..)?), TCA_OPTIONS)
}

/// An HTB as root; what no filter takes goes to class `rest`.
pub(super) fn htb(port: u32, handle: u32, rest: u32) -> Vec<u8> {
    let init: Vec<u8> = [HTB_VERSION, RATE2QUANTUM, rest, 0, 0].iter().flat_map(|n| n.to_ne_bytes()).collect();
    Tcm { port, handle, parent: TC_H_ROOT, info: 0 }.with(b"htb\0", &[nla(TCA_HTB_INIT, &init)])
}

/// A listed HTB as a request: the kernel lists its own version with a minor number that it does not accept.
pub(super) fn htb_again(body: &[u8]) -> Option<Vec<u8>> {
    let all = attributes(options(body)?);
    let parts = all.iter().map(|(kind, value)| {
        let mut value = value.to_vec();
        if *kind == TCA_HTB_INIT && value.len() >= 4 {
            value[..4].copy_from_slice(&HTB_VERSION.to_ne_bytes());
        }
        nla(*kind, &value)
    });
    Some(Tcm { info: 0, ..Tcm::parse(body)? }.with(b"htb\0", &parts.collect::<Vec<_>>()))
}

/// Bytes per second of a listed TBF.
pub(super) fn tbf_rate(body: &[u8]) -> Option<u64> {
    let all = attributes(options(body)?);
    let wide = attribute(&all, TCA_TBF_RATE64).and_then(|v| Some(u64::from_ne_bytes(v.try_into().ok()?)));
    // struct tc_tbf_qopt begins with the rate.
    wide.or(u32_at(attribute(&all, TCA_TBF_PARMS)?, RATE_AT).map(u64::from))
}

/// A class of HTB, as far as it is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) parent: u32,
    /// Bytes per second that it has, and may borrow up to.
    pub(super) rate_bytes: u64,
    pub(super) ceil_bytes: u64,
    pub(super) prio: u32,
}

impl Class {
    pub(super) fn emit(&self, port: u32, id: u32) -> Vec<u8> {
        let mut parms = [0u8; PARMS_LEN];
        let mut put = |at: usize, n: u32| parms[at..at + 4].copy_from_slice(&n.to_ne_bytes());
        for (at, rate) in [(0, self.rate_bytes), (CEIL_AT, self.ceil_bytes)] {
            put(at + RATE_AT, u32::try_from(rate).unwrap_or(u32::MAX));
        }
        put(24, burst_ticks(self.rate_bytes));
        put(28, burst_ticks(self.ceil_bytes));
        put(32, QUANTUM);
        put(PRIO_AT, self.prio);
        parms[1] = LINKLAYER_ETHERNET;
        parms[CEIL_AT + 1] = LINKLAYER_ETHERNET;
        let mut options = vec![nla(TCA_HTB_PARMS, &parms)];
        for (kind, rate) in [(TCA_HTB_RATE64, self.rate_bytes), (TCA_HTB_CEIL64, self.ceil_bytes)] {
            if rate > u64::from(u32::MAX) {
                options.push(nla(kind, &rate.to_ne_bytes()));
            }
        }
        Tcm { port, handle: id, parent: self.parent, info: 0 }.with(b"htb\0", &options)
    }

    pub(super) fn parse(body: &[u8]) -> Option<Class> {
        let all = attributes(options(body)?);
        let parms = attribute(&all, TCA_HTB_PARMS)?;
        let rate = |at: usize, wide: u16| -> Option<u64> {
            let wide = attribute(&all, wide).and_then(|v| Some(u64::from_ne_bytes(v.try_into().ok()?)));
            wide.or(u32_at(parms, at + RATE_AT).map(u64::from))
        };
        Some(Class {
            parent: Tcm::parse(body)?.parent,
            rate_bytes: rate(0, TCA_HTB_RATE64)?,
            ceil_bytes: rate(CEIL_AT, TCA_HTB_CEIL64)?,
            prio: u32_at(parms, PRIO_AT)?,
        })
    }
}

/// How long the burst takes at a rate, in ticks.
fn burst_ticks(rate_bytes: u64) -> u32 {
    let burst = BURST_MIN + rate_bytes / 1000;
    let ticks = u128::from(burst) * 1_000_000_000 / u128::from(rate_bytes.max(1)) / u128::from(TICK_NS);
    u32::try_from(ticks).unwrap_or(u32::MAX)
}

/// IPv4 packets of a DSCP, into a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) dscp: u8,
    pub(super) class: u32,
}

impl Filter {
    fn tcm(port: u32, parent: u32) -> Tcm {
        Tcm { port, handle: 0, parent, info: FILTER_PRIO << 16 | u32::from((ETH_P_IP as u16).to_be()) }
    }

    /// All filters of our priority, as a request to delete them.
    pub(super) fn all(port: u32, parent: u32) -> Vec<u8> {
        Self::tcm(port, parent).with(b"u32\0", &[])
    }

    pub(super) fn emit(&self, port: u32, parent: u32) -> Vec<u8> {
        let mut selector = vec![0u8; SEL_LEN];
        (selector[0], selector[2]) = (TC_U32_TERMINAL, 1);
        selector.extend(DSCP_MASK);
        selector.extend([0, self.dscp << 2, 0, 0]);
        // Offset from the IP header, and no mask of an offset.
        selector.extend([0; 8]);
        let options = [nla(TCA_U32_CLASSID, &self.class.to_ne_bytes()), nla(TCA_U32_SEL, &selector)];
        Self::tcm(port, parent).with(b"u32\0", &options)
    }

    /// None if it is another filter than one on the DSCP alone.
    pub(super) fn parse(body: &[u8]) -> Option<Filter> {
        let all = attributes(options(body)?);
        let selector = attribute(&all, TCA_U32_SEL)?;
        let key = selector.get(SEL_LEN..SEL_LEN + 16)?;
        let alone = selector[2] == 1 && key[..4] == DSCP_MASK && key[8..16] == [0; 8];
        let class = u32_at(attribute(&all, TCA_U32_CLASSID)?, 0)?;
        alone.then_some(Filter { dscp: key[5] >> 2, class })
    }
}

/// A listed u32 filter as a request, without what the kernel tells of it. None if it is the table that the
/// kernel makes with the first filter, and selects nothing.
pub(super) fn u32_again(body: &[u8]) -> Option<Vec<u8>> {
    let all = attributes(options(body)?);
    attribute(&all, TCA_U32_SEL)?;
    let parts = all.iter().map(|(kind, value)| match (*kind, u32_at(value, 0)) {
        (TCA_U32_FLAGS, Some(flags)) => nla(TCA_U32_FLAGS, &(flags & FLAGS_OF_REQUESTS).to_ne_bytes()),
        _ => nla(*kind, value),
    });
    Some(Tcm::parse(body)?.with(b"u32\0", &parts.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn class_is_read_back_also_beyond_4_gb_per_s() {
        for rate_bytes in [125, 1_250_000, 12_500_000_000] {
            let class = Class { parent: 0xf1de_0001, rate_bytes, ceil_bytes: 2 * rate_bytes, prio: 3 };
            let body = class.emit(9, 0xf1de_0010);
            assert_eq!(Class::parse(&body), Some(class));
            let tcm = Tcm { port: 9, handle: 0xf1de_0010, parent: 0xf1de_0001, info: 0 };
            assert_eq!(Tcm::parse(&body), Some(tcm));
        }
        assert_eq!(Class::parse(&[0; TCM_LEN]), None);
    }

    #[test]
    fn tbf_rate_is_the_64_bit_one_if_present() {
        let tcm = Tcm { port: 9, handle: 1, parent: TC_H_ROOT, info: 0 };
        let mut parms = vec![0u8; 36];
        parms[RATE_AT..RATE_AT + 4].copy_from_slice(&125_000u32.to_ne_bytes());
        let narrow = nla(TCA_TBF_PARMS, &parms);
        assert_eq!(tbf_rate(&tcm.with(b"tbf\0", std::slice::from_ref(&narrow))), Some(125_000));
        let wide = nla(TCA_TBF_RATE64, &5_000_000_000u64.to_ne_bytes());
        assert_eq!(tbf_rate(&tcm.with(b"tbf\0", &[narrow, wide])), Some(5_000_000_000));
        assert_eq!(tbf_rate(&tcm.emit()), None);
    }

    #[test]
    fn filter_is_read_back_and_wider_filters_are_not_ours() {
        let filter = Filter { dscp: 46, class: 0xf1de_0011 };
        let mut body = filter.emit(9, 0xf1de_0000);
        assert_eq!(Filter::parse(&body), Some(filter));
        assert_eq!(u32_again(&body).as_ref(), Some(&body));
        assert_eq!(u32_again(&Filter::all(9, 0)), None);
        // The TOS byte of EF is 0xb8.
        let key = body.windows(8).position(|w| w == [0, 0xfc, 0, 0, 0, 0xb8, 0, 0]).unwrap();
        body[key + 1] = 0xff;
        assert_eq!(Filter::parse(&body), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn root_qdisc_is_encoded_for_the_kernel() {
        let mut expected = vec![0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0xde, 0xf1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
        expected.extend([8, 0, 1, 0]);
        expected.extend(b"htb\0");
        expected.extend([28, 0, 2, 0, 24, 0, 2, 0, 3, 0, 0, 0, 10, 0, 0, 0, 0xff, 0, 0, 0]);
        expected.extend([0; 8]);
        assert_eq!(htb(5, 0xf1de_0000, 0xff), expected);
    }

    proptest! {
        #[test]
        fn any_listed_qdisc_is_read_or_left_out(bytes in proptest::collection::vec(any::<u8>(), 0..128)) {
            let attribute = |inner: &[u8]| [vec![0; TCM_LEN], emit(&[nla(TCA_OPTIONS, inner)])].concat();
            let selector = attribute(&emit(&[nla(TCA_U32_CLASSID, &[0; 4]), nla(TCA_U32_SEL, &bytes)]));
            let parms = attribute(&emit(&[nla(TCA_HTB_PARMS, &bytes), nla(TCA_HTB_RATE64, &bytes)]));
            for body in [bytes.clone(), attribute(&bytes), selector, parms] {
                let _ = (Class::parse(&body), Filter::parse(&body), u32_again(&body), htb_again(&body), tbf_rate(&body));
            }
        }
    }

    #[test]
    fn burst_is_two_frames_or_a_millisecond_of_the_rate() {
        // 3028 bytes and 1250 more at 1.25 MB/s are 3.4 ms.
        assert_eq!(burst_ticks(1_250_000), 3_422_400 / 64);
        assert_eq!(burst_ticks(0), u32::MAX);
    }
}
