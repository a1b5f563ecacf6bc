// SPDX-License-Identifier: Apache-2.0
//! The parts that run inside Redis: on its main thread, called by its event loop.
//!
//! | file | what it holds |
//! |---|---|
//! | `module` | loading, events of Redis' loop, and what Redis has to do ([`Act`]) |
//! | `filter` | what becomes of each command before Redis looks it up |
//! | `commands`, `sentinel`, `role` | `FIDE.*`; `SENTINEL` and `ROLE`, for clients that follow the leader |
//! | `waiting`, `awaited`, `access` | clients that wait for data; what they wait for, and is deleted; users with restricted rights |
//! | `kill` | CLIENT KILL, where it would end the replication link |
//! | `native` | writes that Redis executes without a word in front |
//! | `numbered`, `answers` | FIDE.ONCE; answers that are kept, and taken over by servers that join |
//! | `compare`, `compared`, `comparing` | digests of the data, compared between servers |
//! | `config`, `password` | `CONFIG SET fide.*`; `CONFIG SET masterauth` |
//! | `status`, `info` | FIDE.STATUS, FIDE.MEMBERS; `INFO fide` |
//! | `state` | what this process is to the group |
//! | `reads` | reads at a follower |
//! | `member`, `feed` | the group's member, the server's replication link |
//! | `writing`, `words`, `replies` | what all ways of writing have in common; names; replies from elsewhere |
//! | `disk`, `dump` | `durable disk`: dumps for the group's log, and coming back from it |
//! | `unfit` | servers and settings that would differ from the others |
//! | `unread`, `pushed`, `whole` | clients whose earlier replies wait to be written, and such that are sent messages; transactions at such moments |
//! | `proxy`, `scripts` | writes, and scripts, that clients send to a follower |
//! | `transfer` | the lead goes to another server |
//! | `stopped` | a guard that kills a server which was stopped |
//! | `stuck`, `taking` | a server whose own replication link takes nothing ends |
//! | `closing` | connections that are closed after an answer |
//! | `caught_up` | when a server that takes data over leaves the other server's stream |
//! | `syncing`, `refused` | what keeps a server from taking the data over; what the group refuses, by name |
//! | `spin` | polling for a moment before the loop sleeps |
//!
//! **The module's state is borrowed for short.** Whatever makes Redis call back (a command, a change of role)
//! is done outside of it.

mod access;
mod answers;
mod awaited;
mod caught_up;
mod closing;
mod commands;
mod compare;
mod compared;
mod comparing;
mod config;
mod disk;
mod dump;
mod feed;
mod filter;
mod info;
mod kill;
mod member;
mod native;
mod numbered;
mod password;
mod pause;
mod proxy;
mod pushed;
mod read;
mod reads;
mod refused;
mod replies;
mod role;
mod scripts;
mod sentinel;
mod spin;
mod state;
mod status;
mod stopped;
mod stuck;
mod syncing;
mod taking;
mod transfer;
mod unfit;
mod unread;
mod waiting;
mod whole;
mod words;
mod writing;

use std::{
    cell::{Cell, RefCell},
    ffi::{CStr, c_int, c_void},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use redis_module::raw;

use crate::{
    commands::{Checks, Class, Commands},
    redis::{Args, Ctx, Filtered, Reply, Text, key_bytes, unwatch, watch},
    remark,
    resp::Value,
    settings::Settings,
    stream::Stream,
    suspended,
};
use state::{Act, Commit, Mode, State};

/// The name of this module.
const NAME: &str = "fide";
const NAME_C: &CStr = c"fide";
/// Between two looks at what is due, when nothing comes: the group's default between two resends.
const TICK_MS: i64 = 3;
/// A read that has waited for so long is left to the leader: what it waits for may never be decided, or this
/// server has no lease.
const READ_MAX: Duration = Duration::from_secs(1);

/// Looked at for each command, so without a borrow.
struct Hot {
    mode: Cell<Mode>,
    /// This module is its server's master.
    has_link: Cell<bool>,
    /// The next command that Redis is about to look up is this module's own.
    direct: Cell<bool>,
    /// In this turn clients have seen or changed data.
    has_shown: Cell<bool>,
    /// The loop is past the point where this turn's unit is sealed: replies leave without it.
    is_late: Cell<bool>,
    /// What a follower does with writes.
    proxy: Cell<config::FollowerProxy>,
    /// This module calls FIDE.MARK.
    is_marking: Cell<bool>,
    /// The replication link has executed a part of a unit.
    is_mid_unit: Cell<bool>,
    /// Where clients may read.
    reads: Cell<config::Reads>,
    /// Scripts that this module runs, one inside the other.
    scripts: Cell<u32>,
    /// Users were read from the file of ACLs.
    has_loaded_users: Cell<bool>,
    /// So many EXECs of clients were refused in this turn.
    refused_execs: Cell<u32>,
    /// A client may be in a transaction.
    has_transactions: Cell<bool>,
    /// This server has other modules. None is loaded later: that is refused.
    has_other_modules: Cell<bool>,
    /// Commands of the log that were executed since the last look at what has come.
    unheard: Cell<u32>,
}

/// The module's variables are those of Redis' main thread; another thread may see that they are there.
static IS_LOADED: AtomicBool = AtomicBool::new(false);

thread_local! {
    static HOT: Hot = const {
        Hot {
            mode: Cell::new(Mode::Starting),
            has_link: Cell::new(false),
            direct: Cell::new(false),
            has_shown: Cell::new(false),
            is_late: Cell::new(false),
            proxy: Cell::new(config::FollowerProxy::Yes),
            is_marking: Cell::new(false),
            is_mid_unit: Cell::new(false),
            reads: Cell::new(config::Reads::Any),
            scripts: Cell::new(0),
            has_loaded_users: Cell::new(false),
            refused_execs: Cell::new(0),
            has_transactions: Cell::new(false),
            has_other_modules: Cell::new(true),
            unheard: Cell::new(0),
        }
    };
    static MODULE: RefCell<Option<Module>> = const { RefCell::new(None) };
    /// What this turn has written.
    static TURN: RefCell<Stream> = RefCell::new(Stream::default());
    static COMMANDS: RefCell<Commands> = RefCell::new(Commands::default());
    static WORDS: RefCell<Option<Words>> = const { RefCell::new(None) };
    static UNREAD: RefCell<unread::Unread> = RefCell::new(unread::Unread::default());
    /// By which servers of the group know each other where they pass scripts on.
    static PROOF: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    static SPIN: RefCell<spin::Spin> = const { RefCell::new(spin::Spin::off()) };
}

/// The words that the filter puts in front of commands.
struct Words {
    /// By [`Checks::index`].
    write: [Text; Checks::ALL.len()],
    pass: Text,
    read: Text,
    refuse: Text,
    skip: Text,
    multi: Text,
    link: Text,
    config: Text,
    wait: Text,
    role: Text,
    pause: Text,
    /// Rules by which a user may execute all of these.
    users: Vec<Text>,
}

struct Module {
    state: State,
    proxy: proxy::Proxy,
    ctx: Ctx,
    /// `masterauth` as the operator has set it.
    password: Vec<u8>,
    /// Names of other modules that this server may have.
    other_modules: Vec<String>,
}

fn hot<T>(look: impl FnOnce(&Hot) -> T) -> T {
    HOT.with(look)
}

/// Works on the state. What Redis has to do then waits for [`settle`].
fn with_state<T>(work: impl FnOnce(&mut State) -> T) -> Option<T> {
    MODULE.with_borrow_mut(|module| {
        let module = module.as_mut()?;
        let result = work(&mut module.state);
        hot(|hot| {
            hot.mode.set(module.state.mode);
            hot.has_link.set(module.state.feed.is_streaming());
        });
        Some(result)
    })
}

/// Has Redis do what it has to. Only where Redis executes no command: it may close any connection, also the
/// one whose command it executes.
fn settle() {
    loop {
        let next = MODULE.with_borrow_mut(|module| {
            let module = module.as_mut()?;
            if !module.state.has_acts() {
                return None;
            }
            // Redis is inside of what would be changed.
            let loading = raw::REDISMODULE_CTX_FLAGS_LOADING | raw::REDISMODULE_CTX_FLAGS_ASYNC_LOADING;
            if module.ctx.flags() & loading != 0 {
                return None;
            }
            let acts = module.state.take_acts();
            (!acts.is_empty()).then(|| (acts, module.ctx, module.password.clone()))
        });
        let Some((acts, ctx, password)) = next else { return };
        acts.into_iter().for_each(|act| perform(ctx, &password, act));
    }
}

/// Calls a command of Redis that the filter leaves alone.
fn call(ctx: Ctx, flags: &CStr, args: &[&[u8]]) -> Reply {
    hot(|hot| hot.direct.set(true));
    let reply = ctx.call(flags, args);
    hot(|hot| hot.direct.set(false));
    reply
}

fn call_args(ctx: Ctx, flags: &CStr, args: Args<'_>) -> Reply {
    hot(|hot| hot.direct.set(true));
    let reply = ctx.call_args(flags, args);
    hot(|hot| hot.direct.set(false));
    reply
}

fn call_texts(ctx: Ctx, flags: &CStr, args: &[Text]) -> Reply {
    hot(|hot| hot.direct.set(true));
    let reply = ctx.call_texts(flags, args);
    hot(|hot| hot.direct.set(false));
    reply
}

/// Errors come as replies.
const ERRORS: &CStr = c"E";

fn perform(ctx: Ctx, password: &[u8], act: Act) {
    let told = |args: &[&[u8]]| {
        let reply = call(ctx, ERRORS, args);
        if let Value::Error(why) = reply.value() {
            let command = String::from_utf8_lossy(args[0]).into_owned();
            ctx.log(c"warning", &format!("{command}: {}", String::from_utf8_lossy(&why)));
        }
    };
    let begin_link = || {
        // A pause of the time when this server led would hold up its link, too.
        told(&[b"CLIENT", b"UNPAUSE"]);
        told(&[b"CONFIG", b"SET", unfit::ON_ERROR.as_bytes(), unfit::PANIC.as_bytes()]);
    };
    // Servers that have taken over from one another call their histories by the same name, and count what the module's
    // link brings, which is not what a leader replicates: one could be let go on at a place of another stream.
    let forget_history = || told(&[b"DEBUG", b"CHANGE-REPL-ID"]);
    match act {
        Act::DisconnectClients => {
            // Subscribers, too: one may have written on the same connection, and all were shown messages.
            for kind in [&b"normal"[..], b"pubsub"] {
                told(&[b"CLIENT", b"KILL", b"TYPE", kind, b"SKIPME", b"yes"]);
            }
        }
        Act::DisconnectTransactions => transfer::disconnect_transactions(ctx),
        Act::BecomeMaster => {
            // What a client has queued so far was looked at as that of a follower.
            transfer::disconnect_transactions(ctx);
            told(&[b"REPLICAOF", b"NO", b"ONE"]);
            forget_history();
            with_state(State::became_master);
        }
        Act::FollowFeed => {
            let Some((port, token)) = with_state(|state| (state.feed.port(), state.feed.token().to_owned())) else {
                return;
            };
            begin_link();
            told(&[b"CONFIG", b"SET", b"masterauth", token.as_bytes()]);
            told(&[b"REPLICAOF", b"127.0.0.1", port.to_string().as_bytes()]);
        }
        Act::TolerateErrors => told(&[b"CONFIG", b"SET", unfit::ON_ERROR.as_bytes(), b"ignore"]),
        Act::Empty => {
            told(&[b"REPLICAOF", b"NO", b"ONE"]);
            told(&[b"FLUSHALL"]);
            told(&[b"FUNCTION", b"FLUSH"]);
            told(&[b"SCRIPT", b"FLUSH"]);
        }
        Act::SyncFrom { address, port } => {
            ctx.log(c"notice", &format!("this server takes over the group's data from {address}:{port}"));
            // Those are no part of it.
            told(&[b"SCRIPT", b"FLUSH"]);
            begin_link();
            told(&[b"CONFIG", b"SET", b"masterauth", password]);
            // It becomes the master of a history that nobody has, also where it is a master already: otherwise the other
            // server might let it go on from where an earlier one ended, as if it had the same data.
            told(&[b"REPLICAOF", b"NO", b"ONE"]);
            forget_history();
            told(&[b"REPLICAOF", address.as_bytes(), port.to_string().as_bytes()]);
            // What is queued may listen, too.
            transfer::disconnect_transactions(ctx);
            pushed::end(ctx);
        }
        Act::Mark(position, answers) => {
            // Redis would end itself: it replicates nothing while clients are paused.
            told(&[b"CLIENT", b"UNPAUSE"]);
            let position = position.to_string();
            let mut words: Vec<&[u8]> = vec![b"FIDE.MARK", position.as_bytes()];
            if let Some(answers) = &answers {
                words.extend(answers.words());
            }
            hot(|hot| hot.is_marking.set(true));
            drop(ctx.call(c"E!", &words));
            hot(|hot| hot.is_marking.set(false));
        }
        Act::FeedWritable => {
            if let Some(Some(fd)) = with_state(|state| state.feed.connection()) {
                watch(fd, raw::REDISMODULE_EVENTLOOP_WRITABLE, on_feed_writable);
            }
        }
        Act::Announce(message) => ctx.publish(sentinel::SWITCH, &message),
        Act::Say(message) => ctx.log(c"notice", &message),
        Act::End(why) => {
            ctx.log(c"warning", &format!("this server ends, and leaves its group to the others: {why}"));
            // Saves nothing: the data may differ from what the group has.
            std::process::exit(1);
        }
    }
}

unsafe extern "C" fn on_member(_: c_int, _: *mut c_void, _: c_int) {
    SPIN.with_borrow_mut(spin::Spin::note_called);
    turn();
}

unsafe extern "C" fn on_tick(ctx: *mut raw::RedisModuleCtx, _: *mut c_void) {
    Ctx(ctx).timer(TICK_MS, on_tick);
    disk::sum_up(Ctx(ctx));
    native::look_for_transactions(Ctx(ctx));
    native::look_for_replicas(Ctx(ctx));
    with_state(State::look_whether_stuck);
    syncing::look(Ctx(ctx));
    syncing::leave_at_rest(Ctx(ctx));
    turn();
    let late = with_state(|state| state.take_late_reads(READ_MAX)).unwrap_or_default();
    for read in late {
        read.client.end(|ctx| {
            ctx.error("TRYAGAIN this server has no lease, is no member, or waits for the leader to decide what may have changed; ask again, or ask the leader");
        });
    }
}

/// One turn of the group.
fn turn() {
    with_state(|state| {
        state.turn();
        state.go_on();
    });
    settle();
    pass_on();
    answer_reads();
}

/// Sends on what clients want to write, and hands over what the leader has answered.
fn pass_on() {
    let (mut answers, mut own) = (Vec::new(), Vec::new());
    let fd = MODULE.with_borrow_mut(|module| {
        let Module { state, proxy, password, .. } = module.as_mut()?;
        if proxy.is_idle() {
            return None;
        }
        match state.mode {
            Mode::Leader => own = proxy.take_waiting(),
            // Their clients are told now: later, when this server follows again, nothing of it may happen any more.
            mode if mode.is_outside() => proxy.refuse_all(&mut answers),
            _ => {}
        }
        let member = &state.member;
        let leader = member.leader().filter(|leader| *leader != member.host());
        let place = leader.and_then(|leader| Some((member.address(leader)?, state.port)));
        let (_, hosts) = member.view().unwrap_or_default();
        let lives = |address| hosts.iter().any(|host| member.address(*host) == Some(address) && member.lives(*host));
        proxy.follow(place, &lives, password, &mut answers)
    });
    if fd.is_some_and(|fd| !watch(fd, raw::REDISMODULE_EVENTLOOP_READABLE, on_leader)) {
        MODULE.with_borrow_mut(|module| {
            if let Some(module) = module {
                module.proxy.lose(&mut answers);
            }
        });
    }
    answers.into_iter().for_each(proxy::Answer::give);
    own.into_iter().for_each(proxy::Passed::execute);
}

/// The leader has answered.
unsafe extern "C" fn on_leader(_: c_int, _: *mut c_void, _: c_int) {
    let mut answers = Vec::new();
    MODULE.with_borrow_mut(|module| {
        if let Some(module) = module {
            module.proxy.receive(&mut answers);
        }
    });
    answers.into_iter().for_each(proxy::Answer::give);
    pass_on();
}

/// Answers the reads for which all is applied.
fn answer_reads() {
    let is_mid_unit = hot(|hot| hot.is_mid_unit.get());
    let ready = with_state(|state| if state.reads.is_empty() { Vec::new() } else { state.take_reads(!is_mid_unit) });
    for read in ready.unwrap_or_default() {
        read.client.end(|ctx| {
            commands::read_as(ctx, &read.user, &read.args);
        });
    }
}

unsafe extern "C" fn on_listener(_: c_int, _: *mut c_void, _: c_int) {
    if let Some(fd) = with_state(|state| state.feed.accept()).flatten() {
        watch(fd, raw::REDISMODULE_EVENTLOOP_READABLE, on_feed);
    }
}

unsafe extern "C" fn on_feed(_: c_int, _: *mut c_void, _: c_int) {
    with_state(State::feed_readable);
    turn();
}

unsafe extern "C" fn on_feed_writable(fd: c_int, _: *mut c_void, _: c_int) {
    unwatch(fd, raw::REDISMODULE_EVENTLOOP_WRITABLE);
    turn();
}

unsafe extern "C" fn on_child(ctx: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, sub: u64, _: *mut c_void) {
    if sub == raw::REDISMODULE_SUBEVENT_FORK_CHILD_DIED {
        disk::child_ended(Ctx(ctx));
    }
}

/// The loop is about to sleep, and then to write replies: seals the turn.
unsafe extern "C" fn on_loop(ctx: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, sub: u64, _: *mut c_void) {
    if sub == raw::REDISMODULE_SUBEVENT_EVENTLOOP_AFTER_SLEEP {
        hot(|hot| {
            hot.is_late.set(false);
            hot.has_shown.set(false);
        });
        UNREAD.with_borrow_mut(unread::Unread::begin_turn);
        pushed::begin_turn();
        suspended::begin_turn();
        return;
    }
    if hot(|hot| hot.mode.get()) == Mode::Starting {
        begin(Ctx(ctx));
    }
    if hot(|hot| hot.has_loaded_users.replace(false)) {
        access::let_users(Ctx(ctx));
    }
    syncing::note_room();
    awaited::end(Ctx(ctx));
    closing::end_turn(Ctx(ctx));
    seal(Ctx(ctx));
    compare::take_digest();
    with_state(State::hand_over);
    if hot(|hot| hot.refused_execs.replace(0)) > 0 {
        with_state(|state| state.act(Act::DisconnectTransactions));
    }
    settle();
    disk::dump(Ctx(ctx));
    answer_reads();
    hot(|hot| hot.is_late.set(true));
    if hot(|hot| hot.mode.get()) == Mode::Following {
        SPIN.with_borrow_mut(spin::Spin::wait);
    }
}

/// What was written since the last call, and how many commands that are.
fn take_turn() -> Option<(Vec<u8>, u32)> {
    TURN.with_borrow_mut(|turn| {
        let commands = turn.commands();
        (!turn.is_empty()).then(|| (turn.take(), commands))
    })
}

/// As [`take_turn`]; also a turn that only has answers.
fn take_unit() -> Option<(Vec<u8>, u32)> {
    take_turn().or_else(|| (with_state(|state| state.kept.has_turn()) == Some(true)).then(|| (Vec::new(), 0)))
}

/// Ends a turn: what it wrote is decided, and what it showed may be shown; or its clients are disconnected.
fn seal(ctx: Ctx) {
    match hot(|hot| hot.mode.get()) {
        Mode::Leader => {}
        // Keys that expire meanwhile are kept for the next unit.
        Mode::Undecided => {
            with_state(|state| {
                if state.has_open() {
                    state.leave_open();
                }
            });
            return;
        }
        _ => {
            // What a server wrote that was put out is nobody's.
            TURN.with_borrow_mut(|turn| drop(turn.take()));
            return;
        }
    }
    let begins = with_state(State::begins) == Some(true);
    let remarks = compare::remarks(ctx);
    let content = take_unit().or_else(|| (begins || !remarks.is_empty()).then(|| (Vec::new(), 0)));
    let has_shown = hot(|hot| hot.has_shown.get());
    if content.is_none() && !has_shown {
        with_state(|state| {
            state.tell();
            state.mark(false);
        });
        return;
    }
    with_state(|state| {
        let has_written = content.is_some();
        let commit = if has_written { state.commit(content, remarks) } else { state.confirm() };
        match commit {
            Commit::Decided => state.mark(has_written),
            Commit::Open => state.leave_open(),
        }
    });
}

/// Decides what this command has written, before it is answered: where the end of the turn is too late.
/// Whether it is decided.
fn commit_now() -> bool {
    let content = take_unit();
    with_state(|state| {
        let commit = if content.is_some() { state.commit(content, Vec::new()) } else { state.confirm() };
        if commit == Commit::Open {
            // The others are disconnected at the end of the next turn.
            state.note_open();
        }
        commit == Commit::Decided
    })
    .unwrap_or(false)
}

/// The loop runs, and the server has loaded what it had.
fn begin(ctx: Ctx) {
    let config = |name: &str| {
        let reply = call(ctx, ERRORS, &[b"CONFIG", b"GET", name.as_bytes()]).value();
        reply.list().get(1).and_then(Value::bytes).unwrap_or_default().to_vec()
    };
    let number = |name: &str| String::from_utf8_lossy(&config(name)).parse().unwrap_or(0);
    let port = match number("port") {
        0 => {
            // The connection to the leader is not encrypted.
            if hot(|hot| hot.proxy.get()) == config::FollowerProxy::Yes {
                hot(|hot| hot.proxy.set(config::FollowerProxy::No));
            }
            number("tls-port")
        }
        port => port,
    };
    let allowed =
        MODULE.with_borrow(|module| module.as_ref().map_or_else(Vec::new, |module| module.other_modules.clone()));
    if let Some(why) = unfit::why(ctx, &allowed, config) {
        refuse_to_run(ctx, &why);
    }
    let commands = Commands::new(&call(ctx, ERRORS, &[b"COMMAND"]).value());
    COMMANDS.set(commands);
    let info = call(ctx, ERRORS, &[b"INFO", b"keyspace"]);
    let has_data = String::from_utf8_lossy(info.bytes()).contains("keys=");
    if has_data {
        if with_state(|state| state.member.was_member()) == Some(true) {
            ctx.log(
                c"notice",
                "this server was in its group before; its own data is dropped, it takes over the group's",
            );
            call(ctx, ERRORS, &[b"FLUSHALL"]);
        } else {
            ctx.log(
                c"warning",
                "this server has data that is not the group's, and the group would not have it: empty it (move the dump and the \
                 append-only file away), or load the data through a client once the group runs",
            );
            std::process::exit(1);
        }
    }
    call(ctx, ERRORS, &[b"FUNCTION", b"FLUSH"]);
    // A client may have asked for it while Redis loaded its dump.
    call(ctx, ERRORS, &[b"CLIENT", b"UNPAUSE"]);
    if config("tls-replication") == b"yes" {
        refuse_to_run(
            ctx,
            "tls-replication yes: the link between this module and its own server is not encrypted; leave it off",
        );
    }
    if let Some(name) = renamed(ctx) {
        refuse_to_run(
            ctx,
            &format!(
                "the command {name} was renamed (rename-command), and this module could not see what it writes; use ACLs"
            ),
        );
    }
    // A dump of Redis' own schedule, and that of FLUSHALL with one, could be taken for the one that the log needs.
    let is_durable = with_state(|state| state.member.recovery().is_some()) == Some(true);
    let settings = unfit::SETTINGS.into_iter().chain(is_durable.then_some(("save", "")));
    for (name, value) in settings {
        if let Value::Error(why) = call(ctx, ERRORS, &[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()]).value() {
            ctx.log(c"warning", &format!("CONFIG SET {name} {value}: {}", String::from_utf8_lossy(&why)));
        }
    }
    let modules = call(ctx, ERRORS, &[b"MODULE", b"LIST"]).value();
    hot(|hot| hot.has_other_modules.set(modules.list().len() != 1));
    access::let_users(ctx);
    let common = remark::Settings {
        databases: String::from_utf8_lossy(&config("databases")).parse().unwrap_or(0),
        hll_bytes: String::from_utf8_lossy(&config("hll-sparse-max-bytes")).parse().unwrap_or(0),
        rdb_version: unfit::rdb_version(ctx),
        port,
    };
    let (dir, name) = (config("dir"), config("dbfilename"));
    let dump = PathBuf::from(String::from_utf8_lossy(&dir).into_owned()).join(&*String::from_utf8_lossy(&name));
    with_state(|state| {
        state.dumps.set_path(dump);
        state.compare.settings = common;
    });
    let password = config("masterauth");
    MODULE.with_borrow_mut(|module| {
        if let Some(module) = module {
            module.password = password;
        }
    });
    // While Redis loaded its data, this module looked at nothing that clients have queued.
    transfer::disconnect_transactions(ctx);
    with_state(|state| state.begin(port));
}

fn refuse_to_run(ctx: Ctx, why: &str) -> ! {
    ctx.log(c"warning", why);
    std::process::exit(1);
}

/// A command that does not exist under its own name.
fn renamed(ctx: Ctx) -> Option<String> {
    let names: Vec<Vec<u8>> = COMMANDS.with_borrow(|commands| commands.names().map(<[u8]>::to_vec).collect());
    let mut question: Vec<&[u8]> = vec![b"COMMAND", b"INFO"];
    question.extend(names.iter().map(Vec::as_slice));
    let known = call(ctx, ERRORS, &question).value();
    let missing = names.iter().zip(known.list()).find(|(_, known)| **known == Value::Null || known.list().is_empty());
    missing.map(|(name, _)| String::from_utf8_lossy(name).into_owned())
}

/// A key has expired or was evicted here: the others are told to delete it.
unsafe extern "C" fn on_deleted(
    ctx: *mut raw::RedisModuleCtx,
    _: c_int,
    _: *const std::ffi::c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    if WORDS.with_borrow(Option::is_none) {
        end_if_another_thread();
    }
    if matches!(hot(|hot| hot.mode.get()), Mode::Leader | Mode::Undecided) {
        TURN.with_borrow_mut(|turn| turn.push(Ctx(ctx).db(), &[b"DEL", key_bytes(key)]));
    }
    awaited::note(key_bytes(key));
    0
}

unsafe extern "C" fn on_replica(_: *mut raw::RedisModuleCtx, _: raw::RedisModuleEvent, sub: u64, _: *mut c_void) {
    with_state(|state| state.replica_changed(sub == raw::REDISMODULE_SUBEVENT_REPLICA_CHANGE_ONLINE));
}

unsafe extern "C" fn on_command(filter: *mut raw::RedisModuleCommandFilterCtx) {
    let command = Filtered(filter);
    COMMANDS.with_borrow(|commands| {
        WORDS.with_borrow(|words| match words {
            Some(words) => filter::apply(&command, commands, words),
            None => end_if_another_thread(),
        });
    });
}

/// To be called where nothing is known of the module: it is another thread's.
fn end_if_another_thread() {
    if IS_LOADED.load(Ordering::Relaxed) {
        unfit::end_for_another_thread();
    }
}

fn class_of(args: Args<'_>) -> Class {
    look(args).0
}

fn look(args: Args<'_>) -> (Class, Checks) {
    let Some(name) = args.get(0) else { return (Class::Free, Checks::default()) };
    COMMANDS.with_borrow(|commands| commands.look(name, args.get(1), args.len()))
}

/// Called by Redis when it loads the module.
///
/// # Safety
/// Only Redis calls it, on its main thread, with a context and arguments that live as long as the call.
#[unsafe(no_mangle)]
#[allow(unreachable_pub, reason = "by its name")]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: Redis' own context; fills the table of functions.
    if unsafe { raw::Export_RedisModule_Init(ctx, NAME_C.as_ptr(), 1, 1) } != 0 {
        return 1;
    }
    let ctx = Ctx(ctx);
    // SAFETY: as Redis promises of its arguments.
    let args = unsafe { Args::new(argv, argc) };
    match load(ctx, args) {
        Ok(()) => 0,
        Err(why) => {
            ctx.log(c"warning", &why);
            1
        }
    }
}

fn load(ctx: Ctx, args: Args<'_>) -> Result<(), String> {
    let args = args.to_bytes();
    let args: Vec<&str> = args
        .iter()
        .map(|arg| std::str::from_utf8(arg).map_err(|_| "an argument is not UTF-8".to_owned()))
        .collect::<Result<_, _>>()?;
    let settings = Settings::new(&args).map_err(|why| why.to_string())?;
    let state_dir = match &settings.state_dir {
        Some(dir) => dir.clone(),
        None => std::env::current_dir().map_err(|why| why.to_string())?.join(PathBuf::from("fide")),
    };
    commands::register(ctx)?;
    config::register(ctx)?;
    info::register(ctx)?;
    // Without it the server runs as well, a little later after each death.
    let _ = fide_client::wake_eagerly();
    let member = member::open(&settings, state_dir).map_err(|why| why.to_string())?;
    let feed = feed::Feed::open().map_err(|why| format!("a port of the loopback: {why}"))?;
    let (fd, listener) = (member.descriptor(), feed.listener());
    let state = State::new(member, feed, &settings.group, settings.version);
    PROOF.set(scripts::proof(settings.key));
    MODULE.set(Some(Module {
        state,
        proxy: proxy::Proxy::default(),
        ctx: ctx.detached(),
        password: Vec::new(),
        other_modules: settings.other_modules,
    }));
    IS_LOADED.store(true, Ordering::Relaxed);
    WORDS.set(Some(Words {
        write: words::WRITES.map(|(name, ..)| Text::new(name.to_bytes())),
        pass: Text::new(b"fide.p"),
        read: Text::new(b"fide.r"),
        refuse: Text::new(b"fide.refuse"),
        skip: Text::new(b"fide.skip"),
        multi: Text::new(b"fide.multi"),
        link: Text::new(b"fide.link"),
        config: Text::new(b"fide.config"),
        wait: Text::new(b"fide.wait"),
        role: Text::new(b"fide.role"),
        pause: Text::new(b"fide.pause"),
        users: access::rules().iter().map(|rule| Text::new(rule.as_bytes())).collect(),
    }));
    if !watch(fd, raw::REDISMODULE_EVENTLOOP_READABLE, on_member)
        || !watch(listener, raw::REDISMODULE_EVENTLOOP_READABLE, on_listener)
    {
        return Err("Redis cannot watch any more descriptors; raise maxclients".to_owned());
    }
    let epoll = unread::epoll_that_watches(fd);
    SPIN.set(spin::Spin::of_loop(epoll));
    UNREAD.set(unread::Unread::of_loop(epoll));
    ctx.subscribe(raw::REDISMODULE_EVENT_EVENTLOOP, on_loop);
    ctx.subscribe(raw::REDISMODULE_EVENT_REPLICA_CHANGE, on_replica);
    ctx.subscribe(raw::REDISMODULE_EVENT_FORK_CHILD, on_child);
    ctx.subscribe(raw::REDISMODULE_EVENT_LOADING, syncing::on_loading);
    ctx.subscribe(raw::REDISMODULE_EVENT_FLUSHDB, awaited::on_databases);
    ctx.subscribe(raw::REDISMODULE_EVENT_SWAPDB, awaited::on_databases);
    ctx.notify(raw::REDISMODULE_NOTIFY_EXPIRED | raw::REDISMODULE_NOTIFY_EVICTED, on_deleted);
    ctx.notify(native::EVENTS, native::on_changed);
    ctx.filter(on_command);
    ctx.timer(TICK_MS, on_tick);
    Ok(())
}
