// SPDX-License-Identifier: Apache-2.0
// One queue pair for unreliable datagrams over RoCEv2. All that Rust sees of libibverbs, whose calls of the hot path are
// inline functions of C. `port/rdma/queue.rs` mirrors this file.
#ifndef FIDE_RDMA_H
#define FIDE_RDMA_H

#include <stdint.h>

// Datagrams that wait to be taken; further ones the card drops, as the wire may.
#define FIDE_RDMA_RECEIVE_RING 512
// Datagrams that the card has not sent yet; further ones are refused.
#define FIDE_RDMA_SEND_RING 64
// Of every queue pair of the bench, so that a peer needs to learn nothing but a number. The highest bit has to be 0.
#define FIDE_RDMA_QKEY 0x46644550

struct fide_rdma;
struct ibv_ah;

// What was opened.
struct fide_rdma_found {
	uint32_t qpn;
	// Most bytes of a datagram.
	uint32_t mtu_bytes;
	// Up to so many bytes the card is handed with the request itself.
	uint32_t inline_bytes;
	char device[64];
};

// A datagram in its slot.
struct fide_rdma_arrived {
	const uint8_t *data;
	uint32_t bytes;
	// To be given back.
	uint32_t slot;
	uint32_t from_qpn;
	// IPv4, in the order of the network; zeroes if it came otherwise.
	uint8_t from[4];
};

// Opens a queue pair on the card whose RoCEv2 address on interface `ifindex` is `address`. 0, or an errno: ENODEV if the
// interface belongs to no card, EADDRNOTAVAIL if its card does not have the address; `*step` is what failed otherwise.
int fide_rdma_open(uint32_t ifindex, const uint8_t address[4], uint8_t traffic_class, struct fide_rdma **opened,
		   struct fide_rdma_found *found, const char **step);

// Ends it; all of its handles have to be gone.
void fide_rdma_close(struct fide_rdma *rdma);

// The way to a host. 0 or an errno. The kernel asks the network for the host's hardware address: not for the hot path.
int fide_rdma_handle(struct fide_rdma *rdma, const uint8_t address[4], struct ibv_ah **handle);
void fide_rdma_forget(struct ibv_ah *handle);

// Sends. 0 or an errno: EAGAIN if the ring is full, EMSGSIZE if it is longer than `mtu_bytes`.
int fide_rdma_send(struct fide_rdma *rdma, struct ibv_ah *handle, uint32_t qpn, const void *data, uint32_t bytes);

// Looks once. 1 if a datagram was there, 0 if none, or a negative errno.
int fide_rdma_take(struct fide_rdma *rdma, struct fide_rdma_arrived *arrived);

// The slot may be received into again. 0 or an errno.
int fide_rdma_give_back(struct fide_rdma *rdma, uint32_t slot);

#endif
