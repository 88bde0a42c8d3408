/* The machines of a communicator as one graph: every rank reads what it may use of its host, all exchange that, and each merges
 * the same views. Where a rank is follows from its place, which all know since the job began. */
#include "comm/call.h"
#include "comm/comm_int.h"
#include "hocket/coll.h"
#include "hocket/topo.h"
#include "topology/merge.h"

static enum hkt_status gather(void *arg, const void *in, size_t bytes, void *out)
{
    return hkt_all_gather(in, out, bytes, HKT_UINT8, arg, NULL);
}

/** The host with this id, -1: there is none. */
static int32_t find_host(const struct hkt_topo *topo, uint64_t id)
{
    for (int32_t node = 0; node < topo->nnodes; node++)
        if (topo->nodes[node].kind == HKT_TOPO_HOST && topo->nodes[node].id == id)
            return node;
    return -1;
}

/** The innermost part that a place names; the root where it is on none of the hosts. */
static int node_of(const struct hkt_topo *topo, const struct hkt__topo_place *place)
{
    const struct {
        enum hkt_topo_kind kind;
        int32_t number;
    } parts[] = {
        {HKT_TOPO_PU, place->unit},  {HKT_TOPO_CORE, place->core},       {HKT_TOPO_L3, place->l3},
        {HKT_TOPO_NUMA, place->numa}, {HKT_TOPO_PACKAGE, place->package},
    };
    const int32_t host = find_host(topo, place->host);

    if (host < 0)
        return 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const int32_t node = parts[i].number < 0 ? -1 : hkt__topo_find(topo, host, parts[i].kind, parts[i].number);

        if (node >= 0)
            return node;
    }
    return host;
}

enum hkt_status hkt_comm_topo(struct hkt_comm *comm, struct hkt_topo **out_topo, int *out_nodes)
{
    struct hkt_topo *own = NULL, *all = NULL;

    if (comm == NULL || out_topo == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_topo: %s is NULL", comm == NULL ? "comm" : "out_topo");
    if (hkt__group_is_open()) /* which would gather when the exchange has ended */
        return hkt__fail(HKT_ERR_INVALID, "hkt_comm_topo inside a group");
    *out_topo = NULL;
    if (hkt_topo_detect(&own) < 0)
        own = NULL; /* the others may see this host */
    const enum hkt_status rc = hkt__topo_exchange(own, comm->nranks, gather, comm, &all);

    hkt_topo_destroy(own);
    if (rc == HKT_ERR_NOMEM)
        return hkt__comm_fail_here(comm, rc, "hkt_comm_topo"); /* the others may wait for this rank's view */
    if (rc < 0)
        return rc;
    for (int r = 0; r < comm->nranks && out_nodes != NULL; r++)
        out_nodes[r] = node_of(all, &comm->job->places[comm->job_ranks[r]]);
    *out_topo = all;
    return HKT_OK;
}
