// SPDX-License-Identifier: Apache-2.0
//! Groups over links that lose nothing. Groups over other links run in the simulator, by seed.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{Agreement, Hsuc, Links, hsuc::Setting, message::Message, view::ViewMember};
use control::Control;
use datagram::{Kind, Prefix};

const HELD: Lease = Lease { now_ns: 5, until_ns: 6 };
const RUN_OUT: Lease = Lease { now_ns: 6, until_ns: 6 };
const PAYLOAD_MAX: u64 = 64 << 20;

fn member(host: HostId, incarnation: u32) -> ViewMember {
    ViewMember { host, incarnation }
}

/// The fault with which the only test of this process is run.
#[cfg(feature = "planted")]
const ARMED: &str = "FIDE_PLANTED";

/// Each of these tests has to fail with its fault. Each runs in a process of its own, as a fault is armed for
/// a whole process, and tests run in parallel.
#[cfg(feature = "planted")]
fn are_found(shown: &[(Planted, &str)]) {
    for (fault, test) in shown {
        let run = |fault: &str| {
            let mut command = std::process::Command::new(std::env::current_exe().expect("this test"));
            command.args(["--exact", test]).env(ARMED, fault).output().expect("it runs")
        };
        let well = run("none");
        let said = String::from_utf8_lossy(&well.stdout).into_owned();
        assert!(well.status.success() && said.contains("1 passed"), "{test} without a fault: {said}");
        assert!(!run(&format!("{fault:?}")).status.success(), "{fault:?} is not found by {test}");
    }
}

fn config(me: u16, incarnation: u32) -> Config<Setting> {
    #[cfg(feature = "planted")]
    if let Ok(name) = std::env::var(ARMED) {
        planted::arm(Planted::ALL.iter().copied().find(|fault| format!("{fault:?}") == name));
    }
    Config {
        group: 7,
        me,
        incarnation,
        hosts: HostSet::first(5),
        setting: Setting { window: 2, value_max: 256, links: Links::Lossy },
        tail_max: 1 << 20,
        transfer: transfer::Config {
            chunk_max: 60_000,
            payload_max: PAYLOAD_MAX,
            stored_max: 4 * PAYLOAD_MAX,
            reserved: 2 * PAYLOAD_MAX,
            wants_max: 32,
            arriving_max: 8,
        },
    }
}

/// A group and the links between its hosts. A user's state consists of all delivered values.
struct World {
    members: BTreeMap<u16, (Group<Hsuc>, Vec<u8>)>,
    refused: Vec<DatagramError>,
}

impl World {
    /// Hosts 1 to `count` found a group, each as incarnation 10 times its id.
    fn of(count: u16) -> Self {
        let members: Vec<ViewMember> = (1..=count).map(|host| member(host, 10 * u32::from(host))).collect();
        let view = View::new(1, &members).unwrap();
        let found = |host: &ViewMember| Group::found(config(host.host, host.incarnation), view.clone()).unwrap();
        let members = members.iter().map(|host| (host.host, (found(host), Vec::new()))).collect();
        let mut world = Self { members, refused: Vec::new() };
        world.meet();
        world
    }

    fn meet(&mut self) {
        let up: Vec<(u16, u32)> =
            self.members.iter().map(|(host, (group, _))| (*host, group.config.incarnation)).collect();
        for (group, _) in self.members.values_mut() {
            up.iter().for_each(|(host, incarnation)| group.up(*host, *incarnation));
        }
    }

    fn group(&mut self, host: HostId) -> &mut Group<Hsuc> {
        &mut self.members.get_mut(&host).unwrap().0
    }

    fn state(&self, host: HostId) -> String {
        String::from_utf8(self.members[&host].1.clone()).unwrap()
    }

    fn joins(&mut self, host: HostId, incarnation: u32) {
        self.members.insert(host, (Group::join(config(host, incarnation)).unwrap(), b"of another life".to_vec()));
        self.meet();
    }

    fn dies(&mut self, host: HostId) {
        let (gone, _) = self.members.remove(&host).unwrap();
        for (group, _) in self.members.values_mut() {
            group.down(host, gone.config.incarnation);
        }
    }

    /// The datagrams that a host has to send, each with its receiver.
    fn sent(&mut self, host: HostId) -> Vec<(u16, Vec<u8>)> {
        let mut sent = Vec::new();
        let (mut bytes, group) = (Vec::new(), self.group(host));
        while let Some(to) = group.poll_transmit(&mut bytes) {
            for to in to.iter() {
                group.address(&mut bytes, to);
                sent.push((to, bytes.clone()));
            }
        }
        sent
    }

    fn tell(&mut self, host: HostId) {
        let (group, state) = self.members.get_mut(&host).unwrap();
        if let Some((_, bytes)) = group.poll_install() {
            *state = bytes.to_vec();
            group.installed();
        }
        while let Some(value) = group.poll_decision(HELD).map(|decision| decision.value.to_vec()) {
            for entry in entries(&value) {
                match entry {
                    Entry::Value(value) => state.extend_from_slice(value),
                    Entry::Payload(identity) => {
                        let payload = group.payload(&identity).expect("a decision has what it names");
                        state.extend_from_slice(format!("[{}]", payload.len()).as_bytes());
                    }
                    Entry::View(_) => {}
                }
            }
        }
        if group.wants_state() {
            group.give_state(state.clone()).unwrap();
        }
    }

    /// Runs until nothing is under way. Whether anything was.
    fn settle(&mut self) -> bool {
        let mut any = false;
        loop {
            let hosts: Vec<HostId> = self.members.keys().copied().collect();
            let mut sent = Vec::new();
            for host in hosts {
                self.tell(host);
                sent.extend(self.sent(host).into_iter().map(|(to, bytes)| (host, to, bytes)));
            }
            if sent.is_empty() {
                return any;
            }
            any = true;
            for (from, to, bytes) in sent {
                if let Some((group, _)) = self.members.get_mut(&to)
                    && let Err(error) = group.receive(from, &bytes)
                {
                    self.refused.push(error);
                }
            }
        }
    }

    /// Lets time pass.
    fn run(&mut self) {
        for _ in 0..12 {
            self.settle();
            self.members.values_mut().for_each(|(group, _)| group.resend(HELD));
        }
        self.settle();
    }

    fn writes(&mut self, host: HostId, text: &str) {
        assert_eq!(self.group(host).propose(HELD, text.as_bytes()), Ok(()));
        self.settle();
    }

    fn members_of(&mut self, host: HostId) -> Vec<u16> {
        self.group(host).view().unwrap().members().iter().map(|member| member.host).collect()
    }
}

#[test]
fn no_delivery_or_answer_without_lease_and_nothing_lost() {
    let mut world = World::of(2);
    assert_eq!(world.group(1).propose(RUN_OUT, b"x"), Err(Refused::Fenced));
    world.group(1).propose(HELD, b"x").unwrap();
    for (_, proposal) in world.sent(1) {
        world.group(2).receive(1, &proposal).unwrap();
    }
    for (_, ack) in world.sent(2) {
        world.group(1).receive(2, &ack).unwrap();
    }
    assert_eq!(world.group(1).poll_decision(RUN_OUT), None);
    // It is decided, and the other member may have delivered it by now.
    assert!(!world.group(1).may_answer(HELD));
    assert_eq!(world.group(1).poll_decision(HELD).unwrap().instance, 1);
    assert!(world.group(1).may_answer(HELD) && !world.group(1).may_answer(RUN_OUT));
}

#[test]
fn foreign_datagram_is_refused_and_changes_nothing() {
    let mut world = World::of(2);
    world.group(1).propose(HELD, b"x").unwrap();
    let [(2, good)] = &world.sent(1)[..] else { panic!("one proposal for host 2") };
    let good = good.clone();
    let changed = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        bytes
    };
    let group = world.group(2);
    let mut refused = |from: u16, bytes: &[u8]| group.receive(from, bytes).unwrap_err();
    assert_eq!(refused(1, &good[..23]), DatagramError::Length { len: 23 });
    assert_eq!(refused(1, &changed(0)), DatagramError::OtherGroup { got: 6, want: 7 });
    assert_eq!(refused(1, &changed(8)), DatagramError::OtherIncarnation { host: 1, got: 11, want: 10 });
    assert_eq!(refused(1, &changed(12)), DatagramError::NotMine { got: 1, want: 20 });
    assert_eq!(refused(1, &changed(17)), DatagramError::OtherView { got: 257, here: 1 });
    assert_eq!(refused(1, &changed(20)), DatagramError::Kind { kind: 0 });
    assert_eq!(refused(1, &changed(21)), DatagramError::Kind { kind: 1 });
    assert_eq!(refused(9, &good), DatagramError::Stranger { host: 9 });
    assert_eq!(refused(2, &good), DatagramError::Stranger { host: 2 });
    assert_eq!(refused(3, &good), DatagramError::Stranger { host: 3 });
    assert_eq!(world.sent(2), [], "nobody has answered");
    assert_eq!(world.group(2).receive(1, &good), Ok(()));
}

#[test]
fn another_incarnation_is_another_member() {
    let mut world = World::of(2);
    world.group(2).down(1, 9);
    assert_eq!(world.group(2).leader(), Some(1), "that was another");
    world.group(2).down(1, 10);
    assert_eq!(world.group(2).leader(), Some(2));
}

#[test]
fn excluded_member_stops() {
    let mut world = World::of(2);
    world.group(1).propose(HELD, b"x").unwrap();
    assert_eq!(world.group(1).standing(), Standing::Member);
    world.group(1).excluded();
    assert_eq!(world.group(1).standing(), Standing::Excluded);
    assert!(!world.group(1).may_answer(HELD));
    assert_eq!(world.sent(1), []);
    assert_eq!(world.group(1).receive(2, &[0; 40]), Err(DatagramError::Stopped));
}

#[test]
fn returning_host_takes_over_state_and_later_decisions() {
    let mut world = World::of(3);
    world.writes(1, "a");
    world.dies(1);
    world.writes(2, "b");
    world.joins(1, 11);
    world.run();
    assert_eq!(world.group(1).standing(), Standing::Member);
    assert_eq!(world.members_of(2), [2, 3, 1], "who joins comes last");
    assert_eq!((world.group(1).leader(), world.group(2).leader()), (Some(2), Some(2)));
    world.writes(2, "c");
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["abc", "abc", "abc"]);
    // It is a member: nothing is decided without it.
    world.dies(2);
    world.dies(3);
    world.writes(1, "d");
    assert_eq!(world.state(1), "abcd");
}

#[test]
fn group_grows_and_shrinks_while_it_runs() {
    let mut world = World::of(1);
    world.writes(1, "a");
    for host in 2..=4 {
        world.joins(host, 40);
        world.writes(1, "b");
        world.run();
        assert_eq!(world.state(host), world.state(1));
    }
    assert_eq!(world.group(2).remove(HELD, 3), Err(Refused::NotLeader { leader: 1 }));
    assert_eq!(world.group(1).remove(HELD, 5), Err(Refused::NoMember { host: 5 }));
    assert_eq!(world.group(1).remove(HELD, 3), Ok(()));
    assert_eq!(world.group(1).propose(HELD, b"x"), Err(Refused::Changing));
    world.run();
    assert_eq!((world.members_of(1), world.group(3).standing()), (vec![1, 2, 4], Standing::Removed));
    // Now the leader itself.
    assert_eq!(world.group(1).remove(HELD, 1), Ok(()));
    world.run();
    assert_eq!((world.members_of(2), world.group(1).standing()), (vec![2, 4], Standing::Removed));
    world.writes(2, "c");
    assert_eq!((world.state(2), world.state(4)), ("abbbc".to_owned(), "abbbc".to_owned()));
}

#[test]
fn member_that_gives_the_state_may_crash() {
    for steps in 0..12 {
        let mut world = World::of(3);
        world.writes(1, "a");
        world.joins(4, 40);
        for _ in 0..steps {
            for host in [1, 2, 3, 4] {
                world.tell(host);
                for (to, bytes) in world.sent(host) {
                    let _ = world.group(to).receive(host, &bytes);
                }
            }
            world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
        }
        world.dies(1);
        world.run();
        assert_eq!(world.group(4).standing(), Standing::Member, "after {steps} steps");
        world.writes(2, "b");
        assert_eq!([2, 3, 4].map(|host| world.state(host)), ["ab", "ab", "ab"], "after {steps} steps");
    }
}

#[test]
fn joining_host_asks_another_member_when_nothing_comes() {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.joins(3, 30);
    // The leader has offered its state, and is gone: the new host is not notified of that.
    while world.group(3).joining.is_idle() {
        world.group(3).resend(HELD);
        for (from, to) in [(3, 1), (1, 3)] {
            for (_, bytes) in world.sent(from).into_iter().filter(|(receiver, _)| *receiver == to) {
                let _ = world.group(to).receive(from, &bytes);
            }
            world.tell(to);
        }
    }
    world.members.remove(&1);
    world.group(2).down(1, 10);
    world.run();
    assert_eq!((world.group(3).standing(), world.state(3).as_str()), (Standing::Member, "a"));
}

#[test]
fn new_member_learns_of_crashes_before_its_time() {
    let mut world = World::of(3);
    // Nobody was notified of it yet, and the new member never hears of this host.
    world.members.remove(&3).unwrap();
    world.members.insert(4, (Group::join(config(4, 40)).unwrap(), Vec::new()));
    for (host, other, incarnation) in [(4, 1, 10), (4, 2, 20), (1, 4, 40), (2, 4, 40)] {
        world.group(host).up(other, incarnation);
    }
    // The old view decides the new one without host 3, which is not known to be dead when the new one begins.
    let view = View::new(2, &[member(1, 10), member(2, 20), member(3, 30), member(4, 40)]).unwrap();
    for host in [1, 2] {
        world.group(host).begin_next(view.clone());
    }
    world.run();
    assert_eq!(world.group(4).standing(), Standing::Member);
    // The view does not change meanwhile.
    world.group(1).admission.note_proposed(false);
    world.group(1).down(3, 30);
    world.run();
    for host in [1, 2] {
        world.members.remove(&host);
        world.group(4).down(host, u32::from(host) * 10);
    }
    world.writes(4, "alone");
    assert_eq!(world.state(4), "alone");
}

#[test]
fn report_of_deaths_counts_only_in_its_view() {
    let mut world = World::of(3);
    world.group(1).say(HostSet::from_iter([2]), Control::Dead { places: HostSet::from_iter([1]), asks: false });
    world.group(1).begin_next(View::new(2, &[member(2, 20), member(1, 10)]).unwrap());
    let (to, bytes) = world.sent(1).remove(0);
    let (prefix, message) = Prefix::read(&bytes).unwrap();
    assert_eq!((to, prefix.view, message[0]), (2, 1, 4));
}

/// A leader was excluded, and then its successor; the leader was not notified of either.
#[test]
fn report_of_death_is_not_taken_for_a_member_that_was_met() {
    for met in [true, false] {
        let mut world = World::of(3);
        if met {
            world.group(1).heard_by(HostSet::from_iter([2, 3]));
        }
        // Host 2 knows host 1 to be dead, and may go on with host 3. Then it is excluded too, and host 3
        // reports that.
        world.group(2).down(1, 10);
        let mut bytes = Vec::new();
        Prefix { group: 7, sender: 30, receiver: 10, view: 1, kind: Kind::Control }.write(&mut bytes);
        Control::Dead { places: HostSet::from_iter([2]), asks: false }.write(&mut bytes);
        world.group(1).receive(3, &bytes).unwrap();
        // The detector decides about host 3.
        world.group(1).down(3, 30);
        world.group(1).propose(HELD, b"a").unwrap();
        let decides = world.group(1).poll_decision(HELD).is_some();
        assert_eq!(
            decides, !met,
            "host 2 may have decided otherwise, and only this host's detector knows that it is over"
        );
    }
}

#[test]
fn repeated_requests_use_bounded_memory() {
    let mut world = World::of(1);
    world.joins(2, 20);
    let mut bytes = Vec::new();
    Prefix { group: 7, sender: 20, receiver: 10, view: 0, kind: Kind::Control }.write(&mut bytes);
    Control::Join { have: None }.write(&mut bytes);
    world.group(1).give_state(b"state".to_vec()).unwrap();
    for _ in 0..3000 {
        world.group(1).receive(2, &bytes).unwrap();
    }
    assert_eq!(world.sent(1).len(), 1024);
    world.run();
    assert_eq!(world.group(2).standing(), Standing::Member);
}

#[test]
fn leader_with_full_batch_lets_in_a_host() {
    let mut world = World::of(2);
    world.joins(3, 40);
    let mut rounds = 0;
    while world.group(3).standing() == Standing::Joining {
        world.settle();
        // As many values as there is room for, before it handles requests to join.
        while world.group(1).propose(HELD, b"x").is_ok() {}
        world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
        rounds += 1;
        assert!(rounds < 20, "whoever proposes all the time keeps it out");
    }
    world.run();
    world.writes(1, "y");
    assert_eq!(world.state(3), world.state(1));
}

/// Its user proposes payloads as long as they are taken, also when the view with the new host has just begun.
#[test]
fn leader_full_of_payloads_lets_in_a_host() {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.joins(3, 40);
    let fill = |world: &mut World| {
        let mut offers = |n: u32| world.group(1).propose_payload(HELD, n.to_le_bytes().to_vec()).is_ok();
        assert!((0..).take_while(|n| offers(*n)).count() < transfer::PAYLOADS_MAX);
    };
    for _ in 0..60 {
        fill(&mut world);
        world.settle();
        fill(&mut world);
        world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
    }
    assert_eq!(world.group(3).standing(), Standing::Member);
}

#[test]
fn tail_expires_once_no_host_asks() {
    let mut world = World::of(2);
    world.writes(1, "a");
    assert!([1, 2].iter().all(|host| !world.group(*host).tail.keeps()), "nobody joins");
    world.joins(3, 40);
    // Host 3 asks, is offered a state, and dies.
    world.group(3).resend(HELD);
    world.settle();
    world.settle();
    world.writes(1, "b");
    assert!([1, 2].iter().all(|host| world.group(*host).tail.keeps()), "whoever leads may die");
    assert_eq!((world.group(1).transfers.stored().count(), world.group(1).tail.reaches_from()), (1, 1));
    world.dies(3);
    (0..24).for_each(|_| world.run());
    for host in [1, 2] {
        let group = world.group(host);
        assert_eq!((group.transfers.stored().count(), group.tail.reaches_from()), (0, 2));
    }
    world.joins(3, 41);
    world.run();
    assert_eq!((world.group(3).standing(), world.state(3)), (Standing::Member, "ab".to_owned()));
}

#[test]
fn state_of_the_future_is_refused() {
    let mut world = World::of(2);
    world.writes(1, "a");
    world.joins(3, 30);
    let prefix = Prefix { group: 7, sender: 30, receiver: 10, view: 0, kind: Kind::Control };
    let mut bytes = Vec::new();
    prefix.write(&mut bytes);
    Control::Join { have: Some(2) }.write(&mut bytes);
    assert_eq!(world.group(1).receive(3, &bytes), Err(DatagramError::Future { position: 2, delivered: 1 }));
}

#[test]
fn payloads_of_every_length_are_stored_when_delivered() {
    let mut world = World::of(3);
    for (held, len) in [0, 1, 60_000, 60_001, PAYLOAD_MAX as usize].into_iter().enumerate() {
        assert_eq!(world.group(2).transfers.stored().count(), held, "as long as a decision that is kept names them");
        world.group(1).propose_payload(HELD, vec![3; len]).unwrap();
        world.run();
    }
    // The last one is longer than the whole tail.
    assert_eq!(world.group(2).transfers.stored().count(), 0);
    let all = "[0][1][60000][60001][67108864]";
    assert_eq!([1, 2, 3].map(|host| world.state(host)), [all; 3]);
    let long = vec![0; PAYLOAD_MAX as usize + 1];
    assert!(matches!(world.group(1).propose_payload(HELD, long), Err(Refused::Payload(_))));
    assert_eq!(world.group(2).propose_payload(HELD, Vec::new()), Err(Refused::NotLeader { leader: 1 }));
    let long = vec![0; 256];
    assert_eq!(world.group(1).propose(HELD, &long), Err(Refused::TooLong { len: 256, max: 251 }));
}

#[test]
fn joining_host_has_the_payloads_of_its_decisions() {
    let mut world = World::of(2);
    world.joins(3, 30);
    // With the state before the payload.
    world.settle();
    world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
    world.settle();
    assert_eq!(world.group(3).standing(), Standing::Joining);
    world.group(1).propose_payload(HELD, vec![3; 1000]).unwrap();
    world.settle();
    world.run();
    assert_eq!([1, 2, 3].map(|host| world.state(host)), ["[1000]"; 3]);
}

#[test]
fn members_with_different_lists_or_settings_refuse_each_other() {
    let of = |name: &str, hosts: usize, window: u64| {
        group_of(name, HostSet::first(hosts), &Setting { window, ..config(1, 10).setting })
    };
    let same = of("db", 3, 2);
    assert_eq!(same, of("db", 3, 2));
    assert!([of("bd", 3, 2), of("db", 4, 2), of("db", 3, 1)].iter().all(|other| *other != same));
    let mut world = World::of(2);
    world.group(2).config.group = same;
    world.writes(1, "x");
    assert_eq!(world.refused, [DatagramError::OtherGroup { got: 7, want: same }]);
    assert!(world.refused[0].to_string().contains("the same list and settings?"));
    assert_eq!((world.state(1), world.state(2)), (String::new(), String::new()));
}

#[test]
fn impossible_configuration_is_refused() {
    let view = View::new(1, &[member(1, 10), member(2, 20)]).unwrap();
    let found = |config| Group::<Hsuc>::found(config, view.clone()).unwrap_err();
    assert_eq!(found(config(1, 11)), GroupError::NotAMember { me: 1, incarnation: 11 });
    assert_eq!(found(Config { hosts: HostSet::first(1), ..config(1, 10) }), GroupError::Stranger { host: 2 });
    let setting = Setting { window: 0, ..config(1, 10).setting };
    assert!(matches!(found(Config { setting, ..config(1, 10) }), GroupError::Setting(text) if text.contains("window")));
    let tail_max = PAYLOAD_MAX + 1;
    assert_eq!(found(Config { tail_max, ..config(1, 10) }), GroupError::TailMax { tail_max, payload_max: PAYLOAD_MAX });
}

proptest! {
    #[test]
    fn any_bytes_decide_nothing(
        kind in 0u8..5, view in 0u32..3, joins: bool, bytes in prop::collection::vec(any::<u8>(), 0..120),
    ) {
        let mut world = World::of(2);
        let mut receiver = 20;
        if joins {
            world.joins(2, 21);
            receiver = 21;
        }
        let mut datagram = Vec::new();
        Prefix { group: 7, sender: 10, receiver, view, kind: Kind::Protocol }.write(&mut datagram);
        datagram[20] = kind;
        datagram.extend_from_slice(&bytes);
        let taken = world.group(2).receive(1, &datagram).is_ok();
        prop_assert!(!taken || (1..=3).contains(&kind));
        let decides = Message::read(&bytes).is_ok_and(|message| matches!(message, Message::Decide { instance: 1, .. }));
        let decides = decides && kind == 1 && view == 1 && taken;
        prop_assert_eq!(world.group(2).poll_decision(HELD).is_some(), decides);
        prop_assert_eq!(world.group(2).protocol().map_or(0, Agreement::leader), u16::from(!joins));
    }
}

/// Hosts 1 to `count` in no group, each as incarnation 10 times its id, which are up for each other.
fn unfounded(count: u16) -> World {
    let config = |host: HostId| Config { hosts: HostSet::first(count.into()), ..config(host, 10 * u32::from(host)) };
    let form = |host: HostId| (host, (Group::form(config(host)).unwrap(), Vec::new()));
    let mut world = World { members: (1..=count).map(form).collect(), refused: Vec::new() };
    world.meet();
    world
}

impl World {
    /// Lets time pass, while all hosts store their records.
    fn forms(&mut self) {
        for _ in 0..4 {
            self.members.values_mut().for_each(|(group, _)| group.resend(HELD));
            self.settle();
            self.members.values_mut().for_each(|(group, _)| group.recorded());
        }
    }
}

#[test]
fn hosts_found_their_group_by_themselves() {
    let mut world = unfounded(3);
    world.forms();
    for host in 1..=3 {
        assert_eq!(world.group(host).standing(), Standing::Member);
        assert_eq!(world.members_of(host), [1, 2, 3]);
    }
    world.writes(1, "a");
    world.run();
    assert_eq!((world.state(2), world.state(3)), ("a".to_owned(), "a".to_owned()));
}

#[test]
fn no_founding_without_lease_or_record() {
    let mut world = unfounded(2);
    for _ in 0..4 {
        world.members.values_mut().for_each(|(group, _)| group.resend(RUN_OUT));
        world.settle();
    }
    assert!(world.group(1).poll_record().is_none());
    for _ in 0..4 {
        world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
        world.settle();
    }
    assert!(world.group(1).poll_record().is_some());
    assert_eq!((world.group(1).standing(), world.group(2).standing()), (Standing::Joining, Standing::Joining));
    // Nobody has begun, so nobody else hears of a view.
    assert!(world.group(2).poll_record().is_none());
    world.forms();
    assert_eq!((world.group(1).standing(), world.group(2).standing()), (Standing::Member, Standing::Member));
}

#[test]
fn dead_founder_is_followed_by_the_next() {
    let mut world = unfounded(3);
    world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
    world.settle();
    world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
    world.settle();
    assert!(world.group(1).poll_record().is_some());
    world.dies(1);
    world.forms();
    assert_eq!((world.members_of(2), world.members_of(3)), (vec![2, 3], vec![2, 3]));
}

/// A process that ended when it had stored that there is a group, and before anybody heard of that.
fn dies_with_a_record(world: &mut World, host: HostId) {
    for _ in 0..2 {
        world.members.values_mut().for_each(|(group, _)| group.resend(HELD));
        world.settle();
    }
    world.dies(host);
    let config = Config { hosts: HostSet::first(3), ..config(host, 10 * u32::from(host) + 1) };
    world.members.insert(host, (Group::join(config).unwrap(), Vec::new()));
    world.meet();
}

#[test]
fn founder_that_returns_with_a_record_is_not_awaited() {
    let mut world = unfounded(3);
    dies_with_a_record(&mut world, 1);
    world.forms();
    world.run();
    assert_eq!((world.members_of(2), world.members_of(1)), (vec![2, 3, 1], vec![2, 3, 1]));
}

/// Host 3 says that it is in no group, ends, and starts again without a record. The others hear of that
/// start, and nothing from it.
#[test]
fn host_that_returned_without_a_record_is_awaited() {
    let mut world = unfounded(3);
    world.group(3).resend(HELD);
    for (to, bytes) in world.sent(3) {
        world.group(to).receive(3, &bytes).unwrap();
    }
    world.dies(3);
    let again = Group::form(Config { hosts: HostSet::first(3), ..config(3, 31) }).unwrap();
    world.members.insert(3, (again, Vec::new()));
    world.meet();
    for _ in 0..6 {
        for host in 1..=2 {
            world.group(host).resend(HELD);
            world.tell(host);
            for (to, bytes) in world.sent(host) {
                let _ = world.group(to).receive(host, &bytes);
            }
        }
        (1..=3).for_each(|host| world.group(host).recorded());
    }
    // It has heard that both are in no group. If they had founded one without it, it would found another one
    // once they are gone.
    assert!(world.group(1).view().is_none() && world.group(2).view().is_none());
    world.forms();
    assert_eq!((world.members_of(1), world.members_of(3)), (vec![1, 2, 3], vec![1, 2, 3]));
}

#[test]
fn founder_that_returns_late_with_a_record_is_not_awaited() {
    let mut world = unfounded(3);
    dies_with_a_record(&mut world, 1);
    // Its incarnation is that of a later second: there may have been others between.
    let config = Config { hosts: HostSet::first(3), ..config(1, 15) };
    world.members.insert(1, (Group::join(config).unwrap(), Vec::new()));
    world.meet();
    world.forms();
    world.run();
    assert_eq!((world.members_of(2), world.members_of(1)), (vec![2, 3, 1], vec![2, 3, 1]));
}

#[test]
fn host_that_died_unheard_is_awaited() {
    let mut world = unfounded(2);
    world.dies(1);
    world.forms();
    assert_eq!(world.group(2).standing(), Standing::Joining);
}

#[test]
fn view_of_an_abandoned_founder_comes_too_late() {
    let mut world = unfounded(3);
    world.forms();
    // Another incarnation of host 3, which has promised host 2's ballot by now.
    let begun = {
        let (bytes, view) = (&mut Vec::new(), world.group(1).view().unwrap().clone());
        let prefix = Prefix { group: 7, sender: 10, receiver: 30, view: 0, kind: Kind::Control };
        prefix.write(bytes);
        Control::Begin { ballot: 0, view }.write(bytes);
        bytes.clone()
    };
    for (ballot, taken) in [(0, true), (1, false)] {
        let mut late = Group::<Hsuc>::form(Config { hosts: HostSet::first(3), ..config(3, 30) }).unwrap();
        late.up(1, 10);
        late.up(2, 20);
        let mut present = Vec::new();
        Prefix { group: 7, sender: 20, receiver: 30, view: 0, kind: Kind::Control }.write(&mut present);
        Control::Present { ballot, is_first: false }.write(&mut present);
        late.receive(2, &present).unwrap();
        late.receive(1, &begun).unwrap();
        assert_eq!(late.poll_record().is_some(), taken);
    }
}

#[test]
fn late_host_joins_the_founded_group() {
    let mut world = unfounded(3);
    world.forms();
    world.writes(1, "a");
    world.dies(3);
    let late = Group::form(Config { hosts: HostSet::first(3), ..config(3, 31) }).unwrap();
    world.members.insert(3, (late, Vec::new()));
    world.meet();
    world.run();
    assert_eq!(world.group(3).standing(), Standing::Member);
    assert_eq!((world.members_of(1), world.state(3)), (vec![1, 2, 3], "a".to_owned()));
}

mod durable;
mod founding;
mod handing;
mod installing;
mod leaving;
mod payloads;
mod refounding;
mod returned;
mod shown;
mod stored;
