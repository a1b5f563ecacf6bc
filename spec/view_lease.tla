----------------------------- MODULE view_lease -----------------------------
\* SPDX-License-Identifier: Apache-2.0
(***************************************************************************)
(* The lease of one host, x = 1, across views, where hosts promise for     *)
(* different lengths of time (policy majority; the argument is the first   *)
(* page of crates/protocol/detector/src/view.rs).                                   *)
(*                                                                         *)
(* A view has a number and a set of members.  The next one is decided once *)
(* a majority of the present one has accepted it: Paxos is taken for       *)
(* granted, so that each number has one set: all hosts, or all but x.  Who   *)
(* decides takes what the fastest majority is bound for.  A member acknowledges x, and so promises to     *)
(* accept no view without it for its promise; x acts while a majority of   *)
(* its view is bound.  Time is true time: clocks are the matter of         *)
(* lease.tla.                                                              *)
(*                                                                         *)
(* Hosts that are dropped, other than x, may be dropped at any time, and   *)
(* any host may stop to acknowledge x at any time: silence, cuts, crashes  *)
(* and condemned hosts are all among what may happen.                      *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS N,        \* hosts
          First,    \* members of the first view; x is one of them
          Slow,     \* hosts that promise for Long, all others for Short
          Long, Short,
          Horizon,  \* time ends here
          Views,    \* changes of view
          MaxLowers,    \* of hosts that find that a short promise will do
          MaxRestarts,  \* of hosts that come back as who they were, with a vote that was stored, and with a short promise
          Without   \* names of the parts that are left out: mutants

Has(part) == part \notin Without

Host == 1..N
x == 1
Max(a, b) == IF a > b THEN a ELSE b
Longest(S) == CHOOSE a \in S : \A b \in S : b <= a
None == 0 - 1

VARIABLES now,
          members,   \* by number of the view; {} until somebody accepts it
          view,      \* the number that h holds
          vote,      \* by number and host: for how long leases may run that it knows of, when it accepted; None: it has not
          promise,   \* of each host
          before,    \* what h promised before its promise became shorter has ended then
          until,     \* what h has promised to x ends then
          settled,   \* leases of older views than h's have ended then
          limit,     \* x may count on h until then
          lowers,
          restarts

vars == <<now, members, view, vote, promise, before, until, settled, limit, lowers, restarts>>

Majority(S, v) == 2 * Cardinality(S) > Cardinality(members[v])

Init ==
    /\ now = 0
    /\ members = [v \in 0..Views |-> IF v = 0 THEN First ELSE {}]
    /\ view = [h \in Host |-> IF h \in First THEN 0 ELSE None]
    /\ vote = [v \in 1..Views |-> [h \in Host |-> None]]
    /\ promise = [h \in Host |-> IF h \in Slow THEN Long ELSE Short]
    /\ until = [h \in Host |-> 0]
    /\ settled = [h \in Host |-> 0]
    /\ limit = [h \in Host |-> 0]
    /\ before = [h \in Host |-> 0]
    /\ lowers = 0
    /\ restarts = 0

\* It has accepted the view after the one that it holds.
Accepted(h) == view[h] \in 0..(Views - 1) /\ vote[view[h] + 1][h] # None

Acts == Majority({x} \cup {q \in members[view[x]] : now < limit[q]}, view[x])
\* When x's lease ends: the latest time at which it still acts, and one more.
LeaseEnds == Longest({0} \cup {t \in 1..(Horizon + Long) :
                 Majority({x} \cup {q \in members[view[x]] : t <= limit[q]}, view[x])})

Tick ==
    /\ now < Horizon
    /\ now' = now + 1
    /\ UNCHANGED <<members, view, vote, promise, before, until, settled, limit, lowers, restarts>>

\* h acknowledges x, and x hears of it: at once, as what comes later binds h for longer than x counts on it.
Ack(h) ==
    /\ h # x /\ view[h] # None
    /\ x \in members[view[h]] /\ h \in members[view[x]]
    /\ Has("mute-when-accepted") => ~Accepted(h)
    /\ Has("deaf-when-accepted") => ~Accepted(x)
    /\ Has("same-view") => view[h] = view[x]
    /\ until' = [until EXCEPT ![h] = Max(@, now + promise[h])]
    /\ limit' = [limit EXCEPT ![h] = Max(@, now + promise[h])]
    /\ UNCHANGED <<now, members, view, vote, promise, before, settled, lowers, restarts>>

\* For how long leases may run that h knows of.
Binds(h) ==
    Longest({promise[h]}
        \cup (IF Has("says-longer") THEN {before[h] - now} ELSE {})
        \cup (IF h = x /\ Has("says-own-lease") THEN {LeaseEnds - now} ELSE {})
        \cup (IF Has("says-what-is-left") THEN {settled[h] - now} ELSE {}))

Accept(h, S) ==
    LET v == view[h] + 1 IN
    /\ view[h] # None /\ v <= Views /\ h \in members[view[h]] /\ ~Accepted(h)
    /\ Cardinality(S) >= 2
    /\ members[v] \in {{}, S}
    \* Its promise to whom it drops has run out; and who acts stays.
    /\ (x \in members[view[h]] /\ x \notin S) =>
           /\ (h # x /\ Has("keeps-promise")) => now >= until[h]
           /\ (h = x /\ Has("stays-while-acting")) => ~Acts
    /\ members' = [members EXCEPT ![v] = S]
    /\ vote' = [vote EXCEPT ![v][h] = Binds(h)]
    /\ UNCHANGED <<now, view, promise, before, until, settled, limit, lowers, restarts>>

Install(h, v, wait) ==
    /\ view' = [view EXCEPT ![h] = v]
    /\ settled' = [settled EXCEPT ![h] = now + wait]
    /\ until' = [until EXCEPT ![h] =
          Max(@, now + (IF Has("waits-at-all") THEN IF Has("waits-longest") THEN wait ELSE promise[h] ELSE 0))]
    /\ UNCHANGED <<now, members, vote, promise, before, limit, lowers, restarts>>

\* The shortest that any majority of those who accepted v is bound for: who decides may find a longer one.
Voted(v) == {q \in members[v - 1] : vote[v][q] # None}
Wait(v) == CHOOSE w \in {vote[v][q] : q \in Voted(v)} :
    /\ Majority({q \in Voted(v) : vote[v][q] <= w}, v - 1)
    /\ ~Majority({q \in Voted(v) : vote[v][q] < w}, v - 1)

Decide(h) ==
    LET v == view[h] + 1 IN
    /\ view[h] # None /\ v <= Views /\ h \in members[v]
    /\ Majority(Voted(v), v - 1)
    /\ Install(h, v, Wait(v))

\* g tells h of the view that it holds, and what is left to wait for: no less than all of it.
Learn(h, g) ==
    /\ view[g] > view[h] /\ h \in members[view[g]]
    /\ Install(h, view[g], Wait(view[g]))

\* h promises less from now on.  Its own promise to x it keeps, as until[h] says.
Lower(h) ==
    /\ h # x /\ lowers < MaxLowers /\ promise[h] > Short
    /\ lowers' = lowers + 1
    /\ promise' = [promise EXCEPT ![h] = Short]
    /\ before' = [before EXCEPT ![h] = now + promise[h]]
    /\ UNCHANGED <<now, members, view, vote, until, settled, limit, restarts>>

\* A witness: its vote is on disk, what it promised too.  What is left of older views it counts anew.
Restart(h) ==
    LET held == IF Has("remembers-promise") THEN Max(promise[h], before[h] - now) ELSE Short
        wait == Max(held, IF view[h] > 0 THEN settled[h] - now ELSE 0) IN
    /\ h # x /\ view[h] # None /\ restarts < MaxRestarts
    /\ restarts' = restarts + 1
    /\ promise' = [promise EXCEPT ![h] = Short]
    /\ until' = [until EXCEPT ![h] = now + wait]
    /\ settled' = [settled EXCEPT ![h] = now + wait]
    /\ UNCHANGED <<now, members, view, vote, before, limit, lowers>>

Next ==
    \/ Tick
    \/ \E h \in Host : Ack(h) \/ Lower(h) \/ Restart(h)
    \/ \E h \in Host, S \in {Host, Host \ {x}} : Accept(h, S)
    \/ \E h \in Host : Decide(h)
    \/ \E h, g \in Host : Learn(h, g)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* What decides the rest of a behaviour, for TLC's VIEW: of each time what is left of it, as all that has ended is alike; and not
\* what x has promised itself, which nobody asks for.
Left(at) == IF at > now THEN at - now ELSE 0
Rest == <<now, members, view, vote, promise, lowers, restarts,
          [h \in Host |-> Left(before[h])],
          [h \in Host |-> IF h = x THEN 0 ELSE Left(until[h])],
          [h \in Host |-> Left(settled[h])],
          [h \in Host |-> Left(limit[h])]>>

-----------------------------------------------------------------------------
\* Where a view without x is held, x does not act.
Fenced == Acts => \A h \in Host : view[h] > view[x] => x \in members[view[h]]

\* What a program relies on: no lease of an older view runs any more.
Settled == (Acts /\ x \in members[view[x]]) => \A h \in Host : view[h] > view[x] => now < settled[h]

\* For the mutants' sake: x is dropped in the end, and a view with it is installed before.
NeverDropped == \A h \in Host : view[h] >= 2 => x \in members[view[h]]
=============================================================================
