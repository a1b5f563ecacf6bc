// SPDX-License-Identifier: Apache-2.0
//! The meaning of every key of `fide.toml`. Tests compare it with what is read.

use fide_types::config_key::{
    Default::{Otherwise, Required, Value},
    Key, key,
};

/// Every key, table by table. Drop-ins may have `[cluster]`, `[agent]`, `[[name]]` and `[limits]`.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key("[cluster]", "name", "string", Value("\"fide\""), "Name of the cluster. Hosts of another name are not heard."),
    key("[cluster]", "key_file", "string, a file", Required, "The cluster's key: 32 hexadecimal digits in a file of mode 0400, the same on all hosts; `fide agent --make-key FILE` makes one. Relative to the directory of fide.toml. A file that changes is read again."),
    key("[cluster]", "trust", "\"lease\" or \"network\"", Value("\"lease\""), "When a silence is acted on: once the lease of the silent host has run out, or after the timeout alone, as the FiDe paper does on networks that bound every delay. The same on all hosts."),
    key("[cluster]", "policy", "\"majority\" or \"network\"", Value("\"majority\""), "Who may go on after a silence: a majority of the last agreed view, or every host by its own judgement. The same on all hosts."),
    key("[cluster]", "heartbeat_us", "integer, us, 20 to 1000000", Value("1000"), "Time between two heartbeats. The same on all hosts."),
    key("[cluster]", "timeout_us", "integer, us, above heartbeat_us, an hour at most", Otherwise("computed from what this host was measured to hold"), "After this silence this host suspects another. A timeout that this host was measured not to hold is refused; --force-timeout takes it."),
    key("[cluster]", "drift_ppm", "integer, parts per million, 1 to 99999", Value("200"), "By how much one host's clock may run faster than another's; leases are shorter by as much."),
    key("[cluster]", "port", "integer, 1 to 65535", Value("7411"), "UDP port of heartbeats, the same on all hosts."),
    key("[cluster]", "key_overlap_ms", "integer, ms, a day at most", Value("10000"), "How long a new key is accepted before it is used, and the old one after it is not used any more."),
    key("[[plane]]", "group", "string, an IPv4 multicast address", Otherwise("heartbeats are sent to each member"), "Multicast group of the plane, another for each plane. Not with [controller]."),
    key("[[plane]]", "windows", "string, a directory", Otherwise("the plane is a network"), "Heartbeats go through memory that each two hosts map: a file for each pair in this directory, NAME+NAME in the order of the members. Such planes follow those of networks. Relative to the directory of fide.toml. Not with group or [controller]."),
    key("[[member]]", "name", "string, 1 to 31 of A-Za-z0-9._-", Required, "Name of the host. Its id is its position in the file, from 1."),
    key("[[member]]", "addresses", "array of IPv4 addresses", Required, "The host's address on each plane, in the order of the planes. Planes of windows have none, and without another plane addresses are left out."),
    key("[[member]]", "role", "\"voter\", \"observer\" or \"witness\"", Value("\"voter\""), "A voter counts in majorities; an observer monitors others and is monitored by nobody; a witness runs `fide witness`, a vote for two others."),
    key("[[member]]", "monitors", "array of member names", Otherwise("all other voters and the witness"), "Hosts that this one monitors."),
    key("[agent]", "mode", "\"sleep\" or \"busy\"", Value("\"sleep\""), "How the loop waits: it blocks, or spins with short breaks."),
    key("[agent]", "core", "integer", Otherwise("the highest core that the agent may use"), "Core of the agent's loop."),
    key("[agent]", "receive", "\"auto\", \"xdp\", \"xdp-generic\", \"af-packet\" or \"udp\"", Value("\"auto\""), "How heartbeats are received; `auto` takes the best that works, anything else is refused where it does not."),
    key("[agent]", "exit_watch", "\"auto\", \"bpf\" or \"pidfd\"", Value("\"auto\""), "How the end of a process is noticed: by the kernel's exit hook, or by a pidfd for each process."),
    key("[agent]", "calibrate_ms", "integer, ms, 1 to 60000", Value("500"), "How long the agent measures its own lateness at its start, unless `fide doctor` or `fide jitter ping --bound` has stored a bound."),
    key("[agent]", "runtime_dir", "string, a directory", Value("\"/run/fide\""), "Directory of the socket, agent.sock."),
    key("[agent]", "state_dir", "string, a directory", Value("\"/var/lib/fide\""), "Directory of what must survive a restart."),
    key("[agent]", "unlisted_names", "\"anyone\" or \"nobody\"", Value("\"anyone\""), "Who may join under a name that no [[name]] is about: any user, whose the name then is while the agent runs, or only root and the agent's own user."),
    key("[[name]]", "pattern", "string, a name in which * stands for any characters", Required, "Names that this section is about; of several sections that fit a name each lets in its users."),
    key("[[name]]", "users", "array of user names", Value("[]"), "Users who may join under such a name. Users that this host does not know are left out."),
    key("[[name]]", "groups", "array of group names", Value("[]"), "Groups whose members may; give users, groups or both."),
    key("[limits]", "connections", "integer", Otherwise("half of those that are left for users"), "Connections that one user may have to this agent."),
    key("[limits]", "sessions", "integer", Otherwise("half of those that are left for users"), "Sessions that one user may have: one for each program that joins or watches."),
    key("[limits]", "watches", "integer", Otherwise("half of those that are left for users"), "Watches that one user may have."),
    key("[limits]", "processes", "integer", Otherwise("half of those that are left for users"), "Processes that one user may have under watch."),
    key("[limits]", "lanes", "integer", Otherwise("half of those that are left for users"), "Lanes that one user may have."),
    key("[limits]", "only_root", "boolean", Otherwise("false: an eighth of everything is kept for users that have none yet"), "Only root runs programs here, so that nothing is kept for other users."),
    key("[controller]", "addresses", "array of ADDRESS:PORT, 1 to 8", Required, "Controllers that plan the trees of heartbeats and lanes, in the order in which they are tried. Without this section no trees are planned."),
    key("[controller]", "credentials", "string, a directory", Required, "This host's certificate, its key and the authority: a directory made by `fide controller issue`. Relative to the directory of fide.toml."),
    key("[controller]", "packet_max_bytes", "integer, bytes", Value("1472"), "The largest payload of a heartbeat, which the network is asked for. Less leaves more to others."),
    key("[controller]", "salvage", "boolean", Value("false"), "Programs are given the whole chunks of damaged packets, which are not authenticated: only for networks that nobody else can send to."),
];
