-------------------------------- MODULE osrb --------------------------------
\* SPDX-License-Identifier: Apache-2.0
(***************************************************************************)
(* Optimistic stabilizing reliable broadcast (FiDe, appendix A.2, Alg. 2). *)
(* Crash-stop processes, reliable links, perfect failure detector.         *)
(*                                                                         *)
(* Links: what a live process sent arrives.  What a crashed process sent   *)
(* arrives or does not: it may have died between two sends.                *)
(* `Without` names the parts left out: the repair "relay-late" for the     *)
(* algorithm as published, any other part for a mutant.                    *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS Proc,        \* processes
          Senders,     \* those of them that broadcast
          Count,       \* how many messages each of them broadcasts
          MaxCrashes,  \* at most so many processes crash
          Without      \* names of the parts that are left out

Has(part) == part \notin Without

Ids == Senders \X (1..Count)   \* message ids: <<origin, number>>
Origin(id) == id[1]

VARIABLES alive,       \* processes that have not crashed
          net,         \* messages in flight: [from, to, id]
          correct,     \* Alg. 2 line 1
          retransmit,  \* line 2
          delivered,   \* line 3
          times,       \* history: how often p has DELIVERed id
          cast,        \* history: ids that were BROADCAST
          stabilized   \* history: ids that somebody STABILIZEd

vars == <<alive, net, correct, retransmit, delivered, times, cast, stabilized>>

Init ==
    /\ alive = Proc
    /\ net = {}
    /\ correct = [p \in Proc |-> Proc]
    /\ retransmit = [p \in Proc |-> {}]
    /\ delivered = [p \in Proc |-> {}]
    /\ times = [p \in Proc |-> [id \in Ids |-> 0]]
    /\ cast = {}
    /\ stabilized = {}

Send(p, ids, to) == [from : {p}, to : to, id : ids]

\* Fewer states: a message that its receiver would ignore for good, or that nobody is left to receive, goes at once.
Pruned(messages) ==
    {m \in messages : m.to \in alive' /\ (Has("deliver-once") => m.id \notin delivered'[m.to])}

\* A mutant's relay takes the message for its own.
Relayed(p, ids) ==
    IF Has("relay-keeps-origin") THEN ids ELSE {<<p, id[2]>> : id \in ids} \cap Ids

\* Lines 4-6.
Broadcast(p, id) ==
    /\ p \in alive /\ Origin(id) = p /\ id \notin cast
    /\ cast' = cast \cup {id}
    /\ net' = net \cup Send(p, {id}, IF Has("send-to-self") THEN correct[p] ELSE correct[p] \ {p})
    /\ UNCHANGED <<alive, correct, retransmit, delivered, times, stabilized>>

\* Lines 7-11.  Repair: a message whose origin is known to have crashed is relayed at once, since the CRASH that would
\* have relayed it is over.
Receive(m) ==
    LET p == m.to
        id == m.id
        relay == IF Has("relay-late") /\ Origin(id) \notin correct[p] THEN Send(p, Relayed(p, {id}), correct[p]) ELSE {}
    IN  /\ p \in alive
        /\ m \in net
        /\ IF id \notin delivered[p] \/ ~Has("deliver-once")
           THEN /\ retransmit' = [retransmit EXCEPT ![p] = @ \cup {id}]
                /\ delivered' = [delivered EXCEPT ![p] = @ \cup {id}]
                /\ times' = [times EXCEPT ![p][id] = @ + 1]
           ELSE UNCHANGED <<retransmit, delivered, times>>
        /\ UNCHANGED <<alive, correct, cast, stabilized>>
        /\ net' = Pruned((net \ {m}) \cup relay)

\* Lines 12-16: p learns that j has crashed.
Detect(p, j) ==
    /\ p \in alive /\ j \in correct[p] \ alive
    /\ correct' = [correct EXCEPT ![p] = @ \ {j}]
    /\ UNCHANGED <<alive, retransmit, delivered, times, cast, stabilized>>
    /\ net' = IF Has("relay-on-crash")
              THEN Pruned(net \cup Send(p, Relayed(p, retransmit[p]), correct[p] \ {j}))
              ELSE net

\* Lines 17-19.  The criterion is the duty of OSRB's user; here the weakest that keeps the property Stability.
Stabilize(p, id) ==
    /\ p \in alive /\ id \in retransmit[p]
    /\ Has("stability") => \A q \in alive : id \in delivered[q]
    /\ retransmit' = [retransmit EXCEPT ![p] = @ \ {id}]
    /\ stabilized' = stabilized \cup {id}
    /\ UNCHANGED <<alive, net, correct, delivered, times, cast>>

Crash(p) ==
    /\ p \in alive /\ Cardinality(Proc \ alive) < MaxCrashes
    /\ alive' = alive \ {p}
    /\ UNCHANGED <<correct, retransmit, delivered, times, cast, stabilized>>
    /\ net' = Pruned(net)

\* What has to happen in the end.  Broadcasts, stabilizations, crashes and messages of crashed processes need not.
FairNext ==
    \/ \E m \in net : m.from \in alive /\ Receive(m)
    \/ \E p, j \in Proc : Detect(p, j)

Next ==
    \/ \E m \in net : Receive(m)
    \/ \E p, j \in Proc : Detect(p, j)
    \/ \E p \in Proc, id \in Ids : Broadcast(p, id) \/ Stabilize(p, id)
    \/ \E p \in Proc : Crash(p)

\* No behaviour has a cycle, so fairness of the disjunction is fairness of each.
Spec == Init /\ [][Next]_vars /\ WF_vars(FairNext)

-----------------------------------------------------------------------------
NoDuplication == \A p \in Proc, id \in Ids : times[p][id] <= 1
NoCreation == \A p \in Proc : delivered[p] \subseteq cast
Stability == \A id \in stabilized, p \in alive : id \in delivered[p]

\* Of the last state of a behaviour: the live ones are the correct ones.
ValidAtEnd == \A id \in cast : Origin(id) \in alive => id \in delivered[Origin(id)]
AgreedAtEnd == \A p, q \in alive : delivered[p] = delivered[q]
UniformAtEnd == \A p \in Proc, q \in alive : delivered[p] \subseteq delivered[q]

Validity == <>[]ValidAtEnd
Agreement == <>[]AgreedAtEnd
UniformAgreement == <>[]UniformAtEnd   \* Not a property of OSRB, though the published argument names it so.

\* The same as invariants, for sizes at which TLC does not check temporal properties in good time.
Quiet == ~ENABLED FairNext
ValidityWhenQuiet == Quiet => ValidAtEnd
AgreementWhenQuiet == Quiet => AgreedAtEnd
UniformAgreementWhenQuiet == Quiet => UniformAtEnd
=============================================================================
