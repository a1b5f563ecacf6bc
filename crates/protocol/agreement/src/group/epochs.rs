// SPDX-License-Identifier: Apache-2.0
//! The chain of epochs, as far as a member still needs it: the present one, the one before, and what comes
//! for the next one.

use std::collections::VecDeque;

use super::{epoch::Epoch, tail::Tail};
use crate::{Decision, Start, view::View};

/// Messages of the next view that wait for it to begin; more are dropped, and sent again.
const EARLY_MAX: usize = 256;

#[derive(Debug, Clone)]
pub(super) struct Epochs<P> {
    current: Option<Epoch<P>>,
    /// Serves members that have not delivered its last decision yet.
    previous: Option<Epoch<P>>,
    /// Delivered to the user: this view begins with the next call.
    next: Option<View>,
    /// By sender: messages of the next view, which their senders have already begun.
    early: VecDeque<(u16, Vec<u8>)>,
}

impl<P: Start> Epochs<P> {
    pub(super) fn new() -> Self {
        Self { current: None, previous: None, next: None, early: VecDeque::new() }
    }

    pub(super) fn current(&self) -> Option<&Epoch<P>> {
        self.current.as_ref()
    }

    pub(super) fn current_mut(&mut self) -> Option<&mut Epoch<P>> {
        self.current.as_mut()
    }

    pub(super) fn previous(&self) -> Option<&Epoch<P>> {
        self.previous.as_ref()
    }

    /// The present epoch, then the one before.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Epoch<P>> {
        self.current.iter_mut().chain(&mut self.previous)
    }

    pub(super) fn with_number_mut(&mut self, number: u32) -> Option<&mut Epoch<P>> {
        self.iter_mut().find(|epoch| epoch.view.number() == number)
    }

    /// The present view.
    pub(super) fn view(&self) -> Option<&View> {
        self.current().map(|epoch| &epoch.view)
    }

    /// The number of the present view; 0 for none.
    pub(super) fn number(&self) -> u32 {
        self.view().map_or(0, View::number)
    }

    /// The next decision of the present epoch, with its position. A next view in it begins with
    /// [`Epochs::take_next`].
    pub(super) fn poll_decision(&mut self, tail: &mut Tail) -> Option<Decision<'_>> {
        let epoch = self.current.as_mut()?;
        let Decision { instance, value } = epoch.protocol.poll_decision()?;
        let follows = |view: &View| view.number() == epoch.view.number() + 1;
        self.next = tail.push(value).filter(follows);
        Some(Decision { instance: epoch.start + instance, value })
    }

    /// A decision is delivered that was taken from the protocol earlier. `is_of_epoch`: it is one of the present
    /// epoch, so that a next view in it begins with [`Epochs::take_next`].
    pub(super) fn push(&mut self, tail: &mut Tail, value: &[u8], is_of_epoch: bool) {
        let next = tail.push(value);
        let number = self.number();
        self.next = next.filter(|view| is_of_epoch && view.number() == number + 1);
    }

    /// Whether a delivered view waits to begin.
    pub(super) fn is_ending(&self) -> bool {
        self.next.is_some()
    }

    pub(super) fn take_next(&mut self) -> Option<View> {
        self.next.take()
    }

    pub(super) fn take_current(&mut self) -> Option<Epoch<P>> {
        self.current.take()
    }

    /// The epoch that still serves others, or none.
    pub(super) fn set_previous(&mut self, epoch: Option<Epoch<P>>) {
        self.previous = epoch;
    }

    pub(super) fn begin(&mut self, epoch: Epoch<P>) {
        self.current = Some(epoch);
    }

    pub(super) fn keep_early(&mut self, from: u16, datagram: &[u8]) {
        if self.early.len() < EARLY_MAX {
            self.early.push_back((from, datagram.to_vec()));
        }
    }

    pub(super) fn take_early(&mut self) -> VecDeque<(u16, Vec<u8>)> {
        std::mem::take(&mut self.early)
    }
}
