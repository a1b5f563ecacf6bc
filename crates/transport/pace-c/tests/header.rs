// SPDX-License-Identifier: Apache-2.0
//! `include/fide_pace.h` is generated from `src`; this test fails when it is out of date.
//! `FIDE_WRITE_HEADER=1 cargo test -p fide-pace-c --test header` writes it anew.

#[path = "../../../agent/client/tests/header/without_safety.rs"]
mod without_safety;

use std::path::Path;

use cbindgen::{Builder, Config, DocumentationStyle, EnumConfig, ExportConfig, Language, RenameRule, Style};
use without_safety::without_safety;

const HEAD: &str = "/* SPDX-License-Identifier: Apache-2.0 */
/* Generated from crates/transport/pace-c/src; do not edit.
 *
 * X-PACE: messages with deadlines between two applications, encrypted, and paced to the slowest step between them. Link with
 * -lfide_pace.
 *
 * All functions that return int or int64_t give a negative errno on failure; fide_pace_last_error() then says what was wrong and
 * what would be right. Endpoints and connections are numbers; one that is none, or was closed, gives -EBADF. All functions may be
 * called from several threads. Texts are UTF-8 and end with a NUL. Lengths are in bytes; times have their unit in the name.
 */";

const NAMES: [(&str, &str); 10] = [
    ("FidePaceEndpoint", "fide_pace_endpoint"),
    ("FidePaceConnection", "fide_pace_connection"),
    ("FidePaceKey", "fide_pace_key"),
    ("FidePaceCongestion", "fide_pace_congestion"),
    ("FidePaceStep", "fide_pace_step"),
    ("FidePaceConfig", "fide_pace_config"),
    ("FidePaceView", "fide_pace_view"),
    ("FidePaceMessage", "fide_pace_message"),
    ("FidePaceCounts", "fide_pace_counts"),
    ("FidePaceOnChange", "fide_pace_on_change_fn"),
];

fn generate(crate_dir: &Path) -> String {
    let config = Config {
        language: Language::C,
        cpp_compat: true,
        header: Some(HEAD.into()),
        include_guard: Some("FIDE_PACE_H".into()),
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h"].map(String::from).to_vec(),
        style: Style::Both,
        documentation_style: DocumentationStyle::C99,
        line_length: 120,
        enumeration: EnumConfig { rename_variants: RenameRule::QualifiedScreamingSnakeCase, ..Default::default() },
        usize_is_size_t: true,
        export: ExportConfig {
            // In no signature: functions take and give them as numbers.
            include: ["FidePaceKey", "FidePaceCongestion", "FidePaceStep"].map(String::from).to_vec(),
            rename: NAMES.iter().map(|(rust, c)| ((*rust).into(), (*c).into())).collect(),
            ..Default::default()
        },
        ..Default::default()
    };
    let mut out = Vec::new();
    let sources = ["types", "endpoint", "connection"];
    let builder = sources.iter().fold(Builder::new().with_config(config), |builder, source| {
        builder.with_src(crate_dir.join(format!("src/{source}.rs")))
    });
    builder.generate().expect("the C ABI is such that a header can be generated").write(&mut out);
    without_safety(&String::from_utf8(out).expect("a header is text"))
}

#[test]
fn committed_header_matches_the_source() {
    let crate_dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let committed = crate_dir.join("include/fide_pace.h");
    let generated = generate(crate_dir);
    if std::env::var_os("FIDE_WRITE_HEADER").is_some() {
        std::fs::write(&committed, &generated).expect("writing include/fide_pace.h");
    }
    let found = std::fs::read_to_string(&committed).unwrap_or_default();
    assert!(
        found == generated,
        "crates/transport/pace-c/include/fide_pace.h is out of date; write it anew with\n\
         FIDE_WRITE_HEADER=1 cargo test -p fide-pace-c --test header"
    );
}
