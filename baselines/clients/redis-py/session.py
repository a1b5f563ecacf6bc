# SPDX-License-Identifier: Apache-2.0
"""A session of redis-py with a group whose leaders die meanwhile; see ../README.md.

usage: session.py IP:PORT,IP:PORT,... FAIL-OVERS
"""

import json
import sys
import threading
import time

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

# Rounds of each task before a leader dies, and again after it.
ROUNDS = 50
# Longest wait for those rounds, seconds.
LIMIT = 180
# After each round, seconds: other tests run beside this session.
PAUSE = 0.002
# Errors that say when to ask again, or that nothing is known of the last request.
ASK_AGAIN = ("LOADING", "READONLY", "TRYAGAIN", "UNKNOWN")
SCRIPT = "local n = redis.call('INCR', KEYS[1]); redis.call('RPUSH', KEYS[2], n); return n"


class Broken(Exception):
    """A promise that was not kept."""


class Group(Sentinel):
    """Threads that ask at the same time for a new leader make redis-py 8.1 lose servers of its list."""

    lock = threading.Lock()

    def discover_master(self, service_name):
        with self.lock:
            return super().discover_master(service_name)


class Session:
    def __init__(self, addresses):
        # Without that, each connection asks a server that has died for seconds before it asks the next one.
        no_retry = {"socket_timeout": 1, "retry": Retry(NoBackoff(), 0)}
        self.sentinel = Group(addresses, sentinel_kwargs=no_retry, socket_timeout=5)
        self.master = self.sentinel.master_for("redis", decode_responses=True)
        self.replica = self.sentinel.slave_for("redis", decode_responses=True)
        self.lock = threading.Lock()
        self.stop = threading.Event()
        self.broken = None
        self.rounds = {}
        self.written = {}
        self.counted, self.paired, self.scripted, self.pushed = [], [], [], []
        self.messages = self.reads = self.greatest = 0
        self.errors = {}
        self.last_write, self.gap = None, 0.0

    def acknowledged(self, to, what):
        now = time.monotonic()
        with self.lock:
            if self.last_write:
                self.gap = max(self.gap, now - self.last_write)
            self.last_write = now
            if isinstance(to, dict):
                to.update(what)
            else:
                to.append(what)
            if to is self.counted:
                self.greatest = max(self.greatest, what)

    # The tasks: each is one round.

    def write(self, name, number):
        self.master.set(f"{name}:{number}", number)
        self.acknowledged(self.written, {f"{name}:{number}": str(number)})
        self.acknowledged(self.counted, self.master.incr("counter"))

    def write_many(self, name, number):
        with self.master.pipeline(transaction=False) as pipe:
            keys = {f"{name}:{number}:{part}": str(part) for part in range(10)}
            for key, value in keys.items():
                pipe.set(key, value)
            pipe.incr("counter")
            replies = pipe.execute()
        self.acknowledged(self.written, keys)
        self.acknowledged(self.counted, replies[-1])

    def transact(self, _name, _number):
        """Both counters are read, and written if nobody else has written them meanwhile."""

        def both(pipe):
            left, right = (int(value or 0) for value in pipe.mget("left", "right"))
            if left != right:
                raise Broken(f"a transaction was applied in part: left is {left}, right {right}")
            pipe.multi()
            pipe.set("left", left + 1)
            pipe.incr("right")

        _, right = self.master.transaction(both, "left", "right")
        self.acknowledged(self.paired, right)

    def run_script(self, _name, _number):
        self.acknowledged(self.scripted, self.script(keys=["scripted", "log"]))

    def push(self, _name, number):
        self.master.rpush("queue", f"item{number}")
        self.acknowledged(self.pushed, f"item{number}")

    def move(self, _name, _number):
        if self.master.blmove("queue", "done", 1, "LEFT", "RIGHT") is None and not self.stop.is_set():
            raise redis.ConnectionError("nothing to move within a second")

    def read(self, _name, _number):
        with self.lock:
            least = self.greatest
        found = int(self.replica.get("counter") or 0)
        if found < least:
            raise Broken(f"a read at a replica missed an acknowledged write: counter {found}, not at least {least}")
        self.reads += 1

    def publish(self, _name, number):
        self.master.publish("news", number)

    def hear(self, _name, _number):
        message = self.subscription.get_message(ignore_subscribe_messages=True, timeout=1)
        if message is None and not self.stop.is_set():
            raise redis.ConnectionError("no message within a second")
        self.messages += 1

    def run(self, name, task):
        number = 0
        while not self.stop.is_set():
            number += 1
            try:
                task(name, number)
                self.rounds[name] += 1
                time.sleep(PAUSE)
            except Broken as why:
                self.broken = self.broken or str(why)
            except (redis.ConnectionError, redis.TimeoutError) as why:
                self.note(type(why).__name__)
            except redis.RedisError as why:
                kind = type(why).__name__.removesuffix("Error").upper()
                if kind not in ASK_AGAIN and not str(why).startswith(ASK_AGAIN):
                    self.broken = self.broken or f"{name}: unexpected answer: {why!r}"
                self.note(type(why).__name__)
            except Exception as why:  # A thread that ends in silence would look like a group that hangs.
                self.broken = self.broken or f"{name}: {why!r}"

    def note(self, kind):
        with self.lock:
            self.errors[kind] = self.errors.get(kind, 0) + 1
        time.sleep(0.01)

    def await_rounds(self, what):
        base, until = dict(self.rounds), time.monotonic() + LIMIT
        while any(self.rounds[name] < base[name] + ROUNDS for name in base):
            if self.broken:
                raise Broken(self.broken)
            if time.monotonic() > until:
                done = {name: self.rounds[name] - base[name] for name in base}
                raise Broken(f"not every task has had {ROUNDS} rounds within {LIMIT} s {what}: {done}; {self.errors}")
            time.sleep(0.01)

    def check(self, where, at):
        keys = list(self.written)
        found = [value for part in range(0, len(keys), 500) for value in at.mget(keys[part : part + 500])]
        lost = [key for key, value in zip(keys, found) if value != self.written[key]]
        if lost:
            raise Broken(f"{len(lost)} of {len(keys)} acknowledged writes are not at {where}, such as {lost[0]}")
        for name, numbers in (("counter", self.counted), ("right", self.paired), ("scripted", self.scripted)):
            if len(set(numbers)) != len(numbers):
                raise Broken(f"{name}: a number was given out twice, so an acknowledged write was lost")
            if int(at.get(name)) < max(numbers):
                raise Broken(f"{name} is {at.get(name)} at {where}, and {max(numbers)} was acknowledged")
        if at.get("left") != at.get("right"):
            raise Broken(f"left is {at.get('left')} and right {at.get('right')} at {where}")
        if at.lrange("log", 0, -1) != [str(number) for number in range(1, int(at.get("scripted")) + 1)]:
            raise Broken(f"the log of the script has gaps at {where}")
        kept = set(at.lrange("queue", 0, -1)) | set(at.lrange("done", 0, -1))
        if not kept.issuperset(self.pushed):
            raise Broken(f"pushed items are missing at {where}: {sorted(set(self.pushed) - kept)[:5]}")

    def known(self):
        return {sentinel.connection_pool.connection_kwargs["host"] for sentinel in self.sentinel.sentinels}

    def whole(self, failovers):
        if (role := self.master.role()[0]) != "master":
            raise Broken(f"the master says that its role is {role}")
        if (role := self.replica.role()[0]) != "slave":
            raise Broken(f"the replica says that its role is {role}")
        leaders = [self.sentinel.discover_master("redis")[0]]
        replicas = self.sentinel.discover_slaves("redis")
        self.script = self.master.register_script(SCRIPT)
        self.subscription = self.master.pubsub()
        self.subscription.subscribe("news")
        self.subscription.get_message(timeout=1)
        tasks = {f"writer{n}": self.write for n in range(3)}
        tasks |= {"pipeline": self.write_many, "script": self.run_script, "push": self.push, "move": self.move}
        tasks |= {"transaction0": self.transact, "transaction1": self.transact, "reader": self.read}
        tasks |= {"publisher": self.publish, "subscriber": self.hear}
        self.rounds = dict.fromkeys(tasks, 0)
        threads = [threading.Thread(target=self.run, args=item, daemon=True) for item in tasks.items()]
        for thread in threads:
            thread.start()
        self.await_rounds("before a leader dies")
        calm, self.errors = self.errors, {}
        gaps = []
        for _ in range(failovers):
            self.gap = 0.0
            print("under way", flush=True)
            if not sys.stdin.readline().startswith("killed"):
                raise Broken("the test did not say that it has killed the leader")
            self.await_rounds("after a leader has died")
            gaps.append(round(self.gap * 1000, 1))
            leaders.append(self.sentinel.discover_master("redis")[0])
            if leaders[-1] == leaders[-2]:
                raise Broken(f"the master is {leaders[-1]} as before, though it was killed")
        self.stop.set()
        for thread in threads:
            thread.join(LIMIT)
        if self.broken:
            raise Broken(self.broken)
        if len(self.known()) != len(self.sentinel.sentinels):
            raise Broken(f"of the servers, only {self.known()} are left to be asked who leads")
        self.check("the master", self.master)
        # One that was a replica before may lead now: the pool asks again whom to connect to.
        self.replica.connection_pool.disconnect()
        if (role := self.replica.role()[0]) != "slave":
            raise Broken(f"the replica says that its role is {role}, after fail-overs")
        self.check("the replica", self.replica)
        return {
            "library": f"redis-py {redis.__version__}",
            "resp": int(self.master.client_info()["resp"]),
            "leaders": leaders,
            "replicas_before": len(replicas),
            "writes": len(self.written),
            "counted": len(self.counted),
            "transactions": len(self.paired),
            "scripts": len(self.scripted),
            "pushed": len(self.pushed),
            "replica_reads": self.reads,
            "messages": self.messages,
            "errors_before": calm,
            "errors": self.errors,
            "gaps_ms": gaps,
        }


def main():
    addresses = [(address.split(":")[0], int(address.split(":")[1])) for address in sys.argv[1].split(",")]
    try:
        print(json.dumps(Session(addresses).whole(int(sys.argv[2]))), flush=True)
    except Broken as why:
        print(f"broken promise: {why}", file=sys.stderr, flush=True)
        sys.exit(1)


main()
