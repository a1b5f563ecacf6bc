#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes such a log as disturbed.fjl: a ping-pong between two network namespaces while a thread called "backup" takes the
# core of the receiver for 300 us every 25.382 ms. As root, with `fide` in PATH: ./make.sh LOG
set -eu
a=jitter-example-a b=jitter-example-b
trap 'kill ${disturb:-} ${pong:-} 2>/dev/null || true; wait; ip netns del $a; ip netns del $b' EXIT
ip netns add $a
ip netns add $b
ip link add p0 netns $a type veth peer name p0 netns $b
ip -n $a addr add 10.70.1.1/24 dev p0
ip -n $b addr add 10.70.1.2/24 dev p0
ip -n $a link set p0 up
ip -n $b link set p0 up

ip netns exec $b fide jitter pong --from 10.70.1.2 --core 1 --seconds 60 &
pong=$!
timeout 60 chrt -f 80 taskset -c 1 python3 -c '
import ctypes, time
PR_SET_NAME = 15
ctypes.CDLL(None).prctl(PR_SET_NAME, b"backup")
due = time.monotonic()
while True:
    due += 0.025382
    time.sleep(max(0, due - time.monotonic()))
    until = time.monotonic() + 0.0003
    while time.monotonic() < until:
        pass
' &
disturb=$!
sleep 2
ip netns exec $a fide jitter ping --from 10.70.1.1 --to 10.70.1.2 --core 0 --same-machine 1 --packets 3600 --out "$1"
