/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The contract between the recorder of culprits and user space, whose side
 * the build generates from this file.
 */
#ifndef FIDE_CULPRITS_H
#define FIDE_CULPRITS_H

#define FIDE_CULPRIT_RING_BYTES (8 * 1024 * 1024)
#define FIDE_CULPRIT_CPUS 1024
#define FIDE_CULPRIT_OWN_MAX 4

#define FIDE_CULPRIT_INTERRUPT 1 /* id: its number */
#define FIDE_CULPRIT_SOFTIRQ 2 /* id: its vector */
#define FIDE_CULPRIT_THREAD 3 /* id: the thread */
#define FIDE_CULPRIT_VECTOR 4 /* id: the processor's own interrupt, FIDE_VECTOR_... */
#define FIDE_CULPRIT_LATE 5 /* from when a timer ran out until its interrupt came */

/* A timer that is late by less is none of it: waking a core takes time, too. */
#define FIDE_CULPRIT_LATE_NS 20000

#define FIDE_VECTOR_TIMER 1
#define FIDE_VECTOR_RESCHEDULE 2
#define FIDE_VECTOR_CALL 3
#define FIDE_VECTOR_CALL_SINGLE 4
#define FIDE_VECTOR_WORK 5

struct fide_culprit_config {
	__u64 cpus[FIDE_CULPRIT_CPUS / 64]; /* bit n: core n is recorded */
	__u64 least_ns; /* what took less is left out */
	__u32 own[FIDE_CULPRIT_OWN_MAX]; /* threads of the bench itself, left out; 0: none */
};

struct fide_culprit {
	__u64 start_ns;
	__u64 end_ns;
	__u32 cpu;
	__u32 kind;
	__u32 id;
	__u32 reserved;
	__u8 name[16]; /* of a thread or an interrupt's handler */
};

struct fide_culprit_stats {
	__u64 recorded;
	__u64 lost; /* found no room in the ring */
};

#endif
