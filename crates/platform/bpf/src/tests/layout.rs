// SPDX-License-Identifier: Apache-2.0
//! The types generated from `c/intf.h` have the layout that clang gave it for BPF, as the loaded program says.

use std::{
    mem::{offset_of, size_of},
    os::fd::AsRawFd,
};

use libbpf_rs::{
    HasSize,
    btf::{Btf, types},
    libbpf_sys,
};

use super::rig::Rig;
use crate::intf::{Admit, Config, Gaps, Key, Notify, Slot, Stats, Wake, Watch, Watched};

/// Size of a C structure, and where its fields are.
pub(super) fn c_layout(btf: &Btf<'_>, name: &str) -> (usize, Vec<(String, usize)>) {
    let found: types::Struct<'_> = btf.type_by_name(name).unwrap_or_else(|| panic!("no struct {name} in the program"));
    let fields = found.iter().map(|field| {
        let types::MemberAttr::Normal { offset } = field.attr else { panic!("{name} has bit fields") };
        (field.name.expect("named").to_string_lossy().into_owned(), offset as usize / 8)
    });
    (found.size(), fields.collect())
}

macro_rules! same {
    ($btf:expr, $c:literal, $rust:ty, $($field:ident),*) => {
        let fields = vec![$((stringify!($field).to_owned(), offset_of!($rust, $field))),*];
        assert_eq!(c_layout($btf, $c), (size_of::<$rust>(), fields), $c);
    };
}

pub(super) fn btf_of(program: std::os::fd::BorrowedFd<'_>) -> Btf<'static> {
    // SAFETY: plain data that the kernel fills; zeroes are a valid value.
    let mut info: libbpf_sys::bpf_prog_info = unsafe { std::mem::zeroed() };
    let mut len = u32::try_from(size_of_val(&info)).expect("small");
    // SAFETY: `info` is writable for `len` bytes.
    let result =
        unsafe { libbpf_sys::bpf_obj_get_info_by_fd(program.as_raw_fd(), (&raw mut info).cast(), &raw mut len) };
    assert_eq!(result, 0);
    Btf::from_prog_id(info.id).expect("the program's types")
}

#[test]
fn root_both_sides_of_the_interface_have_one_layout() {
    let Some(rig) = Rig::new() else { return };
    let btf = &btf_of(rig.receive.program());
    same!(btf, "fide_key", Key, k0, k1, valid, reserved);
    same!(btf, "fide_config", Config, me, members, port, generation, ifindex, any_plane, salvage, keys, plain);
    same!(btf, "fide_admit", Admit, incarnation, flags, timeout_ns);
    same!(btf, "fide_watch", Watch, claim, clients, undelivered, piggyback_seq, reserved);
    same!(
        btf,
        "fide_slot",
        Slot,
        lock,
        incarnation,
        seq,
        rx_ns,
        received,
        duplicate,
        stale,
        ack_incarnation,
        ack_seq_low,
        promise_us,
        view_generation,
        view_number,
        view_known,
        reserved
    );
    same!(btf, "fide_gaps", Gaps, last_ns, longest_ns, longest_at_ns, sum_ns, incarnation, reserved, counts);
    same!(
        btf,
        "fide_stats",
        Stats,
        accepted,
        malformed,
        bad_tag,
        foreign,
        stale,
        replayed,
        wake_ring_full,
        client_ring_full,
        notified_directly,
        timer_fired,
        exits_seen,
        shape_next_ns,
        reserved
    );
    same!(btf, "fide_wake", Wake, kind, len, ns, subject, detail, cookie);
    same!(btf, "fide_notify", Notify, op, subject, len, reserved, event);
}

// An event's layout is seen where it arrives: the tests of notices read it field by field.

/// The exit watch's own map is not part of the receive program; the loader compares its size.
#[test]
fn a_watched_process_is_24_bytes() {
    assert_eq!((size_of::<Watched>(), offset_of!(Watched, slot), offset_of!(Watched, cookie)), (24, 8, 16));
}
