// SPDX-License-Identifier: Apache-2.0
//! `FIDE.*`: what the filter puts in front of clients' commands, what the replication link brings, and what
//! operators ask.

use std::{ffi::c_int, ptr};

use redis_module::raw;

use super::{
    COMMANDS, ERRORS, MODULE, PROOF,
    access::{NOT_ALLOWED, answer, refuse_unless, why_no_debug},
    answers::Answers,
    call, call_args, call_texts,
    caught_up::may_leave_at,
    class_of, closing,
    compare::{fide_compare, fide_digest, take_digest},
    config::FollowerProxy,
    hot, look, numbered, pass_on, password,
    pause::{NOT_LEADING, fide_pause},
    proxy::{as_user, plain},
    pushed, reads,
    refused::{host_of, refusal},
    role::fide_role,
    scripts::{execute_as, fide_as, is_checked_within},
    sentinel::sentinel,
    settle,
    state::Mode,
    state::State,
    status,
    transfer::fide_transfer,
    unfit,
    waiting::{is_empty, keys_and_timeout, wait_for_data},
    whole, with_state,
    words::{self, WRITES, inner},
    writing::{UNKNOWN, WRITE, call_write, note, note_failed},
};
use crate::{
    commands::{Class, differs_in_resp3},
    redis::{Args, Argv, CommandFn, Ctx, Reply, Text, User, api, first_key, is_allowed, server_version, user_of},
    resp::Value,
    rules::Rule,
    slot::slot_of,
};

const READ: &std::ffi::CStr = c"E0CW";
const WAITED_READ: &std::ffi::CStr = c"E0C";
const OWN_FLAGS: &std::ffi::CStr = c"!E0M";
const OWN_SCRIPT: &std::ffi::CStr = c"E0";
/// Of numbered requests: in RESP2, as their answers are kept.
const ONCE_WRITE: &std::ffi::CStr = c"!ECM";
const ONCE_SCRIPT: &std::ffi::CStr = c"!EC";
const OWN_ONCE_WRITE: &std::ffi::CStr = c"!EM";
const OWN_ONCE_SCRIPT: &std::ffi::CStr = c"!E";
const SCRIPT: &std::ffi::CStr = c"!E0C";
const CONFIG: &std::ffi::CStr = c"E0C";

const ONCE_NESTED: &str =
    "ERR FIDE.ONCE cannot stand in a transaction or script; number the script: FIDE.ONCE client number EVAL ...";
const LATE: &str = "TRYAGAIN transactions cannot stand in one pipeline behind a command that waits; send it again";
const OWN_WRITE: &str = "ERR FIDE.W is for this module's own use";
/// What else is put in front of clients' commands. Redis' slow log and MONITOR have the command itself, and not these,
/// which would show the passwords that Redis keeps from both.
const IN_FRONT: [(&std::ffi::CStr, CommandFn, &std::ffi::CStr); words::IN_FRONT.len()] = [
    (words::IN_FRONT[0], fide_p, c"readonly no-slowlog no-monitor"),
    (words::IN_FRONT[1], fide_r, c"readonly no-slowlog no-monitor"),
    (words::IN_FRONT[2], fide_refuse, c"readonly allow-loading allow-stale fast no-slowlog no-monitor"),
    (words::IN_FRONT[3], fide_skip, c"write fast no-slowlog no-monitor"),
    (words::IN_FRONT[6], fide_link, c"write no-slowlog no-monitor"),
    (words::IN_FRONT[4], fide_config, c"admin deny-script no-slowlog no-monitor"),
    (words::IN_FRONT[5], fide_wait, c"readonly deny-script no-slowlog no-monitor"),
    (words::IN_FRONT[7], fide_role, c"readonly deny-script allow-loading allow-stale fast no-slowlog no-monitor"),
    (words::IN_FRONT[8], fide_pause, c"admin deny-script no-slowlog no-monitor"),
    // As MULTI, Redis lets anybody send it at a replica.
    (words::IN_FRONT[9], fide_multi, c"readonly deny-script allow-loading allow-stale fast no-slowlog no-monitor"),
];

macro_rules! commands {
    ($ctx:expr, $(($name:literal, $function:ident, $flags:literal)),* $(,)?) => {
        $($ctx.command($name, $function, $flags)?;)*
    };
}

/// # Errors
/// Another module has a command of the same name.
pub(super) fn register(ctx: Ctx) -> Result<(), String> {
    for (name, flags) in WRITES {
        ctx.command(name, fide_w, flags)?;
    }
    for (name, function, flags) in IN_FRONT {
        ctx.command(name, function, flags)?;
    }
    commands!(
        ctx,
        (c"fide.once", fide_refuse_whole, c"write"),
        (c"fide.as", fide_as, c"write deny-script no-slowlog no-monitor"),
        (c"fide.applied", fide_applied, c"write fast"),
        (c"fide.mark", fide_mark, c"write fast"),
        (c"fide.status", fide_status, c"readonly allow-loading allow-stale"),
        (c"fide.members", fide_members, c"readonly allow-loading allow-stale"),
        (c"fide.leave", fide_leave, c"admin deny-script"),
        (c"fide.transfer", fide_transfer, c"admin deny-script"),
        (c"fide.compare", fide_compare, c"admin deny-script"),
        (c"fide.digest", fide_digest, c"admin deny-script fast no-slowlog no-monitor"),
        (c"sentinel", sentinel, c"readonly allow-loading allow-stale"),
    );
    Ok(())
}

/// A client writes, at the leader.
unsafe extern "C" fn fide_w(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    let (class, checks) = look(args);
    if hot(|hot| hot.mode.get()) != Mode::Leader {
        return refuse(ctx, args);
    }
    // SAFETY: as in `inner`.
    let name = unsafe { Args::new(argv, argc) }.get(0).unwrap_or_default();
    if !name.eq_ignore_ascii_case(WRITES[checks.index()].0.to_bytes()) {
        // A script or transaction would do what Redis forbids in it.
        return ctx.error(OWN_WRITE);
    }
    if let Class::Write(Rule::GroupRead) = class
        && ctx.is_in_script()
        && keys_and_timeout(Rule::GroupRead, &args.to_bytes()).is_some()
    {
        return ctx.error("ERR xreadgroup command is not allowed with BLOCK option from scripts");
    }
    hot(|hot| hot.has_shown.set(true));
    let is_nested = ctx.is_nested();
    let (is_late, in_script) = hot(|hot| (hot.is_late.get(), hot.scripts.get() > 0));
    // What a script writes that this module has called is decided with the whole script.
    if is_nested
        && !in_script
        && let Err(why) = if is_late { Err(LATE) } else { whole::may_write(ctx) }
    {
        return ctx.error(why);
    }
    let is_early = !is_nested && pushed::is_early(ctx);
    if class == Class::Once {
        if is_nested {
            return ctx.error(ONCE_NESTED);
        }
        // Redis has checked the rights for the word in front.
        let is_refused = |command| !is_allowed(ctx, command);
        if is_refused(args) || numbered::command(args).is_ok_and(is_refused) {
            return ctx.error(NOT_ALLOWED);
        }
        return numbered::execute(ctx, args, is_early, ONCE_WRITE, ONCE_SCRIPT);
    }
    let reply = match class {
        Class::Script => {
            hot(|hot| hot.scripts.set(hot.scripts.get() + 1));
            let reply = call_args(ctx, SCRIPT, args);
            hot(|hot| hot.scripts.set(hot.scripts.get() - 1));
            reply
        }
        Class::Write(rule) => match number_in(rule, args) {
            Some(place) => {
                hot(|hot| hot.direct.set(true));
                let reply = ctx.call_with_copy(WRITE, args, place);
                hot(|hot| hot.direct.set(false));
                reply
            }
            None => call_write(ctx, WRITE, rule, args),
        },
        Class::ScriptExists => call_args(ctx, SCRIPT, args),
        // Of several keys: a follower of the version before passes it on.
        Class::Read if args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"pfcount")) => {
            call_args(ctx, SCRIPT, args)
        }
        _ => return ctx.error(OWN_WRITE),
    };
    if let Class::Write(rule) = class
        && reply.is_error()
    {
        note_failed(ctx, rule, args, &reply.value());
    } else if let Class::Write(rule) = class {
        let value = if rule.needs_reply() || rule.may_block() { reply.value() } else { Value::Null };
        // From Redis 7.2 on it makes its consumer before it looks for messages.
        let has_changed = matches!(rule, Rule::GroupRead) && server_version() >= (7, 2);
        if rule.may_block() && is_empty(&value) && !is_nested && wait_for_data(ctx, rule, args) {
            if has_changed {
                note(ctx, rule, args, &value);
            }
            return 0;
        }
        note(ctx, rule, args, &value);
    }
    if is_early && !pushed::decide(ctx) {
        return ctx.error(UNKNOWN);
    }
    answer(ctx, args, &reply)
}

/// The place of a value that may be a number, in commands that store one value.
fn number_in(rule: Rule, args: Args<'_>) -> Option<usize> {
    /// Digits of the longest number, with its sign.
    const NUMBER_MAX: usize = 20;
    let place = match rule {
        Rule::Set => 2,
        Rule::SetWithDeadline => 3,
        Rule::Verbatim
            if args.get(0)?.eq_ignore_ascii_case(b"setnx") || args.get(0)?.eq_ignore_ascii_case(b"getset") =>
        {
            2
        }
        _ => return None,
    };
    let value = args.get(place)?;
    (value.len() <= NUMBER_MAX && value.last()?.is_ascii_digit()).then_some(place)
}

/// Executes a write that was to be passed on: this server leads now. Its user was allowed to. What Redis checks while it
/// executes a command, as in scripts, is checked for the user that is named.
pub(super) fn execute(ctx: Ctx, args: &[Text], user: Option<&[u8]>) -> c_int {
    // Its client waits, and has its answer after the end of a turn.
    let is_early = hot(|hot| hot.is_late.get()) || pushed::may_be(ctx);
    crate::redis::with_args(args, |args| {
        if let Some(user) = user {
            return execute_as(ctx, user, args, is_early);
        }
        if class_of(args) == Class::ScriptExists {
            return ctx.reply(&call_args(ctx, OWN_SCRIPT, args));
        }
        if class_of(args) == Class::Once {
            return numbered::execute(ctx, args, is_early, OWN_ONCE_WRITE, OWN_ONCE_SCRIPT);
        }
        let Class::Write(rule) = class_of(args) else { return ctx.error("ERR not a write") };
        hot(|hot| hot.has_shown.set(true));
        let reply = call_write(ctx, OWN_FLAGS, rule, args);
        if reply.is_error() {
            note_failed(ctx, rule, args, &reply.value());
        } else {
            let value = if rule.needs_reply() { reply.value() } else { Value::Null };
            note(ctx, rule, args, &value);
        }
        if is_early && !pushed::decide(ctx) {
            return ctx.error(UNKNOWN);
        }
        ctx.reply(&reply)
    })
}

/// A client reads, at a replica.
unsafe extern "C" fn fide_r(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    if class_of(args) != Class::Read {
        return ctx.error("ERR FIDE.R is for this module's own use");
    }
    if args.get(0).is_some_and(|name| name.eq_ignore_ascii_case(b"debug"))
        && let Some(why) = why_no_debug(ctx)
    {
        return ctx.error(why);
    }
    match with_state(|state| (state.mode == Mode::Following, state.may_read())) {
        Some((true, true)) => return answer(ctx, args, &call_args(ctx, READ, args)),
        Some((true, false)) => {}
        _ => return refuse(ctx, args),
    }
    let keys = reads::keys_of(args);
    if let Some(keys) = &keys
        && with_state(|state| state.may_read_keys(keys)) == Some(true)
    {
        return answer(ctx, args, &call_args(ctx, READ, args));
    }
    if ctx.is_nested() {
        return ctx.error(
            "TRYAGAIN this server waits for what may be decided, and nothing can wait inside of a transaction or script here",
        );
    }
    let Some(user) = user_of(ctx).filter(|_| is_allowed(ctx, args)) else {
        // Redis says what is not allowed.
        return answer(ctx, args, &call_args(ctx, READ, args));
    };
    let (client, args) = (ctx.block(), args.retain());
    with_state(|state| state.wait_for(client, args, user, keys));
    0
}

/// Executes a read that has waited, with the rights of its client's user.
pub(super) fn read_as(ctx: Ctx, user: &[u8], args: &[Text]) {
    crate::redis::with_args(args, |args| match User::named(user).filter(|user| user.may(args)) {
        Some(user) => user.lend(ctx, || ctx.reply(&call_args(ctx, WAITED_READ, args))),
        None => ctx.error(NOT_ALLOWED),
    });
}

/// A client writes, at a follower.
unsafe extern "C" fn fide_p(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    let (class, checks) = look(args);
    let is_numbered = class == Class::Once;
    let command = match class {
        Class::Write(rule) if !rule.may_block() => Ok(args),
        Class::Script | Class::ScriptExists => Ok(args),
        Class::Once if ctx.is_nested() => Err(ONCE_NESTED.to_owned()),
        Class::Once => numbered::command(args),
        _ => Err("ERR FIDE.P is for this module's own use".to_owned()),
    };
    let command = match command {
        Ok(command) => command,
        Err(why) => return ctx.error(&why),
    };
    let is_script = class_of(command) == Class::Script;
    let needs_user = is_checked_within(command);
    // The leader answers in RESP2. Most replies to writes say the same in RESP3, and those of scripts and numbered
    // requests are always given so.
    let mode = hot(|hot| hot.mode.get());
    let passes_on = matches!(mode, Mode::Following | Mode::Leading)
        && hot(|hot| hot.proxy.get()) == FollowerProxy::Yes
        && (is_numbered || is_script || !(ctx.is_resp3() && differs_in_resp3(&args.to_bytes())));
    if !passes_on || ctx.is_nested() {
        return refuse(ctx, args);
    }
    let user = user_of(ctx).filter(|_| is_allowed(ctx, args) && is_allowed(ctx, command));
    let Some(user) = user else {
        return ctx.error(NOT_ALLOWED);
    };
    let is_full = MODULE.with_borrow(|module| module.as_ref().is_none_or(|module| module.proxy.is_full()));
    if is_full {
        return ctx.error("TRYAGAIN too many writes wait for the leader; ask again, or ask the leader");
    }
    let request = if needs_user {
        PROOF.with_borrow(|proof| as_user(proof, user, &args.to_bytes()))
    } else {
        plain(checks, &args.to_bytes())
    };
    let (client, db) = (ctx.block(), ctx.db());
    MODULE.with_borrow_mut(|module| {
        if let Some(module) = module {
            module.proxy.pass(client, db, request, is_numbered);
        }
    });
    pass_on();
    0
}

/// A command that this server does not execute now.
unsafe extern "C" fn fide_refuse(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    refuse(Ctx(ctx), inner(argv, argc))
}

/// As [`fide_refuse`], of a command that the filter has put nothing in front of.
unsafe extern "C" fn fide_refuse_whole(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    // SAFETY: as in `inner`.
    refuse(Ctx(ctx), unsafe { Args::new(argv, argc) })
}

pub(super) fn refuse(ctx: Ctx, args: Args<'_>) -> c_int {
    let name = String::from_utf8_lossy(args.get(0).unwrap_or_default()).to_ascii_uppercase();
    if let Class::Refused(why) = class_of(args) {
        let title = COMMANDS.with_borrow(|commands| commands.title(args.get(0).unwrap_or_default(), args.get(1)));
        return ctx.error(&format!("ERR {title} is refused in a group: {why}"));
    }
    if class_of(args) == Class::Sync {
        return ctx.error(&format!("ERR {name} is refused in a group: the group decides who leads"));
    }
    if class_of(args) == Class::Pause {
        return ctx.error(NOT_LEADING);
    }
    if class_of(args) == Class::Kill {
        return ctx.error(
            "ERR this CLIENT KILL would end the server's own replication link, too, and with it the server; add TYPE normal, pubsub or replica",
        );
    }
    let is_write = matches!(class_of(args), Class::Write(_) | Class::Script | Class::Once);
    if is_write && ctx.is_in_transaction() && !ctx.is_in_script() {
        closing::after_this(ctx);
    }
    let moved = moved_slot(ctx, args);
    let text = with_state(|state| match state.mode {
        Mode::Following => match state.leader() {
            Some((_, address)) if moved.is_some() => format!("MOVED {} {address}", moved.unwrap_or(0)),
            Some((name, address)) => format!("READONLY this server follows; the leader is {name} at {address}"),
            None => "TRYAGAIN this server follows, and no leader is known; ask again".to_owned(),
        },
        Mode::Leading => "LOADING this server is about to lead its group; ask again".to_owned(),
        Mode::Undecided => format!(
            "TRYAGAIN the group does not agree at the moment: {}",
            state.waits_for().unwrap_or_else(|| "another member does not answer".to_owned())
        ),
        Mode::Out => "CLUSTERDOWN this server has left its group; start it again to join".to_owned(),
        _ => format!(
            "LOADING this server is no member of its group yet: {}",
            state.waits_for().unwrap_or_else(|| "it takes over the group's data".to_owned())
        ),
    });
    ctx.error(&text.unwrap_or_else(|| "LOADING the module begins".to_owned()))
}

/// The slot of a command that the leader has to be asked for, if clients are to be told so as by Redis Cluster. 0: it
/// names no key.
fn moved_slot(ctx: Ctx, args: Args<'_>) -> Option<u16> {
    let command = if class_of(args) == Class::Once { args.rest().rest().rest() } else { args };
    let is_asked = matches!(class_of(command), Class::Write(_) | Class::Script | Class::Read | Class::ScriptExists);
    let is_moved = is_asked && hot(|hot| hot.proxy.get()) == FollowerProxy::Moved;
    is_moved.then(|| first_key(ctx, command).map_or(0, slot_of))
}

/// What the other server's stream brings after the cut.
unsafe extern "C" fn fide_skip(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let ctx = Ctx(ctx);
    if ctx.is_replicated() { ctx.ok() } else { refuse(ctx, inner(argv, argc)) }
}

/// MULTI while what the other server's stream brings is passed over. What a client has sent behind it would be executed
/// one by one once this server follows, so nothing of that is read any more.
unsafe extern "C" fn fide_multi(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let ctx = Ctx(ctx);
    if ctx.is_replicated() {
        return ctx.ok();
    }
    closing::after_this_turn(ctx);
    refuse(ctx, inner(argv, argc))
}

/// What the replication link has sent, and Redis would take from clients too.
unsafe extern "C" fn fide_link(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    if !ctx.is_replicated() {
        return refuse(ctx, args);
    }
    ctx.reply(&call_args(ctx, ERRORS, args))
}

/// Settings that would make this server differ from the others.
unsafe extern "C" fn fide_config(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    let is_durable = with_state(|state| state.member.recovery().is_some()) == Some(true);
    for pair in args.to_bytes().get(2..).unwrap_or_default().chunks(2) {
        let [name, value] = pair else { break };
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        if let Err((wanted, why)) = unfit::check(&name, value, is_durable) {
            let now = call(ctx, ERRORS, &[b"CONFIG", b"GET", name.as_bytes()]).value();
            // The leader's own is another one than that which others may set.
            if name != unfit::ON_ERROR && now.list().get(1).and_then(Value::bytes) == Some(value) {
                continue;
            }
            let except = if wanted.is_empty() { String::new() } else { format!(", except for {wanted:?}") };
            return ctx.error(&format!("ERR CONFIG SET {name} is refused in a group{except}: {why}"));
        }
    }
    if class_of(args) != Class::Config {
        return ctx.error("ERR FIDE.CONFIG is for this module's own use");
    }
    // At a follower Redis' own is the token of its link.
    let is_syncing = hot(|hot| hot.mode.get()) == Mode::Syncing;
    let Some((rest, password)) = password::take_out(args).filter(|_| is_allowed(ctx, args)) else {
        return answer(ctx, args, &call_args(ctx, CONFIG, args));
    };
    let reply = if is_syncing {
        Some(call_args(ctx, CONFIG, args))
    } else {
        (rest.len() > 2).then(|| call_texts(ctx, CONFIG, &rest))
    };
    if let Some(reply) = reply.filter(Reply::is_error) {
        return answer(ctx, args, &reply);
    }
    MODULE.with_borrow_mut(|module| {
        if let Some(module) = module {
            module.password = password;
        }
    });
    ctx.ok()
}

/// WAIT: what is answered is stored at all live members already.
unsafe extern "C" fn fide_wait(ctx: *mut raw::RedisModuleCtx, _: Argv, _: c_int) -> c_int {
    let others = with_state(|state| state.member.view().map_or(0, |(_, hosts)| hosts.len().saturating_sub(1)));
    Ctx(ctx).integer(i64::try_from(others.unwrap_or(0)).unwrap_or(0))
}

fn position(argv: Argv, argc: c_int) -> Option<u64> {
    std::str::from_utf8(inner(argv, argc).get(0)?).ok()?.parse().ok()
}

/// The replication link says how far it is.
unsafe extern "C" fn fide_applied(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let ctx = Ctx(ctx);
    let Some(position) = position(argv, argc).filter(|_| ctx.is_replicated()) else {
        return ctx.error("ERR FIDE.APPLIED is for the replication link");
    };
    if hot(|hot| hot.mode.get()) == Mode::Syncing {
        mark(ctx, inner(argv, argc), position);
    } else {
        with_state(|state| state.note_applied(position));
        // Reads are answered before the loop sleeps: in this command Redis would show expired keys.
        hot(|hot| hot.is_mid_unit.set(false));
        take_digest();
    }
    ctx.ok()
}

/// The leader's note for servers that replicate from it.
unsafe extern "C" fn fide_mark(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let ctx = Ctx(ctx);
    let Some(position) = position(argv, argc) else { return ctx.error("ERR FIDE.MARK is for the replication link") };
    if ctx.is_replicated() {
        mark(ctx, inner(argv, argc), position);
    } else if hot(|hot| hot.is_marking.get()) {
        ctx.replicate_verbatim();
    } else {
        return ctx.error("ERR FIDE.MARK is for this module's own use");
    }
    ctx.ok()
}

fn mark(ctx: Ctx, args: Args<'_>, position: u64) {
    unsafe extern "C" fn cut(_: *mut std::ffi::c_void) {
        with_state(State::cut);
        settle();
    }
    let Ok(answers) = Answers::read(args.get(1), args.get(2)) else {
        with_state(|state| {
            state.say("a server of a newer version gives this one its data in a way that it does not know".to_owned())
        });
        return;
    };
    let may_leave = may_leave_at(ctx, position);
    if with_state(|state| state.note_mark(position, answers, may_leave)) == Some(true) {
        // Not here, in a command of the link that is to be closed.
        api!(RedisModule_EventLoopAddOneShot(Some(cut), ptr::null_mut()));
    }
}

unsafe extern "C" fn fide_status(ctx: *mut raw::RedisModuleCtx, _: Argv, _: c_int) -> c_int {
    let text = with_state(status::json).unwrap_or_else(|| "{}".to_owned());
    Ctx(ctx).value(&Value::Leaf(text.into_bytes()))
}

unsafe extern "C" fn fide_members(ctx: *mut raw::RedisModuleCtx, _: Argv, _: c_int) -> c_int {
    let members = with_state(|state| status::members(state)).unwrap_or_default();
    Ctx(ctx).value(&Value::List(
        members
            .into_iter()
            .map(|member| Value::List(member.into_iter().map(|word| Value::Leaf(word.into_bytes())).collect()))
            .collect(),
    ))
}

/// Takes a member out of the group: this one, or the one named.
unsafe extern "C" fn fide_leave(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    if let Some(refused) = refuse_unless(ctx, &["REPLICAOF", "NO", "ONE"]) {
        return refused;
    }
    let host = args.get(0).map(|name| String::from_utf8_lossy(name).into_owned());
    let result = with_state(|state| {
        let host = host.as_ref().map_or(Ok(state.member.host()), |wanted| host_of(&*state.member, wanted))?;
        let command = format!("FIDE.LEAVE {}", state.member.name(host).unwrap_or_default());
        state
            .member
            .remove(host)
            .map_err(|why| format!("ERR {}", refusal(&*state.member, state.leader(), why, &command)))
    });
    match result {
        Some(Ok(())) => ctx.ok(),
        Some(Err(why)) => ctx.error(&why),
        None => ctx.error("ERR the module has not begun"),
    }
}
