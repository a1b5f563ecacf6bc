// SPDX-License-Identifier: Apache-2.0
//! The real programs in the real kernel, on frames made here (BPF_PROG_TEST_RUN) and on real children.

mod exits;
mod gaps;
mod heartbeat;
mod lanes;
mod layout;
mod measuring;
mod notice;
mod rig;
mod tag;
mod timer;
