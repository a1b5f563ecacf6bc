// SPDX-License-Identifier: Apache-2.0
#include "rdma.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <infiniband/verbs.h>

// In front of every datagram there is room for its routing header; over IPv4 the second half is the packet's IP header.
#define ROUTING_BYTES 40
#define IP_HEADER_AT 20
#define IP_PROTOCOL_AT (IP_HEADER_AT + 9)
#define IP_SOURCE_AT (IP_HEADER_AT + 12)
// The longest datagram that any card sends. None may be too long for its slot, because that would end the
// queue pair.
#define MTU_MAX 4096
// A multiple of cache lines.
#define SLOT_BYTES (MTU_MAX + 64)
#define SLOTS (FIDE_RDMA_RECEIVE_RING + FIDE_RDMA_SEND_RING)
#define PAGE_BYTES 4096
#define HOPS 64

struct fide_rdma {
	struct ibv_context *context;
	struct ibv_pd *domain;
	struct ibv_cq *received;
	struct ibv_cq *sent;
	struct ibv_qp *pair;
	struct ibv_mr *region;
	// Slots to receive into, then slots to send from.
	uint8_t *memory;
	uint8_t port;
	uint8_t gid_index;
	uint8_t traffic_class;
	uint32_t mtu_bytes;
	uint32_t inline_bytes;
	// Requests that are not yet known to be done.
	uint32_t sending;
	uint32_t next_slot;
};

// RoCEv2 over IPv4 names a host by its address, mapped to IPv6.
static union ibv_gid mapped(const uint8_t address[4])
{
	union ibv_gid gid = { .raw = { [10] = 0xff, [11] = 0xff } };

	memcpy(&gid.raw[12], address, 4);
	return gid;
}

// errno, or a substitute, because not every call that fails sets it.
static int reason(void)
{
	return errno ? errno : EIO;
}

// Whether one of the card's ports has this address on the interface.
static int match(struct fide_rdma *rdma, uint32_t ifindex, const union ibv_gid *gid)
{
	struct ibv_device_attr card;
	int result = ENODEV;

	if (ibv_query_device(rdma->context, &card))
		return ENODEV;
	for (uint8_t port = 1; port <= card.phys_port_cnt; port++) {
		struct ibv_port_attr attributes;

		if (ibv_query_port(rdma->context, port, &attributes))
			continue;
		for (int index = 0; index < attributes.gid_tbl_len && index <= UINT8_MAX; index++) {
			struct ibv_gid_entry entry;

			if (ibv_query_gid_ex(rdma->context, port, index, &entry, 0) || entry.ndev_ifindex != ifindex)
				continue;
			result = EADDRNOTAVAIL;
			if (entry.gid_type != IBV_GID_TYPE_ROCE_V2 || memcmp(&entry.gid, gid, sizeof(*gid)))
				continue;
			rdma->port = port;
			rdma->gid_index = index;
			// From 256 bytes (1) to 4096 (5).
			rdma->mtu_bytes = 128u << attributes.active_mtu;
			return 0;
		}
	}
	return result;
}

static int open_card(struct fide_rdma *rdma, uint32_t ifindex, const union ibv_gid *gid, const char **step)
{
	struct ibv_device **cards;
	int result = ENODEV;

	*step = "list of RDMA devices";
	errno = 0;
	cards = ibv_get_device_list(NULL);
	if (!cards)
		// A kernel without RDMA has no devices.
		return errno == ENOSYS ? ENODEV : reason();
	for (struct ibv_device **card = cards; *card && result; card++) {
		int matched;

		rdma->context = ibv_open_device(*card);
		if (!rdma->context)
			continue;
		matched = match(rdma, ifindex, gid);
		if (matched) {
			ibv_close_device(rdma->context);
			rdma->context = NULL;
		}
		if (matched != ENODEV)
			result = matched;
	}
	ibv_free_device_list(cards);
	return result;
}

// A card that accepts less within a request refuses; then half of it is tried.
static int make_pair(struct fide_rdma *rdma)
{
	for (uint32_t inline_bytes = rdma->mtu_bytes;; inline_bytes /= 2) {
		struct ibv_qp_init_attr wanted = {
			.send_cq = rdma->sent,
			.recv_cq = rdma->received,
			.cap = {
				.max_send_wr = FIDE_RDMA_SEND_RING,
				.max_recv_wr = FIDE_RDMA_RECEIVE_RING,
				.max_send_sge = 1,
				.max_recv_sge = 1,
				.max_inline_data = inline_bytes,
			},
			.qp_type = IBV_QPT_UD,
			.sq_sig_all = 1,
		};

		errno = 0;
		rdma->pair = ibv_create_qp(rdma->domain, &wanted);
		if (rdma->pair) {
			rdma->inline_bytes = wanted.cap.max_inline_data;
			return 0;
		}
		if (!inline_bytes)
			return reason();
	}
}

static int start_pair(struct fide_rdma *rdma)
{
	struct ibv_qp_attr to = { .qp_state = IBV_QPS_INIT, .port_num = rdma->port, .qkey = FIDE_RDMA_QKEY };
	int result = ibv_modify_qp(rdma->pair, &to, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);

	// Post the receive slots first: nothing can arrive before there is room for it.
	for (uint32_t slot = 0; !result && slot < FIDE_RDMA_RECEIVE_RING; slot++)
		result = fide_rdma_give_back(rdma, slot);
	to.qp_state = IBV_QPS_RTR;
	if (!result)
		result = ibv_modify_qp(rdma->pair, &to, IBV_QP_STATE);
	to.qp_state = IBV_QPS_RTS;
	if (!result)
		result = ibv_modify_qp(rdma->pair, &to, IBV_QP_STATE | IBV_QP_SQ_PSN);
	return result;
}

static int set_up(struct fide_rdma *rdma, const char **step)
{
	*step = "protection domain";
	errno = 0;
	rdma->domain = ibv_alloc_pd(rdma->context);
	if (!rdma->domain)
		return reason();
	*step = "memory";
	rdma->memory = aligned_alloc(PAGE_BYTES, (size_t)SLOTS * SLOT_BYTES);
	if (!rdma->memory)
		return ENOMEM;
	memset(rdma->memory, 0, (size_t)SLOTS * SLOT_BYTES);
	*step = "registering memory (`ulimit -l` has to allow it)";
	errno = 0;
	rdma->region = ibv_reg_mr(rdma->domain, rdma->memory, (size_t)SLOTS * SLOT_BYTES, IBV_ACCESS_LOCAL_WRITE);
	if (!rdma->region)
		return reason();
	*step = "completion queues";
	errno = 0;
	rdma->received = ibv_create_cq(rdma->context, FIDE_RDMA_RECEIVE_RING, NULL, NULL, 0);
	rdma->sent = rdma->received ? ibv_create_cq(rdma->context, FIDE_RDMA_SEND_RING, NULL, NULL, 0) : NULL;
	if (!rdma->sent)
		return reason();
	*step = "queue pair";
	return make_pair(rdma);
}

int fide_rdma_open(uint32_t ifindex, const uint8_t address[4], uint8_t traffic_class, struct fide_rdma **opened,
		   struct fide_rdma_found *found, const char **step)
{
	struct fide_rdma *rdma = calloc(1, sizeof(*rdma));
	union ibv_gid gid = mapped(address);
	int result;

	*step = "memory";
	if (!rdma)
		return ENOMEM;
	rdma->traffic_class = traffic_class;
	result = open_card(rdma, ifindex, &gid, step);
	if (!result)
		result = set_up(rdma, step);
	if (!result) {
		*step = "starting the queue pair";
		result = start_pair(rdma);
	}
	if (result) {
		fide_rdma_close(rdma);
		return result;
	}
	*found = (struct fide_rdma_found){
		.qpn = rdma->pair->qp_num,
		.mtu_bytes = rdma->mtu_bytes,
		.inline_bytes = rdma->inline_bytes,
	};
	strncpy(found->device, ibv_get_device_name(rdma->context->device), sizeof(found->device) - 1);
	*opened = rdma;
	return 0;
}

void fide_rdma_close(struct fide_rdma *rdma)
{
	if (rdma->pair)
		ibv_destroy_qp(rdma->pair);
	if (rdma->sent)
		ibv_destroy_cq(rdma->sent);
	if (rdma->received)
		ibv_destroy_cq(rdma->received);
	if (rdma->region)
		ibv_dereg_mr(rdma->region);
	if (rdma->domain)
		ibv_dealloc_pd(rdma->domain);
	if (rdma->context)
		ibv_close_device(rdma->context);
	free(rdma->memory);
	free(rdma);
}

int fide_rdma_handle(struct fide_rdma *rdma, const uint8_t address[4], struct ibv_ah **handle)
{
	struct ibv_ah_attr to = {
		.grh = {
			.dgid = mapped(address),
			.sgid_index = rdma->gid_index,
			.hop_limit = HOPS,
			.traffic_class = rdma->traffic_class,
		},
		.is_global = 1,
		.port_num = rdma->port,
	};

	errno = 0;
	*handle = ibv_create_ah(rdma->domain, &to);
	return *handle ? 0 : reason();
}

void fide_rdma_forget(struct ibv_ah *handle)
{
	ibv_destroy_ah(handle);
}

int fide_rdma_send(struct fide_rdma *rdma, struct ibv_ah *handle, uint32_t qpn, const void *data, uint32_t bytes)
{
	bool with_request = bytes <= rdma->inline_bytes;
	struct ibv_wc done[FIDE_RDMA_SEND_RING];
	struct ibv_send_wr *refused;
	struct ibv_sge part;
	struct ibv_send_wr request = { .sg_list = &part, .num_sge = 1, .opcode = IBV_WR_SEND };
	uint8_t *slot;
	int count, result;

	if (bytes > rdma->mtu_bytes)
		return EMSGSIZE;
	count = ibv_poll_cq(rdma->sent, FIDE_RDMA_SEND_RING, done);
	if (count < 0)
		return EIO;
	rdma->sending -= count;
	for (int i = 0; i < count; i++)
		if (done[i].status != IBV_WC_SUCCESS)
			return EIO;
	if (rdma->sending == FIDE_RDMA_SEND_RING)
		return EAGAIN;
	// Requests are done in order: the slot of the oldest is the next one free.
	slot = rdma->memory + (size_t)(FIDE_RDMA_RECEIVE_RING + rdma->next_slot) * SLOT_BYTES;
	if (!with_request)
		memcpy(slot, data, bytes);
	part = (struct ibv_sge){
		.addr = with_request ? (uintptr_t)data : (uintptr_t)slot,
		.length = bytes,
		.lkey = rdma->region->lkey,
	};
	request.send_flags = with_request ? IBV_SEND_INLINE : 0;
	request.wr.ud.ah = handle;
	request.wr.ud.remote_qpn = qpn;
	request.wr.ud.remote_qkey = FIDE_RDMA_QKEY;
	result = ibv_post_send(rdma->pair, &request, &refused);
	if (result)
		return result;
	rdma->sending++;
	rdma->next_slot = (rdma->next_slot + 1) % FIDE_RDMA_SEND_RING;
	return 0;
}

int fide_rdma_take(struct fide_rdma *rdma, struct fide_rdma_arrived *arrived)
{
	struct ibv_wc done;
	const uint8_t *slot;
	int count = ibv_poll_cq(rdma->received, 1, &done);

	if (count <= 0)
		return count ? -EIO : 0;
	// Posted requests come back unused when the card is gone or was reset.
	if (done.status != IBV_WC_SUCCESS)
		return done.status == IBV_WC_WR_FLUSH_ERR ? -ENETDOWN : -EIO;
	slot = rdma->memory + done.wr_id * SLOT_BYTES;
	arrived->data = slot + ROUTING_BYTES;
	arrived->bytes = done.byte_len > ROUTING_BYTES ? done.byte_len - ROUTING_BYTES : 0;
	arrived->slot = done.wr_id;
	arrived->from_qpn = done.src_qp;
	memset(arrived->from, 0, sizeof(arrived->from));
	// Version 4 without options, and UDP.
	if ((done.wc_flags & IBV_WC_GRH) && slot[IP_HEADER_AT] == 0x45 && slot[IP_PROTOCOL_AT] == IPPROTO_UDP)
		memcpy(arrived->from, slot + IP_SOURCE_AT, sizeof(arrived->from));
	return 1;
}

int fide_rdma_give_back(struct fide_rdma *rdma, uint32_t slot)
{
	struct ibv_sge room = {
		.addr = (uintptr_t)(rdma->memory + (size_t)slot * SLOT_BYTES),
		.length = ROUTING_BYTES + MTU_MAX,
		.lkey = rdma->region->lkey,
	};
	struct ibv_recv_wr request = { .wr_id = slot, .sg_list = &room, .num_sge = 1 };
	struct ibv_recv_wr *refused;

	return ibv_post_recv(rdma->pair, &request, &refused);
}
