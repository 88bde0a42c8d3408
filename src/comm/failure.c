/* How a communicator fails: once, for one cause, on all ranks. */
#include <stdio.h>
#include <string.h>

#include "comm/far.h"
#include "core/clock.h"
#include "core/log.h"

void hkt__comm_fail(struct hkt_comm *comm, const struct hkt__error *error)
{
    struct hkt__failure *failure = &comm->watch.failure;

    pthread_mutex_lock(&failure->lock);
    if (atomic_load_explicit(&failure->status, memory_order_relaxed) == HKT_OK) {
        failure->error = *error;
        atomic_store_explicit(&failure->status, error->status, memory_order_release); /* F1: publishes error */
        hkt__far_abort(comm);
        hkt__log(HKT__SUB_COMM, HKT__LOG_INFO, "%s: %s", comm->name, error->text);
    }
    pthread_mutex_unlock(&failure->lock);
    if (!atomic_load_explicit(&comm->listed.is_open, memory_order_acquire)) /* O2 */
        return;
    for (int t = 0; t < HKT__TRANSPORTS_MAX; t++)
        if (comm->routes.doms[t] != NULL)
            comm->routes.doms[t]->ops->wake(comm->routes.doms[t]);
}

#define EXPLANATION_NS 900000000 /* survivors promise to report within a second; explanations come in milliseconds */

/** A closed connection is often the echo of a failure that the control plane is about to explain, or of a death it names:
 *  give it a moment, so that the first cause is the real one. */
static void await_explanation(const struct hkt_comm *comm)
{
    const int64_t until_ns = hkt__now_ns() + EXPLANATION_NS;

    while (hkt__comm_failed(comm) == HKT_OK && hkt__now_ns() < until_ns)
        hkt__sleep_ns(1000000);
}

enum hkt_status hkt__comm_fail_here(struct hkt_comm *comm, enum hkt_status status, const char *context)
{
    struct hkt__error *error = hkt__error_here();

    hkt__error_context(status, "rank %d of %d on %s, %s", comm->rank, comm->nranks, comm->name, context);
    const struct hkt__error own = *error;

    if (status == HKT_ERR_PEER_LOST && comm->job->boot != NULL)
        await_explanation(comm);
    const bool is_first = hkt__comm_failed(comm) == HKT_OK;

    hkt__comm_fail(comm, &own);
    if (is_first && comm->job->boot != NULL) {
        struct hkt__boot_event event = {.comm_id = comm->listed.id, .reporter = comm->job->rank, .culprit = -1,
                                        .status = own.status, .sys_errno = own.sys_errno};

        if (own.peer >= 0 && own.peer < comm->nranks)
            event.culprit = comm->job_ranks[own.peer];
        memcpy(event.text, own.text, sizeof event.text);
        hkt__boot_tell(comm->job->boot, &event);
    }
    return hkt__comm_report(comm);
}

int hkt__comm_rank_of(const struct hkt_comm *comm, int job_rank)
{
    for (int r = 0; r < comm->nranks; r++)
        if (comm->job_ranks[r] == job_rank)
            return r;
    return -1;
}

void hkt__comm_on_event(struct hkt_comm *comm, const struct hkt__boot_event *event)
{
    struct hkt__error error = {.status = (enum hkt_status)event->status, .sys_errno = event->sys_errno};

    error.peer = event->culprit >= 0 ? hkt__comm_rank_of(comm, event->culprit) : -1;
    if (event->comm_id != 0 && event->comm_id != comm->listed.id)
        return;
    if (event->comm_id == 0 && error.peer < 0)
        return;
    if (event->comm_id == 0 || event->text[0] == '\0')
        snprintf(error.text, sizeof error.text,
                 "rank %d of %d on %s: lost rank %d: its process ended or its host is gone; look at that rank's own "
                 "output for the cause",
                 comm->rank, comm->nranks, comm->name, error.peer);
    else
        snprintf(error.text, sizeof error.text, "%.*s", (int)sizeof event->text, event->text);
    hkt__comm_fail(comm, &error);
}

enum hkt_status hkt__comm_report(const struct hkt_comm *comm)
{
    const int status = hkt__comm_failed(comm);

    if (status != HKT_OK)
        *hkt__error_here() = comm->watch.failure.error;
    return (enum hkt_status)status;
}

enum hkt_status hkt_comm_status(const struct hkt_comm *comm)
{
    return comm != NULL ? (enum hkt_status)hkt__comm_failed(comm) : HKT_ERR_INVALID;
}

const char *hkt_comm_last_error(const struct hkt_comm *comm)
{
    return comm != NULL && hkt__comm_failed(comm) != HKT_OK ? comm->watch.failure.error.text : "";
}

void hkt_comm_revoke(struct hkt_comm *comm)
{
    if (comm == NULL)
        return;
    struct hkt__error error = {.status = HKT_ERR_ABORTED, .peer = -1};
    struct hkt__boot_event event = {.comm_id = comm->listed.id, .reporter = comm->job->rank, .culprit = -1,
                                    .status = HKT_ERR_ABORTED};

    snprintf(error.text, sizeof error.text, "%s was aborted by rank %d", comm->name, comm->rank);
    memcpy(event.text, error.text, sizeof event.text);
    hkt__comm_fail(comm, &error);
    if (comm->job->boot != NULL)
        hkt__boot_tell(comm->job->boot, &event);
}
