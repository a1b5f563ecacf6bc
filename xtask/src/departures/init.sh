#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The only program of the guest of `cargo xtask departures`: three namespaces in a row, and a bench of X-PACE from the
# first to the last over a link of 2 Mbit/s between the last two. The first one's interface has the queue `fq`, then
# another one. Each check is reported as `CHECK PASS|FAIL name`.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run/netns /etc
/bin/busybox --install -s /bin
export PATH=/sbin:/bin
# Its shell would take its own one.
ip() { /sbin/ip "$@"; }
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
exec </dev/null >/dev/ttyS0 2>&1
(sleep 240 && poweroff -f) &
for module in /modules/*.ko; do
    insmod "$module" || echo "insmod $module failed"
done
ip link set lo up
for name in a r b; do ip netns add $name && ip -n $name link set lo up; done
ip link add a0 netns a type veth peer name r0 netns r
ip link add r1 netns r type veth peer name b0 netns b
ip -n a addr add 10.1.0.1/24 dev a0
ip -n r addr add 10.1.0.2/24 dev r0
ip -n r addr add 10.2.0.2/24 dev r1
ip -n b addr add 10.2.0.1/24 dev b0
for one in a:a0 r:r0 r:r1 b:b0; do ip -n "${one%:*}" link set "${one#*:}" up; done
ip -n a route add default via 10.1.0.2
ip -n b route add default via 10.2.0.2
ip netns exec r sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward'
ip netns exec r tc qdisc add dev r1 root tbf rate 2mbit burst 3000 latency 50ms
fide pace key > /tmp/key
chmod 400 /tmp/key
ip netns exec b fide pace bench --accept 10.2.0.1:7000 --key /tmp/key > /dev/null &
sleep 1

bench() { # the queue of the first interface
    ip netns exec a tc qdisc replace dev a0 root "$@"
    ip netns exec a fide pace bench 10.2.0.1:7000 --key /tmp/key --seconds 10 --deadline 1s --json > /tmp/out 2>&1 &
    bench=$!
    sleep 5
    ip netns exec a fide pace top --once --json > /tmp/top 2>&1
    wait $bench
    status=$?
    ip netns exec a tc -s qdisc show dev a0 > /tmp/queue
}
check() { # name, then a command that has to succeed
    name=$1
    shift
    if "$@"; then echo "CHECK PASS $name"; else
        echo "CHECK FAIL $name"
        cat /tmp/out /tmp/top /tmp/queue
    fi
}
delivers() {
    [ "$status" = 0 ] && [ "$(grep -o '"delivered":[0-9]*' /tmp/out | head -n 1 | tr -dc 0-9)" -gt 300 ]
}
held() { # packets were held by fq until their time; an emulated processor hands most over too late
    [ "$(sed -n 's/^ *gc .* throttled \([0-9]*\).*/\1/p' /tmp/queue)" -gt 10 ]
}
bench fq
check fq_delivers delivers
check fq_holds_packets held
check fq_is_named grep -q '"departures": *"kernel"' /tmp/top
bench pfifo limit 1000
check other_queues_deliver delivers
check timer_is_named grep -q '"departures": *"timer"' /tmp/top
echo "CHECK END"
poweroff -f
