// SPDX-License-Identifier: Apache-2.0
//! `include/fide.h` is generated from `src/capi.rs`; this test fails when it is out of date.
//! `FIDE_WRITE_HEADER=1 cargo test -p fide-client --test header` writes it anew.

mod without_safety;

use cbindgen::{Builder, Config, DocumentationStyle, EnumConfig, ExportConfig, Language, RenameRule, Style};
use std::path::Path;
use without_safety::without_safety;

const HEAD: &str = "/* SPDX-License-Identifier: Apache-2.0 */
/* Generated from crates/agent/client/src/capi.rs; do not edit.
 *
 * Fide tells that a process or a host has died, and carries messages with a latency contract. Link with -lfide.
 *
 * All functions that return int give a negative errno on failure; fide_last_error() then says what was wrong and what
 * would be right. A handle may be used from several threads. Upcalls run on the thread that dispatches.
 */";

const NAMES: [(&str, &str); 15] = [
    ("Fide", "fide_t"),
    ("FideOptions", "fide_options"),
    ("FideResources", "fide_resources"),
    ("FideState", "fide_state"),
    ("FideReason", "fide_reason"),
    ("FideVerdict", "fide_verdict"),
    ("FideMessage", "fide_message"),
    ("FideNoticeKind", "fide_notice_kind"),
    ("FideNotice", "fide_notice"),
    ("FidePermit", "fide_permit"),
    ("FideSubLane", "fide_sub_lane"),
    ("FideLaneRequest", "fide_lane_request"),
    ("FideLaneResources", "fide_lane_resources"),
    ("FideLaneReason", "fide_lane_reason"),
    ("FideLaneMessage", "fide_lane_message"),
];

fn generate(crate_dir: &Path) -> String {
    let mut names: Vec<_> = NAMES.to_vec();
    names.push(("FideUpcalls", "fide_upcalls"));
    let config = Config {
        language: Language::C,
        cpp_compat: true,
        header: Some(HEAD.into()),
        include_guard: Some("FIDE_H".into()),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h"].map(String::from).to_vec(),
        style: Style::Both,
        documentation_style: DocumentationStyle::C99,
        line_length: 120,
        enumeration: EnumConfig { rename_variants: RenameRule::QualifiedScreamingSnakeCase, ..Default::default() },
        usize_is_size_t: true,
        export: ExportConfig {
            // In no signature: functions return one, or an error, as int, and take the other as a number.
            include: ["FideState", "FideSubLane"].map(String::from).to_vec(),
            // Taken for the module of the same name in here, which is not part of the C ABI.
            exclude: vec!["LANES_MAX".into()],
            rename: names.iter().map(|(rust, c)| ((*rust).into(), (*c).into())).collect(),
            ..Default::default()
        },
        ..Default::default()
    };
    let mut out = Vec::new();
    Builder::new()
        .with_config(config)
        .with_src(crate_dir.join("src/capi/types.rs"))
        .with_src(crate_dir.join("src/capi.rs"))
        .with_src(crate_dir.join("src/capi/lanes.rs"))
        .generate()
        .expect("the C ABI is such that a header can be generated")
        .write(&mut out);
    without_safety(&String::from_utf8(out).expect("a header is text"))
}

#[test]
fn committed_header_matches_the_source() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = crate_dir.join("include/fide.h");
    let generated = generate(crate_dir);
    if std::env::var_os("FIDE_WRITE_HEADER").is_some() {
        std::fs::write(&committed, &generated).expect("writing include/fide.h");
    }
    let found = std::fs::read_to_string(&committed).unwrap_or_default();
    assert!(
        found == generated,
        "crates/agent/client/include/fide.h is out of date; write it anew with\n\
         FIDE_WRITE_HEADER=1 cargo test -p fide-client --test header"
    );
}
