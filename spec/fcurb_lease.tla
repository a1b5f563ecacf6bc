----------------------------- MODULE fcurb_lease -----------------------------
\* SPDX-License-Identifier: Apache-2.0
(***************************************************************************)
(* FCURB as implemented with leases (crates/protocol/agreement/src/fcurb.rs): a*)
(* heartbeat reaches some members and not others, late, and again.  What   *)
(* it promises is what huc.tla takes from it.                              *)
(*                                                                         *)
(* Network: as in hsuc_lease.tla.  What was ever sent is received at any   *)
(* later time, as often as may be, or never.  Sending again is what makes  *)
(* a receipt fair (`FairNext`).                                            *)
(*                                                                         *)
(* Members: as there.  One that takes no step has crashed, or stands       *)
(* still, or is cut off.  It may be excluded once it has no lease; the     *)
(* others learn of it one by one, in any order, the excluded too; until    *)
(* it finds out it goes on, but delivers nothing to its user.              *)
(*                                                                         *)
(* `Without` names the parts left out: mutants.                            *)
(***************************************************************************)
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS N,           \* members are 1..N
          Senders,     \* those of them that broadcast
          Count,       \* how many messages each of them broadcasts
          MaxExcluded, \* at most so many members are excluded
          Without      \* names of the parts that are left out

Has(part) == part \notin Without

ASSUME MaxExcluded < N

Proc == 1..N
Message(s, n) == <<s, n>>
Crash(s) == <<s, 0>>            \* the word of it; messages have numbers from 1

VARIABLES dead,       \* whom p knows to be excluded
          held,       \* of p, by sender: the number of the last message that is here
          delivered,  \* the last of those that was delivered
          stable,     \* p knows that all that live hold the messages up to this one
          levelling,  \* crashes that p has learned of and not passed on yet
          messages,   \* sent: [origin, num, by], by the sender or passed on
          acks,       \* sent: [from, origin, num]
          chosen,     \* sent: [origin, num]
          reports,    \* sent: [from, origin, num, dead]
          excluded,
          lease,      \* who may act
          log,        \* what p has delivered: messages, and words of crashes
          consumed,       \* history: how much of it p has delivered to its user
          after       \* history: by message, the crashes in its sender's log when it was broadcast

net == <<messages, acks, chosen, reports>>
vars == <<dead, held, delivered, stable, levelling, net, excluded, lease, log, consumed, after>>

Zero == [p \in Proc |-> [s \in Proc |-> 0]]

Init ==
    /\ dead = [p \in Proc |-> {}]
    /\ held = Zero /\ delivered = Zero /\ stable = Zero
    /\ levelling = [p \in Proc |-> <<>>]
    /\ messages = {} /\ acks = {} /\ chosen = {} /\ reports = {}
    /\ excluded = {}
    /\ lease = Proc
    /\ log = [p \in Proc |-> <<>>]
    /\ consumed = [p \in Proc |-> 0]
    /\ after = [m \in Senders \X (1..Count) |-> {}]

Others(p) == Proc \ (dead[p] \cup {p})
Logged(p) == {log[p][n] : n \in 1..Len(log[p])}
Consumed(p) == {log[p][n] : n \in 1..consumed[p]}
Levels(p, s) == \E n \in 1..Len(levelling[p]) : levelling[p][n] = s
Sends(s) == held[s][s] > delivered[s][s]

\* `broadcast`: one after the other.
Broadcast(s) ==
    LET n == held[s][s] + 1 IN
    /\ s \in Senders /\ n <= Count /\ ~Sends(s)
    /\ held' = [held EXCEPT ![s][s] = n]
    /\ messages' = messages \cup {[origin |-> s, num |-> n, by |-> s]}
    /\ after' = [after EXCEPT ![Message(s, n)] = {c \in Logged(s) : c[2] = 0}]
    /\ UNCHANGED <<dead, delivered, stable, levelling, acks, chosen, reports, excluded, lease, log, consumed>>

\* `report_to_all`, of all of these senders.
Reported(p, origins, holds, knows) == {[from |-> p, origin |-> s, num |-> holds[s], dead |-> knows] : s \in origins}

\* `receive`, and `note_successor` before it.  A message that has arrived and waits in the receiver's buffer for the one before it is still in the
\* network here, and is received when it leaves the buffer.  A word of a crash empties the buffers of the dead: `ignore-dead` refuses those.
Receive(p, m) ==
    LET s == m.origin
        is_told == s \in dead[p] /\ ~Levels(p, s)
        waits == held[p][s] > delivered[p][s]
    IN
    /\ s # p /\ m.num > held[p][s]
    /\ m.by \notin dead[p] \/ ~Has("ignore-dead")
    /\ ~is_told
    /\ IF waits
       THEN /\ stable[p][s] < held[p][s]
            /\ stable' = [stable EXCEPT ![p][s] = held[p][s]]
            /\ UNCHANGED <<held, acks, reports>>
       ELSE /\ held' = [held EXCEPT ![p][s] = m.num]
            /\ acks' = IF s \in dead[p] THEN acks ELSE acks \cup {[from |-> p, origin |-> s, num |-> m.num]}
            /\ reports' = IF Levels(p, s) THEN reports \cup Reported(p, {s}, held'[p], dead[p]) ELSE reports
            /\ UNCHANGED stable
    /\ UNCHANGED <<dead, delivered, levelling, messages, chosen, excluded, lease, log, consumed, after>>

Enough(s) ==
    LET missing == {q \in Others(s) : [from |-> q, origin |-> s, num |-> held[s][s]] \notin acks}
    IN  missing = {} \/ (~Has("all-acks") /\ Cardinality(missing) = 1)

Deliver(p, s) ==
    /\ delivered' = [delivered EXCEPT ![p][s] = held[p][s]]
    /\ stable' = [stable EXCEPT ![p][s] = held[p][s]]
    /\ log' = [log EXCEPT ![p] = Append(@, Message(s, held[p][s]))]

\* `poll`: nothing else is delivered while a crash waits.
MayDeliver(p, s) == held[p][s] > delivered[p][s] /\ (levelling[p] = <<>> \/ (~Has("level-first") /\ s \notin dead[p]))

DeliverOwn(s) ==
    /\ MayDeliver(s, s) /\ Enough(s)
    /\ Deliver(s, s)
    /\ chosen' = chosen \cup {[origin |-> s, num |-> held[s][s]]}
    /\ UNCHANGED <<dead, held, levelling, messages, acks, reports, excluded, lease, consumed, after>>

DeliverOther(p, s) ==
    /\ p # s /\ MayDeliver(p, s)
    /\ stable[p][s] >= held[p][s] \/ ~Has("held-by-all")
    /\ Deliver(p, s)
    /\ UNCHANGED <<dead, held, levelling, net, excluded, lease, consumed, after>>

ReceiveChosen(p, c) ==
    /\ c.origin \notin dead[p] /\ held[p][c.origin] = c.num /\ stable[p][c.origin] < c.num
    /\ stable' = [stable EXCEPT ![p][c.origin] = c.num]
    /\ UNCHANGED <<dead, held, delivered, levelling, net, excluded, lease, log, consumed, after>>

\* A process that reported to p that it holds less of the dead than p is sent what p holds.
PassOn(p, r) ==
    /\ r.origin \in dead[p] /\ r.from \in Others(p)
    /\ r.num < held[p][r.origin] /\ Has("pass-on")
    /\ messages' = messages \cup {[origin |-> r.origin, num |-> held[p][r.origin], by |-> p]}
    /\ messages' # messages
    /\ UNCHANGED <<dead, held, delivered, stable, levelling, acks, chosen, reports, excluded, lease, log, consumed, after>>

\* `agrees`.
Agrees(p, q, s) ==
    \E r \in reports :
        /\ r.from = q /\ r.origin = s /\ r.num = held[p][s]
        /\ dead[p] \subseteq r.dead \/ ~Has("know-all-deaths")

IsLevel(p, s) == (\A q \in Others(p) : Agrees(p, q, s)) \/ ~Has("level")

\* Somebody that knows of all the deaths that p knows of holds less of s.
IsLacked(p, s) ==
    \E r \in reports : r.from \in Others(p) /\ r.origin = s /\ r.num < held[p][s] /\ dead[p] \subseteq r.dead

\* `poll`, of the crash that waits longest: what is held of it, then its word. What all that live hold does not wait for the others:
\* what they hold besides is only taken after it. Nor does a crash wait for one before it that waits for who holds less.
Level(p) ==
    \E n \in 1..Len(levelling[p]) :
       LET s == levelling[p][n]
           known == held[p][s] > delivered[p][s] /\ stable[p][s] >= held[p][s] /\ Has("deliver-known") IN
       /\ IsLevel(p, s) \/ known
       /\ \A o \in 1..n-1 : IsLacked(p, levelling[p][o]) /\ Has("level-in-any-order")
       /\ IF held[p][s] > delivered[p][s]
          THEN Deliver(p, s) /\ UNCHANGED levelling
          ELSE /\ levelling' = [levelling EXCEPT ![p] = SubSeq(@, 1, n - 1) \o SubSeq(@, n + 1, Len(@))]
               /\ log' = [log EXCEPT ![p] = Append(@, Crash(s))]
               /\ UNCHANGED <<delivered, stable>>
       /\ UNCHANGED <<dead, held, net, excluded, lease, consumed, after>>

\* The user is notified with a lease only.
Tell(p) ==
    /\ p \in lease \/ ~Has("tell-leased")
    /\ consumed[p] < Len(log[p])
    /\ consumed' = [consumed EXCEPT ![p] = @ + 1]
    /\ UNCHANGED <<dead, held, delivered, stable, levelling, net, excluded, lease, log, after>>

\* The others may go on without p from here on.
Exclude(p) ==
    /\ p \notin excluded /\ Cardinality(excluded) < MaxExcluded
    /\ excluded' = excluded \cup {p}
    /\ lease' = IF Has("wait-for-lease") THEN lease \ {p} ELSE lease
    /\ UNCHANGED <<dead, held, delivered, stable, levelling, net, log, consumed, after>>

\* `crashed`: p learns that j is excluded, even if j learned that of p.
Detect(p, j) ==
    LET knows == dead[p] \cup {j} IN
    /\ j \in excluded /\ j \notin dead[p] /\ j # p
    /\ dead' = [dead EXCEPT ![p] = knows]
    /\ levelling' = [levelling EXCEPT ![p] = Append(@, j)]
    /\ reports' = reports \cup Reported(p, IF Has("report-again") THEN knows ELSE {j}, held[p], knows)
    /\ UNCHANGED <<held, delivered, stable, messages, acks, chosen, excluded, lease, log, consumed, after>>

Next ==
    \/ \E p \in Proc : Broadcast(p) \/ DeliverOwn(p) \/ Level(p) \/ Tell(p) \/ Exclude(p)
    \/ \E p, j \in Proc : Detect(p, j) \/ DeliverOther(p, j)
    \/ \E p \in Proc, m \in messages : Receive(p, m)
    \/ \E p \in Proc, c \in chosen : ReceiveChosen(p, c)
    \/ \E p \in Proc, r \in reports : PassOn(p, r)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
Live == Proc \ excluded

NoCreation == \A p \in Proc : \A e \in Logged(p) : e[2] <= held[e[1]][e[1]]
NoDuplication == \A p \in Proc : \A n, o \in 1..Len(log[p]) : n # o => log[p][n] # log[p][o]
\* No message follows the word of its sender's crash.
FailConsistency == \A p \in Proc : \A n, o \in 1..Len(log[p]) : n < o /\ log[p][n] = Crash(log[p][o][1]) => FALSE
\* A process that goes on without a sender has delivered all of it that any user got, also users of processes excluded since.
UniformAgreement ==
    \A p \in Proc, q \in Live : \A e \in Consumed(p) : Crash(e[1]) \in Logged(q) => e \in Logged(q)
\* What was broadcast after the delivery of a crash is delivered after it.
AfterCrashes ==
    \A p \in Proc : \A n \in 1..consumed[p] :
        LET e == log[p][n] IN e[2] > 0 => \A c \in after[e] : \E o \in 1..n : log[p][o] = c

\* What happens in the end, among those who are never excluded: what they send again, and its answers.
FairReceive(p, m) ==
    /\ {p, m.by} \subseteq Live
    /\ \/ m.by = m.origin /\ Sends(m.origin) /\ m.num = held[m.origin][m.origin]
       \/ Levels(p, m.origin)
    /\ Receive(p, m)
\* A sender that is asked says so again, of the last that it has delivered.
FairChosen(p, c) ==
    {p, c.origin} \subseteq Live /\ c.num = held[c.origin][c.origin] /\ Has("ask-again") /\ ReceiveChosen(p, c)

FairNext ==
    \/ \E p \in Live : DeliverOwn(p) \/ Level(p) \/ Tell(p)
    \/ \E p \in Live, j \in Proc : Detect(p, j) \/ DeliverOther(p, j)
    \/ \E p \in Proc, m \in messages : FairReceive(p, m)
    \/ \E p \in Proc, c \in chosen : FairChosen(p, c)
    \/ \E p \in Live, r \in reports : r.from \in Live /\ PassOn(p, r)

DoneAtEnd ==
    \A p \in Live :
        /\ {c[1] : c \in {e \in Logged(p) : e[2] = 0}} = excluded
        /\ \A q \in Proc : Consumed(q) \subseteq Logged(p)
        /\ \A q \in Live : Logged(q) = Logged(p) /\ ~Sends(q)
\* No behaviour has a cycle: what is fair has an end.
TerminationWhenQuiet == ~ENABLED FairNext => DoneAtEnd

\* For the mutants' sake: it happens that one survivor delivers of the dead what another has passed on.
NeverLevelled ==
    \A p \in Live : \A s \in excluded :
        ~ /\ Crash(s) \in Logged(p) /\ delivered[p][s] > 0 /\ [from |-> p, origin |-> s, num |-> 0, dead |-> {s}] \in reports
=============================================================================
