/* SPDX-License-Identifier: Apache-2.0
 *
 * Sends messages that are paced to the slowest step, and receives them: pace recv ADDRESS KEYFILE, pace send ADDRESS KEYFILE
 * COUNT. The file has what `fide pace key` prints.
 *   gcc examples/pace.c -Icrates/transport/pace-c/include -Ltarget/release -Wl,-rpath,"$PWD/target/release" -lfide_pace -o pace
 */
#include <fide_pace.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, fide_pace_last_error());
    return 1;
}

/* The first line of a file: an argument would be seen by all users of the host. */
static int read_key(const char *path, char *key, int len)
{
    FILE *file = fopen(path, "r");
    int is_read = file && fgets(key, len, file);

    if (file)
        fclose(file);
    if (!is_read)
        fprintf(stderr, "%s: no key can be read\n", path);
    return is_read;
}

static void print_bottleneck(void *context, const fide_pace_view *view)
{
    static const char *const steps[FIDE_PACE_STEPS] = {"send", "transmit", "network", "receive", "deliver"};
    (void)context;
    fprintf(stderr, "slowest: %s, %" PRIu64 " us for a message\n", steps[view->bottleneck], view->bottleneck_pace_ns / 1000);
}

static int receive(const char *address, const char *key)
{
    fide_pace_endpoint endpoint;
    fide_pace_connection connection;
    fide_pace_counts counts = {.size = sizeof counts};
    char here[FIDE_PACE_ADDRESS_BYTES], message[65536];

    if (fide_pace_server(address, key, NULL, &endpoint) < 0)
        return failed("server");
    if (fide_pace_local_address(endpoint, here, sizeof here) < 0)
        return failed("address");
    printf("at %s\n", here);
    fflush(stdout);
    if (fide_pace_accept(endpoint, -1, &connection) < 0)
        return failed("accept");
    while (fide_pace_recv(connection, message, sizeof message, -1, NULL) >= 0)
        ;
    printf("%s\n", fide_pace_last_error());
    if (fide_pace_get_counts(connection, &counts) < 0)
        return failed("counts");
    printf("%" PRIu64 " received, %" PRIu64 " lost\n", counts.received, counts.lost);
    fide_pace_close(connection, NULL);
    return fide_pace_endpoint_close(endpoint) < 0 ? failed("close") : 0;
}

static int send_all(const char *address, const char *key, long count)
{
    fide_pace_endpoint endpoint;
    fide_pace_connection connection;
    fide_pace_config config = {.size = sizeof config, .deadline_us = 500000};
    char message[1000] = {0};
    long sent;

    if (fide_pace_client(&endpoint) < 0)
        return failed("client");
    if (fide_pace_connect(endpoint, address, key, &config, &connection) < 0)
        return failed("connect");
    if (fide_pace_on_change(connection, print_bottleneck, NULL) < 0)
        return failed("callback");
    for (sent = 0; sent < count; sent++) {
        snprintf(message, sizeof message, "message %ld", sent);
        if (fide_pace_send(connection, message, sizeof message, 0) < 0)
            return failed("send");
    }
    fide_pace_finish(connection, 1000000);
    fide_pace_close(connection, "that was all");
    return fide_pace_endpoint_close(endpoint) < 0 ? failed("close") : 0;
}

int main(int argc, char **argv)
{
    char key[FIDE_PACE_KEY_BYTES];
    int receives = argc == 4 && strcmp(argv[1], "recv") == 0, sends = argc == 5 && strcmp(argv[1], "send") == 0;

    if (!receives && !sends) {
        fprintf(stderr, "usage: pace recv ADDRESS KEYFILE | pace send ADDRESS KEYFILE COUNT\n");
        return 2;
    }
    if (!read_key(argv[3], key, sizeof key))
        return 1;
    return receives ? receive(argv[2], key) : send_all(argv[2], key, strtol(argv[4], NULL, 10));
}
