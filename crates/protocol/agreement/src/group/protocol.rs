// SPDX-License-Identifier: Apache-2.0
//! Messages of the protocols, each for the members of one view.

use fide_types::HostSet;

use super::{
    Group, Standing,
    control::Control,
    datagram::{DatagramError, Prefix},
};
use crate::{Start, message::Message};

impl<P: Start> Group<P> {
    /// Whether the sender has begun the next view, which this member is about to begin.
    pub(super) fn is_early(&self, from: u16, prefix: &Prefix) -> bool {
        self.standing == Standing::Member
            && self.epochs.number().checked_add(1) == Some(prefix.view)
            && self.liveness.up(from) == prefix.sender
    }

    /// The next view has begun: takes the messages that came early.
    pub(super) fn take_early(&mut self) {
        for (from, datagram) in self.epochs.take_early() {
            let Ok((prefix, message)) = Prefix::read(&datagram) else { continue };
            // A message of another view, or of a host that is no member, is refused as if it came now.
            let _ = self.receive_protocol(from, &prefix, message);
        }
    }

    pub(super) fn receive_protocol(&mut self, from: u16, prefix: &Prefix, message: &[u8]) -> Result<(), DatagramError> {
        let Some(epoch) = self.epochs.with_number_mut(prefix.view) else {
            return Err(self.refuse_other_view(from, prefix));
        };
        let place = epoch.view.place(from).ok_or(DatagramError::Stranger { host: from })?;
        let want = epoch.view.incarnation(from).unwrap_or(0);
        if prefix.sender != want {
            return Err(DatagramError::OtherIncarnation { host: from, got: prefix.sender, want });
        }
        epoch.heard(place);
        Ok(epoch.protocol.receive(place, &Message::read(message)?)?)
    }

    /// A message is of a view that is neither the present one nor the one before. A sender that is in no view
    /// any more is answered so.
    pub(super) fn refuse_other_view(&mut self, from: u16, prefix: &Prefix) -> DatagramError {
        let here = self.epochs.number();
        let is_in = self.view().is_some_and(|view| view.holds(from, prefix.sender));
        if prefix.view < here && !is_in {
            self.say(HostSet::only(from), Control::Over);
        }
        DatagramError::OtherView { got: prefix.view, here }
    }
}
