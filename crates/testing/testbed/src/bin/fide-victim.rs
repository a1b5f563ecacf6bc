// SPDX-License-Identifier: Apache-2.0
//! A process made to die; see `fide_testbed::Victim`.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    fide_testbed::victim_main(&args)
}
