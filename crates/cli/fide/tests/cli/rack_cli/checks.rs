// SPDX-License-Identifier: Apache-2.0
//! `fide rack check` of real programs.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;

use super::{Host, fide, said, text};

fn check(path: &str) -> Output {
    fide(&["check", path]).output().unwrap()
}

/// What is judged, and that the exit code says the same.
fn judged(path: &str) -> Value {
    let output = fide(&["check", path, "--json"]).output().unwrap();
    let object: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)));
    assert_eq!(output.status.code(), Some(i32::from(object["accelerated"] == false)), "{}", said(&output));
    object
}

/// The words for what is against it.
fn against(object: &Value) -> Vec<&str> {
    let findings = object["findings"].as_array().unwrap().iter().filter(|finding| finding["blocks"] == true);
    findings.map(|finding| finding["code"].as_str().unwrap()).collect()
}

fn script(path: &Path, words: &str) {
    fs::write(path, words).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Compiles a program. False: this compiler, or its libraries, cannot.
fn compiled(directory: &Path, source: &str, words: &[&str]) -> bool {
    fs::write(directory.join("source.c"), source).unwrap();
    let output = Command::new("cc").arg("source.c").args(words).current_dir(directory).output();
    output.is_ok_and(|output| output.status.success())
}

const EMPTY: &str = "int main(void) { return 0; }\n";

#[test]
fn shell_is_accelerated_and_scripts_are_judged_by_who_runs_them() {
    let object = judged("/bin/sh");
    assert!(against(&object).is_empty() && object["accelerated"] == true, "{object}");
    let libraries = object["libraries"].as_array().unwrap();
    assert!(libraries.iter().any(|path| path.as_str().unwrap().contains("libc.so")), "{object}");
    // By name, as a shell finds it.
    assert!(judged("sh")["files"][0].as_str().unwrap().ends_with("/sh"));
    let directory = tempfile::tempdir().unwrap();
    let [plain, by_env, cleared, of_itself] =
        ["plain", "by-env", "cleared", "itself"].map(|name| directory.path().join(name));
    script(&plain, "#!/bin/sh\nexit 0\n");
    script(&by_env, "#!/usr/bin/env sh\nexit 0\n");
    script(&cleared, "#!/usr/bin/env -S -i sh\nexit 0\n");
    script(&of_itself, &format!("#!{}\n", of_itself.display()));
    for path in [&plain, &by_env] {
        let object = judged(path.to_str().unwrap());
        assert!(object["accelerated"] == true && object["files"][1].as_str().unwrap().ends_with("/sh"), "{object}");
    }
    assert_eq!(against(&judged(cleared.to_str().unwrap())), ["environment"]);
    let output = check(of_itself.to_str().unwrap());
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("interpreters"), "{}", said(&output));
}

#[test]
fn static_program_is_not_accelerated_and_runs_over_tcp() {
    let host = Host::new();
    let _monitor = host.monitor();
    let directory = host.directory.path();
    if !compiled(directory, "int main(void) { return 5; }\n", &["-static", "-o", "still"]) {
        println!("not tested: no static C library here");
        return;
    }
    let path = host.path("still");
    assert_eq!(against(&judged(&path)), ["static"]);
    let says = text(&check(&path).stdout);
    assert!(says.contains("not accelerated") && says.contains("is static"), "{says}");
    let output = host.run(&[], &[&path]).output().unwrap();
    assert!(output.status.code() == Some(5) && text(&output.stderr).contains("is static"), "{}", said(&output));
    let output = host.run(&["--require"], &[&path]).output().unwrap();
    assert!(output.status.code() == Some(3) && text(&output.stderr).contains("is not started"), "{}", said(&output));
}

#[test]
fn programs_for_another_machine_or_c_library_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    // 32 bits, of i386; and 64 bits of what nobody knows, cut off.
    for (name, class, machine, says) in [("i386", 1, 3_u16, "i386"), ("other", 2, 0xfffe, "machine 65534")] {
        let mut head =
            [&b"\x7fELF"[..], &[class, 1, 1], &[0; 9], &2_u16.to_le_bytes(), &machine.to_le_bytes()].concat();
        head.resize(64, 0);
        fs::write(at(name), head).unwrap();
        let object = judged(at(name).to_str().unwrap());
        assert_eq!(against(&object), ["architecture"], "{object}");
        assert!(object["findings"][0]["text"].as_str().unwrap().contains(says), "{object}");
    }
    if compiled(directory.path(), EMPTY, &["-o", "musl", "-Wl,--dynamic-linker=/lib/ld-musl-x86_64.so.1"]) {
        let object = judged(at("musl").to_str().unwrap());
        assert!(against(&object) == ["c_library"] && object.to_string().contains("musl"), "{object}");
    } else {
        println!("not tested: no C compiler here");
    }
}

/// What takes io_uring is a library of a library, which lies beside the program.
#[test]
fn io_uring_in_a_library_of_a_library_is_found() {
    let host = Host::new();
    let _monitor = host.monitor();
    let directory = host.directory.path();
    let ring = "int io_uring_queue_init(void) { return 0; }\n";
    let middle = "int io_uring_queue_init(void); int middle(void) { return io_uring_queue_init(); }\n";
    let program = "int middle(void); int main(void) { return middle(); }\n";
    let origin = "-Wl,-rpath,$ORIGIN,--disable-new-dtags,--no-as-needed";
    let all = compiled(directory, ring, &["-shared", "-fPIC", "-o", "libring-of-test.so"])
        && compiled(directory, middle, &["-shared", "-fPIC", "-o", "libmiddle.so", "-L.", "-lring-of-test", origin])
        && compiled(directory, program, &["-o", "program", "-L.", "-lmiddle", origin]);
    if !all {
        println!("not tested: no C compiler here");
        return;
    }
    let path = host.path("program");
    let object = judged(&path);
    assert!(against(&object).is_empty() && object["findings"][0]["code"] == "io_uring", "{object}");
    let text_of = object["findings"][0]["text"].as_str().unwrap();
    assert!(text_of.contains("io_uring_queue_init") && text_of.contains("libmiddle.so"), "{object}");
    // The library has a function of this name, too, and finds this one.
    for (rule, code) in [("tcp", 0), ("files", 0), ("refuse", 218)] {
        let output = host.run(&["--require", "--io-uring", rule], &[&path]).output().unwrap();
        assert!(output.status.code() == Some(code) && output.stderr.is_empty(), "{rule}: {}", said(&output));
    }
    // One that is gone is said.
    fs::remove_file(host.path("libring-of-test.so")).unwrap();
    assert!(judged(&path).to_string().contains("not found, and so not looked at: libring-of-test.so"));
}

#[test]
fn go_program_is_not_accelerated() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("main.go");
    fs::write(&source, "package main\n\nfunc main() {}\n").unwrap();
    let built = Command::new("go")
        .args(["build", "-o", "program", "main.go"])
        .current_dir(directory.path())
        .env("CGO_ENABLED", "0")
        .output();
    if !built.is_ok_and(|output| output.status.success()) {
        println!("not tested: no Go here");
        return;
    }
    let object = judged(directory.path().join("program").to_str().unwrap());
    assert_eq!(against(&object), ["static", "go"], "{object}");
}

#[test]
fn what_is_no_program_is_refused_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| -> PathBuf { directory.path().join(name) };
    fs::write(at("text"), "no program\n").unwrap();
    fs::write(at("cut"), b"\x7fELF\x02\x01\x01").unwrap();
    for (path, says) in [
        (at("none"), "No such file"),
        (at("text"), "neither a program"),
        (at(""), "no file of a program"),
        ("/dev/null".into(), "no file of a program"),
        ("no-program-of-this-name".into(), "in PATH"),
    ] {
        let output = check(path.to_str().unwrap());
        assert!(output.status.code() == Some(2) && text(&output.stderr).contains(says), "{}", said(&output));
    }
    assert_eq!(against(&judged(at("cut").to_str().unwrap())), ["architecture"]);
    let output = fide(&["check", "--pid", "4194305"]).output().unwrap();
    assert!(output.status.code() == Some(2) && text(&output.stderr).contains("no process"), "{}", said(&output));
    assert_eq!(fide(&["check"]).output().unwrap().status.code(), Some(2));
    // A program whose tables are garbage behind a right head.
    let mut broken = fs::read("/bin/sh").unwrap();
    broken[0x20..0x40].fill(0xff);
    fs::write(at("broken"), broken).unwrap();
    let output = check(at("broken").to_str().unwrap());
    assert!(output.status.code() == Some(2) && !text(&output.stderr).contains("panicked"), "{}", said(&output));
}
