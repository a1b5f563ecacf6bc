// SPDX-License-Identifier: Apache-2.0
//! Answers to numbered requests ([`crate::once`]) in this server's state, and on their way to a server that
//! joins: with each note of a position come all answers, or those since the last note.

use crate::once::{Note, Once};

/// What comes with a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answers {
    /// They are all; otherwise those since the last position.
    pub(super) is_all: bool,
    pub(super) notes: Vec<u8>,
}

impl Answers {
    /// As words of a command.
    pub(super) fn words(&self) -> [&[u8]; 2] {
        [if self.is_all { b"all" } else { b"more" }, &self.notes]
    }

    /// From the words after the position: none if there are none.
    ///
    /// # Errors
    /// A newer version of this module wrote them.
    pub(super) fn read(kind: Option<&[u8]>, notes: Option<&[u8]>) -> Result<Option<Self>, ()> {
        match (kind, notes) {
            (None, None) => Ok(None),
            (Some(b"all"), Some(notes)) => Ok(Some(Self { is_all: true, notes: notes.to_vec() })),
            (Some(b"more"), Some(notes)) => Ok(Some(Self { is_all: false, notes: notes.to_vec() })),
            _ => Err(()),
        }
    }
}

/// Answers and what has to be said of them.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) once: Once,
    /// Of this turn.
    turn: Vec<u8>,
    /// Since the last position that servers which replicate from this one were told.
    untold: Vec<u8>,
    /// Such a server has just begun: it needs all.
    all_wanted: bool,
    /// What this server takes over while it joins; none before all answers have come.
    taken: Option<Once>,
}

impl Kept {
    /// A numbered request was executed in this turn.
    pub(super) fn keep(&mut self, note: Note) {
        note.write(&mut self.turn);
        self.once.keep(note);
    }

    pub(super) fn has_turn(&self) -> bool {
        !self.turn.is_empty()
    }

    /// The notes of this turn.
    pub(super) fn take_turn(&mut self, has_replicas: bool) -> Vec<u8> {
        if has_replicas {
            self.untold.extend_from_slice(&self.turn);
        }
        std::mem::take(&mut self.turn)
    }

    pub(super) fn drop_turn(&mut self) {
        self.turn.clear();
    }

    /// Another server's unit is decided. False: its notes cannot be read.
    #[must_use]
    pub(super) fn keep_decided(&mut self, notes: &[u8], has_replicas: bool) -> bool {
        if has_replicas {
            self.untold.extend_from_slice(notes);
        }
        self.once.keep_all(notes)
    }

    pub(super) fn want_all(&mut self) {
        self.all_wanted = true;
    }

    /// What goes with the next position.
    pub(super) fn for_replicas(&mut self, has_replicas: bool) -> Option<Answers> {
        let notes = std::mem::take(&mut self.untold);
        if !has_replicas {
            return None;
        }
        Some(if std::mem::take(&mut self.all_wanted) {
            Answers { is_all: true, notes: self.once.dump() }
        } else {
            Answers { is_all: false, notes }
        })
    }

    /// This server begins to take over another one's state.
    pub(super) fn begin_taking(&mut self) {
        self.taken = None;
    }

    /// A position has come, with these answers; none: of a server that keeps none.
    pub(super) fn take(&mut self, answers: Option<Answers>) {
        let Answers { is_all, notes } = answers.unwrap_or(Answers { is_all: true, notes: Vec::new() });
        if is_all {
            self.taken = Some(Once::default());
        }
        if self.taken.as_mut().is_some_and(|taken| !taken.keep_all(&notes)) {
            self.taken = None;
        }
    }

    /// Whether everything up to the last position was taken over.
    pub(super) fn is_taken(&self) -> bool {
        self.taken.is_some()
    }

    /// What was taken over is this server's own.
    pub(super) fn install(&mut self) {
        self.once = self.taken.take().unwrap_or_default();
        self.turn.clear();
        self.untold.clear();
    }

    /// The state is empty.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(number: u64) -> Note {
        Note::new(0, b"c", number, b":1\r\n")
    }

    #[test]
    fn words_of_another_version_are_no_answers() {
        let answers = Answers { is_all: false, notes: vec![1, 2] };
        let [kind, notes] = answers.words();
        assert_eq!(Answers::read(Some(kind), Some(notes)), Ok(Some(answers.clone())));
        assert_eq!(Answers::read(None, None), Ok(None));
        assert_eq!(Answers::read(Some(b"packed"), Some(notes)), Err(()));
        assert_eq!(Answers::read(Some(kind), None), Err(()));
    }

    #[test]
    fn server_that_joins_takes_over_all_answers_and_those_that_follow() {
        let (mut from, mut to) = (Kept::default(), Kept::default());
        from.keep(note(1));
        from.take_turn(true);
        to.begin_taking();
        let early = from.for_replicas(true);
        to.take(early);
        assert!(!to.is_taken(), "without those before");
        from.want_all();
        to.take(from.for_replicas(true));
        from.keep(Note::new(0, b"d", 7, b"+OK\r\n"));
        from.take_turn(true);
        to.take(from.for_replicas(true));
        assert!(to.is_taken());
        to.install();
        assert_eq!((to.once.digest(), to.once.clients()), (from.once.digest(), 2));
    }
}
