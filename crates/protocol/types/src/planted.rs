// SPDX-License-Identifier: Apache-2.0
//! Faults that are planted on purpose, to prove that tests, models and the simulator find them.
//!
//! Only with the cargo feature `planted`, which nothing but the simulator and the tests enable. Without it no fault can
//! be armed, and [`is`] is a constant that compiles to nothing.

macro_rules! planted {
    ($($(#[doc = $says:literal])+ $name:ident,)+) => {
        /// One fault each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Planted {
            $($(#[doc = $says])+ $name,)+
        }

        impl Planted {
            pub const ALL: &[Planted] = &[$(Planted::$name),+];

            #[must_use]
            pub fn says(self) -> &'static str {
                match self {
                    $(Planted::$name => concat!($($says),+).trim_ascii(),)+
                }
            }
        }
    };
}

planted! {
    /// a lease has no margin for clock drift
    NoMargin,
    /// a lease starts when the acknowledgement arrives instead of when the heartbeat left
    LeaseFromReceipt,
    /// the lease of a majority counts one acknowledgement too few
    LeaseOfFewer,
    /// a peer is suspected before the promise made to it has run out
    SuspectsEarly,
    /// a host declares others dead although it stalled past its own limit or was not acknowledged in time
    JudgesInDoubt,
    /// half of a view counts as its majority
    HalfIsMajority,
    /// a host that stalled takes a superseded incarnation for harmless because it never heard that one's
    /// answer
    DoubtsOnlyTheHeard,
    /// a returning witness ignores the report that the view dropped it meanwhile
    DroppedUnheard,
    /// heartbeats of a dead incarnation are accepted
    TakesTheDead,
    /// recorded heartbeats of a host that is down count as signs of life
    TakesRecordings,
    /// an excluded member keeps acting
    GoesOnExcluded,
    /// reads are answered without a lease
    AnswersUnleased,
    /// decisions are delivered without a lease
    DeliversUnleased,
    /// a leader decides before the last acknowledgement
    DecidesEarly,
    /// a member that adopts a proposal decides it, also where it is not one of two
    DecidesAsIfOfTwo,
    /// a new leader replaces what it had adopted from another leader by its own proposal
    DropsAdopted,
    /// a proposal replaces that of a later leader
    AdoptsLower,
    /// a member delivers what it has adopted as if it were decided
    DeliversAdopted,
    /// a new leader answers before it has decided what its predecessor may have decided
    SpeaksEarly,
    /// a leader answers although it has not delivered all that it decided
    AnswersUndelivered,
    /// a member answers without what it stores and was not delivered
    AnswersUnstored,
    /// a member answers for a key although something that it stores and was not delivered writes it
    OverlooksStored,
    /// a new leader answers before it was delivered what its predecessor may have told
    AnswersUntold,
    /// a member stores decisions without a lease
    StoresUnleased,
    /// a decision is delivered before enough members have stored it
    TellsUnstored,
    /// an excluded member claims what was delivered to it, and not what others count as stored
    ForgetsStored,
    /// a member counts what it has written and not synced as stored
    CountsUnsynced,
    /// a member stores that there is a group before it stores that it is a member
    StoresRecordFirst,
    /// a host that joins is welcomed by a member that has not stored the view
    WelcomesUnstored,
    /// members acknowledge beyond the window
    AcksBeyondWindow,
    /// nothing is resent
    NeverResends,
    /// an acknowledgement counts as proof that the instance was delivered
    AckMeansDelivered,
    /// a member that has decided does not answer a leader that has not
    KeepsDecisions,
    /// a crash does not release an instance that waits for the acknowledgement of the dead member
    WaitsForTheDead,
    /// an acknowledgement of another instance counts for this one
    MixesInstances,
    /// a member that has begun the next view does not serve members that have not
    LeavesLaggards,
    /// what was proposed but not decided before the end of a view is lost
    DropsUndecided,
    /// a joiner skips what was decided between its state and its view
    JoinsWithout,
    /// a founder begins without hosts that it has not heard from
    FoundsWithout,
    /// a founder begins without hosts that died before they said whether they were in a group
    TakesTheGone,
    /// a member that has begun the first view announces it in a later ballot of its own, which not all have
    /// promised
    RaisesItsBallot,
    /// a founder takes itself for the first process of its host, whatever ran there before
    TakesEachForFirst,
    /// a member that takes over the first view of others does not ask members that are up but not heard yet
    AsksOnlyTheKnown,
    /// a founder takes a welcome to a first view, whatever ballot it has promised
    EntersByWelcome,
    /// a founder begins without a host whose new process is up, because no packet of that process has come yet
    OverlooksTheUnsure,
    /// a broadcast is delivered once it is stored here, not once all members store it
    DeliversHeld,
    /// a crash is delivered before the survivors hold the same messages of the dead member
    SkipsLevelling,
    /// late messages of the dead member are accepted while the survivors level
    TakesOfTheDead,
    /// survivors level with members that do not know of all the deaths
    LevelsWithOld,
    /// equal payloads that are proposed twice count as one
    TakesEqualsForOne,
    /// a payload sent ahead waits for hosts, whatever their incarnation, instead of for members
    WaitsForHosts,
    /// members that were all excluded found their group anew without the reply of every member of its last
    /// view
    FoundsFromSome,
    /// a joiner waits for ever for the welcome of fellow joiners that have died
    AwaitsWelcome,
    /// a joiner admitted by a member that waits to leave waits for the welcome of members that have died
    AwaitsTheLeaving,
    /// a joiner that gives up its view does not report who was dead by then
    ForgetsWhoDied,
    /// a host that others outlived is believed about whom it outlived
    HeedsTheOutlived,
    /// a leader resends to a slow member as often as to any other
    NeverSlows,
    /// a state made for a joiner is offered when the joiner asks again
    OffersWhenAsked,
    /// a member to which nothing was delivered keeps its empty state as if it were worth keeping
    KeepsNothing,
    /// either of two first views counts as the later one
    IgnoresBallots,
    /// a member that took over a later state no longer reports that it never began that state's view
    ForgetsItsView,
    /// a removed member delivers its removal, but nothing else of that decision
    RemovedKeepsNothing,
    /// a founder waits for a reply from a host that died and returned with a record
    WaitsForTheRecorded,
    /// a founder begins without a host that died and returned, and may form a group itself
    TakesTheReturned,
    /// a removed member does not report which views it had begun
    TakenOutInSilence,
    /// a removed member ends before any member has begun the view without it
    RemovedEndsEarly,
    /// one view removes several members
    TakesOutSeveral,
    /// the last member that has the state is removed from the group
    RemovesTheLast,
    /// the start of an incarnation does not imply the end of the earlier ones
    MissesTheFormer,
    /// a joiner that claims a dead incarnation is admitted as that incarnation
    LetsInTheDead,
    /// a joiner with an incarnation above dead ones answers for those
    AnswersForOthers,
    /// a host answers for the processes that it had between those of its disk
    AnswersForGaps,
    /// hosts without a record found a group although another host has the state of one
    FoundsBesideAState,
    /// the end of a process is reported after the start of its successor
    ReportsTheFormerLate,
    /// the death of an earlier incarnation counts as the death of the member's incarnation in the view
    CrashesTheLater,
    /// a host claims to have named all its processes although some did not fit yet
    NamesSome,
    /// a member without a view, whose agent is a new one, takes every host that is not up there yet for
    /// dead
    AsksTheNewAgent,
    /// a member accepts packets although its agent has reported events that it has not consumed
    TakesPacketsFirst,
    /// a witness sends its vote before the vote is on disk
    VotesUnsynced,
    /// a restarted witness forgets its vote and keeps its incarnation
    ForgetsVote,
    /// a host that installs a view waits for its own promise, not for the longest that may still bind
    WaitsOwnPromise,
    /// a host that restarts with a shorter timeout forgets what it promised before
    ForgetsPromise,
    /// messages of a dead sender that all members hold wait until it is known what else members hold
    KeepsKnown,
    /// a message that waits for its predecessor is accepted after the crash of its sender
    KeepsNext,
    /// a leaving host reports the end of a superseded incarnation that may still act
    EndsWhileLeaving,
    /// a host whose timeouts became shorter forgets the longer promises that it made before
    ForgetsLonger,
    /// a member of the view whose newer incarnation was heard first is dropped at once
    FreesSuperseded,
    /// the agent of a host that does not know an observer restarts, and the observer declares its programs
    /// dead at once
    EndsUnbound,
    /// packets that arrived during a stall count before the stall is detected
    FindsStallsLate,
    /// a host that has asked to join a view founds another view as the same incarnation
    FoundsAfterAsking,
    /// a host that stalled for less than its limit counts as heard in time
    TrustsLateHeartbeats,
    /// a host that a superseded incarnation may have declared dead acts until the promise to that
    /// incarnation has run out
    DoubtsLate,
    /// a restarted witness takes acknowledgements of its former life for acknowledgements of its present
    /// one
    TakesFormerAcks,
    /// offered payloads take all the room, also the room reserved for joiners
    OffersTakeAll,
    /// a steady heartbeat, which the receive program does not pass on, leaves its sender's former
    /// suspicions in force
    KeepsReports,
    /// an agent that has just started declares a superseded incarnation dead as soon as a later one is up
    EndsFormers,
    /// a crashed host is barred as if it had been evicted for a partial partition
    BarsTheCrashed,
    /// another member's report of a death is accepted although the dead member has met this one
    BelievesOfTheMet,
    /// a voter accepts a first view, acknowledges and acts by it while its next incarnation may not exceed
    /// that view's generation
    ForgetsGeneration,
    /// a host that has accepted a next view acknowledges as before
    AcksAccepted,
    /// a host that has accepted a next view counts acknowledgements for its lease
    TakesAcksAccepted,
    /// a host with a lease accepts a view without itself
    AcceptsWithoutItself,
    /// a program takes the lease of a later incarnation of its host for its own
    LeaseOfAnother,
    /// a program that must run once keeps running under a later incarnation of its host
    RunGoesOn,
    /// leases and timeouts are measured on a clock that is slewed
    SlewedClock,
    /// a lease does not expire while its host is suspended
    SleepsUnseen,
    /// a lease does not expire while its host is stopped together with its clocks, although the processor's
    /// counter continues
    StopsUnseen,
    /// a member that learns of lost events does not ask which hosts are up
    MissesTheLost,
    /// a machine restored from a snapshot keeps its incarnation although peers acknowledge heartbeats that
    /// it has yet to send
    MissesItself,
    /// a restored machine ignores the acknowledgement of a later incarnation from a peer that does not
    /// answer the present one
    HeedsTheKnownOnly,
    /// a host that lost its memory believes recorded packets of peers that had heard a later incarnation of
    /// it
    HeedsRecordings,
    /// a restored machine that was excluded before it noticed begins anew
    ExcludedOnly,
    /// a host believes what peers say of its later heartbeats and incarnations in packets that are not
    /// their newest
    HeedsTheOld,
    /// a host takes a sequence number that was heard long ago for one that it has yet to send
    CountsFromNow,
    /// a peer that has only named this host as dead counts as having heard it
    TakesNamingForHearing,
    /// a host restarts as an incarnation that others have already named
    PassesThroughFormers,
    /// an acknowledgement that is behind counts as one that is far ahead with the same lower half
    TakesBehindForAhead,
    /// an acknowledgement of no heartbeat counts as one of the newest sequence number that ends in zeros
    TakesNothingForANumber,
}

/// The fault armed in the whole process: 0 for none, otherwise its discriminant plus one.
#[cfg(feature = "planted")]
static ARMED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

// Tests run in parallel: each arms its own thread.
#[cfg(feature = "planted")]
thread_local! {
    static MINE: core::cell::Cell<Option<Planted>> = const { core::cell::Cell::new(None) };
}

/// Arms one fault in this thread, or none.
#[cfg(feature = "planted")]
pub fn arm_thread(fault: Option<Planted>) {
    MINE.set(fault);
}

/// Arms one fault in this process, or none.
#[cfg(feature = "planted")]
pub fn arm(fault: Option<Planted>) {
    ARMED.store(fault.map_or(0, |fault| fault as usize + 1), std::sync::atomic::Ordering::Relaxed);
}

/// Is this fault armed?
#[cfg(feature = "planted")]
#[inline]
#[must_use]
pub fn is(fault: Planted) -> bool {
    ARMED.load(std::sync::atomic::Ordering::Relaxed) == fault as usize + 1 || MINE.get() == Some(fault)
}

/// Is this fault armed? It cannot be.
#[cfg(not(feature = "planted"))]
#[inline(always)]
#[must_use]
pub const fn is(_: Planted) -> bool {
    false
}
