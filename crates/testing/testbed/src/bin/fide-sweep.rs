// SPDX-License-Identifier: Apache-2.0
//! Removes the namespaces, scratch directories and traces of testbeds whose creator no longer runs.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    match fide_testbed::sweep() {
        Ok(swept) if swept.is_empty() => ExitCode::SUCCESS,
        Ok(swept) => {
            println!(
                "removed {} namespaces, {} directories, {} traces; killed {} processes in them",
                swept.namespaces.len(),
                swept.directories.len(),
                swept.traces.len(),
                swept.killed.len()
            );
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("fide-sweep: {why}");
            ExitCode::FAILURE
        }
    }
}
