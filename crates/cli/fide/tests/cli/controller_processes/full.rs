// SPDX-License-Identifier: Apache-2.0
//! A full disk.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use fide_controller_api::sequence::Sequence;
use fide_controller_api::{Code, Method, paths};
use fide_testbed::{Lines, retry_until, supported};
use serde_json::json;

use super::common::{LIMIT, Running, Site, lane_of, numbered};

/// A few times the size of the store in this test.
const DISK: &str = "size=16m";
const BALLAST_BYTES: usize = 64 * 1024;

/// A small disk in a mount namespace, which ends with the process that holds it.
struct Disk {
    holder: Running,
    /// The root of that namespace, for other processes.
    root: PathBuf,
}

impl Disk {
    fn mount(site: &Site) -> Disk {
        let at = site.path().join("disk");
        std::fs::create_dir(&at).expect("a directory");
        // The shell ends with its input, and so with the test.
        let script = format!("mount -t tmpfs -o {DISK} fide-test \"$0\" && echo mounted && exec cat");
        let child = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", &script])
            .arg(&at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut holder = Running(child.expect("unshare"));
        let said = Lines::of(holder.0.stdout.take().expect("a pipe")).next();
        assert_eq!(said.as_deref(), Some("mounted"));
        let root = PathBuf::from(format!("/proc/{}/root", holder.0.id())).join(at.strip_prefix("/").expect("absolute"));
        Disk { holder, root }
    }

    fn start(&self, site: &Site) -> Running {
        let namespace = format!("--mount=/proc/{}/ns/mnt", self.holder.0.id());
        let words = ["--pdeathsig", "KILL", "nsenter", &namespace, "--", env!("CARGO_BIN_EXE_fide")];
        site.start_by("c1", Command::new("setpriv").args(words))
    }

    /// Fills the disk.
    fn fill(&self) {
        let mut ballast = File::options().create(true).append(true).open(self.root.join("ballast")).expect("a file");
        let mut bytes = BALLAST_BYTES;
        while bytes > 0 {
            match ballast.write_all(&vec![1; bytes]) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::StorageFull => bytes /= 2,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn make_room(&self) {
        std::fs::remove_file(self.root.join("ballast")).expect("the ballast");
    }
}

#[test]
fn root_on_a_full_disk_nothing_is_changed_and_nothing_lost() {
    if let Err(why) = supported() {
        println!("skipped: {why}");
        return;
    }
    let site = Site::new(1, 2, 1, "store = \"disk/c.redb\"");
    let disk = Disk::mount(&site);
    let mut running = disk.start(&site);
    assert!(site.lanes().is_empty());
    let mut h1 = site.caller("host.h1");
    let (mut last, mut acknowledged) = (0, std::collections::BTreeMap::new());
    for killed in [false, true, false] {
        // Until the store needs room that is missing. Requests that it has room for are carried out.
        disk.fill();
        let refused = retry_until("it is full", LIMIT, || {
            let (name, number) = (format!("n{}", last + 1), Sequence { incarnation: 1, number: last + 1 });
            let body = lane_of(&name, "h2");
            match h1.call(Method::Post, paths::LANES, Some(&body), Some(number), Duration::ZERO) {
                Ok(answered) if answered.status == 200 => {
                    last += 1;
                    acknowledged.insert(name, answered.body["lane"].as_u64().expect("a number"));
                    Err(format!("{last} fit"))
                }
                Ok(answered) if answered.status == 503 => Ok(answered),
                other => Err(format!("{other:?} {}", site.log("c1"))),
            }
        })
        .expect("it is full");
        assert_eq!(refused.code(), Some(Code::ReadOnly), "{}", refused.body);
        for part in ["no space left on the device", "make room", "with the same number"] {
            assert!(refused.message().contains(part), "{}", refused.body);
        }
        // What was acknowledged is still reported.
        assert_eq!(site.lanes(), acknowledged);
        if killed {
            // The controller starts and waits for room, or reports that there is none; acknowledged requests
            // are on the disk.
            running.kill();
            running = disk.start(&site);
            let up = retry_until("it answers or ends", LIMIT, || {
                if let Some(status) = running.0.try_wait().expect("a process") {
                    return Ok(Some(status));
                }
                let answered = h1.call(Method::Get, paths::SELF, None, None, Duration::ZERO);
                answered.map(|_| None).map_err(|error| error.to_string())
            });
            if let Some(status) = up.expect("it answers or ends") {
                assert!(!status.success() && site.log("c1").contains("no space left"), "{}", site.log("c1"));
            }
            disk.make_room();
            if running.0.try_wait().expect("a process").is_some() {
                running = disk.start(&site);
            }
        } else {
            disk.make_room();
        }
        // The same request again is carried out once.
        last += 1;
        let name = format!("n{last}");
        let done = numbered(&mut h1, Sequence { incarnation: 1, number: last }, &lane_of(&name, "h2"));
        assert_eq!(done.status, 200, "{}", done.body);
        acknowledged.insert(name, done.body["lane"].as_u64().expect("a number"));
        assert_eq!(site.lanes(), acknowledged, "what was acknowledged is not what is held");
    }
    running.kill();
    running = disk.start(&site);
    assert_eq!(site.lanes(), acknowledged);
    assert_eq!(json!(acknowledged.len()), json!(last));
    drop(running);
}
