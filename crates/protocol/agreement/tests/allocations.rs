// SPDX-License-Identifier: Apache-2.0
//! Once every buffer has been used, a decision allocates nothing.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

use fide_agreement::{
    Agreement, Group, HostSet, Hsuc, Huc, Lease, Links, Message, Trust, View, ViewMember, group, hsuc, huc, transfer,
};
use fide_types::host_index;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is the system's; counting touches a plain cell of this thread.
#[expect(unsafe_code, reason = "an allocator that counts")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Not while the thread's storage is being torn down.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Hands messages over until there are none. Returns how many decisions were delivered. A bounded stack of
/// copies serves as the network.
fn run<A: Agreement>(members: &mut [A], wire: &mut Vec<(u16, u16, Vec<u8>)>, spare: &mut Vec<Vec<u8>>) -> usize {
    let (mut decisions, count) = (0, members.len() as u16);
    loop {
        for (at, member) in members.iter_mut().enumerate() {
            while member.poll_decision().is_some() {
                decisions += 1;
            }
            if let Some(message) = member.poll_broadcast() {
                for receiver in (1..=count).filter(|receiver| usize::from(*receiver) != at + 1) {
                    let mut bytes = spare.pop().unwrap_or_default();
                    bytes.clear();
                    message.write(&mut bytes);
                    wire.push((at as u16 + 1, receiver, bytes));
                }
                member.broadcast_left();
            }
            while let Some((to, message)) = member.poll_transmit() {
                for receiver in to.iter() {
                    let mut bytes = spare.pop().unwrap_or_default();
                    bytes.clear();
                    message.write(&mut bytes);
                    wire.push((at as u16 + 1, receiver, bytes));
                }
            }
        }
        if wire.is_empty() {
            return decisions;
        }
        for (from, to, bytes) in wire.drain(..) {
            let message = Message::read(&bytes).expect("a message");
            members[host_index(to)].receive(from, &message).expect("taken");
            spare.push(bytes);
        }
    }
}

#[test]
fn hsuc_decision_allocates_nothing_once_warm() {
    let group = HostSet::first(3);
    let member = |me| {
        Hsuc::new(&hsuc::Setting { window: 8, links: Links::Reliable, value_max: 1024 }, me, group).expect("a member")
    };
    allocates_nothing((1..=3).map(member).collect());
}

#[test]
fn huc_decision_allocates_nothing_once_warm() {
    for trust in [Trust::Network, Trust::Lease] {
        let setting = huc::Setting { value_max: 3 * 1024, trust };
        allocates_nothing((1..=3).map(|me| Huc::new(&setting, me, HostSet::first(3)).expect("a member")).collect());
    }
}

#[test]
fn group_decision_allocates_nothing_once_warm() {
    let view: Vec<ViewMember> = (1..=3).map(|host| ViewMember { host, incarnation: 1 }).collect();
    let config = |me| group::Config {
        group: 1,
        me,
        incarnation: 1,
        hosts: HostSet::first(3),
        setting: hsuc::Setting { window: 8, links: Links::Lossy, value_max: 1024 },
        tail_max: 64 << 10,
        transfer: transfer::Config {
            chunk_max: 1024,
            payload_max: 64 << 10,
            stored_max: 128 << 10,
            reserved: 0,
            wants_max: 8,
            arriving_max: 8,
        },
    };
    let found = |me| Group::<Hsuc>::found(config(me), View::new(1, &view).expect("a view")).expect("a group");
    let mut members: Vec<Group<Hsuc>> = (1..=3).map(found).collect();
    let lease = Lease { now_ns: 0, until_ns: 1 };
    let (mut datagram, mut wire, mut spare) = (Vec::new(), Vec::new(), Vec::<Vec<u8>>::new());
    let mut decide = |rounds: usize| {
        let mut decisions = 0;
        for round in 0..rounds {
            for _ in 0..=round % 20 {
                members[0].propose(lease, &[7; 40]).expect("room");
            }
            loop {
                for (at, member) in members.iter_mut().enumerate() {
                    while member.poll_decision(lease).is_some() {
                        decisions += 1;
                    }
                    while let Some(to) = member.poll_transmit(&mut datagram) {
                        for to in to.iter() {
                            member.address(&mut datagram, to);
                            let mut bytes = spare.pop().unwrap_or_default();
                            bytes.clear();
                            bytes.extend_from_slice(&datagram);
                            wire.push((at as u16 + 1, to, bytes));
                        }
                    }
                }
                if wire.is_empty() {
                    break;
                }
                for (from, to, bytes) in wire.drain(..) {
                    members[host_index(to)].receive(from, &bytes).expect("taken");
                    spare.push(bytes);
                }
            }
            members.iter_mut().for_each(|member| member.resend(lease));
        }
        decisions
    };
    decide(4000);
    let before = ALLOCATIONS.get();
    let decisions = decide(1000);
    assert_eq!(ALLOCATIONS.get() - before, 0, "in {decisions} decisions");
    assert!(decisions >= 3000, "{decisions}");
}

fn allocates_nothing<A: Agreement>(mut members: Vec<A>) {
    let (mut wire, mut spare) = (Vec::new(), Vec::new());
    let mut decide = |rounds: usize| {
        let mut decisions = 0;
        for round in 0..rounds {
            for _ in 0..=round % 20 {
                members[0].propose(&[7; 48]).expect("room");
            }
            decisions += run(&mut members, &mut wire, &mut spare);
        }
        decisions
    };
    // Long enough that the longest value has been in every slot.
    decide(2000);
    let before = ALLOCATIONS.get();
    let decisions = decide(1000);
    assert_eq!(ALLOCATIONS.get() - before, 0, "in {decisions} decisions");
    assert!(decisions >= 3000, "{decisions}");
}
