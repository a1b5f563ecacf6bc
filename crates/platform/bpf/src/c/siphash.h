/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* SipHash-2-4 (Aumasson, Bernstein 2012) over a scratch buffer of whole words. */
#ifndef FIDE_SIPHASH_H
#define FIDE_SIPHASH_H

#define FIDE_WORDS (FIDE_PAYLOAD_MAX / 8)

struct fide_scratch {
	struct fide_wake wake;
	__u64 words[FIDE_WORDS + 1];
};

#define ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define SIP_ROUND                                   \
	do {                                        \
		v0 += v1; v1 = ROTL(v1, 13); v1 ^= v0; v0 = ROTL(v0, 32); \
		v2 += v3; v3 = ROTL(v3, 16); v3 ^= v2; \
		v0 += v3; v3 = ROTL(v3, 21); v3 ^= v0; \
		v2 += v1; v1 = ROTL(v1, 17); v1 ^= v2; v2 = ROTL(v2, 32); \
	} while (0)

/* `len` bytes of `scratch->words`; at most FIDE_PAYLOAD_MAX. */
static __noinline __u64 fide_siphash(struct fide_scratch *scratch, __u32 len, __u64 k0, __u64 k1)
{
	__u64 v0 = 0x736f6d6570736575ULL ^ k0, v1 = 0x646f72616e646f6dULL ^ k1;
	__u64 v2 = 0x6c7967656e657261ULL ^ k0, v3 = 0x7465646279746573ULL ^ k1;
	__u32 whole = len / 8, rest = len % 8, i;
	__u64 last = (__u64)len << 56;

	for (i = 0; i < FIDE_WORDS; i++) {
		__u64 m;

		if (i >= whole)
			break;
		m = scratch->words[i];
		v3 ^= m;
		SIP_ROUND;
		SIP_ROUND;
		v0 ^= m;
	}
	if (rest && whole <= FIDE_WORDS)
		last |= scratch->words[whole] & ((1ULL << (8 * rest)) - 1);
	v3 ^= last;
	SIP_ROUND;
	SIP_ROUND;
	v0 ^= last;
	v2 ^= 0xff;
	SIP_ROUND;
	SIP_ROUND;
	SIP_ROUND;
	SIP_ROUND;
	return v0 ^ v1 ^ v2 ^ v3;
}

#endif
