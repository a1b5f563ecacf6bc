// SPDX-License-Identifier: Apache-2.0
use super::*;

fn all(lines: &[&str]) -> Said {
    let mut said = Said::default();
    lines.iter().for_each(|line| said.line(line).unwrap());
    said
}

#[test]
fn lines_of_the_program_become_figures() {
    let said = all(&[
        "time rtt8_tcp 60000 90000",
        "time rtt8_redirected 30000 45000",
        "rate stream64k_tcp 20.5",
        "end splice tcp 5",
        "end splice redirected EAGAIN",
        "end half_close tcp 5, 0, 7",
        "end half_close redirected 5, 0, 7",
    ]);
    let figure = said.beside("ratio", "rtt8_redirected", "rtt8_tcp", "us");
    assert_eq!((figure.value, figure.ratio), (Some(30.0), Some(0.5)));
    assert_eq!(said.of("rtt8_tcp_p99"), [90.0]);
    assert_eq!(said.wrong(), ["splice"]);
}

#[test]
fn what_the_kernel_refuses_is_unmeasured() {
    let said = all(&["time rtt8_tcp 60000 90000", "unmeasured redirected attaching to the control group: EPERM"]);
    let figure = said.beside("ratio", "rtt8_redirected", "rtt8_tcp", "us");
    assert_eq!((figure.value, figure.why.as_deref()), (None, Some("attaching to the control group: EPERM")));
    assert!(Said::default().line("nonsense").is_err());
}
