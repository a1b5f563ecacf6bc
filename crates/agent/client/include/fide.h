/* SPDX-License-Identifier: Apache-2.0 */
/* Generated from crates/agent/client/src/capi.rs; do not edit.
 *
 * Fide tells that a process or a host has died, and carries messages with a latency contract. Link with -lfide.
 *
 * All functions that return int give a negative errno on failure; fide_last_error() then says what was wrong and what
 * would be right. A handle may be used from several threads. Upcalls run on the thread that dispatches.
 */

#ifndef FIDE_H
#define FIDE_H

#include <stddef.h>
#include <stdint.h>

// Stands for a latency or jitter without bound (X-Lane, Listing 1: UNBOUNDED).
#define FIDE_UNBOUNDED -1

// Why a verdict was given.
typedef enum fide_reason {
  // No verdict (in on_up).
  FIDE_REASON_NONE = 0,
  // Exited by itself; `code` is the exit code. Certain.
  FIDE_REASON_EXITED = 1,
  // Killed; `code` is the signal. Certain.
  FIDE_REASON_KILLED = 2,
  // Said goodbye; no failure.
  FIDE_REASON_LEFT = 3,
  // No heartbeat of its host came within the timeout.
  FIDE_REASON_HOST_SILENT = 4,
  // Its beats stopped; not final, no failure yet.
  FIDE_REASON_STALLED = 6,
  // Its beats came back.
  FIDE_REASON_RECOVERED = 7,
} fide_reason;

// The kind of a notice.
typedef enum fide_notice_kind {
  // This host must not act.
  FIDE_NOTICE_KIND_FENCED = 1,
  // This host may act again.
  FIDE_NOTICE_KIND_UNFENCED = 2,
  // One plane (`value`) to `host_id` is silent; no death.
  FIDE_NOTICE_KIND_PATH_LOST = 3,
  // That plane is back.
  FIDE_NOTICE_KIND_PATH_RESTORED = 4,
  // This host has incarnation `value` now: it was excluded, or its agent started anew. Others have
  // declared dead everything that ran here. This program is fenced until fide_rejoined_acknowledge.
  FIDE_NOTICE_KIND_REJOINED = 5,
  // This observer did not run on time; its suspicion of `host_id` was withheld.
  FIDE_NOTICE_KIND_OBSERVER_STALLED = 6,
  // The agent went away; `text` says how. The library looks for it.
  FIDE_NOTICE_KIND_DETACHED = 7,
  // An agent is back; `value` 1: with the old session, 0: everything was registered again.
  FIDE_NOTICE_KIND_REATTACHED = 8,
  // A new agent refused to register `text` again: a process, monitor, lane or service.
  FIDE_NOTICE_KIND_DROPPED = 9,
  // `value` events were lost in a full ring: ask fide_peer_state.
  FIDE_NOTICE_KIND_LOST = 10,
  // The thread of fide_start ends after this upcall; `text` says why. No more events follow until
  // fide_start or fide_dispatch succeeds: close the handle and open another. Whether to act is still
  // known.
  FIDE_NOTICE_KIND_DISPATCH_ENDED = 11,
} fide_notice_kind;

// Why a lane's terms have changed (X-Lane, Listing 1: Reason).
typedef enum fide_lane_reason {
  // A reason of a later version.
  FIDE_LANE_REASON_OTHER = 0,
  // Traffic engineering: other lanes came, went or moved.
  FIDE_LANE_REASON_TE = 1,
  // It sent more than agreed: best effort from now on, until fide_lane_change.
  FIDE_LANE_REASON_BW_EXCEEDED = 2,
  // It used less than half of its bandwidth.
  FIDE_LANE_REASON_BW_UNUSED = 3,
} fide_lane_reason;

// The state of a peer.
typedef enum fide_state {
  // Not seen yet.
  FIDE_STATE_UNKNOWN = 0,
  // Alive.
  FIDE_STATE_ALIVE = 1,
  // Dead, or gone.
  FIDE_STATE_DEAD = 2,
} fide_state;

// Sub-lanes: a switch sends all packets of one before any packet of the next.
typedef enum fide_sub_lane {
  // The usual one.
  FIDE_SUB_LANE_SERVICES = 0,
  // The sub-lane of heartbeats, before all others: for messages as short and as rare.
  FIDE_SUB_LANE_HEARTBEATS = 1,
} fide_sub_lane;

// A connection to the agent of this host.
typedef struct fide_t fide_t;

// How to connect. Set `size` to sizeof(fide_options) and everything else to 0 for the defaults.
typedef struct fide_options {
  // sizeof(fide_options).
  size_t size;
  // The agent's socket; NULL: $FIDE_SOCKET, else /run/fide/agent.sock.
  const char *socket;
  // Name of the program, shown to people; NULL: the executable's name.
  const char *program;
  // How long to spin before sleeping in fide_dispatch; 0: never.
  uint64_t spin_ns;
  // How long a call waits for the agent's answer; 0: 5000.
  uint32_t call_timeout_ms;
} fide_options;

// A monitor's wishes, or what it was granted (FiDe, Listing 1: resources).
typedef struct fide_resources {
  // Timeout in microseconds; wanted: 0 for the shortest possible.
  uint32_t timeout_us;
  // Piggyback bytes per heartbeat.
  uint32_t pbsize;
} fide_resources;

// A permit to act: as what, and until when. Set `size` to sizeof(fide_permit).
typedef struct fide_permit {
  // sizeof(fide_permit).
  size_t size;
  // CLOCK_MONOTONIC at the time of asking.
  uint64_t now_ns;
  // CLOCK_MONOTONIC after which it is over, unless asked for again; UINT64_MAX without limit.
  uint64_t until_ns;
  // Id of the agreed view: the view with the larger `view_generation` is newer, and among equals the one
  // with the larger `view_number`. Both 0: there is none (policy = "network").
  uint32_t view_generation;
  // See `view_generation`.
  uint32_t view_number;
  // Bit id-1: a member of the view.
  uint64_t view_members;
  // CLOCK_MONOTONIC here from which no host acts by an older view. A program that takes a role over from
  // a live host waits until then.
  uint64_t view_settled_ns;
  // The incarnation that this host acts as.
  uint32_t incarnation;
  // Id of this host.
  uint16_t host_id;
  // 1: this host is the lowest member, and no other host acts as the lowest by an older view.
  uint8_t lowest;
  // Zero.
  uint8_t reserved;
  // The fencing token: 24 hexadecimal digits that sort as text, and a NUL. A resource should refuse a
  // lower token than the highest it has seen. Empty without a view.
  char token[25];
} fide_permit;

// A verdict: its subject, its reason, and how it is known. Valid during the upcall.
typedef struct fide_verdict {
  // Monitor id.
  int monitor;
  // Why.
  enum fide_reason reason;
  // "name@host" or "@host".
  const char *target;
  // Exit code or signal.
  int32_t code;
  // Incarnation of the subject.
  uint32_t incarnation;
  // Host id of the subject.
  uint16_t host_id;
  // Its slot; 255 for the host itself.
  uint8_t slot;
  // Plane that the packet came on.
  uint8_t plane;
  // 1 if delivered by the kernel's receive program itself.
  uint8_t direct;
  // Sequence number of the last heartbeat of its host.
  uint64_t seq;
  // CLOCK_MONOTONIC here when the packet was seen, or the verdict decided.
  uint64_t rx_ns;
  // CLOCK_MONOTONIC of the subject's host at its exit; 0 unknown.
  uint64_t at_ns;
} fide_verdict;

// A piggybacked message. Valid during the upcall.
typedef struct fide_message {
  // Monitor id.
  int monitor;
  // Incarnation of the sender.
  uint32_t incarnation;
  // "name@host" of the sender.
  const char *target;
  // The bytes.
  const void *data;
  // Number of bytes.
  size_t len;
  // Number of the message, from 1 on in each incarnation.
  uint64_t pb_seq;
  // CLOCK_MONOTONIC here when the packet was seen.
  uint64_t rx_ns;
} fide_message;

// Any other event. Valid during the upcall.
typedef struct fide_notice {
  // The kind of the notice.
  enum fide_notice_kind kind;
  // The host that it is about, if any.
  uint16_t host_id;
  // Depends on the kind.
  uint64_t value;
  // Depends on the kind; may be empty, never NULL.
  const char *text;
} fide_notice;

// A message that came over a lane. Valid during the upcall.
typedef struct fide_lane_message {
  // Host id of the sender.
  uint16_t host_id;
  // 1 to 255.
  uint8_t service;
  // Tree that the packet came over first.
  uint8_t plane;
  // Incarnation of the sender's agent.
  uint32_t incarnation;
  // Number of the packet: later packets of one sending lane have higher ones.
  uint64_t seq;
  // CLOCK_MONOTONIC here when the packet was seen.
  uint64_t rx_ns;
  // The bytes.
  const void *data;
  // Number of bytes.
  size_t len;
} fide_lane_message;

// The resources that a lane grants (X-Lane, Listing 1: resources).
typedef struct fide_lane_resources {
  // Shortest time between two packets.
  uint64_t period_ns;
  // From the sending host to the nearest receiver; FIDE_UNBOUNDED without bounds.
  int64_t min_latency_ns;
  // In addition, to the farthest receiver; FIDE_UNBOUNDED without bounds.
  int64_t max_jitter_ns;
  // Largest packet.
  uint32_t packet_max_bytes;
  // Longest message.
  uint32_t message_max_bytes;
  // 1: the latency is bounded. 0: best effort.
  uint8_t bounded;
  // Trees that its packets go over; 0 in on_bandwidth_changed, which does not report it.
  uint8_t trees;
} fide_lane_resources;

// The functions to call (FiDe, Listing 1: upcalls). Set `size` to sizeof(fide_upcalls); NULL for unused
// ones. The first argument of each is the one given to fide_set_upcalls.
typedef struct fide_upcalls {
  // sizeof(fide_upcalls).
  size_t size;
  // A target failed: exited, killed or host silent. Once per monitor and incarnation, never withdrawn.
  void (*on_failure)(void *user, const struct fide_verdict *verdict);
  // A message from a target.
  void (*on_piggyback_rcv)(void *user, const struct fide_message *message);
  // The timeout granted to a monitor changed.
  void (*on_timeout_changed)(void *user, int monitor, uint32_t timeout_us);
  // A program (`watcher`: "name@host" as far as known, on the host `watcher_host_id`) monitors this
  // process.
  void (*on_monitor_req)(void *user, int process, const char *watcher, uint16_t watcher_host_id, uint32_t pbsize);
  // The piggyback size granted to this process changed.
  void (*on_pbsize_changed)(void *user, int process, uint32_t pbsize);
  // A target is alive in this incarnation; comes before any verdict on it. `reason` is none.
  void (*on_up)(void *user, const struct fide_verdict *verdict);
  // A target left, stalled or recovered: no failure.
  void (*on_change)(void *user, const struct fide_verdict *verdict);
  // Any other event.
  void (*on_notice)(void *user, const struct fide_notice *notice);
  // A message for a service that fide_listen was called for.
  void (*on_lane_message)(void *user, const struct fide_lane_message *message);
  // A lane's terms have changed (X-Lane, Listing 1: bandwidthChanged). The previous terms hold for
  // `grace_ns` more.
  void (*on_bandwidth_changed)(void *user,
                               int lane,
                               const struct fide_lane_resources *resources,
                               enum fide_lane_reason reason,
                               uint64_t grace_ns);
  // A lane is over after `grace_ns` more (X-Lane, Listing 1: bandwidthTerminated). `why` is for people.
  void (*on_bandwidth_terminated)(void *user, int lane, const char *name, const char *why, uint64_t grace_ns);
} fide_upcalls;

// A request for a lane (X-Lane, Listing 1: request). Set `size` to sizeof(fide_lane_request) and unused
// fields to 0.
typedef struct fide_lane_request {
  // sizeof(fide_lane_request).
  size_t size;
  // Name of the lane on this host: 1 to 31 of A-Za-z0-9._-. Programs of one user that ask for the same
  // share it.
  const char *name;
  // Names of the receiving hosts.
  const char *const *receivers;
  // Number of receivers.
  size_t receivers_len;
  // Shortest time between two packets.
  uint64_t period_ns;
  // The lane is refused rather than later than this at any receiver; 0: no bound.
  uint64_t latency_max_ns;
  // Longest message, in bytes; at most 1160.
  uint32_t message_max_bytes;
  // Messages of that length in one period; 0: one.
  uint32_t messages_max;
  // A fide_sub_lane.
  uint32_t sub_lane;
  // Disjoint trees, 1 or 2; 0: as many as this host has planes.
  uint32_t redundancy;
} fide_lane_request;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Version of this library, such as "0.1.0".
const char *fide_version(void);

// The message of the last failed call of this thread. Valid until the next failing call of this thread;
// never NULL.
const char *fide_last_error(void);

// Connects to the agent of this host. `options` may be NULL. On success `*out` is the handle. Returns 0, or
// a negative errno: -ENOENT or -ECONNREFUSED without an agent, -EPROTONOSUPPORT for one of another version.
int fide_open(const struct fide_options *options, struct fide_t **out);

// Closes a handle, and stops its dispatcher thread. Processes that did not quit stay joined until they
// exit. NULL is allowed. Not from within an upcall.
void fide_close(struct fide_t *fide);

// Registers this process under `name` to be watched by others (FiDe, Listing 1: join). With
// `beat_timeout_us` above 0 it counts as stalled when fide_beat was not called for that long.
// Returns a process id (> 0) or a negative errno: -EEXIST if the name is taken, -EINVAL for a name
// that cannot be one.
int fide_join(struct fide_t *fide, const char *name, uint32_t beat_timeout_us);

// As fide_join, for the process `pid` (0: this one). -EPERM for a process of another user.
int fide_join_pid(struct fide_t *fide, const char *name, uint32_t pid, uint32_t beat_timeout_us);

// Ends a registration: watchers are notified that it left, which is no failure (FiDe, Listing 1: quit).
int fide_quit(struct fide_t *fide, int process);

// Watches "name@host", or "@host" for the host itself (FiDe, Listing 1: monitor). `wanted` may be NULL
// (the shortest timeout, no piggybacks), `granted` too. Returns a monitor id (> 0) or a negative errno:
// -EHOSTUNREACH for an unknown host, -ERANGE for a timeout that this host cannot hold.
int fide_monitor(struct fide_t *fide,
                 const char *target,
                 const struct fide_resources *wanted,
                 struct fide_resources *granted);

// Stops watching (FiDe, Listing 1: unmonitor).
int fide_unmonitor(struct fide_t *fide, int monitor);

// Sends bytes with the heartbeats, from the process that joined first (FiDe, Listing 1: piggyback).
// Returns 0; -EMSGSIZE above the granted size (trying again will not help), -EAGAIN while the outbox is
// full (try later), -ENOENT without a join.
int fide_piggyback(struct fide_t *fide, const void *data, size_t len);

// As fide_piggyback, for a program that waits for others' answers: the agent sends the message at once, up
// to twice between two heartbeats, and later messages with the next heartbeat. One system call.
int fide_piggyback_now(struct fide_t *fide, const void *data, size_t len);

// As fide_piggyback, from the process with this id.
int fide_piggyback_as(struct fide_t *fide, int process, const void *data, size_t len);

// "I make progress": one atomic addition, from any thread, without a lock.
int fide_beat(const struct fide_t *fide);

// Has the scheduler run the calling thread soon after it is woken: for the thread that calls
// fide_dispatch. Needs no privilege. 0, or -EINVAL before Linux 6.12 or for a thread that is not of the
// ordinary policy (nothing is changed then).
int fide_wake_eagerly(void);

// 1 if this program must not act now, 0 if it may; negative (so: do not act) on an error. No lock, no
// system call. 1 also from the moment that this host has another incarnation (see
// fide_rejoined_acknowledge). The answer is about the moment of asking: a resource that must not see a
// late write needs the token of fide_may_act.
int fide_is_fenced(const struct fide_t *fide);

// How many nanoseconds this host may still act if its agent's loop does not run again: 0 when fenced,
// INT64_MAX without limit (which no agent gives: under trust = "network" it is the shortest timeout). No
// lock, no system call.
int64_t fide_lease_remaining_ns(const struct fide_t *fide);

// Whether this program may act now, as what, and until when. 1 if it may: `*permit` has the rest. 0 if it
// is fenced: `*permit` is not changed. Negative (so: do not act) on an error. No lock, no system call.
int fide_may_act(const struct fide_t *fide, struct fide_permit *permit);

// This program acknowledges that its host is now `incarnation`, as FIDE_NOTICE_KIND_REJOINED reported. It
// knows that others have declared dead everything that ran here before, and may have replaced it, and it
// acts as a newcomer. Until then it is fenced. 0, or -ESTALE if that is not the last incarnation reported.
int fide_rejoined_acknowledge(struct fide_t *fide, uint32_t incarnation);

// The state of a monitor's target: a fide_state, or a negative errno.
int fide_peer_state(struct fide_t *fide, int monitor);

// The state of a host (1..) in the alive table: a fide_state, or a negative errno. No lock, no system
// call.
int fide_host_state(const struct fide_t *fide, uint16_t host_id);

// Id of this host in the cluster (1..), or a negative errno.
int fide_host_id(const struct fide_t *fide);

// Sets the functions to call, and their first argument. They run on the thread that dispatches. NULL
// removes them.
int fide_set_upcalls(struct fide_t *fide, const struct fide_upcalls *upcalls, void *user);

// A descriptor that is readable when fide_dispatch has something to do; for select, poll, epoll or an
// event library. It belongs to the handle.
int fide_fd(const struct fide_t *fide);

// Calls the upcalls for the events that are there. Without any, waits first, at most `timeout_ms` (0: not
// at all, negative: for ever). Returns how many events there were (0 when the time is over), -EINTR after
// a signal, or a negative errno.
int fide_dispatch(struct fide_t *fide, int timeout_ms);

// Starts a thread that dispatches for ever, for programs without an event loop. -EALREADY if there is one.
// If it cannot go on because the memory that it shares with the agent is damaged, it reports that by a
// last on_notice, FIDE_NOTICE_KIND_DISPATCH_ENDED.
int fide_start(struct fide_t *fide);

// Stops the dispatcher thread and waits for its end; allowed without one. -EDEADLK from within an upcall
// that it runs.
int fide_stop(struct fide_t *fide);

// Asks for a lane from this host to others (X-Lane, Listing 1: requestBandwidth). `granted` may be NULL.
// Returns a lane id (> 0) or a negative errno: -EOPNOTSUPP without a controller, -EBUSY if the network
// cannot hold it (the message names the link), -EEXIST if another lane of this host has that name,
// -EHOSTUNREACH for an unknown host. Returns when the switches are ready, usually within milliseconds; the
// handle's other calls and its upcalls wait for that, at most 20 s.
int fide_lane_open(struct fide_t *fide, const struct fide_lane_request *request, struct fide_lane_resources *granted);

// Asks for other terms for a lane, or for its bounds back (X-Lane, Listing 1: changeBandwidth). Its name
// stays; the request's name is ignored. 0, or a negative errno like fide_lane_open: then the lane is
// unchanged.
int fide_lane_change(struct fide_t *fide,
                     int lane,
                     const struct fide_lane_request *request,
                     struct fide_lane_resources *granted);

// Gives a lane back (X-Lane, Listing 1: releaseBandwidth). Messages that have not been sent are lost.
int fide_lane_close(struct fide_t *fide, int lane);

// Leaves a message of `service` (1 to 255) for a lane's next packet. Returns 0; -EMSGSIZE above the
// granted length, -EAGAIN while the outbox is full, -ENOTCONN while the agent is away, -ENOENT for a lane
// that is over. A message beyond the lane's terms is dropped all the same, see on_bandwidth_changed.
int fide_lane_send(struct fide_t *fide, int lane, uint8_t service, const void *data, size_t len);

// Receives the messages that other hosts send for `service` (1 to 255), as on_lane_message.
int fide_listen(struct fide_t *fide, uint8_t service);

// Stops receiving messages for `service`.
int fide_unlisten(struct fide_t *fide, uint8_t service);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FIDE_H */
