#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The first process of a machine of its own, in new namespaces: a file system with this host's programs and nothing else of it, then
# systemd. No unit of this host is in it, so that nothing but the agent's service is started. The rack monitor's is there.
#   machine.sh DIRECTORY FIDE UNIT RACK_UNIT RACK_LIBRARY
set -eu
root=$1 fide=$2 unit=$3 rack=$4 library=$5
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$root"
cd "$root"
mkdir -p usr over/upper over/work etc/fide etc/systemd/system/fide-agent.service.d etc/systemd/system/fide-rack.service.d dev proc sys run tmp var/log var/tmp root old
for name in bin sbin lib lib32 lib64 libx32; do
    if [ -L "/$name" ]; then
        ln -s "usr/$name" "$name"
    elif [ -d "/$name" ]; then
        mkdir "$name"
        mount --rbind "/$name" "$name"
    fi
done
mount -t overlay none -o "lowerdir=/usr,upperdir=$root/over/upper,workdir=$root/over/work" usr
cp "$fide" usr/bin/fide
cp "$unit" etc/systemd/system/fide-agent.service
cp "$rack" etc/systemd/system/fide-rack.service
mkdir -p usr/lib/fide
cp "$library" usr/lib/fide/
for file in passwd group nsswitch.conf ld.so.cache; do
    [ ! -e "/etc/$file" ] || cp "/etc/$file" etc/
done
echo machine > etc/hostname
hostname machine
echo 0123456789abcdef0123456789abcdef > etc/machine-id
echo 'ID=machine' > etc/os-release
echo 000102030405060708090a0b0c0d0e0f > etc/fide/cluster.key
chmod 400 etc/fide/cluster.key
cat > etc/fide/fide.toml <<END
[cluster]
key_file = "cluster.key"
heartbeat_us = 20000
timeout_us = 3000000
[agent]
calibrate_ms = 100
[[plane]]
[[member]]
name = "machine"
addresses = ["127.70.0.1"]
END
# A log without a journal, a watchdog that a test can wait for, and faults that a debug build has.
cat > etc/systemd/system/fide-agent.service.d/test.conf <<END
[Service]
StandardOutput=append:/var/log/agent.log
StandardError=append:/var/log/agent.log
Environment=FIDE_FAULTS=1
WatchdogSec=4
END
# There are too few devices here for others that are private.
cat > etc/systemd/system/fide-rack.service.d/test.conf <<END
[Service]
StandardOutput=append:/var/log/agent.log
StandardError=append:/var/log/agent.log
PrivateDevices=no
END
mount -t tmpfs none usr/lib/systemd/system
for name in sysinit basic network-online multi-user shutdown umount; do
    printf '[Unit]\nDefaultDependencies=no\n' > "usr/lib/systemd/system/$name.target"
done
printf '[Unit]\nRequires=fide-agent.service\n' > etc/systemd/system/default.target
mount -t tmpfs -o mode=755 none dev
mkdir dev/shm
for name in null zero full random urandom tty cpu_dma_latency; do
    [ -e "/dev/$name" ] || continue
    : > "dev/$name"
    mount --bind "/dev/$name" "dev/$name"
done
: > dev/console
mount --bind /dev/null dev/console
mount -t proc none proc
mount -o bind,ro proc/sys proc/sys
mount -t sysfs none sys
mount -t cgroup2 none sys/fs/cgroup
mount -t bpf none sys/fs/bpf
mount -t tmpfs -o mode=755 none run
ip link set lo up
ip address add 127.70.0.1/32 dev lo
pivot_root . old
umount -l old
exec env -i PATH=/usr/bin:/usr/sbin container=test /lib/systemd/systemd --system --log-target=null --show-status=0
