#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first program of the guest: three agents over loopback, a program of h1 that asks again and again
# whether it may act, and a reader of orders from the second serial line: `ask WORD` makes that program report
# at once, `sh COMMAND` runs a command.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
ip link set lo up
mkdir -p /etc /run
echo 000102030405060708090a0b0c0d0e0f > /etc/cluster.key
chmod 400 /etc/cluster.key
cat > /etc/fide.toml <<END
[cluster]
key_file = "cluster.key"
heartbeat_us = 20000
timeout_us = 3000000
[agent]
receive = "udp"
exit_watch = "pidfd"
calibrate_ms = 100
[[plane]]
END
for h in 1 2 3; do
  printf '[[member]]\nname = "h%s"\naddresses = ["127.70.0.%s"]\n' $h $h >> /etc/fide.toml
done
for h in 1 2 3; do
  mkdir -p /run/h$h
  fide agent --config /etc/fide.toml --host h$h --force-timeout --runtime-dir /run/h$h --state-dir /run/h$h > /run/h$h/log 2>&1 &
  echo $! > /run/h$h/pid
done
# The kernel goes by tsc-early until it has measured tsc.
current=/sys/devices/system/clocksource/clocksource0/current_clocksource
waited=0
while [ "$(cat $current)" = tsc-early ] && [ $waited -lt 30 ]; do
    sleep 1
    waited=$((waited + 1))
done
echo "CLOCKS source $(cat $current)"
tries=0
while [ ! -e /run/h1/agent.sock ]; do
  sleep 0.5
  tries=$((tries + 1))
  [ $tries = 100 ] && cat /run/h1/log
done
mkfifo /run/ask
# An emulated machine may be too slow for its first try.
(until lease_probe /run/h1/agent.sock < /run/ask; do sleep 1; done) &
exec 3> /run/ask
stty -F /dev/ttyS1 -echo
exec 4<> /dev/ttyS1
echo "CLOCKS READY"
while read -r verb rest <&4; do
  case $verb in
    ask) echo "$rest" >&3 ;;
    sh) eval "$rest" ;;
  esac
done
