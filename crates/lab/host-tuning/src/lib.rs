// SPDX-License-Identifier: Apache-2.0
//! What a Linux host is set to: judged for jitter, measured, changed and restored.
//!
//! - [`doctor`]: every condition that adds jitter, found and wanted (FiDe §3.2 and §5, X-Lane §4.3).
//! - [`measure`]: what can be measured on the spot within seconds.
//! - [`rungs`]: the rungs that an agent would stand on here.
//! - [`bound`]: the file with the jitter bound that this host holds.
//! - [`tune`]: what can be changed at run time, with a journal that restores it; [`boot`]: what cannot.
//!
//! Files are read below [`roots::Roots`], the rest is asked of a [`machine::Machine`], so that all of
//! it runs on a copy of a host as well.
//!
//! **Invariant:** no detector policy, and nothing stays changed but what [`tune`] journalled.

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

/// Tests that isolate a thread: locked memory is the process', not the thread's.
#[cfg(test)]
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
