// SPDX-License-Identifier: Apache-2.0
// One queue pair for unreliable datagrams over RoCEv2. Rust sees nothing else of libibverbs, whose calls of
// the hot path are inline functions of C. `port/rdma/queue.rs` mirrors this file.
#ifndef FIDE_RDMA_H
#define FIDE_RDMA_H

#include <stdint.h>

// Datagrams that may wait to be taken. The card drops further ones, as the wire may.
#define FIDE_RDMA_RECEIVE_RING 512
// Datagrams that may wait for the card to send them; further ones are refused.
#define FIDE_RDMA_SEND_RING 64
// Queue key of every queue pair of the bench, so that a peer needs to learn only a number. Its highest bit
// has to be 0.
#define FIDE_RDMA_QKEY 0x46644550

struct fide_rdma;
struct ibv_ah;

// Properties of the queue pair that was opened.
struct fide_rdma_found {
	uint32_t qpn;
	// Most bytes of a datagram.
	uint32_t mtu_bytes;
	// Up to this many bytes are handed to the card within the request itself.
	uint32_t inline_bytes;
	char device[64];
};

// A datagram in its slot.
struct fide_rdma_arrived {
	const uint8_t *data;
	uint32_t bytes;
	// Number of the slot, by which it is given back.
	uint32_t slot;
	uint32_t from_qpn;
	// The sender's IPv4 address, in network byte order; zeroes if the datagram did not come over IPv4.
	uint8_t from[4];
};

// Opens a queue pair on the card whose RoCEv2 address on interface `ifindex` is `address`. Returns 0 or an
// errno: ENODEV if the interface belongs to no card, EADDRNOTAVAIL if its card does not have the address. For
// any other errno, `*step` names what failed.
int fide_rdma_open(uint32_t ifindex, const uint8_t address[4], uint8_t traffic_class, struct fide_rdma **opened,
		   struct fide_rdma_found *found, const char **step);

// Closes the queue pair; all of its handles have to be gone.
void fide_rdma_close(struct fide_rdma *rdma);

// Makes a handle for the path to a host. Returns 0 or an errno. The kernel asks the network for the host's
// hardware address, so this is not for the hot path.
int fide_rdma_handle(struct fide_rdma *rdma, const uint8_t address[4], struct ibv_ah **handle);
void fide_rdma_forget(struct ibv_ah *handle);

// Sends a datagram. Returns 0 or an errno: EAGAIN if the ring is full, EMSGSIZE if the datagram is longer
// than `mtu_bytes`.
int fide_rdma_send(struct fide_rdma *rdma, struct ibv_ah *handle, uint32_t qpn, const void *data, uint32_t bytes);

// Looks once for a datagram. Returns 1 if there was one, 0 if not, or a negative errno.
int fide_rdma_take(struct fide_rdma *rdma, struct fide_rdma_arrived *arrived);

// Makes a slot available for receiving again. Returns 0 or an errno.
int fide_rdma_give_back(struct fide_rdma *rdma, uint32_t slot);

#endif
