// SPDX-License-Identifier: Apache-2.0
//! A copy of the memory that agent and programs of a machine share, with everything that is in it.

use std::rc::Rc;

use super::{Answer, Link, Session, Table};

/// Each piece is copied once; programs and agents that share it in the original share its copy.
pub(in super::super) struct Copies {
    tables: Vec<(Rc<Table>, Rc<Table>)>,
    sessions: Vec<(Rc<Session>, Rc<Session>)>,
    links: Vec<(Rc<Link>, Rc<Link>)>,
    /// Process ids of the original, and of the copy: a world identifies programs by their ids.
    pub(in super::super) pids: Vec<(u32, u32)>,
    /// The last process id that was given to a program.
    pub(in super::super) last_pid: u32,
}

fn copied<T>(known: &mut Vec<(Rc<T>, Rc<T>)>, of: &Rc<T>, copy: impl FnOnce(&T) -> T) -> Rc<T> {
    if let Some((_, copy)) = known.iter().find(|(original, _)| Rc::ptr_eq(original, of)) {
        return Rc::clone(copy);
    }
    let copy = Rc::new(copy(of));
    known.push((Rc::clone(of), Rc::clone(&copy)));
    copy
}

impl Copies {
    pub(in super::super) fn new(last_pid: u32) -> Self {
        Self { tables: Vec::new(), sessions: Vec::new(), links: Vec::new(), pids: Vec::new(), last_pid }
    }

    pub(in super::super) fn pid(&mut self, of: u32) -> u32 {
        if let Some((_, copy)) = self.pids.iter().find(|(original, _)| *original == of) {
            return *copy;
        }
        self.last_pid += 1;
        self.pids.push((of, self.last_pid));
        self.last_pid
    }

    pub(in super::super) fn table(&mut self, of: &Rc<Table>) -> Rc<Table> {
        copied(&mut self.tables, of, Table::clone)
    }

    pub(in super::super) fn session(&mut self, of: &Rc<Session>) -> Rc<Session> {
        copied(&mut self.sessions, of, Session::clone)
    }

    pub(in super::super) fn link(&mut self, of: &Rc<Link>) -> Rc<Link> {
        let answer = of.answer.borrow().as_ref().map(|answer| match answer {
            Answer::Hello { table, session } => {
                Answer::Hello { table: self.table(table), session: self.session(session) }
            }
            Answer::Joined(granted) => Answer::Joined(granted.clone()),
            Answer::Monitored(granted) => Answer::Monitored(granted.clone()),
            Answer::Refused => Answer::Refused,
        });
        copied(&mut self.links, of, |link| Link {
            closed: link.closed.clone(),
            request: link.request.clone(),
            answer: answer.into(),
        })
    }
}
