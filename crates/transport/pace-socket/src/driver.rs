// SPDX-License-Identifier: Apache-2.0
//! The thread of an endpoint: reads its socket, keeps its times, and wakes those who wait.

use std::{
    net::IpAddr,
    os::fd::{AsFd, OwnedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
};

use fide_pace::{
    endpoint::{self, Datagram},
    step::Step,
};
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    io::{read, write},
};

use crate::{
    now_ns,
    socket::{Received, Socket},
    state::State,
    waiting::Locked,
};

/// Batches that are received in one turn, before something is sent again.
const RECEIVES_MAX: usize = 8;
/// Datagrams that are sent in one turn; the next turn follows at once.
const SENDS_MAX: usize = 1024;
/// While messages are sent, the thread looks so often by itself: no timer of a message that has just left is shorter, so that
/// none of them has to wake it.
const LOOKS_NS: u64 = 10_000_000;
/// Nobody sleeps longer at a time: an hour is as good as for ever.
pub(crate) const WAIT_MAX_NS: u64 = 3_600_000_000_000;
/// While the socket's buffer is full times are kept as well as this.
const FULL_NS: u64 = 50_000_000;

/// An endpoint's socket, its state, and its thread's bell.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) socket: Socket,
    state: Mutex<State>,
    /// Of whoever looks at the socket. The thread takes it before the state; others that have the state try it at most.
    received: Mutex<Received>,
    bell: OwnedFd,
    #[cfg(test)]
    locks: std::sync::atomic::AtomicU64,
}

/// What is left to be sent now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    /// For the next turn.
    More,
    /// The socket's buffer is full.
    Full,
}

impl Shared {
    pub(crate) fn new(socket: Socket, endpoint: endpoint::Endpoint) -> std::io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self {
            socket,
            state: Mutex::new(State::new(endpoint)),
            received: Mutex::new(Received::new()),
            bell,
            #[cfg(test)]
            locks: std::sync::atomic::AtomicU64::new(0),
        }))
    }

    /// How often it was locked.
    #[cfg(test)]
    pub(crate) fn locks(&self) -> u64 {
        self.locks.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn lock(&self) -> Locked<'_> {
        Locked::new(self, self.state())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        #[cfg(test)]
        self.locks.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        // What a thread that panicked left is whole: each call of the endpoint ends what it began.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what may leave now, and sees to it that the thread wakes when the next is due.
    pub(crate) fn flush(&self, state: &mut State) {
        let mut now_ns = now_ns();
        if state.loan.sends(now_ns) && state.lends() && self.look(state) {
            now_ns = crate::now_ns();
        }
        self.leaves(state, now_ns);
    }

    fn leaves(&self, state: &mut State, now_ns: u64) {
        let left = self.transmit(state, now_ns);
        state.note_events();
        state.wake_touched(now_ns);
        let is_for_thread = match left {
            Left::Nothing => state.endpoint.due_ns() < state.planned_ns,
            Left::More => true,
            Left::Full => !state.awaits_room,
        };
        if is_for_thread {
            self.ring();
        }
    }

    pub(crate) fn ring(&self) {
        // A bell that rings already is full.
        let _ = write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Sends a batch, and notes what that took. False: the socket's buffer is full.
    fn send(&self, state: &mut State, began_ns: &mut u64) -> bool {
        let of = state.batch.of();
        let is_sent = self.socket.send(&mut state.batch);
        if let Some((id, count)) = of.filter(|_| is_sent) {
            let ended_ns = now_ns();
            let took_ns = ended_ns.saturating_sub(std::mem::replace(began_ns, ended_ns));
            state.endpoint.note_step(id, ended_ns, Step::Transmit, took_ns / count);
        }
        is_sent
    }

    /// Sends a datagram that is to leave at a time, and notes what that took. False: the socket's buffer is full.
    fn send_at(
        &self,
        state: &mut State,
        datagram: &Datagram,
        from: Option<IpAddr>,
        departs_ns: u64,
        began_ns: &mut u64,
    ) -> bool {
        let is_sent = self.socket.send_at(&state.one[..datagram.len], datagram.to, from, departs_ns);
        if let Some(id) = datagram.connection.filter(|_| is_sent) {
            let ended_ns = now_ns();
            let took_ns = ended_ns.saturating_sub(std::mem::replace(began_ns, ended_ns));
            state.endpoint.note_step(id, ended_ns, Step::Transmit, took_ns);
        }
        is_sent
    }

    /// Sends what may leave now.
    fn transmit(&self, state: &mut State, now_ns: u64) -> Left {
        let segments_max = self.socket.segments_max();
        let mut began_ns = now_ns;
        if !self.send(state, &mut began_ns) {
            return Left::Full;
        }
        for _ in 0..SENDS_MAX {
            let Some(datagram) = state.endpoint.transmit(now_ns, &mut state.one) else {
                if !self.send(state, &mut began_ns) {
                    return Left::Full;
                }
                state.has_answered();
                return Left::Nothing;
            };
            if let Some(id) = datagram.connection {
                state.touch(id);
            }
            let from = state.leaves_from(&datagram);
            if let Some(departs_ns) = datagram.departs_ns {
                if !self.send(state, &mut began_ns) || !self.send_at(state, &datagram, from, departs_ns, &mut began_ns)
                {
                    // This one is lost, as in any full queue.
                    return Left::Full;
                }
                continue;
            }
            if !state.batch.add(&datagram, from, &state.one, segments_max) {
                if !self.send(state, &mut began_ns) {
                    // This one is lost, as in any full queue.
                    return Left::Full;
                }
                state.batch.add(&datagram, from, &state.one, segments_max);
            }
        }
        if self.send(state, &mut began_ns) { Left::More } else { Left::Full }
    }

    /// Takes in what has come. False: nothing, or the thread does so at this moment.
    fn look(&self, state: &mut State) -> bool {
        let mut received = match self.received.try_lock() {
            Ok(received) => received,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        received.unwatched_ns = [received.watched_ns, now_ns()];
        let has_come = self.socket.receive(&mut received);
        if has_come {
            self.take(state, &mut received);
        }
        if received.is_full() && state.loan.ends(now_ns()) {
            // That is too much for who sends.
            self.ring();
        }
        has_come
    }

    /// The same, if the thread leaves it to those who send, with what it calls for.
    pub(crate) fn looks_if_lent(&self, state: &mut State) -> bool {
        let has_come = state.loan.until_ns() > now_ns() && self.look(state);
        if has_come {
            self.leaves(state, now_ns());
        }
        has_come
    }

    /// Sends what is due, and says whether something was.
    pub(crate) fn sends_what_is_due(&self, state: &mut State) -> bool {
        let now_ns = now_ns();
        let is_due = state.endpoint.due_ns() <= now_ns && !state.awaits_room;
        if is_due {
            self.leaves(state, now_ns);
        }
        is_due
    }

    /// Somebody waits for what may come, until a time or for good: the thread looks at the socket.
    pub(crate) fn waits(&self, state: &mut State, until_ns: Option<u64>) {
        if state.loan.waits(now_ns(), until_ns) {
            self.ring();
        }
    }

    /// `slept_ns`: the thread slept between these two times.
    fn receive(&self, slept_ns: [u64; 2]) {
        let mut received = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        received.unwatched_ns = slept_ns;
        for _ in 0..RECEIVES_MAX {
            if !self.socket.receive(&mut received) {
                return;
            }
            let mut state = self.lock();
            let now_ns = self.take(&mut state, &mut received);
            self.transmit(&mut state, now_ns);
            state.note_events();
            state.wake_touched(now_ns);
            drop(state);
            // What comes meanwhile is seen by the next look at the socket.
            if !received.is_full() {
                return;
            }
        }
    }

    /// Takes in what was received, and returns when.
    fn take(&self, state: &mut State, received: &mut Received) -> u64 {
        let now_ns = now_ns();
        let mut count = 0;
        let mut came_for = std::mem::take(&mut state.came_for);
        for came in received.datagrams(now_ns) {
            let id = state.endpoint.receive(now_ns, came.from, came.bytes, came.arrival, entropy);
            count += 1;
            match (id, came.to) {
                (Some(id), to) if came_for.last() != Some(&id) => {
                    came_for.push(id);
                    state.touch(id);
                    // The fate of one that is accepted now.
                    state.note_events();
                    to.into_iter().for_each(|here| state.came_to(id, here));
                }
                (None, Some(here)) => state.was_asked(came.from, here),
                _ => {}
            }
        }
        let ended_ns = crate::now_ns();
        if let [id] = came_for[..] {
            state.endpoint.note_step(id, ended_ns, Step::Receive, (ended_ns - now_ns) / count);
        }
        came_for.drain(..).for_each(|id| state.note_change(id));
        state.came_for = came_for;
        now_ns
    }

    /// The thread.
    pub(crate) fn run(&self) {
        // Times are kept to the microsecond where the kernel lets it.
        let _ = rustix::thread::set_current_timer_slack(Some(1.try_into().expect("not zero")));
        let mut slept_ns = [0; 2];
        loop {
            self.receive(slept_ns);
            let mut state = self.lock();
            let begun_ns = now_ns();
            state.endpoint.timeout(begun_ns);
            let left = self.transmit(&mut state, begun_ns);
            state.note_events();
            state.wake_touched(begun_ns);
            state.show(begun_ns);
            let is_in_use = begun_ns < state.loan.sent_ns() + LOOKS_NS;
            let looks_ns = if is_in_use { begun_ns + LOOKS_NS } else { u64::MAX };
            let lent_ns = Some(state.loan.until_ns()).filter(|until_ns| *until_ns > begun_ns && left == Left::Nothing);
            let due_ns = state.endpoint.due_ns().min(looks_ns).min(lent_ns.unwrap_or(u64::MAX));
            if state.is_ending && state.endpoint.connections() == 0 && left == Left::Nothing {
                return;
            }
            // Waiting for room, it keeps times no better.
            state.planned_ns = if left == Left::Full { begun_ns + FULL_NS } else { due_ns };
            state.awaits_room = left == Left::Full;
            drop(state);
            let from_ns = now_ns();
            self.sleep(due_ns, left, lent_ns.is_some());
            slept_ns = [from_ns, now_ns()];
        }
    }

    fn sleep(&self, due_ns: u64, left: Left, is_lent: bool) {
        let wanted = if left == Left::Full { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut fds = [
            PollFd::new(&self.bell, PollFlags::IN),
            PollFd::from_borrowed_fd(self.socket.descriptor().as_fd(), wanted),
        ];
        let wait_ns = match left {
            Left::Nothing => due_ns.saturating_sub(now_ns()).min(WAIT_MAX_NS),
            Left::More => 0,
            // What is due then is what finds no room, as a rule.
            Left::Full => FULL_NS,
        };
        let timeout = Timespec {
            tv_sec: i64::try_from(wait_ns / 1_000_000_000).unwrap_or(0),
            tv_nsec: i64::try_from(wait_ns % 1_000_000_000).unwrap_or(0),
        };
        let fds = if is_lent { &mut fds[..1] } else { &mut fds[..] };
        // A signal interrupts it at most.
        let _ = poll(fds, Some(&timeout));
        if fds[0].revents().contains(PollFlags::IN) {
            let _ = read(&self.bell, &mut [0; 8]);
        }
    }
}

/// 32 bytes that nobody can guess.
pub(crate) fn entropy() -> [u8; 32] {
    let mut bytes = [0; 32];
    let mut have = 0;
    while have < bytes.len() {
        let got = rustix::rand::getrandom(&mut bytes[have..], rustix::rand::GetRandomFlags::empty());
        have += got.expect("a kernel that has started gives random bytes");
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::{
        process::Command,
        task::{Context, Waker},
        thread,
        time::{Duration, Instant},
    };

    use crate::{Config, Endpoint, ServerKey, state::For};

    const LIMIT: Duration = Duration::from_secs(60);
    const INSIDE: &str = "FIDE_PACE_INSIDE";

    /// Nanoseconds that the threads of endpoints have computed.
    fn computed_ns() -> u64 {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten().map(|task| task.path());
        let of = |path: std::path::PathBuf| {
            let name = std::fs::read_to_string(path.join("comm")).ok().filter(|name| name.trim() == "fide-pace")?;
            let times = std::fs::read_to_string(path.join("schedstat")).ok().filter(|_| !name.is_empty())?;
            times.split(' ').next()?.parse::<u64>().ok()
        };
        tasks.filter_map(of).sum()
    }

    /// A message waits to leave that cannot arrive in time. The send of another connection drops it.
    #[test]
    fn message_that_is_dropped_wakes_who_waits_to_send() {
        let (config, key) = (Config::default(), ServerKey::Secret([7; 32]));
        let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), key.clone(), config).unwrap();
        let client = Endpoint::client().unwrap();
        let connect = |config| client.connect(server.local_address().unwrap(), &key.for_clients(), config).unwrap();
        let (here, other) = (connect(config), connect(Config { queue_max: 100, ..config }));
        // Afterwards nothing is due for half a second.
        thread::sleep(Duration::from_secs(1));
        // With the first one a packet leaves that says what an end says of itself each ten milliseconds, and with the next ones none.
        for _ in 0..5 {
            let sent = {
                let (mut state, now_ns) = (client.shared.lock(), crate::now_ns());
                state.endpoint.with(here.id, now_ns, |transport| transport.send(now_ns, b"too late", Some(1)))
            };
            assert!(sent.is_some_and(|sent| sent.is_ok()));
            let mut sends = std::pin::pin!(here.send_async(b"waits", |_| std::future::pending::<()>()));
            let _ = sends.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            other.try_send(b"looks", None).unwrap();
            assert!(client.shared.lock().waiting(here.id, For::Room).unwrap().is_empty());
        }
    }

    /// A server, its connection, a client and the client's connection, after the first exchanges.
    fn connected() -> (Endpoint, crate::Connection, Endpoint, crate::Connection) {
        connected_with(Config::default())
    }

    fn connected_with(config: Config) -> (Endpoint, crate::Connection, Endpoint, crate::Connection) {
        let key = ServerKey::Secret([7; 32]);
        let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), key.clone(), config).unwrap();
        let client = Endpoint::client().unwrap();
        let here = client.connect(server.local_address().unwrap(), &key.for_clients(), config).unwrap();
        let there = server.accept().unwrap();
        thread::sleep(Duration::from_millis(600));
        (server, there, client, here)
    }

    /// Lends the client's socket, lets something come, and looks until the look has found it before the thread did.
    fn looks_at(client: &Endpoint, come: impl Fn(), then: impl Fn(&mut crate::state::State)) {
        let until = Instant::now() + LIMIT;
        while Instant::now() < until {
            let mut state = client.shared.lock();
            (0..100).for_each(|_| _ = state.loan.sends(crate::now_ns()));
            state.loan.begins();
            client.shared.ring();
            drop(state);
            thread::sleep(Duration::from_micros(300));
            come();
            thread::sleep(Duration::from_micros(300));
            let mut state = client.shared.lock();
            if client.shared.looks_if_lent(&mut state) {
                return then(&mut state);
            }
        }
        panic!("the thread was first each time");
    }

    #[test]
    fn what_a_waiting_sender_reads_is_answered_at_once() {
        let (_server, there, client, _here) = connected();
        looks_at(
            &client,
            || there.try_send(b"asks for feedback", None).unwrap(),
            |state| assert!(state.endpoint.due_ns() > crate::now_ns(), "something is due that was not sent"),
        );
    }

    #[test]
    fn panic_of_who_looked_ends_no_loan() {
        let (_server, there, client, _here) = connected();
        let shared = std::sync::Arc::clone(&client.shared);
        let panics = thread::spawn(move || {
            let _received = shared.received.lock();
            panic!("meant: it holds what is received");
        });
        assert!(panics.join().is_err());
        looks_at(&client, || there.try_send(b"comes", None).unwrap(), |_| ());
    }

    #[test]
    fn socket_is_not_lent_while_somebody_waits_for_messages_or_polls() {
        let (_server, there, client, here) = connected();
        assert!(client.shared.lock().lends());
        assert!(here.try_recv().unwrap().is_none());
        assert!(!client.shared.lock().lends(), "who polls looks again");
        there.try_send(b"one", None).unwrap();
        while here.try_recv().unwrap().is_none() {
            thread::yield_now();
        }
        thread::scope(|threads| {
            threads.spawn(|| here.recv_timeout(LIMIT).unwrap());
            while client.shared.lock().waiting(here.id, For::Message).unwrap().is_empty() {
                thread::yield_now();
            }
            assert!(!client.shared.lock().lends());
            there.try_send(b"two", None).unwrap();
        });
        assert!(client.shared.lock().lends());
    }

    #[test]
    fn socket_is_not_lent_if_messages_could_not_be_sent_again_after_a_pause() {
        for (deadline_ns, lends) in [(10_000_000, false), (20_000_000, true)] {
            let (_server, _there, client, _here) = connected_with(Config { deadline_ns, ..Config::default() });
            assert_eq!(client.shared.lock().lends(), lends);
        }
    }

    /// A socket with room for two packets, on a link that takes an eighth of a second for each.
    fn sends_through_a_full_socket() {
        for words in ["ip link set lo up", "tc qdisc add dev lo root tbf rate 80kbit burst 2000 limit 1000000"] {
            let mut words = words.split(' ');
            let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
            assert!(status.success());
        }
        let config = Config { deadline_ns: 60_000_000_000, queue_max: 100, ..Config::default() };
        let key = ServerKey::Secret([7; 32]);
        let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), key.clone(), config).unwrap();
        let client = Endpoint::client().unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(client.shared.socket.descriptor(), 0).unwrap();
        let here = client.connect(server.local_address().unwrap(), &key.for_clients(), config).unwrap();
        let there = server.accept().unwrap();
        let (before_ns, since) = (computed_ns(), Instant::now());
        let mut was_full = false;
        for _ in 0..20 {
            here.try_send(&[0; 1000], None).unwrap();
        }
        let looks = thread::spawn(move || {
            for _ in 0..20 {
                let _ = there.recv_timeout(LIMIT).unwrap().expect("a message");
            }
        });
        while !looks.is_finished() {
            was_full |= client.shared.lock().awaits_room;
            thread::sleep(Duration::from_millis(1));
        }
        looks.join().unwrap();
        let (took_ms, elapsed_ms) = ((computed_ns() - before_ns) / 1_000_000, since.elapsed().as_millis());
        println!("{took_ms} ms computed of {elapsed_ms}");
        assert!(was_full, "the socket was never full");
        assert!(u128::from(took_ms) < elapsed_ms / 20, "{took_ms} ms of {elapsed_ms} were computed: it spins");
    }

    /// Sends as fast as it may, on one core with its endpoint's thread, both with real-time priority.
    fn sends_beside_its_thread(to: &str) {
        let client = Endpoint::client().unwrap();
        let config = Config { queue_max: 64, ..Config::default() };
        let key = ServerKey::Secret([7; 32]).for_clients();
        let here = client.connect(to.parse().unwrap(), &key, config).unwrap();
        let until = Instant::now() + Duration::from_secs(1);
        let (mut messages, before) = (0, client.shared.locks());
        while Instant::now() < until {
            here.send(&[0; 1200]).unwrap();
            messages += 1;
        }
        let locks = client.shared.locks() - before;
        println!("{messages} messages, {locks} looks");
        assert!(locks < 100 * messages, "it looks again and again, and its thread does not run");
    }

    #[test]
    fn root_thread_of_a_real_time_program_need_not_run_for_what_is_due() {
        const TO: &str = "FIDE_PACE_TO";
        if let Ok(to) = std::env::var(TO) {
            return sends_beside_its_thread(&to);
        }
        let real_time = |core: usize| {
            let mut command = Command::new("taskset");
            command.args(["-c", &core.to_string(), "chrt", "-f", "10"]);
            command
        };
        if !real_time(0).arg("true").output().is_ok_and(|output| output.status.success()) {
            println!("skipped: no real-time priority here, or no chrt");
            return;
        }
        let name = format!(
            "{}::root_thread_of_a_real_time_program_need_not_run_for_what_is_due",
            module_path!().split_once("::").unwrap().1
        );
        let server = Endpoint::server("127.0.0.1:0".parse().unwrap(), ServerKey::Secret([7; 32]), Config::default());
        let server = server.unwrap();
        for _ in 0..5 {
            let mut sends = real_time(0);
            sends.arg(std::env::current_exe().unwrap()).args(["--exact", &name, "--nocapture"]);
            let mut sends = sends.env(TO, server.local_address().unwrap().to_string()).spawn().unwrap();
            let there = server.accept().unwrap();
            let until = Instant::now() + LIMIT;
            let ended = loop {
                while there.recv_timeout(Duration::from_millis(20)).is_ok_and(|message| message.is_some()) {}
                if let Some(ended) = sends.try_wait().unwrap() {
                    break ended;
                }
                if Instant::now() > until {
                    sends.kill().unwrap();
                    panic!("it stands still");
                }
            };
            assert!(ended.success());
        }
    }

    /// In a network of its own, which ends with the process.
    #[test]
    fn full_socket_is_waited_for() {
        if std::env::var_os(INSIDE).is_some() {
            return sends_through_a_full_socket();
        }
        let is_possible = Command::new("unshare").args(["-rn", "tc", "qdisc"]).output();
        if !is_possible.is_ok_and(|output| output.status.success()) {
            println!("skipped: no network namespace here, or no tc");
            return;
        }
        let name = format!("{}::full_socket_is_waited_for", module_path!().split_once("::").unwrap().1);
        let mut inside = Command::new("unshare");
        inside.arg("-rn").arg(std::env::current_exe().unwrap()).args(["--exact", &name, "--nocapture"]);
        assert!(inside.env(INSIDE, "1").status().unwrap().success());
    }
}
