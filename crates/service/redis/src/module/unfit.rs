// SPDX-License-Identifier: Apache-2.0
//! Servers that are not started in a group, as they would differ from the others.

use super::{ERRORS, call};
use crate::redis::{Ctx, server_version};

/// Why this server may not be in a group; none if it may. `allowed`: names of other modules that it may have. `config`:
/// the value of a setting.
pub(super) fn why(ctx: Ctx, allowed: &[String], config: impl Fn(&str) -> Vec<u8>) -> Option<String> {
    if let Some(why) = why_version(server_version()) {
        return Some(why);
    }
    if config("cluster-enabled") == b"yes" {
        return Some(
            "cluster-enabled yes: this server is part of a group, not of a Redis Cluster; leave it off".to_owned(),
        );
    }
    if !config("replicaof").is_empty() {
        return Some("replicaof: the group decides who follows whom; remove it from redis.conf".to_owned());
    }
    let modules = call(ctx, ERRORS, &[b"INFO", b"modules"]).value();
    let modules = modules.bytes().map(String::from_utf8_lossy).unwrap_or_default();
    if let Some(name) = others(&modules, |field| field("filters") != Some("0")).next() {
        return Some(format!(
            "the module {name} filters commands, too: Redis shows it what this module executes for clients and what the replication link \
             brings a second time, so servers would differ; load one of the two"
        ));
    }
    let name = others(&modules, |_| true).find(|name| !allowed.iter().any(|allowed| allowed == name))?;
    Some(format!(
        "the module {name} is loaded, too: what it changes by itself (in a thread, a timer, or a command that Redis does not know for a \
         write) would not be replicated, and what waits in the same turn would be answered too early if it calls RedisModule_Yield. If \
         it does neither, allow it: loadmodule fide_redis.so ... other-modules {name}"
    ))
}

/// A module has a thread that calls commands, which only the loop of Redis may do: nobody would replicate them.
pub(super) fn end_for_another_thread() -> ! {
    Ctx(std::ptr::null_mut()).log(
        c"warning",
        "a thread of another module calls commands of this server, which are not replicated: this server ends, so that it answers \
         nothing that the others do not have; load that module elsewhere",
    );
    std::process::exit(1);
}

/// Versions of Redis whose commands, options and order of events this module knows, the first and the last.
const KNOWN: [(u8, u8); 2] = [(7, 0), (7, 2)];

/// A later version may have options that are replicated wrongly, fields that expire, and threads that answer before
/// the group has agreed.
fn why_version(version: (u8, u8)) -> Option<String> {
    let [(first, of_first), (last, of_last)] = KNOWN;
    (!(KNOWN[0]..=KNOWN[1]).contains(&version)).then(|| {
        format!(
            "this is Redis {}.{}, and this module knows {first}.{of_first} to {last}.{of_last}: what later ones do would not be \
             replicated as it is done; run one of those",
            version.0, version.1
        )
    })
}

/// The version of this Redis' dumps. 0 if it does not say: then it follows no server that does.
pub(super) fn rdb_version(ctx: Ctx) -> u16 {
    call(ctx, ERRORS, &[b"FUNCTION", b"DUMP"]).value().bytes().and_then(version_of_dump).unwrap_or(0)
}

/// What `DUMP` and `FUNCTION DUMP` return ends with the version and a checksum.
fn version_of_dump(dump: &[u8]) -> Option<u16> {
    let (rest, _checksum) = dump.split_last_chunk::<8>()?;
    rest.split_last_chunk().map(|(_, version)| u16::from_le_bytes(*version))
}

/// The names of other modules of which `is_such` is true, from INFO's section `modules`. It is given what looks up a
/// field.
fn others<'a>(
    info: &'a str,
    is_such: impl Fn(&dyn Fn(&str) -> Option<&'a str>) -> bool,
) -> impl Iterator<Item = &'a str> {
    info.lines().filter_map(move |line| {
        let fields = line.strip_prefix("module:")?;
        let field = |name: &str| fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
        let name = field("name")?;
        (name != super::NAME && is_such(&field)).then_some(name)
    })
}

/// Settings that each server needs: only the leader evicts keys; scripts are never interrupted by clients that would
/// see what is not decided; nobody else is waited for before a server that joins is sent the data; no server has
/// replicas that Redis could count, or wait for at its end; and a follower that cannot do what the leader has done ends.
pub(super) const SETTINGS: [(&str, &str); 8] = [
    ("busy-reply-threshold", "0"),
    ("replica-read-only", "yes"),
    ("replica-ignore-maxmemory", "yes"),
    ("replica-ignore-disk-write-errors", "yes"),
    ("repl-diskless-sync-delay", "0"),
    ("min-replicas-to-write", "0"),
    ("shutdown-timeout", "0"),
    (ON_ERROR, PANIC),
];

/// What a server does where a command of its link fails (a setting that Redis does not list).
pub(super) const ON_ERROR: &str = "propagation-error-behavior";
pub(super) const PANIC: &str = "panic-on-replicas";

/// Whether `CONFIG SET` may change a setting to this value; otherwise the only value that it may have, and why.
/// `is_durable`: the group has a log on disk.
pub(super) fn check(name: &str, value: &[u8], is_durable: bool) -> Result<(), (&'static str, &'static str)> {
    let wanted = match name {
        "busy-reply-threshold" | "lua-time-limit" => {
            ("0", "while a script runs, nobody may see what it has written so far")
        }
        "replica-ignore-maxmemory" | "slave-ignore-maxmemory" => {
            ("yes", "a follower that refuses what the leader has written would differ from it")
        }
        "replica-ignore-disk-write-errors" => {
            ("yes", "a follower that ends because its own dump fails has what the group decided all the same")
        }
        "replica-read-only" | "slave-read-only" => ("yes", "a follower that takes writes would differ from the others"),
        "min-replicas-to-write" | "min-slaves-to-write" => (
            "0",
            "each write is at all live servers before it is answered, and Redis, which counts other replicas, would refuse all",
        ),
        "shutdown-timeout" => (
            "0",
            "a server that is to end would hold up all writes until one that joins has caught up; the others have them already",
        ),
        ON_ERROR => (PANIC, "a follower on which a command of the leader has failed differs from the others"),
        "replicaof" | "slaveof" => ("", "the group decides who follows whom"),
        "port" | "tls-port" => (
            "",
            "the other servers look for this one where they are themselves; change it on all of them, in redis.conf",
        ),
        "protected-mode" => (
            "no",
            "without a password the other servers could not take over this one's data; with one (requirepass, and masterauth on all) it has no effect",
        ),
        "tls-replication" => ("no", "the link between this module and its own server is not encrypted"),
        "hll-sparse-max-bytes" => (
            "",
            "the bytes of a HyperLogLog depend on it, so it has to be the same on all servers; change it in redis.conf",
        ),
        "save" if is_durable => ("", "only the group's own dumps are of use to it"),
        "dir" | "dbfilename" if is_durable => ("", "the group's log takes its dumps from where they were at the start"),
        _ => return Ok(()),
    };
    if value.eq_ignore_ascii_case(wanted.0.as_bytes()) { Ok(()) } else { Err(wanted) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_modules_are_found_in_info() {
        let info = "# Modules\r\nmodule:name=fide,ver=1,api=1,filters=1,usedby=[],using=[],options=[]\r\n\
                    module:name=plain,ver=1,api=1,filters=0,usedby=[],using=[],options=[]\r\n\
                    module:name=other,ver=1,api=1,filters=2,usedby=[],using=[],options=[]\r\n";
        assert!(others(info, |_| true).eq(["plain", "other"]));
        assert!(others(info, |field| field("filters") != Some("0")).eq(["other"]));
    }

    #[test]
    fn version_of_a_dump_is_before_its_checksum() {
        // Of Redis 7.0: FUNCTION DUMP without functions, and DUMP of "v".
        assert_eq!(version_of_dump(b"\x0a\x00]\x9b\\@\x0f\x7f\xa2\xda"), Some(10));
        assert_eq!(version_of_dump(b"\x00\x01v\x0a\x00\x91\x08\xce\xb2\x198\x8a\xce"), Some(10));
        assert_eq!(version_of_dump(b"short"), None);
    }

    #[test]
    fn unknown_versions_are_refused_by_name() {
        assert!([(7, 0), (7, 2)].into_iter().all(|version| why_version(version).is_none()));
        for (version, text) in [((6, 2), "Redis 6.2"), ((7, 4), "Redis 7.4"), ((8, 0), "Redis 8.0")] {
            assert!(why_version(version).unwrap().contains(text));
        }
    }

    #[test]
    fn settings_that_servers_need_may_be_set_to_what_they_are() {
        for (name, value) in SETTINGS {
            assert!(check(name, value.as_bytes(), true).is_ok(), "{name}");
        }
        assert!(check("maxmemory", b"100mb", true).is_ok());
        assert!(check("save", b"60 1", false).is_ok() && check("save", b"60 1", true).is_err());
        assert!(check("tls-replication", b"NO", false).is_ok() && check("tls-replication", b"yes", false).is_err());
        assert_eq!(check("min-replicas-to-write", b"1", false).unwrap_err().0, "0");
    }
}
