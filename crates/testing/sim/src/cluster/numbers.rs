// SPDX-License-Identifier: Apache-2.0
//! What a host's disk keeps of its incarnations and of the generations of views, in the order of `agent/src/incarnation.rs`; and the agent's
//! control thread, which writes what the loop asks for and does nothing else meanwhile.

use fide_detector::incarnation;

use super::disk::Disk;

/// Two files of one directory: what syncs it for one of them has the other there, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Files {
    incarnation: Option<u32>,
    generation: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Writing {
    generation: u32,
    /// True time at which a program reads it, if that is still to come.
    renamed_ns: Option<u64>,
    /// From then on it outlives a crash.
    synced_ns: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Numbers {
    files: Disk<Files>,
    /// By the control thread.
    writing: Option<Writing>,
    /// What the loop asked for last.
    asked: u32,
    /// What the loop may rely on: none of this agent yet, if it is 0.
    kept: u32,
}

impl Numbers {
    fn files(&self) -> Files {
        self.files.read().unwrap_or_default()
    }

    fn store(&mut self, files: Files) {
        self.files.write(files);
        self.files.sync();
    }

    /// The next incarnation of this host, stored.
    pub(super) fn next(&mut self, clock_s: u64) -> u32 {
        let Files { incarnation, generation } = self.files();
        let next = incarnation::next(incarnation, generation, clock_s).expect("numbers are left");
        self.store(Files { incarnation: Some(next), generation });
        next
    }

    /// An agent starts; the generation that its disk holds. Whatever it stores before it says anything syncs the directory.
    pub(super) fn begin(&mut self) -> u32 {
        self.files.sync();
        self.files().generation.unwrap_or(0)
    }

    /// The loop needs that generation on disk. When the control thread has something to do, if it had nothing: true time. A write takes
    /// `takes_ns`, and is seen by programs `renamed_ns` after it began.
    pub(super) fn ask(&mut self, generation: u32, now_ns: u64, mut draw: impl FnMut() -> (u64, u64)) -> Option<u64> {
        self.asked = generation;
        if self.writing.is_some() || self.asked <= self.kept {
            return None;
        }
        if self.files().generation.is_some_and(|noted| noted >= self.asked) {
            self.kept = self.asked;
            return None;
        }
        let (renamed_ns, takes_ns) = draw();
        self.writing =
            Some(Writing { generation, renamed_ns: Some(now_ns + renamed_ns), synced_ns: now_ns + takes_ns });
        self.due_ns()
    }

    /// When the control thread goes on.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.writing.map(|writing| writing.renamed_ns.unwrap_or(writing.synced_ns))
    }

    /// What a snapshot had under way goes on so much later.
    pub(super) fn go_on_later(&mut self, by_ns: u64) {
        if let Some(writing) = &mut self.writing {
            writing.renamed_ns.iter_mut().for_each(|at_ns| *at_ns += by_ns);
            writing.synced_ns += by_ns;
        }
    }

    /// When the control thread is free again.
    pub(super) fn busy_until_ns(&self) -> Option<u64> {
        self.writing.map(|writing| writing.synced_ns)
    }

    /// The control thread goes on; true once the loop is to be told.
    pub(super) fn go_on(&mut self) -> bool {
        let Some(mut writing) = self.writing.take() else { return false };
        if writing.renamed_ns.take().is_some() {
            self.files.write(Files { generation: Some(writing.generation), ..self.files() });
            self.writing = Some(writing);
            return false;
        }
        self.files.sync();
        self.kept = writing.generation;
        true
    }

    /// What the loop asked for last.
    pub(super) fn asked(&self) -> u32 {
        self.asked
    }

    /// What the loop is told to be on disk.
    pub(super) fn kept(&self) -> u32 {
        self.kept
    }

    /// The agent is killed: what is not renamed by then never is.
    pub(super) fn end_agent(&mut self) {
        (self.writing, self.asked, self.kept) = (None, 0, 0);
    }

    pub(super) fn crash(&mut self) {
        self.end_agent();
        self.files.crash();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(generation: u32) -> Numbers {
        let mut numbers = Numbers::default();
        assert_eq!((numbers.next(1000), numbers.begin()), (1000, 0));
        assert_eq!(numbers.ask(generation, 5, || (10, 30)), Some(15));
        numbers
    }

    #[test]
    fn generation_is_kept_once_it_is_synced() {
        let mut numbers = asked(8200);
        assert_eq!((numbers.ask(8200, 6, || unreachable!()), numbers.kept()), (None, 0));
        assert!(!numbers.go_on());
        assert_eq!((numbers.due_ns(), numbers.kept()), (Some(35), 0));
        assert!(numbers.go_on());
        assert_eq!((numbers.due_ns(), numbers.kept()), (None, 8200));
        numbers.crash();
        assert_eq!((numbers.next(1001), numbers.begin()), (8201, 8200));
        assert_eq!(numbers.ask(8200, 50, || unreachable!()), None);
        assert_eq!(numbers.kept(), 8200, "it is there already");
    }

    #[test]
    fn generation_that_was_not_synced_is_lost_in_a_crash_and_not_when_an_agent_ends() {
        let mut numbers = asked(8200);
        numbers.go_on();
        numbers.crash();
        assert_eq!((numbers.next(1001), numbers.begin()), (1001, 0));
        let mut numbers = asked(8200);
        numbers.go_on();
        numbers.end_agent();
        assert_eq!((numbers.next(1001), numbers.begin()), (8201, 8200));
        let mut numbers = asked(8200);
        numbers.end_agent();
        assert_eq!((numbers.next(1001), numbers.begin()), (1001, 0), "nothing was renamed");
    }
}
