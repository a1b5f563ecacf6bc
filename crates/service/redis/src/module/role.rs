// SPDX-License-Identifier: Apache-2.0
//! `ROLE`: as Redis answers it, with the servers of the group in place of this module's link.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use super::{access::answer, call_args, class_of, state::State, with_state, words::inner};
use crate::{
    commands::Class,
    redis::{Argv, Ctx},
    resp::Value,
};

/// Errors as replies, and the rights of the client.
const ROLE: &CStr = c"E0C";

/// An address and a port.
type Place = (String, String);

/// Where the leader is, and the live others of the view.
fn places(state: &State) -> (Option<Place>, Vec<Place>) {
    let leader = state.member.leader();
    let (_, hosts) = state.member.view().unwrap_or_default();
    let others = hosts.into_iter().filter(|host| Some(*host) != leader && state.member.lives(*host));
    (leader.and_then(|host| state.place(host)), others.filter_map(|host| state.place(host)).collect())
}

pub(super) unsafe extern "C" fn fide_role(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    let (ctx, args) = (Ctx(ctx), inner(argv, argc));
    if class_of(args) != Class::Role {
        return ctx.error("ERR FIDE.ROLE is for this module's own use");
    }
    let reply = call_args(ctx, ROLE, args);
    let Some((leader, others)) = with_state(|state| places(state)) else { return answer(ctx, args, &reply) };
    let role = reply.value();
    match (role.list(), leader) {
        // What is answered is at all of them.
        ([name, offset, _], _) => {
            ctx.array(3);
            ctx.value(name);
            ctx.integer(offset.integer().unwrap_or(0));
            ctx.array(others.len());
            for (ip, port) in others {
                ctx.array(3);
                ctx.string(ip.as_bytes());
                ctx.string(port.as_bytes());
                ctx.value(offset);
            }
            0
        }
        ([name, _, _, link, offset], Some((ip, port))) => {
            ctx.array(5);
            ctx.value(name);
            ctx.value(&Value::Leaf(ip.into_bytes()));
            ctx.integer(port.parse().unwrap_or(0));
            ctx.value(link);
            ctx.integer(offset.integer().unwrap_or(-1))
        }
        _ => answer(ctx, args, &reply),
    }
}
