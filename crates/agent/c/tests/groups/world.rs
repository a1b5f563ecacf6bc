// SPDX-License-Identifier: Apache-2.0
//! Agents on a testbed, and programs on its hosts.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use fide_testbed::{Agents, AgentsSpec, Spec, Testbed, find_binary, supported};

use crate::library::{compile, root};

pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// Longer than a shared machine keeps a host from running: an exclusion by load is not what these tests are about.
const TIMEOUT_US: u32 = 60_000;
const KEY: &str = "00112233445566778899aabbccddeeff";

/// Killed when dropped.
pub(crate) struct Program(pub(crate) Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) struct World {
    pub(crate) agents: Agents,
    pub(crate) bed: Testbed,
}

impl World {
    /// None, with a word about it, where no namespaces can be made.
    pub(crate) fn new(hosts: usize) -> Option<Self> {
        if let Err(why) = supported() {
            println!("skipped: {why}");
            return None;
        }
        let bed = Testbed::build(Spec { hosts, offloads: true, ..Spec::default() }).expect("a testbed");
        let program = vec![find_binary("fide").expect("cargo build -p fide comes first")];
        let arguments = vec!["--force-timeout".to_owned()];
        let spec = AgentsSpec { program, arguments, timeout_us: Some(TIMEOUT_US), ..AgentsSpec::default() };
        Some(Self { agents: Agents::start(&bed, spec).expect("agents"), bed })
    }

    /// A C program of the repository, which the sanitizers end when it reads what it does not own, or leaks at its
    /// end.
    pub(crate) fn compile(&self, source: &str) -> PathBuf {
        let source = root().join(source);
        let program = self.agents.dir(1).join(source.file_stem().expect("a name")).with_extension("in-c");
        compile(&source, &["-std=gnu99", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"], &program);
        program
    }

    /// Starts a member: its directory and the names of all hosts are its last arguments.
    pub(crate) fn start(&self, host: usize, program: &Path, arguments: &[&str]) -> Program {
        let dir = self.agents.dir(host);
        let log = File::options().create(true).append(true).open(dir.join("member.log")).expect("a log");
        let child = self
            .bed
            .host(host)
            .command(program)
            .args(arguments)
            .arg(dir.join("group"))
            .args(self.bed.hosts().iter().map(|host| host.name()))
            .env("LINES_KEY", KEY)
            .env("FIDE_SOCKET", self.agents.socket(host))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        Program(child.expect("a member"))
    }

    /// What the members have said.
    pub(crate) fn logs(&self) -> String {
        let log = |host| std::fs::read_to_string(self.agents.dir(host).join("member.log")).unwrap_or_default();
        (1..=self.bed.hosts().len()).map(|host| format!("h{host}: {}\n", log(host))).collect()
    }
}
