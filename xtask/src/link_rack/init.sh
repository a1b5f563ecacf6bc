#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first program of both guests of `cargo xtask link-rack`: it has a network to the other one, and reads orders from the
# second serial line: `sh COMMAND` runs a command.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /etc
/bin/busybox --install -s /bin
export PATH=/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
exec </dev/null >/dev/ttyS0 2>&1
for module in /modules/*.ko; do
    insmod "$module" || echo "insmod $module failed"
done
host=$(sed -n 's/.*fide\.host=\([12]\).*/\1/p' /proc/cmdline)
other=$((3 - host))
ip link set lo up
ip addr add 10.9.0.$host/24 dev eth0
ip link set eth0 up
# A figure of the link.
link() {
    sed -n "s/^fide_rack_link_$1{.*} //p" /run/metrics
}
# Waits until the link has risen so often, and carries so many connections.
stands() {
    until fide rack metrics > /run/metrics && [ "$(link up)" = 1 ] && [ "$(link rises_total)" -ge "$1" ] && [ "$(link connections)" -ge "$2" ]; do
        sleep 0.02
    done
    echo "STANDS $(link rises_total) times, $(link connections) connections"
}
stty -F /dev/ttyS1 -echo
exec 4<> /dev/ttyS1
echo "LINK READY"
while read -r verb rest <&4; do
    case $verb in
        sh) eval "$rest" ;;
    esac
done
