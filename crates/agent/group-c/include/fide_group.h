/* SPDX-License-Identifier: Apache-2.0 */
/* Generated from crates/agent/group-c/src; do not edit.
 *
 * A member of a group: processes, at most one on each host, that agree on a log of values. Link with -lfide.
 *
 * All functions that return int or int64_t give a negative errno on failure; fide_last_error() of fide.h then says what
 * was wrong and what would be right. A handle is used by one thread at a time: a call during another one gives -EDEADLK.
 * No function calls back. Texts are UTF-8 and end with a NUL. Lengths are in bytes; times have their unit in the name.
 */

#ifndef FIDE_GROUP_H
#define FIDE_GROUP_H

#include <fide.h>
#include <stddef.h>
#include <stdint.h>

// Longest value of fide_group_propose under FIDE_GROUP_PROTOCOL_HSUC, in bytes.
#define FIDE_GROUP_VALUE_MAX 1377

// Longest value of fide_group_propose under FIDE_GROUP_PROTOCOL_HUC, in bytes.
#define FIDE_GROUP_HUC_VALUE_MAX 859

// Most hosts of a group.
#define FIDE_GROUP_HOSTS_MAX 64

// Why a host does not take a payload.
typedef enum fide_group_reason {
  // Longer than its payload_max_bytes.
  FIDE_GROUP_REASON_TOO_LONG = 1,
  // Longer than it ever has room for.
  FIDE_GROUP_REASON_BEYOND_ROOM = 2,
  // What arrived was not the payload, again and again.
  FIDE_GROUP_REASON_WRONG = 3,
  // It dropped the payload before all of it had arrived.
  FIDE_GROUP_REASON_FORGOTTEN = 4,
} fide_group_reason;

// What was decided.
typedef enum fide_group_entry {
  // A value of fide_group_propose.
  FIDE_GROUP_ENTRY_VALUE = 1,
  // A payload of fide_group_propose_payload.
  FIDE_GROUP_ENTRY_PAYLOAD = 2,
  // The members from the next position on; `data` is NULL.
  FIDE_GROUP_ENTRY_VIEW = 3,
} fide_group_entry;

// What a host is to its group.
typedef enum fide_standing {
  // No member yet, or excluded: it founds the group with the others, or has asked to be let in.
  FIDE_STANDING_JOINING = 1,
  // A member.
  FIDE_STANDING_MEMBER = 2,
  // A view without it was decided. The others may still need it: go on calling fide_group_wait.
  FIDE_STANDING_LEAVING = 3,
  // A view without it has begun: the process may end.
  FIDE_STANDING_REMOVED = 4,
  // It has left.
  FIDE_STANDING_LEFT = 5,
  // A decided payload is not stored here. This never happens; if it does, end the process and start it
  // again.
  FIDE_STANDING_LACKING = 6,
} fide_standing;

// How members agree.
typedef enum fide_group_protocol {
  // The leader proposes, and a decision takes one round trip.
  FIDE_GROUP_PROTOCOL_HSUC = 0,
  // Any member proposes, and a decision goes with the leader's next heartbeat.
  FIDE_GROUP_PROTOCOL_HUC = 1,
} fide_group_protocol;

// A member of a group, or a host that wants to be one.
typedef struct fide_group_t fide_group_t;

// Which group, and how to be in it. Set `size` to sizeof(fide_group_options) and what is not needed to 0
// or NULL. The same at all hosts, but for `state_dir`, `socket`, `program` and `call_timeout_ms`.
typedef struct fide_group_options {
  // sizeof(fide_group_options).
  size_t size;
  // Name of the group, and of its processes: 1 to 31 of A-Za-z0-9._-.
  const char *group;
  // Names of the hosts that may be members. All of them have to be up once, for the group to begin.
  const char *const *hosts;
  // Number of hosts, 1 to FIDE_GROUP_HOSTS_MAX.
  size_t hosts_len;
  // The secret of the group: 32 hexadecimal digits; white space around them is ignored.
  const char *key;
  // The directory in which this host keeps its record of the group; it is made if it is not there.
  const char *state_dir;
  // The agent's socket; NULL: $FIDE_SOCKET, else /run/fide/agent.sock.
  const char *socket;
  // Name of the program, shown to people; NULL: the executable's name.
  const char *program;
  // How long a call waits for the agent's answer; 0: 5000.
  uint32_t call_timeout_ms;
  // A fide_group_protocol.
  uint32_t protocol;
  // Instances under way at once under FIDE_GROUP_PROTOCOL_HSUC, 1 to 1024; 0: 32.
  uint32_t window;
  // UDP port on each plane, at most 65535; 0: 7431.
  uint32_t port;
  // Interval between two resends of unanswered messages; 0: 3000.
  uint32_t resend_us;
  // 1: decisions are delivered once they are on the disks of most members, and the group comes back from them
  // when all its processes have ended; 0: they are not stored. The same at all hosts.
  uint32_t durable;
  // Most bytes of decisions that are kept while a host joins, at most `payload_max_bytes`; 0: 32 MiB.
  uint64_t tail_max_bytes;
  // Longest payload and longest state, in bytes; 0: 64 MiB.
  uint64_t payload_max_bytes;
  // Of a durable member: bytes of its log after which fide_group_wants_base is 1; 0: 64 MiB.
  uint64_t compact_bytes;
} fide_group_options;

// What identifies a payload.
typedef struct fide_group_identity {
  // Bytes of the payload, and of what the group adds to it.
  uint64_t len;
  // Their BLAKE3.
  uint8_t hash[32];
} fide_group_identity;

// A payload that another host does not take. Set `size` to sizeof(fide_group_refusal).
typedef struct fide_group_refusal {
  // sizeof(fide_group_refusal).
  size_t size;
  // Which payload.
  struct fide_group_identity identity;
  // Why.
  enum fide_group_reason reason;
  // The host.
  uint16_t host_id;
} fide_group_refusal;

// One decided entry. Set `size` to sizeof(fide_group_decision).
typedef struct fide_group_decision {
  // sizeof(fide_group_decision).
  size_t size;
  // Position in the log, from 1. Several entries may have one position.
  uint64_t position;
  // The bytes, as they were proposed; NULL for a view. Valid until the next call with this handle whose
  // parameter is not const.
  const void *data;
  // Number of bytes.
  size_t len;
  // What it is.
  enum fide_group_entry entry;
  // Of a view: its number, from 1; else 0.
  uint32_t view_number;
  // Of a view: bit id-1 for each member; else 0.
  uint64_t view_members;
  // Of a payload; else zero.
  struct fide_group_identity identity;
} fide_group_decision;

// A state of the service. Set `size` to sizeof(fide_group_state).
typedef struct fide_group_state {
  // sizeof(fide_group_state).
  size_t size;
  // All decisions up to this position are in it.
  uint64_t position;
  // The bytes, as a member gave them. Valid until the next call with this handle whose parameter is not
  // const.
  const void *data;
  // Number of bytes.
  size_t len;
} fide_group_state;

// A member of a view.
typedef struct fide_group_member {
  // Incarnation of the member, from 1.
  uint32_t incarnation;
  // Its host.
  uint16_t host_id;
  // Zero.
  uint16_t reserved;
} fide_group_member;

// The members that agree. Set `size` to sizeof(fide_group_view).
typedef struct fide_group_view {
  // sizeof(fide_group_view).
  size_t size;
  // Number of the view, from 1.
  uint32_t number;
  // Number of members.
  uint32_t members_len;
  // The members by seniority: a new one comes last.
  struct fide_group_member members[FIDE_GROUP_HOSTS_MAX];
} fide_group_view;

// What a member has counted since it began. Set `size` to sizeof(fide_group_counters).
typedef struct fide_group_counters {
  // sizeof(fide_group_counters).
  size_t size;
  // Packets without a valid tag of the group: of another key, or damaged.
  uint64_t packets_refused;
  // Packets of processes that are not known to be up, any more or yet.
  uint64_t packets_of_strangers;
  // Datagrams that the group refused, mostly as they are of another view; they are sent again.
  uint64_t datagrams_refused;
  // Trains of packets given to the kernel.
  uint64_t trains_sent;
  // Trains that the kernel did not take, of those.
  uint64_t trains_lost;
  // Messages handed to the agent for a heartbeat.
  uint64_t broadcasts_sent;
  // Messages for which a heartbeat had no room, of those; they are sent as packets later.
  uint64_t broadcasts_declined;
} fide_group_counters;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Joins with the agent of this host, and begins to found or join the group; fide_group_wait does the rest.
// On success `*out` is the handle, to be used by one thread at a time. Returns 0 or a negative errno:
// -EINVAL for options that cannot be (the message names the field), -ENOENT or -ECONNREFUSED without an
// agent, -EHOSTUNREACH for an unknown host, -EBUSY if another process of the group runs on this host,
// -EADDRINUSE for a port in use, -EBADMSG for a damaged record or log, -ERANGE if heartbeats are too short for
// FIDE_GROUP_PROTOCOL_HUC.
int fide_group_open(const struct fide_group_options *options, fide_group_t **out);

// Ends the use of a handle; NULL is allowed. This does not take the member out of the group: until the
// process ends the others wait for it, unless its standing is FIDE_STANDING_REMOVED. So end the process
// next.
void fide_group_close(fide_group_t *group);

// A descriptor that is readable when fide_group_wait has something to take; for select, poll, epoll or an
// event library. It belongs to the handle. A program with a loop of its own calls fide_group_wait with a
// timeout of 0 when it is readable, and at least every `resend_us` (3000 us by default).
int fide_group_fd(const fide_group_t *group);

// Watches a descriptor of the program: fide_group_wait also ends when it is readable or at its end. Closing
// the descriptor ends that. Returns 0 or a negative errno: -EBADF for no open descriptor, -EEXIST if it is
// watched already, -EPERM for a plain file, which is always readable.
int fide_group_watch(fide_group_t *group, int fd);

// Sends what has to be sent, then waits until something has come, at most `timeout_ms` (0: not at all,
// negative: for ever). To be called again and again: everything happens in it. Then take a state with
// fide_group_poll_install and decisions with fide_group_poll_decision until there is none, and give a state
// if fide_group_wants_state says so. Returns 1 if a watched descriptor was readable, 0 if not (also after a
// signal), or a negative errno: this process cannot go on. An agent that has ended, or a full disk, is no
// error.
int fide_group_wait(fide_group_t *group, int timeout_ms);

// Proposes a value for one of the next positions. Under FIDE_GROUP_PROTOCOL_HSUC values that are proposed
// between two calls of fide_group_wait travel together. A value is decided once fide_group_poll_decision
// has it; if this member or the leader dies before, it may never be. Returns 0, or a negative errno, and
// nothing has changed: -EREMOTE if another member leads (fide_group_leader), -EAGAIN until the next
// decision, -EBUSY while the members change, -ESTALE without a lease or membership, -EMSGSIZE beyond
// FIDE_GROUP_VALUE_MAX or FIDE_GROUP_HUC_VALUE_MAX.
int fide_group_propose(fide_group_t *group, const void *data, size_t len);

// Proposes a value of up to `payload_max_bytes`. It is sent ahead, and decided once all live members store
// it. `identity` may be NULL. Returns as fide_group_propose does, and -ENOSPC or -EAGAIN while too many
// payloads are under way.
int fide_group_propose_payload(fide_group_t *group, const void *data, size_t len, struct fide_group_identity *identity);

// The next payload of this member that another host does not take: it is not decided. Returns 1 with
// `*refusal`, 0 if there is none, or a negative errno.
int fide_group_poll_refused(fide_group_t *group, struct fide_group_refusal *refusal);

// The next decided entry, the same in the same order at all members. Returns 1 with `*decision`, 0 if there
// is none now, or a negative errno.
int fide_group_poll_decision(fide_group_t *group, struct fide_group_decision *decision);

// All entries up to this position were taken here; 0 before the first. Negative errno on an error.
int64_t fide_group_position(const fide_group_t *group);

// Whether a question about the state may be answered from here now: 1 if this member leads, its lease holds,
// and everything ever decided was taken; 0 if not; negative (so: do not answer) on an error.
int fide_group_may_answer(const fide_group_t *group);

// The position up to which the log may be decided anywhere. A question that is asked now may be answered at
// any member, once fide_group_position is that far, all of it is applied, and if the standing is
// FIDE_STANDING_MEMBER then. It may never get that far: after some time, ask the leader. Returns 1
// with `*position`, 0 if this member may not answer, or a negative errno.
int fide_group_may_be_decided(const fide_group_t *group, uint64_t *position);

// Whether a host that joins wants this service's state: 1 or 0. To be asked once
// fide_group_poll_decision has returned 0 and everything is applied. Negative errno on an error.
int fide_group_wants_state(const fide_group_t *group);

// Gives the service's state: after every entry that was taken, and nothing else. The bytes are copied.
// Returns 0, or a negative errno: -EMSGSIZE beyond `payload_max_bytes`, -ENOSPC while there is no room (the
// host asks again), -EBUSY while entries are left to be taken.
int fide_group_give_state(fide_group_t *group, const void *data, size_t len);

// Whether the service's state is to be stored, as a durable member's log is long, or its disk has no state to
// begin with: 1 or 0. To be asked as fide_group_wants_state is. Negative errno on an error.
int fide_group_wants_base(const fide_group_t *group);

// The service's state, with which a durable member's log begins from now on: after every entry that was taken, and
// nothing else. The bytes are copied, and stored in one of the next calls of fide_group_wait. Returns 0, or
// -EBUSY while entries are left to be taken, or another negative errno.
int fide_group_store_base(fide_group_t *group, const void *data, size_t len);

// A state that has to replace the service's own. From this call on it counts as the service's: the next
// decisions are those after its position. To be called after each fide_group_wait, before the decisions are
// taken. Returns 1 with `*state`, 0 if there is none, or a negative errno.
int fide_group_poll_install(fide_group_t *group, struct fide_group_state *state);

// The state of fide_group_poll_install, to look at: a service may fetch a longer state with what is in it,
// in its own way, and say so by fide_group_installed_at. It is another one, or none, after each
// fide_group_wait. Returns 1 with `*state`, 0 if there is none, or a negative errno.
int fide_group_offered_state(const fide_group_t *group, struct fide_group_state *state);

// The service begins to replace its state by the one of fide_group_offered_state, and has none until that
// is done: the group does not count on its former state any more.
int fide_group_state_dropped(fide_group_t *group);

// The service cannot have the state of fide_group_offered_state, for example as the host that it names is
// dead: another one is asked for. Does nothing if there is no offer. Returns 0, or a negative errno.
int fide_group_decline_offer(fide_group_t *group);

// The service has replaced its state by the one after the decisions up to `position`, which is at least that
// of fide_group_offered_state. Returns 0, or -EINVAL if there is no such offer, and nothing has changed.
int fide_group_installed_at(fide_group_t *group, uint64_t position);

// What this host is to its group, as far as it knows: a fide_standing, or a negative errno. The lease
// is not checked: before any act that others may see, ask fide_group_may_answer or fide_group_may_act.
int fide_group_standing(const fide_group_t *group);

// Whether this host leads, as far as it knows: 1, 0, or a negative errno. It says where to propose; whether
// a question may be answered says fide_group_may_answer.
int fide_group_leads(const fide_group_t *group);

// Id of the host that leads, as far as this one knows: from 1; 0 if none is known; or a negative errno.
int fide_group_leader(const fide_group_t *group);

// Id of this host, from 1, or a negative errno.
int fide_group_host_id(const fide_group_t *group);

// Name of a host of the cluster; NULL if there is none with this id, or on an error. Valid until the handle
// is closed.
const char *fide_group_host_name(const fide_group_t *group, int host_id);

// The present view: 1 with `*view`, 0 if there is none yet, or a negative errno.
int fide_group_members(const fide_group_t *group, struct fide_group_view *view);

// Whether a decision needs another member, one that is not known to have died: 1, 0, or a negative errno.
int fide_group_has_others(const fide_group_t *group);

// Whether this host has a record that it was in the group before: 1, 0, or a negative errno.
int fide_group_was_member(const fide_group_t *group);

// Takes a member out of the group, also this one. To be called at the leader. A member that is taken out
// goes on calling fide_group_wait until its standing is FIDE_STANDING_REMOVED, and may end then.
// Returns 0, or a negative errno: -EREMOTE if another member leads, -ENOENT if that host is no member,
// -EBUSY if this leader is itself being taken out, -ESTALE without a lease or membership.
int fide_group_remove(fide_group_t *group, int host_id);

// Has another member lead: the next view has the same members, that one first. To be called at the leader.
// Returns 0, or a negative errno: -EREMOTE if another member leads, -ENOENT if that host is no member,
// -EALREADY if it leads, -EHOSTDOWN if it is dead, -EAGAIN if it has not the state yet, -EBUSY while the members change,
// -ESTALE without a lease or membership.
int fide_group_hand_over(fide_group_t *group,
                         int host_id);

// As fide_may_act: whether this program may act now, as what, and until when. 1 if it may: `*permit` has the
// rest. 0 if it is fenced: `*permit` is not changed. Negative (so: do not act) on an error.
int fide_group_may_act(const fide_group_t *group, fide_permit *permit);

// CLOCK_MONOTONIC here when the last death of a member became known, in nanoseconds; 0 for none; or a
// negative errno.
int64_t fide_group_death_ns(const fide_group_t *group);

// What a host that is no member yet waits for, for people; NULL if it is a member, or on an error. A wrong
// key or port is named as the cause after two seconds. Valid until the next call of this function.
const char *fide_group_waits_for(fide_group_t *group);

// What this member could not store, and why, for people; mostly a full disk. NULL if there is nothing, or on
// an error. It tries again by itself. Valid until the next call of this function.
const char *fide_group_unstored(fide_group_t *group);

// What this member has counted since it began. Returns 0 or a negative errno.
int fide_group_counters_of(const fide_group_t *group, struct fide_group_counters *counters);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FIDE_GROUP_H */
