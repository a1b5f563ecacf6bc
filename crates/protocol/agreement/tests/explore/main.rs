// SPDX-License-Identifier: Apache-2.0
//! The real state machines, explored in every order of messages, proposals, crashes and reports of crashes.
//!
//! - `hsuc`: a crash may come between any two copies of a message; links may lose messages.
//!   `FIDE_EXPLORE=large` adds a third instance.
//! - `huc`: over an FCURB that keeps its promises and no more.
//! - `groups`: by seed, under leases, with hosts that are excluded and processes that die.
//! - `huc_leased`: over its own FCURB, where heartbeats may reach only some members, and links may lose
//!   messages.

mod disks;
mod groups;
mod hsuc;
mod huc;
mod huc_leased;
mod links;

use std::{collections::BTreeSet, fmt::Debug, hash::Hash};

use fide_agreement::batch;
use fide_types::host_index;
use stateright::{Checker, HasDiscoveries, Model, Property};

const THREADS: usize = 2;
/// More states than these are an error of the test.
const STATES_MAX: usize = 60_000_000;

/// What the properties are about. Values are numbers from 1, of one byte.
trait Logs: Sized {
    /// By member: the delivered decisions, instance by instance.
    fn logs(&self) -> &[Vec<Vec<u8>>];
    /// The member that made each proposal.
    fn proposed(&self) -> &[u16];
    fn alive(&self) -> BTreeSet<u16>;
    /// Once nothing is under way: the state after resends, all of which arrive.
    fn at_rest(&self) -> Option<Self>;

    fn log(&self, member: u16) -> &[Vec<u8>] {
        &self.logs()[host_index(member)]
    }

    fn values(&self, member: u16) -> impl Iterator<Item = &[u8]> {
        self.log(member).iter().flat_map(|value| batch::values(value))
    }
}

/// The properties of consensus (FiDe App. A.1), none of which may ever fail.
fn properties<M: Model>() -> Vec<Property<M>>
where
    M::State: Logs,
{
    vec![
        Property::always("uniform agreement", |_, state: &M::State| {
            let longest = state.logs().iter().max_by_key(|log| log.len()).expect("members");
            state.logs().iter().all(|log| longest.starts_with(log))
        }),
        Property::always("validity and integrity", |_, state: &M::State| {
            (1..=state.logs().len() as u16).all(|member| {
                let mut seen = BTreeSet::new();
                state.values(member).all(|value| {
                    let known = value.len() == 1 && (1..=state.proposed().len()).contains(&usize::from(value[0]));
                    known && seen.insert(value.to_vec())
                })
            })
        }),
        // All live members have decided everything that live members have proposed.
        Property::always("termination", |_, state: &M::State| {
            let Some(state) = state.at_rest() else { return true };
            let alive = state.alive();
            let first = *alive.first().expect("one lives");
            let mut values = (1u8..).zip(state.proposed()).filter(|(_, by)| alive.contains(by));
            alive.iter().all(|member| state.log(*member) == state.log(first))
                && values.all(|(value, _)| state.values(first).any(|decided| decided == [value]))
        }),
    ]
}

/// What stateright requires of a model.
trait Explored:
    Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq + Send + Sync>
    + Send
    + Sync
    + 'static
{
}

impl<P: links::Protocol> Explored for links::Of<P> {}
impl Explored for huc::World {}

fn checked<M: Explored>(world: M) -> impl Checker<M> {
    world
        .checker()
        .threads(THREADS)
        .target_state_count(STATES_MAX)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join()
}

/// Explores every state of a world.
fn explore(name: &str, world: impl Explored) {
    let checker = checked(world);
    println!("{name}: {} states, depth {}", checker.unique_state_count(), checker.max_depth());
    checker.assert_properties();
    assert!(checker.unique_state_count() < STATES_MAX, "{name}: not all of it was seen");
}

/// A fault is armed for the whole process.
#[cfg(feature = "planted")]
fn alone() -> impl Drop {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Each of these faults makes one of the worlds break a promise.
#[cfg(feature = "planted")]
fn finds(faults: &[fide_types::planted::Planted], worlds: &[impl Explored + Clone]) {
    use fide_types::planted::arm;
    let _alone = alone();
    for fault in faults {
        arm(Some(*fault));
        let seen = worlds.iter().find_map(|world| {
            let checker = checked(world.clone());
            let mut found: Vec<_> = checker.discoveries().into_keys().collect();
            found.retain(|property| *property != "all but one die and the last goes on");
            (!found.is_empty()).then(|| format!("{found:?} after {} states", checker.unique_state_count()))
        });
        arm(None);
        println!("{fault:?}: {}", seen.expect("a fault that nothing shows"));
    }
}
