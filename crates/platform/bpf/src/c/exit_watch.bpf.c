// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Exit watch (FiDe §3.4, "Prompt detection with OS watchdog"). The paper hooks
 * do_exit with a kprobe; sched_process_exit with `group_dead` is the stable
 * hook that fires for the last thread of a group only, before its memory is
 * torn down.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "intf.h"

#define NS_PER_TICK 10000000ULL /* USER_HZ is 100 on every architecture we run on */
#define SIGNAL_GROUP_EXIT 4

typedef int pid_t;

struct signal_struct {
	unsigned int flags;
	int group_exit_code;
} __attribute__((preserve_access_index));

struct task_struct {
	pid_t tgid;
	int exit_code;
	__u64 start_boottime;
	struct task_struct *group_leader;
	struct signal_struct *signal;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, FIDE_MAX_WATCHED);
	__type(key, __u32);
	__type(value, struct fide_watched);
} watched SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FIDE_WAKE_RING_BYTES);
} wake SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fide_stats);
} stats SEC(".maps");

static __always_inline struct fide_watched *lookup(struct task_struct *task)
{
	__u32 pid = task->tgid;
	struct fide_watched *entry = bpf_map_lookup_elem(&watched, &pid);

	if (!entry || entry->start_ticks != task->group_leader->start_boottime / NS_PER_TICK)
		return NULL;
	return entry;
}

static __always_inline void report(__u32 kind, struct fide_watched *entry, __u32 detail)
{
	struct fide_wake record = {
		.kind = kind,
		.ns = bpf_ktime_get_ns(),
		.subject = entry->slot,
		.detail = detail,
		.cookie = entry->cookie,
	};
	__u32 zero = 0;
	struct fide_stats *counters = bpf_map_lookup_elem(&stats, &zero);

	if (bpf_ringbuf_output(&wake, &record, sizeof(record), BPF_RB_FORCE_WAKEUP) && counters)
		__sync_fetch_and_add(&counters->wake_ring_full, 1);
	if (kind == FIDE_WAKE_EXIT && counters)
		__sync_fetch_and_add(&counters->exits_seen, 1);
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(on_process_exit, struct task_struct *task, bool group_dead)
{
	struct fide_watched *entry;
	int status;

	if (!group_dead)
		return 0;
	entry = lookup(task);
	if (!entry)
		return 0;
	/* What wait(2) will report (kernel/exit.c, wait_task_zombie). */
	if (task->signal->flags & SIGNAL_GROUP_EXIT)
		status = task->signal->group_exit_code;
	else
		status = task->group_leader->exit_code;
	report(FIDE_WAKE_EXIT, entry, status);
	return 0;
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
