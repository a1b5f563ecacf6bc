// SPDX-License-Identifier: Apache-2.0

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;
import org.json.JSONObject;

import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.CommandArguments;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.JedisPubSub;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Protocol;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.RedisSentinelClient;
import redis.clients.jedis.Response;
import redis.clients.jedis.UnifiedJedis;
import redis.clients.jedis.args.ListDirection;
import redis.clients.jedis.exceptions.JedisConnectionException;
import redis.clients.jedis.exceptions.JedisDataException;
import redis.clients.jedis.exceptions.JedisException;

/**
 * A session of Jedis with a group whose leaders die meanwhile; see ../README.md.
 *
 * <p>usage: java Session.java IP:PORT,IP:PORT,... FAIL-OVERS
 */
public final class Session {
    /** Rounds of each task before a leader dies, and again after it. */
    static final int ROUNDS = 50;
    /** Longest wait for those rounds, ms. */
    static final long LIMIT = 180_000;
    /** After each round, ms: other tests run beside this session. */
    static final long PAUSE = 2;
    /** Keys that are read at a time. */
    static final int BATCH = 500;
    /** Errors that say when to ask again, or that nothing is known of the last request. */
    static final List<String> ASK_AGAIN = List.of("LOADING", "READONLY", "TRYAGAIN", "UNKNOWN");

    static final String SCRIPT =
            "local n = redis.call('INCR', KEYS[1]); redis.call('RPUSH', KEYS[2], n); return n";

    /** A promise that was not kept. */
    static final class Broken extends RuntimeException {
        Broken(String why, Object... with) {
            super(String.format(why, with));
        }
    }

    interface Round {
        void play(String name, int number);
    }

    final Set<HostAndPort> sentinels = new LinkedHashSet<>();
    final RedisSentinelClient master;
    final String script;
    /** Guarded by this session, as all that follows. */
    final Map<String, String> written = new HashMap<>();
    final Map<String, List<Long>> numbers = new TreeMap<>();
    final List<String> pushed = new ArrayList<>();
    Map<String, Integer> errors = new TreeMap<>();
    long greatest;
    long lastWrite;
    long gap;
    String fault;

    final Map<String, AtomicLong> rounds = new LinkedHashMap<>();
    final AtomicLong reads = new AtomicLong();
    final AtomicLong messages = new AtomicLong();
    volatile boolean stopped;
    volatile UnifiedJedis replica;

    Session(String addresses) {
        for (String address : addresses.split(",")) sentinels.add(HostAndPort.from(address));
        master = RedisSentinelClient.builder().masterName("redis").sentinels(sentinels).build();
        script = master.scriptLoad(SCRIPT);
    }

    synchronized void acknowledge(String counter, long number, Map<String, String> entries) {
        long now = System.nanoTime();
        if (lastWrite != 0) gap = Math.max(gap, now - lastWrite);
        lastWrite = now;
        written.putAll(entries);
        if (counter == null) return;
        numbers.computeIfAbsent(counter, any -> new ArrayList<>()).add(number);
        if (counter.equals("counter")) greatest = Math.max(greatest, number);
    }

    void write(String name, int number) {
        String key = name + ":" + number;
        master.set(key, Integer.toString(number));
        acknowledge(null, 0, Map.of(key, Integer.toString(number)));
        acknowledge("counter", master.incr("counter"), Map.of());
    }

    void writeMany(String name, int number) {
        Map<String, String> entries = new HashMap<>();
        Response<Long> counted;
        try (Pipeline pipe = master.pipelined()) {
            for (int part = 0; part < 10; part++) {
                String key = name + ":" + number + ":" + part;
                entries.put(key, Integer.toString(part));
                pipe.set(key, Integer.toString(part));
            }
            counted = pipe.incr("counter");
            for (Object reply : pipe.syncAndReturnAll()) if (reply instanceof JedisException why) throw why;
        }
        acknowledge("counter", counted.get(), entries);
    }

    /** Both counters are read, and written if nobody else has written them meanwhile. */
    void transact(String name, int number) {
        Long right;
        try (AbstractTransaction transaction = master.transaction(false)) {
            transaction.watch("left", "right");
            List<String> found = master.mget("left", "right");
            if (!String.valueOf(found.get(0)).equals(String.valueOf(found.get(1)))) {
                throw new Broken("a transaction was applied in part: left and right are %s", found);
            }
            long left = found.get(0) == null ? 0 : Long.parseLong(found.get(0));
            transaction.multi();
            transaction.set("left", Long.toString(left + 1));
            transaction.incr("right");
            List<Object> replies = transaction.exec();
            if (replies == null) return;
            for (Object reply : replies) if (reply instanceof JedisException why) throw why;
            right = (Long) replies.get(1);
        }
        acknowledge("right", right, Map.of());
    }

    void runScript(String name, int number) {
        acknowledge("scripted", (Long) master.evalsha(script, List.of("scripted", "log"), List.of()), Map.of());
    }

    void push(String name, int number) {
        master.rpush("queue", "item" + number);
        acknowledge(null, 0, Map.of());
        synchronized (this) {
            pushed.add("item" + number);
        }
    }

    void move(String name, int number) {
        if (master.blmove("queue", "done", ListDirection.LEFT, ListDirection.RIGHT, 1) == null && !stopped) {
            throw new JedisConnectionException("nothing to move within a second");
        }
    }

    void read(String name, int number) {
        long least;
        synchronized (this) {
            least = greatest;
        }
        String text;
        try {
            text = replica.get("counter");
        } catch (JedisConnectionException why) {
            replica.close();
            replica = ofReplica();
            throw why;
        }
        long found = text == null ? 0 : Long.parseLong(text);
        if (found < least) {
            throw new Broken("a read at a replica missed an acknowledged write: counter %d, not %d", found, least);
        }
        reads.incrementAndGet();
    }

    void publish(String name, int number) {
        master.publish("news", Integer.toString(number));
    }

    /** Hears for as long as the connection lives: each message is a round. */
    void hear(String name, int number) {
        master.subscribe(new JedisPubSub() {
            @Override
            public void onMessage(String channel, String message) {
                messages.incrementAndGet();
                rounds.get(name).incrementAndGet();
                if (stopped) unsubscribe();
            }
        }, "news");
    }

    void run(String name, Round round) {
        for (int number = 1; !stopped; number++) {
            try {
                round.play(name, number);
                if (!name.equals("subscriber")) rounds.get(name).incrementAndGet();
                Thread.sleep(PAUSE);
            } catch (Exception why) {
                note(name, why);
            }
        }
    }

    void note(String name, Exception why) {
        String kind = ASK_AGAIN.stream().filter(code -> String.valueOf(why.getMessage()).startsWith(code + " "))
                .findFirst().orElse(why.getClass().getSimpleName());
        synchronized (this) {
            errors.merge(kind, 1, Integer::sum);
            boolean isAnswer = why instanceof JedisDataException && !ASK_AGAIN.contains(kind);
            if (why instanceof Broken) {
                fault = why.getMessage();
            } else if (isAnswer || !(why instanceof JedisException)) {
                fault = name + ": unexpected answer: " + why;
            }
        }
        try {
            Thread.sleep(10);
        } catch (InterruptedException end) {
            stopped = true;
        }
    }

    void awaitRounds(String what) throws InterruptedException {
        Map<String, Long> base = new HashMap<>();
        rounds.forEach((name, done) -> base.put(name, done.get()));
        long until = System.nanoTime() + LIMIT * 1_000_000;
        while (rounds.entrySet().stream().anyMatch(one -> one.getValue().get() < base.get(one.getKey()) + ROUNDS)) {
            synchronized (this) {
                if (fault != null) throw new Broken("%s", fault);
                if (System.nanoTime() > until) {
                    throw new Broken("not every task has had %d rounds %s: %s since %s; %s", ROUNDS, what, rounds,
                            base, errors);
                }
            }
            Thread.sleep(10);
        }
    }

    static String roleOf(UnifiedJedis client) {
        return new String((byte[]) ((List<?>) client.executeCommand(new CommandArguments(Protocol.Command.ROLE))).get(0));
    }

    /** What the first server says that answers: Jedis has no client of its own for replicas. */
    List<Map<String, String>> replicas() {
        JedisException last = null;
        for (HostAndPort sentinel : sentinels) {
            try (Jedis jedis = new Jedis(sentinel)) {
                return jedis.sentinelReplicas("redis");
            } catch (JedisConnectionException why) {
                last = why;
            }
        }
        throw last;
    }

    UnifiedJedis ofReplica() {
        Map<String, String> first = replicas().get(0);
        return RedisClient.create(first.get("ip"), Integer.parseInt(first.get("port")));
    }

    void check(String where, UnifiedJedis at) {
        List<String> keys = new ArrayList<>(written.keySet());
        for (int from = 0; from < keys.size(); from += BATCH) {
            List<String> part = keys.subList(from, Math.min(from + BATCH, keys.size()));
            List<String> found = at.mget(part.toArray(new String[0]));
            for (int n = 0; n < part.size(); n++) {
                if (!written.get(part.get(n)).equals(found.get(n))) {
                    throw new Broken("the acknowledged write %s is not at %s", part.get(n), where);
                }
            }
        }
        numbers.forEach((name, all) -> {
            if (new HashSet<>(all).size() != all.size()) {
                throw new Broken("%s: a number was given out twice, so an acknowledged write was lost", name);
            }
            long most = all.stream().mapToLong(Long::longValue).max().orElse(0);
            if (Long.parseLong(at.get(name)) < most) {
                throw new Broken("%s is %s at %s, and %d was acknowledged", name, at.get(name), where, most);
            }
        });
        if (!at.get("left").equals(at.get("right"))) {
            throw new Broken("left is %s and right %s at %s", at.get("left"), at.get("right"), where);
        }
        List<String> log = at.lrange("log", 0, -1);
        boolean isWhole = log.size() == Integer.parseInt(at.get("scripted"));
        for (int n = 0; n < log.size(); n++) isWhole &= log.get(n).equals(Integer.toString(n + 1));
        if (!isWhole) throw new Broken("the log of the script has gaps at %s", where);
        Set<String> kept = new HashSet<>(at.lrange("queue", 0, -1));
        kept.addAll(at.lrange("done", 0, -1));
        for (String item : pushed) if (!kept.contains(item)) throw new Broken("%s is not at %s", item, where);
    }

    JSONObject whole(int failovers) throws Exception {
        replica = ofReplica();
        if (!roleOf(master).equals("master")) throw new Broken("the master's role is %s", roleOf(master));
        if (!roleOf(replica).equals("slave")) throw new Broken("the replica's role is %s", roleOf(replica));
        List<String> leaders = new ArrayList<>(List.of(master.getCurrentMaster().getHost()));
        int replicasBefore = replicas().size();
        Map<String, Round> tasks = new LinkedHashMap<>();
        for (String name : Arrays.asList("writer0", "writer1", "writer2")) tasks.put(name, this::write);
        tasks.put("pipeline", this::writeMany);
        tasks.put("script", this::runScript);
        tasks.put("push", this::push);
        tasks.put("move", this::move);
        tasks.put("transaction0", this::transact);
        tasks.put("transaction1", this::transact);
        tasks.put("reader", this::read);
        tasks.put("subscriber", this::hear);
        tasks.put("publisher", this::publish);
        tasks.keySet().forEach(name -> rounds.put(name, new AtomicLong()));
        List<Thread> threads = new ArrayList<>();
        tasks.forEach((name, round) -> {
            Thread thread = new Thread(() -> run(name, round), name);
            thread.setDaemon(true);
            thread.start();
            threads.add(thread);
        });
        awaitRounds("before a leader dies");
        Map<String, Integer> calm;
        synchronized (this) {
            calm = errors;
            errors = new TreeMap<>();
        }
        List<Double> gaps = new ArrayList<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (int left = failovers; left > 0; left--) {
            synchronized (this) {
                gap = 0;
            }
            System.out.println("under way");
            if (!"killed".equals(input.readLine())) {
                throw new Broken("the test did not say that it has killed the leader");
            }
            awaitRounds("after a leader has died");
            synchronized (this) {
                gaps.add(gap / 100_000 / 10.0);
            }
            String after = master.getCurrentMaster().getHost();
            if (after.equals(leaders.get(leaders.size() - 1))) {
                throw new Broken("the master is %s as before, though it was killed", after);
            }
            leaders.add(after);
        }
        stopped = true;
        for (Thread thread : threads) {
            // One more message, in case that the publisher was the first to stop.
            master.publish("news", "the end");
            thread.join(LIMIT);
        }
        if (fault != null) throw new Broken("%s", fault);
        check("the master", master);
        UnifiedJedis fresh = ofReplica();
        if (!roleOf(fresh).equals("slave")) throw new Broken("the replica's role is %s", roleOf(fresh));
        check("the replica", fresh);
        String client = new String((byte[]) master.executeCommand(new CommandArguments(Protocol.Command.CLIENT).add("INFO")));
        return new JSONObject()
                .put("library", "jedis " + version())
                .put("resp", Integer.parseInt(client.replaceAll("(?s).* resp=(\\d).*", "$1")))
                .put("leaders", leaders)
                .put("replicas_before", replicasBefore)
                .put("writes", written.size())
                .put("counted", numbers.get("counter").size())
                .put("transactions", numbers.get("right").size())
                .put("scripts", numbers.get("scripted").size())
                .put("pushed", pushed.size())
                .put("replica_reads", reads.get())
                .put("messages", messages.get())
                .put("errors_before", calm)
                .put("errors", errors)
                .put("gaps_ms", gaps);
    }

    static String version() throws Exception {
        var properties = new java.util.Properties();
        try (var in = Jedis.class.getResourceAsStream("/META-INF/maven/redis.clients/jedis/pom.properties")) {
            properties.load(in);
        }
        return properties.getProperty("version");
    }

    public static void main(String[] arguments) {
        try {
            System.out.println(new Session(arguments[0]).whole(Integer.parseInt(arguments[1])));
            System.exit(0);
        } catch (Broken why) {
            System.err.println("broken promise: " + why.getMessage());
        } catch (Exception why) {
            why.printStackTrace();
        }
        System.exit(1);
    }
}
