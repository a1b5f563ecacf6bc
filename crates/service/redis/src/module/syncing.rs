// SPDX-License-Identifier: Apache-2.0
//! A server that is no member yet: what it waits for, and what keeps it from taking over another server's data.
//!
//! Redis takes the data over by itself and tells a module neither of a full disk nor of a connection that is refused.
//! So this module looks at the room in Redis' directory at each turn while data comes, since Redis removes a dump that
//! found no room at once, and at the link as `INFO replication` has it.

use std::{
    cell::RefCell,
    time::{Duration, Instant},
};

use redis_module::raw;

use super::{
    ERRORS, Mode, call, caught_up, hot,
    state::{Act, State},
    with_state,
};
use crate::redis::Ctx;

/// Between two looks at the link and at the group.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Fewer bytes than this: the next that came found no room. Redis writes up to 16 KiB of a dump at once.
const ROOM_MIN: u64 = 256 << 10;
/// What was seen counts for so long: Redis tries again once a second.
const SEEN_FOR: Duration = Duration::from_secs(10);
/// Data that does not come is named after so long: a link takes a second to begin.
const BLAMED_AFTER: Duration = Duration::from_secs(3);

/// Dumps in a row that Redis cannot load, after which this server ends.
const FAILURES_MAX: u32 = 5;

/// What was seen while data was taken over.
#[derive(Default)]
struct Seen {
    looked: Option<Instant>,
    /// Bytes that were free when they were fewest, and when.
    room: Option<(Instant, u64)>,
    /// Since when no data comes.
    apart: Option<Instant>,
    /// When the group was last told that the data does not come.
    declined: Option<Instant>,
    /// Redis could not load a dump that it was sent.
    unread: Option<Instant>,
    failures: u32,
    /// What was logged last: of the data, and of servers with other settings.
    logged: [Option<String>; 2],
}

thread_local! {
    static SEEN: RefCell<Seen> = RefCell::new(Seen::default());
}

impl Seen {
    /// `bytes` are free now.
    fn note_room(&mut self, now: Instant, bytes: u64) {
        let is_over = self.room.is_none_or(|(seen, least)| bytes <= least || now.duration_since(seen) > SEEN_FOR);
        if is_over {
            self.room = Some((now, bytes));
        }
    }

    fn note_link(&mut self, now: Instant, info: &str) {
        let is = |line: &str| info.lines().any(|of| of == line);
        // Redis asks again and again where it is refused, so whether it asks right now says nothing.
        let comes = is("master_sync_in_progress:1") && !is("master_sync_read_bytes:0");
        self.apart = (!comes && !is("master_link_status:up")).then(|| self.apart.unwrap_or(now));
    }

    /// Whether no data has come for long, since the last time that this was said.
    fn is_in_vain(&mut self, now: Instant) -> bool {
        let since = self.apart.map(|apart| self.declined.map_or(apart, |declined| declined.max(apart)));
        let is_in_vain = since.is_some_and(|since| now.duration_since(since) > BLAMED_AFTER);
        if is_in_vain {
            self.declined = Some(now);
        }
        is_in_vain
    }

    /// Why the data does not come, for people; `dir`: Redis' directory, `source`: the server that it comes from.
    fn why(&self, now: Instant, dir: &str, source: &str) -> Option<String> {
        let (_, bytes) = self.room.unwrap_or((now, u64::MAX));
        if bytes < ROOM_MIN {
            return Some(format!(
                "the group's data could not be stored: No space left on device ({dir} had {bytes} bytes left); make room in {dir} for two \
                 dumps of the data, this server tries again each second"
            ));
        }
        if self.unread.is_some_and(|seen| now.duration_since(seen) < SEEN_FOR) {
            return Some("the group's data could not be loaded; the log of this server says why".to_owned());
        }
        self.apart.filter(|since| now.duration_since(*since) > BLAMED_AFTER).map(|_| {
            format!(
                "no data comes from {source}: its Redis waits for another dump to end, or refuses the connection. For that look at masterauth \
                 here, at requirepass, bind and protected-mode there, and at a firewall (the log of this server says more)"
            )
        })
    }
}

fn dir() -> String {
    std::env::current_dir().map_or_else(|_| "Redis' directory".to_owned(), |dir| dir.display().to_string())
}

impl Mode {
    /// The server is no member of its group: clients that wait for the group are answered.
    pub(super) fn is_outside(self) -> bool {
        matches!(self, Self::Joining | Self::Syncing | Self::Cut | Self::Out)
    }
}

impl State {
    /// What this server waits for, for people; none if it waits for nothing.
    pub(super) fn waits_for(&self) -> Option<String> {
        let group = self.member.waits_for();
        if self.mode != Mode::Syncing {
            return group;
        }
        let all = [self.why_no_data(), group];
        Some(all.into_iter().flatten().collect::<Vec<_>>().join("; ")).filter(|all| !all.is_empty())
    }

    /// Servers that run and are refused, and why.
    pub(super) fn refuses_and_differs(&self) -> Option<String> {
        let all = [self.member.refuses(), self.member.differs()];
        Some(all.into_iter().flatten().collect::<Vec<_>>().join("; ")).filter(|all| !all.is_empty())
    }

    fn why_no_data(&self) -> Option<String> {
        let (address, port) = self.source.as_ref().filter(|_| self.mode == Mode::Syncing)?;
        SEEN.with_borrow(|seen| seen.why(Instant::now(), &dir(), &format!("{address}:{port}")))
    }
}

/// In each turn.
pub(super) fn note_room() {
    if hot(|hot| hot.mode.get()) != Mode::Syncing {
        return;
    }
    if let Ok(room) = rustix::fs::statvfs(".") {
        SEEN.with_borrow_mut(|seen| seen.note_room(Instant::now(), room.f_bavail.saturating_mul(room.f_frsize)));
    }
}

/// In each tick: a server that has caught up leaves the other server's stream where nothing more comes.
pub(super) fn leave_at_rest(ctx: Ctx) {
    if with_state(|state| state.takes_over()) == Some(true)
        && let Some(position) = caught_up::rest(ctx)
    {
        with_state(|state| {
            if state.leave_stream(position) {
                state.cut();
            }
        });
    }
}

/// In each tick: looks at the link, and logs once what keeps this server out of its group.
pub(super) fn look(ctx: Ctx) {
    let mode = hot(|hot| hot.mode.get());
    let now = Instant::now();
    let is_due = SEEN.with_borrow_mut(|seen| {
        if !matches!(mode, Mode::Joining | Mode::Syncing) {
            (seen.room, seen.apart, seen.unread) = (None, None, None);
        }
        let is_due = seen.looked.is_none_or(|looked| now.duration_since(looked) > LOOK_EVERY);
        if is_due {
            seen.looked = Some(now);
        }
        is_due
    });
    if !is_due {
        return;
    }
    if mode == Mode::Syncing {
        let info = call(ctx, ERRORS, &[b"INFO", b"replication"]);
        let info = String::from_utf8_lossy(info.bytes()).into_owned();
        let is_in_vain = SEEN.with_borrow_mut(|seen| {
            seen.note_link(now, &info);
            seen.is_in_vain(now)
        });
        if is_in_vain {
            // The server that it should come from may be dead, and then another one offers its data.
            with_state(|state| state.member.decline_offer());
        }
    }
    let said = with_state(|state| [state.why_no_data(), state.member.differs()]).unwrap_or_default();
    SEEN.with_borrow_mut(|seen| {
        for (said, logged) in said.into_iter().zip(&mut seen.logged) {
            let Some(said) = said else { continue };
            // The number of bytes changes.
            let what = said.split('(').next().unwrap_or_default();
            if logged.as_deref() != Some(what) {
                ctx.log(c"warning", &said);
                *logged = Some(what.to_owned());
            }
        }
    });
}

/// Redis has begun to load data, or ended.
pub(super) unsafe extern "C" fn on_loading(
    _: *mut raw::RedisModuleCtx,
    _: raw::RedisModuleEvent,
    sub: u64,
    _: *mut std::ffi::c_void,
) {
    if hot(|hot| hot.mode.get()) != Mode::Syncing {
        return;
    }
    if sub == raw::REDISMODULE_SUBEVENT_LOADING_ENDED {
        SEEN.with_borrow_mut(|seen| seen.failures = 0);
    }
    if sub != raw::REDISMODULE_SUBEVENT_LOADING_FAILED {
        return;
    }
    let failures = SEEN.with_borrow_mut(|seen| {
        seen.unread = Some(Instant::now());
        seen.failures += 1;
        seen.failures
    });
    if failures >= FAILURES_MAX {
        with_state(State::end_unread);
    }
}

impl State {
    /// Redis cannot load what it is sent: it would go on asking for it, and the other server go on writing dumps.
    fn end_unread(&mut self) {
        let path = &self.dumps.path;
        // The next start would fail with it before this module is asked.
        let unread = path.with_extension("unread");
        let moved = match std::fs::rename(path, &unread) {
            Ok(()) => format!(", and is now {}", unread.display()),
            Err(_) => String::new(),
        };
        self.act(Act::End(format!(
            "its Redis could not load the group's data {FAILURES_MAX} times: the lines above say why. A dump of a newer Redis takes a newer Redis: \
             upgrade this server, or have a server of its version lead (FIDE.TRANSFER). The dump was in {}{moved}",
            path.display()
        )));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_server_is_asked_for_once_in_a_while_where_no_data_comes() {
        let (mut seen, begin) = (Seen::default(), Instant::now());
        assert!(!seen.is_in_vain(begin));
        seen.note_link(begin, "master_link_status:down");
        assert!(!seen.is_in_vain(begin + BLAMED_AFTER));
        let later = begin + BLAMED_AFTER + LOOK_EVERY;
        assert!(seen.is_in_vain(later) && !seen.is_in_vain(later + LOOK_EVERY));
        assert!(seen.is_in_vain(later + BLAMED_AFTER + LOOK_EVERY));
        seen.note_link(later, "master_sync_in_progress:1\nmaster_sync_read_bytes:5");
        assert!(!seen.is_in_vain(later + 9 * BLAMED_AFTER), "it comes");
    }

    #[test]
    fn full_disk_is_named_until_it_has_had_room_for_a_while() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        let why = |seen: &Seen, at| seen.why(at, "/data", "10.0.0.3:6379");
        seen.note_room(now, 50 << 20);
        assert_eq!(why(&seen, now), None);
        seen.note_room(now, 8192);
        // Redis has removed what it had written.
        seen.note_room(now + Duration::from_secs(1), 50 << 20);
        let said = why(&seen, now + Duration::from_secs(1)).expect("a reason");
        assert!(said.contains("No space left on device (/data had 8192 bytes left); make room in /data"), "{said}");
        let later = now + SEEN_FOR + Duration::from_secs(1);
        seen.note_room(later, 50 << 20);
        assert_eq!(why(&seen, later), None);
    }

    #[test]
    fn link_that_does_not_come_is_named_after_a_while() {
        let (mut seen, now) = (Seen::default(), Instant::now());
        let why = |seen: &Seen, at| seen.why(at, "/data", "10.0.0.3:6379");
        let down = "role:slave\r\nmaster_link_status:down\r\nmaster_sync_in_progress:0\r\n";
        seen.note_link(now, down);
        let later = now + BLAMED_AFTER + Duration::from_millis(1);
        seen.note_link(later, down);
        assert_eq!(why(&seen, now), None);
        assert!(why(&seen, later).expect("a reason").contains("from 10.0.0.3:6379"));
        let asks = "master_link_status:down\r\nmaster_sync_in_progress:1\r\nmaster_sync_read_bytes:0\r\n";
        seen.note_link(later, asks);
        assert!(why(&seen, later).is_some(), "one that is refused asks, too");
        seen.note_link(later, "master_link_status:down\r\nmaster_sync_in_progress:1\r\nmaster_sync_read_bytes:9\r\n");
        assert_eq!(why(&seen, later), None, "it comes");
    }
}
