// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Only for tests: which bucket the receive program would count a gap in. */
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>

#include "gaps.h"

struct probe {
	__u64 ns;
};

SEC("syscall")
int bucket_of(struct probe *probe)
{
	return gap_bucket(probe->ns);
}

char LICENSE[] SEC("license") = "Dual BSD/GPL";
