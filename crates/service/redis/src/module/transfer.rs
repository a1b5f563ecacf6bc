// SPDX-License-Identifier: Apache-2.0
//! `FIDE.TRANSFER`: the lead goes to another server.
//!
//! At the end of the turn, when everything that clients wrote is decided, and once a former leader has answered what
//! clients of this server passed on to it, the leader hands over and waits for
//! the view in which the other one leads. Its server becomes a replica before it executes another command, so
//! its data is that of the log. Clients stay connected, and their writes are passed on. Three kinds do not:
//!
//! - A client in a transaction is disconnected before EXEC, so nothing of the transaction has happened.
//! - A client that waits for data (`BLPOP`) is answered `-UNBLOCKED`, and disconnected, by Redis itself.
//! - If the view is not decided in time all clients are disconnected, as at every stall of the group.
//!
//! A client that watches keys (`WATCH`) stays: the writes of its transaction are refused at a follower.

use std::{ffi::c_int, time::Duration};

use redis_module::raw;

use super::{
    ERRORS, MODULE, Mode, TURN,
    access::refuse_unless,
    call, closing,
    refused::{host_of, refusal},
    replies::is_in_transaction,
    state::{Act, Commit, State},
    with_state,
    words::inner,
};
use crate::{
    redis::{Argv, Ctx},
    stream::Stream,
    suspended,
};

impl State {
    /// Names the member that is to lead after this turn: this one, or the most senior other one.
    fn name_successor(&mut self, host: Option<u16>) -> Result<(), String> {
        if self.mode != Mode::Leader {
            return Err(match self.leader() {
                Some((name, address)) if !self.member.leads() => {
                    format!("ERR the leader is {name} at {address}: ask there, FIDE.TRANSFER HOST")
                }
                _ => format!("TRYAGAIN this server is {}; ask again", self.mode.name()),
            });
        }
        let (_, hosts) = self.member.view().unwrap_or_default();
        let senior = || hosts.into_iter().find(|host| self.member.lives(*host));
        let Some(host) = host.or_else(senior) else {
            return Err("ERR no other server is in the group: there is none to lead".to_owned());
        };
        self.member
            .may_hand_over(host)
            .map_err(|why| format!("ERR {}", refusal(&*self.member, self.leader(), why, "FIDE.TRANSFER HOST")))?;
        self.successor = Some(host);
        Ok(())
    }

    /// Hands over, if that was asked for in this turn, whose unit is decided.
    pub(super) fn hand_over(&mut self) {
        // A moment later, where the former leader still owes answers to clients of this server.
        if suspended::is_any() {
            return;
        }
        let Some(host) = self.successor.take() else { return };
        if self.mode != Mode::Leader || !self.is_clean() {
            return self.say("the lead was not handed over: the group has not agreed on what clients wrote".to_owned());
        }
        if let Err(why) = self.member.hand_over(host) {
            return self.say(format!("the lead was not handed over: {why}"));
        }
        let view = self.view_number();
        self.hands_over_in = Some(view);
        let result = self.wait_until(|state| state.view_number() != view);
        if result == Commit::Open && self.member.leads() {
            // What clients write now would not be proposed before the view, and after it not by this member.
            return self.leave_open();
        }
        // The others have to learn of the view.
        if let Err(why) = self.member.wait(Duration::ZERO) {
            return self.end(&why);
        }
        self.note_handed_over();
        self.follow_standing();
    }

    /// The view has come in which another member may lead.
    pub(super) fn note_handed_over(&mut self) {
        let view = self.view_number();
        self.hands_over_in.take_if(|begun| *begun != view);
    }

    /// Whether the server's data is that of the log up to the last decision.
    pub(super) fn is_clean(&self) -> bool {
        self.has_decided_all() && !self.kept.has_turn() && TURN.with_borrow(Stream::is_empty)
    }

    /// Another member leads now, and this one was not excluded: it has handed over.
    pub(super) fn retire(&mut self) {
        if !self.is_clean() {
            self.mode = Mode::Out;
            return self.act(Act::End(
                "it has handed over, and keys have expired here while the group did not agree; start the server again, it takes over the \
                 group's data"
                    .to_owned(),
            ));
        }
        if self.mode == Mode::Leader {
            self.begin_session();
            self.act(Act::DisconnectTransactions);
        } else {
            self.step_down();
        }
        self.mode = Mode::Following;
        self.seen.handed_over += 1;
        self.act(Act::FollowFeed);
        if self.replicas > 0 {
            // A server that joins waits for it.
            self.kept.want_all();
            self.push_position(self.member.position());
        }
        let leader = self.leader().map_or_else(|| "another server".to_owned(), |(name, _)| name);
        self.say(format!("this server has handed over to {leader}, and follows"));
    }

    /// Whether this member leads because it was handed the lead: the former leader is still a member.
    pub(super) fn was_handed_over(&self, former: Option<u16>) -> bool {
        let Some((_, hosts)) = self.member.view() else { return false };
        hosts.first() == Some(&self.member.host()) && former.is_some_and(|former| hosts.contains(&former))
    }
}

/// Closes the connections of clients in a transaction.
pub(super) fn disconnect_transactions(ctx: Ctx) {
    let list = call(ctx, ERRORS, &[b"CLIENT", b"LIST"]);
    for client in in_transactions(&String::from_utf8_lossy(list.bytes())) {
        if let Some(id) = field(client, "id") {
            call(ctx, ERRORS, &[b"CLIENT", b"KILL", b"ID", id.as_bytes()]);
        }
    }
}

/// Has nothing more sent to clients in a transaction. They are [disconnected](disconnect_transactions) at the end of the
/// turn. Also in the filter, which is not told whose command it looks at.
pub(super) fn shut_transactions() {
    let Some(ctx) = MODULE.with_borrow(|module| module.as_ref().map(|module| module.ctx)) else { return };
    let list = call(ctx, ERRORS, &[b"CLIENT", b"LIST"]);
    let list = String::from_utf8_lossy(list.bytes());
    in_transactions(&list).filter_map(|client| field(client, "fd")?.parse().ok()).for_each(closing::shut);
}

/// The lines of clients in a transaction. The link of a server that takes data over may be in one of the other server's,
/// and is none of them.
fn in_transactions(list: &str) -> impl Iterator<Item = &str> {
    let is_link = |client: &str| field(client, "flags").is_some_and(|flags| flags.contains('M'));
    list.lines().filter(move |client| !is_link(client) && is_in_transaction(client.as_bytes()))
}

fn field<'a>(client: &'a str, name: &str) -> Option<&'a str> {
    client.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// `FIDE.TRANSFER [host]`
pub(super) unsafe extern "C" fn fide_transfer(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    if let Some(refused) = refuse_unless(ctx, &["FAILOVER"]) {
        return refused;
    }
    if args.len() > 1 {
        return ctx.error("ERR FIDE.TRANSFER takes the name of one host at most");
    }
    if ctx.is_nested() {
        return ctx.error("ERR FIDE.TRANSFER cannot stand in a transaction or script");
    }
    let name = args.get(0).map(|name| String::from_utf8_lossy(name).into_owned());
    let result = with_state(|state| match &name {
        None => state.name_successor(None),
        Some(name) => host_of(&*state.member, name).and_then(|host| state.name_successor(Some(host))),
    });
    match result {
        Some(Ok(())) => ctx.ok(),
        Some(Err(why)) => ctx.error(&why),
        None => ctx.error("ERR the module has not begun"),
    }
}
