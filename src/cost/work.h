/* What a schedule makes ranks do, counted from its steps: messages, and bytes by what happens to them, as multiples of the
 * collective's whole vector n. The cost model prices these counts; nothing about a machine is in them. */
#ifndef HOCKET_COST_WORK_H
#define HOCKET_COST_WORK_H

#include "cost/site.h"

/* Within hosts; counts of what passes between caches are weighted by how far these are apart (site.h). */
struct hkt__work {
    double messages;  /* sent and received; signals count for less */
    double posts;     /* of them sent, signals included */
    double signals;   /* what they cost more where they are messages like others: over sockets */
    double parcels;   /* bytes that change hands in one piece: messages with bytes in them, operands in scratch of peers */
    double steps;     /* local steps; reductions once for each input */
    double sent;      /* bytes / n put into channels */
    double received;  /* taken out of channels, to be stored or reduced */
    double copied;    /* moved within this rank's memory, but for what goes to scratch */
    double stored;    /* here, out of buffers of peers, or fetched here for them: system calls do both at once, and are priced so.
                       * Negative: what is counted above, but is read for peers too, or stays in registers, without system calls */
    double reduced;   /* inputs of reductions beyond the first of each */
    double fresh;     /* written to scratch, or read from that of peers: lines that the other's cache has */
    double relayed;   /* read from results of peers, who have just written them */
    double read;      /* read from inputs of peers */
    double written;   /* written to memory of peers */
    double accesses;  /* operands read from or written to memory of peers: system calls, where it is copied */
    double puts;      /* of them results that are written where nobody reads: stores are not waited for */
    double bounced;   /* bytes / n of several inputs of peers that are reduced, times these: copied by pieces, they are more calls */
    double net_messages, net_sent, net_received; /* between hosts */
};
#define HKT__WORK_COUNTS 20

#define HKT__PROFILE_LOOKS 16

/** An algorithm for a number of ranks. */
struct hkt__profile {
    struct hkt__waits {
        double rounds, net_rounds; /* messages that follow each other, within hosts and between them */
    } waits;                       /* on the critical path: counted, or by the registry's formula */
    int32_t nlooks;
    struct hkt__work looks[HKT__PROFILE_LOOKS]; /* of single ranks, no two alike: the busiest decides */
    struct hkt__work mean;         /* over the ranks looked at */
    int32_t ncores;
    struct hkt__work cores[HKT__PROFILE_LOOKS]; /* all ranks' of each core, where it is known who shares one */
    int32_t in_a_row;              /* messages of a slice to one peer on one lane, at most: the next slice's come after them */
    double peers, net_peers;       /* that a rank exchanges messages with, on average: all, those on other hosts */
    int32_t npaths;
    struct hkt__path {
        struct hkt__waits waits;   /* messages on the path */
        struct hkt__work work;     /* what is done along it, by whichever rank */
    } paths[2];                    /* critical paths of one slice: of small ones, of large ones. See path.h */
    double net_others;             /* messages of a host's other ranks beside those of its busiest: they share its card */
    double wire;                   /* bytes / n that the busiest host sends to others, or receives, whichever is more */
    double wait;                   /* share of the waiting that is paid where calls follow each other */
    bool runs_ahead;               /* there are ranks that only give */
    bool touches_peers;            /* their memory */
    double alternate;              /* one rank gives, or takes, in scratch, which has few instances: it and the others by turns, if
                                    * they share cores. Then the share of waiting that is paid; else 0 */
    int32_t nranks;
    double sources;                /* inputs of all ranks together, as a multiple of n */
    bool has_one_source;           /* they are all one rank's */
    int32_t blocks, cuts, scratch_chunks; /* what slicing depends on */
    int32_t nlanes;
};

/** What schedules are counted on: ranks[v] is the rank of number v, NULL: v itself. site NULL: all ranks are near. */
struct hkt__footing {
    const struct hkt__site *site;
    const int32_t *ranks;
};
struct hkt__link hkt__footing_link(const struct hkt__footing *footing, int a, int b);

/** Add one step of a schedule. */
void hkt__work_add_step(const struct hkt__footing *footing, const struct hkt__sched *sched, const struct hkt__step *step,
                        struct hkt__work *work);
/** Work of one rank's schedule. */
void hkt__work_count(const struct hkt__footing *footing, const struct hkt__sched *sched, struct hkt__work *out_work);
/** Blocks of the whole vector: the parts that the size of a collective is counted in. */
int32_t hkt__vector_blocks(enum hkt_coll coll, int nranks);
/** to += factor * work. */
void hkt__work_add(struct hkt__work *to, const struct hkt__work *work, double factor);

/** Looks at all ranks when there are few, else at a sample that is the same everywhere. site NULL: ranks near each other.
 *  Builds schedules: for the control plane. */
HKT_NODISCARD enum hkt_status hkt__profile_make(const struct hkt__algo *algo, const struct hkt__site *site, int nranks,
                                                bool in_place, struct hkt__profile *out_profile);

#endif
