// SPDX-License-Identifier: Apache-2.0
//! What this process is to the group, and what follows from that: without Redis, whose part is done by
//! [`Act`]s.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use fide_client::now_ns;
use fide_group::{Error, Refused, Standing};

use super::{
    answers::{Answers, Kept},
    caught_up,
    compared::Compare,
    dump::Dumps,
    feed::{Fed, Feed},
    member::{Decided, Member},
    read::Reads,
    taking::Taking,
};
use crate::{
    remark::Remark,
    suspended,
    unit::{Assembly, Unit},
};

/// Longest time that the event loop waits for the group at the end of a turn. After that its clients are
/// disconnected, as what they wrote may or may not be decided, and the loop goes on without clients' data.
const STALL_MAX: Duration = Duration::from_secs(1);
/// Between two signs of life for this process' own server.
const SIGN_OF_LIFE: Duration = Duration::from_secs(1);
/// From so many commands in a unit on, the note that it is decided waits for the next unit: under load that
/// comes soon, and the others are woken once for both.
const BUSY: u32 = 8;
/// Longest time between two marks for servers that replicate from this one: they leave at one.
const MARK_EVERY: Duration = Duration::from_millis(100);
/// One wait for the group within a stall.
const STEP: Duration = Duration::from_millis(1);
/// Bytes of decided units that wait for this process' own server, after which no further decision is taken:
/// the group slows down to what its slowest member applies.
pub(super) const FEED_MAX: usize = 16 << 20;

/// What this process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// The server loads its data, or the loop has not begun.
    Starting,
    /// It is no member, or not ready as one.
    Joining,
    /// Its server replicates from another one, to get the state.
    Syncing,
    /// Its server has the state of a position, and takes nothing more from the other server.
    Cut,
    Following,
    /// It is to lead, once its server has applied all that was decided.
    Leading,
    Leader,
    /// It leads, and something that clients wrote is not decided yet. No data is shown meanwhile.
    Undecided,
    /// It has left the group.
    Out,
}

impl Mode {
    /// It executes commands before they are decided.
    fn leads(self) -> bool {
        matches!(self, Self::Leader | Self::Undecided)
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Joining => "joining",
            Self::Syncing | Self::Cut => "syncing",
            Self::Following => "following",
            Self::Leading => "taking_over",
            Self::Leader => "leader",
            Self::Undecided => "undecided",
            Self::Out => "out",
        }
    }
}

/// Something that Redis has to do. Done outside of this module's state, as Redis calls back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Act {
    /// Closes the connections of clients in a transaction.
    DisconnectTransactions,
    /// Closes all clients' connections, and drops the replies that were not written.
    DisconnectClients,
    /// The server leads.
    BecomeMaster,
    /// The server replicates from this module.
    FollowFeed,
    /// What the link brings may fail: the data of this server is the group's from now on, and may be the only copy.
    TolerateErrors,
    /// The server has no data, and follows nobody.
    Empty,
    /// The server replicates from another one.
    SyncFrom {
        address: String,
        port: u16,
    },
    /// Tells servers that replicate from this one that everything before is decided up to this position.
    Mark(u64, Option<Answers>),
    /// Calls back when the feed's connection can be written.
    FeedWritable,
    /// Tells subscribers who leads.
    Announce(String),
    Say(String),
    /// This process cannot go on.
    End(String),
}

/// Counters and moments, for people.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) units: u64,
    pub(super) unit_bytes: u64,
    pub(super) commit_ns: Vec<u64>,
    pub(super) failovers: u64,
    pub(super) death_ns: u64,
    pub(super) leads_ns: u64,
    pub(super) levelled_ns: u64,
    pub(super) promoted_ns: u64,
    pub(super) first_write_ns: u64,
    pub(super) reads_waited: u64,
    /// Reads that were answered while something was under way, as nothing of that writes their keys.
    pub(super) reads_by_key: u64,
    pub(super) disconnects: u64,
    /// How often this server has handed over.
    pub(super) handed_over: u64,
}

impl Seen {
    /// Times of commits that are kept for the percentiles.
    const COMMITS_MAX: usize = 4096;

    fn commit(&mut self, ns: u64) {
        let at = usize::try_from(self.units).unwrap_or(0) % Self::COMMITS_MAX;
        match self.commit_ns.get_mut(at) {
            Some(place) => *place = ns,
            None => self.commit_ns.push(ns),
        }
    }
}

pub(super) struct State {
    pub(super) member: Box<dyn Member>,
    pub(super) feed: Feed,
    pub(super) mode: Mode,
    /// Of the units that this process proposes: another one each time its server's data was replaced.
    session: u64,
    /// The last unit of this session that was sealed, and decided.
    sealed: u64,
    decided: u64,
    /// Fragments that the group has not taken yet.
    fragments: VecDeque<Vec<u8>>,
    assembly: Assembly,
    /// Answers to numbered requests.
    pub(super) kept: Kept,
    pub(super) dumps: Dumps,
    pub(super) compare: Compare,
    /// What this program speaks.
    pub(super) version: u8,
    /// Servers that are refused, as it was last said.
    refuses: Option<String>,
    /// The server has been given everything up to this position, and has applied it up to that one.
    pub(super) fed: u64,
    pub(super) applied: u64,
    /// The server that this one replicates from while it joins.
    pub(super) source: Option<(String, u16)>,
    pub(super) reads: Reads,
    /// Servers that replicate from this one.
    pub(super) replicas: u32,
    mark_wanted: bool,
    marked: Instant,
    /// This leader has decided a unit. The first one is empty: it ends what its predecessor left open.
    has_begun: bool,
    /// A command could not be decided before it was answered: the clients are to be disconnected.
    is_open: bool,
    /// The member that is to lead after this turn.
    pub(super) successor: Option<u16>,
    /// The view in which this leader began to hand over. It executes nothing before the next one.
    pub(super) hands_over_in: Option<u32>,
    /// When the feed's server was last shown that its master lives.
    sign_of_life: Instant,
    pub(super) taking: Taking,
    /// The others do not know yet that the last unit is decided.
    is_untold: bool,
    /// The name of the group.
    pub(super) name: String,
    /// The leader that subscribers know of.
    announced: Option<u16>,
    /// This server's port.
    pub(super) port: u16,
    pub(super) seen: Seen,
    pub(super) acts: Vec<Act>,
}

/// How a unit went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commit {
    Decided,
    /// Nobody knows yet.
    Open,
}

impl State {
    pub(super) fn new(member: Box<dyn Member>, feed: Feed, name: &str, version: u8) -> Self {
        Self {
            member,
            feed,
            mode: Mode::Starting,
            session: new_session(),
            sealed: 0,
            decided: 0,
            fragments: VecDeque::new(),
            assembly: Assembly::default(),
            kept: Kept::default(),
            dumps: Dumps::default(),
            compare: Compare::default(),
            version,
            refuses: None,
            fed: 0,
            applied: 0,
            source: None,
            reads: Reads::default(),
            replicas: 0,
            mark_wanted: false,
            marked: Instant::now(),
            has_begun: false,
            is_open: false,
            successor: None,
            hands_over_in: None,
            sign_of_life: Instant::now(),
            taking: Taking::default(),
            is_untold: false,
            name: name.to_owned(),
            announced: None,
            port: 0,
            seen: Seen::default(),
            acts: Vec::new(),
        }
    }

    /// Whether the server has applied everything that it was given.
    pub(super) fn has_applied_all(&self) -> bool {
        self.applied == self.fed
    }

    pub(super) fn has_acts(&self) -> bool {
        !self.acts.is_empty()
    }

    /// What Redis has to do.
    pub(super) fn take_acts(&mut self) -> Vec<Act> {
        std::mem::take(&mut self.acts)
    }

    pub(super) fn act(&mut self, act: Act) {
        self.acts.push(act);
    }

    pub(super) fn say(&mut self, message: String) {
        self.act(Act::Say(message));
    }

    /// Whether everything that was sealed here is decided.
    pub(super) fn has_decided_all(&self) -> bool {
        self.decided == self.sealed && self.fragments.is_empty()
    }

    /// The loop has begun, and the server has loaded what it had.
    pub(super) fn begin(&mut self, port: u16) {
        self.port = port;
        self.mode = Mode::Joining;
    }

    /// Takes what has come, and does what follows.
    pub(super) fn turn(&mut self) {
        if matches!(self.mode, Mode::Starting | Mode::Out) || self.feed.len() > FEED_MAX {
            return self.flush();
        }
        self.is_untold = false;
        match self.member.wait(Duration::ZERO) {
            Ok(()) => {}
            Err(why) => return self.end(&why),
        }
        self.take_decisions();
        if self.sign_of_life.elapsed() > SIGN_OF_LIFE {
            self.sign_of_life = Instant::now();
            self.name_refused();
            if self.feed.is_streaming() {
                self.feed.push_sign_of_life();
            }
        }
        self.flush();
        self.follow_standing();
        self.announce();
    }

    /// Says which servers are refused as they speak other versions, once of each.
    fn name_refused(&mut self) {
        let refuses = self.member.refuses();
        if refuses != self.refuses
            && let Some(why) = &refuses
        {
            self.say(why.clone());
        }
        self.refuses = refuses;
    }

    /// Takes what has come and answers it, without applying anything. Nothing else follows from it before the next
    /// turn.
    pub(super) fn listen(&mut self) {
        if self.mode == Mode::Following
            && let Err(why) = self.member.wait(Duration::ZERO)
        {
            self.end(&why);
        }
    }

    /// Where a host's server is: all have the same port.
    pub(super) fn place(&self, host: u16) -> Option<(String, String)> {
        Some((self.member.address(host)?.to_string(), self.port.to_string()))
    }

    /// The name of the leader's host, and where its server is.
    pub(super) fn leader(&self) -> Option<(String, String)> {
        let host = self.member.leader()?;
        let (ip, port) = self.place(host)?;
        Some((self.member.name(host)?, format!("{ip}:{port}")))
    }

    /// Announces another leader, once it leads.
    fn announce(&mut self) {
        let is_ready = self.mode == Mode::Leader || !self.member.leads();
        let Some(leader) = self.member.leader().filter(|leader| is_ready && self.announced != Some(*leader)) else {
            return;
        };
        if let Some(before) = self.announced.replace(leader) {
            let places = self.place(before).zip(self.place(leader));
            self.acts.extend(places.map(|((old_ip, old_port), (ip, port))| {
                Act::Announce(format!("{} {old_ip} {old_port} {ip} {port}", self.name))
            }));
        }
    }

    pub(super) fn end(&mut self, why: &Error) {
        self.mode = Mode::Out;
        self.acts.push(Act::End(why.to_string()));
    }

    fn take_decisions(&mut self) {
        // Each comparison is of the data at its position, and no later one.
        while self.take_some_decisions() {}
    }

    /// Whether there may be more at once.
    fn take_some_decisions(&mut self) -> bool {
        if self.member.is_recovering() && !self.dumps.has_recovered {
            self.begin_recovery();
        }
        let is_replayed = self.member.is_recovering();
        let Self { member, assembly, session, decided, feed, kept, replicas, reads, applied, .. } = self;
        let (mut is_fed, mut wrong, mut remarks) = (false, None, Vec::new());
        let position = member.poll(FEED_MAX, &mut |entry| {
            let value = match entry {
                Decided::Value(value) => value,
                Decided::Position(position, value) => {
                    reads.deliver(position, value, *applied);
                    return true;
                }
                Decided::View => return true,
                Decided::Gap => {
                    assembly.gap();
                    return true;
                }
            };
            match assembly.push(value) {
                Ok(Some(unit)) => {
                    if unit.session == *session {
                        *decided = unit.number;
                    } else {
                        feed.push(&unit.content);
                        is_fed = true;
                        if !kept.keep_decided(&unit.notes, *replicas > 0) {
                            wrong = Some("notes that cannot be read".to_owned());
                        }
                    }
                    match Remark::read_all(&unit.remarks) {
                        Some(of_unit) => remarks.extend(of_unit),
                        None => wrong = Some("remarks that cannot be read".to_owned()),
                    }
                    remarks.is_empty()
                }
                Ok(None) => true,
                Err(why) => {
                    wrong = Some(why.to_string());
                    true
                }
            }
        });
        if let Some(why) = wrong {
            self.mode = Mode::Out;
            self.acts.push(Act::End(format!("the log has {why}")));
            return false;
        }
        if position == self.fed {
            return false;
        }
        let has_remarks = !remarks.is_empty();
        // What was said before all servers ended is about those.
        if !is_replayed {
            self.compare.note_said(remarks, position, self.kept.once.digest());
        }
        let is_open = self.assembly.is_open();
        if is_fed && matches!(self.mode, Mode::Leader | Mode::Undecided) {
            // Cannot be: only the leader proposes, and it took over with all that was decided.
            self.mode = Mode::Out;
            self.acts.push(Act::End("another server has written while this one led".to_owned()));
        } else if matches!(self.mode, Mode::Leader | Mode::Undecided) {
            // It executed them before they were decided.
            self.applied = position;
        } else if is_open {
            // The note comes with the rest of the unit: what has come so far is nothing to go on from.
        } else if is_fed || self.fed != self.applied {
            self.push_position(position);
        } else {
            self.applied = position;
        }
        self.fed = position;
        has_remarks && self.mode != Mode::Out
    }

    /// The note that everything up to a position is applied, for this process' own server and those that
    /// replicate from it.
    pub(super) fn push_position(&mut self, position: u64) {
        let answers = self.kept.for_replicas(self.replicas > 0);
        self.feed.push_position(position, answers);
        self.taking.note_pushed(position);
    }

    /// The rest of a unit whose leader died never comes.
    fn drop_open_unit(&mut self) {
        if self.assembly.is_open() {
            self.assembly = Assembly::default();
            self.push_position(self.fed);
        }
    }

    fn flush(&mut self) {
        match self.feed.flush() {
            Fed::Fine if self.feed.is_stuck() => self.acts.push(Act::FeedWritable),
            Fed::Fine => {}
            Fed::Lost(why) => self.feed_lost(&why),
        }
    }

    /// The feed's connection has something to read.
    pub(super) fn feed_readable(&mut self) {
        if let Fed::Lost(why) = self.feed.receive() {
            self.feed_lost(&why);
        }
    }

    /// What the server has applied is not known any more.
    fn feed_lost(&mut self, why: &str) {
        self.feed.close();
        if matches!(self.mode, Mode::Following | Mode::Leading) {
            self.mode = Mode::Out;
            self.acts.push(Act::End(format!(
                "the replication link between this module and its server broke ({why}); start the server again, it takes over the group's data"
            )));
        }
    }

    /// The server has applied everything up to this position.
    pub(super) fn note_applied(&mut self, position: u64) {
        self.applied = self.applied.max(position);
        self.follow_standing();
    }

    pub(super) fn view_number(&self) -> u32 {
        self.member.view_number()
    }

    /// What this process is to the group may have changed.
    pub(super) fn follow_standing(&mut self) {
        self.note_handed_over();
        match self.member.standing() {
            Standing::Member if self.member.leads() => self.lead(),
            Standing::Member => self.follow(),
            Standing::Joining | Standing::Excluded => self.join(),
            Standing::Leaving => {}
            Standing::Removed | Standing::Left | Standing::Lacking => {
                if self.mode != Mode::Out {
                    self.step_down();
                    self.mode = Mode::Out;
                    self.say("this server is out of its group".to_owned());
                }
            }
        }
        if self.member.wants_state() && matches!(self.mode, Mode::Leader | Mode::Following) {
            self.give_state();
        }
    }

    /// A host asks for the state: it is to replicate from this server.
    fn give_state(&mut self) {
        let Some(address) = self.member.address(self.member.host()) else { return };
        self.member.give_state(format!("{address}:{}", self.port).into_bytes());
    }

    fn lead(&mut self) {
        match self.mode {
            Mode::Leader | Mode::Undecided | Mode::Out | Mode::Starting | Mode::Cut => return,
            Mode::Leading => {}
            _ => {
                if self.mode == Mode::Syncing {
                    self.founded_meanwhile();
                }
                self.seen.leads_ns = now_ns();
                self.seen.death_ns = if self.was_handed_over(self.announced) { 0 } else { self.member.death_ns() };
                self.mode = Mode::Leading;
                self.acts.push(Act::TolerateErrors);
            }
        }
        if !self.member.may_answer() {
            return;
        }
        self.drop_open_unit();
        if self.seen.levelled_ns < self.seen.leads_ns {
            self.seen.levelled_ns = now_ns();
        }
        if self.applied == self.fed && self.fed == self.member.position() {
            self.acts.push(Act::BecomeMaster);
        }
    }

    /// This server began to take over the data of one that was a member a moment earlier.
    fn founded_meanwhile(&mut self) {
        self.source = None;
        self.kept.clear();
        self.acts.push(Act::Empty);
    }

    /// The server is a master now.
    pub(super) fn became_master(&mut self) {
        if self.mode != Mode::Leading {
            return;
        }
        self.feed.close();
        self.assembly = Assembly::default();
        self.mode = Mode::Leader;
        self.seen.promoted_ns = now_ns();
        self.seen.first_write_ns = 0;
        self.seen.failovers += u64::from(self.seen.death_ns > 0);
        self.mark_wanted = self.replicas > 0;
        self.has_begun = false;
        self.compare.begin_term();
        let position = self.fed;
        self.say(format!("this server leads its group from position {position} on"));
    }

    fn follow(&mut self) {
        match self.mode {
            Mode::Joining if suspended::is_any() => {}
            Mode::Joining => {
                self.mode = Mode::Following;
                self.source = None;
                if self.feed.connection().is_none() {
                    self.acts.push(Act::FollowFeed);
                }
                self.say(format!("this server follows in its group, from position {} on", self.fed));
            }
            Mode::Syncing => {
                // The group was founded with this host meanwhile: its data begins empty.
                self.founded_meanwhile();
                self.acts.push(Act::FollowFeed);
                self.mode = Mode::Following;
            }
            Mode::Leader | Mode::Undecided => self.retire(),
            _ => {}
        }
    }

    fn join(&mut self) {
        if matches!(self.mode, Mode::Leader | Mode::Undecided | Mode::Leading | Mode::Following) {
            if self.member.recovery().is_some() && self.mode.leads() && !self.is_clean() {
                // What it executed and nobody decided is in its data, and not in the log that its disk has.
                self.mode = Mode::Out;
                self.acts.push(Act::DisconnectClients);
                self.acts.push(Act::End(
                    "this server's host was excluded while writes were under way that its data has already; start it again, it goes \
                     on from its disk, or takes over the group's data"
                        .to_owned(),
                ));
                return;
            }
            self.step_down();
            self.mode = Mode::Joining;
            self.say("this server's host was excluded from the group; it asks to be let in again".to_owned());
        }
        if !matches!(self.mode, Mode::Joining | Mode::Syncing) || suspended::is_any() {
            return;
        }
        let Some((_, state)) = self.member.offered_state() else {
            caught_up::note_no_offer();
            return;
        };
        let Some((address, port)) = std::str::from_utf8(&state).ok().and_then(|state| state.rsplit_once(':')) else {
            return;
        };
        let Ok(port) = port.parse() else { return };
        let source = (address.to_owned(), port);
        if self.source.as_ref() == Some(&source) && !caught_up::is_left_behind(self.mode == Mode::Joining) {
            return;
        }
        self.source = Some(source);
        self.mode = Mode::Syncing;
        caught_up::begin();
        self.member.state_dropped();
        self.kept.begin_taking();
        self.compare.drop_own();
        self.feed.close();
        // A dump that is being written is of the former data.
        (self.dumps.dump, self.dumps.summed) = (None, None);
        self.acts.push(Act::SyncFrom { address: address.to_owned(), port });
    }

    /// What was in the works here is left to the others.
    pub(super) fn step_down(&mut self) {
        if matches!(self.mode, Mode::Leader | Mode::Undecided) {
            self.acts.push(Act::DisconnectClients);
            self.seen.disconnects += 1;
        }
        self.begin_session();
        (self.successor, self.hands_over_in) = (None, None);
    }

    /// The units that this process proposed are none of those that it proposes from now on.
    pub(super) fn begin_session(&mut self) {
        self.session = new_session();
        (self.sealed, self.decided) = (0, 0);
        self.fragments.clear();
        self.kept.drop_turn();
        self.source = None;
        self.compare.begin_term();
    }

    /// The server that this one replicates from says that everything before is decided, up to this position.
    /// Whether this one has the state now.
    pub(super) fn note_mark(&mut self, position: u64, answers: Option<Answers>, may_leave: bool) -> bool {
        if !self.takes_over() {
            return false;
        }
        self.kept.take(answers);
        may_leave && self.leave_stream(position)
    }

    /// Whether another server's data is being taken over.
    pub(super) fn takes_over(&self) -> bool {
        self.mode == Mode::Syncing
    }

    /// This server's data is that of this position, at which it leaves the other server's stream if the group lets it.
    pub(super) fn leave_stream(&mut self, position: u64) -> bool {
        if !self.takes_over() || !self.kept.is_taken() || !self.member.installed_at(position) {
            return false;
        }
        self.kept.install();
        self.mode = Mode::Cut;
        (self.fed, self.applied) = (position, position);
        self.assembly = Assembly::default();
        true
    }

    /// The server has the state and takes nothing more from the other one: it is fed by this module.
    pub(super) fn cut(&mut self) {
        if self.mode != Mode::Cut {
            return;
        }
        self.mode = Mode::Joining;
        self.acts.push(Act::FollowFeed);
        let position = self.fed;
        self.say(format!("this server has the group's data as of position {position}"));
    }

    /// A server has begun or ended to replicate from this one.
    pub(super) fn replica_changed(&mut self, is_online: bool) {
        self.replicas = if is_online { self.replicas + 1 } else { self.replicas.saturating_sub(1) };
        if !is_online {
            return;
        }
        self.kept.want_all();
        match self.mode {
            // The note comes with the rest of the unit.
            Mode::Following if self.assembly.is_open() => {}
            Mode::Following => self.push_position(self.fed),
            _ => self.mark_wanted = true,
        }
    }

    /// Seals what this turn has written as a unit, and waits until it is decided.
    pub(super) fn commit(&mut self, content: Option<(Vec<u8>, u32)>, remarks: Vec<u8>) -> Commit {
        let begun_ns = now_ns();
        let mut commands = 0;
        if let Some((content, count)) = content {
            commands = count;
            self.sealed += 1;
            self.seen.unit_bytes += content.len() as u64;
            let notes = self.kept.take_turn(self.replicas > 0);
            let unit = Unit { session: self.session, number: self.sealed, notes, remarks, content };
            self.fragments.extend(unit.fragments(self.member.entry_max()));
        }
        let result = self.wait_until(|state| state.decided == state.sealed);
        if result == Commit::Decided {
            let now = now_ns();
            self.seen.units += 1;
            self.seen.commit(now - begun_ns);
            if self.seen.first_write_ns == 0 {
                self.seen.first_write_ns = now;
            }
            self.is_untold = self.member.has_others();
            if commands < BUSY {
                self.tell();
            }
        }
        result
    }

    /// The others learn that the last unit is decided, and go on with their reads.
    pub(super) fn tell(&mut self) {
        if std::mem::take(&mut self.is_untold)
            && let Err(why) = self.member.wait(Duration::ZERO)
        {
            self.end(&why);
        }
    }

    /// Waits until this server may show what its clients have read.
    pub(super) fn confirm(&mut self) -> Commit {
        if self.member.may_answer() { Commit::Decided } else { self.wait_until(|state| state.member.may_answer()) }
    }

    pub(super) fn wait_until(&mut self, is_done: impl Fn(&Self) -> bool) -> Commit {
        let mut until = Instant::now() + STALL_MAX;
        let mut fed = self.fed;
        loop {
            self.propose();
            // A large unit takes its time: the group does not stall while it decides more of it.
            if self.fed != fed {
                fed = self.fed;
                until = Instant::now() + STALL_MAX;
            }
            if let Err(why) = self.member.wait(STEP) {
                self.end(&why);
                return Commit::Open;
            }
            self.take_decisions();
            if is_done(self) {
                return Commit::Decided;
            }
            let leads = self.member.standing() == Standing::Member && self.member.leads();
            if !leads || self.mode == Mode::Out || Instant::now() > until {
                return Commit::Open;
            }
        }
    }

    fn propose(&mut self) {
        while let Some(fragment) = self.fragments.front() {
            match self.member.propose(fragment) {
                Ok(()) => {
                    self.fragments.pop_front();
                }
                // Later: the window is full, the members change, the lease is out, or this member is.
                Err(Refused::Full | Refused::Changing | Refused::Fenced | Refused::NotLeader { .. }) => return,
                Err(why) => {
                    self.mode = Mode::Out;
                    self.acts.push(Act::End(format!("the group refuses a fragment: {why}")));
                    return;
                }
            }
        }
    }

    /// A command could not be decided before it was answered.
    pub(super) fn note_open(&mut self) {
        self.mode = Mode::Undecided;
        self.is_open = true;
    }

    pub(super) fn has_open(&self) -> bool {
        self.is_open
    }

    /// Whether the first unit of this leader is due.
    pub(super) fn begins(&mut self) -> bool {
        self.mode == Mode::Leader && !std::mem::replace(&mut self.has_begun, true)
    }

    /// A commit is open: clients are disconnected, and nothing is shown before it is decided.
    pub(super) fn leave_open(&mut self) {
        let is_open = std::mem::take(&mut self.is_open);
        if self.mode == Mode::Leader || is_open {
            self.mode = Mode::Undecided;
            self.acts.push(Act::DisconnectClients);
            self.seen.disconnects += 1;
            let why = self.member.waits_for().unwrap_or_else(|| "another member does not answer".to_owned());
            self.say(format!("clients were disconnected, as the group has not agreed for {STALL_MAX:?}: {why}"));
        }
        self.follow_standing();
    }

    /// While something is open: whether it is decided by now.
    pub(super) fn go_on(&mut self) {
        if self.mode != Mode::Undecided {
            return;
        }
        self.propose();
        if self.has_decided_all() && self.hands_over_in.is_none() && self.member.may_answer() {
            self.mode = Mode::Leader;
            self.is_open = false;
            self.say("the group agrees again".to_owned());
        }
    }

    /// The note that servers which replicate from this one wait for, if there are any.
    pub(super) fn mark(&mut self, has_committed: bool) {
        let is_due = || has_committed || self.mark_wanted || self.marked.elapsed() > MARK_EVERY;
        if self.replicas > 0 && self.mode == Mode::Leader && is_due() {
            (self.mark_wanted, self.marked) = (false, Instant::now());
            let answers = self.kept.for_replicas(true);
            self.acts.push(Act::Mark(self.fed, answers));
        }
    }
}

fn new_session() -> u64 {
    let mut bytes = [0; 8];
    // Cannot fail for so few bytes on a kernel that has started.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    u64::from_ne_bytes(bytes) | 1
}
