/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
#ifndef FIDE_GAPS_H
#define FIDE_GAPS_H

#include "intf.h"

/*
 * Which bucket counts a gap. In units of a sixteenth of the first power of two, halved until 16 to 31 are left: the
 * halvings are the power of two, what is left is the bucket in it.
 */
static __always_inline __u32 gap_bucket(__u64 ns)
{
	__u64 units = ns >> 6;
	__u32 halvings = 0;

	if (units < 16)
		return 0;
	if (units >= 16ULL << FIDE_GAP_OCTAVES)
		return FIDE_GAP_BUCKETS - 1;
	if (units >= 1 << 20) {
		units >>= 16;
		halvings += 16;
	}
	if (units >= 1 << 12) {
		units >>= 8;
		halvings += 8;
	}
	if (units >= 1 << 8) {
		units >>= 4;
		halvings += 4;
	}
	if (units >= 1 << 6) {
		units >>= 2;
		halvings += 2;
	}
	if (units >= 1 << 5) {
		units >>= 1;
		halvings += 1;
	}
	return 1 + halvings * 16 + (__u32)units - 16;
}

#endif
