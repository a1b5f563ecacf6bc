// SPDX-License-Identifier: Apache-2.0
//! A shell that prints.

use super::*;
use std::process::{Child, Command, Stdio};

struct Shell(Child);

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn shell(script: &str) -> (Shell, Lines) {
    let child = Command::new("/bin/sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let mut child = child.expect("a shell");
    let lines = Lines::of(child.stdout.take().expect("piped"));
    (Shell(child), lines)
}

#[test]
fn lines_come_whole_and_end_with_the_output() {
    let (_shell, lines) = shell("printf 'a\\nb'; sleep 0.05; printf 'c\\r\\n\\nlast'");
    assert_eq!(lines.collect::<Vec<_>>(), ["a", "bc", "", "last"]);
    let (_shell, mut lines) = shell("echo one; echo the second; echo three; echo four");
    assert_eq!(lines.find_words("second"), "the second");
    assert_eq!(lines.rest(), "three\nfour\n");
    assert_eq!(lines.read().expect("read"), None);
}

#[test]
fn missing_line_is_an_error_with_earlier_lines() {
    let (_shell, lines) = shell("echo ready; printf half; cat");
    let mut lines = lines.within(Duration::from_millis(100));
    assert_eq!(lines.next().as_deref(), Some("ready"));
    let error = lines.read().expect_err("the shell waits").to_string();
    assert!(error.contains("ready") && error.contains("half") && error.contains("100 ms"), "{error}");
}

#[test]
#[should_panic(expected = "no line with \"absent\"")]
fn endless_output_without_the_words_reaches_the_limit() {
    let (_shell, lines) = shell("while :; do echo again || exit; done");
    lines.within(Duration::from_millis(100)).find_words("absent");
}

#[test]
#[should_panic(expected = "does not end")]
fn endless_output_reaches_the_limit() {
    let (_shell, lines) = shell("echo ready; cat");
    lines.within(Duration::from_millis(100)).rest();
}

#[test]
fn dropping_it_closes_the_pipe() {
    let (mut shell, lines) = shell("read word; trap '' PIPE; echo heard 2> /dev/null || exit 7");
    drop(lines);
    drop(shell.0.stdin.take());
    assert_eq!(shell.0.wait().expect("ended").code(), Some(7));
}
