// SPDX-License-Identifier: Apache-2.0
//! Counts of what happened in runs.

macro_rules! stats {
    ($($(#[doc = $says:literal])* $name:ident,)+) => {
        /// Counts of one run, or of several together.
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
    /// Packets handed to detectors, and datagrams handed to groups.
    deliveries,
    /// Messages that rode in heartbeats, counted at each receiver.
    broadcasts,
    decisions,
    writes,
    /// Writes longer than a value.
    payloads,
    reads,
    verdicts,
    crashes,
    exclusions,
    /// Members that were removed while they lived.
    removals,
    /// Leaders that began to hand over.
    handed_over,
    /// Members that were excluded, and continued as another incarnation.
    rejoins,
    /// Groups that were founded again, by members that were all excluded.
    founded_again,
    /// Views that were agreed after the first one.
    views,
    /// States that joining members took over.
    transfers,
    /// Times that a durable member waited for its disk.
    syncs,
    /// States of users that were stored.
    bases,
    /// Writes for which there was no room.
    full,
    /// Times that all hosts crashed at once.
    power_cuts,
    /// Times that a host went on with another disk.
    swaps,
    /// Groups that were founded again by a process from its disk.
    founded_from_disk,
    /// Decisions that such a process's user was given from disk.
    from_disk,
    /// Agents that were killed without anything else on their hosts.
    agents_killed,
    /// Masters of a service.
    promotions,
    /// Acts of masters.
    acts,
    /// Generations of views that were written to a disk before their host went on.
    generations_kept,
    /// Most events that a member was notified of in one turn.
    events_at_once,
    /// Runs in which more events waited for a member than one turn takes.
    runs_behind,
    /// Runs in which a member's ring was full, and the member was notified of lost events.
    runs_with_lost_events,
    /// Hosts whose machines were stopped.
    stops,
    /// Machines that were put back to a snapshot.
    put_back,
    /// Snapshots that ran beside their originals.
    clones,
    /// Agents that have found out that their machine was put back, or has a clone.
    found_out,
    /// Runs in which another member heard such a machine as its former incarnation.
    torn,
    /// Runs, among those, in which an agent accepted a heartbeat of a machine that had forgotten what it
    /// said, before there was any sign of that.
    forgotten,
    /// Answers of members whose machine was stopped with all its clocks, while they may still believe in the
    /// lease from before the stop.
    answers_believed,
    /// Answers, among those, of processes of whose death a program had been notified.
    answers_of_the_dead,
    /// Members that acted at the end.
    acting_at_the_end,
    /// Runs at whose end no member acted, because the group had lost what it needs.
    idle_at_the_end,
    /// Runs, among those, with too few hosts up.
    idle_hosts_away,
    /// Runs in which no member began, although a record says that one did.
    idle_recorded,
    /// Runs in which all members of the newest view were shut out or died, and one of their processes has
    /// died.
    idle_processes_lost,
    /// Runs in which the members that had the state were removed.
    idle_states_lost,
    /// Runs in which the group may have waited for the other one of a host's two disks.
    idle_other_disk,
    /// Runs that ended with a member waiting for one of whose death no host is left to notify it.
    bereft,
    /// True time that passed.
    simulated_ns,
}
