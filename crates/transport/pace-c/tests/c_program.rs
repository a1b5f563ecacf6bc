// SPDX-License-Identifier: Apache-2.0
//! C programs build against the header and both libraries, without warnings, and run over the loopback: the example, and the
//! lines of the documentation.

use std::{
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    time::Duration,
};

use fide_pace_socket::{Config, Endpoint, ServerKey};

/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);
const KEY: ServerKey = ServerKey::Secret([7; 32]);

/// A library that cargo has built of this package.
fn library(name: &str) -> PathBuf {
    // target/<profile>/deps/c_program-...: the libraries lie beside it or one level up.
    let test = std::env::current_exe().expect("this test has a path");
    let deps = test.parent().expect("a directory");
    [deps.join(name), deps.with_file_name(name)]
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("cargo builds {name} before the tests of its package"))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().expect("it is there")
}

fn include() -> String {
    format!("-I{}", root().join("crates/transport/pace-c/include").display())
}

fn succeeds(command: &mut Command) -> Output {
    let output = command.output().expect("it can be started");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Builds a program with the static library. Every warning is an error.
fn compile(source: &Path, program: &Path) {
    let mut gcc = Command::new("gcc");
    gcc.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]).arg(source).arg(include());
    succeeds(gcc.arg(library("libfide_pace.a")).args(["-lpthread", "-ldl", "-lm", "-o"]).arg(program));
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn example_sends_and_receives() {
    let dir = tempfile::tempdir().unwrap();
    let (program, key, other) = (dir.path().join("pace"), dir.path().join("key"), dir.path().join("other"));
    compile(&root().join("examples/pace.c"), &program);
    std::fs::write(&key, KEY.to_text() + "\n").unwrap();
    std::fs::write(&other, ServerKey::Secret([8; 32]).to_text()).unwrap();
    let run = |role: &str, address: &str, key: &Path| {
        let mut command = Command::new(&program);
        command.args([role, address]).arg(key);
        command
    };
    let mut receiver = run("recv", "127.0.0.1:0", &key).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(receiver.stdout.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().expect("a line");
    let address = first.strip_prefix("at ").unwrap_or_else(|| panic!("{first}"));

    let wrong = run("send", address, &other).arg("1").output().unwrap();
    let said = text(&wrong.stderr);
    assert!(wrong.status.code() == Some(1) && said.contains("connect: ") && said.contains("another key"), "{said}");

    let sent = succeeds(run("send", address, &key).arg("200"));
    println!("{}", text(&sent.stderr));
    assert!(text(&sent.stderr).contains("slowest: "), "the callback was called");
    let rest: Vec<String> = lines.collect();
    assert!(receiver.wait().unwrap().success());
    assert_eq!(rest[0], "the other end has closed the connection: that was all");
    let (received, lost) = rest[1].split_once(" received, ").expect("two numbers");
    let of = |words: &str| words.split(' ').next().and_then(|word| word.parse::<u64>().ok()).expect("a number");
    assert_eq!(of(received) + of(lost), 200, "{rest:?}");
    println!("{rest:?}");
    assert_eq!(Command::new(&program).output().unwrap().status.code(), Some(2));
}

/// The lines of a language in docs/pace.md.
fn documented(language: &str) -> String {
    let page = std::fs::read_to_string(root().join("docs/pace.md")).expect("it is there");
    let begin = format!("```{language}\n");
    let (_, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("docs/pace.md has no {begin}"));
    rest.split("```").next().expect("an end").to_owned()
}

/// What stands around the lines in a program of a reader.
const AROUND: [&str; 2] = [
    "#include <fide_pace.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
     static void die(const char *why) { fprintf(stderr, \"%s\\n\", why); exit(1); }\n\
     static size_t camera_frame(char *frame) { memset(frame, 7, 1000); return 1000; }\n\
     int main(int argc, char **argv) {\n    const char *key = argv[argc - 1];\n    static char frame[65536];\n",
    "    puts(fide_pace_last_error());\n    return 0;\n}\n",
];

#[test]
fn documented_lines_send_until_the_connection_is_closed() {
    let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), KEY, Config::default()).unwrap();
    let address: SocketAddr = server.local_address().unwrap();
    let lines = documented("c");
    assert!(lines.lines().count() <= 12 && lines.contains("192.0.2.7:7000"), "{lines}");
    let lines = lines.replace("192.0.2.7:7000", &address.to_string());
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("lines.c"), dir.path().join("lines"));
    std::fs::write(&source, [AROUND[0], &lines, AROUND[1]].concat()).unwrap();
    compile(&source, &program);
    let child = Command::new(&program).arg(KEY.to_text()).stdout(Stdio::piped()).spawn().unwrap();
    let connection = server.accept_timeout(LIMIT).unwrap().expect("a client");
    for _ in 0..20 {
        let message = connection.recv_timeout(LIMIT).unwrap().expect("a message");
        assert_eq!(message.bytes, [7; 1000]);
    }
    connection.close("enough frames");
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && text(&output.stdout).contains("enough frames"), "{output:?}");
}

/// In a directory that looks like the root of the repository after `cargo build --release -p fide-pace-c`.
#[test]
fn documented_commands_build_the_example_with_the_shared_library() {
    let dir = tempfile::tempdir().unwrap();
    for part in ["examples", "crates"] {
        symlink(root().join(part), dir.path().join(part)).unwrap();
    }
    let release = dir.path().join("target/release");
    std::fs::create_dir_all(&release).unwrap();
    symlink(library("libfide_pace.so"), release.join("libfide_pace.so")).unwrap();
    for file in ["docs/pace.md", "examples/pace.c"] {
        let page = std::fs::read_to_string(root().join(file)).expect("it is there");
        let at = page.find("gcc examples/pace.c ").unwrap_or_else(|| panic!("{file} has no command"));
        let line = page[at..].lines().next().expect("a line");
        succeeds(Command::new("sh").args(["-c", line]).current_dir(&dir));
        let usage = Command::new(dir.path().join("pace")).env_remove("LD_LIBRARY_PATH").output().unwrap();
        assert!(usage.status.code() == Some(2) && text(&usage.stderr).contains("usage: pace"), "{usage:?}");
        std::fs::remove_file(dir.path().join("pace")).unwrap();
    }
}

#[test]
fn header_is_valid_cxx() {
    let mut gcc = Command::new("gcc");
    gcc.args(["-x", "c++", "-fsyntax-only", "-Wall", "-Wextra", "-Werror"]);
    let output = gcc.arg(root().join("crates/transport/pace-c/include/fide_pace.h")).output().expect("gcc is needed");
    let said = text(&output.stderr);
    // Without a C++ front end there is nothing to check.
    assert!(output.status.success() || said.contains("cc1plus"), "{said}");
}
