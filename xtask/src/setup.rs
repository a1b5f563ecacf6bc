// SPDX-License-Identifier: Apache-2.0
//! The Debian packages that are needed: looks for them, lists the missing ones, and installs them if it is
//! root.

use crate::run::Step;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

/// A package, and the program that may stand in for it, wherever that came from.
pub(crate) struct Package {
    name: &'static str,
    program: Option<&'static str>,
}

const fn package(name: &'static str, program: Option<&'static str>) -> Package {
    Package { name, program }
}

/// Needed to build and test.
pub(crate) const BUILD: &[Package] = &[
    package("clang", Some("clang")),
    package("libelf-dev", None),
    package("zlib1g-dev", None),
    package("pkg-config", Some("pkg-config")),
    package("iproute2", Some("ip")),
    package("make", Some("make")),
    package("gcc", Some("gcc")),
    package("libc6-dev", None),
];

/// Needed for the tests alone.
pub(crate) const TEST: &[Package] = &[
    package("chromium", Some("chromium")),
    package("openvswitch-switch", Some("/usr/sbin/ovs-vswitchd")),
    package("etcd-server", Some("etcd")),
    package("systemd", Some("/lib/systemd/systemd")),
    // A video through `fide pace tunnel`: 55 MB to get, and GStreamer with the same codecs is more.
    package("ffmpeg", Some("ffmpeg")),
];

/// For the judge of histories.
pub(crate) const JUDGE: &[Package] = &[package("golang-go", Some("go"))];

/// For the Redis module: the server, its benchmark, and no service.
pub(crate) const REDIS: &[Package] = &[package("redis-tools", Some("redis-benchmark"))];

/// For clients of the Redis module in these languages; Go is [`JUDGE`]'s.
pub(crate) const PYTHON: &[Package] = &[package("python3-venv", None)];
pub(crate) const JAVA: &[Package] = &[package("default-jdk-headless", Some("javac")), package("maven", Some("mvn"))];
pub(crate) const NODE: &[Package] = &[package("nodejs", Some("node")), package("npm", Some("npm"))];

/// For Redis' own tests.
pub(crate) const REDIS_SUITE: &[Package] = &[
    package("redis-tools", Some("redis-benchmark")),
    package("tcl", Some("tclsh")),
    package("dpkg-dev", Some("dpkg-source")),
];

/// For the model checker TLC.
pub(crate) const SPEC: &[Package] = &[package("default-jre-headless", Some("java")), package("maven", Some("mvn"))];

/// For the method rdma-ud of the jitter bench.
pub(crate) const RDMA: &[Package] = &[package("libibverbs-dev", None)];

/// For hosts with a kernel of our choice.
pub(crate) const EMULATOR: &[Package] = &[package("qemu-system-x86", Some("qemu-system-x86_64"))];

/// For the baselines of the benches.
pub(crate) const BENCH: &[Package] = &[
    package("golang-go", Some("go")),
    package("frr", Some("/usr/lib/frr/bfdd")),
    package("sockperf", Some("sockperf")),
    package("rt-tests", Some("cyclictest")),
];

/// For SRT, beside which X-PACE is measured.
pub(crate) const PACE: &[Package] = &[package("srt-tools", Some("srt-live-transmit"))];

/// What rack sockets carry, unmodified.
pub(crate) const RACK: &[Package] = &[
    package("redis-tools", Some("redis-benchmark")),
    package("nginx-light", Some("nginx")),
    package("wrk", Some("wrk")),
    package("postgresql", Some("pg_createcluster")),
];

/// What is run over them, and compared with the same over TCP.
pub(crate) const RACK_APPS: &[Package] = &[
    package("redis-server", Some("redis-server")),
    package("redis-tools", Some("redis-benchmark")),
    package("memcached", Some("memcached")),
    package("default-jdk-headless", Some("javac")),
    package("golang-go", Some("go")),
    package("python3", Some("python3")),
];

/// Tests of sockets that others have written, for rack sockets.
pub(crate) const SUITES: &[Package] = &[
    package("libpython3.11-testsuite", Some("/usr/lib/python3.11/test/test_socket.py")),
    package("golang-go", Some("go")),
    package("cmake", Some("cmake")),
    package("dpkg-dev", Some("dpkg-source")),
    package("util-linux", Some("setpriv")),
];

/// While this script exits with 101, Debian's packages start no services.
const POLICY: &str = "/usr/sbin/policy-rc.d";

pub(crate) fn setup(with_bench: bool) -> Result<(), String> {
    let mut all_there = prepare(BUILD, "the kernel programs cannot be built");
    all_there &= prepare(SPEC, "the specifications cannot be checked");
    all_there &= prepare(JUDGE, "histories are not judged");
    all_there &= prepare(REDIS, "the Redis module is not tested");
    if with_bench {
        all_there &= prepare(BENCH, "some baselines will be missing");
    }
    if all_there {
        println!("setup: everything is there");
        return Ok(());
    }
    Err("packages are missing, see above".into())
}

/// Returns whether all of `packages` are there in the end. Lists the missing ones before it installs
/// anything. Without root or apt-get, it prints one line: what to run, and the `consequence` of not running
/// it.
pub(crate) fn prepare(packages: &[Package], consequence: &str) -> bool {
    let missing = missing(packages);
    if missing.is_empty() {
        return true;
    }
    let list = missing.join(" ");
    if !has_program("apt-get") {
        println!("missing: {list} (named as in Debian): install them; {consequence} without them");
        return false;
    }
    if !is_root() {
        println!("missing: {list}: run `apt-get install {list}` as root; {consequence} without them");
        return false;
    }
    println!("missing, to be installed: {list}");
    if let Err(why) = install(&missing) {
        println!("{why}: {consequence}");
        return false;
    }
    true
}

fn missing(packages: &[Package]) -> Vec<&'static str> {
    packages.iter().filter(|p| !is_there(p)).map(|p| p.name).collect()
}

fn is_there(package: &Package) -> bool {
    if package.program.is_some_and(has_program) {
        return true;
    }
    if has_program("dpkg-query") {
        return Command::new("dpkg-query")
            .args(["-W", "-f", "${db:Status-Status}", package.name])
            .stderr(Stdio::null())
            .output()
            .is_ok_and(|o| o.stdout == b"installed");
    }
    // Not Debian: a library counts as installed if its header is there.
    match package.name {
        "libelf-dev" => Path::new("/usr/include/libelf.h").exists(),
        "zlib1g-dev" => Path::new("/usr/include/zlib.h").exists(),
        "libibverbs-dev" => Path::new("/usr/include/infiniband/verbs.h").exists(),
        "libc6-dev" => Path::new("/usr/include/stdio.h").exists(),
        _ => false,
    }
}

fn install(names: &[&str]) -> Result<(), String> {
    let _no_services = NoServices::new();
    let apt = |args: &[&str]| Step::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(args);
    apt(&["update", "-q"]).run("package lists")?;
    apt(&["install", "-y", "-q", "--no-install-recommends"]).args(names).run("packages")
}

/// Keeps packages (frr) from starting their services, for as long as it lives.
struct NoServices {
    made: bool,
}

impl NoServices {
    fn new() -> Self {
        // Somebody else's policy stays in force.
        let made = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o755)
            .open(POLICY)
            .and_then(|mut f| f.write_all(b"#!/bin/sh\nexit 101\n"))
            .is_ok();
        NoServices { made }
    }
}

impl Drop for NoServices {
    fn drop(&mut self) {
        if self.made {
            let _ = fs::remove_file(POLICY);
        }
    }
}

pub(crate) fn has_program(name: &str) -> bool {
    if name.starts_with('/') {
        return Path::new(name).exists();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    // /usr/sbin and /sbin hold root's programs; the PATH of other users may leave them out.
    path.split(':').chain(["/usr/sbin", "/sbin"]).any(|dir| Path::new(dir).join(name).is_file())
}

/// Effective user 0.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_package_is_missing() {
        let packages = [package("no-such-package-of-anybody", Some("no-such-program")), package("shell", Some("sh"))];
        assert_eq!(missing(&packages), ["no-such-package-of-anybody"]);
    }
}
