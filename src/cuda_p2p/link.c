/* cuda_p2p: how a link opens. Each end tells whether it could map the other's arena (HELLO); if both could, each sends a
 * pattern of a full frame through a slot, looks at what came, and tells (VERDICT). So both come to the same answer: slots, or
 * the channel below for everything. */
#include "cuda_p2p/cuda_p2p.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/mem.h"

#define TRY_NS INT64_C(10000000000) /* for one frame: a device that takes longer does not reach the other */

/* ---- memory ---- */

static size_t pinned_bytes(const struct hkt__p2p_dom *dom)
{
    return dom->tp->nslots * dom->tp->slot_bytes;
}

static void free_pinned(const struct hkt__p2p_dom *dom, unsigned char *memory)
{
    if (memory == NULL)
        return;
    if (dom->tp->cuda->unpin(memory) != 0 && dom->tp->cuda->unpin(memory) != 0)
        return; /* CUDA knows these pages: they must not become something else */
    hkt__pages_free(memory, pinned_bytes(dom));
}

static enum hkt_status alloc_pinned(const struct hkt__p2p_dom *dom, unsigned char **out_memory)
{
    const size_t bytes = pinned_bytes(dom);
    unsigned char *memory = hkt__pages_alloc(bytes);

    if (memory == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for the slots of a channel");
    const int rc = dom->tp->cuda->pin(memory, bytes);

    if (rc != 0) {
        hkt__pages_free(memory, bytes);
        return hkt__cuda_failed(dom->tp->cuda, rc, "lock memory of the host");
    }
    *out_memory = memory;
    return HKT_OK;
}

void hkt__p2p_link_destroy(struct hkt__p2p_link *link)
{
    if (link == NULL)
        return;
    free_pinned(link->dom, link->tx.memory);
    free_pinned(link->dom, link->rx.memory);
    hkt__free(link);
}

static void chan_init(struct hkt__chan *chan, const struct hkt__p2p_link *link)
{
    chan->ops = &hkt__p2p_chan_ops;
    chan->frame_bytes_max = link->dom->tp->slot_bytes;
    chan->peer = link->peer;
}

static enum hkt_status link_create(struct hkt__p2p_dom *dom, int peer, int lane, struct hkt__p2p_link **out_link)
{
    struct hkt__p2p_link *link = hkt__calloc(1, sizeof *link);

    if (link == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a channel to rank %d", peer);
    link->dom = dom;
    link->peer = peer;
    link->lane = lane;
    chan_init(&link->tx.chan, link);
    chan_init(&link->rx.chan, link);
    link->tx.link = link->rx.link = link;
    *out_link = link;
    return HKT_OK;
}

/* ---- the steps of opening: AGAIN, or the next state is set ---- */

static void say(struct hkt__p2p_verdict *verdict, enum hkt_status rc)
{
    verdict->is_ok = rc == HKT_OK;
    snprintf(verdict->why, sizeof verdict->why, "%.*s", HKT__P2P_TEXT - 1, rc == HKT_OK ? "" : hkt_last_error());
}

/** Channels below, pinned memory, and the peer's arena. */
static enum hkt_status start(struct hkt__p2p_link *link)
{
    struct hkt__p2p_dom *dom = link->dom;
    enum hkt_status rc = dom->below->ops->chan_open(dom->below, link->peer, link->lane, &link->tx.below, &link->rx.below);

    if (rc != HKT_OK)
        return rc;
    link->tx.word = hkt__p2p_word_at(dom, link->peer, dom->rank, link->lane);
    link->rx.word = hkt__p2p_word_at(dom, dom->rank, link->peer, link->lane);
    assert(link->tx.word != NULL && link->rx.word != NULL && link->tx.below->frame_bytes_max >=
           dom->tp->slot_bytes + HKT__P2P_PREFIX);
    rc = hkt__p2p_map(dom, link->peer);
    if (rc == HKT_OK)
        rc = alloc_pinned(dom, &link->tx.memory);
    if (rc == HKT_OK)
        rc = alloc_pinned(dom, &link->rx.memory);
    if (rc == HKT_OK) {
        link->tx.slots = (unsigned char *)dom->group.arenas[link->peer] + hkt__p2p_slots_at(dom, dom->rank, link->lane);
        link->rx.slots = (unsigned char *)dom->group.arenas[dom->rank] + hkt__p2p_slots_at(dom, link->peer, link->lane);
    }
    say(&link->own, rc);
    link->state = HKT__P2P_GREET;
    return HKT_OK;
}

static enum hkt_status tell(struct hkt__p2p_link *link, enum hkt__p2p_kind kind, enum hkt__p2p_state next)
{
    const enum hkt_status rc = hkt__p2p_send_small(&link->tx, kind, &link->own, sizeof link->own);

    if (rc == HKT_OK)
        link->state = next;
    return rc;
}

/** The link is open, without slots; both ends know. */
static void do_without(struct hkt__p2p_link *link, const struct hkt__p2p_verdict *theirs)
{
    link->is_device = false;
    link->state = HKT__P2P_OPEN;
    hkt__log(HKT__SUB_TRANSPORT, HKT__LOG_WARN, "cuda_p2p: what goes to and comes from rank %d goes through memory of the host, "
             "since %s: %s", link->peer, link->own.is_ok ? "it says" : "here", link->own.is_ok ? theirs->why : link->own.why);
}

/** The peer's message of a kind; frames of a pattern that nobody wants any more are passed over. */
static enum hkt_status hear(struct hkt__p2p_link *link, enum hkt__p2p_kind kind, struct hkt__p2p_verdict *out_theirs)
{
    struct hkt__p2p_prefix prefix;
    struct hkt__view view;
    enum hkt_status rc;

    while ((rc = hkt__p2p_peek(&link->rx, &prefix, &view)) == HKT_OK && prefix.kind == HKT__P2P_SLOT)
        hkt__p2p_release(&link->rx);
    if (rc != HKT_OK)
        return rc;
    if (prefix.kind != (uint32_t)kind || view.bytes != sizeof *out_theirs)
        return hkt__fail_peer(HKT_ERR_CORRUPT, link->peer, "cuda_p2p: rank %d opens a channel in a way that cannot be: are all ranks "
                              "of the same version?", link->peer);
    memcpy(out_theirs, view.data, sizeof *out_theirs);
    out_theirs->why[sizeof out_theirs->why - 1] = '\0';
    hkt__p2p_release(&link->rx);
    return HKT_OK;
}

static enum hkt_status meet(struct hkt__p2p_link *link)
{
    struct hkt__p2p_verdict theirs;
    const enum hkt_status rc = hear(link, HKT__P2P_HELLO, &theirs);

    if (rc != HKT_OK)
        return rc;
    if (!link->own.is_ok || !theirs.is_ok) {
        do_without(link, &theirs);
        return HKT_OK;
    }
    link->is_device = true;
    link->until_ns = hkt__now_ns() + TRY_NS;
    link->state = HKT__P2P_SHOW;
    return HKT_OK;
}

/** A byte of what `from` sends to `to`: no two pairs send alike. */
static unsigned char pattern_byte(int from, int to, size_t i)
{
    return (unsigned char)(((unsigned)from * 67u + (unsigned)to * 131u + (unsigned)i * 7u + 1u) * 2654435761u >> 24);
}

static enum hkt_status show(struct hkt__p2p_link *link)
{
    struct hkt__p2p_dom *dom = link->dom;
    const size_t bytes = dom->tp->slot_bytes;
    struct hkt__room room;
    enum hkt_status rc = hkt__p2p_begin_slot(&link->tx, bytes, &room);

    if (rc == HKT_AGAIN)
        return rc;
    for (size_t i = 0; rc == HKT_OK && i < bytes; i++)
        ((unsigned char *)room.data)[i] = pattern_byte(dom->rank, link->peer, i);
    if (rc == HKT_OK)
        rc = hkt__p2p_send_slot(&link->tx, room.data, bytes, &(struct hkt__stamp){0});
    say(&link->own, rc);
    link->state = rc == HKT_OK ? HKT__P2P_TRY : HKT__P2P_JUDGE;
    return HKT_OK;
}

/** Fetches the pattern, or finds out that none comes. */
static enum hkt_status look(struct hkt__p2p_link *link)
{
    const size_t bytes = link->dom->tp->slot_bytes;
    struct hkt__p2p_prefix prefix;
    struct hkt__view view;
    enum hkt_status rc = hkt__p2p_peek(&link->rx, &prefix, &view);

    if (rc == HKT_OK && prefix.kind != HKT__P2P_SLOT) /* its verdict: it could not send */
        return hkt__fail_peer(HKT_ERR_UNSUPPORTED, link->peer, "nothing came from the device of rank %d", link->peer);
    if (rc == HKT_OK)
        rc = hkt__p2p_fetch(&link->rx, bytes, NULL, &view.data);
    if (rc == HKT_AGAIN)
        rc = hkt__p2p_idle(link);
    if (rc == HKT_AGAIN && hkt__now_ns() > link->until_ns)
        return hkt__fail_peer(HKT_ERR_UNSUPPORTED, link->peer, "nothing came from the device of rank %d in %d s", link->peer,
                              (int)(TRY_NS / 1000000000));
    if (rc != HKT_OK)
        return rc;
    for (size_t i = 0; i < bytes; i++)
        if (((const unsigned char *)view.data)[i] != pattern_byte(link->peer, link->dom->rank, i)) {
            hkt__p2p_release(&link->rx);
            return hkt__fail_peer(HKT_ERR_UNSUPPORTED, link->peer, "byte %zu from the device of rank %d is wrong", i,
                                  link->peer);
        }
    hkt__p2p_release(&link->rx);
    return HKT_OK;
}

static enum hkt_status try(struct hkt__p2p_link *link)
{
    const enum hkt_status rc = look(link);

    if (rc == HKT_AGAIN)
        return rc;
    link->rx.is_waiting = false;
    say(&link->own, rc);
    link->state = HKT__P2P_JUDGE;
    return HKT_OK;
}

static enum hkt_status agree(struct hkt__p2p_link *link)
{
    struct hkt__p2p_verdict theirs;
    const enum hkt_status rc = hear(link, HKT__P2P_VERDICT, &theirs);

    if (rc != HKT_OK)
        return rc;
    if (link->own.is_ok && theirs.is_ok)
        link->state = HKT__P2P_OPEN;
    else
        do_without(link, &theirs);
    return HKT_OK;
}

static enum hkt_status step(struct hkt__p2p_link *link)
{
    switch (link->state) {
    case HKT__P2P_START:
        return start(link);
    case HKT__P2P_GREET:
        return tell(link, HKT__P2P_HELLO, HKT__P2P_MEET);
    case HKT__P2P_MEET:
        return meet(link);
    case HKT__P2P_SHOW:
        return show(link);
    case HKT__P2P_TRY:
        return try(link);
    case HKT__P2P_JUDGE:
        return tell(link, HKT__P2P_VERDICT, HKT__P2P_AGREE);
    case HKT__P2P_AGREE:
        return agree(link);
    case HKT__P2P_OPEN:
        break;
    }
    return HKT_OK;
}

enum hkt_status hkt__p2p_chan_open(struct hkt__tp_dom *base, int peer, int lane, struct hkt__chan **out_tx,
                                   struct hkt__chan **out_rx)
{
    struct hkt__p2p_dom *dom = (struct hkt__p2p_dom *)base;
    struct hkt__p2p_link **link = &dom->links[(size_t)peer * (size_t)dom->lanes + (size_t)lane];
    enum hkt_status rc = HKT_OK;

    assert(peer >= 0 && peer < dom->nranks && peer != dom->rank && lane >= 0 && lane < dom->lanes);
    if (*link == NULL)
        rc = link_create(dom, peer, lane, link);
    while (rc == HKT_OK && (*link)->state != HKT__P2P_OPEN)
        rc = step(*link);
    if (rc == HKT_OK) {
        *out_tx = &(*link)->tx.chan;
        *out_rx = &(*link)->rx.chan;
    }
    return rc == HKT_AGAIN ? HKT_IN_PROGRESS : rc;
}
