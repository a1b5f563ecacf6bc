/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends a message every 10 ms over a lane, and prints what others send: lane HOST...
 *   gcc examples/lane.c -Icrates/agent/client/include -Ltarget/release -Wl,-rpath,"$PWD/target/release" -lfide -o lane
 */
#include <errno.h>
#include <fide.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SERVICE = 7, PERIOD_MS = 10 };

static int ended;

static void print_terms(const fide_lane_resources *r)
{
    printf("one packet of %u bytes every %" PRIu64 " us, ", r->packet_max_bytes, r->period_ns / 1000);
    if (r->bounded)
        printf("at every receiver within %" PRId64 " ns\n", r->min_latency_ns + r->max_jitter_ns);
    else
        printf("without bounds\n");
}

static void on_lane_message(void *user, const fide_lane_message *m)
{
    (void)user;
    printf("host %u says \"%.*s\"\n", m->host_id, (int)m->len, (const char *)m->data);
}

static void on_bandwidth_changed(void *user, int lane, const fide_lane_resources *r, fide_lane_reason reason,
                                 uint64_t grace_ns)
{
    static const char *const why[] = {"other terms", "other lanes moved", "too much was sent", "too little was sent"};
    (void)user;
    printf("lane %d: %s; in %" PRIu64 " ms ", lane, why[reason], grace_ns / 1000000);
    print_terms(r);
}

static void on_bandwidth_terminated(void *user, int lane, const char *name, const char *why, uint64_t grace_ns)
{
    (void)user;
    printf("lane %d (%s) is over in %" PRIu64 " ms: %s\n", lane, name, grace_ns / 1000000, why);
    ended = 1;
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, fide_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    fide_t *fide;
    fide_lane_resources granted;
    fide_upcalls upcalls = {.size = sizeof upcalls,
                            .on_lane_message = on_lane_message,
                            .on_bandwidth_changed = on_bandwidth_changed,
                            .on_bandwidth_terminated = on_bandwidth_terminated};
    fide_lane_request request = {.size = sizeof request,
                                 .name = "example",
                                 .receivers = (const char *const *)argv + 1,
                                 .receivers_len = (size_t)argc - 1,
                                 .message_max_bytes = 20,
                                 .period_ns = PERIOD_MS * 1000000};
    char message[20];
    int lane;

    if (argc < 2) {
        fprintf(stderr, "usage: %s HOST...\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (fide_open(NULL, &fide) < 0)
        return failed("connecting");
    fide_set_upcalls(fide, &upcalls, NULL);
    if (fide_listen(fide, SERVICE) < 0)
        return failed("listening");
    lane = fide_lane_open(fide, &request, &granted);
    if (lane < 0)
        return failed("opening a lane");
    print_terms(&granted);
    for (unsigned number = 1; !ended; number++) {
        int n, sent;

        snprintf(message, sizeof message, "hello %u", number);
        sent = fide_lane_send(fide, lane, SERVICE, message, strlen(message));
        /* The agent may be away for a while, or have much to do: the next one may fare better. */
        if (sent < 0 && sent != -ENOTCONN && sent != -EAGAIN)
            return failed("sending");
        n = fide_dispatch(fide, PERIOD_MS);
        if (n < 0 && n != -EINTR)
            return failed("dispatching");
    }
    if (fide_lane_close(fide, lane) < 0)
        return failed("closing the lane");
    fide_close(fide);
    return 0;
}
