// SPDX-License-Identifier: Apache-2.0
//! The atomics in use: the standard ones, or loom's under `--cfg loom`.

#[cfg(loom)]
pub(crate) use loom::{
    hint::spin_loop,
    sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, fence},
};
pub(crate) use std::sync::atomic::Ordering;
#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, fence},
};
