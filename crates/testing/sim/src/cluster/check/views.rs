// SPDX-License-Identifier: Apache-2.0
//! Views are numbered one after the other, also where the group is founded again; that all members are told the same one at the same position is the log's.

use fide_agreement::View;

use super::{Checked, violated};

/// The newest that anybody was told.
#[derive(Debug, Default)]
pub(in super::super) struct Views {
    newest: Option<View>,
    /// The highest number that somebody was told who is astray: a group that goes on from there counts on.
    astray: u64,
}

impl Views {
    pub(in super::super) fn told(&mut self, view: &View) -> Checked {
        let newest = self.agreed().max(self.astray);
        if u64::from(view.number()) > newest + 1 {
            return violated("views", format!("view {} follows {newest}", view.number()));
        }
        match &self.newest {
            Some(known) if known.number() == view.number() && known != view => {
                violated("views", format!("view {} is {known:?} and {view:?}", view.number()))
            }
            Some(known) if known.number() >= view.number() => Ok(()),
            _ => {
                self.newest = Some(view.clone());
                Ok(())
            }
        }
    }

    /// A member that is astray was told a view. Another one of that number may yet be told, and is right then.
    pub(in super::super) fn told_astray(&mut self, view: &View) {
        self.astray = self.astray.max(view.number().into());
    }

    /// Its number. The first view is agreed by nobody, it is where the group begins.
    pub(in super::super) fn agreed(&self) -> u64 {
        self.newest.as_ref().map_or(1, |view| u64::from(view.number()))
    }
}
