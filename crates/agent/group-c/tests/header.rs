// SPDX-License-Identifier: Apache-2.0
//! `include/fide_group.h` is generated from `src`; this test fails when it is out of date.
//! `FIDE_WRITE_HEADER=1 cargo test -p fide-group-c --test header` writes it anew.

#[path = "../../client/tests/header/without_safety.rs"]
mod without_safety;

use std::path::Path;

use cbindgen::{Builder, Config, DocumentationStyle, EnumConfig, ExportConfig, Language, RenameRule, Style};
use without_safety::without_safety;

const HEAD: &str = "/* SPDX-License-Identifier: Apache-2.0 */
/* Generated from crates/agent/group-c/src; do not edit.
 *
 * A member of a group: processes, at most one on each host, that agree on a log of values. Link with -lfide.
 *
 * All functions that return int or int64_t give a negative errno on failure; fide_last_error() of fide.h then says what
 * was wrong and what would be right. A handle is used by one thread at a time: a call during another one gives -EDEADLK.
 * No function calls back. Texts are UTF-8 and end with a NUL. Lengths are in bytes; times have their unit in the name.
 */";

const NAMES: [(&str, &str); 14] = [
    ("FideGroup", "fide_group_t"),
    ("FideGroupProtocol", "fide_group_protocol"),
    ("FideStanding", "fide_standing"),
    ("FideGroupEntry", "fide_group_entry"),
    ("FideGroupReason", "fide_group_reason"),
    ("FideGroupOptions", "fide_group_options"),
    ("FideGroupIdentity", "fide_group_identity"),
    ("FideGroupDecision", "fide_group_decision"),
    ("FideGroupState", "fide_group_state"),
    ("FideGroupRefusal", "fide_group_refusal"),
    ("FideGroupMember", "fide_group_member"),
    ("FideGroupView", "fide_group_view"),
    ("FideGroupCounters", "fide_group_counters"),
    // Of fide.h.
    ("FidePermit", "fide_permit"),
];

fn generate(crate_dir: &Path) -> String {
    let config = Config {
        language: Language::C,
        cpp_compat: true,
        header: Some(HEAD.into()),
        include_guard: Some("FIDE_GROUP_H".into()),
        no_includes: true,
        sys_includes: ["fide.h", "stddef.h", "stdint.h"].map(String::from).to_vec(),
        style: Style::Both,
        documentation_style: DocumentationStyle::C99,
        line_length: 120,
        enumeration: EnumConfig { rename_variants: RenameRule::QualifiedScreamingSnakeCase, ..Default::default() },
        usize_is_size_t: true,
        export: ExportConfig {
            // In no signature: functions return one, or an error, as int, and take the other as a number.
            include: ["FideStanding", "FideGroupProtocol"].map(String::from).to_vec(),
            rename: NAMES.iter().map(|(rust, c)| ((*rust).into(), (*c).into())).collect(),
            ..Default::default()
        },
        ..Default::default()
    };
    let mut out = Vec::new();
    let sources = ["types", "open", "log", "state", "status"];
    let builder = sources.iter().fold(Builder::new().with_config(config), |builder, source| {
        builder.with_src(crate_dir.join(format!("src/{source}.rs")))
    });
    builder.generate().expect("the C ABI is such that a header can be generated").write(&mut out);
    let header = without_safety(&String::from_utf8(out).expect("a header is text"));
    let opaque =
        "// A member of a group, or a host that wants to be one.\ntypedef struct fide_group_t fide_group_t;\n\n";
    // The handle's own source has nothing else for C.
    header.replacen("// Which group, and how", &format!("{opaque}// Which group, and how"), 1)
}

#[test]
fn committed_header_matches_the_source() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = crate_dir.join("include/fide_group.h");
    let generated = generate(crate_dir);
    if std::env::var_os("FIDE_WRITE_HEADER").is_some() {
        std::fs::write(&committed, &generated).expect("writing include/fide_group.h");
    }
    let found = std::fs::read_to_string(&committed).unwrap_or_default();
    assert!(
        found == generated,
        "crates/agent/group-c/include/fide_group.h is out of date; write it anew with\n\
         FIDE_WRITE_HEADER=1 cargo test -p fide-group-c --test header"
    );
}
