#include "plan_host.h"

#include "core/mem.h"

#define FRAME_BYTES 4096

/** A frame on its way. */
struct frame {
    struct frame *next;
    size_t bytes;
    struct hkt__stamp stamp;
    char data[FRAME_BYTES];
};

struct pipe {
    struct hkt__chan chan; /* first */
    struct frame *first, **last, *room;
};

static enum hkt_status tx_begin(struct hkt__chan *chan, size_t bytes, struct hkt__room *out_room)
{
    struct pipe *pipe = (struct pipe *)chan;

    if (pipe->room == NULL)
        pipe->room = hkt__calloc(1, sizeof *pipe->room);
    *out_room = (struct hkt__room){pipe->room->data, bytes < FRAME_BYTES ? bytes : FRAME_BYTES};
    return HKT_OK;
}

static enum hkt_status tx_end(struct hkt__chan *chan, size_t bytes, const struct hkt__stamp *stamp)
{
    struct pipe *pipe = (struct pipe *)chan;

    pipe->room->bytes = bytes;
    pipe->room->stamp = *stamp;
    *pipe->last = pipe->room;
    pipe->last = &pipe->room->next;
    pipe->room = NULL;
    return HKT_OK;
}

static enum hkt_status rx_begin(struct hkt__chan *chan, struct hkt__view *out_view)
{
    const struct frame *frame = ((struct pipe *)chan)->first;

    if (frame == NULL)
        return HKT_AGAIN;
    *out_view = (struct hkt__view){frame->data, frame->bytes, frame->stamp};
    return HKT_OK;
}

static void rx_end(struct hkt__chan *chan)
{
    struct pipe *pipe = (struct pipe *)chan;
    struct frame *frame = pipe->first;

    pipe->first = frame->next;
    if (pipe->first == NULL)
        pipe->last = &pipe->first;
    hkt__free(frame);
}

static const struct hkt__chan_ops pipe_ops = {.tx_begin = tx_begin, .tx_end = tx_end, .rx_begin = rx_begin, .rx_end = rx_end};

/** What the ranks share while they run. */
struct group {
    int nranks, lanes;
    struct pipe *pipes;                          /* [(from * nranks + to) * lanes + lane] */
    struct hkt__chan **tables;                   /* of each rank: its tx, then its rx */
    struct hkt__window_head *windows[PLAN_HOST_RANKS];
    struct hkt__peer_memory memory[PLAN_HOST_RANKS];
    struct hkt__exec_env envs[PLAN_HOST_RANKS];
    struct hkt__run *runs[PLAN_HOST_RANKS];
    const void *srcs[PLAN_HOST_RANKS];
    char *places[PLAN_HOST_RANKS];
    char *bounce, *scratch[PLAN_HOST_RANKS];
};

static void open_pipes(struct group *g)
{
    const size_t n = (size_t)g->nranks, lanes = (size_t)g->lanes;

    g->pipes = hkt__calloc(n * n * lanes, sizeof *g->pipes);
    g->tables = hkt__calloc(2 * n * n * lanes, sizeof *g->tables);
    for (size_t from = 0; from < n; from++)
        for (size_t to = 0; to < n; to++)
            for (size_t lane = 0; lane < lanes; lane++) {
                struct pipe *pipe = &g->pipes[(from * n + to) * lanes + lane];

                *pipe = (struct pipe){.chan = {&pipe_ops, FRAME_BYTES, 0}};
                pipe->last = &pipe->first;
                g->tables[(2 * from * n + to) * lanes + lane] = &pipe->chan;
                g->tables[((2 * to + 1) * n + from) * lanes + lane] = &pipe->chan;
            }
}

static void close_pipes(struct group *g)
{
    for (int i = 0; i < g->nranks * g->nranks * g->lanes; i++) {
        while (g->pipes[i].first != NULL)
            rx_end(&g->pipes[i].chan);
        hkt__free(g->pipes[i].room);
    }
    hkt__free(g->pipes);
    hkt__free(g->tables);
}

static void begin(struct group *g, struct hkt__plan *const *plans, const struct hkt__bind *binds)
{
    const struct hkt__sched *shape = hkt__plan_shape(plans[0]);
    const size_t n = (size_t)g->nranks;
    const size_t scratch = HKT__SCRATCH_INSTANCES * ((size_t)shape->scratch_chunks * binds[0].scratch_pitch + HKT__LINE);

    g->bounce = hkt__calloc_line(1, HKT__BOUNCE_BYTES);
    for (size_t r = 0; r < n; r++) {
        g->windows[r] = hkt__calloc_line(1, sizeof(struct hkt__window_head) + scratch);
        g->scratch[r] = hkt__calloc_line(1, scratch);
        g->memory[r].is_same_process = true;
        g->envs[r] = (struct hkt__exec_env){
            .tx = &g->tables[2 * r * n * (size_t)g->lanes], .rx = &g->tables[(2 * r + 1) * n * (size_t)g->lanes],
            .nranks = g->nranks, .rank = (int)r, .lanes = g->lanes, .windows = g->windows, .memory = g->memory,
            .srcs = g->srcs, .places = g->places, .bounce = g->bounce,
            .window_bytes = sizeof(struct hkt__window_head) + scratch, .scratch = g->scratch[r], .scratch_bytes = scratch};
        if (hkt__run_create(&g->envs[r], &g->runs[r]) == HKT_OK && hkt__run_reserve(g->runs[r], plans[r], 1) == HKT_OK)
            hkt__run_start(g->runs[r], plans[r], &binds[r]);
    }
}

static void end(struct group *g)
{
    for (int r = 0; r < g->nranks; r++) {
        hkt__run_destroy(g->runs[r]);
        hkt__free(g->windows[r]);
        hkt__free(g->scratch[r]);
    }
    hkt__free(g->bounce);
    close_pipes(g);
}

bool plan_host_run(struct hkt__plan *const *plans, const struct hkt__bind *binds, int nranks)
{
    struct group g = {.nranks = nranks, .lanes = hkt__plan_shape(plans[0])->nlanes};
    bool moved = true;
    int done = 0;

    open_pipes(&g);
    begin(&g, plans, binds);
    while (moved && done < nranks) {
        const int before = done;

        moved = false;
        done = 0;
        for (int r = 0; r < nranks; r++) {
            const enum hkt_status rc = hkt__run_poll(g.runs[r]);

            done += rc == HKT_OK;
            moved |= rc == HKT_IN_PROGRESS;
        }
        moved |= done > before;
    }
    end(&g);
    return done == nranks;
}
