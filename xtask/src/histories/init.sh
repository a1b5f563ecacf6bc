#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first program of a guest that is one of the hosts under a register: it runs an agent and a member, each
# started again when it ends, and the inner end of the clients' relay, and takes orders from the second serial
# line. `crates/testing/histories/src/guest.rs` reads its output.
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*; do insmod "$module"; done
. /run/fide/settings
ip link set lo up
card=0
for address in $ADDRESSES $INSIDE; do
  ip addr add "$address/24" dev eth$card
  ip link set eth$card up
  card=$((card + 1))
done
ip route add 224.0.0.0/4 dev eth0
echo 512 > /proc/sys/net/unix/max_dgram_qlen
dir=/run/fide/$HOST
mkdir -p "$dir/state" "$dir/group" "$dir/relay"
echo "GUEST kernel $(uname -r), time source $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"

# Sets a clock parameter, and prints the value that the kernel has then.
clock() {
  adjtimex "$1" "$2" > /dev/null
  echo "GUEST clock: $3 $(adjtimex | sed -n "s/.*-${1#-}  *$3[^:]*: *\(-*[0-9]*\).*/\1/p")"
}

# An emulated serial line is too slow for logs while the guest has to be in time.
logs() {
  tail -n 200 "$dir/agent.log" | sed 's/^/AGENT /'
  tail -n 50 "$dir/member.log" | sed 's/^/MEMBER /'
  FIDE_SOCKET="$dir/agent.sock" fide status | sed 's/^/STATUS /'
  for process in $(pidof histories fide); do
    echo "PROCESS $process $(tr '\0' ' ' < /proc/$process/cmdline)"
    for thread in /proc/$process/task/*; do
      echo "  $(cut -d ' ' -f 2,3,14,15 $thread/stat) $(cat $thread/wchan) $(cat $thread/syscall)"
    done
  done
  echo "GUEST logs end"
}

(while :; do
  fide agent --config "$dir/fide.toml" --host "$HOST" --runtime-dir "$dir" --state-dir "$dir/state" --force-timeout \
    >> "$dir/agent.log" 2>&1
  echo "GUEST the agent ended: $(tail -n 1 "$dir/agent.log")"
  sleep 0.1
done) &
(while :; do
  histories __member --group "$GROUP" --hosts "$HOSTS" --protocol "$PROTOCOL" --agent "$dir/agent.sock" \
    --socket "$dir/registers.sock" --state-dir "$dir/group" --key-file /run/fide/group.key $PLANTED 2>> "$dir/member.log"
  echo "GUEST member ended: $(tail -n 1 "$dir/member.log")"
  sleep 0.1
done) &
(while :; do
  histories __relay --wire "$INSIDE:$RELAY_PORT" --member "$dir/registers.sock" --dir "$dir/relay"
  sleep 0.1
done) &
stty -F /dev/ttyS1 -echo
exec 4<> /dev/ttyS1
while read -r order <&4; do eval "$order"; done
