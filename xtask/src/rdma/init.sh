#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# First program of both guests of `cargo xtask rdma`. Host 1 pings and checks, host 2 answers. Each check is
# reported on the serial line as `CHECK PASS|FAIL name`, and `CHECK END` follows the last one.
export PATH=/bin
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec </dev/null >/dev/ttyS0 2>&1
# The guest ends even if nothing else ends it.
(sleep 900 && poweroff -f) &
for module in /modules/*.ko; do
    insmod "$module" || echo "insmod $module failed"
done
host=$(sed 's/.*fide.host=\([12]\).*/\1/' /proc/cmdline)
ip link set lo up
ip link set eth0 up
ip addr add "10.71.1.$host/24" dev eth0

software_card() {
    rdma link add rxe0 type rxe netdev eth0
    # The card's addresses come a moment after the card.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        grep -q ffff:0a47 /sys/class/infiniband/rxe0/ports/1/gids/* 2>/dev/null && break
        sleep 1
    done
}

if [ "$host" = 2 ]; then
    software_card
    while true; do
        fide jitter pong --from 10.71.1.2 --method rdma-ud &
        # Started again, with another queue pair, when host 1 says so.
        nc -l -p 7000 </dev/null
        kill -INT $!
        wait $!
    done
fi

check() { # name, then a command that has to succeed
    name=$1
    shift
    if "$@"; then echo "CHECK PASS $name"; else
        echo "CHECK FAIL $name"
        cat /tmp/out
    fi
}
ping() {
    fide jitter ping --from 10.71.1.1 --to 10.71.1.2 --method rdma-ud --no-record --json --out /tmp/log.fjl "$@" >/tmp/out 2>&1
}
number() { # of a field of the summary
    value=$(sed -n "s/^ *\"$1\": \([0-9][0-9]*\),*$/\1/p" /tmp/out | head -n 1)
    echo "${value:--1}"
}
said() { # the last ping failed, and said so
    [ "$status" != 0 ] && grep -q "$1" /tmp/out
}
answered() { # at least $1 packets, by as many pongs as there were restarts, $2, and one
    echo "answered $(number answered), restarts $(number restarts)"
    [ "$status" = 0 ] && [ "$(number answered)" -ge "$1" ] && [ "$(number restarts)" = "$2" ]
}

ping --packets 10 --period-us 20000
status=$?
check no_card said 'rdma link add rxe0 type rxe netdev eth0'
software_card
ping --packets 10 --period-us 20000 --port 7413
status=$?
check nobody_answers said 'did not answer the rdma handshake'

# Host 2 is up once it answers.
for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
    ping --packets 10 --period-us 20000 && break
    sleep 1
done
ping --packets 200 --period-us 20000
status=$?
check measures answered 180 0
check log_names_method grep -q 'rdma-ud, rxe0' /tmp/log.fjl

ping --packets 100 --period-us 20000 --bytes 1400
status=$?
check longer_than_the_mtu grep -q '1400 bytes are too long for a datagram of rxe0, whose MTU is 1024' /tmp/out

# While host 2 waits for hellos, pings of another method arrive at the same port; it must ignore them.
(fide jitter ping --from 10.71.1.1 --to 10.71.1.2 --packets 500 --period-us 2000 --no-record --out /tmp/udp.fjl >/tmp/udp 2>&1) &
ping --packets 100 --period-us 20000
status=$?
check ignores_what_is_no_hello answered 90 0
wait $!
grep answered /tmp/udp

(sleep 3 && echo again | nc -w 1 10.71.1.2 7000) &
ping --packets 500 --period-us 20000
status=$?
check finds_a_restarted_pong answered 250 1

# Both ends on one host.
rdma link add rxe1 type rxe netdev lo
fide jitter pong --from 127.0.0.1 --method rdma-ud &
sleep 1
fide jitter ping --from 127.0.0.1 --to 127.0.0.1 --same-machine 0 --method rdma-ud --packets 100 --period-us 20000 --no-record --json --out /tmp/log.fjl >/tmp/out 2>&1
status=$?
check one_host answered 90 0
kill -INT $!
wait $!
echo "CHECK END"
sync
poweroff -f
