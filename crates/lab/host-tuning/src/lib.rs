// SPDX-License-Identifier: Apache-2.0
//! The settings of a Linux host: judges them for jitter, measures their effect, changes and restores them.
//!
//! - [`doctor`]: every condition that adds jitter, as found and as wanted (FiDe §3.2 and §5, X-Lane §4.3).
//! - [`measure`]: measurements that take only seconds.
//! - [`rungs`]: the rungs that an agent would use here.
//! - [`bound`]: the file with the jitter bound that this host holds.
//! - [`tune`]: settings that can be changed at run time, with a journal that restores them; [`boot`]: the
//!   settings that cannot.
//!
//! Files are read below [`roots::Roots`]; everything else goes through a [`machine::Machine`]. So all of it
//! also runs on a copy of a host's files.
//!
//! **Invariant:** there is no detector policy here, and no change stays except those in the journal of
//! [`tune`].

pub mod boot;
pub mod bound;
pub mod condition;
pub mod doctor;
pub mod machine;
pub mod measure;
pub mod parse;
pub mod roots;
pub mod rungs;
pub mod tune;

#[cfg(test)]
mod made_up;

/// Held by tests that isolate a thread: locked memory belongs to the process, not to the thread.
#[cfg(test)]
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
