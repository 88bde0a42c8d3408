/* Run a function on n ranks and see it end: as threads of one process or as processes of their own, with settings of
 * their own, before a deadline. Everything runs in forked children, so that a test that hangs is killed and reported, a
 * crash is a failure of that test alone, and settings are read afresh each time.
 *
 * Rank functions use ranks_require, which ends the process of a rank that is wrong; the text of the first failure is what
 * the test reports. After the function, the communicator is destroyed (if the function left it) and the process must
 * have as many open descriptors as before it. Ranks may meet without hocket at ranks_meet. */
#ifndef HOCKET_TESTS_RANKS_H
#define HOCKET_TESTS_RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include <hocket/hocket.h>

#define RANKS_MAX 72
#define RANKS_TEXT_MAX 2048
#define RANKS_COUNTERS 16

enum ranks_kind {
    RANKS_THREADS,    /* of one process, joined by hkt_comm_init_all */
    RANKS_PROCESSES,  /* joined by a unique id that rank 0 makes */
    RANKS_ENV,        /* processes joined by HOCKET_RANK, HOCKET_SIZE, HOCKET_ROOT, HOCKET_TOKEN */
};

/** Seen by the test and all ranks. */
struct ranks_shared {
    struct hkt_unique_id id;
    _Atomic int id_ready;                       /* release after id is written, acquire before it is read */
    _Atomic int failed;                         /* a rank owns `text` */
    char text[RANKS_TEXT_MAX];                  /* of the first failure */
    int tried;                                  /* how often the job has been tried before */
    int64_t longest_nap_ms;                     /* of the test itself, which sleeps for 1 ms at a time: what cores were like */
    _Atomic int preparing;                      /* ranks of a timed job in what comes before its subject: what fails there
                                                   for want of time says nothing of it */
    _Atomic int64_t counters[RANKS_COUNTERS];   /* for the test's own totals */
    _Atomic int met[RANKS_COUNTERS];
    /* What a rank wants the test to see. */
    struct {
        enum hkt_status status;
        char text[RANKS_TEXT_MAX];
    } rank[RANKS_MAX];
};

struct ranks_rank {
    int rank, nranks;
    struct hkt_comm *comm;                      /* set to NULL by a function that has destroyed it */
    struct ranks_shared *shared;
    void *arg;
};
typedef void ranks_fn(struct ranks_rank *rank);

struct ranks_job {
    enum ranks_kind kind;
    int nranks;
    int deadline_s;                             /* 0: 60; four times as long under sanitizers */
    const char *const *settings;                /* "NAME=value", ending in NULL; NULL: none */
    const struct hkt_config *config;
    bool is_timed;                              /* what it checks holds where ranks are quick: ranks_run tries again, some
                                                   times, when the machine was seen not to let them be, or a rank was
                                                   still `preparing` */
    bool no_comm;                               /* call the function without a communicator */
    bool leaves_descriptors;                    /* do not count them */
    ranks_fn *fn;
    void *arg;                                  /* in memory the children inherit */
};

/** Run the job once; true when all ranks ended well. out_shared (NULL: not wanted) is released by ranks_release. */
bool ranks_try(const struct ranks_job *job, struct ranks_shared **out_shared);
/** As ranks_try (as often as is_timed says), and fails the cmocka test with the first failure's text. */
void ranks_run(const struct ranks_job *job);
void ranks_release(struct ranks_shared *shared);

/** End this rank's process unless ok; the format says what should have been. */
void ranks_require(struct ranks_rank *rank, bool ok, const char *format, ...) __attribute__((format(printf, 3, 4)));
/** Require a status; the failure names the call and quotes hkt_last_error. */
void ranks_require_status(struct ranks_rank *rank, enum hkt_status got, enum hkt_status want, const char *what);
/** Require HKT_OK. */
void ranks_require_ok(struct ranks_rank *rank, enum hkt_status got, const char *what);
/** Require that text contains part. */
void ranks_require_text(struct ranks_rank *rank, const char *text, const char *part);
/** Keep a status and this thread's last error for the test. */
void ranks_note(struct ranks_rank *rank, enum hkt_status status);
/** Join as `rank->rank` of nranks by the job's unique id, which rank 0 makes: for functions without a communicator. */
HKT_NODISCARD enum hkt_status ranks_join(struct ranks_rank *rank, int nranks, const struct hkt_config *config);
/** Wait for all ranks of the job, without hocket. */
void ranks_meet(struct ranks_rank *rank, int place);

/** Tests run their smaller set: set by ./check under sanitizers. */
bool ranks_small(void);
/** Monotonic milliseconds. */
int64_t ranks_now_ms(void);
void ranks_sleep_ms(int ms);
/** Open descriptors of this process. */
int ranks_count_fds(void);
/** A port of 127.0.0.1 without a listener, *out_port; returns the socket that keeps the kernel from giving it to anybody else
 *  until it is closed. As both say SO_REUSEADDR, a listener may come. */
int ranks_keep_port(int *out_port);

#endif
