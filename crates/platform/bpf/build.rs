// SPDX-License-Identifier: Apache-2.0
//! Writes `wire.h`, compiles each BPF program with clang, and generates the Rust side of
//! the headers that programs and user space share; all into `OUT_DIR`.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use bindgen::callbacks::{DeriveInfo, ItemInfo, ParseCallbacks};
use libbpf_cargo::SkeletonBuilder;

const INCLUDES: [&str; 2] = ["-I/usr/include/x86_64-linux-gnu", "-I/usr/include/aarch64-linux-gnu"];
const NEEDED: &str =
    "clang, libclang, libelf-dev, zlib1g-dev and pkg-config are needed: `cargo xtask setup` installs them";

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("wire.h"), fide_wire::c_header::c_header()).expect("OUT_DIR can be written");
    let generated = format!("-I{}", out.display());
    for program in ["culprits", "exit_watch", "gaps_probe", "heartbeat", "pingpong"] {
        let source = format!("src/c/{program}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .clang_args(INCLUDES.iter().copied().chain([
                generated.as_str(),
                "-Wall",
                "-Wextra",
                "-Wno-unused-parameter",
                "-Werror",
            ]))
            .build_and_generate(out.join(format!("{program}.skel.rs")))
            .unwrap_or_else(|error| panic!("{source} does not compile: {error:?}\n{NEEDED}"));
    }
    let headers: [(&str, &'static [&'static str]); 3] = [
        ("intf", &["Wake", "Watched", "fide_wake", "fide_watched"]),
        ("culprits", &["Culprit", "fide_culprit"]),
        ("pingpong", &[]),
    ];
    for (header, plain) in headers {
        mirror(&out, &generated, header, plain);
    }
    println!("cargo:rerun-if-changed=src/c");
    println!("cargo:rerun-if-changed=build.rs");
}

/// The structures and constants of `header`.h, for Rust. Those in `plain` are read out of, or written into, bytes.
fn mirror(out: &Path, generated: &str, header: &str, plain: &'static [&'static str]) {
    bindgen::Builder::default()
        .header_contents("mirror.h", &format!("#include <linux/types.h>\n#include \"src/c/{header}.h\"\n"))
        .clang_args(INCLUDES.iter().copied().chain([generated, "-I.", "-fparse-all-comments"]))
        .allowlist_type("fide_.*")
        .allowlist_var("FIDE_.*")
        .derive_default(true)
        .derive_partialeq(true)
        .derive_eq(true)
        .generate_comments(true)
        .layout_tests(true)
        .parse_callbacks(Box::new(Mirror { plain }))
        .generate()
        .unwrap_or_else(|error| panic!("src/c/{header}.h is not understood: {error}\n{NEEDED}"))
        .write_to_file(out.join(format!("{header}.rs")))
        .expect("OUT_DIR can be written");
}

/// `struct fide_wake` is `Wake` in Rust.
#[derive(Debug)]
struct Mirror {
    plain: &'static [&'static str],
}

impl ParseCallbacks for Mirror {
    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        if let Some(constant) = item.name.strip_prefix("FIDE_") {
            return Some(constant.to_owned());
        }
        let words = item.name.strip_prefix("fide_")?.split('_');
        Some(words.map(|word| word[..1].to_uppercase() + &word[1..]).collect())
    }

    fn add_derives(&self, info: &DeriveInfo<'_>) -> Vec<String> {
        let derives = ["zerocopy::FromBytes", "zerocopy::IntoBytes", "zerocopy::Immutable"];
        if self.plain.contains(&info.name) { derives.map(str::to_owned).to_vec() } else { Vec::new() }
    }
}
