// SPDX-License-Identifier: Apache-2.0
//! What becomes of a command before Redis looks it up.
//!
//! Called for commands of clients, of scripts, of this module, and of the replication link, which it cannot
//! tell apart but by [`crate::stream`]'s mark.

use super::{
    HOT, Mode, TURN, UNREAD, Words, caught_up, commit_now,
    config::{FollowerProxy, Reads},
    kill, native, pushed,
    state::State,
    transfer,
    unread::Unread,
    whole, with_state,
};
use crate::{
    commands::{Checks, Class, Commands},
    redis::{Ctx, Filtered},
    rules::Rule,
    stream::{Stream, is_marked},
};

/// What to do with a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It runs as it is.
    Run,
    /// It runs, and what it shows has to be confirmed before its reply leaves.
    Show,
    /// It runs if this server may show data at this moment: its reply leaves before the next turn is sealed.
    Confirm,
    Write,
    /// The leader is asked.
    Pass,
    Read,
    Refuse,
    Skip,
    /// The link's is passed over. Another client is disconnected.
    Multi,
    Config,
    Wait,
    Role,
    Pause,
}

pub(super) fn apply(command: &Filtered, commands: &Commands, words: &Words) {
    native::forget();
    HOT.with(|hot| {
        if hot.direct.replace(false) {
            return;
        }
        let Some(name) = command.get(0) else { return };
        let (class, checks) = match commands.look(name, command.get(1), command.len()) {
            // A server that takes over from this one has three words; a fourth would end the replication here.
            (Class::Sync, checks) if command.len() > 3 => (Class::Refused("the group decides who leads"), checks),
            // SORT and GEORADIUS that store nothing are as any read, but Redis lets no replica execute them.
            (Class::Write(Rule::IfStores), checks) if hot.mode.get() == Mode::Leader && !stores(command) => {
                (Class::Read, checks)
            }
            // It writes nothing, so nothing has to be decided before its answer. Redis remembers the keys for CLIENT TRACKING
            // only where the client executes the script itself.
            (Class::Script, checks) if hot.mode.get() == Mode::Leader && is_read_only(name) => (Class::Read, checks),
            (Class::Kill, checks) if !kill::ends_link(command) => (Class::Free, checks),
            known => known,
        };
        if matches!(class, Class::Free | Class::Exec | Class::Read | Class::Listen) {
            pushed::note_command(name);
        }
        match class {
            Class::SetUser => words.users.iter().for_each(|rule| command.append(rule)),
            Class::Sync => native::note_replica(),
            Class::LoadUsers => hot.has_loaded_users.set(true),
            _ => {}
        }
        if hot.mode.get() == Mode::Syncing && !matches!(class, Class::Free | Class::Read | Class::Listen) {
            caught_up::note_command();
        }
        if is_marked(name) && matches!(class, Class::Write(_)) && hot.mode.get() != Mode::Leader {
            note_of_log(hot);
        }
        // A script of a client with unread replies is decided on its own, too.
        let is_script = class == Class::Script && hot.mode.get() == Mode::Leader;
        let is_late = hot.is_late.get() || is_script && is_any_unread();
        let is_native = checks.told && matches!(class, Class::Write(_)) && native::is_possible();
        if is_native && !is_any_unread() && native::write_down(command) {
            return hot.has_shown.set(true);
        }
        match class {
            Class::Multi => native::note_transaction(),
            // A script that calls EXEC is refused by Redis, and is in the transaction that was begun.
            Class::Exec if !Ctx::is_within_other() => whole::begin(),
            _ => {}
        }
        // Without the link there is nobody who may write so. With it this is a replica, and Redis refuses what clients
        // write.
        let is_of_log = is_marked(name) && hot.has_link.get();
        let verdict = decide(hot.mode.get(), class, is_of_log, is_late, hot.reads.get());
        let word = match verdict {
            Verdict::Run if is_for_link_only(hot.mode.get(), class, checks) => &words.link,
            Verdict::Run => return,
            // Confirmed at the end of the turn. A client with unread replies may be shown it before that.
            // It ends before anybody is answered.
            Verdict::Show | Verdict::Confirm if Ctx::is_within_other() => return hot.has_shown.set(true),
            Verdict::Show if may_show() => return hot.has_shown.set(true),
            Verdict::Show => &words.refuse,
            Verdict::Confirm if is_all_decided() || commit_now() => return,
            Verdict::Confirm => &words.refuse,
            Verdict::Write => &words.write[checks.index()],
            Verdict::Pass if hot.proxy.get() == FollowerProxy::Yes => &words.pass,
            // What this server knows.
            Verdict::Pass if class == Class::ScriptExists => return,
            Verdict::Pass => &words.refuse,
            // Redis executes it at once, so what holds now holds then; unless it is queued.
            Verdict::Read if !hot.has_transactions.get() && with_state(|state| state.may_read()) == Some(true) => {
                return;
            }
            Verdict::Read => &words.read,
            Verdict::Refuse => &words.refuse,
            Verdict::Skip => &words.skip,
            Verdict::Multi => &words.multi,
            Verdict::Config => &words.config,
            Verdict::Wait => &words.wait,
            Verdict::Role => &words.role,
            Verdict::Pause => &words.pause,
        };
        if matches!(class, Class::Write(_) | Class::Script | Class::Once) {
            hot.has_shown.set(true);
        }
        if class == Class::Exec && !Ctx::is_within_other() {
            let refused = hot.refused_execs.get();
            if verdict == Verdict::Skip {
                // Redis refuses what stands in front, and leaves the client in its transaction: what it reads next would be
                // queued. So it is disconnected, too. The link stays.
                hot.refused_execs.set(refused.max(1));
            } else {
                // Redis queues what stands in front, and the client would take that for the answer to its transaction. It is
                // disconnected at the end of the turn, before that is sent; unless the end is over, or Redis writes to a
                // client with unread replies before.
                if refused < SHUT_MAX && (hot.is_late.get() || is_any_unread()) {
                    transfer::shut_transactions();
                }
                hot.refused_execs.set(refused.saturating_add(1));
            }
        }
        command.prepend(word);
    });
}

/// Times in a turn that all clients are listed to shut those in transactions. Beyond that one could be told that its EXEC
/// was queued, before it is disconnected: anybody may send EXEC, without a transaction and a password.
const SHUT_MAX: u32 = 64;

/// A write that runs at a replica because its master may have sent it, and that Redis would let anybody send: the word
/// in front, which Redis lets nobody else send, executes it.
fn is_for_link_only(mode: Mode, class: Class, checks: Checks) -> bool {
    let is_replica = matches!(mode, Mode::Following | Mode::Leading | Mode::Joining | Mode::Syncing);
    is_replica && matches!(class, Class::Write(_)) && !checks.is_refused_on_replicas
}

/// A command of the log is about to be executed; or a client spells one so, and Redis is about to refuse it.
fn note_of_log(hot: &super::Hot) {
    if with_state(|state| state.has_applied_all()) == Some(false) {
        hot.is_mid_unit.set(true);
    }
    listen_while_applying(hot);
}

/// Commands of the log that a follower executes between two looks at what has come.
const LISTEN_EVERY: u32 = 32;

/// A long unit takes long to apply: the leader's next one is acknowledged meanwhile.
fn listen_while_applying(hot: &super::Hot) {
    let since = hot.unheard.get() + 1;
    hot.unheard.set(since % LISTEN_EVERY);
    if since == LISTEN_EVERY {
        with_state(State::listen);
    }
}

/// Whether Redis lets a script of this command write nothing, and send nothing.
fn is_read_only(name: &[u8]) -> bool {
    name.len() > 3 && name[name.len() - 3..].eq_ignore_ascii_case(b"_ro")
}

fn stores(command: &Filtered) -> bool {
    let stores = |arg: &[u8]| arg.eq_ignore_ascii_case(b"store") || arg.eq_ignore_ascii_case(b"storedist");
    (2..command.len()).any(|at| command.get(at).is_some_and(stores))
}

/// Whether a reply may leave before the end of the turn, or cannot.
fn may_show() -> bool {
    is_all_decided() || !is_any_unread() || commit_now()
}

fn is_any_unread() -> bool {
    UNREAD.with_borrow_mut(Unread::is_any)
}

/// What is here may be shown at once. Keys that have expired or were evicted since the last turn are not decided.
fn is_all_decided() -> bool {
    TURN.with_borrow(Stream::is_empty) && with_state(|state| state.member.may_answer()) == Some(true)
}

pub(super) fn decide(mode: Mode, class: Class, is_of_log: bool, is_late: bool, reads: Reads) -> Verdict {
    match (class, mode) {
        (Class::Free | Class::SetUser | Class::LoadUsers, _) | (_, Mode::Starting) => Verdict::Run,
        (Class::Role, Mode::Leader | Mode::Undecided | Mode::Following | Mode::Leading) => Verdict::Role,
        (Class::Role, _) => Verdict::Run,
        (Class::Refused(_) | Class::Kill, _) => Verdict::Refuse,
        (Class::Config, _) => Verdict::Config,
        (Class::Sync, _) => Verdict::Run,
        // The other server sends what is not decided yet.
        (Class::Listen, Mode::Syncing | Mode::Cut) => Verdict::Refuse,
        (Class::Listen, _) => Verdict::Run,
        // Of the link, whose EXEC may have been passed over.
        (Class::Multi, Mode::Cut) => Verdict::Multi,
        // Wherever its commands are refused, too: after a refused MULTI those behind it in a pipeline would be executed
        // one by one, here or at the leader.
        (Class::Multi, _) => Verdict::Run,
        (Class::Pause, Mode::Leader | Mode::Undecided) => Verdict::Pause,
        (Class::Write(_), Mode::Following | Mode::Leading | Mode::Joining) if is_of_log => Verdict::Run,
        // The link may still bring what this server is not to apply any more.
        (Class::Write(_), Mode::Out) if is_of_log => Verdict::Skip,

        (Class::Read | Class::ScriptExists, Mode::Leader) if !is_late => Verdict::Show,
        (Class::Read | Class::ScriptExists, Mode::Leader) => Verdict::Confirm,
        (Class::Exec, Mode::Leader) if is_late => Verdict::Confirm,
        // What was queued is not looked at again.
        (Class::Exec, Mode::Leader) => Verdict::Show,
        (Class::Write(_) | Class::Once, Mode::Leader) => Verdict::Write,
        (Class::Script, Mode::Leader) => {
            if is_late {
                Verdict::Write
            } else {
                Verdict::Show
            }
        }
        (Class::Wait, Mode::Leader) => Verdict::Wait,

        (Class::Read, Mode::Following) => match reads {
            Reads::Leader => Verdict::Refuse,
            Reads::Any => Verdict::Read,
            Reads::Stale => Verdict::Run,
        },
        (Class::Once | Class::Script | Class::ScriptExists, Mode::Following | Mode::Leading) => Verdict::Pass,
        // At a server that is about to lead it waits until that is done.
        (Class::Write(rule), Mode::Following | Mode::Leading) if !rule.may_block() => Verdict::Pass,
        (Class::Write(_) | Class::Wait, Mode::Following) => Verdict::Refuse,
        // What stands in front of each queued command looks at the state of this server again.
        (Class::Exec, Mode::Following | Mode::Leading) => Verdict::Run,

        // The other server's stream, unmarked. Redis refuses what clients write, as this is a replica; a transaction that
        // one begins is ended before this server leads.
        (Class::Write(_) | Class::Exec, Mode::Syncing) => Verdict::Run,
        (Class::Write(_) | Class::Exec, Mode::Cut) => Verdict::Skip,
        _ => Verdict::Refuse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: Class = Class::Write(Rule::Set);

    #[test]
    fn no_data_is_shown_or_written_by_a_server_that_is_not_ready() {
        for mode in [Mode::Joining, Mode::Leading, Mode::Undecided, Mode::Out] {
            for class in [SET, Class::Read, Class::Script, Class::Wait] {
                let waits = mode == Mode::Leading && matches!(class, SET | Class::Script);
                let want = if waits { Verdict::Pass } else { Verdict::Refuse };
                assert_eq!(decide(mode, class, false, false, Reads::Any), want, "{mode:?} {class:?}");
            }
            assert_eq!(decide(mode, Class::Free, false, false, Reads::Any), Verdict::Run);
        }
    }

    /// An error to the link would end the server as one that differs.
    #[test]
    fn server_that_was_taken_out_passes_over_what_its_link_brings() {
        assert_eq!(decide(Mode::Out, SET, true, false, Reads::Any), Verdict::Skip);
        assert_eq!(decide(Mode::Out, SET, false, false, Reads::Any), Verdict::Refuse);
    }

    #[test]
    fn mark_means_nothing_to_the_leader() {
        assert_eq!(decide(Mode::Leader, SET, true, false, Reads::Any), Verdict::Write);
        assert_eq!(decide(Mode::Undecided, SET, true, false, Reads::Any), Verdict::Refuse);
    }

    #[test]
    fn client_that_spells_like_the_log_gains_nothing() {
        for mode in [Mode::Following, Mode::Leading, Mode::Joining] {
            for class in [Class::Read, Class::Multi, Class::Exec, Class::Script, Class::Wait] {
                let [plain, spelled] = [false, true].map(|is_of_log| decide(mode, class, is_of_log, false, Reads::Any));
                assert_eq!(plain, spelled, "{mode:?} {class:?}");
            }
        }
    }

    #[test]
    fn replica_runs_the_log_and_nothing_else() {
        assert_eq!(decide(Mode::Following, SET, true, false, Reads::Any), Verdict::Run);
        assert_eq!(decide(Mode::Following, SET, false, false, Reads::Any), Verdict::Pass);
        let waits = Class::Write(Rule::Popped("LPOP"));
        assert_eq!(decide(Mode::Following, waits, false, false, Reads::Any), Verdict::Refuse);
        assert_eq!(decide(Mode::Following, Class::Read, false, false, Reads::Any), Verdict::Read);
        for class in [Class::Script, Class::ScriptExists, Class::Once] {
            assert_eq!(decide(Mode::Following, class, false, false, Reads::Any), Verdict::Pass, "{class:?}");
        }
        assert_eq!(decide(Mode::Following, Class::Exec, false, false, Reads::Any), Verdict::Run);
        assert_eq!(decide(Mode::Cut, SET, false, false, Reads::Any), Verdict::Skip);
    }

    #[test]
    fn what_redis_lets_clients_send_to_a_replica_is_executed_for_the_link_only() {
        let publish = Class::Write(Rule::Verbatim);
        for mode in [Mode::Following, Mode::Leading, Mode::Joining, Mode::Syncing] {
            assert!(is_for_link_only(mode, publish, Checks::default()), "{mode:?}");
            let refused = Checks { is_refused_on_replicas: true, ..Checks::default() };
            assert!(!is_for_link_only(mode, SET, refused), "{mode:?}: Redis sees to it");
        }
        assert!(!is_for_link_only(Mode::Starting, publish, Checks::default()), "there is no group yet");
    }

    /// What stands behind it in a pipeline is executed one by one where it is refused.
    #[test]
    fn multi_is_taken_everywhere() {
        let all =
            [Mode::Leader, Mode::Undecided, Mode::Following, Mode::Leading, Mode::Joining, Mode::Syncing, Mode::Out];
        for mode in all {
            assert_eq!(decide(mode, Class::Multi, false, false, Reads::Any), Verdict::Run, "{mode:?}");
        }
        assert_eq!(decide(Mode::Cut, Class::Multi, false, false, Reads::Any), Verdict::Multi, "or its client goes");
    }

    #[test]
    fn only_a_server_that_leads_is_paused() {
        for (mode, wanted) in [
            (Mode::Leader, Verdict::Pause),
            (Mode::Undecided, Verdict::Pause),
            (Mode::Joining, Verdict::Refuse),
            (Mode::Syncing, Verdict::Refuse),
            (Mode::Following, Verdict::Refuse),
            (Mode::Leading, Verdict::Refuse),
        ] {
            assert_eq!(decide(mode, Class::Pause, false, false, Reads::Any), wanted, "{mode:?}");
        }
    }

    #[test]
    fn nobody_listens_to_what_another_server_sends_undecided() {
        let listen = |mode| decide(mode, Class::Listen, false, false, Reads::Any);
        assert_eq!([Mode::Syncing, Mode::Cut].map(listen), [Verdict::Refuse; 2]);
        let others = [Mode::Starting, Mode::Joining, Mode::Following, Mode::Leading, Mode::Leader, Mode::Undecided];
        assert_eq!(others.map(listen), [Verdict::Run; 6]);
    }

    #[test]
    fn followers_are_read_as_the_operator_wants() {
        let read = |reads| decide(Mode::Following, Class::Read, false, false, reads);
        assert_eq!(read(Reads::Leader), Verdict::Refuse);
        assert_eq!(read(Reads::Stale), Verdict::Run);
        assert_eq!(decide(Mode::Joining, Class::Read, false, false, Reads::Stale), Verdict::Refuse);
    }

    #[test]
    fn late_commands_are_decided_before_they_are_answered() {
        assert_eq!(decide(Mode::Leader, Class::Read, false, true, Reads::Any), Verdict::Confirm);
        assert_eq!(decide(Mode::Leader, Class::Exec, false, true, Reads::Any), Verdict::Confirm);
        assert_eq!(decide(Mode::Leader, Class::Script, false, true, Reads::Any), Verdict::Write);
    }
}
