/* Stage 2: the k-th SEND or SIGNAL on (source, destination, lane) meets the k-th receive on it. One pass per
 * destination over what is sent to it: linear in the steps. */
#include "core/mem.h"
#include "sched/verify_int.h"

struct matcher {
    struct hkt__proof *v;
    int32_t *tx_first; /* [nranks + 1] */
    int32_t *tx;       /* steps that send to rank r: tx[tx_first[r]..), by sender, then program order */
    int32_t *head;     /* per (source, lane): the next unmatched entry of tx to this destination, plus 1 */
    int32_t *next;     /* per entry of tx */
};

static int64_t stream(int32_t source, int lane)
{
    return (int64_t)source * HKT__LANES_MAX + lane;
}

/* Sort the sending steps by destination. Ranks are taken in order, so each bucket is sorted by source. */
static void sort_by_destination(struct matcher *m)
{
    const struct hkt__proof *v = m->v;

    for (int32_t i = 0; i < v->nsteps; i++)
        if (hkt__is_tx(hkt__proof_step(v, i)->kind))
            m->tx_first[hkt__proof_step(v, i)->peer + 1]++;
    for (int32_t r = 0; r < v->nranks; r++)
        m->tx_first[r + 1] += m->tx_first[r];
    for (int32_t i = v->nsteps - 1; i >= 0; i--) { /* from the ends of the buckets: every end becomes a beginning */
        const struct hkt__step *s = hkt__proof_step(v, i);

        if (hkt__is_tx(s->kind))
            m->tx[--m->tx_first[s->peer + 1]] = i;
    }
    for (int32_t r = 0; r < v->nranks; r++)
        m->tx_first[r] = m->tx_first[r + 1];
}

static bool sizes_agree(const struct hkt__proof *v, int32_t tx, int32_t rx)
{
    const struct hkt__operand *x = &hkt__proof_args(v, tx)->x, *y = &hkt__proof_step(v, rx)->dst;

    if (x->count == 0 || hkt__proof_one_size(v))
        return true;
    struct hkt__walk walk_x = hkt__walk_start(&x->like), walk_y = hkt__walk_start(&y->like);

    for (int32_t i = 0; i < x->count; i++)
        if (hkt__proof_class(v, v->rank_of[tx], x, hkt__walk_next(&walk_x))
            != hkt__proof_class(v, v->rank_of[rx], y, hkt__walk_next(&walk_y)))
            return false;
    return true;
}

static enum hkt_status fail_pair(struct hkt__proof *v, int32_t tx, int32_t rx, const char *why)
{
    return hkt__proof_fail(v, "%s meets %s: %s", hkt__proof_step_text(v, tx).s, hkt__proof_step_text(v, rx).s, why);
}

static enum hkt_status meet(struct hkt__proof *v, int32_t tx, int32_t rx)
{
    const int tx_kind = hkt__proof_step(v, tx)->kind, rx_kind = hkt__proof_step(v, rx)->kind;

    if ((tx_kind == HKT__SIGNAL) != (rx_kind == HKT__WAIT))
        return fail_pair(v, tx, rx, "a signal meets a wait, data meets a receive");
    v->match[tx] = rx;
    v->match[rx] = tx;
    v->report->messages++;
    if (tx_kind == HKT__SIGNAL) /* each end names its own memory */
        return HKT_OK;
    if (hkt__proof_args(v, tx)->x.count != hkt__proof_step(v, rx)->dst.count)
        return fail_pair(v, tx, rx, "they move different numbers of chunks");
    if (!sizes_agree(v, tx, rx))
        return fail_pair(v, tx, rx, "their chunks differ in size for some counts");
    return HKT_OK;
}

static enum hkt_status receive_all(struct matcher *m, int32_t destination)
{
    struct hkt__proof *v = m->v;
    enum hkt_status rc = HKT_OK;

    for (int32_t i = v->base[destination]; i < v->base[destination + 1] && rc == HKT_OK; i++) {
        const struct hkt__step *s = hkt__proof_step(v, i);

        if (!hkt__is_rx(s->kind))
            continue;
        int32_t *head = &m->head[stream(s->peer, s->lane)];

        if (*head == 0)
            return hkt__proof_fail(v, "%s: nothing is sent that it could receive", hkt__proof_step_text(v, i).s);
        const int32_t entry = *head - 1;

        *head = m->next[entry];
        rc = meet(v, m->tx[entry], i);
    }
    return rc;
}

static enum hkt_status match_destination(struct matcher *m, int32_t destination)
{
    struct hkt__proof *v = m->v;
    const int32_t first = m->tx_first[destination], end = m->tx_first[destination + 1];

    for (int32_t entry = end - 1; entry >= first; entry--) {
        int32_t *head = &m->head[stream(v->rank_of[m->tx[entry]], hkt__proof_step(v, m->tx[entry])->lane)];

        m->next[entry] = *head;
        *head = entry + 1;
    }
    enum hkt_status rc = receive_all(m, destination);

    for (int32_t entry = first; entry < end; entry++) {
        const int32_t tx = m->tx[entry];

        m->head[stream(v->rank_of[tx], hkt__proof_step(v, tx)->lane)] = 0;
        if (rc == HKT_OK && v->match[tx] < 0)
            rc = hkt__proof_fail(v, "%s: nothing receives it", hkt__proof_step_text(v, tx).s);
    }
    return rc;
}

static int32_t count_tx(const struct hkt__proof *v)
{
    int32_t ntx = 0;

    for (int32_t i = 0; i < v->nsteps; i++)
        ntx += hkt__is_tx(hkt__proof_step(v, i)->kind);
    return ntx;
}

enum hkt_status hkt__proof_match(struct hkt__proof *v)
{
    const int32_t ntx = count_tx(v);
    struct matcher m = { .v = v };
    enum hkt_status rc = HKT_OK;

    m.tx_first = hkt__calloc((size_t)v->nranks + 1, sizeof *m.tx_first);
    m.tx = hkt__calloc((size_t)ntx, sizeof *m.tx);
    m.head = hkt__calloc((size_t)stream(v->nranks, 0), sizeof *m.head);
    m.next = hkt__calloc((size_t)ntx, sizeof *m.next);
    if (m.tx_first == NULL || m.tx == NULL || m.head == NULL || m.next == NULL) {
        rc = hkt__proof_nomem();
    } else {
        sort_by_destination(&m);
        m.tx_first[v->nranks] = ntx;
    }
    for (int32_t r = 0; r < v->nranks && rc == HKT_OK; r++)
        rc = match_destination(&m, r);
    hkt__free(m.tx_first);
    hkt__free(m.tx);
    hkt__free(m.head);
    hkt__free(m.next);
    return rc;
}
