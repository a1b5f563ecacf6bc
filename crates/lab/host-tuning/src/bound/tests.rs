// SPDX-License-Identifier: Apache-2.0

use super::*;

fn here(interface: Option<&str>) -> Here {
    Here { kernel: "6.18.0".into(), boot_id: "b-1".into(), core: 3, interface: interface.map(str::to_owned) }
}

const SAMPLE: Sample = Sample { min_ns: 4_000, max_ns: 31_000, count: 1000 };

fn bound(interface: Option<&str>, method: &str) -> Bound {
    Bound::of_sample(&here(interface), method, SAMPLE, 1_790_000_000)
}

#[test]
fn what_is_written_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("new/bound.toml");
    assert!(matches!(read(&path, &here(None)), Err(BoundError::Missing(_))));
    let (host, eth) = (bound(None, WAKE_UP), bound(Some("eth0"), "xdp"));
    assert_eq!((host.latency_min_ns, host.jitter_max_ns), (None, 31_000));
    assert_eq!((eth.latency_min_ns, eth.jitter_max_ns), (Some(4_000), 27_000));
    write(&path, &host).expect("written");
    write(&path, &eth).expect("written");
    assert_eq!(read(&path, &here(Some("eth0"))).expect("a bound"), eth);
    assert_eq!(read(&path, &here(Some("eth1"))).expect("that of the host"), host);
    let later = Bound { jitter_max_ns: 5, ..eth.clone() };
    write(&path, &later).expect("written");
    assert_eq!(read(&path, &here(Some("eth0"))).expect("a bound").jitter_max_ns, 5);
    assert_eq!(fs::read_dir(path.parent().expect("a parent")).expect("listed").count(), 1, "nothing is left behind");
}

#[test]
fn a_bound_of_elsewhere_is_refused_and_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("bound.toml");
    write(&path, &bound(Some("eth0"), "xdp")).expect("written");
    let eth = here(Some("eth0"));
    for (other, words) in [
        (Here { kernel: "6.19.0".into(), ..eth.clone() }, "kernel 6.18.0, this is 6.19.0"),
        (Here { boot_id: "b-2".into(), ..eth.clone() }, "boot b-1, this is b-2"),
        (Here { core: 2, ..eth.clone() }, "core 3, this is 2"),
        (here(Some("eth1")), "interface eth1, only for eth0"),
    ] {
        let error = read(&path, &other).expect_err("refused").to_string();
        assert!(error.contains(words) && error.contains("fide doctor"), "{error}");
    }
    // A bound of a new boot removes the bounds of the old one.
    let mut new = bound(Some("eth1"), "xdp");
    new.boot_id = "b-2".into();
    write(&path, &new).expect("written");
    assert!(matches!(read(&path, &eth), Err(BoundError::Interface { .. })));
}

#[test]
fn a_damaged_file_is_named_and_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("bound.toml");
    write(&path, &bound(None, WAKE_UP)).expect("written");
    let whole = fs::read(&path).expect("read");
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).expect("cut");
        if let Ok(cut) = read(&path, &here(None)) {
            // Only the line end of the last line can be cut off without a trace.
            assert_eq!(cut, bound(None, WAKE_UP), "{len}");
        }
    }
    for garbage in ["\0\u{1}", "version = 2", "version = 1\nbound = 3", "version = 1\n[[bound]]\nx = 1"] {
        fs::write(&path, garbage).expect("written");
        let error = read(&path, &here(None)).expect_err("refused").to_string();
        assert!(error.contains("measure again"), "{error}");
    }
    write(&path, &bound(None, WAKE_UP)).expect("replaced");
    assert!(read(&path, &here(None)).is_ok());
}

#[test]
fn the_share_beyond_the_most_of_a_sample() {
    let share = bound(None, WAKE_UP).exceedance();
    assert!((share - 0.003).abs() < 0.0001, "three in a thousand: {share}");
}

#[test]
fn what_is_no_file_is_neither_read_to_its_end_nor_replaced() {
    let error = read(Path::new("/dev/zero"), &here(None)).expect_err("no end");
    assert_eq!(error.name(), "unreadable");
    assert!(error.to_string().contains("/dev/zero: the file is too long: it has more than"), "{error}");
    let dir = tempfile::tempdir().expect("a directory");
    let link = dir.path().join("bound.toml");
    std::os::unix::fs::symlink("/dev/null", &link).expect("linked");
    let error = write(&link, &bound(None, WAKE_UP)).expect_err("no file");
    assert!(error.to_string().contains("it is no file"), "{error}");
    assert!(fs::read_link(&link).is_ok(), "as it was");
}
