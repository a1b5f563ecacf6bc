// SPDX-License-Identifier: Apache-2.0
//! Queueing disciplines, by `tc` of iproute2.

use std::{io, path::Path, process::Command};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The root queueing discipline of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Qdisc {
    /// `pfifo_fast`, `fq_codel`, `mq`, `noqueue`.
    pub kind: String,
    /// Whether the kernel chose it, as opposed to an operator or a tool.
    pub by_default: bool,
}

impl std::fmt::Display for Qdisc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.kind, if self.by_default { " (the kernel's default)" } else { "" })
    }
}

fn tc(arguments: &[&str]) -> io::Result<Vec<u8>> {
    // These directories are not in everybody's PATH.
    let program = ["/usr/sbin/tc", "/sbin/tc"].into_iter().find(|path| Path::new(path).exists()).unwrap_or("tc");
    let output = Command::new(program).args(arguments).output().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), "`tc` is not installed (package iproute2)"),
        _ => error,
    })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(io::Error::other(format!("`tc {}`: {said}", arguments.join(" "))))
}

pub(super) fn show(interface: &str) -> io::Result<Qdisc> {
    parse(&tc(&["-j", "qdisc", "show", "dev", interface])?)
}

pub(super) fn set(interface: &str, kind: Option<&str>) -> io::Result<()> {
    let done = match kind {
        Some(kind) => tc(&["qdisc", "replace", "dev", interface, "root", kind]),
        None => tc(&["qdisc", "del", "dev", interface, "root"]),
    };
    done.map(drop)
}

fn parse(json: &[u8]) -> io::Result<Qdisc> {
    let list: Value = serde_json::from_slice(json)?;
    let root = list.as_array().into_iter().flatten().find(|qdisc| qdisc["root"] == Value::Bool(true));
    match root.map(|root| (root["kind"].as_str(), root["handle"].as_str())) {
        Some((Some(kind), handle)) => Ok(Qdisc { kind: kind.to_owned(), by_default: handle == Some("0:") }),
        _ => Err(io::Error::other("`tc` names no root queueing discipline")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_found_among_others() {
        let json = br#"[{"kind":"clsact","handle":"ffff:","parent":"ffff:fff1"},
            {"kind":"mq","handle":"0:","root":true},{"kind":"fq_codel","handle":"0:","parent":":1"}]"#;
        assert_eq!(parse(json).expect("a root"), Qdisc { kind: "mq".into(), by_default: true });
        assert!(parse(b"[]").is_err());
        assert!(parse(b"garbage").is_err());
    }
}
