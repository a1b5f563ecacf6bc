---------------------------- MODULE fcurb_crossed ----------------------------
\* SPDX-License-Identifier: Apache-2.0
\* FCURB with leases, from a state that four members with two messages each can reach and that a search from the beginning takes too
\* long for: 1 and 2 are excluded, the second message of 1 is at 4 alone and that of 2 at 3 alone, and neither 3 nor 4 has delivered the
\* first message of the other sender. They may hear of the two deaths in either order.
EXTENDS fcurb_lease

ASSUME N = 4 /\ Senders = {1, 2} /\ Count = 2

Of(one, two) == [s \in Proc |-> IF s = 1 THEN one ELSE IF s = 2 THEN two ELSE 0]
Both(n) == [p \in Proc |-> IF p = 3 THEN Of(0, n) ELSE IF p = 4 THEN Of(n, 0) ELSE Of(n, n)]
First(s) == {[origin |-> s, num |-> 1]}

InitCrossed ==
    /\ dead = [p \in Proc |-> {}]
    /\ held = [p \in Proc |-> IF p \in {1, 4} THEN Of(2, 1) ELSE Of(1, 2)]
    /\ delivered = Both(1)
    /\ stable = Both(1)
    /\ levelling = [p \in Proc |-> <<>>]
    /\ messages = {[origin |-> s, num |-> n, by |-> s] : s \in Senders, n \in {1, 2}}
    /\ acks = [from : Proc, origin : Senders, num : {1}] \cup {[from |-> 4, origin |-> 1, num |-> 2], [from |-> 3, origin |-> 2, num |-> 2]}
    /\ chosen = First(1) \cup First(2)
    /\ reports = {}
    /\ excluded = {1, 2}
    /\ lease = {3, 4}
    /\ log = [p \in Proc |-> IF p = 3 THEN <<Message(2, 1)>> ELSE IF p = 4 THEN <<Message(1, 1)>> ELSE <<Message(1, 1), Message(2, 1)>>]
    /\ consumed = [p \in Proc |-> Len(log[p])]
    /\ after = [m \in Senders \X (1..Count) |-> {}]

\* Of the survivors: who is excluded takes no step.
NextCrossed ==
    LET survivors == {3, 4} IN
    \/ \E p \in survivors : Level(p) \/ Tell(p)
    \/ \E p \in survivors, j \in Proc : Detect(p, j) \/ DeliverOther(p, j)
    \/ \E p \in survivors, m \in messages : Receive(p, m)
    \/ \E p \in survivors, c \in chosen : ReceiveChosen(p, c)
    \/ \E p \in survivors, r \in reports : PassOn(p, r)

SpecCrossed == InitCrossed /\ [][NextCrossed]_vars
=============================================================================
