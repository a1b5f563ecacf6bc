/* SPDX-License-Identifier: Apache-2.0
 *
 * Tells when a process or a host dies: monitor NAME@HOST (or @HOST).
 *   gcc examples/monitor.c -Icrates/agent/client/include -Ltarget/release -Wl,-rpath,"$PWD/target/release" -lfide -o monitor
 */
#include <errno.h>
#include <fide.h>
#include <stdio.h>

static void on_failure(void *user, const fide_verdict *v)
{
    static const char *const why[] = {"?", "exited", "killed", "left", "host silent", "?", "stalled", "recovered"};
    (void)user;
    printf("%s is dead: %s (code %d, incarnation %u)\n", v->target, why[v->reason], v->code, v->incarnation);
}

static void on_up(void *user, const fide_verdict *v)
{
    (void)user;
    printf("%s is alive (incarnation %u)\n", v->target, v->incarnation);
}

static int failed(const char *what)
{
    fprintf(stderr, "%s: %s\n", what, fide_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    fide_t *fide;
    fide_resources granted;
    fide_upcalls upcalls = {.size = sizeof upcalls, .on_failure = on_failure, .on_up = on_up};

    if (argc != 2) {
        fprintf(stderr, "usage: %s NAME@HOST\n", argv[0]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (fide_open(NULL, &fide) < 0)
        return failed("connecting");
    fide_set_upcalls(fide, &upcalls, NULL);
    if (fide_monitor(fide, argv[1], NULL, &granted) < 0)
        return failed(argv[1]);
    printf("watching %s: notified within %u us of silence\n", argv[1], granted.timeout_us);
    for (int n = 0; n >= 0 || n == -EINTR;)
        n = fide_dispatch(fide, -1);
    return failed("dispatching");
}
