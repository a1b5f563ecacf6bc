// SPDX-License-Identifier: Apache-2.0
//! A network namespace that plays a machine: the programs in it, and the addresses of a host.

use crate::names::{NETNS_DIR, Owner, sweep};
use crate::sys;
use crate::tools::batch;
use crate::{Error, Result};
use std::ffi::OsStr;
use std::fs::File;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

/// Hosts count from 1, as in the configuration file.
pub const FIRST_HOST: usize = 1;

/// Whether a testbed can be built here; the error says in one line what is missing.
pub fn supported() -> Result<()> {
    if !sys::is_root() {
        return Err(Error::Unsupported("network namespaces need root; run it as root (sudo)".into()));
    }
    let probe = Owner::new()?.namespace("probe");
    let made = batch("ip", &["netns", "add", &probe], "");
    let _ = batch("ip", &["netns", "del", &probe], "");
    made.map_err(|e| Error::Unsupported(format!("a network namespace cannot be made: {e}")))
}

/// Fails without root, and removes what dead runs left behind (and reports it on stderr). While the guard is
/// held, no other build can run.
pub(crate) fn ready_to_build() -> Result<MutexGuard<'static, ()>> {
    // iproute2 races with itself when two processes make the first namespace of a machine.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if !sys::is_root() {
        return supported().map(|()| unreachable!("unprivileged testbeds are refused"));
    }
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let swept = sweep()?;
    if !swept.is_empty() {
        eprintln!(
            "testbed: removed what dead runs left: {} namespaces ({}), {} processes, {} directories, {} traces",
            swept.namespaces.len(),
            swept.namespaces.join(" "),
            swept.killed.len(),
            swept.directories.len(),
            swept.traces.len()
        );
    }
    Ok(guard)
}

/// A network namespace that commands and threads can enter.
#[derive(Debug, Clone)]
pub struct Node {
    name: String,
    namespace: String,
    ns: Arc<File>,
}

impl Node {
    pub(crate) fn open(name: String, namespace: String) -> Result<Node> {
        let file = File::open(Path::new(NETNS_DIR).join(&namespace))
            .map_err(|e| Error::io(format!("opening namespace {namespace}"), e))?;
        Ok(Node { name, namespace, ns: Arc::new(file) })
    }

    /// Short name, as in the specification.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name under `/run/netns`.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Path of the namespace, for programs that enter it by themselves.
    pub fn namespace_path(&self) -> PathBuf {
        Path::new(NETNS_DIR).join(&self.namespace)
    }

    /// A command that runs on this node, in a process group of its own. It is killed at the latest when the
    /// testbed is removed.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        let ns = self.ns.clone();
        command.process_group(0);
        // SAFETY: the closure makes one system call on a descriptor that it keeps open, allocates nothing and takes no
        // lock, as a child of a process with threads must not.
        unsafe {
            command.pre_exec(move || {
                let fd = BorrowedFd::borrow_raw(ns.as_raw_fd());
                sys::enter_netns(fd)
            });
        }
        command
    }

    /// Runs `f` on a thread in this node's namespace and returns its result. Sockets that `f` opens stay in
    /// the namespace.
    pub fn run_in<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| sys::enter_netns(self.ns.as_fd()).map(|()| f()));
            match thread.join() {
                Ok(done) => done.map_err(|e| Error::io(format!("entering {}'s namespace", self.name), e)),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }
}

/// One host: a network namespace with links `p0` (and `p1`), addresses 10.70.&lt;plane+1&gt;.&lt;host&gt;.
#[derive(Debug, Clone)]
pub struct Host {
    node: Node,
    index: usize,
    planes: usize,
}

impl Host {
    pub(crate) fn new(node: Node, index: usize, planes: usize) -> Host {
        Host { node, index, planes }
    }

    /// A host without a namespace, for tests that need only names and addresses.
    #[cfg(test)]
    pub(crate) fn nowhere(index: usize, planes: usize) -> Self {
        let ns = Arc::new(File::open("/dev/null").unwrap());
        Host { node: Node { name: format!("h{index}"), namespace: String::new(), ns }, index, planes }
    }

    /// Number, from 1.
    pub fn index(&self) -> usize {
        self.index
    }

    /// `h1`, `h2`, ...
    pub fn name(&self) -> &str {
        self.node.name()
    }

    /// Name under `/run/netns`.
    pub fn namespace(&self) -> &str {
        self.node.namespace()
    }

    /// The namespace itself.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Address on a plane (from 0).
    pub fn address(&self, plane: usize) -> Ipv4Addr {
        address(self.index, plane)
    }

    /// Addresses on every plane, in order.
    pub fn addresses(&self) -> Vec<Ipv4Addr> {
        (0..self.planes).map(|p| self.address(p)).collect()
    }

    /// As [`Node::command`].
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        self.node.command(program)
    }

    /// As [`Node::run_in`].
    pub fn run_in<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        self.node.run_in(f)
    }
}

/// Hosts that programs run on, and a directory for their files: a [`crate::Testbed`] or a [`crate::fabric::Fabric`].
pub trait Cluster {
    /// All hosts, in order, from h1.
    fn hosts(&self) -> &[Host];
    /// A directory that is removed with them.
    fn scratch(&self) -> &Path;
}

pub(crate) fn address(host: usize, plane: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 70, plane as u8 + 1, host as u8)
}

/// A locally administered address that shows host and plane in a capture.
pub(crate) fn mac(host: usize, plane: usize) -> String {
    format!("02:f1:de:00:{plane:02x}:{host:02x}")
}
