/* What could break: messages of one pair that overtake each other, or are taken for one another; parts that the two sides cut
 * differently; a launch in which a message waits for another one, or for the message of another peer; ranks that take no part;
 * counters that collectives and messages count differently. */
#include <string.h>

#include "device/cuda_messages.h"
#include "plan_group.h"

#define LETTERS 1400

/** A message, with the launches that send and receive it, and where it lies in the two rooms. */
struct letter {
    int from, to, sent_in, received_in;
    size_t bytes, from_at, to_at;
};

/** How launches are cut. */
struct width {
    int channels, blocks;
    uint32_t part_bytes;
    bool no_ll;
};

struct mail {
    struct plan_group group;
    struct hkt__cuda_messages *messages[PLAN_HOST_RANKS];
    struct letter letters[LETTERS];
    int nletters, nlaunches;
    size_t used[PLAN_HOST_RANKS];
};

static void mail_open(struct mail *mail, int nranks)
{
    mail->nletters = mail->nlaunches = 0;
    memset(mail->used, 0, sizeof mail->used);
    plan_group_open(&mail->group, nranks, false);
    for (int r = 0; r < nranks; r++) {
        if (hkt__cuda_messages_make(hkt__cuda_module(), &mail->group.peers[r], &mail->messages[r]) != HKT_OK)
            fail_msg("%s", hkt_last_error());
    }
}

static void mail_close(struct mail *mail)
{
    for (int r = 0; r < mail->group.nranks; r++)
        hkt__cuda_messages_free(mail->messages[r]);
    plan_group_close(&mail->group);
}

/** Buffers follow each other at any alignment. */
static void post(struct mail *mail, struct letter letter)
{
    letter.from_at = mail->used[letter.from];
    mail->used[letter.from] += letter.bytes + random_bits() % 3;
    letter.to_at = mail->used[letter.to];
    mail->used[letter.to] += letter.bytes + random_bits() % 3 * 8;
    assert_true(mail->nletters < LETTERS && mail->used[letter.from] <= PLAN_ROOM_BYTES && mail->used[letter.to] <= PLAN_ROOM_BYTES);
    mail->letters[mail->nletters++] = letter;
    mail->nlaunches = letter.sent_in >= mail->nlaunches ? letter.sent_in + 1 : mail->nlaunches;
    mail->nlaunches = letter.received_in >= mail->nlaunches ? letter.received_in + 1 : mail->nlaunches;
}

static void launch(struct mail *mail, int rank, int number, const struct width *width)
{
    static struct hkt__cuda_message list[LETTERS];
    const struct plan_group *g = &mail->group;
    struct hkt__cuda_messages_call call = {.list = list, .stream = g->streams[rank], .blocks_max = width->blocks,
                                           .channels = width->channels, .part_bytes = width->part_bytes, .no_ll = width->no_ll};

    for (int i = 0; i < mail->nletters; i++) {
        const struct letter *l = &mail->letters[i];
        const bool is_send = l->from == rank && l->sent_in == number, is_receive = l->to == rank && l->received_in == number;

        if (is_send || is_receive)
            list[call.count++] = (struct hkt__cuda_message){.peer = is_send ? l->to : l->from, .is_send = is_send, .bytes = l->bytes,
                                                            .memory = g->device_room[rank] + (is_send ? l->from_at : l->to_at)};
    }
    assert_true(hkt__cuda_messages_channels(mail->messages[rank], width->blocks) >= width->channels);
    if (hkt__cuda_messages_launch(mail->messages[rank], &call) != HKT_OK)
        fail_msg("%s", hkt_last_error());
}

static void deliver(struct mail *mail, const struct width *width, const char *what)
{
    struct plan_group *g = &mail->group;

    for (int r = 0; r < g->nranks; r++) {
        random_elements(g->host_room[r], mail->used[r], HKT_UINT8);
        must(cudaSetDevice(g->peers[r].device));
        must(cudaMemcpyAsync(g->device_room[r], g->host_room[r], mail->used[r], cudaMemcpyHostToDevice, g->streams[r]));
        for (int k = 0; k < mail->nlaunches; k++) {
            must(cudaLaunchHostFunc(g->streams[r], plan_dawdle, (void *)(uintptr_t)(random_bits() % 4 * 60)));
            launch(mail, r, k, width);
        }
        must(cudaMemcpyAsync(g->host_room[r] + PLAN_ROOM_BYTES, g->device_room[r], mail->used[r], cudaMemcpyDeviceToHost,
                             g->streams[r]));
    }
    plan_group_settle(g, what);
    for (int i = 0; i < mail->nletters; i++) {
        const struct letter *l = &mail->letters[i];

        memcpy(g->host_room[l->to] + l->to_at, g->host_room[l->from] + l->from_at, l->bytes);
    }
    for (int r = 0; r < g->nranks; r++)
        for (size_t i = 0; i < mail->used[r]; i++)
            if (g->host_room[r][i] != g->host_room[r][PLAN_ROOM_BYTES + i])
                fail_msg("%s: byte %zu of rank %d is %02x, not %02x", what, i, r, (unsigned char)g->host_room[r][PLAN_ROOM_BYTES + i],
                         (unsigned char)g->host_room[r][i]);
}

void messages_arrive_in_order(void **state)
{
    static const size_t sizes[] = {0, 1, 37, 128, 700, 3000, 9000};
    static const struct width widths[] = {{1, 1, 0, false}, {3, 3, 512, false}, {2, 1, 256, true}};
    static const int nranks[] = {2, 5, 3};
    static struct mail mail;

    (void)state;
    for (size_t k = 0; k < (plan_test_small() ? 2 : 3); k++) {
        mail_open(&mail, nranks[k]);
        for (int number = 0; number < 3; number++)
            for (int from = 0; from < nranks[k]; from++)
                for (int to = 0; to < nranks[k]; to++)
                    for (int i = (int)(random_bits() % 4); i > 0 && from != to; i--)
                        post(&mail, (struct letter){.from = from, .to = to, .sent_in = number, .received_in = number,
                                                    .bytes = sizes[random_bits() % 7]});
        for (int again = 0; again < 2; again++) /* the counters go on, the protocols change */
            deliver(&mail, &widths[(k + (size_t)again) % 3], "messages of all to all");
        mail_close(&mail);
    }
}

void many_messages_go_with_one_launch(void **state)
{
    static const struct width width = {2, 2, 64, false};
    static struct mail mail;

    (void)state;
    mail_open(&mail, 3);
    for (int i = 0; i < (plan_test_small() ? 330 : LETTERS); i++)
        post(&mail, (struct letter){.from = i % 3, .to = (i + 1) % 3, .sent_in = i % 7 == 0, .received_in = i % 7 == 0,
                                    .bytes = (size_t)(i % 5) * 40});
    deliver(&mail, &width, "many messages");
    mail_close(&mail);
}

/** Rank 0 has all three in one launch; the others do one thing after another: 0 -> 1, 0 -> 1 again, 1 -> 2, 2 -> 0. None
 *  fits the slots, and the first that rank 0 lists is the last to come. */
void all_messages_of_a_launch_are_under_way(void **state)
{
    static const struct width widths[] = {{1, 1, 0, false}, {3, 3, 4096, false}};
    static struct mail mail;

    (void)state;
    for (int k = 0; k < 2; k++) {
        mail_open(&mail, 3);
        post(&mail, (struct letter){.from = 2, .to = 0, .sent_in = 1, .received_in = 0, .bytes = 20000});
        post(&mail, (struct letter){.from = 0, .to = 1, .sent_in = 0, .received_in = 0, .bytes = 20000});
        post(&mail, (struct letter){.from = 0, .to = 1, .sent_in = 0, .received_in = 1, .bytes = 20001});
        post(&mail, (struct letter){.from = 1, .to = 2, .sent_in = 2, .received_in = 0, .bytes = 20002});
        deliver(&mail, &widths[k], "messages in a circle");
        mail_close(&mail);
    }
}
