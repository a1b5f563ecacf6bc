--------------------------------- MODULE huc ---------------------------------
\* SPDX-License-Identifier: Apache-2.0
(***************************************************************************)
(* Heartbeat uniform consensus (FiDe, appendix A.4, Alg. 4; §4.1 has it as *)
(* Alg. 1): a sequence of instances.  Crash-stop processes, reliable       *)
(* links, and of FCURB exactly its five properties: who is going to crash  *)
(* may miss a broadcast, as no property promises it anything.              *)
(*                                                                         *)
(* Links: what a live process sent arrives.  What a crashed process sent   *)
(* arrives or does not.  Every message carries its instance; those of      *)
(* later instances wait, those of decided ones are ignored.                *)
(*                                                                         *)
(* `Without` names the parts left out.  "reset-acks" and "reset-proposals" *)
(* are repairs, without which this is the algorithm as published, and      *)
(* "skip-bottom" and "resend-as-current" are readings of it                *)
(* (docs/errata.md).  Others are mutants.                                  *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS N,           \* processes are 1..N
          Instances,   \* instances are 1..Instances
          MaxCrashes,  \* at most so many processes crash
          Without      \* names of the parts that are left out

Has(part) == part \notin Without

Proc == 1..N
None == <<>>                    \* the published "bottom"
Value(k, p) == <<k, p>>         \* what p proposes in instance k: values tell where they come from
Min(S) == CHOOSE x \in S : \A y \in S : x <= y

VARIABLES faulty,     \* processes that are going to crash, known to no process
          alive,      \* processes that have not crashed
          net,        \* proposals in flight: [from, to, inst, val]
          pending,    \* FCURB: broadcasts that p has yet to deliver: [from, inst, val]
          heard,      \* FCURB: broadcasts that somebody has delivered
          inst,       \* the instance p is in: one more than it has decided
          proposed,   \* the last instance in which p was asked to PROPOSE
          correct,    \* Alg. 4 line 1; `leader`, line 2, is Min(correct) throughout
          proposals,  \* line 3
          acks,       \* line 4
          decided,    \* history: what p has DECIDEd, a sequence of <<instance, value>>
          asked       \* history: values that were PROPOSEd

fcurb == <<pending, heard>>
vars == <<faulty, alive, net, fcurb, inst, proposed, correct, proposals, acks, decided, asked>>

Init ==
    /\ faulty \in {S \in SUBSET Proc : Cardinality(S) <= MaxCrashes}
    /\ alive = Proc
    /\ net = {}
    /\ pending = [p \in Proc |-> {}]
    /\ heard = {}
    /\ inst = [p \in Proc |-> 1]
    /\ proposed = [p \in Proc |-> 0]
    /\ correct = [p \in Proc |-> Proc]
    /\ proposals = [p \in Proc |-> [q \in Proc |-> None]]
    /\ acks = [p \in Proc |-> {}]
    /\ decided = [p \in Proc |-> <<>>]
    /\ asked = {}

Leader(p) == Min(correct[p])
Proposal(p, k, v, to) == [from |-> p, to |-> to, inst |-> k, val |-> v]

\* Fewer states: a message that its receiver would ignore for good, or that nobody is left to receive, goes at once.
Pruned(messages) == {m \in messages : m.to \in alive' /\ (Has("ignore-old") => m.inst >= inst'[m.to])}

\* Lines 5-7.
Propose(p) ==
    LET k == inst[p] IN
    /\ p \in alive /\ k <= Instances /\ proposed[p] < k
    /\ proposed' = [proposed EXCEPT ![p] = k]
    /\ asked' = asked \cup {Value(k, p)}
    /\ proposals' = [proposals EXCEPT ![p][p] = Value(k, p)]
    /\ UNCHANGED <<faulty, alive, fcurb, inst, correct, acks, decided>>
    /\ net' = Pruned(net \cup {Proposal(p, k, Value(k, p), Leader(p))})

\* Lines 8-10.
Receive(m) ==
    LET p == m.to IN
    /\ m \in net /\ p \in alive
    /\ m.inst <= inst[p] \/ ~Has("buffer-future")
    /\ IF Has("keep-before-leading") \/ Leader(p) = p
       THEN /\ proposals' = [proposals EXCEPT ![p][m.from] = m.val]
            /\ acks' = [acks EXCEPT ![p] = @ \cup {m.from}]
       ELSE UNCHANGED <<proposals, acks>>
    /\ net' = net \ {m}
    /\ UNCHANGED <<faulty, alive, fcurb, inst, proposed, correct, decided, asked>>

Enough(p) == IF Has("all-acks") THEN correct[p] \subseteq acks[p] ELSE acks[p] # {}

\* What DET may return: any function of the proposals that are there.
Choices(p) == {proposals[p][q] : q \in Proc} \ (IF Has("skip-bottom") THEN {None} ELSE {})

\* Lines 11-14.  A condition, so it also comes true by a CRASH.
Broadcast(p) ==
    /\ p \in alive /\ inst[p] <= Instances
    /\ Enough(p)
    /\ Has("recheck-on-crash") \/ correct[p] = Proc
    /\ \E v \in Choices(p) :
          LET d == [from |-> p, inst |-> inst[p], val |-> v]
          IN  pending' = [q \in Proc |-> IF q \in alive THEN pending[q] \cup {d} ELSE {}]
    /\ acks' = IF Has("clear-acks") THEN [acks EXCEPT ![p] = {}] ELSE acks
    /\ UNCHANGED <<faulty, alive, net, heard, inst, proposed, correct, proposals, decided, asked>>

\* Lines 22-23.  Repair: nothing of this instance is left for the next one.
Deliver(p, d) ==
    /\ p \in alive /\ d \in pending[p]
    /\ d.inst <= inst[p]
    /\ pending' = [pending EXCEPT ![p] = @ \ {d}]
    /\ heard' = heard \cup {d}
    /\ IF d.inst = inst[p] \/ ~Has("ignore-old")
       THEN /\ decided' = [decided EXCEPT ![p] = Append(@, <<d.inst, d.val>>)]
            /\ inst' = [inst EXCEPT ![p] = d.inst + 1]
            /\ acks' = IF Has("reset-acks") THEN [acks EXCEPT ![p] = {}] ELSE acks
            /\ proposals' = IF Has("reset-proposals")
                            THEN [proposals EXCEPT ![p] = [q \in Proc |-> None]]
                            ELSE proposals
       ELSE UNCHANGED <<decided, inst, acks, proposals>>
    /\ UNCHANGED <<faulty, alive, proposed, correct, asked>>
    /\ net' = Pruned(net)

\* Lines 15-21: p learns that j has crashed.  Fail-consistency: what p has to deliver of j comes first.  A process that
\* is going to crash may miss it.
Detect(p, j) ==
    LET left == correct[p] \ {j}
        resends == j = Leader(p) /\ proposals[p][p] # None /\ Has("resend")
        \* A reading: line 21 sends with the instance in which the proposal was made, not with the current one.
        tag == IF Has("resend-as-current") THEN inst[p] ELSE proposed[p]
        ofj == {d \in pending[p] : d.from = j}
    IN  /\ p \in alive /\ j \in correct[p] \ alive
        /\ Has("fail-consistency") => p \in faulty \/ ofj = {}
        /\ correct' = [correct EXCEPT ![p] = left]
        /\ proposals' = [proposals EXCEPT ![p][j] = None]
        /\ pending' = IF p \in faulty THEN [pending EXCEPT ![p] = @ \ ofj] ELSE pending
        /\ UNCHANGED <<faulty, alive, heard, inst, proposed, acks, decided, asked>>
        /\ net' = IF resends THEN Pruned(net \cup {Proposal(p, tag, proposals[p][p], Min(left))}) ELSE net

\* A process dies, and with it those of its broadcasts that nobody has delivered yet: each for all or for none.
Crash(p) ==
    /\ p \in alive \cap faulty
    /\ alive' = alive \ {p}
    /\ \E lost \in SUBSET UNION {{d \in pending[q] : d.from = p} : q \in Proc} :
          /\ Has("uniform") => lost \cap heard = {}
          /\ \E missing \in IF Has("uniform") THEN {Proc} ELSE SUBSET Proc :
                pending' = [q \in Proc |-> IF q = p THEN {} ELSE IF q \in missing THEN pending[q] \ lost ELSE pending[q]]
    /\ UNCHANGED <<faulty, heard, inst, proposed, correct, proposals, acks, decided, asked>>
    /\ net' = Pruned(net)

\* What has to happen in the end: also the crash of who is going to, but nothing that a crashed process sent.
FairNext ==
    \/ \E m \in net : m.from \in alive /\ Receive(m)
    \/ \E p \in Proc : Propose(p) \/ Broadcast(p) \/ Crash(p)
    \/ \E p \in Proc : \E d \in pending[p] : Deliver(p, d)
    \/ \E p, j \in Proc : Detect(p, j)

Next == FairNext \/ \E m \in net : Receive(m)

\* No behaviour has a cycle, so fairness of the disjunction is fairness of each.
Spec == Init /\ [][Next]_vars /\ WF_vars(FairNext)

-----------------------------------------------------------------------------
Decisions(p) == {decided[p][n] : n \in 1..Len(decided[p])}

\* A value decided in an instance was proposed by some process in that instance.
Validity == \A p \in Proc : \A e \in Decisions(p) : e[2] \in asked /\ e[2][1] = e[1]
Integrity == \A p \in Proc : \A n, o \in 1..Len(decided[p]) : n # o => decided[p][n][1] # decided[p][o][1]
UniformAgreement == \A p, q \in Proc : \A e \in Decisions(p), f \in Decisions(q) : e[1] = f[1] => e[2] = f[2]

DoneAtEnd == \A p \in alive : {e[1] : e \in Decisions(p)} = 1..Instances
Termination == <>[]DoneAtEnd
\* The same as an invariant, for sizes at which TLC does not check temporal properties in good time.
TerminationWhenQuiet == ~ENABLED FairNext => DoneAtEnd

\* No decision ever comes early: only proposals have to be buffered for a later instance.
NoEarlyDecision == \A p \in Proc : \A d \in pending[p] : d.inst <= inst[p] \/ p \notin alive
=============================================================================
