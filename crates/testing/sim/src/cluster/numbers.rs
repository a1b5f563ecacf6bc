// SPDX-License-Identifier: Apache-2.0
//! A host's incarnations and generations of views on disk, written in the order of
//! `agent/src/incarnation.rs`; and the agent's control thread, which does one write at a time for the loop.

use fide_detector::incarnation;

use super::disk::Disk;

/// Two files of one directory: a sync for one of them also makes the other durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Files {
    incarnation: Option<u32>,
    generation: Option<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Writing {
    generation: u32,
    /// True time at which a program can read the new file, unless that has passed.
    renamed_ns: Option<u64>,
    /// From then on the file survives a crash.
    synced_ns: u64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Numbers {
    files: Disk<Files>,
    /// The write of the control thread, if there is one.
    writing: Option<Writing>,
    /// The generation that the loop asked for last.
    asked: u32,
    /// The generation that the loop may rely on; 0 if this agent has stored none yet.
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

    /// Stores and returns the next incarnation of this host.
    pub(super) fn next(&mut self, clock_s: u64) -> u32 {
        let Files { incarnation, generation } = self.files();
        let next = incarnation::next(incarnation, generation, clock_s).expect("numbers are left");
        self.store(Files { incarnation: Some(next), generation });
        next
    }

    /// An agent starts; returns the generation on its disk. The agent syncs the directory with the first
    /// thing that it stores, before it sends anything.
    pub(super) fn begin(&mut self) -> u32 {
        self.files.sync();
        self.files().generation.unwrap_or(0)
    }

    /// The loop needs that generation on disk. Returns when the control thread has its next step, if it was
    /// idle: true time. A write takes `takes_ns`, and programs see it `renamed_ns` after it began.
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

    /// When the control thread has its next step.
    pub(super) fn due_ns(&self) -> Option<u64> {
        self.writing.map(|writing| writing.renamed_ns.unwrap_or(writing.synced_ns))
    }

    /// Delays the write of a snapshot by so much.
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

    /// The control thread takes its next step; true if the loop is to be notified.
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

    /// The generation that the loop asked for last.
    pub(super) fn asked(&self) -> u32 {
        self.asked
    }

    /// The generation that the loop knows is on disk.
    pub(super) fn kept(&self) -> u32 {
        self.kept
    }

    /// The agent is killed: a file that is not renamed by then never is.
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
    fn unsynced_generation_is_lost_in_a_crash_and_not_when_an_agent_ends() {
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
