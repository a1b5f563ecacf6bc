/* SPDX-License-Identifier: Apache-2.0 */
/* A member that uses all of fide_group.h, and checks it: calls PROTOCOL STATE_DIR HOST... Its group has two hosts. */
#include <errno.h>
#include <fide_group.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAYLOAD_LEN = 3000000 };

#define CHECK(what)                                                                          \
    do {                                                                                     \
        if (!(what)) {                                                                       \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, fide_last_error());        \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

static unsigned char payload[PAYLOAD_LEN];
static const char *const values[] = {"first", "", "third"};
static size_t long_len;
static int values_len, payloads_len;

static void take(fide_group_t *group, const fide_group_decision *d)
{
    switch (d->entry) {
    case FIDE_GROUP_ENTRY_VALUE:
        if (values_len == 3)
            CHECK(d->len == long_len && !memcmp(d->data, payload, long_len));
        else
            CHECK(d->len == strlen(values[values_len]) && !memcmp(d->data, values[values_len], d->len));
        values_len++;
        /* Under HSUC the three travel together, so that their position is taken with the last of them. */
        if (values_len < 3 && long_len == FIDE_GROUP_VALUE_MAX) {
            CHECK(fide_group_position(group) == (int64_t)d->position - 1);
            CHECK(fide_group_may_answer(group) == 0 && fide_group_wants_state(group) == 0);
            CHECK(fide_group_give_state(group, "x", 1) == -EBUSY);
        }
        break;
    case FIDE_GROUP_ENTRY_PAYLOAD:
        payloads_len++;
        CHECK(d->len == PAYLOAD_LEN && d->identity.len >= PAYLOAD_LEN && !memcmp(d->data, payload, PAYLOAD_LEN));
        break;
    case FIDE_GROUP_ENTRY_VIEW:
        CHECK(!d->data && d->len == 0 && d->view_number > 1 && d->view_members);
        break;
    }
}

static void propose(fide_group_t *group)
{
    fide_group_identity identity;

    for (int i = 0; i < 3; i++)
        CHECK(fide_group_propose(group, values[i], strlen(values[i])) == 0);
    CHECK(fide_group_propose(group, payload, long_len + 1) == -EMSGSIZE);
    CHECK(fide_group_propose_payload(group, payload, PAYLOAD_LEN, &identity) == 0 && identity.len >= PAYLOAD_LEN);
}

int main(int argc, char **argv)
{
    fide_group_options options = {.size = sizeof options, .group = "calls", .key = getenv("LINES_KEY")};
    fide_group_decision decision = {.size = sizeof decision};
    fide_group_state state = {.size = sizeof state};
    fide_group_view view = {.size = sizeof view};
    fide_group_counters counters = {.size = sizeof counters};
    fide_group_refusal refusal = {.size = sizeof refusal};
    fide_permit permit = {.size = sizeof permit};
    fide_group_t *group;
    uint64_t position;
    int polled, proposals = 0;

    CHECK(argc == 5);
    options.protocol = (uint32_t)atoi(argv[1]);
    long_len = options.protocol == FIDE_GROUP_PROTOCOL_HUC ? FIDE_GROUP_HUC_VALUE_MAX : FIDE_GROUP_VALUE_MAX;
    options.state_dir = argv[2];
    options.hosts = (const char *const *)argv + 3;
    options.hosts_len = 2;
    for (int i = 0; i < PAYLOAD_LEN; i++)
        payload[i] = (unsigned char)(i % 251);
    CHECK(fide_group_open(&options, &group) == 0);
    while (values_len < 4 || payloads_len < 1) {
        CHECK(fide_group_wait(group, 100) >= 0);
        CHECK(fide_group_poll_install(group, &state) == 0 && fide_group_offered_state(group, &state) == 0);
        while ((polled = fide_group_poll_decision(group, &decision)) == 1)
            take(group, &decision);
        CHECK(polled == 0 && fide_group_poll_refused(group, &refusal) == 0);
        if (proposals == 0 && fide_group_may_answer(group) == 1) {
            CHECK(fide_group_leads(group) == 1 && fide_group_leader(group) == fide_group_host_id(group));
            propose(group);
            proposals++;
        }
        /* The longest value has a decision to itself. */
        if (proposals == 1 && values_len == 3 && payloads_len == 1) {
            CHECK(fide_group_propose(group, payload, long_len) == 0);
            proposals++;
        }
    }
    CHECK(values_len == 4 && payloads_len == 1);
    /* A busy machine may keep this host from its lease for a moment. */
    while (fide_group_may_be_decided(group, &position) == 0 || fide_group_may_act(group, &permit) == 0)
        CHECK(fide_group_wait(group, 10) >= 0);
    CHECK((int64_t)position >= fide_group_position(group) && fide_group_position(group) > 0);
    CHECK(permit.host_id == fide_group_host_id(group) && permit.incarnation > 0);
    CHECK(fide_group_standing(group) == FIDE_STANDING_MEMBER && !fide_group_waits_for(group));
    CHECK(!fide_group_unstored(group) && fide_group_was_member(group) == 1);
    CHECK(fide_group_members(group, &view) == 1 && view.number > 0 && view.members_len > 0 && view.members_len < 3);
    CHECK(fide_group_host_name(group, view.members[0].host_id) && view.members[0].incarnation > 0);
    CHECK(fide_group_counters_of(group, &counters) == 0 && counters.trains_sent > 0);
    CHECK(fide_group_decline_offer(group) == 0);
    CHECK(fide_group_state_dropped(group) == 0 && fide_group_has_others(group) >= 0);
    fide_group_close(group);
    return 0;
}
