// SPDX-License-Identifier: Apache-2.0
//! Compiles each BPF program with clang and writes its skeleton to `OUT_DIR`.

use std::{env, path::PathBuf};

use libbpf_cargo::SkeletonBuilder;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for program in ["culprits", "exit_watch", "gaps_probe", "heartbeat", "pingpong"] {
        let source = format!("src/c/{program}.bpf.c");
        SkeletonBuilder::new()
            .source(&source)
            .clang_args(["-I/usr/include/x86_64-linux-gnu", "-I/usr/include/aarch64-linux-gnu", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"])
            .build_and_generate(out.join(format!("{program}.skel.rs")))
            .unwrap_or_else(|error| {
                panic!("{source} does not compile: {error:?}\nclang, libelf-dev, zlib1g-dev and pkg-config are needed: `cargo xtask setup` installs them")
            });
    }
    println!("cargo:rerun-if-changed=src/c");
}
