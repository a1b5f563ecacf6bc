// SPDX-License-Identifier: Apache-2.0
//! Compiles the C code that calls libibverbs, if the feature `rdma` is on.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "rdma")]
    rdma();
}

#[cfg(feature = "rdma")]
fn rdma() {
    println!("cargo:rerun-if-changed=src/c");
    cc::Build::new()
        .file("src/c/rdma.c")
        .extra_warnings(true)
        .warnings_into_errors(true)
        .try_compile("fide_rdma")
        .unwrap_or_else(|error| {
            panic!("src/c/rdma.c does not compile: {error}\nthe feature `rdma` needs libibverbs-dev")
        });
    println!("cargo:rustc-link-lib=ibverbs");
}
