-------------------------------- MODULE fcurb --------------------------------
\* SPDX-License-Identifier: Apache-2.0
(***************************************************************************)
(* Fail-consistent uniform reliable broadcast (FiDe, §4.1 and appendix     *)
(* A.4): messages that ride on heartbeats.  The paper gives its properties *)
(* and no pseudo-code; this is the mechanism it describes:                 *)
(*                                                                         *)
(*  - a heartbeat leaves on every tree at once, to all or, if the process  *)
(*    dies before, to none;                                                *)
(*  - a tree may lose a copy, but never the last one (a critical compound  *)
(*    failure is outside the published model);                             *)
(*  - the timeout exceeds the latency: a crash is noticed only when no     *)
(*    heartbeat of the dead process is still under way to who notices.     *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets

CONSTANTS Proc,        \* processes
          Senders,     \* those of them that broadcast
          Count,       \* how many messages each of them broadcasts
          Trees,       \* redundant multicast trees
          MaxCrashes,  \* at most so many processes crash
          Without      \* names of the parts that are left out: mutants

Has(part) == part \notin Without

Ids == Senders \X (1..Count)   \* message ids: <<origin, number>>
Origin(id) == id[1]

VARIABLES alive,   \* processes that have not crashed
          queue,   \* what p has BROADCAST and no heartbeat has taken along yet
          net,     \* copies of heartbeats in flight: [id, to, tree]
          noticed, \* crashes that p has learned of
          times,   \* history: how often p has DELIVERed id
          cast,    \* history: ids that were BROADCAST
          late     \* history: somebody DELIVERed a message of a process it knew to be dead

vars == <<alive, queue, net, noticed, times, cast, late>>

Init ==
    /\ alive = Proc
    /\ queue = [p \in Proc |-> {}]
    /\ net = {}
    /\ noticed = [p \in Proc |-> {}]
    /\ times = [p \in Proc |-> [id \in Ids |-> 0]]
    /\ cast = {}
    /\ late = FALSE

Delivered(p) == {id \in Ids : times[p][id] > 0}

\* A mutant delivers its own message before the heartbeat that carries it has left.
Broadcast(p, id) ==
    /\ p \in alive /\ Origin(id) = p /\ id \notin cast
    /\ cast' = cast \cup {id}
    /\ queue' = [queue EXCEPT ![p] = @ \cup {id}]
    /\ times' = IF Has("own-after-heartbeat") THEN times ELSE [times EXCEPT ![p][id] = 1]
    /\ UNCHANGED <<alive, net, noticed, late>>

\* One heartbeat, with all that waits for it.  To itself on one tree: no link is between.
Beat(p) ==
    /\ p \in alive /\ queue[p] # {}
    /\ net' = net \cup {c \in [id : queue[p], to : Proc, tree : Trees] :
                           c.to = p => c.tree = 1 /\ Has("own-after-heartbeat") /\ Has("to-self")}
    /\ queue' = [queue EXCEPT ![p] = {}]
    /\ UNCHANGED <<alive, noticed, times, cast, late>>

Deliver(c) ==
    /\ c \in net /\ c.to \in alive
    /\ net' = net \ {c}
    /\ IF times[c.to][c.id] = 0 \/ ~Has("deliver-once")
       THEN /\ times' = [times EXCEPT ![c.to][c.id] = @ + 1]
            /\ late' = (late \/ Origin(c.id) \in noticed[c.to])
       ELSE UNCHANGED <<times, late>>
    /\ UNCHANGED <<alive, queue, noticed, cast>>

\* A tree loses a copy that another tree has brought or will bring.
Lose(c) ==
    /\ c \in net /\ c.to # Origin(c.id)
    /\ Has("one-copy-arrives") => \/ times[c.to][c.id] > 0
                                  \/ \E d \in net : d # c /\ d.id = c.id /\ d.to = c.to
    /\ net' = net \ {c}
    /\ UNCHANGED <<alive, queue, noticed, times, cast, late>>

Crash(p) ==
    /\ p \in alive /\ Cardinality(Proc \ alive) < MaxCrashes
    /\ alive' = alive \ {p}
    /\ queue' = [queue EXCEPT ![p] = {}]
    \* A mutant's heartbeat is cut off between two receivers.
    /\ \E cut \in SUBSET (IF Has("all-or-none") THEN {} ELSE Proc) :
          net' = {c \in net : c.to # p /\ ~(Origin(c.id) = p /\ c.to \in cut)}
    /\ UNCHANGED <<noticed, times, cast, late>>

Notice(p, j) ==
    /\ p \in alive /\ j \notin noticed[p] /\ j # p
    /\ Has("accuracy") => j \notin alive
    /\ Has("heartbeats-first") => \A c \in net : ~(c.to = p /\ Origin(c.id) = j)
    /\ noticed' = [noticed EXCEPT ![p] = @ \cup {j}]
    /\ UNCHANGED <<alive, queue, net, times, cast, late>>

FairNext ==
    \/ \E p \in Proc : Beat(p)
    \/ \E c \in net : Deliver(c)
    \/ \E p, j \in Proc : Notice(p, j)

Next ==
    \/ FairNext
    \/ \E c \in net : Lose(c)
    \/ \E p \in Proc, id \in Ids : Broadcast(p, id)
    \/ \E p \in Proc : Crash(p)

\* No behaviour has a cycle, so fairness of the disjunction is fairness of each.
Spec == Init /\ [][Next]_vars /\ WF_vars(FairNext)

-----------------------------------------------------------------------------
NoDuplication == \A p \in Proc, id \in Ids : times[p][id] <= 1
NoCreation == \A p \in Proc : Delivered(p) \subseteq cast
FailConsistency == ~late

\* Of the last state of a behaviour: the live ones are the correct ones.
ValidAtEnd == \A id \in cast : Origin(id) \in alive => id \in Delivered(Origin(id))
UniformAtEnd == \A p \in Proc, q \in alive : Delivered(p) \subseteq Delivered(q)
\* Strong completeness: who crashed is noticed by all.
CompleteAtEnd == \A p \in alive : Proc \ alive \subseteq noticed[p]

Validity == <>[]ValidAtEnd
UniformAgreement == <>[]UniformAtEnd
Completeness == <>[]CompleteAtEnd

Quiet == ~ENABLED FairNext
ValidityWhenQuiet == Quiet => ValidAtEnd
UniformAgreementWhenQuiet == Quiet => UniformAtEnd
=============================================================================
