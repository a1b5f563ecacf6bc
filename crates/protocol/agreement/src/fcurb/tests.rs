// SPDX-License-Identifier: Apache-2.0

use super::*;
use fide_types::host_index;

mod schedules;

/// What a member delivers, in order: messages by their number, crashes as `Err`.
fn delivered(member: &mut Fcurb) -> Vec<Result<u64, u16>> {
    let mut all = Vec::new();
    while let Some(delivery) = member.poll() {
        all.push(match delivery {
            Delivery::Message { number, .. } => Ok(number),
            Delivery::Crashed(of) => Err(of),
        });
    }
    all
}

/// The messages that live members have to send each other: sender, receiver, message.
fn sent(members: &mut [Fcurb], dead: &[u16]) -> Vec<(u16, u16, Vec<u8>)> {
    let mut sent = Vec::new();
    for member in members.iter_mut().filter(|member| !dead.contains(&member.me)) {
        while let Some((to, message)) = member.poll_transmit() {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            sent.extend(to.iter().filter(|to| !dead.contains(to)).map(|to| (member.me, to, bytes.clone())));
        }
    }
    sent
}

/// Hands over all messages between live members until there are none. Returns how many there were.
fn exchange(members: &mut [Fcurb], dead: &[u16]) -> usize {
    let mut count = 0;
    loop {
        let sent = sent(members, dead);
        if sent.is_empty() {
            return count;
        }
        count += sent.len();
        for (from, to, bytes) in sent {
            hand(&mut members[host_index(to)], from, &Message::read(&bytes).unwrap());
        }
    }
}

fn hand(member: &mut Fcurb, from: u16, message: &Message<'_>) {
    match *message {
        Message::Decide { instance, round, value } => member.receive(from, round, instance, value),
        Message::Ack { instance, .. } => member.handle_ack(from, instance),
        Message::Chosen { instance, .. } => member.handle_chosen(from, instance),
        Message::Report { instance, round, dead, asks } => member.handle_report(from, round, instance, dead, asks),
        _ => panic!("{message:?} is none of the broadcast's"),
    }
}

fn group(count: u16) -> Vec<Fcurb> {
    (1..=count).map(|me| Fcurb::new(Trust::Lease, me, HostSet::first(count.into()))).collect()
}

/// A heartbeat of member 1 with message `number` reaches these members.
fn beat(members: &mut [Fcurb], number: u64, to: &[u16]) {
    members[0].broadcast(number, |value| value.push(number as u8));
    let Some(Message::Decide { instance, round, value }) = members[0].poll_broadcast() else { panic!("no heartbeat") };
    let (instance, round, value) = (instance, round, value.to_vec());
    for to in to {
        members[host_index(*to)].receive(1, round, instance, &value);
    }
}

#[test]
fn message_takes_a_heartbeat_and_two_messages_per_member() {
    for count in 2..=9 {
        let mut members = group(count);
        let others: Vec<u16> = (2..=count).collect();
        beat(&mut members, 1, &others);
        let acks = exchange(&mut members, &[]);
        assert_eq!(acks, usize::from(count) - 1);
        assert!(members[1..].iter_mut().all(|member| delivered(member).is_empty()), "its sender delivers it first");
        assert_eq!(delivered(&mut members[0]), [Ok(1)]);
        assert_eq!(exchange(&mut members, &[]), usize::from(count) - 1);
        assert!(members[1..].iter_mut().all(|member| delivered(member) == [Ok(1)]));
    }
}

#[test]
fn message_stored_by_one_survivor_is_delivered_by_all_before_the_crash() {
    let mut members = group(4);
    beat(&mut members, 1, &[3]);
    // In any order, one after the other.
    members[3].crashed(1);
    exchange(&mut members, &[1]);
    members[1].crashed(1);
    exchange(&mut members, &[1]);
    assert!(members[1..].iter_mut().all(|member| delivered(member).is_empty()), "3 does not know of it yet");
    members[2].crashed(1);
    exchange(&mut members, &[1]);
    for member in &mut members[1..] {
        assert_eq!(delivered(member), [Ok(1), Err(1)]);
    }
}

#[test]
fn late_message_of_the_dead_is_not_delivered() {
    let mut members = group(3);
    beat(&mut members, 1, &[]);
    members[1].crashed(1);
    members[2].crashed(1);
    members[2].receive(1, 1, 1, &[1]);
    exchange(&mut members, &[1]);
    for member in &mut members[1..] {
        assert_eq!(delivered(member), [Err(1)]);
        member.receive(1, 1, 1, &[1]);
        member.receive(if member.me == 2 { 3 } else { 2 }, 1, 1, &[1]);
        assert_eq!(delivered(member), []);
    }
}

#[test]
fn death_during_levelling_restarts_it() {
    let mut members = group(4);
    beat(&mut members, 1, &[2]);
    for survivor in 2..=4 {
        members[survivor - 1].crashed(1);
    }
    // Member 2, which alone stores it, dies; its messages reach only member 3.
    let messages: Vec<_> = {
        let mut messages = Vec::new();
        while let Some((_, message)) = members[1].poll_transmit() {
            let mut bytes = Vec::new();
            message.write(&mut bytes);
            messages.push(bytes);
        }
        messages
    };
    messages.iter().for_each(|bytes| hand(&mut members[2], 2, &Message::read(bytes).unwrap()));
    exchange(&mut members, &[1, 2]);
    assert!(members[2..].iter_mut().all(|member| delivered(member).is_empty()), "2 has to agree, as far as they know");
    members[2].crashed(2);
    exchange(&mut members, &[1, 2]);
    assert_eq!(delivered(&mut members[2]), [], "4 does not know of it yet");
    members[3].crashed(2);
    exchange(&mut members, &[1, 2]);
    for member in &mut members[2..] {
        assert_eq!(delivered(member), [Err(1), Err(2)], "what neither holds");
    }
}

#[test]
fn lost_message_is_resent_after_a_whole_period() {
    let mut members = group(3);
    beat(&mut members, 1, &[2]);
    exchange(&mut members, &[]);
    members[0].resend();
    assert!(members[0].poll_transmit().is_none(), "an answer may be under way");
    members[0].resend();
    let (to, message) = members[0].poll_transmit().unwrap();
    assert_eq!(
        (to, message),
        (HostSet::only(3), Message::Decide { instance: 1, round: 1, value: &[1] }),
        "to who lacks it"
    );
    members[2].receive(1, 1, 1, &[1]);
    exchange(&mut members, &[]);
    assert_eq!(delivered(&mut members[0]), [Ok(1)]);
    // Its announcement that all store the message is lost.
    while members[0].poll_transmit().is_some() {}
    members[1].resend();
    members[1].resend();
    exchange(&mut members, &[]);
    assert_eq!(delivered(&mut members[1]), [Ok(1)]);
    // Also on the way to member 3; the next message implies it.
    members[0].broadcast(2, |_| {});
    members[2].note_successor(1, 2);
    assert_eq!(delivered(&mut members[2]), [Ok(1)]);
    members[2].receive(1, 1, 2, &[]);
    assert_eq!(delivered(&mut members[2]), []);
}

#[test]
fn lone_member_delivers_without_heartbeat() {
    let mut members = group(2);
    members[0].crashed(2);
    assert_eq!(delivered(&mut members[0]), [Err(2)]);
    members[0].broadcast(1, |_| {});
    assert_eq!(members[0].poll_broadcast(), None);
    assert_eq!(delivered(&mut members[0]), [Ok(1)]);
    assert!(members[0].poll_transmit().is_none());
}

#[test]
fn trusted_network_needs_only_the_heartbeat() {
    let of = |me| Fcurb::new(Trust::Network, me, HostSet::first(3));
    let (mut sender, mut other) = (of(1), of(2));
    sender.broadcast(1, |value| value.push(7));
    assert!(sender.poll_broadcast().is_some());
    assert_eq!(delivered(&mut sender), [], "its own copy leaves with the heartbeat");
    sender.broadcast_left();
    assert_eq!(delivered(&mut sender), [Ok(1)]);
    other.receive(1, 1, 1, &[7]);
    other.crashed(1);
    assert_eq!(delivered(&mut other), [Ok(1), Err(1)]);
    for member in [&mut sender, &mut other] {
        member.resend();
        assert!(member.poll_transmit().is_none());
    }
}

/// The sender was two messages ahead of what this member has delivered, and another survivor stores the
/// second: neither could go on.
#[test]
fn stable_message_of_the_dead_is_delivered_before_the_next_is_passed_on() {
    let (sender, other, dead) = (1, 2, HostSet::from_iter([1]));
    let mut survivor = Fcurb::new(Trust::Lease, 3, HostSet::first(3));
    survivor.receive(sender, sender, 1, b"first");
    survivor.crashed(sender);
    assert_eq!(survivor.poll(), None, "the other may hold nothing of it");
    survivor.handle_report(other, sender, 2, dead, false);
    assert_eq!(survivor.poll(), None);
    // The other survivor passes it on, so all live members stored the one before.
    survivor.note_successor(sender, 2);
    assert_eq!(survivor.poll(), Some(Delivery::Message { number: 1, value: b"first" }));
    survivor.receive(other, sender, 2, b"second");
    assert_eq!(survivor.poll(), Some(Delivery::Message { number: 2, value: b"second" }));
    assert_eq!(survivor.poll(), Some(Delivery::Crashed(sender)));
}

/// Member 1 has delivered its first message and broadcast the second; the live member 2 stores the first and
/// levels after member 3's death.
fn levelling_behind_a_live_sender() -> Vec<Fcurb> {
    let mut members = group(3);
    beat(&mut members, 1, &[2]);
    exchange(&mut members, &[3]);
    members[1].crashed(3);
    members[0].crashed(3);
    // Member 2 has reported to member 1, whose report is on its way.
    while let Some((_, message)) = members[1].poll_transmit() {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        hand(&mut members[0], 2, &Message::read(&bytes).unwrap());
    }
    assert_eq!(delivered(&mut members[0]), [Err(3), Ok(1)]);
    beat(&mut members, 2, &[]);
    members[1].note_successor(1, 2);
    members
}

#[test]
fn next_message_is_acknowledged_when_the_one_before_it_is_delivered() {
    let mut members = levelling_behind_a_live_sender();
    members[1].receive(1, 1, 2, &[2]);
    assert_eq!(members[1].poll_transmit(), None, "it is not held");
    assert_eq!(members[1].acknowledges(1), 1);
    assert_eq!(delivered(&mut members[1]), []);
    // The report of member 1 arrives; nothing is resent.
    exchange(&mut members, &[3]);
    assert_eq!(delivered(&mut members[1]), [Err(3), Ok(1)]);
    assert_eq!(members[1].acknowledges(1), 2);
    assert_eq!(members[1].poll_transmit(), Some((HostSet::only(1), Message::Ack { instance: 2, round: 1 })));
    members[0].handle_ack(2, 2);
    assert_eq!(delivered(&mut members[0]), [Ok(2)]);
    exchange(&mut members, &[3]);
    let delivery = members[1].poll();
    assert_eq!(delivery, Some(Delivery::Message { number: 2, value: &[2] }), "with its own value");
}

#[test]
fn full_buffer_drops_and_resend_recovers() {
    let mut members = levelling_behind_a_live_sender();
    // Only a sender that does not wait for this member gets this far ahead.
    for number in 2..=4 {
        members[1].receive(1, 1, number, &[number as u8]);
    }
    let room = members[1].origins[1].next_value.capacity();
    exchange(&mut members, &[3]);
    assert_eq!(delivered(&mut members[1]), [Err(3), Ok(1)]);
    members[1].note_successor(1, 3);
    assert_eq!(delivered(&mut members[1]), [Ok(2)], "3 and 4 were dropped");
    // When it is resent, it is taken.
    members[1].receive(1, 1, 3, &[3]);
    assert_eq!(members[1].acknowledges(1), 3);
    members[1].handle_chosen(1, 3);
    assert_eq!(members[1].poll(), Some(Delivery::Message { number: 3, value: &[3] }));
    assert!(room > 0 && members[1].origins[1].value.capacity() == room, "the same room");
}

#[test]
fn crash_of_sender_empties_the_buffer() {
    let mut members = group(4);
    beat(&mut members, 1, &[2, 3]);
    for member in [2, 3] {
        members[member - 1].crashed(4);
        members[member - 1].note_successor(1, 2);
        members[member - 1].receive(1, 1, 2, &[2]);
    }
    members[1].crashed(1);
    members[2].crashed(1);
    exchange(&mut members, &[1, 4]);
    for member in [2, 3] {
        assert_eq!(delivered(&mut members[member - 1]), [Err(4), Ok(1), Err(1)], "2 was held by nobody but its sender");
    }
}

#[test]
fn survivor_passes_on_a_message_another_had_buffered() {
    let mut members = group(4);
    beat(&mut members, 1, &[2, 3]);
    members[1].crashed(4);
    for member in [2, 3] {
        members[member - 1].note_successor(1, 2);
        if member == 3 {
            assert_eq!(delivered(&mut members[2]), [Ok(1)]);
        }
        members[member - 1].receive(1, 1, 2, &[2]);
    }
    assert_eq!((members[1].acknowledges(1), members[2].acknowledges(1)), (1, 2));
    members[1].crashed(1);
    members[2].crashed(1);
    members[2].crashed(4);
    exchange(&mut members, &[1, 4]);
    assert_eq!(delivered(&mut members[2]), [Err(4)], "2 does not hold the same of 1 yet");
    // For member 2, member 4 died first: the message that was passed on was in the buffer, which was emptied.
    assert_eq!(delivered(&mut members[1]), [Err(4), Ok(1), Ok(2), Err(1)]);
    exchange(&mut members, &[1, 4]);
    assert_eq!(delivered(&mut members[2]), [Ok(2), Err(1)]);
}

/// Member 2 stores the first message of member 1 and levels after member 3's death; the second comes from
/// `from`. Which one does member 2 store in the end?
fn held_of_a_live_sender(from: u16) -> u64 {
    let (dead, mut member) = (HostSet::only(3), Fcurb::new(Trust::Lease, 2, HostSet::first(4)));
    member.receive(1, 1, 1, &[1]);
    member.crashed(3);
    member.note_successor(1, 2);
    member.receive(from, 1, 2, &[2]);
    assert_eq!(delivered(&mut member), []);
    member.handle_report(1, 3, 0, dead, false);
    member.handle_report(4, 3, 0, dead, false);
    assert_eq!(delivered(&mut member), [Err(3), Ok(1)]);
    member.acknowledges(1)
}

#[test]
fn relayed_message_of_live_sender_is_not_buffered() {
    assert_eq!(held_of_a_live_sender(1), 2);
    assert_eq!(held_of_a_live_sender(4), 1, "4 may die before this member hears of the death of 1");
}

/// Member 3 passes on a message of member 1 that it alone stores, and dies: member 4 has buffered it, and
/// member 5 did not get it.
#[test]
fn crash_of_relay_empties_the_buffer() {
    let mut members = group(5);
    beat(&mut members, 1, &[3, 4, 5]);
    exchange(&mut members, &[2]);
    for survivor in [4, 5] {
        members[survivor - 1].crashed(2);
        members[survivor - 1].crashed(1);
    }
    members[3].note_successor(1, 2);
    members[3].receive(3, 1, 2, &[2]);
    assert_eq!(delivered(&mut members[3]), [], "2 died first");
    members[3].crashed(3);
    members[4].crashed(3);
    exchange(&mut members, &[1, 2, 3]);
    for survivor in [4, 5] {
        let log = delivered(&mut members[survivor - 1]);
        assert_eq!(log, [Err(2), Ok(1), Err(1), Err(3)], "of {survivor}");
    }
}

/// Members 1 and 2 have died. One survivor has the second message of each, and the survivors hear of the
/// crashes in different orders. All messages arrive.
#[test]
fn survivors_with_crossed_crash_reports_do_not_deadlock() {
    let mut members = group(4);
    for sender in [1, 2] {
        for receiver in [3, 4] {
            members[receiver - 1].receive(sender as u16, sender as u16, 1, &[1]);
        }
    }
    // All have acknowledged the first messages; where the second has not come, the announcement of that is
    // still on its way.
    for (sender, receiver) in [(1, 4), (2, 3)] {
        members[receiver - 1].note_successor(sender, 2);
        assert_eq!(delivered(&mut members[receiver - 1]), [Ok(1)]);
        members[receiver - 1].receive(sender, sender, 2, &[2]);
    }
    for (survivor, dead) in [(3, [2, 1]), (4, [1, 2])] {
        dead.into_iter().for_each(|dead| members[survivor - 1].crashed(dead));
    }
    let mut logs = [Vec::new(), Vec::new()];
    for _ in 0..8 {
        exchange_of_calls(&mut members, &[1, 2], &mut logs);
        members[2].resend();
        members[3].resend();
    }
    for log in &mut logs {
        log.sort_by_key(|one| format!("{one:?}"));
    }
    assert_eq!(logs[0], [Err(1), Err(2), Ok(1), Ok(2), Ok(2)]);
    assert_eq!(logs[1], [Err(1), Err(2), Ok(1), Ok(2), Ok(2)]);
}

/// [`exchange`] with the calls that HUC makes: each message implies the one before it, and deliveries are
/// polled after each call.
fn exchange_of_calls(members: &mut [Fcurb], dead: &[u16], logs: &mut [Vec<Result<u64, u16>>; 2]) {
    loop {
        let sent = sent(members, dead);
        if sent.is_empty() {
            return;
        }
        for (from, to, bytes) in sent {
            let (member, message) = (&mut members[host_index(to)], Message::read(&bytes).unwrap());
            if let Message::Decide { instance, round, .. } = message {
                member.note_successor(round, instance);
                logs[usize::from(to) - 3].extend(delivered(member));
            }
            hand(member, from, &message);
            logs[usize::from(to) - 3].extend(delivered(member));
        }
    }
}

/// Member 2 alone stores the message of member 1, passes it on to member 3, and dies. Before that, member 4
/// reported to member 3 that it stores nothing, and that member 2 is dead: it takes nothing from member 2.
#[test]
fn survivor_passes_on_a_message_relayed_by_a_dead_member() {
    let mut members = group(4);
    beat(&mut members, 1, &[2]);
    members[2].crashed(1);
    members[3].crashed(1);
    members[3].crashed(2);
    while let Some((to, message)) = members[3].poll_transmit() {
        let mut bytes = Vec::new();
        message.write(&mut bytes);
        if to.contains(3) {
            hand(&mut members[2], 4, &Message::read(&bytes).unwrap());
        }
    }
    members[2].receive(2, 1, 1, &[1]);
    members[2].crashed(2);
    exchange(&mut members, &[1, 2]);
    for member in &mut members[2..] {
        assert_eq!(delivered(member), [Ok(1), Err(1), Err(2)], "nothing was lost, nothing is sent again");
    }
}
