// SPDX-License-Identifier: Apache-2.0
//! The network part of a fence: removes addresses from this host, and resets the program's connections.
//!
//! An address that a fence removed belongs to the host that may act. It is restored when this program
//! continues, and never otherwise: not after an exclusion, and not when `fide run` ends.

use std::{collections::HashSet, ffi::OsString, fs, io, net::IpAddr, path::Path, str::FromStr};

use anyhow::anyhow;
use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::{
    net::{AddressFamily, SocketFlags, SocketType, netdevice::name_to_index, socket_with},
    process::Pid,
};

use crate::{
    diag::{CONNECTED, Found, destroy, list, may_destroy},
    exit::{Failure, NOT_PERMITTED, UNSUPPORTED, USAGE},
    netlink::{NLM_F_CREATE, NLM_F_EXCL, Netlink, attribute, attributes, number},
};

/// Time from a failed attempt to the next, while the program is stopped.
const RETRY_NS: u64 = 100_000_000;
/// Descriptor tables of one process with which further threads are compared. Beyond that a table may be read
/// twice.
const TABLES_MAX: usize = 16;

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_GETADDR: u16 = 22;
/// `struct ifaddrmsg`.
const IFADDRMSG: usize = 8;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_FLAGS: u16 = 8;
/// Flag: an IPv6 address is usable at once, as it was before.
const IFA_F_NODAD: u32 = 2;

/// An address of an interface, as the operator writes it: `ADDR/LEN@DEV`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    addr: IpAddr,
    len: u8,
    device: String,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("`{text}` is not ADDR/LEN@DEV, as 10.0.0.9/32@eth0 is");
        let (address, device) = text.split_once('@').ok_or_else(form)?;
        let (addr, len) = address.split_once('/').ok_or_else(form)?;
        let addr: IpAddr = addr.parse().map_err(|_| form())?;
        let longest = if addr.is_ipv4() { 32 } else { 128 };
        match len.parse() {
            Ok(len) if len <= longest && !device.is_empty() => Ok(Self { addr, len, device: device.to_owned() }),
            _ => Err(format!("{}; LEN is {longest} at most", form())),
        }
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}@{}", self.addr, self.len, self.device)
    }
}

impl Address {
    pub(super) fn ip(&self) -> IpAddr {
        self.addr
    }

    fn family(&self) -> u8 {
        // AF_INET and AF_INET6.
        u8::try_from(if self.addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }).expect("small")
    }

    fn bytes(&self) -> Vec<u8> {
        match self.addr {
            IpAddr::V4(addr) => addr.octets().to_vec(),
            IpAddr::V6(addr) => addr.octets().to_vec(),
        }
    }

    fn index(&self) -> io::Result<u32> {
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        Ok(name_to_index(&socket, &self.device)?)
    }

    /// Whether the kernel's description is of this address.
    fn is(&self, index: u32, body: &[u8]) -> bool {
        let Some(head) = body.get(..IFADDRMSG) else { return false };
        if head[0] != self.family() || head[1] != self.len || number(body, 4) != Some(index) {
            return false;
        }
        let found = attributes(&body[IFADDRMSG..]);
        let value = |kind| found.iter().find(|(k, _)| *k == kind).map(|(_, at)| &body[IFADDRMSG..][at.clone()]);
        // On a point-to-point link IFA_ADDRESS is the other end's address.
        value(IFA_LOCAL).or_else(|| value(IFA_ADDRESS)) == Some(&self.bytes()[..])
    }
}

/// What a fence does to the network when a program is stopped, and undoes when it continues.
pub(super) struct Network {
    addresses: Vec<Address>,
    route: Option<Netlink>,
    diag: Option<Netlink>,
    /// Addresses that were removed, as the kernel described them.
    taken: Vec<(Address, Vec<u8>)>,
    /// Addresses that could not be restored, likewise, and when the next attempt is.
    owed: Vec<(Address, Vec<u8>)>,
    put_next_ns: u64,
    /// The part of the fence that is not in force yet.
    open: Open,
}

/// What is still to be done for a fence.
#[derive(Default)]
struct Open {
    addresses: Vec<Address>,
    sockets: bool,
    /// When the next attempt is.
    next_ns: u64,
}

impl Open {
    fn is_empty(&self) -> bool {
        self.addresses.is_empty() && !self.sockets
    }
}

impl Network {
    /// Checks that this host can do all that is wanted.
    ///
    /// # Errors
    /// What this host cannot do, and what to do about it.
    pub(super) fn new(addresses: &[Address], sockets: bool) -> Result<Self, Failure> {
        let mut network = Self {
            addresses: addresses.to_vec(),
            route: None,
            diag: None,
            taken: Vec::new(),
            owed: Vec::new(),
            put_next_ns: 0,
            open: Open::default(),
        };
        if !addresses.is_empty() {
            let mut route = Netlink::open(NETLINK_ROUTE)?;
            for address in addresses {
                let index = address.index().map_err(|error| {
                    Failure::new(USAGE, anyhow!("--fence-address {address}: interface {}: {error}", address.device))
                })?;
                may_take(&mut route, index).map_err(|error| {
                    Failure::new(
                        if error.kind() == io::ErrorKind::PermissionDenied { NOT_PERMITTED } else { UNSUPPORTED },
                        anyhow!("--fence-address {address}: {error}; taking addresses off needs CAP_NET_ADMIN"),
                    )
                })?;
            }
            network.route = Some(route);
        }
        if sockets {
            network.diag = Some(may_destroy("--fence-sockets")?);
        }
        Ok(network)
    }

    /// Whether a fence does anything to the network.
    pub(super) fn is_fenced_at_all(&self) -> bool {
        self.route.is_some() || self.diag.is_some()
    }

    /// Removes the addresses, and resets the connections of `pids`. Returns failures, which [`Self::retry`]
    /// tries again.
    pub(super) fn fence(&mut self, now_ns: u64, pids: impl FnOnce() -> Vec<Pid>) -> Vec<String> {
        let is_taken = |address: &&Address| self.taken.iter().any(|(taken, _)| taken == *address);
        let addresses = self.addresses.iter().filter(|address| !is_taken(address)).cloned().collect();
        self.open = Open { addresses, sockets: self.diag.is_some(), next_ns: 0 };
        self.attempt(now_ns, pids)
    }

    /// If it is time, tries again what [`Self::fence`] could not do. Returns what is in force now.
    pub(super) fn retry(&mut self, now_ns: u64, pids: impl FnOnce() -> Vec<Pid>) -> Vec<String> {
        if self.open.is_empty() || now_ns < self.open.next_ns {
            return Vec::new();
        }
        let (addresses, sockets) = (self.open.addresses.clone(), self.open.sockets);
        // The failure was reported once.
        let _ = self.attempt(now_ns, pids);
        let is_off = |address: &Address| !self.open.addresses.contains(address);
        let mut done: Vec<String> = addresses
            .into_iter()
            .filter(is_off)
            .map(|address| format!("address {address} is off now: a later attempt took it"))
            .collect();
        if sockets && !self.open.sockets {
            done.push("the program's connections are reset now: a later attempt did it".to_owned());
        }
        done
    }

    /// Does what is still to be done. What fails stays to be done.
    fn attempt(&mut self, now_ns: u64, pids: impl FnOnce() -> Vec<Pid>) -> Vec<String> {
        let mut wrong = Vec::new();
        if let Some(route) = &mut self.route {
            let (taken, owed) = (&mut self.taken, &mut self.owed);
            self.open.addresses.retain(|address| match take(route, address) {
                Ok(found) => {
                    let before = owed.iter().position(|(owed, _)| owed == address).map(|at| owed.swap_remove(at).1);
                    // An address that was not here is not restored, unless it could not be restored before.
                    taken.extend(found.or(before).map(|body| (address.clone(), body)));
                    false
                }
                Err(error) => {
                    wrong.push(format!("address {address} could not be taken off, and is tried again: {error}"));
                    true
                }
            });
        }
        if let Some(diag) = &mut self.diag
            && self.open.sockets
        {
            let (of, missing) = inodes(&pids());
            // Resets known sockets even if others are unknown.
            match reset(diag, &of).and(missing.map_or(Ok(()), Err)) {
                Ok(()) => self.open.sockets = false,
                Err(error) => {
                    wrong.push(format!("the program's connections could not be reset, and are tried again: {error}"));
                }
            }
        }
        self.open.next_ns = now_ns.saturating_add(RETRY_NS);
        wrong
    }

    /// Restores the removed addresses. Returns failures, which [`Self::retry_to_lift`] tries again.
    pub(super) fn lift(&mut self, now_ns: u64) -> Vec<String> {
        self.open = Open::default();
        self.owed.append(&mut self.taken);
        let again = |(address, error)| format!("address {address} could not be put back, and is tried again: {error}");
        self.put_back(now_ns).into_iter().map(again).collect()
    }

    /// If it is time, tries again to restore what [`Self::lift`] could not. Returns what is restored now.
    pub(super) fn retry_to_lift(&mut self, now_ns: u64) -> Vec<String> {
        if self.owed.is_empty() || now_ns < self.put_next_ns {
            return Vec::new();
        }
        let before: Vec<Address> = self.owed.iter().map(|(address, _)| address.clone()).collect();
        // The failure was reported once.
        let wrong = self.put_back(now_ns);
        let is_there = |address: &Address| !wrong.iter().any(|(of, _)| of == address);
        let done = before.into_iter().filter(is_there);
        done.map(|address| format!("address {address} is back now: a later attempt put it there")).collect()
    }

    fn put_back(&mut self, now_ns: u64) -> Vec<(Address, io::Error)> {
        self.put_next_ns = now_ns.saturating_add(RETRY_NS);
        let Some(route) = &mut self.route else { return Vec::new() };
        let mut wrong = Vec::new();
        self.owed.retain(|(address, body)| match put(route, address, body.clone()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                wrong.push((address.clone(), error));
                true
            }
            _ => false,
        });
        wrong
    }
}

/// Adds an address as it was, to the interface that has the name now.
fn put(route: &mut Netlink, address: &Address, body: Vec<u8>) -> io::Result<()> {
    let mut body = used_at_once(body);
    if let Some(index) = body.get_mut(4..IFADDRMSG) {
        index.copy_from_slice(&address.index()?.to_ne_bytes());
    }
    route.change(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &body).map(drop)
}

fn ifaddrmsg(family: u8, len: u8, index: u32) -> Vec<u8> {
    let mut bytes = vec![family, len, 0, 0];
    bytes.extend(index.to_ne_bytes());
    bytes
}

/// Whether this process may remove addresses: it tries to remove one that no interface can have.
fn may_take(route: &mut Netlink, index: u32) -> io::Result<()> {
    let mut body = ifaddrmsg(u8::try_from(libc::AF_INET).expect("small"), 32, index);
    body.extend(attribute(IFA_LOCAL, &[255; 4]));
    match route.change(RTM_DELADDR, 0, &body) {
        Err(error) if error.kind() != io::ErrorKind::AddrNotAvailable => Err(error),
        _ => Ok(()),
    }
}

/// Removes an address; returns the kernel's description of it, or `None` if it is not there.
fn take(route: &mut Netlink, address: &Address) -> io::Result<Option<Vec<u8>>> {
    let index = address.index()?;
    let list = route.list(RTM_GETADDR, &ifaddrmsg(address.family(), 0, 0))?;
    let mut bodies = list.all.into_iter().filter(|message| message.kind == RTM_NEWADDR).map(|message| message.body);
    let Some(body) = bodies.find(|body| address.is(index, body)) else {
        return if list.changed { Err(changing()) } else { Ok(None) };
    };
    match route.change(RTM_DELADDR, 0, &body) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(None),
        Err(error) => Err(error),
        Ok(_) => Ok(Some(body)),
    }
}

/// The error that a list kept changing, so that it is unknown whether an entry exists.
fn changing() -> io::Error {
    io::Error::other("the kernel's list changed each time while it was read")
}

/// The description of an address with the flag that skips the detection of duplicates: this host had it a
/// moment ago.
fn used_at_once(mut body: Vec<u8>) -> Vec<u8> {
    let is_six = body.first().copied().map(i32::from) == Some(libc::AF_INET6);
    let found = attributes(body.get(IFADDRMSG..).unwrap_or_default());
    let flags = found.into_iter().find(|(kind, at)| is_six && *kind == IFA_FLAGS && at.len() == 4);
    if let Some((_, at)) = flags {
        let value = &mut body[IFADDRMSG..][at];
        let flags = number(value, 0).expect("four bytes") | IFA_F_NODAD;
        value.copy_from_slice(&flags.to_ne_bytes());
    }
    body
}

/// Inodes of the sockets that these processes have open, and why some of them may be missing.
fn inodes(pids: &[Pid]) -> (HashSet<u32>, Option<io::Error>) {
    let (mut found, mut wrong) = (HashSet::new(), None);
    for pid in pids {
        if let Err(error) = inodes_of(*pid, &mut found) {
            let needs = if error.kind() == io::ErrorKind::PermissionDenied { "; needs CAP_SYS_PTRACE" } else { "" };
            wrong = Some(io::Error::new(error.kind(), format!("descriptors of process {pid}: {error}{needs}")));
        }
    }
    (found, wrong)
}

/// The same for one process, which may have ended.
fn inodes_of(pid: Pid, found: &mut HashSet<u32>) -> io::Result<()> {
    // If the first thread has ended, it has no descriptors any more; and each thread may have its own table.
    let mut tables: Vec<i32> = Vec::new();
    for thread in entries(&format!("/proc/{pid}/task"))? {
        let Some(thread) = thread.to_str().and_then(|name| name.parse().ok()) else { continue };
        if tables.iter().any(|other| has_same_descriptors(*other, thread)) {
            continue;
        }
        let dir = format!("/proc/{pid}/task/{thread}/fd");
        let files = entries(&dir)?;
        if !files.is_empty() && tables.len() < TABLES_MAX {
            tables.push(thread);
        }
        for file in files {
            let link = match fs::read_link(Path::new(&dir).join(file)) {
                Err(error) if has_ended(&error) => continue,
                link => link?,
            };
            let inode: Option<u32> =
                link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            found.extend(inode);
        }
    }
    Ok(())
}

/// Names in a directory of a process; none if the process has ended.
fn entries(dir: &str) -> io::Result<Vec<OsString>> {
    let names = fs::read_dir(dir).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    match names {
        Err(error) if has_ended(&error) => Ok(Vec::new()),
        names => names,
    }
}

/// Whether an operation failed because a process, thread or descriptor is gone.
fn has_ended(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Whether two threads are known to share their descriptors. A kernel without kcmp(2) does not say.
fn has_same_descriptors(one: i32, other: i32) -> bool {
    const KCMP_FILES: libc::c_int = 2;
    // SAFETY: kcmp(2) takes numbers alone.
    unsafe { libc::syscall(libc::SYS_kcmp, one, other, KCMP_FILES, 0_u64, 0_u64) == 0 }
}

fn reset(diag: &mut Netlink, of: &HashSet<u32>) -> io::Result<()> {
    if of.is_empty() {
        return Ok(());
    }
    let list = list(diag, CONNECTED)?;
    for found in list.all.iter().filter(|found: &&Found| of.contains(&found.inode)) {
        destroy(diag, found)?;
    }
    if list.changed { Err(changing()) } else { Ok(()) }
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a test that is skipped says so")]
mod tests {
    use std::{io::Read, net::TcpListener};

    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

    use super::*;

    fn described(address: &str, index: u32, more: &[u8]) -> Vec<u8> {
        let address: Address = address.parse().expect("right");
        let mut body = ifaddrmsg(address.family(), address.len, index);
        body.extend(attribute(if address.addr.is_ipv4() { IFA_LOCAL } else { IFA_ADDRESS }, &address.bytes()));
        body.extend(more);
        body
    }

    fn ip(host: &fide_testbed::Host, arguments: &str) -> String {
        let output = host.command("ip").args(arguments.split(' ')).output().expect("ip");
        assert!(output.status.success(), "{arguments}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    #[test]
    fn root_failed_address_removal_is_retried() {
        if let Err(why) = fide_testbed::supported() {
            println!("skipped: {why}");
            return;
        }
        let bed = fide_testbed::Testbed::build(fide_testbed::Spec::hosts(1)).expect("a testbed");
        let host = bed.host(1);
        ip(host, "link add vip0 type veth peer name vip1");
        ip(host, "address add 10.99.0.9/32 dev vip0");
        let address: Address = "10.99.0.9/32@vip0".parse().expect("right");
        let mut network =
            host.run_in(|| Network::new(std::slice::from_ref(&address), false)).expect("there").expect("root may");
        let shown = || ip(host, "-o -4 address show");
        ip(host, "link set vip0 name away");
        let wrong = host.run_in(|| network.fence(1, Vec::new)).expect("there");
        assert!(wrong.len() == 1 && wrong[0].contains("vip0") && wrong[0].contains("tried again"), "{wrong:?}");
        assert_eq!(host.run_in(|| network.retry(2 + RETRY_NS, Vec::new)).expect("there"), [""; 0], "said once");
        ip(host, "link set away name vip0");
        assert_eq!(host.run_in(|| network.retry(3 + RETRY_NS, Vec::new)).expect("there"), [""; 0], "not yet");
        assert!(shown().contains("10.99.0.9"));
        let done = host.run_in(|| network.retry(3 + 2 * RETRY_NS, Vec::new)).expect("there");
        assert!(done.len() == 1 && done[0].contains("off now"), "{done:?}");
        assert!(!shown().contains("10.99.0.9"));
        // The address is restored, and nothing else is tried.
        assert_eq!(host.run_in(|| network.lift(0)).expect("there"), [""; 0]);
        assert!(shown().contains("10.99.0.9"));
        assert_eq!(host.run_in(|| network.retry(u64::MAX, Vec::new)).expect("there"), [""; 0]);
        assert!(shown().contains("10.99.0.9"));
    }

    /// Holds a connection in a second thread. Its first thread ends (`headless`), or no process without
    /// CAP_SYS_PTRACE may look into it (`closed`).
    const HOLDS: &str = r#"
#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *hold(void *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int held = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(held, (struct sockaddr *)&to, sizeof to) || write(held, "x", 1) != 1) exit(1);
    sleep(600);
    exit(0);
}
int main(int argc, char **words) {
    pthread_t thread;
    if (!strcmp(words[2], "closed")) prctl(PR_SET_DUMPABLE, 0);
    pthread_create(&thread, 0, hold, words[1]);
    if (!strcmp(words[2], "headless")) syscall(SYS_exit, 0);
    pthread_join(thread, 0);
}
"#;

    /// A program that a test compiles; it is killed at the end of the test.
    struct Holder(std::process::Child);

    impl Drop for Holder {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn root_connections_are_reset_whichever_thread_has_them_or_it_is_said() {
        if let Err(why) = fide_testbed::supported() {
            println!("skipped: {why}");
            return;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let (source, program) = (dir.path().join("holds.c"), dir.path().join("holds"));
        fs::write(&source, HOLDS).expect("written");
        let compiled = std::process::Command::new("gcc").arg("-pthread").arg(&source).arg("-o").arg(&program).status();
        assert!(compiled.expect("gcc").success());
        for how in ["plain", "headless", "closed"] {
            let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
            let port = listener.local_addr().expect("an address").port().to_string();
            let holder = Holder(std::process::Command::new(&program).args([&port, how]).spawn().expect("started"));
            let pid = Pid::from_raw(i32::try_from(holder.0.id()).expect("a pid")).expect("not 0");
            let (mut peer, _) = listener.accept().expect("its connection");
            peer.read_exact(&mut [0]).expect("it writes");
            peer.set_read_timeout(Some(std::time::Duration::from_secs(30))).expect("set");
            let has_head = || !fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "));
            let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while how == "headless" && has_head() {
                assert!(std::time::Instant::now() < until, "its first thread goes on");
                std::thread::yield_now();
            }
            let mut network = Network::new(&[], true).expect("root may");
            // A thread has its own capabilities: here the ones of `fide run` by a user with CAP_NET_ADMIN.
            let fenced = || {
                if how == "closed" {
                    let mut sets = capabilities(None).expect("capabilities");
                    sets.effective.remove(CapabilitySet::SYS_PTRACE);
                    set_capabilities(None, sets).expect("given up");
                }
                network.fence(1, || vec![pid])
            };
            let wrong = std::thread::scope(|scope| scope.spawn(fenced).join().expect("done"));
            if how == "closed" {
                assert!(wrong.len() == 1 && wrong[0].contains("CAP_SYS_PTRACE"), "{wrong:?}");
                let done = network.retry(u64::MAX, || vec![pid]);
                assert!(done.len() == 1 && done[0].contains("reset now"), "{done:?}");
            } else {
                assert_eq!(wrong, [""; 0], "{how}");
            }
            let read = peer.read(&mut [0]);
            assert_eq!(read.expect_err(how).kind(), io::ErrorKind::ConnectionReset, "{how}");
        }
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for right in ["10.0.0.9/32@eth0", "0.0.0.0/0@lo", "fd00::9/128@bond0.7"] {
            assert_eq!(right.parse::<Address>().expect("right").to_string(), right);
        }
        for wrong in [
            "",
            "10.0.0.9",
            "10.0.0.9/32",
            "10.0.0.9@eth0",
            "10.0.0.9/33@eth0",
            "fd00::9/129@eth0",
            "x/8@eth0",
            "1.2.3.4/8@",
        ] {
            let error = wrong.parse::<Address>().expect_err(wrong);
            assert!(error.contains("ADDR/LEN@DEV"), "{error}");
        }
    }

    #[test]
    fn only_the_given_address_of_the_interface_is_removed() {
        let address: Address = "10.0.0.9/32@eth0".parse().expect("right");
        assert!(address.is(3, &described("10.0.0.9/32@eth0", 3, &[])));
        assert!(!address.is(3, &described("10.0.0.9/32@eth0", 4, &[])));
        assert!(!address.is(3, &described("10.0.0.9/24@eth0", 3, &[])));
        assert!(!address.is(3, &described("10.0.0.8/32@eth0", 3, &[])));
        assert!(!address.is(3, &described("fd00::9/32@eth0", 3, &[])));
        assert!(!address.is(3, &[2, 32]));
    }

    #[test]
    fn six_comes_back_without_a_wait_for_duplicates() {
        let flags = attribute(IFA_FLAGS, &0x80u32.to_ne_bytes());
        let wanted = attribute(IFA_FLAGS, &0x82u32.to_ne_bytes());
        assert_eq!(used_at_once(described("fd00::9/128@lo", 1, &flags)), described("fd00::9/128@lo", 1, &wanted));
        assert_eq!(used_at_once(described("10.0.0.9/32@lo", 1, &flags)), described("10.0.0.9/32@lo", 1, &flags));
        assert_eq!(used_at_once(vec![10]), [10]);
    }
}
