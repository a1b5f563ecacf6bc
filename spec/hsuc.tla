-------------------------------- MODULE hsuc --------------------------------
\* SPDX-License-Identifier: Apache-2.0
(***************************************************************************)
(* Hierarchical stabilizing uniform consensus (FiDe, appendix A.3, Alg. 3) *)
(* with the broadcast under it (OSRB, Alg. 2): a sequence of instances.    *)
(* Crash-stop processes, reliable links, perfect failure detector.         *)
(*                                                                         *)
(* Links: what a live process sent arrives.  What a crashed process sent   *)
(* arrives or does not: it may have died between two sends.  Every message *)
(* carries its instance; those of later instances wait, those of decided   *)
(* ones are ignored.                                                       *)
(*                                                                         *)
(* `Without` names the parts left out.  Four of them are repairs, without  *)
(* which this is the algorithm as published: "reset-acks", "leader-sends", *)
(* "relay-late", "id-per-instance"; "decide-last" is a reading             *)
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

VARIABLES alive,       \* processes that have not crashed
          net,         \* messages in flight
          inst,        \* the instance p is in: one more than it has decided
          proposed,    \* the last instance in which p was asked to PROPOSE
          correct,     \* Alg. 3 line 1; `leader`, line 2, is Min(correct) throughout
          proposal,    \* line 3
          proposer,    \* line 4; 0 is bottom
          acks,        \* line 5
          lastid,      \* line 6
          sent,        \* repair "leader-sends": the last instance for which p has multi-sent a proposal
          retransmit,  \* Alg. 2 line 2
          delivered,   \* Alg. 2 line 3
          decided,     \* history: what p has DECIDEd, a sequence of <<instance, value>>
          asked,       \* history: values that were PROPOSEd
          stabilized   \* history: ids that somebody STABILIZEd

local == <<proposal, proposer, acks, sent>>
osrb == <<lastid, retransmit, delivered, stabilized>>
vars == <<alive, net, inst, proposed, correct, local, osrb, decided, asked>>

Init ==
    /\ alive = Proc
    /\ net = {}
    /\ inst = [p \in Proc |-> 1]
    /\ proposed = [p \in Proc |-> 0]
    /\ correct = [p \in Proc |-> Proc]
    /\ proposal = [p \in Proc |-> None]
    /\ proposer = [p \in Proc |-> 0]
    /\ acks = [p \in Proc |-> {}]
    /\ lastid = [p \in Proc |-> None]
    /\ sent = [p \in Proc |-> 0]
    /\ retransmit = [p \in Proc |-> {}]
    /\ delivered = [p \in Proc |-> {}]
    /\ decided = [p \in Proc |-> <<>>]
    /\ asked = {}
    /\ stabilized = {}

Leader(p) == Min(correct[p])

Proposal(p, k, v, to) == [kind : {"proposal"}, from : {p}, to : to, inst : {k}, val : {v}]
Ack(p, k, j) == [kind |-> "ack", from |-> p, to |-> j, inst |-> k]
\* A decision as OSRB broadcasts it.  `origin` is who BROADCAST it, `from` who sends or relays it.
Decision(o, k, v) == [origin |-> o, inst |-> k, val |-> v]
Carry(p, ds, to) == [kind : {"decision"}, from : {p}, to : to, body : ds]
\* Repair: one id for an instance, whoever broadcasts its decision.
Id(d) == IF Has("id-per-instance") THEN <<d.inst>> ELSE <<d.inst, d.origin>>

Current(m) ==
    IF m.kind = "decision"
    THEN Id(m.body) \notin delivered'[m.to] \/ ~Has("ignore-decided")
    ELSE m.inst >= inst'[m.to] \/ ~Has("ignore-old")
\* Fewer states: a message that its receiver would ignore for good, or that nobody is left to receive, goes at once.
Pruned(messages) == {m \in messages : m.to \in alive' /\ Current(m)}

\* Lines 7-12.  Repair: a leader sends even if it has adopted a proposal before it made its own; `sent` keeps it to once.
Propose(p) ==
    LET k == inst[p]
        adopts == proposal[p] = None
        v == IF adopts THEN Value(k, p) ELSE proposal[p]
        sends == Leader(p) = p /\ IF Has("leader-sends") THEN sent[p] < k ELSE adopts
    IN  /\ p \in alive /\ k <= Instances /\ proposed[p] < k
        /\ proposed' = [proposed EXCEPT ![p] = k]
        /\ asked' = asked \cup {Value(k, p)}
        /\ proposal' = [proposal EXCEPT ![p] = v]
        /\ sent' = IF sends THEN [sent EXCEPT ![p] = k] ELSE sent
        /\ acks' = IF sends /\ ~Has("own-ack-by-message") THEN [acks EXCEPT ![p] = @ \cup {p}] ELSE acks
        /\ UNCHANGED <<alive, inst, correct, proposer, osrb, decided>>
        /\ net' = IF sends THEN Pruned(net \cup Proposal(p, k, v, correct[p])) ELSE net

\* Lines 13-17.
ReceiveProposal(m) ==
    LET p == m.to
        accepts == proposer[p] = 0 \/ m.from >= proposer[p] \/ ~Has("proposer-order")
    IN  /\ m \in net /\ m.kind = "proposal" /\ p \in alive
        /\ m.inst <= inst[p]
        /\ IF accepts
           THEN /\ proposal' = IF Has("adopt") THEN [proposal EXCEPT ![p] = m.val] ELSE proposal
                /\ proposer' = [proposer EXCEPT ![p] = m.from]
           ELSE UNCHANGED <<proposal, proposer>>
        /\ UNCHANGED <<alive, inst, proposed, correct, acks, sent, osrb, decided, asked>>
        /\ net' = Pruned((net \ {m}) \cup IF accepts THEN {Ack(p, m.inst, m.from)} ELSE {})

\* Lines 18-19.
ReceiveAck(m) ==
    /\ m \in net /\ m.kind = "ack" /\ m.to \in alive
    /\ m.inst <= inst[m.to]
    /\ acks' = [acks EXCEPT ![m.to] = @ \cup {m.from}]
    /\ UNCHANGED <<alive, inst, proposed, correct, proposal, proposer, sent, osrb, decided, asked>>
    /\ net' = net \ {m}

Enough(p) == IF Has("all-acks") THEN correct[p] \subseteq acks[p] ELSE acks[p] # {}

\* Lines 20-22.  A condition, so it also comes true by a CRASH.
Broadcast(p) ==
    LET d == Decision(p, inst[p], proposal[p])
    IN  /\ p \in alive /\ inst[p] <= Instances
        /\ Enough(p)
        /\ Has("recheck-on-crash") \/ correct[p] = Proc
        /\ acks' = [acks EXCEPT ![p] = {}]
        /\ UNCHANGED <<alive, inst, proposed, correct, proposal, proposer, sent, osrb, decided, asked>>
        /\ net' = Pruned(net \cup Carry(p, {d}, correct[p]))

\* Alg. 2 lines 7-11, then Alg. 3 lines 30-33.  Repairs: relay at once what comes from a process known to be dead; empty
\* `acks`, which may hold some of this instance.
ReceiveDecision(m) ==
    LET p == m.to
        d == m.body
        id == Id(d)
        decides == d.inst = inst[p] \/ ~Has("ignore-decided")
        stable == IF Has("stabilize-previous") THEN lastid[p] ELSE id
        relay == IF Has("relay-late") /\ d.origin \notin correct[p] THEN Carry(p, {d}, correct[p]) ELSE {}
        \* A reading: a process that learns of a decision (line 32) PROPOSEs before line 33, finds the old proposal and is ignored.
        ignored == ~Has("decide-last") /\ decides /\ proposal[p] # None /\ d.inst < Instances
    IN  /\ m \in net /\ m.kind = "decision" /\ p \in alive
        /\ d.inst <= inst[p]
        /\ Has("ignore-decided") => id \notin delivered[p]
        /\ delivered' = [delivered EXCEPT ![p] = @ \cup {id}]
        /\ IF decides
           THEN /\ retransmit' = [retransmit EXCEPT ![p] = {e \in @ \cup {d} : Id(e) # stable}]
                /\ stabilized' = stabilized \cup ({stable} \ {None})
                /\ lastid' = [lastid EXCEPT ![p] = id]
                /\ decided' = [decided EXCEPT ![p] = Append(@, <<d.inst, d.val>>)]
                /\ proposal' = [proposal EXCEPT ![p] = None]
                /\ acks' = IF Has("reset-acks") THEN [acks EXCEPT ![p] = {}] ELSE acks
                /\ inst' = [inst EXCEPT ![p] = d.inst + 1]
           ELSE /\ retransmit' = [retransmit EXCEPT ![p] = @ \cup {d}]
                /\ UNCHANGED <<stabilized, lastid, decided, proposal, acks, inst>>
        /\ proposed' = IF ignored THEN [proposed EXCEPT ![p] = d.inst + 1] ELSE proposed
        /\ UNCHANGED <<alive, correct, proposer, sent, asked>>
        /\ net' = Pruned((net \ {m}) \cup relay)

\* Lines 23-29 and Alg. 2 lines 12-16: p learns that j has crashed.
Detect(p, j) ==
    LET left == correct[p] \ {j}
        sends == /\ j = Leader(p) /\ p = Min(left) /\ proposal[p] # None
                 /\ Has("new-leader-sends")
        relay == IF Has("relay-on-crash") THEN Carry(p, retransmit[p], left) ELSE {}
    IN  /\ p \in alive /\ j \in correct[p] \ alive
        /\ correct' = [correct EXCEPT ![p] = left]
        /\ sent' = IF sends THEN [sent EXCEPT ![p] = inst[p]] ELSE sent
        /\ acks' = IF sends /\ ~Has("own-ack-by-message") THEN [acks EXCEPT ![p] = @ \cup {p}] ELSE acks
        /\ UNCHANGED <<alive, inst, proposed, proposal, proposer, osrb, decided, asked>>
        /\ net' = Pruned(net \cup relay \cup IF sends THEN Proposal(p, inst[p], proposal[p], left) ELSE {})

Crash(p) ==
    /\ p \in alive /\ Cardinality(Proc \ alive) < MaxCrashes
    /\ alive' = alive \ {p}
    /\ UNCHANGED <<inst, proposed, correct, local, osrb, decided, asked>>
    /\ net' = Pruned(net)

Receive(m) == ReceiveProposal(m) \/ ReceiveAck(m) \/ ReceiveDecision(m)

\* What has to happen in the end.  Crashes need not, nor what a crashed process sent.
FairNext ==
    \/ \E m \in net : m.from \in alive /\ Receive(m)
    \/ \E p \in Proc : Propose(p) \/ Broadcast(p)
    \/ \E p, j \in Proc : Detect(p, j)

Next ==
    \/ \E m \in net : Receive(m)
    \/ \E p \in Proc : Propose(p) \/ Broadcast(p) \/ Crash(p)
    \/ \E p, j \in Proc : Detect(p, j)

\* No behaviour has a cycle, so fairness of the disjunction is fairness of each.
Spec == Init /\ [][Next]_vars /\ WF_vars(FairNext)

-----------------------------------------------------------------------------
Decisions(p) == {decided[p][n] : n \in 1..Len(decided[p])}

\* A value decided in an instance was proposed by some process in that instance.
Validity == \A p \in Proc : \A e \in Decisions(p) : e[2] \in asked /\ e[2][1] = e[1]
Integrity == \A p \in Proc : \A n, o \in 1..Len(decided[p]) : n # o => decided[p][n][1] # decided[p][o][1]
UniformAgreement == \A p, q \in Proc : \A e \in Decisions(p), f \in Decisions(q) : e[1] = f[1] => e[2] = f[2]
\* The same of values that were PROPOSEd, for a counterexample in which nobody decides bottom.
UniformAgreementOnValues ==
    \A p, q \in Proc : \A e \in Decisions(p), f \in Decisions(q) :
        e[1] = f[1] /\ None \notin {e[2], f[2]} => e[2] = f[2]

DoneAtEnd == \A p \in alive : {e[1] : e \in Decisions(p)} = 1..Instances
Termination == <>[]DoneAtEnd
\* The same as an invariant, for sizes at which TLC does not check temporal properties in good time.
TerminationWhenQuiet == ~ENABLED FairNext => DoneAtEnd

\* What OSRB asks of its user.
Stability == \A id \in stabilized, p \in alive : id \in delivered[p]
\* "limiting the number of messages to be relayed to 2" (§4.1).
RelaysBounded == \A p \in Proc : Cardinality(retransmit[p]) <= 2
\* No decision ever comes early: only proposals have to be buffered for a later instance.
NoEarlyDecision == \A m \in net : m.kind = "decision" => m.body.inst <= inst[m.to]
=============================================================================
