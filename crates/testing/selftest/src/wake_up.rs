// SPDX-License-Identifier: Apache-2.0
//! How late a thread wakes that is isolated as a measuring one is.

use fide_latency_probe::setting::{self, Wanted};
use fide_sys::clock::mono_ns;

use crate::plant::sleep_until;

/// Lateness of `count` wake-ups, one every `period_ns`, in ns; empty if no thread can be had.
#[must_use]
pub fn lateness(core: usize, period_ns: u64, count: u32) -> Vec<u64> {
    let measure = move || {
        let _setting = setting::take(&Wanted { core: Some(core), ..Wanted::default() });
        let mut due = mono_ns() + period_ns;
        let mut late = Vec::with_capacity(count as usize);
        for _ in 0..count {
            sleep_until(due);
            late.push(mono_ns().saturating_sub(due));
            due += period_ns;
        }
        late
    };
    let thread = std::thread::Builder::new().name("fide-wake-up".to_owned()).spawn(measure);
    thread.ok().and_then(|thread| thread.join().ok()).unwrap_or_default()
}
