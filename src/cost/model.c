/* See model.h. */
#include "cost/model.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#define SCRATCH_INSTANCES 4 /* as the executor's (exec/exec.h), which this layer does not see */
#define PEER_SHARE 0.019    /* every peer more is more to look at and to be kept waiting by (fitted, for up to 8) */
#define PEER_SHARE_SOCKETS 0.05
#define PEERS_FITTED 8.0
/* Messages of several peers that meet on a link do not share it evenly, and all wait for the last: with 3 peers an all-reduce of
 * 1 to 16 MB over 1 Gbit/s took 3 to 30 % longer than a ring. Not measured for more. */
#define NET_PEER_SHARE 0.04
#define NET_PEERS_MEASURED 4.0
/* Slices whose messages wait for no other come in bursts: between 2 hosts an all-reduce of 1 to 16 MB in one round took 4 to 7 %
 * longer over 1 Gbit/s than one in two rounds, and 20 % and more without a limit. */
#define ONE_ROUND 1.1
/* Messages of a host's ranks queue for its card and for the core that takes its interrupts. 1.7 us of the 5.5 that a message costs
 * a core: fitted to 2 and 4 hosts of 2 and 4 ranks (docs/bench/2026-11-30-hosts.md), hosts that share two cores. */
#define NET_QUEUE_SHARE 0.3
/* Over sockets within a host it is the sender that takes a message through the kernel and wakes who waits: 4.5 us, where a root of
 * 4 ranks on 2 cores sends one after the other (2026-11-30). */
#define POST_EXTRA 0.6
/* Ranks that share a core and run ahead send the messages of several calls in their turn, and receivers take these out of the socket at
 * once: what such a message costs of one that is waited for. gather, scatter, broadcast and reduce of 4 ranks on 2 cores, to 2 KB, took
 * 2.2 to 5.2 us where 7.6 to 9 were predicted (five runs, 2026-11-30). */
#define BATCH_SHARE 0.35
#define TURN_SHARE 0.18     /* of a turn, for a round of one message more: turns_of */
#define CROWD_MEASURED 4.0  /* ranks per core */
#define ALTERNATE 0.95      /* where one rank gives to all others by turns; the share of waiting: cost/profile.c */
#define CRUSH 0.72          /* of a system call on memory of a peer: what it waits for others that make them (crush_of) */
#define READERS_SHARE 0.71  /* a reader more of the same memory by system calls (fitted for 3) */
#define READERS_APART_SHARE 0.13 /* the same where each begins with another rank's */
#define PAYLOAD_BYTES 18000.0 /* from here on a payload costs no more than its bytes (payload_share) */
#define PAYLOAD_BYTES_SOCKETS 8192.0
#define BOUNCE_BYTES 131072.0 /* as the executor's, for inputs that it copies before it reduces them (exec/local.c) */
#define INLINE_BYTES 32.0   /* go with a message's header (HKT__ROOM_MIN, transport/transport.h) */
#define PUT_HIDDEN 0.7      /* of what an operand in memory of a peer costs: a result put there (2 ranks, shared buffers to 16 KiB, 2026-11-30) */
/* Lines that peers read while they are in the first-level cache of who wrote them take twice the time: so it is with blocks of which copy
 * and source fit it, but not small ones, whose time is that of their first lines. Where ranks read each other's: 2 ranks, all_gather,
 * all_to_all and reduce_scatter in place by direct, blocks of 4, 8, 16, 32 KiB took 1, 1.15, 1.3 and 0.9 of what bytes cost (2026-11-30). */
#define DIRTY_EXTRA 0.27
#define L1_SHARE 0.21       /* of what bytes of a second-level cache cost */
#define SMALL_BYTES 1024.0  /* go in one step (HKT__TP_SMALL) */
#define SMALL_SHARE 0.067   /* of the payload's cost, at least */
#define LANES_SHARE 0.3     /* of the lines of a small payload: one of several that come side by side */
#define SLOT_SHARE 0.26     /* for the steps of one that is not small */
/* What an exchanged payload costs whose place was asked for (hkt__ring_ask): ASKED_FIXED of a payload, and another one per so
 * many bytes, to the most. all_gather, all_to_all and all_reduce of 2 ranks by messages of 2, 4, 8, 16 and 32 KiB: 0.22, 0.37,
 * 0.8 to 0.9, 1.3 to 1.45, 1.2 (2026-11-30). */
#define ASKED_BYTES 12000.0
#define ASKED_FIXED 0.067
#define ASKED_MOST 1.3
/* Longer messages are no single ones any more: memory takes them by slots, sockets by frames, of which two are on their way at once
 * (two sockets). Slices of more than 64 KiB gained nothing in shared memory, of more than 512 KiB nothing over sockets
 * (docs/bench/2026-11-30-cuts.md). */
#define WHOLE_BYTES 65536.0
#define WHOLE_BYTES_SOCKETS 524288.0
/* A channel more to look at. Same slices on 2 and 4 lanes of 2 to 4 ranks took 1.0 to 1.3 times as long, the same document says. */
#define LANE_SHARE 0.03
#define STREAM_GAP 0.12     /* lines of one message after the other travel no faster: 32 bytes to one rank take 110 ns, twice 32 190 */

const struct hkt__price_info hkt__price_infos[HKT__PRICE_COUNT] = {
#define INFO(ID, name, fallback, help) {name, help},
    HKT__PRICES_TABLE(INFO)
#undef INFO
};

static const double defaults[HKT__PRICE_COUNT] = {
#define FALLBACK(ID, name, fallback, help) fallback,
    HKT__PRICES_TABLE(FALLBACK)
#undef FALLBACK
};

static double cache_bytes(int name, double fallback)
{
    const long bytes = sysconf(name);

    return bytes > 0 ? (double)bytes : fallback;
}

/* Where ranks share cores a message waits for its receiver's turn, and what is needed for it, code and data, has left the first-level
 * caches by then; but reductions read what the rank before has just fetched, and scratch, unlike buffers, stays in the cache of the
 * core it is on. From fits for 4 and 8 ranks on 2 cores, 2026-11-30 and 12-01. With 8 a turn costs more, as whoever has it in vain looks for
 * messages of more peers, and a message less. */
#define CROWDED_ROUND 660.0
#define CROWDED_SHARED_CALL 140.0
#define CROWDED_SHARED_POWER 0.57
static const struct {
    enum hkt__price price;
    double factor, power; /* for 4 ranks on 2 cores; of the ranks of a core over 2 */
} crowded[] = {
    {HKT__PRICE_SWITCH, 1.4, 1.7},            {HKT__PRICE_MESSAGE, 0.69, -2},           {HKT__PRICE_PAYLOAD, 0.18, -1.7},
    {HKT__PRICE_STEP, 1.3, 0.2},              {HKT__PRICE_ACCESS, 0.7, -2},             {HKT__PRICE_FAR_ACCESS, 1.5, 0.3},
    {HKT__PRICE_SEND_L2, 1.07, 0.77},         {HKT__PRICE_SEND_LLC, 1.25, 0.16},        {HKT__PRICE_RECEIVE_L2, 1.4, 0.2},
    {HKT__PRICE_RECEIVE_LLC, 1.3, 0.4},       {HKT__PRICE_COPY_L2, 1.34, -1.04},        {HKT__PRICE_COPY_LLC, 1.07, -0.13},
    {HKT__PRICE_REDUCE_L2, 1.3, -0.1},        {HKT__PRICE_REDUCE_LLC, 0.42, 0.4},       {HKT__PRICE_FRESH_L2, 1.2, -0.2},
    {HKT__PRICE_FRESH_LLC, 1.1, 0.2},         {HKT__PRICE_FRESH_MEMORY, 1, -0.3},       {HKT__PRICE_DIRECT_L2, 0.77, 1.06},
    {HKT__PRICE_DIRECT_LLC, 1.1, 0.3},        {HKT__PRICE_FAR_L2, 0.95, -0.9},          {HKT__PRICE_FAR_LLC, 0.93, 0.32},
    {HKT__PRICE_FAR_MEMORY, 1, 0.15},         {HKT__PRICE_FAR_WRITE_L2, 0.84, 0},       {HKT__PRICE_FAR_WRITE_LLC, 0.8, 0.54},
    {HKT__PRICE_FAR_WRITE_MEMORY, 1, 0.25},
};

static void crowd_prices(struct hkt__prices *prices, double crowd)
{
    const double more = fmax(1, fmin(crowd, CROWD_MEASURED) / 2);

    prices->price[HKT__PRICE_ROUND] += CROWDED_ROUND;
    prices->price[HKT__PRICE_SHARED_CALL] += CROWDED_SHARED_CALL * pow(more, CROWDED_SHARED_POWER);
    for (size_t i = 0; i < sizeof crowded / sizeof crowded[0]; i++)
        prices->price[crowded[i].price] *= crowded[i].factor * pow(more, crowded[i].power);
}

void hkt__prices_init(struct hkt__prices *prices, double latency_ns, double ns_per_byte, bool is_memory, double crowd)
{
    *prices = (struct hkt__prices){.crowd = crowd < 1 ? 1 : crowd,
                                   .l1_bytes = cache_bytes(_SC_LEVEL1_DCACHE_SIZE, 48 << 10),
                                   .l2_bytes = cache_bytes(_SC_LEVEL2_CACHE_SIZE, 1 << 20),
                                   .llc_bytes = cache_bytes(_SC_LEVEL3_CACHE_SIZE, 16 << 20)};
    memcpy(prices->price, defaults, sizeof defaults);
    prices->price[HKT__PRICE_ROUND] = latency_ns;
    if (is_memory) {
        if (crowd > 1)
            crowd_prices(prices, crowd);
        return;
    }
    /* A message is a system call at either end, which is most of the latency that the transport tells; a byte is copied at
     * both ends; a rank that waits yields or sleeps in the kernel. The shares: fitted to all algorithms of 2 ranks, and of 4 on 2
     * cores, on the loopback of the machine of the defaults, in five runs each, 2026-11-30. A sender that shares its core with who
     * polls its data has the lines at hand. */
    const bool is_crowded = crowd > 1;
    static const double send[3] = {0.28, 0.36, 0.36}, receive[3] = {0.22, 0.275, 0.275};

    prices->over_sockets = true;
    prices->price[HKT__PRICE_MESSAGE] = latency_ns * (is_crowded ? 0.33 : 0.28);
    prices->price[HKT__PRICE_PAYLOAD] *= is_crowded ? 0.66 : 1.3;
    prices->price[HKT__PRICE_ROUND] = latency_ns * (is_crowded ? 0.15 : 0.11);
    prices->price[HKT__PRICE_SWITCH] = latency_ns * 0.115;
    for (int level = 0; level < 3; level++) {
        const double near = is_crowded && level == 0 ? 0.8 : 1;

        prices->price[HKT__PRICE_SEND_L2 + level] = ns_per_byte * send[level] * near;
        prices->price[HKT__PRICE_RECEIVE_L2 + level] = ns_per_byte * receive[level] * near;
    }
}

void hkt__prices_net(struct hkt__prices *prices, double bytes_per_s, double latency_ns)
{
    if (bytes_per_s > 0)
        prices->price[HKT__PRICE_NET_WIRE] = 1e9 / bytes_per_s;
    if (latency_ns > 0) /* up and down; interrupt and wakeup are time of a core, most of them */
        prices->price[HKT__PRICE_NET_ROUND] = 200 + 2 * latency_ns;
}

/** Share of a call's bytes that stay in a core's first-level cache. */
static double share_in_l1(const struct hkt__prices *prices, double touched)
{
    const double beyond = (touched / (prices->l1_bytes / prices->crowd) - 0.5) / 1.5;

    return beyond < 0 ? 1 : beyond > 1 ? 0 : 1 - beyond;
}

void hkt__model_caches(const struct hkt__prices *prices, int host_ranks, double touched, struct hkt__cache_shares *out_shares)
{
    const double sizes[2] = {prices->l2_bytes / prices->crowd, prices->llc_bytes / (prices->crowd > 1 && host_ranks > 1 ? host_ranks : 1)};
    double beyond[2];

    for (int i = 0; i < 2; i++) {
        const double share = (touched / sizes[i] - 0.5) / 1.5;

        beyond[i] = share < 0 ? 0 : share > 1 ? 1 : share;
    }
    out_shares->share[0] = 1 - beyond[0];
    out_shares->share[1] = beyond[0] - beyond[0] * beyond[1];
    out_shares->share[2] = beyond[0] * beyond[1];
    out_shares->near = 1 - (1 - L1_SHARE) * share_in_l1(prices, touched);
}

double hkt__model_slices(const struct hkt__profile *profile, const struct hkt__model_args *args)
{
    const double block = (double)args->bytes / profile->blocks;
    const int32_t slots = profile->scratch_chunks * SCRATCH_INSTANCES;
    double chunk = (double)args->slice_bytes;

    if (args->one_slice || args->bytes == 0 || profile->cuts == 0)
        return 1;
    if (slots > 0 && (double)args->scratch_bytes / slots < chunk)
        chunk = (double)args->scratch_bytes / slots;
    const double slices = block / (chunk * profile->cuts);

    return slices <= 1 ? 1 : (double)(int64_t)(slices + 0.999999);
}

/** What a call pays per byte of each kind and level. */
struct rates {
    struct hkt__cache_shares caches;
    bool far;
    bool over_sockets;        /* as of prices */
    bool has_lanes;           /* messages go on several */
    bool exchanges;           /* every rank waits, on a core of its own */
    double l1_bytes;
    bool asks;                /* the same by messages: places of payloads come back meanwhile */
    double gap;               /* rounds that a message takes of a rank's time where nobody waits */
    double crush, read_crush; /* what system calls on memory of peers cost, as a multiple of their prices; bytes so read */
};

/** Such calls hold each other up: prices are for ranks that all make them; one alone takes less (fitted for 2 ranks). */
static double crush_of(const struct hkt__profile *profile)
{
    double most = 0;

    for (int32_t i = 0; i < profile->nlooks; i++)
        most = fmax(most, profile->looks[i].accesses);
    return most > 0 ? 1 - CRUSH + CRUSH * profile->mean.accesses / most : 1;
}

/** Where several ranks read the same pages, these are what they wait for. Where each begins with another rank's, only those that run
 *  meet: of 8 ranks on 2 cores no more than of 4. */
static double read_crush_of(const struct hkt__profile *profile, double crowd)
{
    const double readers = profile->mean.read * profile->nranks / profile->sources;
    const double more = profile->has_one_source ? READERS_SHARE * (readers - 1) : READERS_APART_SHARE * (readers * fmin(1, 2 / crowd) - 1);

    return 1 + fmax(0, more);
}

static void add_near_bytes(double *amounts, enum hkt__price first, double bytes, const struct rates *rates)
{
    for (int level = 0; level < 3; level++)
        amounts[(int)first + level] += bytes * rates->caches.share[level] * rates->caches.near;
}

static void add_bytes(double *amounts, enum hkt__price first, double bytes, const struct rates *rates)
{
    for (int level = 0; level < 3; level++)
        amounts[(int)first + level] += bytes * rates->caches.share[level];
}

/** How much of the cost of a payload a message of some bytes pays. Its first lines come one after the other, further ones are fetched
 *  ahead, more of them the longer it is; and what is not small goes in several steps. Small ones on different lanes come side by
 *  side, unless ranks wait for each other; then places of larger ones come back in time (`asks`). Sockets make no difference. */
static double payload_share(double message_bytes, bool asks, const struct rates *rates)
{
    const double whole = rates->over_sockets ? WHOLE_BYTES_SOCKETS : WHOLE_BYTES, bytes = fmin(message_bytes, whole);
    const double lines = fmin(1, sqrt(bytes / (rates->over_sockets ? PAYLOAD_BYTES_SOCKETS : PAYLOAD_BYTES)));
    const double messages = message_bytes > whole ? message_bytes / whole : 1;

    if (bytes <= INLINE_BYTES)
        return 0;
    if (rates->over_sockets)
        return messages * lines;
    if (bytes > SMALL_BYTES && asks)
        return messages * fmax(sqrt(SMALL_BYTES / PAYLOAD_BYTES), fmin(ASKED_MOST, ASKED_FIXED + bytes / ASKED_BYTES));
    if (bytes > SMALL_BYTES)
        return messages * (SLOT_SHARE + (1 - SLOT_SHARE) * lines);
    return fmax(SMALL_SHARE, lines * (rates->has_lanes ? LANES_SHARE : 1));
}

/** By how much the bytes of blocks cost more because their writer has them in its first-level cache. */
static double dirty_share(double bytes, const struct rates *rates)
{
    const double share = bytes / rates->l1_bytes;

    return rates->exchanges ? DIRTY_EXTRA * fmax(0, fmin(1, fmin((share - 1. / 12) * 6, (2. / 3 - share) * 6))) : 0;
}

/** What else a long message is: so many more, over sockets. */
static double more_messages(double bytes)
{
    return fmax(0, bytes / WHOLE_BYTES_SOCKETS - 1);
}

/** n bytes of work, `times` over. */
static void add_work(double *amounts, const struct hkt__work *work, double n, double times, const struct rates *rates)
{
    amounts[HKT__PRICE_MESSAGE] +=
        times * (work->messages + (rates->over_sockets ? work->signals + POST_EXTRA * (2 * work->posts - work->messages) : 0));
    amounts[HKT__PRICE_ROUND] += times * rates->gap * work->messages;
    if (work->parcels > 0 && rates->over_sockets)
        amounts[HKT__PRICE_MESSAGE] += times * work->parcels * more_messages(n * (work->sent + work->received) / work->parcels);
    if (work->parcels > 0)
        amounts[HKT__PRICE_PAYLOAD] +=
            times * work->parcels *
            payload_share(n * (work->sent + work->received + work->fresh) / work->parcels, rates->asks && work->fresh <= 0, rates);
    amounts[HKT__PRICE_STEP] += times * work->steps;
    amounts[rates->far ? HKT__PRICE_FAR_ACCESS : HKT__PRICE_ACCESS] +=
        times * rates->crush *
        (work->accesses + (rates->far ? fmax(0, n * work->bounced / BOUNCE_BYTES - 1) : -PUT_HIDDEN * work->puts));
    add_bytes(amounts, HKT__PRICE_SEND_L2, times * n * work->sent, rates);
    add_bytes(amounts, HKT__PRICE_RECEIVE_L2, times * n * work->received, rates);
    if (work->net_messages > 0)
        amounts[HKT__PRICE_NET_MESSAGE] +=
            times * work->net_messages * (1 + more_messages(n * (work->net_sent + work->net_received) / work->net_messages));
    add_bytes(amounts, HKT__PRICE_NET_SEND_L2, times * n * work->net_sent, rates);
    add_bytes(amounts, HKT__PRICE_NET_RECEIVE_L2, times * n * work->net_received, rates);
    add_near_bytes(amounts, HKT__PRICE_COPY_L2, times * n * (work->copied + (rates->far ? 0 : work->stored)), rates);
    add_near_bytes(amounts, HKT__PRICE_REDUCE_L2, times * n * work->reduced, rates);
    if (work->parcels > 0) /* a block is written and read */
        add_bytes(amounts, HKT__PRICE_FRESH_L2, times * n * work->fresh * (1 + dirty_share(n * work->fresh / work->parcels / 2, rates)), rates);
    add_bytes(amounts, rates->far ? HKT__PRICE_FAR_L2 : HKT__PRICE_FRESH_L2, times * rates->crush * rates->read_crush * n * work->relayed, rates);
    if (rates->far) {
        add_bytes(amounts, HKT__PRICE_FAR_L2, times * rates->crush * rates->read_crush * n * work->read, rates);
        add_bytes(amounts, HKT__PRICE_FAR_WRITE_L2, times * rates->crush * n * work->written, rates);
    } else {
        add_near_bytes(amounts, HKT__PRICE_DIRECT_L2, times * n * (work->read + work->written), rates);
    }
}

static double cost_of(const double *amounts, const struct hkt__prices *prices)
{
    double ns = 0;

    for (int i = 0; i < HKT__PRICE_COUNT; i++)
        ns += amounts[i] * prices->price[i];
    return ns;
}

/** Amounts of the dearest of some possibilities. */
struct dearest {
    const struct hkt__prices *prices;
    double ns;
    double amounts[HKT__PRICE_COUNT];
};

static void consider(struct dearest *dearest, double *amounts)
{
    const double ns = cost_of(amounts, dearest->prices);

    if (dearest->ns < 0 || ns > dearest->ns) {
        dearest->ns = ns;
        memcpy(dearest->amounts, amounts, sizeof dearest->amounts);
    }
}

/** Turns that a rank of a crowded core needs for some rounds. Of further rounds that wait for one message most are found done when the
 *  turn comes; one that waits for many needs a turn more, for all must have had theirs (8 ranks on 2 cores: all_gather of 256 bytes in
 *  3 rounds of one message 14 us, in 1 of seven 8). Ranks that sleep, over sockets or for other hosts, are woken for
 *  every other round (fitted: a ring's 6 rounds cost twice what 2 cost). */
static double turns_of(const struct hkt__profile *profile, const struct hkt__prices *prices, const struct hkt__waits *waits)
{
    const double rounds = waits->rounds + waits->net_rounds, fan_in = fmax(1, profile->mean.messages / 2 / rounds);

    if (prices->over_sockets || waits->net_rounds > 0)
        return 1 + rounds / 2;
    return 1 + fmax(0, rounds - 1) * (1 - (1 - TURN_SHARE) / fan_in);
}

/** Waiting for messages one after the other. */
static void add_waits(double *amounts, const struct hkt__profile *profile, const struct hkt__prices *prices, const struct hkt__waits *waits)
{
    amounts[HKT__PRICE_ROUND] += waits->rounds;
    amounts[HKT__PRICE_NET_ROUND] += waits->net_rounds;
    if (prices->crowd > 1 && waits->rounds + waits->net_rounds > 0)
        amounts[HKT__PRICE_SWITCH] += prices->crowd * turns_of(profile, prices, waits);
}

/** One slice of n bytes, whichever rank is busiest, or all together where they share cores or the link of their host. Where nobody knows
 *  who shares one (over sockets; in memory it is known as a rule) the busiest rank shares its core with others like the mean. */
static void consider_ranks(struct dearest *dearest, const struct hkt__profile *profile, double n,
                           const struct hkt__waits *waits, const struct rates *rates)
{
    const double crowd = dearest->prices->crowd, beside = rates->over_sockets && profile->ncores == 0 ? crowd - 1 : 0;

    for (int32_t i = -1; i < profile->nlooks; i++) {
        double amounts[HKT__PRICE_COUNT] = {0};

        /* Where paths are known, a single rank's waits are on its path. */
        if (i < 0 || profile->npaths == 0)
            add_waits(amounts, profile, dearest->prices, waits);
        add_work(amounts, i < 0 ? &profile->mean : &profile->looks[i], n, i < 0 ? crowd : 1, rates);
        if (i >= 0 && beside > 0)
            add_work(amounts, &profile->mean, n, beside, rates);
        consider(dearest, amounts);
    }
    for (int32_t i = 0; i < profile->ncores; i++) {
        double amounts[HKT__PRICE_COUNT] = {0};

        add_waits(amounts, profile, dearest->prices, waits);
        add_work(amounts, &profile->cores[i], n, 1, rates);
        consider(dearest, amounts);
    }
    if (profile->wire > 0) {
        double amounts[HKT__PRICE_COUNT] = {0};

        add_waits(amounts, profile, dearest->prices, waits);
        amounts[HKT__PRICE_NET_WIRE] += n * profile->wire;
        consider(dearest, amounts);
    }
}

static void consider_paths(struct dearest *dearest, const struct hkt__profile *profile, double n, const struct rates *rates)
{
    for (int32_t i = 0; i < profile->npaths; i++) {
        double amounts[HKT__PRICE_COUNT] = {0};

        add_waits(amounts, profile, dearest->prices, &profile->paths[i].waits);
        add_work(amounts, &profile->paths[i].work, n, 1, rates);
        amounts[HKT__PRICE_NET_WIRE] += n * profile->paths[i].work.net_received;
        consider(dearest, amounts);
    }
}

/** By how much bytes between hosts cost more than they should. Measured for pairs that exchange. */
static double burst(const struct hkt__profile *profile, double slices)
{
    const bool is_one_round = profile->npaths > 0 && profile->paths[0].waits.rounds + profile->paths[0].waits.net_rounds <= 1;

    return slices > 1 && !profile->runs_ahead && profile->peers <= 1 && is_one_round ? ONE_ROUND : 1;
}

/** Waits of a small slice. A path on which messages are always there in time has none, but where ranks share cores each must have
 *  its turn for that. */
static struct hkt__waits waits_of(const struct hkt__profile *profile, const struct hkt__prices *prices)
{
    struct hkt__waits waits = profile->npaths > 0 ? profile->paths[0].waits : profile->waits;

    if (prices->crowd > 1 && profile->nranks > 1 && waits.rounds + waits.net_rounds <= 0)
        waits.rounds = 1;
    return waits;
}

/** Waits of all slices but the first between hosts, of a slice's: on one lane no slice sends to a peer before the one before it has
 *  sent all it has for it. */
static double waits_held(const struct hkt__profile *profile, const struct hkt__model_args *args, double slices)
{
    return profile->in_a_row > 1 ? (slices - 1) * (1 - 1.0 / profile->in_a_row) / fmax(1, args->lanes) : 0;
}

/** What lanes beyond the first cost, as a multiple of all else. */
static double lanes_burden(const struct hkt__profile *profile, const struct hkt__model_args *args)
{
    return 1 + LANE_SHARE * (fmax(1, args->lanes) - 1) * fmin(fmax(1, profile->peers), PEERS_FITTED);
}

static double burden_of(double peers, double share, double most)
{
    return 1 + share * (fmax(1, fmin(peers, most)) - 1);
}

void hkt__model_amounts(const struct hkt__profile *profile, const struct hkt__prices *prices,
                        const struct hkt__model_args *args, double out_amounts[HKT__PRICE_COUNT])
{
    const double slices = hkt__model_slices(profile, args), n = (double)args->bytes / slices;
    static const struct hkt__waits none = {0, 0};
    const struct hkt__waits waits = waits_of(profile, prices);
    const bool alternates = profile->alternate > 0 && prices->crowd > 1;
    const double wait = alternates ? profile->alternate : profile->wait;
    const double burden = burden_of(profile->peers, prices->over_sockets ? PEER_SHARE_SOCKETS : PEER_SHARE, PEERS_FITTED) *
                          (alternates && profile->has_one_source ? ALTERNATE : 1);
    const double net_burden = burden_of(profile->net_peers, NET_PEER_SHARE, NET_PEERS_MEASURED);
    struct dearest first = {.prices = prices, .ns = -1}, rest = {.prices = prices, .ns = -1};
    struct rates rates = {.far = args->far, .over_sockets = prices->over_sockets, .has_lanes = profile->nlanes > 1 && profile->wait < 1,
                          .exchanges = profile->wait >= 1 && prices->crowd <= 1, .l1_bytes = prices->l1_bytes,
                          .asks = profile->wait >= 1 && prices->crowd <= 1 && !prices->over_sockets,
                          .gap = profile->wait < 1 && prices->crowd <= 1 && !prices->over_sockets ? STREAM_GAP : 0,
                          .crush = args->far ? crush_of(profile) : 1,
                          .read_crush = args->far ? read_crush_of(profile, prices->crowd) : 1};

    const double scratch = profile->touches_peers ? 0 : profile->scratch_chunks * fmin(SCRATCH_INSTANCES, slices) / slices / (profile->blocks * profile->cuts);
    const double touched = (args->touched + profile->mean.read + profile->mean.relayed + scratch) * (double)args->bytes;

    hkt__model_caches(prices, args->host_ranks, touched, &rates.caches);
    consider_ranks(&rest, profile, n, &none, &rates);
    consider_ranks(&first, profile, n, &waits, &rates);
    consider_paths(&first, profile, n, &rates);
    for (int i = 0; i < HKT__PRICE_COUNT; i++)
        out_amounts[i] = (i == HKT__PRICE_NET_WIRE ? net_burden : burden) * (wait * first.amounts[i] + (slices - wait) * rest.amounts[i]);
    if (prices->over_sockets && prices->crowd > 1)
        out_amounts[HKT__PRICE_MESSAGE] *= wait + (1 - wait) * BATCH_SHARE;
    out_amounts[HKT__PRICE_NET_ROUND] += waits_held(profile, args, slices) * waits.net_rounds;
    out_amounts[HKT__PRICE_NET_MESSAGE] += wait * NET_QUEUE_SHARE * profile->net_others;
    for (int i = HKT__PRICE_NET_WIRE; i < HKT__PRICE_COUNT; i++)
        out_amounts[i] *= burst(profile, slices);
    for (int i = 0; i < HKT__PRICE_COUNT && args->lanes > 1; i++)
        out_amounts[i] *= lanes_burden(profile, args);
    out_amounts[HKT__PRICE_CALL] += 1;
    out_amounts[HKT__PRICE_SHARED_CALL] += profile->touches_peers;
}

double hkt__model_ns(const struct hkt__profile *profile, const struct hkt__prices *prices,
                     const struct hkt__model_args *args)
{
    double amounts[HKT__PRICE_COUNT];

    hkt__model_amounts(profile, prices, args, amounts);
    return cost_of(amounts, prices);
}
