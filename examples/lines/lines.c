/* SPDX-License-Identifier: Apache-2.0 */
/* A replicated set of lines: the service of src/main.rs, which says how to use it. Its members may be mixed. */
#include <arpa/inet.h>
#include <fide_group.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PORT = 7000, LINE_LEN = 500, TEXT_LEN = 60000 };
struct request { struct sockaddr_in client; char line[LINE_LEN + 1]; }; /* Is proposed up to its NUL. */

static void answer(int udp, const struct sockaddr_in *client, const char *text)
{
    sendto(udp, text, strlen(text), 0, (const struct sockaddr *)client, sizeof *client);
}

int main(int argc, char **argv)
{
    static char text[TEXT_LEN + 1] = "\n", line[LINE_LEN + 3]; /* A line is between two '\n'. */
    struct request asked = {.client = {.sin_family = AF_INET, .sin_port = htons(PORT)}};
    socklen_t size = sizeof asked.client;
    int is_open, len, udp = socket(AF_INET, SOCK_DGRAM, 0);
    fide_group_options options = {.size = sizeof options, .group = "lines", .key = getenv("LINES_KEY"),
                                  .state_dir = argv[1], .hosts = (const char *const *)argv + 2,
                                  .hosts_len = argc > 2 ? (size_t)argc - 2 : 0};
    fide_group_t *group;

    is_open = fide_group_open(&options, &group) == 0 && fide_group_watch(group, udp) == 0;
    if (is_open && bind(udp, (struct sockaddr *)&asked.client, size) < 0) return perror("bind"), 1;
    while (is_open && fide_group_wait(group, -1) >= 0) {
        fide_group_state state = {.size = sizeof state};
        fide_group_decision decision = {.size = sizeof decision};

        if (fide_group_poll_install(group, &state) == 1)
            snprintf(text, sizeof text, "%.*s", (int)state.len, (const char *)state.data);
        while (fide_group_poll_decision(group, &decision) == 1) {
            struct request got = {.line = ""};
            if (decision.entry != FIDE_GROUP_ENTRY_VALUE || decision.len >= sizeof got) continue;
            memcpy(&got, decision.data, decision.len);
            snprintf(line, sizeof line, "\n%s\n", got.line);
            if (!strstr(text, line) && strlen(text) + strlen(line) <= TEXT_LEN) strcat(text, line + 1);
            if (fide_group_leads(group) == 1) answer(udp, &got.client, strstr(text, line) ? "ok\n" : "full\n");
        }
        if (fide_group_wants_state(group) == 1) fide_group_give_state(group, text, strlen(text));
        while ((len = recvfrom(udp, asked.line, LINE_LEN, MSG_DONTWAIT, (void *)&asked.client, &size)) >= 0) {
            const char *leader = fide_group_host_name(group, fide_group_leader(group));
            asked.line[len] = 0;
            asked.line[len = strcspn(asked.line, "\n")] = 0;
            snprintf(line, sizeof line, "ask %s\n", leader ? leader : "again");
            if (fide_group_leads(group) != 1) answer(udp, &asked.client, line);
            else if (len == 0) answer(udp, &asked.client, fide_group_may_answer(group) == 1 ? text + 1 : "later\n");
            else if (asked.line[0] == '-')
                answer(udp, &asked.client, fide_group_remove(group, atoi(asked.line + 1)) < 0 ? "later\n" : "ok\n");
            else if (fide_group_propose(group, &asked, size + len) < 0) answer(udp, &asked.client, "later\n");
        }
        if (fide_group_standing(group) == FIDE_STANDING_REMOVED) return fide_group_close(group), 0;
    }
    return fprintf(stderr, "%s\n", fide_last_error()), 1;
}
