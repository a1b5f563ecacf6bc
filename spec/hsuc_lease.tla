----------------------------- MODULE hsuc_lease -----------------------------
\* SPDX-License-Identifier: Apache-2.0
(***************************************************************************)
(* HSUC as implemented (crates/protocol/agreement/src/hsuc.rs, hsuc/resend.rs) over*)
(* links that lose, repeat and reorder, among members that have leases     *)
(* (group.rs).                                                             *)
(*                                                                         *)
(* Network: what was ever sent is received at any later time, as often as  *)
(* may be, or never.  So sending again is no step of its own; it is what   *)
(* makes a receipt fair (`FairNext`).  Relays and answers repeat what is   *)
(* in the network already.  A decision may reach anybody.                  *)
(*                                                                         *)
(* Members: one that takes no step has crashed, or stands still, or is cut *)
(* off; nobody can tell.  It may be excluded once it has no lease, and has *)
(* none ever after.  The others learn of it one by one, in any order,      *)
(* the excluded too.  Until it finds out it goes on: it takes, sends,      *)
(* acknowledges, decides, even leads.                                      *)
(*                                                                         *)
(* Leases come and go.  Nothing happens because a lease is missing, so a   *)
(* member that has none for a while is one that makes no use of it: here   *)
(* it has a lease until it is excluded.                                    *)
(*                                                                         *)
(* `Without` names the parts left out: mutants.  "one-way" is what the     *)
(* detector has to see to (README.md).                                     *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS N,           \* members are 1..N
          Instances,   \* instances are 1..Instances
          Window,      \* instances under way at once
          MaxExcluded, \* at most so many members are excluded
          Without      \* names of the parts that are left out

Has(part) == part \notin Without

\* Of each instance the place is kept: it was not taken by one 3 W later.
ASSUME Instances <= 3 * Window /\ MaxExcluded < N

Proc == 1..N
Inst == 1..Instances
None == <<>>                    \* the empty value, which closes a gap
Value(i, p) == <<i, p>>         \* what the user of p proposes, and when
MinOf(S) == CHOOSE x \in S : \A y \in S : x <= y
Least(a, b) == IF a < b THEN a ELSE b
Greatest(a, b) == IF a > b THEN a ELSE b

VARIABLES correct,    \* whom p does not know to be excluded
          slot,       \* of p, by instance: the round adopted (0: none), its value, whether it is decided
          seen,       \* the highest instance in which p knows of a proposal
          inherited,  \* the same when p began to lead
          proposals,  \* sent: [inst, round, val]; the round is the proposer
          acks,       \* sent: [inst, round, from]
          decisions,  \* sent: [inst, round, val], by whomever
          excluded,
          lease,      \* who may act
          output,       \* history: what p has delivered to its user, a sequence of <<instance, value>>
          final       \* history: how much p had delivered when it was excluded

net == <<proposals, acks, decisions>>
vars == <<correct, slot, seen, inherited, net, excluded, lease, output, final>>

Empty == [round |-> 0, val |-> None, decided |-> FALSE]

Init ==
    /\ correct = [p \in Proc |-> Proc]
    /\ slot = [p \in Proc |-> [i \in Inst |-> Empty]]
    /\ seen = [p \in Proc |-> 0]
    /\ inherited = [p \in Proc |-> 0]
    /\ proposals = {} /\ acks = {} /\ decisions = {}
    /\ excluded = {}
    /\ lease = Proc
    /\ output = [p \in Proc |-> <<>>]
    /\ final = [p \in Proc |-> 0]

Leads(p) == MinOf(correct[p]) = p
Delivered(p) == IF output[p] = <<>> THEN 0 ELSE output[p][Len(output[p])][1]

\* What `lead` makes of p's places: a new leader proposes what it has seen in its own round, as far as the window reaches.
Led(p, live, delivered, places) ==
    LET due(i) == /\ i \in delivered + 1 .. Least(seen[p], delivered + Window)
                  /\ ~places[i].decided /\ places[i].round # p
                  /\ Has("close-gaps") \/ places[i].round # 0
        carried(i) == IF Has("carry-adopted") THEN places[i].val ELSE Value(i, p)
    IN  IF MinOf(live) = p /\ Has("new-leader-proposes")
        THEN [i \in Inst |-> IF due(i) THEN [round |-> p, val |-> carried(i), decided |-> FALSE] ELSE places[i]]
        ELSE places

\* The proposals that go with it.
Sent(p, before, after) ==
    {[inst |-> i, round |-> p, val |-> after[i].val] : i \in {j \in Inst : after[j].round = p /\ before[j].round # p}}

\* `acknowledge`.  It is sent again whenever the proposal comes again.
Acknowledged(p, i, delivered, places) ==
    IF /\ i \in Inst
       /\ ~places[i].decided /\ places[i].round \notin {0, p} /\ places[i].round \in correct[p]
       /\ i <= delivered + Window \/ ~Has("window")
    THEN {[inst |-> i, round |-> places[i].round, from |-> p]}
    ELSE {}

\* A user proposes.  One that has to wait for the window is one that comes later.
Propose(p) ==
    LET i == seen[p] + 1 IN
    /\ p \in lease /\ Leads(p)
    /\ i \in Inst /\ i <= Delivered(p) + Window
    /\ seen' = [seen EXCEPT ![p] = i]
    /\ slot' = [slot EXCEPT ![p][i] = [round |-> p, val |-> Value(i, p), decided |-> FALSE]]
    /\ proposals' = proposals \cup Sent(p, slot[p], slot'[p])
    /\ UNCHANGED <<correct, inherited, acks, decisions, excluded, lease, output, final>>

\* `handle_proposal`.  A leader sends to whom it holds correct, so to nobody below it.
ReceiveProposal(p, m) ==
    LET i == m.inst
        here == slot[p][i]
        adopts == m.round > here.round \/ ~Has("higher-round")
    IN
    /\ p > m.round
    /\ m.round \in correct[p] \/ ~Has("ignore-excluded")
    /\ i > Delivered(p) /\ i <= Delivered(p) + 2 * Window /\ ~here.decided
    /\ seen' = [seen EXCEPT ![p] = Greatest(@, i)]
    /\ slot' = IF adopts
               THEN [slot EXCEPT ![p][i] = [round |-> m.round, val |-> m.val, decided |-> FALSE]]
               ELSE slot
    /\ acks' = IF adopts \/ m.round = here.round THEN acks \cup Acknowledged(p, i, Delivered(p), slot'[p]) ELSE acks
    /\ <<seen', slot', acks'>> # <<seen, slot, acks>>
    /\ UNCHANGED <<correct, inherited, proposals, decisions, excluded, lease, output, final>>

\* Whose acknowledgement p can count in instance i.
Acked(p, i) ==
    {p} \cup {m.from : m \in {m \in acks : /\ m.inst = i \/ ~Has("own-instance")
                                           /\ m.round = p \/ ~Has("own-round")}}

Enough(p, i) ==
    LET missing == (IF Has("recount") THEN correct[p] ELSE Proc) \ Acked(p, i)
    IN  missing = {} \/ (~Has("all-acks") /\ Cardinality(missing) = 1)

\* `decide_if_acknowledged`: all acknowledgements that p waits for have come.
Decide(p, i) ==
    /\ slot[p][i].round = p /\ ~slot[p][i].decided
    /\ Enough(p, i)
    /\ slot' = [slot EXCEPT ![p][i].decided = TRUE]
    /\ decisions' = decisions \cup {[inst |-> i, round |-> p, val |-> slot[p][i].val]}
    /\ UNCHANGED <<correct, seen, inherited, proposals, acks, excluded, lease, output, final>>

\* `handle_decision`: of a decider, or of anybody who relays it or answers with it.
ReceiveDecision(p, m) ==
    LET i == m.inst IN
    /\ i > Delivered(p) /\ i <= Delivered(p) + 2 * Window /\ ~slot[p][i].decided
    /\ seen' = [seen EXCEPT ![p] = Greatest(@, i)]
    /\ slot' = [slot EXCEPT ![p][i] = [round |-> m.round, val |-> m.val, decided |-> TRUE]]
    /\ UNCHANGED <<correct, inherited, net, excluded, lease, output, final>>

\* `poll_decision`: the window moves with what is delivered.
Tell(p, i) ==
    /\ p \in lease \/ ~Has("tell-leased")
    /\ IF Has("in-order") THEN i = Delivered(p) + 1 ELSE i > Delivered(p)
    /\ slot[p][i].decided \/ (~Has("tell-decided") /\ slot[p][i].round # 0)
    /\ output' = [output EXCEPT ![p] = Append(@, <<i, slot[p][i].val>>)]
    /\ slot' = [slot EXCEPT ![p] = Led(p, correct[p], i, @)]
    /\ proposals' = proposals \cup Sent(p, slot[p], slot'[p])
    /\ acks' = acks \cup Acknowledged(p, i + Window, i, slot[p])
    /\ UNCHANGED <<correct, seen, inherited, decisions, excluded, lease, final>>

\* The others may go on without p from here on.
Exclude(p) ==
    /\ p \notin excluded /\ Cardinality(excluded) < MaxExcluded
    /\ excluded' = excluded \cup {p}
    /\ lease' = IF Has("wait-for-lease") THEN lease \ {p} ELSE lease
    /\ final' = [final EXCEPT ![p] = Len(output[p])]
    /\ UNCHANGED <<correct, slot, seen, inherited, net, output>>

\* `crashed`: p learns that j is excluded, but not if j learned that of p: of two, one has excluded the other.
Detect(p, j) ==
    LET left == correct[p] \ {j} IN
    /\ j \in excluded /\ j \in correct[p] /\ j # p
    /\ p \in correct[j] \/ ~Has("one-way")
    /\ correct' = [correct EXCEPT ![p] = left]
    /\ inherited' = IF MinOf(left) = p /\ ~Leads(p) THEN [inherited EXCEPT ![p] = seen[p]] ELSE inherited
    /\ slot' = [slot EXCEPT ![p] = Led(p, left, Delivered(p), @)]
    /\ proposals' = proposals \cup Sent(p, slot[p], slot'[p])
    /\ UNCHANGED <<seen, acks, decisions, excluded, lease, output, final>>

Next ==
    \/ \E p \in Proc : Propose(p) \/ Exclude(p)
    \/ \E p, j \in Proc : Detect(p, j)
    \/ \E p \in Proc, i \in Inst : Decide(p, i) \/ Tell(p, i)
    \/ \E p \in Proc, m \in proposals : ReceiveProposal(p, m)
    \/ \E p \in Proc, m \in decisions : ReceiveDecision(p, m)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
DeliveredValue(p, n) == output[p][n][2]

\* What is delivered was proposed by a user, for this instance, or closes a gap.
Validity ==
    \A p \in Proc : \A n \in 1..Len(output[p]) :
        \/ DeliveredValue(p, n) = None
        \/ /\ DeliveredValue(p, n)[1] = n
           /\ [inst |-> n, round |-> DeliveredValue(p, n)[2], val |-> DeliveredValue(p, n)] \in proposals
\* In order, once each.
Integrity == \A p \in Proc : \A n \in 1..Len(output[p]) : output[p][n][1] = n
\* Among all that ever delivered anything, also processes excluded since.
UniformAgreement == \A p, q \in Proc : \A n \in 1..Least(Len(output[p]), Len(output[q])) : output[p][n] = output[q][n]

\* Who is excluded tells nothing more.
Fenced == \A p \in excluded : Len(output[p]) = final[p]
OneLeader == \A p, q \in lease : Leads(p) /\ Leads(q) => p = q

\* `may_answer`, but not while a decision waits to be delivered: a follower may have delivered it already.
MayAnswer(p) ==
    /\ p \in lease \/ ~Has("answer-leased")
    /\ Leads(p)
    /\ Delivered(p) >= inherited[p] \/ ~Has("tell-inherited")
    /\ Delivered(p) < Instances /\ slot[p][Delivered(p) + 1].decided => ~Has("delivery-first")
\* A process that answers has delivered all that was ever delivered: reads are linearizable.
Linearizable == \A p, q \in Proc : MayAnswer(p) => Len(output[q]) <= Len(output[p])

\* A process that acknowledges has delivered what is W instances older, so that decision need not be resent to it.
Stability == \A m \in acks : Delivered(m.from) + Window >= m.inst

-----------------------------------------------------------------------------
\* What happens in the end: what the leader sends again (`resend`) and what that is answered with, and the word of an exclusion, all
\* among those who are never excluded.  A relayed decision is sent once and may be lost.
Live == Proc \ excluded
Resends(p, i) ==
    /\ p \in Live /\ Leads(p)
    /\ i + Window > Delivered(p) /\ i <= Least(seen[p], Delivered(p) + Window)

Repeats(p, m) ==
    /\ m.round = p /\ Resends(p, m.inst)
    /\ slot[p][m.inst] = [round |-> p, val |-> m.val, decided |-> FALSE]
IsOf(q, m) == slot[q][m.inst] = [round |-> m.round, val |-> m.val, decided |-> TRUE]
\* As far as p can know that q has delivered instance i, p does not resend it.
Knows(p, q, i) ==
    \/ Delivered(q) >= i
    \/ \E m \in acks : m.from = q /\ i <= m.inst - IF Has("ack-is-no-delivery") THEN Window ELSE 0

\* All that p waits for acknowledge again what comes again.
AcksAgain(p, i) ==
    \A q \in correct[p] \ {p} :
        /\ q \in Live /\ Has("ack-again")
        /\ slot[q][i].round = p /\ ~slot[q][i].decided /\ i <= Delivered(q) + Window

FairDetect(p, j) == p \in Live /\ Detect(p, j)
FairTell(p, i) == p \in Live /\ Tell(p, i)
FairDecide(p, i) == p \in Live /\ Resends(p, i) /\ AcksAgain(p, i) /\ Decide(p, i)
FairProposal(p, m) == p \in Live /\ Repeats(m.round, m) /\ ReceiveProposal(p, m)
FairDecision(p, m) ==
    /\ p \in Live
    /\ \/ \E q \in Live : IsOf(q, m) /\ Resends(q, m.inst) /\ ~Knows(q, p, m.inst) /\ Has("resend-decided")
       \* The answer to a proposal that has come again.
       \/ \E q \in Live, asked \in proposals :
              IsOf(q, m) /\ asked.inst = m.inst /\ asked.round = p /\ Repeats(p, asked) /\ Has("answer-repeated")
    /\ ReceiveDecision(p, m)

FairNext ==
    \/ \E p, j \in Proc : FairDetect(p, j)
    \/ \E p \in Proc, i \in Inst : FairDecide(p, i) \/ FairTell(p, i)
    \/ \E p \in Proc, m \in proposals : FairProposal(p, m)
    \/ \E p \in Proc, m \in decisions : FairDecision(p, m)

\* All live processes have delivered the same: all that was ever delivered, and all that the leader has proposed.
DoneAtEnd ==
    \A p \in Live : /\ \A q \in Proc : Len(output[q]) <= Len(output[p])
                    /\ seen[MinOf(Live)] <= Len(output[p])
\* No behaviour has a cycle: what is fair has an end.
TerminationWhenQuiet == ~ENABLED FairNext => DoneAtEnd

\* For the mutants' sake: it happens that an excluded leader decides, and its successor tells that and answers.
NeverOvertaken ==
    \A p \in excluded, q \in Live, i \in Inst :
        ~ /\ p \notin correct[q] /\ slot[p][i].decided /\ slot[p][i].round = p /\ final[p] < i
          /\ Len(output[q]) >= i /\ MayAnswer(q)
=============================================================================
