// SPDX-License-Identifier: Apache-2.0
//! Faults that are planted on purpose, to see that what looks for faults finds them.
//!
//! Only with the cargo feature `planted`, which nothing but the simulator asks for. Without it none can be armed, and [`is`] is
//! a constant that compiles to nothing.

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
    /// a lease has no margin for drift
    NoMargin,
    /// a lease is counted from when the acknowledgement came, not from when the heartbeat left
    LeaseFromReceipt,
    /// a majority's lease counts one acknowledgement too few
    LeaseOfFewer,
    /// a peer is suspected before the promise to it has run out
    SuspectsEarly,
    /// who stood still so long that others may hold him dead, or was not acknowledged in time, holds others dead
    JudgesInDoubt,
    /// half of a view is taken for its majority
    HalfIsMajority,
    /// a host that stood still takes a former incarnation for harmless because it never heard its answer
    DoubtsOnlyTheHeard,
    /// a witness that comes back takes no word that it was dropped meanwhile
    DroppedUnheard,
    /// heartbeats of a dead incarnation are taken
    TakesTheDead,
    /// recorded heartbeats of a host that is down are taken for signs of its life
    TakesRecordings,
    /// a member that is excluded goes on
    GoesOnExcluded,
    /// questions are answered without a lease
    AnswersUnleased,
    /// decisions are told without a lease
    TellsUnleased,
    /// a leader decides before the last acknowledgement
    DecidesEarly,
    /// a new leader makes its own proposal of what it had adopted of another
    DropsAdopted,
    /// a proposal replaces that of a later leader
    AdoptsLower,
    /// a member tells what it has adopted as if it were decided
    TellsAdopted,
    /// a new leader answers before it has decided what the last one may have
    SpeaksEarly,
    /// a leader answers while it has decided what it has not told
    SpeaksUntold,
    /// members acknowledge beyond the window
    AcksBeyondWindow,
    /// nothing is sent again
    NeverResends,
    /// an acknowledgement is taken for word that the instance was told
    AckMeansTold,
    /// who has decided does not answer a leader that has not
    KeepsDecisions,
    /// a crash does not release what waits for an acknowledgement of the dead
    WaitsForTheDead,
    /// an acknowledgement of another instance is taken for this one's
    MixesInstances,
    /// who has begun the next view does not serve those who have not
    LeavesLaggards,
    /// what was proposed and not decided before the end of a view is forgotten
    DropsUndecided,
    /// who joins skips what was decided between its state and its view
    JoinsWithout,
    /// a founder begins without those whom it has not heard of
    FoundsWithout,
    /// a founder begins without those who have died and were never known to be in no group
    TakesTheGone,
    /// who has begun the first view tells it in a later ballot of its own, which not all have promised
    RaisesItsBallot,
    /// a founder takes itself for the first process of its host, whatever was before
    TakesEachForFirst,
    /// who takes over the first view of others does not ask members that are up and that it has not heard of yet
    AsksOnlyTheKnown,
    /// a broadcast is delivered when it is held, not when all hold it
    DeliversHeld,
    /// the word of a crash is told before the survivors hold the same of the dead
    SkipsLevelling,
    /// what comes late of the dead is taken while the survivors level
    TakesOfTheDead,
    /// survivors level with those who do not know of all the deaths
    LevelsWithOld,
    /// equal payloads that are proposed twice are one
    TakesEqualsForOne,
    /// a payload that is sent ahead waits for hosts, whatever their incarnation, and not for members
    WaitsForHosts,
    /// members that were all excluded found their group again without the word of all members of its last view
    FoundsFromSome,
    /// who was let in with others, who are over, waits for their welcome for ever
    AwaitsWelcome,
    /// who was let in by a member that waits to leave waits for a welcome of those who have died
    AwaitsTheLeaving,
    /// who gives up the view that it was let in to does not say who was dead by then
    ForgetsWhoDied,
    /// a host that was outlived itself is heeded in whom it has outlived
    HeedsTheOutlived,
    /// a leader sends again as often to who needs long for it as to any other
    NeverSlows,
    /// a state that was made for who asks is offered when it asks again
    OffersWhenAsked,
    /// who was told nothing keeps it as if it were something
    KeepsNothing,
    /// of two first views any is taken for the last
    IgnoresBallots,
    /// who took over a later state does not say any more that it never began the view of that
    ForgetsItsView,
    /// a member that was told that it is taken out says nothing of what else it was told
    RemovedKeepsNothing,
    /// a founder waits for the word of a host that has died, and come back with a record
    WaitsForTheRecorded,
    /// a founder begins without a host that has died and come back, and may form a group
    TakesTheReturned,
    /// a member that was taken out does not say which views it had begun before
    TakenOutInSilence,
    /// a member that is taken out ends before anybody has begun the view without it
    RemovedEndsEarly,
    /// several members are taken out by one view
    TakesOutSeveral,
    /// the last member that has the state is taken out of the group
    RemovesTheLast,
    /// that a host is up again says nothing of what it was before
    MissesTheFormer,
    /// who comes as an incarnation that is dead is let in as that
    LetsInTheDead,
    /// who comes as an incarnation above those that are dead answers for them
    AnswersForOthers,
    /// a process that has a successor is told of after it
    TellsTheFormer,
    /// a member takes the death of an earlier incarnation for that of the one in its view
    CrashesTheLater,
    /// a host says that it has named all its processes while some do not fit yet
    NamesSome,
    /// a member that is out, as its agent is a new one, takes who is not up there yet for dead
    AsksTheNewAgent,
    /// a member takes packets while the agent has told more than it has heard
    TakesPacketsFirst,
    /// a witness speaks before its vote is on disk
    VotesUnsynced,
    /// a witness that starts again has forgotten its vote, and is the incarnation that it was
    ForgetsVote,
    /// who installs a view waits for its own promise, not for the longest that may still bind
    WaitsOwnPromise,
    /// a host that starts again with a shorter timeout has forgotten what it promised before
    ForgetsPromise,
    /// a member waits with what all hold of a dead sender until it knows what others hold besides
    KeepsKnown,
    /// a message that waits for the one before it is taken after the crash of its sender
    KeepsNext,
    /// a host that leaves tells of the end of a former incarnation that may act without regard to it
    EndsWhileLeaving,
    /// a host whose timeouts have become shorter forgets the longer promises that it made before
    ForgetsLonger,
    /// a member of the view whose newer incarnation was heard first is dropped at once
    FreesSuperseded,
    /// the agent of a host that does not know an observer starts again, and the observer holds its programs dead at once
    EndsUnbound,
    /// what came while a host stood still counts before it finds that it did
    FindsStallsLate,
    /// who has asked to be let in to a view founds another one as the same incarnation
    FoundsAfterAsking,
    /// who stood still, but for less than its limit, takes itself for heard in time
    TrustsLateHeartbeats,
    /// who may have been held dead by an incarnation that is superseded acts until what was promised to that one has run out
    DoubtsLate,
    /// a witness that starts again takes what was acknowledged in its former life for its present one
    TakesFormerAcks,
    /// payloads that are offered take all the room, also that for who joins
    OffersTakeAll,
    /// a steady heartbeat, which the kernel keeps to itself, does not end what its sender said of others before
    KeepsReports,
    /// a former incarnation of a host is dead for an agent that has just started as soon as a later one is up
    EndsFormers,
    /// a host that crashed is barred as if it was put out for a partial partition
    BarsTheCrashed,
    /// another member's word of a death is taken also of a member that has met this one
    BelievesOfTheMet,
    /// a voter accepts a first view, acknowledges and acts by it while its next incarnation may be no higher than that view's generation
    ForgetsGeneration,
    /// who has accepted a next view acknowledges as before
    AcksAccepted,
    /// who has accepted a next view takes acknowledgements for its lease
    TakesAcksAccepted,
    /// who has a lease accepts a view without itself
    AcceptsWithoutItself,
    /// a program takes the lease of a later incarnation of its host for its own
    LeaseOfAnother,
    /// a program that must run once goes on as a later incarnation of its host
    RunGoesOn,
    /// leases and timeouts are counted on a clock that is slewed
    SlewedClock,
    /// a lease does not end while its host is suspended
    SleepsUnseen,
    /// a lease does not end while its host is stopped with its clocks, though the processor's counter goes on
    StopsUnseen,
    /// a member that is told that events were lost does not ask who is up
    MissesTheLost,
    /// a machine that was put back to a snapshot goes on as the incarnation that it was, though others acknowledge what it has yet to send
    MissesItself,
    /// a machine that was put back does not heed the acknowledgement of a later incarnation by who does not answer this one
    HeedsTheKnownOnly,
    /// a host that lost its memory heeds what was recorded of peers that had heard a later incarnation of it
    HeedsRecordings,
    /// a machine that was put back, and excluded before it found out, begins anew
    ExcludedOnly,
    /// a host heeds what peers say of its later heartbeats and incarnations in packets that are not their newest
    HeedsTheOld,
    /// a host takes a number that was heard long ago for one that it has yet to send
    CountsFromNow,
    /// Takes a peer that has only named this host as dead for one that has heard it.
    TakesNamingForHearing,
    /// Begins again as an incarnation that others speak of.
    PassesThroughFormers,
    /// Takes an acknowledgement of less for one of far more, whose lower half is the same.
    TakesBehindForAhead,
    /// an acknowledgement of no heartbeat counts as one of the newest number that ends in zeros
    TakesNothingForANumber,
}

/// In the whole process. 0: none; else one more than its place.
#[cfg(feature = "planted")]
static ARMED: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);

// Tests that run side by side arm their own threads.
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
