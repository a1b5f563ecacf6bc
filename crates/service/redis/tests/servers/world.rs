// SPDX-License-Identifier: Apache-2.0
//! Agents and servers on a testbed.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use fide_testbed::{
    Agents, AgentsSpec, RedisGroup, RedisServer, RedisSpec, Spec as BedSpec, Testbed, find_binary, retry_until,
    say_not_tested, supported,
};

pub(crate) const LIMIT: Duration = Duration::from_secs(20);
/// Longer than a shared machine keeps a host from running: an exclusion by load is not what these tests are
/// about.
const TIMEOUT_US: u32 = 60_000;

/// Stops a writer, also when the test fails.
pub(crate) struct Stops<'a>(pub(crate) &'a AtomicBool);

impl Drop for Stops<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

pub(crate) struct World {
    pub(crate) servers: Vec<Option<RedisServer>>,
    pub(crate) agents: Agents,
    pub(crate) bed: Testbed,
    spec: RedisSpec,
}

/// `target/.../libfide_redis.so`, which cargo has built with this test.
pub(crate) fn module() -> PathBuf {
    find_binary("libfide_redis.so").expect("cargo builds the module before its tests")
}

/// Another module, built for this test; none, with a word about it, where there is no C compiler.
pub(crate) fn foreign_module() -> Option<String> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/modules/foreign.c");
        // Put in its place whole: servers of other tests may have it loaded.
        let target = module().with_file_name("foreign.so");
        let new = target.with_extension(std::process::id().to_string());
        let built = Command::new("cc")
            .args(["-std=c99", "-D_DEFAULT_SOURCE", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
            .args([&new, &source])
            .status();
        match built {
            Ok(status) => {
                assert!(status.success(), "building {}: {status}", source.display());
                std::fs::rename(&new, &target).expect("the same directory");
                Some(target)
            }
            Err(why) => {
                say_not_tested(&format!("what another module does: cc: {why}"));
                None
            }
        }
    });
    built.as_ref().map(|path| path.display().to_string())
}

impl World {
    /// None, with a word about it, where no namespaces can be made.
    pub(crate) fn new(hosts: usize, protocol: &str) -> Option<Self> {
        Self::with(hosts, protocol, &[])
    }

    /// With further arguments of the module.
    pub(crate) fn with(hosts: usize, protocol: &str, arguments: &[&str]) -> Option<Self> {
        Self::with_all(hosts, protocol, arguments, &[])
    }

    /// With further arguments of the servers, in front of the module.
    pub(crate) fn with_servers(hosts: usize, of_server: &[&str]) -> Option<Self> {
        Self::with_all(hosts, "hsuc", &[], of_server)
    }

    /// With another module, loaded before this one.
    pub(crate) fn beside(hosts: usize, foreign: &str) -> Option<Self> {
        Self::with_all(hosts, "hsuc", &["other-modules", "foreign"], &["--loadmodule", foreign])
    }

    /// The module's arguments of servers that are started from now on.
    pub(crate) fn set_arguments(&mut self, arguments: &[&str]) {
        if let Some(group) = &mut self.spec.group {
            group.arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        }
    }

    fn with_all(hosts: usize, protocol: &str, arguments: &[&str], of_server: &[&str]) -> Option<Self> {
        let of_module: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        if let Err(why) = supported() {
            say_not_tested(&format!("anything of servers: {why}"));
            return None;
        }
        let bed = Testbed::build(BedSpec { hosts, offloads: true, ..BedSpec::default() }).expect("a testbed");
        let program = vec![find_binary("fide").expect("cargo build -p fide comes first")];
        let arguments = vec!["--force-timeout".to_owned()];
        let spec = AgentsSpec { program, arguments, timeout_us: Some(TIMEOUT_US), ..AgentsSpec::default() };
        let agents = Agents::start(&bed, spec).expect("agents");
        let names = bed.hosts().iter().map(|host| host.name().to_owned()).collect();
        let group = RedisGroup { module: module(), protocol: protocol.to_owned(), hosts: names, arguments: of_module };
        let spec = RedisSpec {
            // Another build than Debian's.
            program: std::env::var_os("FIDE_REDIS_SERVER").map(PathBuf::from),
            group: Some(group),
            arguments: vec!["--enable-debug-command".into(), "yes".into()],
        };
        let of_server = of_server.iter().map(|argument| (*argument).to_owned());
        let mut spec = spec;
        spec.arguments.extend(of_server);
        let mut world = Self { servers: (0..hosts).map(|_| None).collect(), agents, bed, spec };
        (1..=hosts).for_each(|host| world.start(host));
        world.await_ready();
        Some(world)
    }

    pub(crate) fn start(&mut self, host: usize) {
        let server = RedisServer::start(self.bed.host(host), &self.agents, &self.spec);
        self.servers[host - 1] = Some(server.unwrap_or_else(|why| panic!("{why}")));
    }

    /// Starts a server with further arguments, in front of the module's.
    pub(crate) fn start_beside(&mut self, host: usize, of_server: &[&str]) {
        let mut spec = self.spec.clone();
        spec.arguments.extend(of_server.iter().map(|argument| (*argument).to_owned()));
        let server = RedisServer::start(self.bed.host(host), &self.agents, &spec);
        self.servers[host - 1] = Some(server.unwrap_or_else(|why| panic!("{why}")));
    }

    /// The names of the group's hosts, for servers that are started from now on.
    pub(crate) fn set_hosts(&mut self, hosts: &str) {
        if let Some(group) = &mut self.spec.group {
            group.hosts = hosts.split(',').map(str::to_owned).collect();
        }
    }

    /// Starts a server with further arguments, in front of the module's and of the module. Its log since then if it
    /// ends by itself within the limit.
    pub(crate) fn try_start(&mut self, host: usize, of_server: &[&str], of_module: &[&str]) -> Result<(), String> {
        let mut spec = self.spec.clone();
        let owned = |arguments: &[&str]| arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>();
        spec.arguments.extend(owned(of_server));
        if let Some(group) = &mut spec.group {
            group.arguments.extend(owned(of_module));
        }
        let log = self.agents.dir(host).join("redis/redis.log");
        let before = std::fs::metadata(&log).map_or(0, |log| log.len());
        let since = || {
            let log = std::fs::read(&log).unwrap_or_default();
            String::from_utf8_lossy(log.get(usize::try_from(before).unwrap_or(0)..).unwrap_or_default()).into_owned()
        };
        let Ok(mut server) = RedisServer::start(self.bed.host(host), &self.agents, &spec) else {
            return Err(since());
        };
        let ended = retry_until("its end", LIMIT, || server.ended().ok_or_else(|| "it runs".to_owned()));
        if ended.is_ok() { Err(since()) } else { Ok(()) }
    }

    /// Starts a server with further arguments; why it did not start.
    pub(crate) fn start_with(&mut self, host: usize, arguments: &[&str]) -> Result<(), String> {
        let mut spec = self.spec.clone();
        spec.arguments.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let server = RedisServer::start(self.bed.host(host), &self.agents, &spec).map_err(|why| why.to_string())?;
        // The module looks at the commands when the loop begins.
        let ended =
            retry_until("its end", LIMIT, || server.command(&["PING"]).map_or(Ok(()), |_| Err("it runs".to_owned())));
        ended.map_err(|why| why.to_string())?;
        Err(server.log())
    }

    pub(crate) fn server(&self, host: usize) -> &RedisServer {
        self.servers[host - 1].as_ref().expect("it runs")
    }

    pub(crate) fn kill(&mut self, host: usize) -> u64 {
        let mut server = self.servers[host - 1].take().expect("it runs");
        server.kill()
    }

    pub(crate) fn hosts(&self) -> Vec<usize> {
        (1..=self.servers.len()).filter(|host| self.servers[host - 1].is_some()).collect()
    }

    pub(crate) fn status(&self, host: usize) -> serde_json::Value {
        let reply = self.server(host).command(&["FIDE.STATUS"]).unwrap_or_default();
        let json = reply.split_once("\r\n").map_or("", |(_, json)| json);
        serde_json::from_str(json.trim()).unwrap_or_default()
    }

    pub(crate) fn mode(&self, host: usize) -> String {
        self.status(host)["mode"].as_str().unwrap_or_default().to_owned()
    }

    /// Waits until one server leads and all others follow.
    pub(crate) fn await_ready(&self) {
        let ready = retry_until("a leader, and all others followers", LIMIT, || {
            let modes: Vec<String> = self.hosts().iter().map(|host| self.mode(*host)).collect();
            let leaders = modes.iter().filter(|mode| *mode == "leader").count();
            let followers = modes.iter().filter(|mode| *mode == "following").count();
            if leaders == 1 && leaders + followers == modes.len() { Ok(()) } else { Err(format!("{modes:?}")) }
        });
        ready.unwrap_or_else(|why| panic!("{why}\n{}", self.logs()));
    }

    pub(crate) fn leader(&self) -> usize {
        self.hosts()
            .into_iter()
            .find(|host| self.mode(*host) == "leader")
            .unwrap_or_else(|| panic!("no leader\n{}", self.logs()))
    }

    pub(crate) fn followers(&self) -> Vec<usize> {
        let leader = self.leader();
        self.hosts().into_iter().filter(|host| *host != leader).collect()
    }

    pub(crate) fn logs(&self) -> String {
        self.hosts().iter().map(|host| format!("h{host}:\n{}\n", self.server(*host).log())).collect()
    }

    pub(crate) fn ask(&self, host: usize, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        let reply = self.server(host).command(&words);
        reply.unwrap_or_else(|why| panic!("h{host}: {line}: {why}\n{}", self.logs()))
    }

    /// The digest of a server's data: one refusal is like another, and no digest.
    pub(crate) fn digest(&self, host: usize) -> String {
        let answer = self.ask(host, "DEBUG DIGEST");
        let digest = answer.strip_prefix('+').unwrap_or_default().trim();
        let is_one = digest.len() == 40 && digest.bytes().all(|byte| byte.is_ascii_hexdigit());
        assert!(is_one, "h{host}: DEBUG DIGEST: {answer}");
        digest.to_owned()
    }

    /// All servers have the same data and the same answers, once they have applied all.
    pub(crate) fn assert_alike(&self) {
        self.assert_alike_within(LIMIT);
    }

    /// As [`World::assert_alike`], where followers may have much to apply.
    pub(crate) fn assert_alike_within(&self, limit: Duration) {
        let until = Instant::now() + limit;
        loop {
            let digests: Vec<String> = self.hosts().iter().map(|host| self.digest(*host)).collect();
            let statuses: Vec<_> = self.hosts().iter().map(|host| self.status(*host)).collect();
            let is_quiet = statuses.windows(2).all(|two| two[0]["decided"] == two[1]["decided"])
                && statuses.iter().all(|status| status["decided"].is_u64() && status["decided"] == status["applied"]);
            // Answers to numbered requests are no keys.
            let are_answers_alike = statuses.windows(2).all(|two| two[0]["numbered"] == two[1]["numbered"]);
            if is_quiet && are_answers_alike && digests.windows(2).all(|two| two[0] == two[1]) {
                return;
            }
            assert!(
                Instant::now() < until,
                "{digests:?} {statuses:#?}\n{}\nkeys that differ:\n{}",
                self.logs(),
                self.differences().join("\n")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Keys of the first two databases that are not the same at all servers: the digest, deadline and dump at each.
    fn differences(&self) -> Vec<String> {
        let mut all = std::collections::BTreeMap::<(u32, String), Vec<String>>::new();
        for host in self.hosts() {
            let mut connection = self.connect(host);
            for db in 0..2 {
                let asked = |connection: &mut redis::Connection, words: &[&str]| -> redis::Value {
                    let (name, rest) = words.split_first().expect("a name");
                    let mut command = redis::cmd(name);
                    rest.iter().for_each(|word| {
                        command.arg(word);
                    });
                    command.query(connection).unwrap_or(redis::Value::Nil)
                };
                asked(&mut connection, &["SELECT", &db.to_string()]);
                let keys: Vec<String> =
                    redis::from_redis_value(asked(&mut connection, &["KEYS", "*"])).unwrap_or_default();
                for key in keys {
                    let digest = asked(&mut connection, &["DEBUG", "DIGEST-VALUE", &key]);
                    let deadline = asked(&mut connection, &["PEXPIRETIME", &key]);
                    let value = asked(&mut connection, &["DUMP", &key]);
                    all.entry((db, key)).or_default().push(format!("h{host}: {digest:?} {deadline:?} {value:?}"));
                }
            }
        }
        let is_alike = |values: &Vec<String>| {
            let what = |value: &String| value.split_once(' ').map(|(_, what)| what.to_owned());
            values.len() == self.hosts().len() && values.windows(2).all(|two| what(&two[0]) == what(&two[1]))
        };
        all.into_iter()
            .filter(|(_, values)| !is_alike(values))
            .map(|((db, key), values)| format!("{key} of db {db}: {}", values.join("; ")))
            .collect()
    }

    /// A connection for a client that sends more than one command.
    pub(crate) fn connect(&self, host: usize) -> redis::Connection {
        self.connect_to(host, "")
    }

    /// The same with RESP3, as most libraries do by default.
    pub(crate) fn connect_by_resp3(&self, host: usize) -> redis::Connection {
        self.connect_to(host, "?protocol=resp3")
    }

    fn connect_to(&self, host: usize, query: &str) -> redis::Connection {
        let address = format!("redis+unix://{}{query}", self.server(host).socket().display());
        let client = redis::Client::open(address).expect("an address");
        let connection = client.get_connection().unwrap_or_else(|why| panic!("h{host}: {why}\n{}", self.logs()));
        connection.set_read_timeout(Some(LIMIT)).expect("a timeout");
        connection
    }
}
