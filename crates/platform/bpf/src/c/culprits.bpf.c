// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Who ran on the cores of a measurement: interrupts, softirqs, threads, each
 * with its begin and end. Attached only while somebody measures.
 */
#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#include "culprits.h"

typedef int pid_t;

struct task_struct {
	pid_t pid;
	char comm[16];
} __attribute__((preserve_access_index));

struct irqaction {
	const char *name;
} __attribute__((preserve_access_index));

struct timerqueue_node {
	__s64 expires;
} __attribute__((preserve_access_index));

struct hrtimer {
	struct timerqueue_node node;
	__u8 is_soft;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fide_culprit_config);
} config SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct fide_culprit_stats);
} stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, FIDE_CULPRIT_RING_BYTES);
} records SEC(".maps");

/* Begins on this core, by kind; interrupts of one kind do not nest. */
struct begins {
	__u64 ns[8];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct begins);
} begins SEC(".maps");

static __always_inline struct fide_culprit_config *recorded_here(void)
{
	__u32 zero = 0, cpu = bpf_get_smp_processor_id();
	struct fide_culprit_config *cfg = bpf_map_lookup_elem(&config, &zero);

	if (!cfg || cpu >= FIDE_CULPRIT_CPUS)
		return NULL;
	return cfg->cpus[(cpu / 64) & (FIDE_CULPRIT_CPUS / 64 - 1)] & 1ULL << (cpu & 63) ? cfg : NULL;
}

static __always_inline int begin(__u32 place)
{
	__u32 zero = 0;
	struct begins *all;

	if (!recorded_here())
		return 0;
	all = bpf_map_lookup_elem(&begins, &zero);
	if (all)
		all->ns[place & 7] = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int put(struct fide_culprit_config *cfg, struct fide_culprit *culprit)
{
	__u32 zero = 0;
	struct fide_culprit_stats *counters = bpf_map_lookup_elem(&stats, &zero);

	if (!counters || !culprit->start_ns || culprit->end_ns - culprit->start_ns < cfg->least_ns)
		return 0;
	/* Its reader comes by itself: being woken would be a disturbance more. */
	if (bpf_ringbuf_output(&records, culprit, sizeof(*culprit), BPF_RB_NO_WAKEUP))
		__sync_fetch_and_add(&counters->lost, 1);
	else
		__sync_fetch_and_add(&counters->recorded, 1);
	return 0;
}

static __always_inline int end(__u32 place, __u32 kind, __u32 id, const char *name)
{
	struct fide_culprit_config *cfg = recorded_here();
	struct fide_culprit culprit = {};
	struct begins *all;
	__u32 zero = 0;

	if (!cfg)
		return 0;
	all = bpf_map_lookup_elem(&begins, &zero);
	if (!all)
		return 0;
	culprit.start_ns = all->ns[place & 7];
	all->ns[place & 7] = 0;
	culprit.end_ns = bpf_ktime_get_ns();
	culprit.cpu = bpf_get_smp_processor_id();
	culprit.kind = kind;
	culprit.id = id;
	if (name)
		bpf_probe_read_kernel_str(culprit.name, sizeof(culprit.name), name);
	return put(cfg, &culprit);
}

SEC("tp_btf/irq_handler_entry")
int BPF_PROG(on_interrupt, int irq, struct irqaction *action)
{
	return begin(0);
}

SEC("tp_btf/irq_handler_exit")
int BPF_PROG(on_interrupt_end, int irq, struct irqaction *action, int handled)
{
	return end(0, FIDE_CULPRIT_INTERRUPT, irq, action->name);
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_softirq, unsigned int vector)
{
	return begin(1);
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_softirq_end, unsigned int vector)
{
	return end(1, FIDE_CULPRIT_SOFTIRQ, vector, NULL);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempted, struct task_struct *before, struct task_struct *next)
{
	struct fide_culprit_config *cfg = recorded_here();
	struct fide_culprit culprit = {};
	struct begins *all;
	__u32 zero = 0, i;

	if (!cfg)
		return 0;
	all = bpf_map_lookup_elem(&begins, &zero);
	if (!all)
		return 0;
	culprit.start_ns = all->ns[2];
	culprit.end_ns = bpf_ktime_get_ns();
	all->ns[2] = culprit.end_ns;
	culprit.cpu = bpf_get_smp_processor_id();
	culprit.kind = FIDE_CULPRIT_THREAD;
	culprit.id = before->pid;
	/* The idle thread is nobody's fault. */
	if (!culprit.id)
		return 0;
	for (i = 0; i < 4; i++)
		if (cfg->own[i] == culprit.id)
			return 0;
	bpf_probe_read_kernel_str(culprit.name, sizeof(culprit.name), before->comm);
	return put(cfg, &culprit);
}

/* The processor's own interrupts, which have no handler; only some architectures tell of them. */
#define VECTOR(NAME, PLACE, ID)                                       \
	SEC("tp_btf/" #NAME "_entry")                                 \
	int BPF_PROG(on_##NAME, int vector)                           \
	{                                                             \
		return begin(PLACE);                                  \
	}                                                             \
	SEC("tp_btf/" #NAME "_exit")                                  \
	int BPF_PROG(on_##NAME##_end, int vector)                     \
	{                                                             \
		return end(PLACE, FIDE_CULPRIT_VECTOR, ID, NULL);     \
	}

VECTOR(local_timer, 3, FIDE_VECTOR_TIMER)
VECTOR(reschedule, 4, FIDE_VECTOR_RESCHEDULE)
VECTOR(call_function, 5, FIDE_VECTOR_CALL)
VECTOR(call_function_single, 6, FIDE_VECTOR_CALL_SINGLE)
VECTOR(irq_work, 7, FIDE_VECTOR_WORK)

/*
 * A timer whose interrupt comes late: the core was not there (a hypervisor, the
 * firmware), or had its interrupts off. What ran meanwhile is recorded too, and
 * nests inside.
 */
SEC("tp_btf/hrtimer_expire_entry")
int BPF_PROG(on_timer, struct hrtimer *timer, __s64 *now)
{
	struct fide_culprit_config *cfg = recorded_here();
	struct fide_culprit culprit = {};
	__s64 at = 0, late;

	/* Those of a softirq wait for it, which is recorded. */
	if (!cfg || timer->is_soft)
		return 0;
	if (bpf_probe_read_kernel(&at, sizeof(at), now))
		return 0;
	late = at - timer->node.expires;
	if (late < FIDE_CULPRIT_LATE_NS)
		return 0;
	culprit.end_ns = bpf_ktime_get_ns();
	culprit.start_ns = culprit.end_ns - late;
	culprit.cpu = bpf_get_smp_processor_id();
	culprit.kind = FIDE_CULPRIT_LATE;
	return put(cfg, &culprit);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
