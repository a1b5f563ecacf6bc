// SPDX-License-Identifier: Apache-2.0
//! `durable disk`: the data that the group's log on disk begins with, and how a server gets its data back.
//!
//! **The state is a dump of Redis.** When the log is long, or the disk has no state yet, Redis forks and writes its
//! dump as of a position (BGSAVE); the dump's file becomes part of the log by a link. Nothing else is asked of
//! Redis meanwhile but to allow no second dump.
//!
//! **Coming back.** All servers have ended, and the group is founded again from this server's disk: the server
//! becomes a replica of this module with a full synchronisation from that file ([`crate::link`]), then is fed the
//! decisions since, as any follower.

use std::{
    fs,
    io::Read,
    time::{Duration, Instant},
};

use super::{
    ERRORS, TURN, call,
    dump::{Dump, Summed, inode},
    hot, settle,
    state::{Act, Mode, State},
    with_state,
};
use crate::{redis::Ctx, resp::Value, stream::Stream};

/// Between two attempts to have Redis write its dump, and after one that failed.
const AGAIN: Duration = Duration::from_millis(500);
const AGAIN_FAILED: Duration = Duration::from_secs(10);
/// Bytes of a dump that are read in one tick.
const SUM_BYTES: usize = 4 << 20;

impl State {
    /// Whether Redis is to write a dump now. Its data has to be that of a position exactly.
    pub(super) fn wants_dump(&self) -> bool {
        // Asked in each turn, and nearly always false.
        if !self.member.wants_base() {
            return false;
        }
        let pause = if self.dumps.has_failed { AGAIN_FAILED } else { AGAIN };
        let is_due = self.dumps.dump.is_none()
            && self.dumps.summed.is_none()
            && self.dumps.tried.is_none_or(|tried| tried.elapsed() > pause);
        let is_exact = match self.mode {
            Mode::Leader => self.has_decided_all() && !self.kept.has_turn() && TURN.with_borrow(Stream::is_empty),
            Mode::Following => self.has_applied_all() && !hot(|hot| hot.is_mid_unit.get()),
            _ => false,
        };
        is_due && is_exact
    }

    /// The group was founded again from this server's disk: its data is what is there.
    pub(super) fn begin_recovery(&mut self) {
        self.dumps.has_recovered = true;
        self.feed.close();
        self.kept.clear();
        (self.fed, self.applied) = (0, 0);
        let mut from = "an empty state".to_owned();
        if let Some(stored) = self.member.poll_stored_state() {
            from = format!("the state of position {}", stored.position);
            if !self.kept.once.keep_all(&stored.beside) {
                return self.give_up_recovery("the answers to numbered requests are damaged");
            }
            if let Err(why) = self.feed.set_file(&stored.path) {
                return self.give_up_recovery(&format!("{}: {why}", stored.path.display()));
            }
            self.fed = stored.position;
            self.push_position(stored.position);
        }
        self.acts.push(Act::Empty);
        self.acts.push(Act::FollowFeed);
        self.acts.push(Act::TolerateErrors);
        let found = self.member.recovery();
        let (decisions, torn) = found.map_or((0, 0), |found| (found.decisions, found.torn_bytes));
        let cut = if torn > 0 { format!("; {torn} bytes of an unfinished write were cut") } else { String::new() };
        self.say(format!(
            "all servers of the group had ended, and it goes on from this server's disk: {from} and {decisions} decisions since{cut}"
        ));
    }

    fn give_up_recovery(&mut self, why: &str) {
        self.mode = Mode::Out;
        self.acts.push(Act::End(format!("the group's data on this disk cannot be read: {why}")));
    }
}

/// Has Redis write a dump, if one is wanted. Called where Redis executes no command, and nothing is undecided.
pub(super) fn dump(ctx: Ctx) {
    let wanted = with_state(|state| {
        state.wants_dump().then(|| {
            state.dumps.tried = Some(Instant::now());
            (state.applied, state.kept.once.dump(), inode(&state.dumps.path))
        })
    });
    let Some(Some((position, beside, before))) = wanted else { return };
    match call(ctx, ERRORS, &[b"BGSAVE"]).value() {
        Value::Error(why) => {
            let why = String::from_utf8_lossy(&why).into_owned();
            // Another child of Redis, for a server that takes the data over, ends soon. Other reasons stay.
            if !why.contains("in progress") && !why.contains("child process") {
                with_state(|state| state.dumps.has_failed = true);
                complain(ctx, &format!("BGSAVE: {why}"));
            }
        }
        _ => {
            with_state(|state| state.dumps.dump = Some(Dump { position, beside, before }));
        }
    }
}

/// A child of Redis has ended.
pub(super) fn child_ended(ctx: Ctx) {
    let outcome = with_state(|state| {
        let dump = state.dumps.dump.take()?;
        state.dumps.has_failed = true;
        let path = &state.dumps.path;
        let target = state.member.base_file()?;
        if inode(path) == dump.before {
            return Some(Err(format!("Redis did not write {}; its log says why", path.display())));
        }
        let _ = fs::remove_file(&target);
        // On another file system there is no link.
        let linked = fs::hard_link(path, &target).or_else(|_| fs::copy(path, &target).map(drop));
        let opened = linked.and_then(|()| fs::File::open(&target));
        Some(opened.map_err(|why| format!("{} to {}: {why}", path.display(), target.display())).map(|file| {
            state.dumps.summed = Some(Summed { file, sum: 0, dump });
        }))
    });
    if let Some(Some(Err(why))) = outcome {
        complain(ctx, &why);
    }
    settle();
}

fn complain(ctx: Ctx, why: &str) {
    ctx.log(c"warning", &format!("the group's log on disk has no new state, and is tried again: {why}"));
}

/// Reads on in a dump that was linked, to know its checksum: a part in each tick, so that nobody waits for it.
pub(super) fn sum_up(ctx: Ctx) {
    let outcome = with_state(|state| {
        let Some(summed) = &mut state.dumps.summed else { return Ok(()) };
        let mut bytes = vec![0; SUM_BYTES];
        let len = summed.file.read(&mut bytes)?;
        summed.sum = crc32c::crc32c_append(summed.sum, &bytes[..len]);
        if len == 0
            && let Some(Summed { sum, dump, .. }) = state.dumps.summed.take()
        {
            state.dumps.has_failed = false;
            state.member.store_base_file(dump.position, dump.beside, sum);
        }
        Ok::<_, std::io::Error>(())
    });
    if let Some(Err(why)) = outcome {
        with_state(|state| state.dumps.summed = None);
        complain(ctx, &why.to_string());
    }
}
