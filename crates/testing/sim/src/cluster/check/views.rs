// SPDX-License-Identifier: Apache-2.0
//! Views of a group are numbered consecutively, also when the group is founded again; if a durable group is,
//! numbers may be left out. That all members
//! deliver the same view at the same position is checked by the log.

use fide_agreement::View;

use super::{Checked, violated};

/// The newest view that any member delivered.
#[derive(Debug, Default)]
pub(in super::super) struct Views {
    newest: Option<View>,
    /// The highest number that an astray member delivered: a group that continues from there counts on.
    astray: u64,
}

impl Views {
    /// A durable group was founded again with this view.
    pub(in super::super) fn founded_from_disk(&mut self, view: &View) -> Checked {
        // Those between were decided or founded, or may have been, and nobody has stored them.
        self.astray = self.astray.max(u64::from(view.number()) - 1);
        self.delivered(view)
    }

    pub(in super::super) fn delivered(&mut self, view: &View) -> Checked {
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

    /// An astray member has delivered a view. Another view of that number may still be delivered, and is then
    /// right.
    pub(in super::super) fn delivered_astray(&mut self, view: &View) {
        self.astray = self.astray.max(view.number().into());
    }

    /// The number of the newest view. The first view is agreed by no decision: the group begins with it.
    pub(in super::super) fn agreed(&self) -> u64 {
        self.newest.as_ref().map_or(1, |view| u64::from(view.number()))
    }
}
