/* SPDX-License-Identifier: Apache-2.0 */
/* Generated from crates/transport/pace-c/src; do not edit.
 *
 * X-PACE: messages with deadlines between two applications, encrypted, and paced to the slowest step between them. Link with
 * -lfide_pace.
 *
 * All functions that return int or int64_t give a negative errno on failure; fide_pace_last_error() then says what was wrong and
 * what would be right. Endpoints and connections are numbers; one that is none, or was closed, gives -EBADF. All functions may be
 * called from several threads. Texts are UTF-8 and end with a NUL. Lengths are in bytes; times have their unit in the name.
 */

#ifndef FIDE_PACE_H
#define FIDE_PACE_H

#include <stddef.h>
#include <stdint.h>

// Bytes of a key's text, with its NUL.
#define FIDE_PACE_KEY_BYTES 64

// Bytes of an address' text, with its NUL.
#define FIDE_PACE_ADDRESS_BYTES 64

// Number of a fide_pace_view's steps.
#define FIDE_PACE_STEPS 5

// Kinds of keys that a server may have.
typedef enum fide_pace_key {
  // One secret for both ends.
  FIDE_PACE_KEY_SECRET = 0,
  // For the server alone; its clients have the public key that belongs to it.
  FIDE_PACE_KEY_PRIVATE = 1,
} fide_pace_key;

// Ways to control congestion.
typedef enum fide_pace_congestion {
  // Holds a queue of a part of one packet.
  FIDE_PACE_CONGESTION_LEVEL = 0,
  // BBR for datagrams, as X-PACE was published.
  FIDE_PACE_CONGESTION_XPACE = 1,
} fide_pace_congestion;

// The steps of a message from one application to the other.
typedef enum fide_pace_step {
  // The application that sends.
  FIDE_PACE_STEP_SEND = 0,
  // The transport at the sender.
  FIDE_PACE_STEP_TRANSMIT = 1,
  // The slowest link of the network.
  FIDE_PACE_STEP_NETWORK = 2,
  // The transport at the receiver.
  FIDE_PACE_STEP_RECEIVE = 3,
  // The application that receives.
  FIDE_PACE_STEP_DELIVER = 4,
} fide_pace_step;

// An endpoint: a socket and a thread. No number is one twice, and 0 is none.
typedef uint64_t fide_pace_endpoint;

// How connections are to be. Set `size` to sizeof(fide_pace_config), and what is not needed to 0.
typedef struct fide_pace_config {
  // sizeof(fide_pace_config).
  size_t size;
  // From sending to delivery; what is older is dropped. 0: 100000.
  uint64_t deadline_us;
  // The share of messages that may be lost, less than 1. 0: 0.001.
  double loss;
  // Messages that may wait at the sender, at most 4096. 0: 1.
  uint32_t queue;
  // A fide_pace_congestion.
  uint32_t congestion;
  // 1: both ways of the path take equally long. A deadline then has to be longer than one way, and else than a round trip; where they
  // do not, a message can be late by half of the difference.
  uint32_t even_ways;
  // After this time without a packet of the other end the connection is over (-ETIMEDOUT); at least 1000000, as an end that sends nothing
  // is heard each half second. 0: 30000000.
  uint64_t idle_us;
} fide_pace_config;

// A connection. No number is one twice, and 0 is none.
typedef uint64_t fide_pace_connection;

// A message that has come. Set `size` to sizeof(fide_pace_message).
typedef struct fide_pace_message {
  // sizeof(fide_pace_message).
  size_t size;
  // Its number, from 0 on; numbers that are skipped were lost.
  uint64_t number;
  // Its bytes.
  size_t len;
  // How long it is still in time: what is missing to the sender's deadline is its age, as far as the clocks are known. -1: not known, as
  // the connection is over, or a clock has stepped.
  int64_t expires_in_us;
} fide_pace_message;

// What is known of a way: from here to the other end, or from there to here. Set `size` to sizeof(fide_pace_view).
typedef struct fide_pace_view {
  // sizeof(fide_pace_view).
  size_t size;
  // The time that each fide_pace_step takes for a message; 0: not known yet.
  uint64_t pace_ns[FIDE_PACE_STEPS];
  // That of the slowest step: the time between two messages that nothing waits for; 0: not known yet.
  uint64_t bottleneck_pace_ns;
  // The slowest step, a fide_pace_step; -1: not known yet.
  int32_t bottleneck;
  // Messages that wait for the application at the end of the way.
  uint32_t waiting_there;
  // Bytes a second that the network takes; 0: not known yet, and of the way from there to here never.
  uint64_t network_bytes_per_s;
  // From sending to delivery, for a message that leaves at once.
  uint64_t delay_ns;
  // From one send of this application to the next; 0: it does not send periodically.
  uint64_t send_period_ns;
  // From one message of the other end to the next; 0: they do not come periodically.
  uint64_t receive_period_ns;
  // From one turn of this application to its next, as it sends on the way there, or takes messages on the way here, with all that it waits
  // for; 0: not known yet. Its own work alone is in `pace_ns`.
  uint64_t total_ns;
  // The mean time of packets on the way, by both ends' clocks; it may be wrong by `clock_uncertainty_us`. -1: not known yet.
  int64_t one_way_ns;
  // By how much the other end's clock is ahead, but for multiples of 2^32 us; 0 while `clock_uncertainty_us` is UINT64_MAX.
  int64_t clock_ahead_us;
  // By how much more or less that may be; UINT64_MAX: nothing is known of the clock yet.
  uint64_t clock_uncertainty_us;
  // How much faster the other end's clock runs, in microseconds for each second; 0: not known yet.
  int64_t drift_ppm;
} fide_pace_view;

// What became of messages so far. Set `size` to sizeof(fide_pace_counts).
typedef struct fide_pace_counts {
  // sizeof(fide_pace_counts).
  size_t size;
  // Messages taken from this application.
  uint64_t sent;
  // Of these, dropped here, as they could not arrive in time.
  uint64_t dropped;
  // Messages delivered to this application.
  uint64_t received;
  // Messages of the other end that were not: lost on their way, or late.
  uint64_t lost;
  // Of these, messages that were here when they expired.
  uint64_t late;
} fide_pace_counts;

// Called with a connection's view at a change of its bottleneck; `context` is as it was given. `view` is valid during the
// call.
typedef void (*fide_pace_on_change_fn)(void *context, const struct fide_pace_view *view);

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// What was wrong with the last failed call of this thread, and what would be right; empty before the first. It is valid
// until the next call of this thread fails.
const char *fide_pace_last_error(void);

// Makes a key for a server, of a kind that is a fide_pace_key, and writes its text: FIDE_PACE_KEY_BYTES at most.
// Returns 0; -EINVAL for another kind; -ENOSPC if there is less room.
int fide_pace_key_new(uint32_t kind, char *into, size_t len);

// Writes the key that the clients of a server have, FIDE_PACE_KEY_BYTES at most: the same secret, or the public key.
// Returns 0; -EINVAL if `server_key` is no server's; -ENOSPC if there is less room.
int fide_pace_key_for_clients(const char *server_key, char *into, size_t len);

// Makes an endpoint that only connects. On success `*out` is its handle. Returns 0, or the errno of the socket.
int fide_pace_client(fide_pace_endpoint *out);

// Makes an endpoint that accepts clients with a key, and connects, too. `address`: HOST:PORT, and port 0 for a free one.
// `config` is of the connections that it accepts; NULL: the defaults. On success `*out` is its handle. Returns 0; -EINVAL
// for an address, a key or a configuration that cannot be; -EADDRINUSE and others of the socket.
int fide_pace_server(const char *address,
                     const char *key,
                     const struct fide_pace_config *config,
                     fide_pace_endpoint *out);

// Writes where an endpoint is, FIDE_PACE_ADDRESS_BYTES at most. Returns 0; -EBADF if it is none; -ENOSPC if there is less
// room.
int fide_pace_local_address(fide_pace_endpoint endpoint,
                            char *into,
                            size_t len);

// Connects to HOST:PORT, and returns when the connection stands. `key`: of clients. `config`: NULL for the defaults. On
// success `*out` is its handle. Returns 0; -EBADF if `endpoint` is none; -EINVAL for an address, a key or a configuration that
// cannot be; -ECONNREFUSED if the other end has another key, another version, or too many connections; -ETIMEDOUT if nobody
// answers; -ENOSPC if there are as many connections as are allowed; -ESHUTDOWN if the endpoint was closed;
// -EAFNOSUPPORT if the endpoint is at an address of the other family.
int fide_pace_connect(fide_pace_endpoint endpoint,
                      const char *address,
                      const char *key,
                      const struct fide_pace_config *config,
                      fide_pace_connection *out);

// The next connection of a client; waits for it no longer than a time, or for ever if that is negative. On success `*out` is its
// handle. Returns 0; -EBADF if `endpoint` is none; -EOPNOTSUPP if it is a client; -EAGAIN if nobody has connected; -ESHUTDOWN
// if the endpoint was closed meanwhile.
int fide_pace_accept(fide_pace_endpoint endpoint,
                     int64_t timeout_us,
                     fide_pace_connection *out);

// Closes an endpoint: it takes and makes no more connections, and calls that wait for one return -ESHUTDOWN. Connections that
// stand go on. Returns 0; -EBADF if `endpoint` is none, or closed already.
int fide_pace_endpoint_close(fide_pace_endpoint endpoint);

// Sends a message, and returns when the next one may be made: a loop around it is paced to the slowest step. `deadline_us`:
// from now to the delivery; 0: as the connection is configured. Returns 0; -EBADF if `connection` is none; -EMSGSIZE for more
// than 4 MiB; -ETIME for a deadline in the past, or above half an hour; -EAGAIN if as many messages wait as are allowed, which happens only beside
// fide_pace_try_send; -EPIPE if the other end has closed the connection, -ESHUTDOWN if this one has, -ETIMEDOUT if the other
// one vanished, -EPROTO if it is at fault.
int fide_pace_send(fide_pace_connection connection,
                   const void *data,
                   size_t len,
                   int64_t deadline_us);

// Puts a message into the queue, and returns at once. Returns as fide_pace_send does; -EAGAIN if the queue is full.
int fide_pace_try_send(fide_pace_connection connection, const void *data, size_t len, int64_t deadline_us);

// Takes the next message into `into`; waits for it no longer than a time, or for ever if that is negative. `message`: what is
// told of it, or NULL. Returns its bytes; -EBADF if `connection` is none; -EAGAIN if none has come; -EMSGSIZE if there is less
// room than it has bytes, and the next call gets it; -EPIPE, -ESHUTDOWN, -ETIMEDOUT, -EPROTO as fide_pace_send, once all that
// came was taken.
int64_t fide_pace_recv(fide_pace_connection connection,
                       void *into,
                       size_t len,
                       int64_t timeout_us,
                       struct fide_pace_message *message);

// What is known of the way from here to the other end. Returns 0; -EBADF if `connection` is none; -ESHUTDOWN if it is over.
int fide_pace_get_view(fide_pace_connection connection,
                       struct fide_pace_view *view);

// The same of the way from the other end to here, for who receives: the slowest step of what comes, and how long that is on its way.
// Returns as fide_pace_get_view does.
int fide_pace_get_incoming_view(fide_pace_connection connection,
                                struct fide_pace_view *view);

// What became of messages so far. Returns 0; -EBADF if `connection` is none.
int fide_pace_get_counts(fide_pace_connection connection, struct fide_pace_counts *counts);

// The time that the slowest step takes for a message: the time between two messages that nothing waits for. Returns
// nanoseconds; -EBADF if `connection` is none; -EAGAIN if it is not known yet; -ESHUTDOWN if the connection is over.
int64_t fide_pace_bottleneck_pace_ns(fide_pace_connection connection);

// From now to the delivery of a message that is sent now. Returns nanoseconds, and errors as
// fide_pace_bottleneck_pace_ns; -EAGAIN if it would wait for feedback.
int64_t fide_pace_expected_delay_ns(fide_pace_connection connection);

// When a message would leave at once: an application that sleeps until then, and sends, is paced. From this call on until it
// sends, it waits: that time is none of its own work. Returns nanoseconds from now, and errors as fide_pace_bottleneck_pace_ns;
// -EAGAIN if it is after the next feedback.
int64_t fide_pace_next_send_in_ns(fide_pace_connection connection);

// When the application will send next, if it sends periodically by itself: for those who schedule it; 0: it is late. Returns
// nanoseconds from now, and errors as fide_pace_bottleneck_pace_ns; -EAGAIN if it does not send periodically, or has stopped.
int64_t fide_pace_expected_send_in_ns(fide_pace_connection connection);

// When the next message is to be expected, if they come periodically; 0: one waits, or is late. Returns nanoseconds from now,
// and errors as fide_pace_bottleneck_pace_ns; -EAGAIN if they do not come periodically, or have stopped.
int64_t fide_pace_next_recv_in_ns(fide_pace_connection connection);

// Calls back with the view as it is now, once the bottleneck is known, and whenever another step is the slowest one or its pace
// differs by more than an eighth: on a thread of the library, and never twice at a time for one call of this function. The
// callback may call any function. It ends with the connection: none runs when fide_pace_close has returned, unless that was called
// by it. Returns 0; -EBADF if `connection` is none; -EINVAL if `callback` is NULL; -EAGAIN if the host gives no further thread.
int fide_pace_on_change(fide_pace_connection connection,
                        fide_pace_on_change_fn callback,
                        void *context);

// Waits until everything that was sent has arrived or expired, but no longer than a time, nor than the connection stands. Returns 1 if
// it has, 0 if not; -EBADF if `connection` is none.
int fide_pace_finish(fide_pace_connection connection,
                     uint64_t timeout_us);

// Ends a connection, and tells the other end why; NULL: without a reason. What has not left is dropped: fide_pace_finish before.
// Calls of other threads that wait on it return -ESHUTDOWN. Returns 0; -EBADF if `connection` is none, or closed already.
int fide_pace_close(fide_pace_connection connection,
                    const char *reason);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FIDE_PACE_H */
