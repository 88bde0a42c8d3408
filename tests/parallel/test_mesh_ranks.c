/* What could break: the communicator of a group holds other ranks than the printed map says, or in another order; a
 * second call makes a second one; two sets of axes share one; groups that hold all ranks are not independent of the
 * world. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "ranks.h"

struct layout {
    const char *text;
    int nranks;
};

static void require_mesh_ok(struct ranks_rank *rank, enum hkt_status got, const char *what)
{
    ranks_require(rank, got == HKT_OK, "%s: %s", what, hkt_parallel_last_error());
}

/* The ranks gathered over the communicator are those of the map, in its order. */
static void check_group(struct ranks_rank *rank, struct hkt_mesh *mesh, const char *axes)
{
    struct hkt_comm *comm = NULL, *again = NULL;
    int want[RANKS_MAX], got[RANKS_MAX], count = 0;

    require_mesh_ok(rank, hkt_mesh_group(mesh, axes, rank->rank, want, &count), axes);
    require_mesh_ok(rank, hkt_mesh_comm(mesh, axes, &comm), axes);
    require_mesh_ok(rank, hkt_mesh_comm(mesh, axes, &again), axes);
    ranks_require(rank, comm == again && comm != rank->comm, "%s: one communicator per set of axes", axes);
    ranks_require(rank, hkt_comm_size(comm) == count, "%s: %d ranks, not %d", axes, hkt_comm_size(comm), count);
    ranks_require_ok(rank, hkt_all_gather(&rank->rank, got, 1, HKT_INT32, comm, NULL), "all_gather");
    ranks_require(rank, memcmp(got, want, (size_t)count * sizeof got[0]) == 0, "%s: other ranks, or another order",
                  axes);
    ranks_require(rank, got[hkt_comm_rank(comm)] == rank->rank, "%s: this rank is at another place", axes);
}

static void groups_are_those_of_the_map(struct ranks_rank *rank)
{
    const struct layout *layout = rank->arg;
    struct hkt_mesh *mesh = NULL;
    struct hkt_comm *comm = NULL, *other = NULL;

    require_mesh_ok(rank, hkt_mesh_create(layout->text, layout->nranks, &mesh), layout->text);
    ranks_require(rank, hkt_mesh_comm(mesh, "dp", &comm) == HKT_ERR_INVALID, "not attached");
    require_mesh_ok(rank, hkt_mesh_attach(mesh, rank->comm), "attach");
    ranks_require(rank, hkt_mesh_attach(mesh, rank->comm) == HKT_ERR_INVALID, "attached twice");
    for (int i = 0; i < hkt_mesh_axis_count(mesh); i++)
        check_group(rank, mesh, hkt_mesh_axis_get(mesh, i)->name);
    check_group(rank, mesh, "tp+dp");
    check_group(rank, mesh, "pp+tp");
    check_group(rank, mesh, "dp+tp+pp");
    require_mesh_ok(rank, hkt_mesh_comm(mesh, "tp+dp", &comm), "tp+dp");
    require_mesh_ok(rank, hkt_mesh_comm(mesh, "dp+tp", &other), "dp+tp");
    ranks_require(rank, comm == other, "the order of names does not matter");
    ranks_require(rank, hkt_mesh_comm(mesh, "cp", &other) == HKT_ERR_INVALID && other == comm, "no such axis");
    hkt_mesh_destroy(mesh);

    int64_t one = 1, sum = 0;

    ranks_require_ok(rank, hkt_all_reduce(&one, &sum, 1, HKT_INT64, HKT_SUM, rank->comm, NULL), "all_reduce");
    ranks_require(rank, sum == layout->nranks, "the world outlives the mesh");
}

static void a_mesh_of_another_size_is_refused(struct ranks_rank *rank)
{
    struct hkt_mesh *mesh = NULL;

    require_mesh_ok(rank, hkt_mesh_create("dp:3", 3, &mesh), "dp:3");
    ranks_require(rank, hkt_mesh_attach(mesh, rank->comm) == HKT_ERR_INVALID, "attach");
    ranks_require_text(rank, hkt_parallel_last_error(), "is for 3 ranks, the communicator has 2");
    hkt_mesh_destroy(mesh);
}

static void run(enum ranks_kind kind, struct layout layout, ranks_fn *fn)
{
    const struct ranks_job job = { .kind = kind, .nranks = layout.nranks, .fn = fn, .arg = &layout };

    ranks_run(&job);
}

static void threads_form_groups(void **state)
{
    (void)state;
    run(RANKS_THREADS, (struct layout){ "tp:2 dp:rest=ep:1*edp:rest pp:2", 12 }, groups_are_those_of_the_map);
    run(RANKS_THREADS, (struct layout){ "pp:1 tp:1 dp:1", 1 }, groups_are_those_of_the_map);
    run(RANKS_THREADS, (struct layout){ "dp:2", 2 }, a_mesh_of_another_size_is_refused);
}

static void processes_form_groups(void **state)
{
    (void)state;
    run(RANKS_PROCESSES, (struct layout){ "pp:2 dp:4=ep:2*edp:2=inner:2*outer:2 tp:1", 8 },
        groups_are_those_of_the_map);
    run(RANKS_PROCESSES, (struct layout){ "tp:3 dp:1 pp:1", 3 }, groups_are_those_of_the_map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_form_groups),
        cmocka_unit_test(processes_form_groups),
    };

    return cmocka_run_group_tests_name("mesh_ranks", tests, NULL, NULL);
}
