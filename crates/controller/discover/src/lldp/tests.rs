// SPDX-License-Identifier: Apache-2.0

use proptest::prelude::*;

use super::*;

/// Type and value.
type Value<'a> = (u8, &'a [u8]);

const MAC: [u8; 6] = [2, 0xf1, 0xde, 0, 1, 7];

fn host() -> Frame {
    Frame::ours(Role::Host, ("h7", "p1"), MAC, 120, Some(10_000_000))
}

/// A frame out of values (type, value), after a right header.
fn frame(values: &[Value<'_>]) -> Vec<u8> {
    let mut bytes = [&NEAREST_BRIDGE[..], &MAC, &ETHERTYPE.to_be_bytes()].concat();
    values.iter().for_each(|(kind, value)| put(&mut bytes, *kind, value));
    bytes
}

const THREE: [Value<'static>; 3] = [(1, b"\x07h7"), (2, b"\x05p1"), (3, &[0, 120])];

fn refused(more: &[Value<'_>]) -> FrameError {
    Frame::parse(&frame(&[&THREE[..], more, &[(0, b"")]].concat())).unwrap_err()
}

#[test]
fn our_frame_byte_by_byte() {
    let expected = [
        &[0x01, 0x80, 0xc2, 0x00, 0x00, 0x0e, 0x02, 0xf1, 0xde, 0x00, 0x01, 0x07, 0x88, 0xcc][..],
        &[0x02, 0x03, 7, b'h', b'7'],
        &[0x04, 0x03, 5, b'p', b'1'],
        &[0x06, 0x02, 0, 120],
        &[0x0a, 0x02, b'h', b'7'],
        &[0x0e, 0x04, 0, 0x80, 0, 0x80],
        &[0xfe, 0x05, 0x02, 0xf1, 0xde, 1, 0],
        &[0xfe, 0x0c, 0x02, 0xf1, 0xde, 2, 0, 0, 0, 0, 0, 0x98, 0x96, 0x80],
        &[0, 0],
    ]
    .concat();
    assert_eq!(host().emit().unwrap(), expected);
    assert_eq!(Frame::parse(&expected).unwrap(), host());
    let over = host().shutdown();
    let bytes = over.emit().unwrap();
    assert_eq!(bytes.len(), FRAME_MIN_BYTES);
    assert_eq!(Frame::parse(&bytes).unwrap(), over);
}

#[test]
fn frames_of_other_programs_are_understood() {
    // As lldpd: hardware addresses, and the names as descriptions.
    let mut mac = vec![4];
    mac.extend(MAC);
    let mut port = vec![3];
    port.extend(MAC);
    let others: [Value<'_>; 3] = [(1, &mac), (2, &port), (3, &[0, 120])];
    let bytes = |more: &[Value<'_>]| frame(&[&others[..], more, &[(0, b"")]].concat());
    let said: [Value<'_>; 5] =
        [(4, b"eth0"), (5, b"node7"), (7, &[0, 0x9c, 0, 0x80]), (127, &[0, 0x12, 0x0f, 1, 3]), (8, &[1, 2, 3])];
    let frame = Frame::parse(&bytes(&said)).unwrap();
    assert_eq!((frame.node().as_str(), frame.port_name().as_str(), frame.forwards()), ("node7", "eth0", false));
    assert_eq!((frame.role, frame.rate_bps), (None, None));
    let bridges = Frame::parse(&bytes(&[(7, &[0, 0x14, 0, 0x04])])).unwrap();
    let name = "02-f1-de-00-01-07";
    assert_eq!((bridges.node().as_str(), bridges.port_name().as_str(), bridges.forwards()), (name, name, true));
}

/// One of lldpd 1.0.16's, as it was on a wire, without its management addresses.
#[test]
fn lldpd_frame_is_read() {
    let bytes = "0180c200000e02f1de00000788cc02070402f1de00000704070302f1de000007060200780a0268310c054c696e75780e04009c0080\
                 080465746830fe0900120f030100000000fe0900120f0100800000360000";
    let bytes: Vec<u8> =
        (0..bytes.len()).step_by(2).map(|n| u8::from_str_radix(&bytes[n..n + 2], 16).unwrap()).collect();
    let frame = Frame::parse(&bytes).unwrap();
    assert_eq!((frame.node().as_str(), frame.port_name().as_str(), frame.ttl_s), ("h1", "eth0", 120));
    assert_eq!((frame.source, frame.role, frame.forwards()), ([2, 0xf1, 0xde, 0, 0, 7], None, false));
}

#[test]
fn each_fault_has_its_name() {
    assert_eq!(Frame::parse(&[0; 13]), Err(FrameError::Short(13)));
    assert_eq!(Frame::parse(&[0; 1515]), Err(FrameError::Long(1515)));
    let good = host().emit().unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        Frame::parse(&bytes).unwrap_err()
    };
    assert_eq!(with(12, 8), FrameError::Ethertype(0x08cc));
    assert_eq!(with(5, 3), FrameError::Destination([1, 0x80, 0xc2, 0, 0, 3]));
    assert_eq!(Frame::parse(&good[..15]), Err(FrameError::Header(14)));
    assert_eq!(Frame::parse(&good[..18]), Err(FrameError::Overrun { kind: 1, at: 14, length: 3, left: 2 }));
    assert_eq!(Frame::parse(&good[..28]), Err(FrameError::NoEnd));
    for (order, wanted) in [(&THREE[1..], "chassis id"), (&THREE[..1], "port id"), (&THREE[..2], "time to live")] {
        let bytes = frame(&[order, &[(0, b"")]].concat());
        assert_eq!(Frame::parse(&bytes), Err(FrameError::Order { wanted }));
    }
    for value in THREE {
        assert_eq!(refused(&[value]), FrameError::Twice(value.0));
    }
    assert_eq!(refused(&[(5, b"a"), (5, b"a")]), FrameError::Twice(5));
    assert_eq!(refused(&[(4, b"a"), (4, b"b")]), FrameError::Twice(4));
    assert_eq!(refused(&[(7, &[0; 4]), (7, &[0; 4])]), FrameError::Twice(7));
    let role: Value<'_> = (127, &[2, 0xf1, 0xde, 1, 0]);
    assert_eq!(refused(&[role, role]), FrameError::Twice(127));
    let long = [b'x'; 256];
    let lengths: [(&[Value<'_>], &str); 8] = [
        (&[(7, &[0; 3])], "capabilities"),
        (&[(5, &long)], "system name"),
        (&[(4, &long)], "port description"),
        (&[(127, &[0; 3])], "organisationally specific value"),
        (&[(127, &[2, 0xf1, 0xde, 1])], "role"),
        (&[(127, &[2, 0xf1, 0xde, 1, 0, 0])], "role"),
        (&[(127, &[2, 0xf1, 0xde, 2, 0])], "rate"),
        (&[(0, b"x")], "end"),
    ];
    for (more, wanted) in lengths {
        let error = refused(more);
        assert!(matches!(error, FrameError::Length { what, .. } if what == wanted), "{wanted}: {error}");
    }
    for (first, wanted) in [(&[(1, &b"\x07"[..])], "chassis id"), (&[(1, &b""[..])], "chassis id")] {
        let error = Frame::parse(&frame(first)).unwrap_err();
        assert!(matches!(error, FrameError::Length { what, .. } if what == wanted), "{error}");
    }
    let ttl = frame(&[THREE[0], THREE[1], (3, &[1])]);
    assert!(matches!(Frame::parse(&ttl), Err(FrameError::Length { what: "time to live", length: 1, .. })));
    // What cannot be read is not written either.
    let nameless = Frame::ours(Role::Host, ("", "p0"), MAC, 1, None);
    assert!(matches!(nameless.emit(), Err(FrameError::Length { what: "chassis id", length: 0, .. })));
    let long = Frame { system_name: Some("x".repeat(256)), ..host() };
    assert!(matches!(long.emit(), Err(FrameError::Length { what: "system name", .. })));
}

#[test]
fn role_of_a_later_version_is_none() {
    let bytes = frame(&[&THREE[..], &[(127, &[2, 0xf1, 0xde, 1, 9]), (127, &[2, 0xf1, 0xde, 77]), (0, b"")]].concat());
    assert_eq!(Frame::parse(&bytes).unwrap().role, None);
}

fn ids() -> impl Strategy<Value = Id> {
    (any::<u8>(), prop::collection::vec(any::<u8>(), 1..=TEXT_MAX_BYTES))
        .prop_map(|(subtype, value)| Id { subtype, value })
}

fn texts() -> impl Strategy<Value = Option<String>> {
    prop::option::of("\\PC{0,63}".prop_filter("short enough", |text| text.len() <= TEXT_MAX_BYTES))
}

fn frames() -> impl Strategy<Value = Frame> {
    let bits = prop::option::of((any::<u16>(), any::<u16>()));
    let role = prop::option::of(prop_oneof![Just(Role::Host), Just(Role::Switch)]);
    let ours = (bits, role, prop::option::of(any::<u64>()));
    (any::<[u8; 6]>(), ids(), ids(), any::<u16>(), texts(), texts(), ours).prop_map(
        |(source, chassis, port, ttl_s, port_description, system_name, (bits, role, rate_bps))| Frame {
            source,
            chassis,
            port,
            ttl_s,
            port_description,
            system_name,
            capabilities: bits.map(|(available, enabled)| Capabilities { available, enabled }),
            role,
            rate_bps,
        },
    )
}

/// What is read can be written, and is then read as the same: nothing that is kept is half understood.
fn read_or_refused(bytes: &[u8]) -> Result<(), TestCaseError> {
    match Frame::parse(bytes) {
        Ok(frame) => {
            let lossy = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains('\u{fffd}'));
            // Marks of what was no text may take more bytes than it did.
            if !lossy(&frame.system_name) && !lossy(&frame.port_description) {
                let bytes = frame.emit().map_err(|error| TestCaseError::fail(error.to_string()))?;
                prop_assert_eq!(Frame::parse(&bytes), Ok(frame));
            }
        }
        Err(error) => prop_assert!(error.to_string().len() > 15, "{}", error),
    }
    Ok(())
}

proptest! {
    #[test]
    fn frame_is_read_back_and_no_part_of_it_is_valid(frame in frames(), cut in any::<prop::sample::Index>()) {
        let bytes = frame.emit().unwrap();
        prop_assert!((FRAME_MIN_BYTES..=FRAME_MAX_BYTES).contains(&bytes.len()));
        prop_assert_eq!(Frame::parse(&bytes), Ok(frame.clone()));
        let padding = bytes.iter().rev().take_while(|byte| **byte == 0).count();
        let cut = cut.index(bytes.len() - padding);
        prop_assert!(Frame::parse(&bytes[..cut]).is_err());
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        read_or_refused(&bytes)?;
        // With a header that fits, so that the rest is looked at.
        read_or_refused(&[&frame(&[])[..], &bytes].concat())?;
        read_or_refused(&[&frame(&THREE)[..], &bytes].concat())?;
    }

    #[test]
    fn changed_frame_is_read_or_refused(
        frame in frames(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..3_u8), 1..6),
    ) {
        let mut bytes = frame.emit().unwrap();
        for (at, byte, how) in changes {
            let at = at.index(bytes.len());
            match how {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                _ => bytes.insert(at, byte),
            }
        }
        read_or_refused(&bytes)?;
    }
}
