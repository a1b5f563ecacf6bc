// SPDX-License-Identifier: Apache-2.0
//! What a call says under the library, and not without it.

/// What is to become of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It stays, and is met in each run of the tests.
    Stays,
    /// It stays. Whether it is met depends on which of two things comes first.
    MayStay,
    /// It is met only where the memory comes in the middle.
    Over,
    /// It is a fault, and may be mended. Then its line here has to go.
    Fault,
}

use Kind::{Fault, MayStay, Over, Stays};

/// Lines that a scenario prints.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Difference {
    pub(crate) kind: Kind,
    pub(crate) why: &'static str,
    pub(crate) scenario: &'static str,
    /// Without the library, and with it.
    pub(crate) lines: [&'static str; 2],
}

const fn of(
    kind: Kind,
    why: &'static str,
    scenario: &'static str,
    kernels: &'static str,
    ours: &'static str,
) -> Difference {
    Difference { kind, why, scenario, lines: [kernels, ours] }
}

const CLOSED: &str =
    "a write to one that has closed fails at once, where the kernel takes one more before its answer comes";
const CLOSED_BY_THREAD: &str = "a close is one for the other end, also as another thread still waits for a read";
const RESET: &str =
    "a close with unread bytes, or without lingering, is read as the end, and the error stays in the socket";
const RESET_LATER: &str = "the end comes through the memory, and the reset by TCP after it";
const SENT: &str = "what was written is with the other end at once: nothing of it waits in the socket";
const EDGE: &str = "what is left after a read is told once more to an edge-triggered set";
const ROOM: &str = "with the memory comes its room";
const PART: &str = "a read ends where the memory came, and so does a look";
const EXCLUSIVE: &str = "an exclusive interest may be changed";
const RESTART: &str = "a write that waits for TCP is interrupted by each signal";
const HUNG_UP: &str = "the kernel has no word for an interest that was told once and hears of no hang-up";
const BACK: &str = "one that goes back to TCP is asked for anew, and its room is told by an event of its own";
const GONE: &str = "nobody sends once more what is unread of an end that has closed";

pub(crate) const DIFFERENCES: &[Difference] = &[
    of(MayStay, CLOSED, "other-end-closes-with-bytes", "send: 1", "send: EPIPE"),
    of(MayStay, CLOSED_BY_THREAD, "closes-as-others-read", "recv: 1", "recv: EBADF"),
    of(
        MayStay,
        RESET,
        "closes-without-lingering",
        "other end: poll 1 IN|OUT|HUP|RDHUP",
        "other end: poll 1 IN|OUT|ERR|HUP|RDHUP",
    ),
    of(
        MayStay,
        RESET_LATER,
        "closes-without-lingering",
        "other end: poll 1 IN|OUT|HUP|RDHUP",
        "other end: poll 1 IN|OUT|RDHUP",
    ),
    of(
        MayStay,
        RESET,
        "closes-without-reading",
        "other end: poll 1 IN|OUT|HUP|RDHUP",
        "other end: poll 1 IN|OUT|ERR|HUP|RDHUP",
    ),
    of(
        MayStay,
        RESET_LATER,
        "closes-without-reading",
        "other end: poll 1 IN|OUT|HUP|RDHUP",
        "other end: poll 1 IN|OUT|RDHUP",
    ),
    of(MayStay, RESET_LATER, "the-other-end-dies", "reset: 1 1:IN|ERR|HUP|RDHUP", "reset: 1 1:IN|RDHUP"),
    of(MayStay, RESET, "the-other-end-dies", "read: ECONNRESET", "read: 0"),
    of(MayStay, RESET, "the-other-end-dies", "afterwards: 1 1:IN|HUP|RDHUP", "afterwards: 1 1:IN|ERR|HUP|RDHUP"),
    of(
        Stays,
        SENT,
        "counts-what-was-sent",
        "SIOCOUTQ of what has not, and is more than nothing: 1",
        "SIOCOUTQ of what has not, and is more than nothing: 0",
    ),
    of(Stays, EDGE, "edge", "nothing new after a part: 0", "nothing new after a part: 1 1:IN|OUT"),
    of(Over, EDGE, "edge", "nothing new: 0", "nothing new: 1 1:IN|OUT"),
    of(Over, ROOM, "edge-of-room", "no room: 0", "no room: 1 1:OUT"),
    of(Over, ROOM, "edge-of-room", "room again: 1 1:OUT", "room again: 0"),
    of(Over, ROOM, "edge-of-room", "no room: 0", "no room: 1 2:OUT"),
    of(Over, ROOM, "limits", "send: EAGAIN", "send: 8"),
    of(Over, ROOM, "polled", "all, without room: 1 IN|RDNORM", "all, without room: 1 IN|OUT|RDNORM|WRNORM"),
    of(Over, ROOM, "polled", "room, without room: 0 nothing", "room, without room: 1 OUT"),
    of(Over, ROOM, "selected", "bytes: 1, read 1, write 0, except 0", "bytes: 2, read 1, write 1, except 0"),
    of(Over, ROOM, "selected", "neither: 0, read 0, write 0, except 0", "neither: 1, read 0, write 1, except 0"),
    of(Over, ROOM, "sends-files", "without room: EAGAIN", "without room: 1000"),
    of(Over, ROOM, "sends-files", "offset 7", "offset 1007"),
    of(Over, ROOM, "writes-several-messages", "sendmmsg without room: EAGAIN", "sendmmsg without room: 1"),
    of(Over, PART, "waits-for-all", "recv that looks: 8", "recv that looks: 3"),
    of(Over, PART, "edge", "read of all: 5", "read of all: 2"),
    of(Over, PART, "edge", "read of none: EAGAIN", "read of none: 3"),
    of(Over, ROOM, "polled", "neither: 0 nothing", "neither: 1 OUT|WRNORM"),
    of(Over, ROOM, "polled", "the same one twice: 1", "the same one twice: 2"),
    of(Over, ROOM, "polled", "IN, nothing, nothing", "IN, OUT, nothing"),
    of(Over, ROOM, "shuts-as-others-write", "send: EPIPE", "send: 3"),
    of(Over, ROOM, "wakes-for-room", "no room: 0", "no room: 1 1:OUT"),
    of(Over, ROOM, "wakes-for-room", "no room: 0", "no room: 1 2:OUT"),
    of(Over, ROOM, "wakes-for-room", "no room: 0", "no room: 1 3:OUT"),
    of(Over, ROOM, "wakes-for-room", "room, edge: 1 2:OUT", "room, edge: 0"),
    of(Over, ROOM, "wakes-for-room", "room, one shot: 1 3:OUT", "room, one shot: 0"),
    of(Over, ROOM, "without-a-wait", "write without room: EAGAIN", "write without room: 8"),
    of(Over, ROOM, "without-a-wait", "send without room: EAGAIN", "send without room: 8"),
    of(Over, ROOM, "without-a-wait", "writev without room: EAGAIN", "writev without room: 8"),
    of(
        Over,
        ROOM,
        "without-a-wait",
        "send without room, without a wait: EAGAIN",
        "send without room, without a wait: 8",
    ),
    of(Over, PART, "looks", "what came in two writes: 7", "what came in two writes: 4"),
    of(Over, PART, "looks", "cdefghi", "cdef"),
    of(Over, PART, "looks", "without copying, more than there is: 7", "without copying, more than there is: 4"),
    of(Stays, EXCLUSIVE, "wrong-calls", "change of an exclusive one: EINVAL", "change of an exclusive one: 0"),
    of(MayStay, RESTART, "with-restart-of-writes", "send: 3", "send: EINTR"),
    of(Fault, HUNG_UP, "one-shot", "the ends of one that was told: 0", "the ends of one that was told: 1 2:HUP"),
    of(Stays, GONE, "handed-on-as-the-other-end-has-closed", "sendmsg: 1", "sendmsg: EOPNOTSUPP"),
    of(MayStay, BACK, "others-wait-as-it-is-handed-on", "IN|OUT", "IN"),
    of(
        MayStay,
        BACK,
        "others-wait-as-it-is-handed-on",
        "epoll_wait of nothing, edge: 0",
        "epoll_wait of nothing, edge: 1",
    ),
];
