// SPDX-License-Identifier: Apache-2.0
//! A window that has no addresses, for tests.

use std::time::Duration;

use super::{Bell, Window};

#[derive(Debug)]
pub(crate) struct Copied<W>(pub(crate) W);

impl<W: Window> Window for Copied<W> {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        self.0.write(at, bytes);
    }

    fn publish(&self, at: usize, word: u64) {
        self.0.publish(at, word);
    }

    fn read(&self, at: usize, into: &mut [u8]) {
        self.0.read(at, into);
    }

    fn poll(&self, at: usize) -> u64 {
        self.0.poll(at)
    }

    fn will_sleep(&self, by: Bell, turn: u32) {
        self.0.will_sleep(by, turn);
    }

    fn sleeper(&self, bell: Bell) -> u32 {
        self.0.sleeper(bell)
    }

    fn sleep(&self, by: Bell, within: Option<Duration>) {
        self.0.sleep(by, within);
    }

    fn ring(&self, bell: Bell) {
        self.0.ring(bell);
    }
}
