// SPDX-License-Identifier: Apache-2.0
//! Drivers against real switches in namespaces of their own. Skipped without root; the tests of Open
//! vSwitch also without it.

mod root {
    pub(super) mod common;
    mod linux;
    mod ovs;
    mod queues;
    mod trees;
}
