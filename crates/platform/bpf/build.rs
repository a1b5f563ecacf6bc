// SPDX-License-Identifier: Apache-2.0
//! Writes `wire.h`, compiles each BPF program with clang, and generates the Rust side of `intf.h`; all into `OUT_DIR`.

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
    mirror(&out, &generated);
    println!("cargo:rerun-if-changed=src/c");
    println!("cargo:rerun-if-changed=build.rs");
}

/// The structures of `intf.h`, for Rust, as `intf.rs` includes them.
fn mirror(out: &Path, generated: &str) {
    bindgen::Builder::default()
        .header_contents("mirror.h", "#include <linux/types.h>\n#include \"src/c/intf.h\"\n")
        .clang_args(INCLUDES.iter().copied().chain([generated, "-I.", "-fparse-all-comments"]))
        .allowlist_type("fide_.*")
        .allowlist_var("FIDE_.*")
        .derive_default(true)
        .generate_comments(true)
        .layout_tests(true)
        .parse_callbacks(Box::new(Names))
        .generate()
        .unwrap_or_else(|error| panic!("src/c/intf.h is not understood: {error}\n{NEEDED}"))
        .write_to_file(out.join("intf.rs"))
        .expect("OUT_DIR can be written");
}

/// `struct fide_wake` is `Wake` in Rust.
#[derive(Debug)]
struct Names;

impl ParseCallbacks for Names {
    fn item_name(&self, item: ItemInfo<'_>) -> Option<String> {
        if let Some(constant) = item.name.strip_prefix("FIDE_") {
            return Some(constant.to_owned());
        }
        let words = item.name.strip_prefix("fide_")?.split('_');
        Some(words.map(|word| word[..1].to_uppercase() + &word[1..]).collect())
    }

    fn add_derives(&self, info: &DeriveInfo<'_>) -> Vec<String> {
        // What is read out of, or written into, bytes.
        let plain = ["Wake", "Watched", "fide_wake", "fide_watched"].contains(&info.name);
        let derives = ["zerocopy::FromBytes", "zerocopy::IntoBytes", "zerocopy::Immutable"];
        if plain { derives.map(str::to_owned).to_vec() } else { Vec::new() }
    }
}
