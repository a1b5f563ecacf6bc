// SPDX-License-Identifier: Apache-2.0
//! What Redis Sentinel would answer about this group, so that client libraries with support for Sentinel
//! follow the leader as they are. Every server of the group is one of its own sentinels.

use std::ffi::c_int;

use redis_module::raw;

use super::{state::State, with_state};
use crate::{
    redis::{Args, Argv, Ctx},
    resp::Value,
};

/// The channel on which a new leader is announced.
pub(super) const SWITCH: &str = "+switch-master";

/// An instance as Sentinel describes it: names and values.
type Fields = Vec<(&'static str, String)>;

enum Answer {
    Value(Value),
    /// A map of its own to clients of RESP3, names and values in turn to others: libraries tell the two apart.
    Instance(Fields),
    Instances(Vec<Fields>),
}

fn leaf(text: impl Into<Vec<u8>>) -> Value {
    Value::Leaf(text.into())
}

fn instance(state: &State, host: u16, name: &str, flags: &str, more: Fields) -> Option<Fields> {
    let (ip, port) = state.place(host)?;
    let mut all = vec![
        ("name", name.to_owned()),
        ("ip", ip),
        ("port", port),
        ("runid", run_id(host)),
        ("flags", flags.to_owned()),
        ("link-pending-commands", "0".to_owned()),
        ("last-ok-ping-reply", "0".to_owned()),
        ("down-after-milliseconds", "0".to_owned()),
    ];
    all.extend(more);
    Some(all)
}

/// Forty digits, as Redis' own are.
fn run_id(host: u16) -> String {
    format!("{host:040x}")
}

/// The hosts of the view, without one.
fn but(state: &State, without: Option<u16>) -> Vec<u16> {
    let (_, hosts) = state.member.view().unwrap_or_default();
    hosts.into_iter().filter(|host| Some(*host) != without).collect()
}

fn master(state: &State) -> Option<Fields> {
    let leader = state.member.leader()?;
    let others = but(state, Some(leader)).len().to_string();
    let more = vec![
        ("role-reported", "master".to_owned()),
        ("config-epoch", state.view_number().to_string()),
        ("num-slaves", others.clone()),
        ("num-other-sentinels", others),
        ("quorum", "1".to_owned()),
    ];
    instance(state, leader, &state.name, "master", more)
}

fn replicas(state: &State) -> Vec<Fields> {
    let leader = state.member.leader();
    let one = |host: u16| {
        let (ip, port) = state.place(host)?;
        let (master_ip, master_port) = state.place(leader?)?;
        let more = vec![
            ("role-reported", "slave".to_owned()),
            ("master-link-status", "ok".to_owned()),
            ("master-host", master_ip),
            ("master-port", master_port),
            ("slave-priority", "100".to_owned()),
        ];
        instance(state, host, &format!("{ip}:{port}"), "slave", more)
    };
    but(state, leader).into_iter().filter_map(one).collect()
}

fn sentinels(state: &State) -> Vec<Fields> {
    let me = state.member.host();
    let one = |host: u16| instance(state, host, &run_id(host), "sentinel", Vec::new());
    but(state, Some(me)).into_iter().filter_map(one).collect()
}

fn answer(state: &State, words: &[&[u8]]) -> Result<Answer, String> {
    let what = words.first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
    let is_ours = words.get(1).is_some_and(|name| *name == state.name.as_bytes());
    let ours = || {
        if is_ours { Ok(()) } else { Err(format!("ERR No such master with that name; this group is {}", state.name)) }
    };
    let leader = || state.member.leader().and_then(|host| state.place(host));
    match what.as_slice() {
        b"get-master-addr-by-name" => Ok(Answer::Value(match leader().filter(|_| is_ours) {
            Some((ip, port)) => Value::List(vec![leaf(ip), leaf(port)]),
            None => Value::Null,
        })),
        b"masters" => Ok(Answer::Instances(master(state).into_iter().collect())),
        b"master" => {
            ours().and_then(|()| master(state).map(Answer::Instance).ok_or("ERR no leader is known".to_owned()))
        }
        b"replicas" | b"slaves" => ours().map(|()| Answer::Instances(replicas(state))),
        b"sentinels" => ours().map(|()| Answer::Instances(sentinels(state))),
        b"myid" => Ok(Answer::Value(leaf(run_id(state.member.host())))),
        b"ckquorum" => ours().map(|()| {
            let usable = sentinels(state).len() + 1;
            Answer::Value(leaf(format!("OK {usable} usable Sentinels. The group agrees by itself")))
        }),
        _ => Err(format!(
            "ERR SENTINEL {} is not answered; there are GET-MASTER-ADDR-BY-NAME, MASTERS, MASTER, REPLICAS, SENTINELS, MYID, CKQUORUM",
            String::from_utf8_lossy(&what).to_ascii_uppercase()
        )),
    }
}

fn write(ctx: Ctx, fields: &Fields) -> c_int {
    ctx.map(fields.len());
    for (name, value) in fields {
        ctx.value(&leaf(*name));
        ctx.value(&leaf(value.as_str()));
    }
    0
}

pub(super) unsafe extern "C" fn sentinel(ctx: *mut raw::RedisModuleCtx, argv: Argv, argc: c_int) -> c_int {
    // SAFETY: Redis calls commands with their arguments, which live until the command returns.
    let args = unsafe { Args::new(argv, argc) }.rest();
    let words = args.to_bytes();
    let reply = with_state(|state| answer(state, &words)).unwrap_or(Err("ERR the module has not begun".to_owned()));
    let ctx = Ctx(ctx);
    match reply {
        Ok(Answer::Value(value)) => ctx.value(&value),
        Ok(Answer::Instance(fields)) => write(ctx, &fields),
        Ok(Answer::Instances(all)) => {
            ctx.array(all.len());
            all.iter().for_each(|fields| {
                write(ctx, fields);
            });
            0
        }
        Err(why) => ctx.error(&why),
    }
}
