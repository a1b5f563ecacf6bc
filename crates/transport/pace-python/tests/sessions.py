# SPDX-License-Identifier: Apache-2.0
"""Sessions over the loopback with the package as it is installed. `tests/python.rs` runs it: sessions.py DOCS."""

import ast
import asyncio
import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import unittest

import fide_pace
from fide_pace import _native

# Longer than anything here takes.
LIMIT = 60
CONFIG = {"deadline": 2.0, "queue": 100}
# Python has no handler of its own if whoever started it ignores this signal, as shells do for what runs in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pair(key=None, **config):
    """A client's connection, and the server's."""
    key = key or fide_pace.new_secret()
    with fide_pace.server("127.0.0.1:0", key, **(CONFIG | config)) as endpoint:
        here = fide_pace.connect(endpoint.address, fide_pace.client_key(key), **(CONFIG | config))
        return here, endpoint.accept(timeout=LIMIT)


class Interrupted:
    """Sends this process a signal as ctrl-C does, while the block runs."""

    def __enter__(self):
        self.thread = threading.Thread(target=self.interrupt)
        self.thread.start()

    def interrupt(self):
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    def __exit__(self, *_):
        self.thread.join()


class Blocking(unittest.TestCase):
    def test_messages_come_both_ways_in_order(self):
        for key in (fide_pace.new_secret(), fide_pace.new_private()):
            here, there = pair(key)

            def echo(there=there):
                for message in there:
                    there.send(message)

            thread = threading.Thread(target=echo)
            thread.start()
            for at in range(100):
                message = bytes([at]) * (at * 37)
                here.send((message, bytearray(message), memoryview(message))[at % 3])
                self.assertEqual(here.recv(timeout=LIMIT), message)
            counts = here.counts()
            self.assertEqual((counts.sent, counts.received, counts.lost), (100, 100, 0))
            here.close("enough")
            thread.join()
            with self.assertRaisesRegex(fide_pace.ConnectionClosed, "the other end has closed the connection: enough"):
                there.recv()
            with self.assertRaisesRegex(fide_pace.ConnectionClosed, "closed at this end"):
                here.send(b"late")
            self.assertTrue(here.closed and there.closed)

    def test_others_run_meanwhile(self):
        here, there = pair()
        with self.assertRaises(TimeoutError):
            there.recv(timeout=0.01)
        self.assertIsNone(there.try_recv())
        thread = threading.Thread(target=lambda: here.send(b"from another thread"))
        thread.start()
        self.assertEqual(there.recv(timeout=LIMIT), b"from another thread")
        thread.join()
        here.close()

    def test_what_is_asked_is_told(self):
        here, there = pair()
        told, known = [], threading.Event()
        here.on_change(lambda view: (told.append(view), known.set()))
        for _ in range(50):
            here.send(bytes(1000))
            there.recv(timeout=LIMIT)
        self.assertTrue(known.wait(LIMIT))
        view = here.view()
        self.assertIn(view.bottleneck, view.paces)
        self.assertEqual(view.paces[view.bottleneck], view.bottleneck_pace)
        self.assertEqual(told[0].paces.keys(), view.paces.keys())
        self.assertGreater(view.delay, 0)
        self.assertGreater(here.bottleneck_pace(), 0)
        for time_or_none in (
            here.expected_delay(),
            here.next_send_in(),
            here.expected_send_in(),
            there.next_recv_in(),
        ):
            self.assertTrue(time_or_none is None or time_or_none >= 0)
        self.assertTrue(here.peer.startswith("127.0.0.1:"))
        self.assertTrue(here.finish(LIMIT))
        here.close()

    def test_receiver_is_told_the_bottleneck_of_what_it_receives(self):
        here, there = pair()

        def send():
            try:
                while True:
                    here.send(bytes(1000))
            except fide_pace.ConnectionClosed:
                pass

        thread = threading.Thread(target=send)
        thread.start()
        # A busy machine may need more of them than one at rest.
        for _ in range(5000):
            there.recv(timeout=LIMIT)
            time.sleep(0.002)
            view = there.incoming_view()
            if view.bottleneck == "deliver" and view.bottleneck_pace > 0.001 and view.one_way is not None:
                break
        else:
            self.fail(f"{view}")
        self.assertGreater(view.total, 0)
        # It is one clock.
        self.assertLessEqual(abs(view.clock_ahead), view.clock_uncertainty)
        self.assertIsInstance(view.drift_ppm, int)
        there.close()
        thread.join()

    def test_peer_that_is_killed_ends_what_waits(self):
        key = fide_pace.new_secret()
        code = """
            import fide_pace, sys
            endpoint = fide_pace.server("127.0.0.1:0", sys.argv[1], deadline=60)
            print(endpoint.address, flush=True)
            with endpoint.accept() as connection:
                connection.recv()
                print("there", flush=True)
                endpoint.accept()
        """
        command = [sys.executable, "-c", textwrap.dedent(code), key]
        for waits in ("recv", "send"):
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as peer:
                here = fide_pace.connect(peer.stdout.readline().strip(), key, deadline=60.0, idle=1.0)
                here.send(b"first")
                self.assertEqual(peer.stdout.readline(), "there\n")
                peer.kill()
                with self.assertRaisesRegex(fide_pace.ConnectionLost, "not heard any more"):
                    here.recv() if waits == "recv" else [here.send(bytes(1000)) for _ in range(1_000_000)]

    def test_period_of_the_sender_is_foretold(self):
        here, there = pair()
        # A busy machine may need more of them than one at rest.
        for _ in range(2000):
            here.try_send(b"tick")
            time.sleep(0.005)
            while there.try_recv() is not None:
                pass
            if there.view().receive_period and here.view().send_period and there.next_recv_in() is not None:
                break
        else:
            self.fail("no period was found")
        here.close()

    def test_interrupt_ends_what_waits(self):
        here, there = pair()
        with fide_pace.server("127.0.0.1:0", fide_pace.new_secret()) as endpoint:
            for waits in (there.recv, lambda: there.recv(timeout=LIMIT), endpoint.accept):
                with Interrupted(), self.assertRaises(KeyboardInterrupt):
                    waits()
        # Nothing is lost by it.
        here.send(b"still here")
        self.assertEqual(there.recv(timeout=LIMIT), b"still here")
        here.close()

    def test_process_ends_while_a_thread_waits(self):
        code = """
            import fide_pace, threading
            key = fide_pace.new_secret()
            endpoint = fide_pace.server("127.0.0.1:0", key)
            connection = fide_pace.connect(endpoint.address, key)
            connection.on_change(print)
            begun = threading.Event()
            threading.Thread(target=lambda: (begun.set(), connection.recv()), daemon=True).start()
            begun.wait()
        """
        ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=LIMIT, capture_output=True)
        self.assertEqual((ended.returncode, ended.stderr), (0, b""))


class Wrong(unittest.TestCase):
    def test_other_key_is_named(self):
        with fide_pace.server("127.0.0.1:0", fide_pace.new_secret()) as endpoint:
            with self.assertRaisesRegex(fide_pace.ConnectError, "the other end has another key"):
                fide_pace.connect(endpoint.address, fide_pace.new_secret())
            with self.assertRaisesRegex(fide_pace.InvalidKey, "fide pace key"):
                fide_pace.connect(endpoint.address, "secret")
            with self.assertRaisesRegex(fide_pace.InvalidKey, "for servers"):
                fide_pace.connect(endpoint.address, fide_pace.new_private())
        self.assertTrue(issubclass(fide_pace.ConnectError, ConnectionError))

    def test_deadline_in_the_past_is_refused(self):
        here, there = pair()
        for deadline in (0, -1, float("nan")):
            for send in (here.send, here.try_send):
                with self.assertRaisesRegex(fide_pace.DeadlineError, "in the past"):
                    send(b"late", deadline=deadline)
        here.send(b"in time", deadline=LIMIT)
        self.assertEqual(there.recv(timeout=LIMIT), b"in time")
        here.close()

    def test_wrong_arguments_are_named(self):
        key = fide_pace.new_secret()
        for config, words in (
            ({"deadline": 0}, "deadline is 0"),
            ({"loss": 1}, "loss is 1"),
            ({"queue": 0}, "queue is 0"),
            ({"congestion": "fast"}, '"level" or "xpace"'),
            ({"idle": 0.5}, "idle is 0.5; give seconds, at least 1"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                fide_pace.server("127.0.0.1:0", key, **config)
        with self.assertRaisesRegex(ValueError, "HOST:PORT"):
            fide_pace.connect("7000", key)
        with fide_pace.server("127.0.0.1:0", key) as endpoint, self.assertRaises(OSError) as raised:
            fide_pace.server(endpoint.address, key)
        self.assertIn("no UDP socket at", str(raised.exception))
        with fide_pace.Endpoint() as client, self.assertRaisesRegex(ValueError, "`server`"):
            client.accept(timeout=0)
        here, _there = pair(queue=1)
        with self.assertRaises(fide_pace.MessageTooLong):
            here.try_send(bytes((4 << 20) + 1))
        with self.assertRaises(fide_pace.QueueFull):
            for _ in range(10_000):
                here.try_send(bytes(60_000))
        here.close()

    def test_endpoint_that_is_closed_says_so(self):
        endpoint = fide_pace.server("127.0.0.1:0", fide_pace.new_secret())
        with self.assertRaises(TimeoutError):
            endpoint.accept(timeout=0.01)
        timer = threading.Timer(0.05, endpoint.close)
        timer.start()
        with self.assertRaisesRegex(fide_pace.EndpointClosed, "the endpoint was closed"):
            endpoint.accept(timeout=LIMIT)
        timer.join()


class Asynchronous(unittest.IsolatedAsyncioTestCase):
    async def pair(self):
        key = fide_pace.new_secret()
        with fide_pace.server("127.0.0.1:0", key, **CONFIG) as endpoint:
            accepts = asyncio.create_task(endpoint.accept_async())
            here = await fide_pace.connect_async(endpoint.address, key, **CONFIG)
            return here, await asyncio.wait_for(accepts, LIMIT)

    async def test_messages_are_iterated_until_the_end(self):
        here, there = await self.pair()

        async def send_all():
            async with here:
                for at in range(200):
                    await here.send_async(at.to_bytes(4, "big"))
                await here.finish_async(LIMIT)

        sends = asyncio.create_task(send_all())
        got = [int.from_bytes(message, "big") async for message in there]
        await sends
        self.assertEqual(got, sorted(set(got)))
        self.assertEqual(len(got) + there.counts().lost, 200)

    async def test_timeout_loses_no_message(self):
        here, there = await self.pair()
        with self.assertRaises(TimeoutError):
            await asyncio.wait_for(there.recv_async(), 0.01)
        both = asyncio.gather(there.recv_async(), there.recv_async())
        await asyncio.sleep(0)
        await here.send_async(b"one")
        await here.send_async(bytearray(b"two"), deadline=LIMIT)
        self.assertEqual(sorted(await asyncio.wait_for(both, LIMIT)), [b"one", b"two"])
        with self.assertRaisesRegex(fide_pace.DeadlineError, "in the past"):
            await here.send_async(b"late", deadline=-1)
        here.close()

    async def test_changes_are_iterated_until_the_end(self):
        here, there = await self.pair()
        told = []

        async def watch():
            async for view in here.changes():
                told.append(view.bottleneck)

        watches = asyncio.create_task(watch())
        while not told:
            await here.send_async(bytes(1000))
            await asyncio.wait_for(there.recv_async(), LIMIT)
        here.close()
        await asyncio.wait_for(watches, LIMIT)

    async def test_wrong_key_is_named(self):
        with fide_pace.server("127.0.0.1:0", fide_pace.new_secret()) as endpoint:
            with self.assertRaisesRegex(fide_pace.ConnectError, "another key"):
                await fide_pace.connect_async(endpoint.address, fide_pace.new_secret())


class Documents(unittest.TestCase):
    def test_stubs_are_those_of_the_native_part(self):
        stubs = ast.parse(pathlib.Path(_native.__file__).with_name("_native.pyi").read_text())
        public = lambda names: {name for name in names if not name.startswith("_")}
        functions = {node.name for node in stubs.body if isinstance(node, ast.FunctionDef)}
        classes = {node.name: node for node in stubs.body if isinstance(node, ast.ClassDef)}
        self.assertEqual(public(vars(_native)), functions | set(classes))
        for name, node in classes.items():
            methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
            native = getattr(_native, name)
            self.assertEqual(public(vars(native)), set(methods), name)
            for method, stub in methods.items():
                # What the native method takes, by its text: `($self, data, within)`.
                known = re.findall(r"\w+", getattr(native, method).__text_signature__)
                self.assertEqual(known, [argument.arg for argument in stub.args.args], f"{name}.{method}")

    def test_documented_lines_run(self):
        page = pathlib.Path(sys.argv[1]).read_text()
        receives, sends = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        self.assertLessEqual(receives.count("\n") + sends.count("\n"), 20)
        key, shown = fide_pace.new_secret(), []

        class Camera:
            frames = 0

            def frame(self):
                self.frames += 1
                if self.frames > 50:
                    raise EOFError("no more frames")
                return bytes(1000)

        there = {"key": key, "show": shown.append}
        lines = receives.replace('"0.0.0.0:7000"', '"127.0.0.1:0"')
        thread = threading.Thread(target=exec, args=(compile(lines, "docs/pace.md", "exec"), there))
        thread.start()
        until = time.monotonic() + LIMIT
        while "endpoint" not in there and time.monotonic() < until:
            time.sleep(0.001)
        lines = sends.replace('"192.0.2.7:7000"', repr(there["endpoint"].address))
        self.assertNotEqual(lines, sends)
        with self.assertRaises(EOFError):
            exec(compile(lines, "docs/pace.md", "exec"), {"key": key, "camera": Camera()})
        thread.join(LIMIT)
        self.assertFalse(thread.is_alive())
        self.assertTrue(shown and all(frame == bytes(1000) for frame in shown))
        there["endpoint"].close()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
