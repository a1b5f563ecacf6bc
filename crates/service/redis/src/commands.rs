// SPDX-License-Identifier: Apache-2.0
//! What each command is to the group, from what the server itself says of its commands.

use std::collections::HashMap;

use crate::{resp::Value, rules::Rule};

/// Longest name of a command that is looked up, with its subcommand.
const NAME_MAX: usize = 48;

/// What a command is to the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It neither reads nor writes data: it runs as without the group.
    Free,
    /// It reads data.
    Read,
    /// It writes data.
    Write(Rule),
    /// A script or function: what it writes is seen command by command.
    Script,
    /// SCRIPT EXISTS: what the leader knows counts, as it executes scripts.
    ScriptExists,
    /// Begins a transaction.
    Multi,
    /// Ends a transaction.
    Exec,
    /// FIDE.ONCE: a write with a number.
    Once,
    /// WAIT.
    Wait,
    /// CLIENT PAUSE: it holds up what the replication link brings, too.
    Pause,
    /// CLIENT KILL.
    Kill,
    /// ROLE.
    Role,
    /// It changes the configuration.
    Config,
    /// ACL SETUSER: the user may also execute what this module puts in front of commands.
    SetUser,
    /// ACL LOAD: the same for all users.
    LoadUsers,
    /// DEBUG: some of its subcommands change data.
    Debug,
    /// Another server asks for this one's data.
    Sync,
    /// Its client is sent from then on what others do.
    Listen,
    /// Refused, as this says.
    Refused(&'static str),
}

/// What Redis checks by a command's flags before it executes it. The command that is put in front has the same
/// flags, so that Redis checks them also for transactions and scripts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Checks {
    /// Refused where `maxmemory` is reached (`denyoom`).
    pub memory: bool,
    /// Refused in scripts (`noscript`).
    pub scripts: bool,
    /// No check: an event of its first key tells whenever such a write has changed anything, it is replicated as it
    /// is, and nobody waits for it.
    pub told: bool,
    /// No check of this: Redis refuses it on a replica, but for its master. PFCOUNT, PUBLISH and SCRIPT LOAD, which
    /// have to be replicated as well, it does not.
    pub is_refused_on_replicas: bool,
}

/// Writes of one key that are told of, whatever their words are.
const TOLD: [&str; 29] = [
    "append", "decr", "decrby", "getdel", "getset", "hdel", "hincrby", "hmset", "hset", "hsetnx", "incr", "incrby",
    "linsert", "lpop", "lpush", "lpushx", "lrem", "lset", "rpop", "rpush", "rpushx", "sadd", "setbit", "setnx",
    "setrange", "srem", "zadd", "zincrby", "zrem",
];
/// The same, with so many words: SET without options, and one key to be deleted.
const TOLD_SHORT: [(&str, usize); 3] = [("set", 3), ("del", 2), ("unlink", 2)];

const NONE: Checks = Checks { memory: false, scripts: false, told: false, is_refused_on_replicas: false };

impl Checks {
    /// All there are, in the order of [`Checks::index`].
    pub const ALL: [Self; 4] = [
        Self { memory: false, scripts: false, ..NONE },
        Self { memory: true, scripts: false, ..NONE },
        Self { memory: false, scripts: true, ..NONE },
        Self { memory: true, scripts: true, ..NONE },
    ];

    fn of(flags: &[&str]) -> Self {
        let has = |flag| flags.contains(&flag);
        let (memory, scripts, is_refused_on_replicas) = (has("denyoom"), has("noscript"), has("write"));
        Self { memory, scripts, told: false, is_refused_on_replicas }
    }

    /// Its place in [`Checks::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.memory) | usize::from(self.scripts) << 1
    }
}

/// Which words of a command are keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Places {
    first: usize,
    /// Negative: counted from the end.
    last: i64,
    step: usize,
}

impl Places {
    /// Whether the word at `at` of `count` words is a key.
    #[must_use]
    pub fn holds(self, at: usize, count: usize) -> bool {
        let whole = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let last = if self.last < 0 { whole(count) + self.last } else { self.last };
        at >= self.first && whole(at) <= last && (at - self.first).is_multiple_of(self.step)
    }
}

/// Which keys a command names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keys {
    /// It neither reads nor writes any.
    None,
    At(Places),
    /// Any word after the first may be one.
    AnyWord,
    /// It may read or write keys that it does not name.
    All,
}

fn keys_of(name: &str, flags: &[&str], places: &[Value], has_subcommands: bool) -> Keys {
    match name {
        // Of the log: a database, a position, messages, scripts.
        "select" | "ping" | "publish" | "spublish" | "script" | "fide.applied" => return Keys::None,
        "xgroup" => return Keys::AnyWord,
        _ => {}
    }
    let number = |at: usize| places.get(at).and_then(Value::integer).unwrap_or(0);
    let (first, step) = (usize::try_from(number(0)).unwrap_or(0), usize::try_from(number(2)).unwrap_or(0));
    if flags.contains(&"movablekeys") {
        Keys::AnyWord
    } else if first == 0 || step == 0 || has_subcommands {
        Keys::All
    } else {
        Keys::At(Places { first, last: number(1), step })
    }
}

/// A command of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Command {
    class: Class,
    checks: Checks,
    keys: Keys,
    /// Its number of words; negative: at least so many.
    arity: i64,
    has_subcommands: bool,
    /// It is told of ([`Checks::told`]) where it has so many words; 0: however many it has.
    told: Option<usize>,
}

/// The server's commands.
#[derive(Debug, Clone, Default)]
pub struct Commands {
    by_name: HashMap<Vec<u8>, Command>,
}

/// Commands that would make replicas differ, or that take a server out of the hands of its group.
const REFUSED: &[(&str, &str)] = &[
    ("replicaof", "the group decides who follows whom; FIDE.LEAVE takes this server out of it"),
    ("slaveof", "the group decides who follows whom; FIDE.LEAVE takes this server out of it"),
    ("failover", "the group decides who leads"),
    ("cluster", "this server is part of a group, not of a Redis Cluster"),
    ("migrate", "it writes to another server too; use DUMP and RESTORE"),
    (
        "waitaof",
        "what is answered is held by all live servers already, with `durable disk` also on most disks; WAIT says by how many others",
    ),
    ("restore-asking", "it belongs to Redis Cluster"),
    ("module|load", "its writes would not be replicated; load it in redis.conf, and allow it there by `other-modules`"),
    (
        "module|loadex",
        "its writes would not be replicated; load it in redis.conf, and allow it there by `other-modules`",
    ),
    (
        "script|debug",
        "its debugger shows what the group has not agreed on, and its process outlives the server; debug at a server without this module",
    ),
    ("config|rewrite", "the settings of this server's replication link are not to be kept"),
    (
        "module|unload",
        "without this module the server would answer what the group has not agreed on; end the server instead",
    ),
];

fn class_of(name: &str, flags: &[&str]) -> Class {
    let base = name.split('|').next().unwrap_or(name);
    if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == name || *refused == base) {
        return Class::Refused(why);
    }
    match name {
        "multi" => return Class::Multi,
        "exec" => return Class::Exec,
        "wait" => return Class::Wait,
        "role" => return Class::Role,
        "client|pause" => return Class::Pause,
        "client|kill" => return Class::Kill,
        "fide.once" => return Class::Once,
        "config|set" => return Class::Config,
        "acl|setuser" => return Class::SetUser,
        "acl|load" => return Class::LoadUsers,
        "psync" | "sync" => return Class::Sync,
        "subscribe" | "psubscribe" | "ssubscribe" | "monitor" | "client|tracking" => return Class::Listen,
        "debug" => return Class::Debug,
        "script|exists" => return Class::ScriptExists,
        "function|list" | "function|dump" => return Class::Read,
        "eval" | "evalsha" | "fcall" | "eval_ro" | "evalsha_ro" | "fcall_ro" => return Class::Script,
        _ => {}
    }
    if name.starts_with("fide.") || name == "sentinel" {
        return Class::Free;
    }
    match Rule::of(name).or_else(|| Rule::of(base)) {
        // Subcommands of XGROUP and the like that only read.
        Some(_) if name != base && flags.contains(&"readonly") => Class::Read,
        Some(rule) => Class::Write(rule),
        None if flags.contains(&"write") => Class::Refused("this module does not know how to replicate it"),
        None if flags.contains(&"readonly") => Class::Read,
        None => Class::Free,
    }
}

/// Whether a subcommand of DEBUG shows the value of a key that it names.
fn reads_key(subcommand: &[u8]) -> bool {
    const READS: [&str; 6] = ["digest-value", "htstats-key", "listpack", "object", "quicklist", "sdslen"];
    READS.iter().any(|name| subcommand.eq_ignore_ascii_case(name.as_bytes()))
}

/// Whether another subcommand of DEBUG changes no data. Keys that are not looked for when they expire (SET-ACTIVE-EXPIRE)
/// are still deleted everywhere when somebody asks for them.
fn is_harmless(subcommand: &[u8]) -> bool {
    const HARMLESS: [&str; 10] = [
        "digest",
        "help",
        "htstats",
        "log",
        "protocol",
        "quicklist-packed-threshold",
        "set-active-expire",
        "sleep",
        "stringmatch-len",
        "structsize",
    ];
    HARMLESS.iter().any(|name| subcommand.eq_ignore_ascii_case(name.as_bytes()))
}

/// Whether a write is answered with a double or a set in RESP3, which RESP2 does not have.
#[must_use]
pub fn differs_in_resp3(args: &[&[u8]]) -> bool {
    const DOUBLES: [&str; 6] = ["zincrby", "zpopmin", "zpopmax", "zmpop", "georadius", "georadiusbymember"];
    let Some(name) = args.first() else { return false };
    let is = |word: &[u8], text: &str| word.eq_ignore_ascii_case(text.as_bytes());
    DOUBLES.iter().any(|double| is(name, double))
        || is(name, "spop") && args.len() > 2
        || is(name, "zadd") && args.iter().skip(2).any(|arg| is(arg, "incr"))
}

impl Commands {
    /// From the reply of `COMMAND`.
    #[must_use]
    pub fn new(reply: &Value) -> Self {
        let mut commands = Self::default();
        for command in reply.list() {
            commands.add(command);
        }
        commands
    }

    fn add(&mut self, command: &Value) {
        let [name, arity, flags, rest @ ..] = command.list() else { return };
        let (Some(name), Some(arity)) = (name.bytes(), arity.integer()) else { return };
        let subcommands = rest.get(6).map(Value::list).unwrap_or_default();
        let places = rest.get(..3).unwrap_or_default();
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let flags: Vec<&str> = flags.list().iter().filter_map(|flag| std::str::from_utf8(flag.bytes()?).ok()).collect();
        let (class, checks, has_subcommands) = (class_of(&name, &flags), Checks::of(&flags), !subcommands.is_empty());
        let keys = keys_of(&name, &flags, places, has_subcommands);
        let short = TOLD_SHORT.iter().find(|(told, _)| *told == name).map(|(_, count)| *count);
        let told = short.or_else(|| TOLD.contains(&&*name).then_some(0));
        let command = Command { class, checks, keys, arity, has_subcommands, told };
        self.by_name.insert(name.into_bytes(), command);
        subcommands.iter().for_each(|sub| self.add(sub));
    }

    /// Whether there is any: not before the server was asked.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The class of a command of `count` words. A command that does not exist, or has too few or too many
    /// words, is [`Class::Free`]: Redis itself says so.
    #[must_use]
    pub fn class(&self, name: &[u8], subcommand: Option<&[u8]>, count: usize) -> Class {
        self.look(name, subcommand, count).0
    }

    /// The class of a command, as [`Commands::class`], and what Redis checks before it executes it.
    #[must_use]
    pub fn look(&self, name: &[u8], subcommand: Option<&[u8]>, count: usize) -> (Class, Checks) {
        let mut buffer = [0; NAME_MAX];
        let Some(command) = self.find(&mut buffer, name, subcommand) else { return (Class::Free, Checks::default()) };
        let told = command.told.is_some_and(|told| told == 0 || told == count);
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        let fits = if command.arity < 0 { count >= -command.arity } else { count == command.arity };
        let class = match command.class {
            _ if !fits => Class::Free,
            // PFCOUNT of one key stores the count there; of several it changes nothing.
            Class::Write(_) if count > 2 && name.eq_ignore_ascii_case(b"pfcount") => Class::Read,
            Class::Debug if subcommand.is_some_and(reads_key) => Class::Read,
            Class::Debug if subcommand.is_some_and(is_harmless) => Class::Free,
            Class::Debug => Class::Refused("this subcommand changes data, or what is replicated"),
            class => class,
        };
        (class, Checks { told, ..command.checks })
    }

    /// Which keys a command of the log writes.
    #[must_use]
    pub fn written_by(&self, name: &[u8]) -> Keys {
        self.find(&mut [0; NAME_MAX], name, None).map_or(Keys::All, |command| command.keys)
    }

    /// The keys on which alone the answer of a read depends; none if it may depend on others.
    #[must_use]
    pub fn read_by<'a>(&self, args: &[&'a [u8]]) -> Option<Vec<&'a [u8]>> {
        let command = self.find(&mut [0; NAME_MAX], args.first()?, None)?;
        let Keys::At(places) = command.keys else { return None };
        Some((1..args.len()).filter(|at| places.holds(*at, args.len())).map(|at| args[at]).collect())
    }

    /// All names, without those of subcommands.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.by_name.keys().map(Vec::as_slice).filter(|name| !name.contains(&b'|'))
    }

    /// The name of a command as people write it, with that of its subcommand: `CONFIG REWRITE`.
    #[must_use]
    pub fn title(&self, name: &[u8], subcommand: Option<&[u8]>) -> String {
        let command = self.find(&mut [0; NAME_MAX], name, None);
        let is_container = |command: Command| command.has_subcommands || command.class == Class::Debug;
        let subcommand = subcommand.filter(|_| command.is_some_and(is_container));
        let words = std::iter::once(name).chain(subcommand).map(String::from_utf8_lossy);
        words.collect::<Vec<_>>().join(" ").to_ascii_uppercase()
    }

    fn find(&self, buffer: &mut [u8; NAME_MAX], name: &[u8], subcommand: Option<&[u8]>) -> Option<Command> {
        let place = buffer.get_mut(..name.len())?;
        place.copy_from_slice(name);
        place.make_ascii_lowercase();
        let command = *self.by_name.get(&*place)?;
        let Some(subcommand) = subcommand.filter(|_| command.has_subcommands) else { return Some(command) };
        let len = name.len() + 1 + subcommand.len();
        let whole = buffer.get_mut(..len)?;
        whole[name.len()] = b'|';
        whole[name.len() + 1..].copy_from_slice(subcommand);
        whole.make_ascii_lowercase();
        self.by_name.get(&*whole).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(name: &str, arity: i64, flags: &[&str], subcommands: Vec<Value>) -> Value {
        command_with_keys(name, arity, flags, [1, 1, 1], subcommands)
    }

    fn command_with_keys(name: &str, arity: i64, flags: &[&str], keys: [i64; 3], subcommands: Vec<Value>) -> Value {
        let leaf = |text: &str| Value::Leaf(text.as_bytes().to_vec());
        let flags = Value::List(flags.iter().map(|flag| leaf(flag)).collect());
        let empty = || Value::List(Vec::new());
        let number = |number: i64| leaf(&number.to_string());
        Value::List(vec![
            leaf(name),
            number(arity),
            flags,
            number(keys[0]),
            number(keys[1]),
            number(keys[2]),
            empty(),
            empty(),
            empty(),
            Value::List(subcommands),
        ])
    }

    fn commands() -> Commands {
        Commands::new(&Value::List(vec![
            command("get", 2, &["readonly", "fast"], vec![]),
            command("set", -3, &["write", "denyoom"], vec![]),
            command("del", -2, &["write"], vec![]),
            command("script", -2, &[], vec![command("script|flush", -2, &["noscript"], vec![])]),
            command("ping", -1, &["fast"], vec![]),
            command("pfcount", -2, &["readonly", "may_replicate"], vec![]),
            command("frobnicate", -2, &["write"], vec![]),
            command("replicaof", 3, &["admin"], vec![]),
            command("debug", -2, &["admin", "noscript"], vec![]),
            command(
                "xgroup",
                -2,
                &[],
                vec![command("xgroup|create", -5, &["write"], vec![]), command("xgroup|help", 2, &[], vec![])],
            ),
            command(
                "config",
                -2,
                &[],
                vec![command("config|set", -4, &["admin"], vec![]), command("config|get", -3, &["admin"], vec![])],
            ),
        ]))
    }

    #[test]
    fn commands_are_classed_by_name_and_subcommand_in_any_case() {
        let commands = commands();
        let class = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            commands.class(words[0], words.get(1).copied(), words.len())
        };
        assert_eq!(class("GET k"), Class::Read);
        assert_eq!(class("sEt k v"), Class::Write(Rule::Set));
        assert_eq!(class("PING"), Class::Free);
        assert_eq!((class("PFCOUNT k"), class("pfcount k l")), (Class::Write(Rule::Verbatim), Class::Read));
        assert_eq!(class("xgroup CREATE k g $"), Class::Write(Rule::Verbatim));
        assert_eq!(class("CONFIG SET maxmemory 1"), Class::Config);
        assert_eq!(class("CONFIG GET maxmemory"), Class::Free);
        assert!(matches!(class("REPLICAOF NO ONE"), Class::Refused(_)));
        // Of Redis 7.2.
        assert!(matches!(class_of("waitaof", &["blocking"]), Class::Refused(_)));
        for line in
            ["DEBUG OBJECT k", "debug digest-value k l", "DEBUG LISTPACK k", "DEBUG SDSLEN k", "DEBUG QUICKLIST k"]
        {
            assert_eq!(class(line), Class::Read, "{line}");
        }
        assert_eq!(
            (class("DEBUG DIGEST"), class("DEBUG SLEEP 1"), class("DEBUG")),
            (Class::Free, Class::Free, Class::Free)
        );
        assert!(matches!(class("DEBUG RELOAD"), Class::Refused(_)));
    }

    #[test]
    fn checks_of_redis_are_known_for_each_write() {
        const WRITE: Checks = Checks { is_refused_on_replicas: true, ..NONE };
        let commands = commands();
        let checks = |name: &str, sub: &str| commands.look(name.as_bytes(), Some(sub.as_bytes()), 3).1;
        assert_eq!(checks("set", "k"), Checks { memory: true, told: true, ..WRITE });
        assert_eq!(checks("del", "k"), WRITE);
        assert_eq!(checks("SCRIPT", "flush"), Checks { memory: false, scripts: true, ..NONE });
        for (at, checks) in Checks::ALL.iter().enumerate() {
            assert_eq!(checks.index(), at);
        }
    }

    #[test]
    fn write_without_a_rule_is_refused() {
        assert!(matches!(commands().class(b"frobnicate", None, 2), Class::Refused(why) if why.contains("replicate")));
    }

    #[test]
    fn replies_with_types_of_resp3_are_known() {
        let differs = |line: &str| differs_in_resp3(&line.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        for line in ["ZPOPMIN z", "zadd z INCR 1 m", "SPOP s 2", "ZINCRBY z 1 m", "GEORADIUS g 1 1 1 m WITHCOORD"] {
            assert!(differs(line), "{line}");
        }
        for line in ["SET k v", "ZADD z 1 m", "SPOP s", "LPOP l 2", "INCRBYFLOAT k 1"] {
            assert!(!differs(line), "{line}");
        }
    }

    #[test]
    fn keys_of_commands_are_where_the_server_says() {
        let mut commands = commands();
        for (name, flags, keys) in [
            ("mset", &["write"][..], [1, -1, 2]),
            ("rename", &["write"], [1, 2, 1]),
            ("mget", &["readonly"], [1, -1, 1]),
            ("blpop", &["write"], [1, -2, 1]),
            ("lmpop", &["write", "movablekeys"], [0, 0, 0]),
            ("zunionstore", &["write", "movablekeys"], [1, 1, 1]),
            ("sort_ro", &["readonly", "movablekeys"], [1, 1, 1]),
            ("flushall", &["write"], [0, 0, 0]),
            ("dbsize", &["readonly"], [0, 0, 0]),
            ("select", &["fast"], [0, 0, 0]),
        ] {
            commands.add(&command_with_keys(name, -2, flags, keys, vec![]));
        }
        commands.add(&command_with_keys("object", -2, &[], [0, 0, 0], vec![command("object|freq", 3, &[], vec![])]));
        let read = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let keys = commands.read_by(&words)?;
            Some(keys.into_iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(read("GET a").as_deref(), Some("a"));
        assert_eq!(read("mget a b c").as_deref(), Some("a b c"));
        assert_eq!(read("MSET a 1 b 2").as_deref(), Some("a b"));
        assert_eq!(read("RENAME a b").as_deref(), Some("a b"));
        assert_eq!(read("BLPOP a b 0").as_deref(), Some("a b"));
        for line in ["SORT_RO a BY *", "DBSIZE", "OBJECT FREQ a", "nonsense a"] {
            assert_eq!(read(line), None, "{line}");
        }
        let written = |name: &str| commands.written_by(name.as_bytes());
        assert_eq!((written("SELECt"), written("FLUSHALl"), written("nonsense")), (Keys::None, Keys::All, Keys::All));
        assert_eq!((written("ZUNIONSTORe"), written("xgroup")), (Keys::AnyWord, Keys::AnyWord));
        assert!(matches!(written("SEt"), Keys::At(_)));
        // Its keys are not where a table can say.
        assert_eq!(written("lmpop"), Keys::AnyWord);
    }

    #[test]
    fn what_redis_refuses_itself_is_left_to_it() {
        let commands = commands();
        assert_eq!(commands.class(b"set", Some(b"k"), 2), Class::Free, "too few words");
        assert_eq!(commands.class(b"nonsense", None, 1), Class::Free);
        assert_eq!(commands.class(&[b'x'; 100], None, 1), Class::Free);
        assert_eq!(commands.class(b"config", Some(&[b'x'; 100]), 2), Class::Free);
    }
}
