// SPDX-License-Identifier: Apache-2.0
//! Whether a link stands.
//!
//! | word of each part | what the other proxy has written there |
//! |---|---|
//! | 0 | its key of this session: a random number, not 0 |
//! | 1 | the key that it has seen of this one: all its rings here are empty, and it sends nothing but what is of this session |
//! | 2 | a number that it counts up |
//! | 3 | the shape of the link as it has it: version, partitions and bytes |
//!
//! A proxy that sees a key which it does not know makes its rings at the other one empty, and then says that it has seen it. The link
//! stands at a proxy once the other one has said so of its own key. It is lost where the other key changes, or the number stands still: then
//! this proxy takes another key, which tells the other one.

use std::time::Duration;

use crate::{
    link::Layout,
    window::{WORD, Window},
};

const KEY_AT: usize = 0;
const SEEN_AT: usize = WORD;
const BEAT_AT: usize = 2 * WORD;
const SHAPE_AT: usize = 3 * WORD;
/// Of all that lies in a link's window, and of the length of the programs' rings.
const VERSION: u64 = 2;

/// One end of a link.
#[derive(Debug)]
pub struct Session {
    layout: Layout,
    lost_after: Duration,
    own: u64,
    /// Of the other proxy, as it was told; 0: none was.
    other: u64,
    beat: u64,
    /// The other one's, and since when it is that.
    seen: (u64, Duration),
    is_up: bool,
}

/// What has become of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Down,
    /// It stands from now on, with these keys: this end's, and the other one's. All rings are empty.
    Rises([u64; 2]),
    Up,
    /// It is lost: all that use it have to be still before the next step.
    Falls(Lost),
}

/// Why a link is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    #[error("the other proxy has begun anew")]
    Anew,
    #[error("the other proxy has not been seen for {0:?}")]
    Silent(Duration),
    #[error("{0}")]
    Cut(super::Cut),
    #[error("the memory was taken away")]
    Gone,
}

fn shape(layout: Layout) -> u64 {
    VERSION << 56 | (layout.partitions as u64) << 48 | layout.len as u64 & 0xffff_ffff_ffff
}

impl Session {
    /// Lost after so long a silence. `key`: a random number.
    #[must_use]
    pub fn new(layout: Layout, lost_after: Duration, key: u64) -> Self {
        Self { layout, lost_after, own: key.max(1), other: 0, beat: 0, seen: (0, Duration::ZERO), is_up: false }
    }

    #[must_use]
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// The other proxy has the link in another shape: how many partitions, and bytes of a part.
    #[must_use]
    pub fn differs(&self, window: &impl Window) -> Option<(u64, u64)> {
        let other = window.poll(SHAPE_AT);
        (other != 0 && other != shape(self.layout)).then_some((other >> 48 & 0xff, other & 0xffff_ffff_ffff))
    }

    /// To be called again and again, at least ten times within the time after which the link is lost. `now`: since any time. `key`: a random
    /// number.
    pub fn turn(&mut self, window: &impl Window, now: Duration, key: impl FnOnce() -> u64) -> Turn {
        self.beat += 1;
        window.publish(BEAT_AT, self.beat);
        let beat = window.poll(BEAT_AT);
        if beat != self.seen.0 {
            self.seen = (beat, now);
        }
        // In this order: the other one says who it is before it says whom it has seen.
        let has_seen = window.poll(SEEN_AT) == self.own;
        let other = window.poll(KEY_AT);
        let is_known = other == self.other && has_seen;
        if self.is_up {
            let silence = now.saturating_sub(self.seen.1);
            return match (is_known, silence > self.lost_after) {
                (true, false) => Turn::Up,
                (true, true) => self.falls(window, Lost::Silent(silence), key()),
                (false, _) => self.falls(window, Lost::Anew, key()),
            };
        }
        window.publish(SHAPE_AT, shape(self.layout));
        window.publish(KEY_AT, self.own);
        // One that has ended has left its words, also that it has seen this key, if that is the one that it saw.
        let is_there = now.saturating_sub(self.seen.1) <= self.lost_after && self.seen.0 != 0;
        if other != 0 && other != self.other && window.poll(SHAPE_AT) == shape(self.layout) {
            self.layout.empties(window);
            window.publish(SEEN_AT, other);
            self.other = other;
            return Turn::Down;
        }
        if other == 0 || !is_known || !is_there {
            return Turn::Down;
        }
        self.is_up = true;
        Turn::Rises([self.own, self.other])
    }

    /// It is lost for another reason. `key`: a random number.
    pub fn falls(&mut self, window: &impl Window, why: Lost, key: u64) -> Turn {
        // Not the former one, or the other proxy would not see it.
        self.own = if key == self.own { key.wrapping_add(1) } else { key }.max(1);
        self.other = 0;
        self.is_up = false;
        window.publish(SEEN_AT, 0);
        window.publish(KEY_AT, self.own);
        Turn::Falls(why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::ShmWindow;

    const WORDS: usize = 1 << 17;
    const LOST_AFTER: Duration = Duration::from_millis(100);

    struct Both {
        windows: [ShmWindow<WORDS>; 2],
        sessions: [Session; 2],
        now: Duration,
        keys: u64,
    }

    impl Both {
        fn new() -> Self {
            let layout = Layout::new(WORDS * WORD, 2).unwrap();
            let sessions = [11, 22].map(|key| Session::new(layout, LOST_AFTER, key));
            Self { windows: ShmWindow::pair().unwrap(), sessions, now: Duration::from_secs(1), keys: 100 }
        }

        fn turn(&mut self, end: usize) -> Turn {
            self.now += Duration::from_millis(1);
            self.keys += 1;
            let key = self.keys;
            self.sessions[end].turn(&self.windows[end], self.now, || key)
        }

        fn rise(&mut self) -> [[u64; 2]; 2] {
            let mut keys = [None, None];
            for _ in 0..20 {
                for (end, keys) in keys.iter_mut().enumerate() {
                    if let Turn::Rises(these) = self.turn(end) {
                        *keys = Some(these);
                    }
                }
            }
            keys.map(Option::unwrap)
        }
    }

    #[test]
    fn both_rise_with_the_same_keys() {
        let mut both = Both::new();
        assert_eq!(both.rise(), [[11, 22], [22, 11]]);
        assert_eq!([both.turn(0), both.turn(1)], [Turn::Up; 2]);
    }

    /// It begins anew with what its former process has left.
    #[test]
    fn one_that_begins_anew_is_seen_and_rings_are_empty() {
        let mut both = Both::new();
        both.rise();
        let place = both.sessions[0].layout.partition(1).data;
        both.windows[0].publish(place.at, 17);
        let layout = both.sessions[0].layout;
        both.sessions[0] = Session::new(layout, LOST_AFTER, 33);
        assert_eq!(both.turn(0), Turn::Down);
        assert!(matches!(both.turn(1), Turn::Falls(Lost::Anew)));
        let keys = both.rise();
        assert!(keys[0][0] == 33 && keys[0] == [keys[1][1], keys[1][0]], "{keys:?}");
        assert_eq!(both.windows[1].poll(place.at), 0);
    }

    #[test]
    fn silence_is_a_loss_and_what_the_dead_has_left_is_no_life() {
        let mut both = Both::new();
        both.rise();
        let falls = std::iter::repeat_with(|| both.turn(0)).take(200).find(|turn| *turn != Turn::Up);
        assert!(matches!(falls, Some(Turn::Falls(Lost::Silent(_)))), "{falls:?}");
        for _ in 0..1000 {
            assert_eq!(both.turn(0), Turn::Down);
        }
        let keys = {
            assert!(matches!(both.turn(1), Turn::Falls(_)));
            both.rise()
        };
        assert_eq!(keys[0], [keys[1][1], keys[1][0]]);
    }

    #[test]
    fn shapes_that_differ_do_not_meet() {
        let mut both = Both::new();
        both.sessions[1].layout = Layout::new(WORDS * WORD, 1).unwrap();
        for _ in 0..20 {
            assert_eq!([both.turn(0), both.turn(1)], [Turn::Down; 2]);
        }
        assert_eq!(both.sessions[0].differs(&both.windows[0]), Some((1, (WORDS * WORD) as u64)));
        assert_eq!(both.sessions[1].differs(&both.windows[1]), Some((2, (WORDS * WORD) as u64)));
    }
}
