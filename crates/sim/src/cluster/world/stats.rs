// SPDX-License-Identifier: Apache-2.0
//! What runs were.

macro_rules! stats {
    ($($(#[doc = $says:literal])* $name:ident,)+) => {
        /// What a run was, or several together.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[doc = $says])* pub $name: u64,)+
        }

        impl Stats {
            pub fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)+
            }

            /// Each with its name.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),+]
            }
        }
    };
}

stats! {
    /// Packets given to detectors and groups.
    deliveries,
    /// What heartbeats took along, each at each receiver.
    broadcasts,
    decisions,
    writes,
    /// Of the writes, those longer than a value.
    payloads,
    reads,
    verdicts,
    crashes,
    exclusions,
    /// Members that were taken out while they lived.
    removals,
    /// Views that were agreed after the first.
    views,
    /// States that were taken over by those who joined.
    transfers,
    /// Members that acted at the end.
    acting_at_the_end,
    /// Runs that ended with a member that waits for one of whose death nobody is left to tell.
    bereft,
    /// True time that passed.
    simulated_ns,
}
