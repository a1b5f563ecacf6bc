// SPDX-License-Identifier: Apache-2.0
//! The meaning of every key of the controller's file. Tests compare it with what is read.

use fide_types::config_key::{
    Default::{Otherwise, Required, Value},
    Key, key,
};

/// Every key, table by table.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key("[controller]", "listen", "string, ADDRESS:PORT", Required, "Where agents and operators reach this controller."),
    key("[controller]", "credentials", "string, a directory", Required, "This controller's certificate, its key and the authority: a directory made by `fide controller init` or `issue`. Paths are relative to the file's directory."),
    key("[controller]", "revoked", "string, a file", Otherwise("no certificate is withdrawn"), "Certificates that are not let in any more, as `fide controller revoke` lists them."),
    key("[controller]", "store", "string, a file", Otherwise("[etcd] is needed"), "Where decisions are kept by a controller that runs alone. Give this or [etcd]."),
    key("[controller]", "topology", "string, a file", Required, "Hosts, switches, cables and limits, as `fide plan` reads them and `fide controller discover --out` writes them."),
    key("[controller]", "without_redundancy", "\"continue\" or \"stop\"", Value("\"continue\""), "What becomes of a lane with a tree that broke while no other can be found: it goes on with fewer trees, or ends."),
    key("[controller]", "grace_ms", "integer, ms, at most a day", Value("50"), "How long the old contract of a lane holds after its hosts heard of a new one."),
    key("[controller]", "gather_ms", "integer, ms, at most a day", Value("3"), "How long reports of other hosts are waited for after the first one, before the faulty cable is looked for."),
    key("[controller]", "suspicion_ms", "integer, ms, at most a day", Value("30000"), "After this time a cable that was only suspected is used again."),
    key("[controller]", "retry_ms", "integer, ms, 1 to a day", Value("1000"), "Time between two attempts to find another tree for a lane that lacks one."),
    key("[controller]", "offences_max", "integer, at least 1", Value("3"), "Reports of packets beyond the contract after which a lane is ended."),
    key("[controller]", "unused_reports", "integer, at least 1", Value("10"), "Reports in a row of a lane used below half, after which half of it is taken back."),
    key("[controller]", "heartbeat_min_us", "integer, us, at least 1", Value("20"), "The shortest period of heartbeats that a host is granted."),
    key("[controller]", "cables_ms", "integer, ms, at most 600000", Value("3000"), "How long the controller listens at its start to what is cabled; 0 does not listen."),
    key("[controller]", "audit_ms", "integer, ms, at least 10", Value("5000"), "Time between two comparisons of each switch with what it should have."),
    key("[controller]", "sub_lanes", "array of arrays of DSCP numbers", Value("[[56], [46]]"), "The DSCP values of each queue of the lane, the highest priority first."),
    key("[etcd]", "endpoints", "array of URLs", Required, "Members of the etcd cluster in which several controllers keep one state and elect a leader."),
    key("[etcd]", "prefix", "string", Value("\"/fide\""), "Prefix of all keys in etcd."),
    key("[etcd]", "ttl_s", "integer, s, at least 2", Value("3"), "How long a crash of the leader goes unnoticed."),
    key("[etcd]", "timeout_ms", "integer, ms, at least 1", Value("1000"), "How long etcd may take to answer."),
    key("[etcd]", "advertise", "string, ADDRESS:PORT", Otherwise("`listen` of [controller]"), "Where agents reach this controller, as other controllers tell them."),
    key("[etcd]", "authorities", "string, a PEM file", Otherwise("etcd is called without TLS"), "Authorities that etcd's certificate is checked against."),
    key("[etcd]", "certificate", "string, a PEM file", Otherwise("no certificate is shown"), "Certificate shown to etcd; give `key` with it."),
    key("[etcd]", "key", "string, a PEM file", Otherwise("no certificate is shown"), "Private key of `certificate`."),
    key("[[switch]]", "name", "string", Required, "The switch's name in the topology."),
    key("[[switch]]", "driver", "\"linux\" or \"ovs\"", Required, "A bridge of the Linux kernel, or an OpenFlow switch."),
    key("[[switch]]", "bridge", "string", Otherwise("refused with driver = \"linux\""), "Name of the bridge, for driver = \"linux\"."),
    key("[[switch]]", "target", "string", Otherwise("refused with driver = \"ovs\""), "The switch as ovs-ofctl names it, for driver = \"ovs\"."),
    key("[[switch]]", "netns", "string, a file", Otherwise("the controller's own"), "Network namespace of the switch."),
    key("[[switch]]", "rate_bps", "integer, bit/s", Otherwise("queues are not shaped"), "Rate of the switch's ports, where queues are to form in it."),
];
