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
                let most = self.events_at_once.max(other.events_at_once);
                $(self.$name += other.$name;)+
                self.events_at_once = most;
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
    /// Packets given to detectors, and datagrams given to groups.
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
    /// Members that were excluded, and went on as another incarnation.
    rejoins,
    /// Groups that were founded again by members that were all excluded.
    founded_again,
    /// Views that were agreed after the first.
    views,
    /// States that were taken over by those who joined.
    transfers,
    /// Agents that were killed, and nothing else of their hosts.
    agents_killed,
    /// Masters of a service.
    promotions,
    /// What they did.
    acts,
    /// Generations of views that were written to a disk before their host went on.
    generations_kept,
    /// Most events that a member was told in one turn.
    events_at_once,
    /// Runs in which more events than one turn takes waited for a member.
    runs_behind,
    /// Runs in which a member's ring was full, and it was told so.
    runs_with_lost_events,
    /// Hosts whose machines were stopped.
    stops,
    /// Machines that were put back to a snapshot.
    put_back,
    /// Snapshots that ran beside their originals.
    clones,
    /// Agents that have found out that their machine was put back, or has a clone.
    found_out,
    /// Runs in which another member heard one of those as the one that it was.
    torn,
    /// Of these, runs in which an agent took a heartbeat of one that had forgotten what it said, with no sign of that yet.
    forgotten,
    /// Answers of members whose machine was stopped with all its clocks, in the time that they may believe in their lease of before.
    answers_believed,
    /// Of these, those of processes whose death somebody was told.
    answers_of_the_dead,
    /// Members that acted at the end.
    acting_at_the_end,
    /// Runs at whose end nobody acted: what the group needs was lost.
    idle_at_the_end,
    /// Of these, those with too few hosts up.
    idle_hosts_away,
    /// Where nobody began, and a record says that somebody did.
    idle_recorded,
    /// Where all members of the newest view were shut out or died, and a process of theirs has died.
    idle_processes_lost,
    /// Where whoever had the state was taken out.
    idle_states_lost,
    /// Runs that ended with a member that waits for one of whose death nobody is left to tell.
    bereft,
    /// True time that passed.
    simulated_ns,
}
