/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The contract between the ping-pong's receive program and user space, whose
 * side the build generates from this file.
 */
#ifndef FIDE_PINGPONG_H
#define FIDE_PINGPONG_H

/* Packets that may wait for their reader; older ones are overwritten, and it knows. */
#define FIDE_PP_SLOTS 1024
/* The part of a payload that means something; the rest is padding. */
#define FIDE_PP_HEADER 64
#define FIDE_PP_MAGIC 0x50504446 /* "FDPP" */
#define FIDE_PP_VERSION 1
#define FIDE_PP_PING 1
#define FIDE_PP_PONG 2

#define FIDE_PP_MODE_SLOT 1 /* to a slot that the program reads through shared memory */
#define FIDE_PP_MODE_REFLECT 2 /* answered where it arrives */
#define FIDE_PP_MODE_SOCKET 3 /* to the AF_XDP socket of its queue */

#define FIDE_PP_STAMP_MAGIC 0x706d617473656469ULL

/* In front of a packet that goes to a socket, if the driver leaves room there. */
struct fide_pp_stamp {
	__u64 magic;
	__u64 rx_ns;
};

struct fide_pp_config {
	__u16 port; /* host byte order */
	__u16 mode;
	__u32 incarnation; /* of the answering side */
};

struct fide_pp_slot {
	__u64 sequence; /* 2n + 2 when packet n is whole, odd while it is written */
	__u64 rx_ns;
	__u8 header[FIDE_PP_HEADER];
};

struct fide_pp_state {
	__u64 head; /* packets put into slots */
	__u64 reflected;
	__u64 malformed;
};

struct fide_pp_header {
	__u32 magic;
	__u8 version;
	__u8 kind;
	__u16 packet_bytes;
	__u64 run;
	__u64 id;
	__s64 ts1_ns;
	__s64 ts2_ns;
	__s64 ts3_ns;
	__s64 kernel_ns; /* when B's kernel or card saw the ping; 0 unknown */
	__u32 incarnation;
	__u32 reserved1;
} __attribute__((packed));

_Static_assert(sizeof(struct fide_pp_header) == FIDE_PP_HEADER, "the header is what slots hold");

#endif
