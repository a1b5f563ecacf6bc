// SPDX-License-Identifier: Apache-2.0
//! The questions to TLC: a specification, its sizes, the parts that are left out of it, and the expected
//! answer.

pub(super) struct Run {
    pub(super) spec: &'static str,
    pub(super) name: &'static str,
    /// Constants to set; the others stay as the `.cfg` has them.
    pub(super) set: &'static [(&'static str, &'static str)],
    pub(super) expect: Expect,
}

pub(super) enum Expect {
    /// All invariants of the `.cfg` hold, and so do its temporal properties if they are asked for.
    Holds(Temporal),
    /// All invariants except this one hold; this one is not asked for.
    HoldsButFor(&'static str),
    /// The algorithm as published, or a reading of it, violates this invariant: docs/errata.md has the trace.
    Fails(&'static str),
    /// A mutant: an invariant of the `.cfg` rejects it.
    Rejected,
    /// A mutant: a temporal property of the `.cfg` rejects it, without the help of invariants.
    RejectedInTime,
}

/// Whether to check temporal properties, which need a graph of all states.
pub(super) enum Temporal {
    Yes,
    No,
}

use Expect::{Fails, Holds, HoldsButFor, Rejected, RejectedInTime};

/// A line of a table below: specification, name, constants, expectation.
macro_rules! runs {
    ($($spec:ident, $name:literal, [$($key:ident = $value:literal),*], $expect:expr;)*) => {
        &[$(Run { spec: stringify!($spec), name: $name, set: &[$((stringify!($key), $value)),*], expect: $expect }),*]
    };
}

/// The questions that CI asks.
#[rustfmt::skip]
pub(super) const SMALL: &[Run] = runs![
    osrb, "repaired", [], Holds(Temporal::Yes);
    osrb, "published: late message not relayed", [Senders = "{1}", Without = r#"{"relay-late"}"#], Fails("AgreementWhenQuiet");
    osrb, "claim: agreement is uniform", [Senders = "{1}"], Fails("UniformAgreementWhenQuiet");
    osrb, "mutant: delivers again", [Senders = "{1}", Without = r#"{"deliver-once"}"#], Rejected;
    osrb, "mutant: no relay on crash", [Senders = "{1}", Without = r#"{"relay-on-crash"}"#], Rejected;
    osrb, "mutant: no relay on crash", [Senders = "{1}", Without = r#"{"relay-on-crash"}"#], RejectedInTime;
    osrb, "mutant: stabilizes too early", [Senders = "{1}", Without = r#"{"stability"}"#], Rejected;
    osrb, "mutant: does not send to itself", [Senders = "{1}", Without = r#"{"send-to-self"}"#], Rejected;
    osrb, "mutant: relays as its own", [Without = r#"{"relay-keeps-origin"}"#], Rejected;

    fcurb, "as described", [], Holds(Temporal::Yes);
    fcurb, "reading: own message delivered at once", [Without = r#"{"own-after-heartbeat"}"#], Fails("UniformAgreementWhenQuiet");
    fcurb, "mutant: heartbeat cut off half way", [Without = r#"{"all-or-none"}"#], Rejected;
    fcurb, "mutant: heartbeat cut off half way", [Without = r#"{"all-or-none"}"#], RejectedInTime;
    fcurb, "mutant: verdict overtakes heartbeat", [Without = r#"{"heartbeats-first"}"#], Rejected;
    fcurb, "mutant: both copies lost", [Without = r#"{"one-copy-arrives"}"#], Rejected;
    fcurb, "mutant: both copies delivered", [Without = r#"{"deliver-once"}"#], Rejected;
    fcurb, "mutant: false suspicion", [Without = r#"{"accuracy"}"#], Rejected;
    fcurb, "mutant: does not send to itself", [Without = r#"{"to-self"}"#], Rejected;

    hsuc, "repaired", [], Holds(Temporal::Yes);
    hsuc, "repaired", [N = "3", Instances = "1", MaxCrashes = "2"], Holds(Temporal::No);
    hsuc, "published: acks outlive their instance", [Without = r#"{"reset-acks"}"#], Fails("Validity");
    hsuc, "published: leader that adopted is mute", [Instances = "1", Without = r#"{"leader-sends"}"#], Fails("TerminationWhenQuiet");
    hsuc, "published: late decision not relayed", [N = "3", Instances = "1", Without = r#"{"relay-late"}"#], Fails("TerminationWhenQuiet");
    hsuc, "reading: an id for each broadcast", [N = "3", Without = r#"{"id-per-instance"}"#], Fails("Stability");
    hsuc, "reading: an id for each broadcast", [N = "3", Instances = "1", MaxCrashes = "2", Without = r#"{"id-per-instance"}"#], Fails("RelaysBounded");
    hsuc, "reading: PROPOSE from within DECIDE", [Without = r#"{"decide-last"}"#], Fails("TerminationWhenQuiet");
    hsuc, "mutant: some acks are enough", [N = "3", Instances = "1", MaxCrashes = "2", Without = r#"{"all-acks"}"#], Rejected;
    hsuc, "mutant: acks not counted again on crash", [Instances = "1", Without = r#"{"recheck-on-crash"}"#], Rejected;
    hsuc, "mutant: follows an earlier leader", [N = "3", Instances = "1", MaxCrashes = "2", Without = r#"{"proposer-order"}"#], Rejected;
    hsuc, "mutant: acknowledges, does not adopt", [N = "3", Instances = "1", MaxCrashes = "1", Without = r#"{"adopt"}"#], Rejected;
    hsuc, "mutant: new leader is mute", [Instances = "1", Without = r#"{"new-leader-sends"}"#], Rejected;
    hsuc, "mutant: new leader is mute", [Instances = "1", Without = r#"{"new-leader-sends"}"#], RejectedInTime;
    hsuc, "mutant: no relay on crash", [N = "3", Instances = "1", Without = r#"{"relay-on-crash"}"#], Rejected;
    hsuc, "mutant: stabilizes one instance early", [N = "3", Instances = "1", Without = r#"{"stabilize-previous"}"#], Rejected;
    hsuc, "mutant: old messages count", [Without = r#"{"ignore-old"}"#], Rejected;
    hsuc, "mutant: decides again", [Without = r#"{"ignore-decided"}"#], Rejected;
    hsuc, "mutant: own ack without a message", [N = "3", Instances = "1", MaxCrashes = "2", Without = r#"{"own-ack-by-message"}"#], Rejected;

    huc, "repaired", [], Holds(Temporal::Yes);
    huc, "repaired", [N = "3", Instances = "1", MaxCrashes = "2"], Holds(Temporal::Yes);
    huc, "published: state outlives its instance", [Without = r#"{"reset-acks", "reset-proposals"}"#], Fails("Validity");
    huc, "published: state outlives its instance", [N = "3", Without = r#"{"reset-acks", "reset-proposals"}"#], Fails("UniformAgreement");
    huc, "reading: resends as of its own instance", [Without = r#"{"reset-acks", "reset-proposals", "resend-as-current"}"#], Fails("Validity");
    huc, "reading: resends as of its own instance", [N = "3", MaxCrashes = "2", Without = r#"{"reset-acks", "reset-proposals", "resend-as-current"}"#], Fails("UniformAgreement");
    huc, "half repaired: resets proposals only", [N = "3", MaxCrashes = "2", Without = r#"{"reset-acks"}"#], HoldsButFor("NoEarlyDecision");
    huc, "half repaired: resets proposals only", [N = "3", MaxCrashes = "2", Without = r#"{"reset-acks"}"#], Fails("NoEarlyDecision");
    huc, "reading: DET may return bottom", [Instances = "1", Without = r#"{"skip-bottom"}"#], Fails("Validity");
    huc, "mutant: some proposals are enough", [N = "3", Instances = "1", MaxCrashes = "2", Without = r#"{"all-acks"}"#], Rejected;
    huc, "mutant: acks not counted again on crash", [N = "3", Instances = "1", Without = r#"{"recheck-on-crash"}"#], Rejected;
    huc, "mutant: does not propose to the new leader", [N = "3", Instances = "1", Without = r#"{"resend"}"#], Rejected;
    huc, "mutant: does not propose to the new leader", [N = "3", Instances = "1", Without = r#"{"resend"}"#], RejectedInTime;
    huc, "mutant: verdict overtakes decision", [N = "3", Instances = "1", Without = r#"{"fail-consistency"}"#], Rejected;
    huc, "mutant: decision reaches some", [N = "3", Instances = "1", MaxCrashes = "2", Without = r#"{"uniform"}"#], Rejected;
    huc, "mutant: broadcasts again and again", [N = "3", Instances = "1", Without = r#"{"clear-acks"}"#], Rejected;
    huc, "mutant: forgets what came before it led", [N = "3", Instances = "1", Without = r#"{"keep-before-leading"}"#], Rejected;
    huc, "mutant: old messages count", [Without = r#"{"ignore-old"}"#], Rejected;
    huc, "mutant: later messages do not wait", [Without = r#"{"buffer-future"}"#], Rejected;

    lease, "as implemented", [Horizon = "6"], Holds(Temporal::No);
    lease, "claim: no crash is ever found", [MaxCrashes = "1"], Fails("NeverFound");
    lease, "mutant: no margin for drift", [Without = r#"{"margin"}"#], Rejected;
    lease, "mutant: lease from the answer", [Without = r#"{"lease-from-sending"}"#], Rejected;
    lease, "mutant: declares dead before the promise ends", [Error = "0", Margin = "0", Horizon = "9", Without = r#"{"promise"}"#], Rejected;
    lease, "mutant: stalled, declares the other dead", [Error = "0", Margin = "0", Horizon = "9", Without = r#"{"doubt"}"#], Rejected;

    view_lease, "as implemented, a restart", [N = "3", MaxRestarts = "1"], Holds(Temporal::No);
    view_lease, "as implemented, a shorter promise", [N = "3", MaxLowers = "1"], Holds(Temporal::No);
    view_lease, "claim: it is never dropped", [], Fails("NeverDropped");
    view_lease, "mutant: does not report the lease it has", [Without = r#"{"says-own-lease"}"#], Rejected;
    view_lease, "mutant: acknowledges what it has accepted to leave", [Without = r#"{"mute-when-accepted"}"#], Rejected;
    view_lease, "mutant: is acknowledged after it accepted", [Without = r#"{"deaf-when-accepted"}"#], Rejected;
    view_lease, "mutant: counts acknowledgements of a newer view", [Without = r#"{"same-view"}"#], Rejected;
    view_lease, "mutant: drops before its promise ends", [Without = r#"{"keeps-promise"}"#], Rejected;
    view_lease, "mutant: accepts without itself, and acts", [Without = r#"{"stays-while-acting"}"#], Rejected;
    view_lease, "mutant: restarts and promises less", [N = "3", MaxRestarts = "1", Without = r#"{"remembers-promise"}"#], Rejected;

    hsuc_lease, "as implemented", [], Holds(Temporal::No);
    hsuc_lease, "as implemented", [Instances = "3", Window = "2"], Holds(Temporal::No);
    hsuc_lease, "as implemented", [N = "3", Instances = "1", MaxExcluded = "2"], Holds(Temporal::No);
    hsuc_lease, "mutant: answers before it delivered what it decided", [Instances = "1", Without = r#"{"delivery-first"}"#], Rejected;
    hsuc_lease, "mutant: the excluded hear of a later end", [N = "3", Instances = "1", MaxExcluded = "2", Without = r#"{"one-way"}"#], Rejected;
    hsuc_lease, "claim: an excluded leader never decides", [], Fails("NeverOvertaken");
    hsuc_lease, "mutant: tells without a lease", [Without = r#"{"tell-leased"}"#], Rejected;
    hsuc_lease, "mutant: answers without a lease", [Without = r#"{"answer-leased"}"#], Rejected;
    hsuc_lease, "mutant: excluded before its lease ends", [Without = r#"{"wait-for-lease"}"#], Rejected;
    hsuc_lease, "mutant: tells what is adopted only", [Without = r#"{"tell-decided"}"#], Rejected;
    hsuc_lease, "mutant: tells a later instance first", [Window = "2", Without = r#"{"in-order"}"#], Rejected;
    hsuc_lease, "mutant: speaks before it delivered the inherited", [Without = r#"{"tell-inherited"}"#], Rejected;
    hsuc_lease, "mutant: decides one acknowledgement early", [N = "3", Instances = "1", MaxExcluded = "2", Without = r#"{"all-acks"}"#], Rejected;
    hsuc_lease, "mutant: counts those of another round", [N = "3", Instances = "1", MaxExcluded = "2", Without = r#"{"own-round"}"#], Rejected;
    hsuc_lease, "mutant: counts those of another instance", [Without = r#"{"own-instance"}"#], Rejected;
    hsuc_lease, "mutant: waits for the excluded", [Without = r#"{"recount"}"#], Rejected;
    hsuc_lease, "mutant: follows an earlier leader", [N = "3", Instances = "1", MaxExcluded = "2", Without = r#"{"higher-round"}"#], Rejected;
    hsuc_lease, "mutant: follows the excluded", [Without = r#"{"ignore-excluded"}"#], Rejected;
    hsuc_lease, "mutant: new leader drops what it adopted", [Without = r#"{"carry-adopted"}"#], Rejected;
    hsuc_lease, "mutant: new leader is mute", [Without = r#"{"new-leader-proposes"}"#], Rejected;
    hsuc_lease, "mutant: new leader leaves a gap", [N = "3", Window = "2", Without = r#"{"close-gaps"}"#], Rejected;
    hsuc_lease, "mutant: acknowledges beyond the window", [Without = r#"{"window"}"#], Rejected;
    hsuc_lease, "mutant: acknowledged counts as delivered", [Without = r#"{"ack-is-no-delivery"}"#], Rejected;
    hsuc_lease, "mutant: acknowledges once", [Without = r#"{"ack-again"}"#], Rejected;
    hsuc_lease, "mutant: tells others its decision once", [Without = r#"{"resend-decided"}"#], Rejected;
    hsuc_lease, "mutant: a decided member does not answer", [N = "3", Instances = "1", Without = r#"{"answer-repeated"}"#], Rejected;

    fcurb_lease, "as implemented", [], Holds(Temporal::No);
    fcurb_lease, "as implemented", [N = "2", Senders = "{1, 2}", Count = "2", MaxExcluded = "1"], Holds(Temporal::No);
    fcurb_lease, "as implemented, two of one sender", [Senders = "{1}", Count = "2", MaxExcluded = "1"], Holds(Temporal::No);
    fcurb_lease, "claim: nothing is ever passed on", [], Fails("NeverLevelled");
    fcurb_lease, "mutant: delivers what is held", [Without = r#"{"held-by-all"}"#], Rejected;
    fcurb_lease, "mutant: delivers one acknowledgement early", [Without = r#"{"all-acks"}"#], Rejected;
    fcurb_lease, "mutant: survivors do not level", [Without = r#"{"level"}"#], Rejected;
    fcurb_lease, "mutant: delivers others while it levels", [Senders = "{1, 2}", MaxExcluded = "1", Without = r#"{"level-first"}"#], Rejected;
    fcurb_lease, "mutant: takes late messages of the dead", [Without = r#"{"ignore-dead"}"#], Rejected;
    fcurb_lease, "mutant: tells of the last death only", [N = "4", Without = r#"{"report-again"}"#], Rejected;
    fcurb_lease, "mutant: what all hold waits for what others hold", [Senders = "{1}", Count = "2", MaxExcluded = "1", Without = r#"{"deliver-known"}"#], Rejected;
    fcurb_lease, "mutant: passes nothing on", [Without = r#"{"pass-on"}"#], Rejected;
    fcurb_lease, "mutant: a sender says once that all hold it", [N = "2", MaxExcluded = "1", Without = r#"{"ask-again"}"#], Rejected;
    fcurb_lease, "mutant: tells without a lease", [Without = r#"{"tell-leased"}"#], Rejected;
    fcurb_lease, "mutant: excluded before its lease ends", [Without = r#"{"wait-for-lease"}"#], Rejected;
    fcurb_crossed, "as implemented", [], Holds(Temporal::No);
    fcurb_crossed, "mutant: levels one crash after the other", [Without = r#"{"level-in-any-order"}"#], Rejected;
];

/// The questions that the test command does not ask: mostly the repaired algorithms, at sizes that take
/// minutes.
#[rustfmt::skip]
pub(super) const LARGE: &[Run] = runs![
    view_lease, "mutant: drops at once after a change", [Without = r#"{"waits-at-all"}"#], Rejected;
    view_lease, "mutant: does not report what older views left", [Without = r#"{"says-what-is-left"}"#], Rejected;
    view_lease, "mutant: does not report its earlier promise", [MaxLowers = "1", Without = r#"{"says-longer"}"#], Rejected;
    view_lease, "mutant: waits for its own promise", [Without = r#"{"waits-longest"}"#], Rejected;
    osrb, "repaired", [Senders = "{1}", Count = "2"], Holds(Temporal::Yes);
    fcurb, "as described", [Senders = "{1, 2}"], Holds(Temporal::Yes);
    hsuc, "repaired", [N = "3", Instances = "1", MaxCrashes = "2"], Holds(Temporal::Yes);
    hsuc, "repaired", [N = "3", MaxCrashes = "2"], Holds(Temporal::No);
    hsuc, "repaired", [N = "3", Instances = "3", MaxCrashes = "1"], Holds(Temporal::No);
    hsuc, "published: acks outlive their instance", [N = "3", MaxCrashes = "2", Without = r#"{"reset-acks"}"#], Fails("UniformAgreement");
    hsuc, "published: acks outlive their instance", [N = "3", MaxCrashes = "2", Without = r#"{"reset-acks"}"#], Fails("UniformAgreementOnValues");
    huc, "repaired", [N = "3", MaxCrashes = "2"], Holds(Temporal::Yes);
    huc, "repaired", [N = "3", Instances = "3", MaxCrashes = "2"], Holds(Temporal::No);
    huc, "repaired", [N = "4", Instances = "1", MaxCrashes = "3"], Holds(Temporal::No);
    lease, "as implemented, true clocks", [Error = "0", Margin = "0", Horizon = "9"], Holds(Temporal::No);
    lease, "as implemented", [Horizon = "9"], Holds(Temporal::No);
    lease, "as implemented", [Horizon = "8", MaxCrashes = "1"], Holds(Temporal::No);
    lease, "mutant: stalled, declares the other dead", [Horizon = "9", Without = r#"{"doubt"}"#], Rejected;
    view_lease, "as implemented", [N = "4"], Holds(Temporal::No);
    view_lease, "as implemented, a restart", [N = "4", MaxRestarts = "1"], Holds(Temporal::No);
    view_lease, "as implemented, a shorter promise", [N = "4", MaxLowers = "1"], Holds(Temporal::No);
    hsuc_lease, "as implemented", [N = "3", Window = "2", MaxExcluded = "2"], Holds(Temporal::No);
    hsuc_lease, "as implemented", [N = "3", Instances = "3", MaxExcluded = "2"], Holds(Temporal::No);
    hsuc_lease, "as implemented", [N = "4", Instances = "1", MaxExcluded = "3"], Holds(Temporal::No);
    hsuc_lease, "as implemented", [N = "4", MaxExcluded = "2"], Holds(Temporal::No);
    fcurb_lease, "as implemented", [Senders = "{1, 2}", MaxExcluded = "2"], Holds(Temporal::No);
    fcurb_lease, "as implemented, two of one sender", [Senders = "{1}", Count = "2"], Holds(Temporal::No);
    fcurb_lease, "mutant: levels with one unaware of a death", [N = "4", Without = r#"{"know-all-deaths"}"#], Rejected;
];
