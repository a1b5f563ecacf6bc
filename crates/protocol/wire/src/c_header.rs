// SPDX-License-Identifier: Apache-2.0
//! The header that the BPF programs include: the bounds of `fide-types` and the format of packets, for C.
//!
//! The build of `fide-bpf` writes it, so that a constant that changes here changes there.

use crate::{
    ACK_LEN, HEADER_LEN, MAGIC, NOTICE_LEN, ReplayWindow, SECTION_HEADER_LEN, VERSION, chunk, packet::Kind, section,
    shape,
};
use fide_types::{ProcessState, bounds};

/// The text of `wire.h`.
#[must_use]
pub fn c_header() -> String {
    let mut text = String::from(
        "/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */\n\
         /* Generated from fide-types and fide-wire; do not edit. */\n\
         #ifndef FIDE_WIRE_H\n#define FIDE_WIRE_H\n\n",
    );
    let defines: &[(&str, usize)] = &[
        ("MAX_HOSTS", bounds::MAX_HOSTS),
        ("MAX_PROCESSES", bounds::MAX_PROCESSES),
        ("MAX_PLANES", bounds::MAX_PLANES),
        ("MAX_CLIENTS", bounds::MAX_CLIENTS),
        ("PAYLOAD_MAX", bounds::PAYLOAD_MAX),
        ("PIGGYBACK_MAX", bounds::PIGGYBACK_MAX),
        ("WIRE_MAGIC", usize::from(MAGIC)),
        ("WIRE_VERSION", usize::from(VERSION)),
        ("HEADER_BYTES", HEADER_LEN),
        ("ACK_BYTES", ACK_LEN),
        ("NOTICE_BYTES", NOTICE_LEN),
        ("SHAPE_BYTES", shape::SHAPE_LEN),
        ("KIND_HEARTBEAT", Kind::Heartbeat as usize),
        ("KIND_NOTICE", Kind::Notice as usize),
        ("KIND_CHUNKS", usize::from(chunk::CHUNKS)),
        ("KIND_SHAPE", usize::from(shape::SHAPE)),
        ("SECTION_ROSTER", usize::from(section::ROSTER)),
        ("SECTION_VIEW", usize::from(section::VIEW)),
        ("SECTION_PROMISE", usize::from(section::PROMISE)),
        ("STATE_EXITED", usize::from(ProcessState::Exited(0).to_bytes().0)),
        ("STATE_KILLED", usize::from(ProcessState::Killed(0).to_bytes().0)),
        ("REPLAY_WINDOW", ReplayWindow::WIDTH as usize),
    ];
    for (name, value) in defines {
        text.push_str(&format!("#define FIDE_{name} {value}\n"));
    }
    text.push_str(STRUCTS);
    let sizes = [("header", HEADER_LEN), ("section", SECTION_HEADER_LEN), ("roster", crate::ROSTER_LEN)];
    for (name, bytes) in sizes {
        text.push_str(&format!("_Static_assert(sizeof(struct {name}) == {bytes}, \"{name}\");\n"));
    }
    let offsets = [
        ("header", "version_kind", crate::KIND_OFFSET),
        ("header", "plane", crate::PLANE_OFFSET),
        ("header", "seq", crate::SEQ_OFFSET),
        ("header", "tag", crate::TAG_OFFSET),
    ];
    for (name, field, at) in offsets {
        text.push_str(&format!(
            "_Static_assert(__builtin_offsetof(struct {name}, {field}) == {at}, \"{name}.{field}\");\n"
        ));
    }
    text.push_str("\n#endif\n");
    text
}

/// As the crate's first page has them.
const STRUCTS: &str = "
struct header {
\t__u16 magic;
\t__u8 version_kind;
\t__u8 plane;
\t__u16 sender;
\t__u8 ack_count;
\t__u8 section_count;
\t__u64 seq;
\t__u64 tag;
\t__u32 incarnation;
} __attribute__((packed));

struct section {
\t__u8 kind;
\t__u8 slot;
\t__u16 len;
} __attribute__((packed));

struct roster {
\t__u8 state;
\t__u8 reserved0;
\t__u8 name_len;
\t__u8 reserved1;
\t__u32 incarnation;
\t__u32 piggyback_seq;
\t__s32 code;
\t__u64 at_ns;
} __attribute__((packed));

";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_numbers_are_defined_once_each() {
        let text = c_header();
        let names: Vec<&str> = text
            .lines()
            .filter_map(|line| line.strip_prefix("#define "))
            .filter_map(|line| line.split(' ').next())
            .collect();
        let unique: std::collections::BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(unique.len(), names.len());
        assert!(text.contains("#define FIDE_MAX_HOSTS 64\n"), "{text}");
    }
}
