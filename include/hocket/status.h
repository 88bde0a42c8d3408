/* Result codes of every hocket call. One table yields the enum, the names and the texts, so they cannot drift
 * apart. 0 is success, positive values are not failures, negative values are, grouped by what is broken:
 * the call, a peer, the communicator, the library. */
#ifndef HOCKET_STATUS_H
#define HOCKET_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

#define HKT_API __attribute__((visibility("default")))
#define HKT_NODISCARD __attribute__((warn_unused_result))

/* X(name, value, text) */
#define HKT_STATUS_TABLE(X)                                                                        \
    X(HKT_OK, 0, "success")                                                                        \
    X(HKT_IN_PROGRESS, 1, "operation in progress")                                                 \
    X(HKT_AGAIN, 2, "nothing was queued: progress, then retry")                                    \
    X(HKT_ERR_INVALID, -1, "invalid argument")                                                     \
    X(HKT_ERR_NOMEM, -2, "out of memory")                                                          \
    X(HKT_ERR_UNSUPPORTED, -3, "not supported")                                                    \
    X(HKT_ERR_SYSTEM, -4, "system call failed")                                                    \
    X(HKT_ERR_PEER_LOST, -10, "a peer was lost")                                                   \
    X(HKT_ERR_TIMEOUT, -11, "deadline exceeded")                                                   \
    X(HKT_ERR_AUTH, -12, "peer refused: it does not hold the job's token")                         \
    X(HKT_ERR_MISMATCH, -13, "ranks called different operations")                                  \
    X(HKT_ERR_CORRUPT, -14, "message lost, repeated or damaged on the way")                        \
    X(HKT_ERR_ABORTED, -20, "communicator was aborted")                                            \
    X(HKT_ERR_FAILED, -21, "communicator failed earlier")                                          \
    X(HKT_ERR_BUG, -30, "internal error: please report it")

enum hkt_status {
#define HKT_STATUS_ENUM(name, value, text) name = value,
    HKT_STATUS_TABLE(HKT_STATUS_ENUM)
#undef HKT_STATUS_ENUM
};

/** Name of a status, for instance "HKT_ERR_TIMEOUT"; never NULL. Any thread. */
HKT_API const char *hkt_status_name(enum hkt_status status);

/** One-line text of a status; never NULL. Any thread. */
HKT_API const char *hkt_status_text(enum hkt_status status);

/** Full text of the last failure of the calling thread: what, where, which rank, and the mend.
 *  Owns     the string belongs to the library and is valid until the thread's next failing call
 *  Threads  per thread; "" when nothing failed yet */
HKT_API const char *hkt_last_error(void);

#ifdef __cplusplus
}
#endif
#endif
