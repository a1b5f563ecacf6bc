// SPDX-License-Identifier: Apache-2.0
//! A member's turn. The steps in which a durable one waits for its disk come in the order of `fide_group::Member::wait`.

use fide_agreement::group::ToStore;
use fide_sys::clock::Clocks;
use fide_types::planted::{self, Planted};
use rand::RngExt;

use super::{
    super::{
        check::{Checked, Violation},
        host::Record,
        plan::MS,
        protocol::Protocol,
        seat::Step,
        store,
    },
    NAP_NS, Next, World,
};

impl<P: Protocol> World<'_, P> {
    pub(super) fn seat_turn(&mut self, at: usize) -> Checked {
        let naps = !self.network.calm && self.network.chance(self.plan.nap_permille);
        let nap_ns = if naps { self.network.random.random_range(0..NAP_NS) } else { 0 };
        let host = &mut self.hosts[at];
        let now = host.clock.read(self.now_ns);
        let Some(seat) = &mut host.seat else { return Ok(()) };
        if naps && seat.paused_until_ns <= self.now_ns {
            seat.paused_until_ns = self.now_ns + nap_ns;
        }
        if seat.paused_until_ns > self.now_ns {
            let until_ns = seat.paused_until_ns;
            self.plan_seat(at, until_ns);
            return Ok(());
        }
        if seat.ends_ns <= self.now_ns || seat.client.is_lost() {
            self.end_seat(at);
            return Ok(());
        }
        if !seat.opened {
            self.open_seat(at, &now);
            return Ok(());
        }
        let continues =
            if seat.is_storing() { self.go_on_storing(at)? } else { seat.waited || self.seat_woke(at, &now)? };
        if !continues {
            return Ok(());
        }
        self.user(at)?;
        self.finish(at)
    }

    /// The member's wait is over: it takes packets and events, and sends what follows. False if its turn ends here,
    /// because its process or host ended, or because the process is late before its user continues.
    fn seat_woke(&mut self, at: usize, now: &Clocks) -> Result<bool, Violation> {
        if !self.take_input(at, now)? {
            return Ok(false);
        }
        self.rejoin(at);
        self.store_first(at)
    }

    /// After its input, a founder or a member of the first view stores its membership before its record. False
    /// if the turn ends here.
    fn store_first(&mut self, at: usize) -> Result<bool, Violation> {
        let host = &mut self.hosts[at];
        let now_ns = host.clock.read(self.now_ns).raw_ns;
        let is_full = host.full_until_ns > self.now_ns;
        let Some(seat) = &mut host.seat else { return Ok(false) };
        let is_founded = host.record.read().is_some_and(|record| record.is_founded);
        let Some(durable) = seat.durable.as_mut().filter(|_| seat.core.poll_record(is_founded).is_some()) else {
            return self.store_record(at);
        };
        if durable.waits(now_ns) {
            return self.store_decided(at);
        }
        if is_full {
            durable.note_full(now_ns);
            self.stats.full += 1;
            return self.store_decided(at);
        }
        let first = match seat.core.group.poll_store_first() {
            Some(ToStore::Member { incarnation, ballot, view, start }) => {
                store::Record::member(incarnation, ballot, view, start)
            }
            _ => return self.store_record(at),
        };
        if planted::is(Planted::StoresRecordFirst)
            && let Some(record) = host.record.read()
        {
            host.record.write(Record { is_founded: true, ..record });
            host.record.sync();
        }
        host.store.write([first]);
        self.wait_for_disk(at, Step::First);
        if let Some(down_ns) = self.cuts_at_record.take() {
            let sync_ns = self.plan.durable.map_or(2, |durable| durable.sync_ns);
            let after_ns = self.disks.random_range(1..sync_ns);
            self.network.push(self.now_ns + after_ns, Next::PowerCut(down_ns));
        }
        Ok(false)
    }

    fn store_record(&mut self, at: usize) -> Result<bool, Violation> {
        if !self.record(at) {
            return Ok(false);
        }
        self.store_decided(at)
    }

    /// Stores what was decided. The others are sent what they need to store the same first. False if the turn ends
    /// here.
    fn store_decided(&mut self, at: usize) -> Result<bool, Violation> {
        let host = &mut self.hosts[at];
        let now = host.clock.read(self.now_ns);
        let is_full = host.full_until_ns > self.now_ns;
        let Some(seat) = &mut host.seat else { return Ok(false) };
        let lease = seat.lease(&now);
        if !seat.take(lease, &host.store) {
            return self.end_wait(at);
        }
        seat.send(&now, host.agent.as_mut());
        if !self.send_out(at) {
            return Ok(false);
        }
        let host = &mut self.hosts[at];
        let Some(durable) = host.seat.as_mut().and_then(|seat| seat.durable.as_mut()) else { return Ok(false) };
        if durable.waits(now.raw_ns) {
            return self.end_wait(at);
        }
        if is_full {
            durable.note_full(now.raw_ns);
            self.stats.full += 1;
            return self.end_wait(at);
        }
        if durable.replaced.is_none() {
            host.store.write(durable.buffer.drain(..));
        }
        self.wait_for_disk(at, Step::Log);
        Ok(false)
    }

    fn wait_for_disk(&mut self, at: usize, step: Step) {
        let sync_ns = self.plan.durable.map_or(2, |durable| durable.sync_ns);
        let for_ns = self.disks.random_range(1..sync_ns);
        if let Some(seat) = &mut self.hosts[at].seat {
            if let Some(durable) = &mut seat.durable {
                durable.step = Some(step);
            }
            seat.paused_until_ns = self.now_ns + for_ns;
        }
        self.plan_seat(at, self.now_ns);
    }

    /// The disk is done. False if the turn ends here.
    fn go_on_storing(&mut self, at: usize) -> Result<bool, Violation> {
        self.stats.syncs += 1;
        let host = &mut self.hosts[at];
        let Some(seat) = &mut host.seat else { return Ok(false) };
        let Some(durable) = &mut seat.durable else { return Ok(true) };
        match durable.step.take() {
            Some(Step::First) => {
                host.store.sync()?;
                return self.store_record(at);
            }
            Some(Step::Log) => {
                if let Some(position) = durable.replaced.take() {
                    durable.buffer.clear();
                    host.store.replace(position, seat.core.group.recalled())?;
                }
                if !planted::is(Planted::CountsUnsynced) {
                    host.store.sync()?;
                }
                seat.core.group.stored();
                let has_base = durable.base.is_some() && host.full_until_ns <= self.now_ns;
                self.note_founding(at)?;
                if has_base {
                    self.wait_for_disk(at, Step::Base);
                    return Ok(false);
                }
            }
            Some(Step::Base) => {
                if let Some(state) = durable.base.take() {
                    host.store.set_base(state)?;
                    seat.core.group.base_stored(state.position);
                    self.stats.bases += 1;
                    let id = host.id;
                    self.note(|_| format!("h{id} stores its state at {}", state.position));
                }
            }
            None => {}
        }
        let host = &mut self.hosts[at];
        let now = host.clock.read(self.now_ns);
        let Some(seat) = &mut host.seat else { return Ok(false) };
        seat.send(&now, host.agent.as_mut());
        if !self.send_out(at) {
            return Ok(false);
        }
        self.end_wait(at)
    }

    /// The end of the wait, before the user continues. False if the turn ends here.
    fn end_wait(&mut self, at: usize) -> Result<bool, Violation> {
        let host = &mut self.hosts[at];
        let now = host.clock.read(self.now_ns);
        let Some(seat) = &mut host.seat else { return Ok(false) };
        if seat.begin_replay(&host.store) {
            self.stats.founded_from_disk += 1;
            let id = host.id;
            self.note(|_| format!("the user of h{id} is given what is on disk"));
        }
        let host = &mut self.hosts[at];
        let Some(seat) = &mut host.seat else { return Ok(false) };
        seat.last(&now, host.agent.as_mut());
        if !self.send_out(at) {
            return Ok(false);
        }
        if !self.network.calm && self.network.chance(self.plan.stall_permille) {
            let for_ns = self.network.random.random_range(0..20 * MS);
            let Some(seat) = &mut self.hosts[at].seat else { return Ok(false) };
            seat.paused_until_ns = self.now_ns + for_ns;
            self.plan_seat(at, self.now_ns);
            return Ok(false);
        }
        Ok(true)
    }
}
