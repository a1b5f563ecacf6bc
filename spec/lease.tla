------------------------------- MODULE lease -------------------------------
\* SPDX-License-Identifier: Apache-2.0
(***************************************************************************)
(* Leases between two hosts of which each judges alone (policy network;    *)
(* crates/protocol/detector/src/lease.rs), with real time, clocks that differ from  *)
(* it, hosts that stand still for as long as they like, and crashes.       *)
(*                                                                         *)
(* A heartbeat says when it was sent by its sender's clock, and of the     *)
(* newest heartbeat heard when that was sent by its sender's: the          *)
(* acknowledgement.  Whoever acknowledges promises not to hold dead for    *)
(* Timeout.  A host acts while the newest promise to it, counted from when *)
(* it *sent* what was acknowledged and less a margin, has not run out, or  *)
(* when it holds the other dead.                                           *)
(*                                                                         *)
(* The two are never wholly apart: what was sent has arrived after Delay.  *)
(* That both go on if they are is what this policy accepts.                *)
(*                                                                         *)
(* Clocks: each is ahead of true time by 0..Error, and may change that as  *)
(* it likes, as long as it does not go back.  Two spans of at most Timeout *)
(* differ by at most Error then on each clock: a bound on drift over as    *)
(* long as it matters.                                                     *)
(***************************************************************************)
EXTENDS Integers, FiniteSets

CONSTANTS Horizon,  \* true time ends here
          Error,    \* how far a clock may be ahead
          Timeout,  \* silence that is believed, by the observer's clock
          Margin,   \* what a lease is shorter than the timeout
          Slack,    \* a host that had no turn for longer knows that it stood still
          Delay,    \* what was sent before this has arrived
          MaxCrashes,
          Without   \* names of the parts that are left out: mutants

Has(part) == part \notin Without

Host == {1, 2}
Other(p) == 3 - p
Max(a, b) == IF a > b THEN a ELSE b
Never == 0 - 1

VARIABLES now,      \* true time
          ahead,    \* of p's clock
          alive,
          turn,     \* p's clock at its last turn
          heard,    \* p's clock when it heard the other last; silence counts from here
          echo,     \* when that was sent, by the sender's clock: what p acknowledges
          limit,    \* p may act until then, by its clock
          doubt,    \* p stood still beyond its limit, or was acknowledged too late: the other may hold it dead
          dead,     \* p holds the other dead
          out,      \* p takes itself for excluded
          net       \* heartbeats: [to, at, sent, echo]

vars == <<now, ahead, alive, turn, heard, echo, limit, doubt, dead, out, net>>

Clock(p) == now + ahead[p]

\* They know each other, and have just heard each other.
Init ==
    /\ now = 0
    /\ ahead = [p \in Host |-> 0]
    /\ alive = Host
    /\ turn = [p \in Host |-> 0]
    /\ heard = [p \in Host |-> 0]
    /\ echo = [p \in Host |-> 0]
    /\ limit = [p \in Host |-> Timeout - Margin]
    /\ doubt = [p \in Host |-> FALSE]
    /\ dead = [p \in Host |-> FALSE]
    /\ out = [p \in Host |-> FALSE]
    /\ net = {}

Acts(p) == p \in alive /\ ~out[p] /\ (dead[p] \/ Clock(p) < limit[p])

\* Clocks go on, if only by being less ahead.
Tick ==
    /\ now < Horizon
    /\ now' = now + 1
    /\ ahead' \in [Host -> 0..Error]
    /\ \A p \in Host : now' + ahead'[p] >= Clock(p)
    /\ UNCHANGED <<alive, turn, heard, echo, limit, doubt, dead, out, net>>

\* A heartbeat is stamped by the clock of whoever receives it, when it takes it.
Receive(m) ==
    LET p == m.to IN
    /\ m \in net /\ p \in alive
    /\ net' = net \ {m}
    \* What the dead still say is refused.
    /\ IF dead[p] \/ out[p]
       THEN UNCHANGED <<heard, echo, limit, doubt>>
       ELSE /\ heard' = [heard EXCEPT ![p] = Clock(p)]
            /\ echo' = [echo EXCEPT ![p] = Max(@, m.sent)]
            /\ limit' = [limit EXCEPT ![p] =
                  Max(@, (IF Has("lease-from-sending") THEN m.echo ELSE Clock(p))
                         + Timeout - (IF Has("margin") THEN Margin ELSE 0))]
            \* A newer heartbeat that acknowledges too late brings doubt, as one in time ends it.
            /\ doubt' = [doubt EXCEPT ![p] = (@ \/ (m.sent > echo[p] /\ Has("doubt"))) /\ Clock(p) >= limit'[p]]
    /\ UNCHANGED <<now, ahead, alive, turn, dead, out>>

\* Nothing that was sent to p long enough ago has still to be received.
AllArrived(p) == \A m \in net : m.to # p \/ now - m.at < Delay

\* A turn: p finds out whether it stood still, judges, and sends.
Turn(p) ==
    LET stood == Clock(p) - turn[p] > Slack
        doubts == doubt[p] \/ (stood /\ Clock(p) >= limit[p] /\ Has("doubt"))
        from == IF stood THEN Clock(p) ELSE heard[p]
        early == IF Has("promise") THEN 0 ELSE 1
        waiting == {m.at : m \in {m \in net : m.to # p}}
        since == IF waiting = {} THEN now ELSE CHOOSE at \in waiting : TRUE
        silent == Clock(p) - from >= Timeout - early
    IN
    /\ p \in alive /\ ~out[p]
    /\ turn[p] < Clock(p)
    /\ AllArrived(p)
    /\ turn' = [turn EXCEPT ![p] = Clock(p)]
    /\ heard' = [heard EXCEPT ![p] = from]
    /\ doubt' = [doubt EXCEPT ![p] = doubts]
    /\ out' = [out EXCEPT ![p] = ~dead[p] /\ silent /\ doubts]
    /\ dead' = [dead EXCEPT ![p] = @ \/ (silent /\ ~doubts)]
    \* Whom it holds dead it acknowledges no more.  Fewer states: a heartbeat takes the place of one that waits, and arrives no
    \* later than that one would have.
    /\ net' = IF dead'[p] \/ out'[p]
              THEN net
              ELSE {m \in net : m.to = p} \cup {[to |-> Other(p), at |-> since, sent |-> Clock(p), echo |-> echo[p]]}
    /\ UNCHANGED <<now, ahead, alive, echo, limit>>

Crash(p) ==
    /\ p \in alive /\ Cardinality(Host \ alive) < MaxCrashes
    /\ alive' = alive \ {p}
    /\ net' = {m \in net : m.to # p}
    /\ UNCHANGED <<now, ahead, turn, heard, echo, limit, doubt, dead, out>>

Next ==
    \/ Tick
    \/ \E m \in net : Receive(m)
    \/ \E p \in Host : Turn(p) \/ Crash(p)

Spec == Init /\ [][Next]_vars

-----------------------------------------------------------------------------
\* Nobody acts whom the other holds dead.
Fenced == \A p \in Host : dead[Other(p)] => ~Acts(p)

\* What it is for: the two never act on each other's death at once.
OneGoesOn == ~(dead[1] /\ dead[2] /\ Acts(1) /\ Acts(2))

\* For the mutants' sake: a crash can be found, and the finder acts.
NeverFound == \A p \in Host : ~(p \in alive /\ dead[p] /\ Other(p) \notin alive)
=============================================================================
