/* Groups of a mesh: their members, their communicators, and the printed map. */

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/mesh.h"

/* The lowest rank of the group, its members in ascending order, and this rank's place among them: the axes of a mask
 * do not overlap, so counting along them from the smallest step ascends. */
struct group {
    int lowest, count, index;
};

static struct group group_of(const struct hkt_mesh *mesh, uint32_t mask, int rank, int *out_ranks)
{
    struct group group = { rank, 1, 0 };

    for (int i = 0; i < mesh->naxes; i++)
        if ((mask >> i & 1) != 0)
            group.lowest -= hkt__mesh_coord(mesh, i, rank) * mesh->axis[i].step;
    if (out_ranks != NULL)
        out_ranks[0] = group.lowest;
    for (uint32_t left = mask; left != 0;) {
        int next = -1;

        for (int i = 0; i < mesh->naxes; i++)
            if ((left >> i & 1) != 0 && (next < 0 || mesh->axis[i].step < mesh->axis[next].step))
                next = i;
        left &= ~(1u << next);
        const struct hkt_mesh_axis *axis = &mesh->axis[next];

        for (int i = group.count; out_ranks != NULL && i < group.count * axis->size; i++)
            out_ranks[i] = out_ranks[i - group.count] + axis->step;
        group.index += group.count * hkt__mesh_coord(mesh, next, rank);
        group.count *= axis->size;
    }
    return group;
}

enum hkt_status hkt_mesh_group(const struct hkt_mesh *mesh, const char *axes, int rank, int *out_ranks, int *out_count)
{
    uint32_t mask;

    if (mesh == NULL || axes == NULL || out_count == NULL || rank < 0 || rank >= mesh->nranks)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_mesh_group: a NULL, or rank %d is no rank of the mesh", rank);
    const enum hkt_status rc = hkt__mesh_mask(mesh, axes, &mask);

    if (rc == HKT_OK)
        *out_count = group_of(mesh, mask, rank, out_ranks).count;
    return rc;
}

int hkt_mesh_span(const struct hkt_mesh *mesh, const char *name, int ranks_per_node)
{
    const int index = hkt_mesh_axis_find(mesh, name);
    int most = 1;

    if (index < 0 || ranks_per_node < 1)
        return 1;
    const struct hkt_mesh_axis *axis = &mesh->axis[index];

    for (int rank = 0; rank < mesh->nranks; rank++) {
        int nodes = 1;

        if (hkt__mesh_coord(mesh, index, rank) != 0)
            continue;
        for (int i = 1; i < axis->size; i++) /* members ascend, so a node seen before is the last one */
            nodes += (rank + i * axis->step) / ranks_per_node != (rank + (i - 1) * axis->step) / ranks_per_node;
        most = nodes > most ? nodes : most;
    }
    return most;
}

/* {0,4,..,28}: a group over one axis is an arithmetic progression. */
static void print_members(FILE *file, const struct hkt_mesh_axis *axis, int lowest)
{
    fputc('{', file);
    if (axis->size <= 4)
        for (int i = 0; i < axis->size; i++)
            fprintf(file, i == 0 ? "%d" : ",%d", lowest + i * axis->step);
    else
        fprintf(file, "%d,%d,..,%d", lowest, lowest + axis->step, lowest + (axis->size - 1) * axis->step);
    fputs("}\n", file);
}

static void print_groups(FILE *file, const struct hkt_mesh *mesh, int index)
{
    const struct hkt_mesh_axis *axis = &mesh->axis[index];
    int group = 0;

    for (int rank = 0; rank < mesh->nranks; rank++) {
        if (hkt__mesh_coord(mesh, index, rank) != 0)
            continue;
        fprintf(file, "%s %d:", axis->name, group++);
        for (int i = 0; i < axis->size; i++)
            fprintf(file, " %d", rank + i * axis->step);
        fputc('\n', file);
    }
}

enum hkt_status hkt_mesh_print(const struct hkt_mesh *mesh, FILE *file, const struct hkt_mesh_print_opts *opts)
{
    static const struct hkt_mesh_print_opts defaults = { 0, 0 };

    if (mesh == NULL || file == NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_mesh_print: mesh and file must not be NULL");
    if (opts == NULL)
        opts = &defaults;
    const int nodes = opts->ranks_per_node > 0;

    fprintf(file, "mesh %s: %d rank%s, the first axis varies fastest\n", mesh->layout, mesh->nranks,
            mesh->nranks == 1 ? "" : "s");
    fprintf(file, "%-*s  size  groups   step%s  group of rank 0\n", HKT_MESH_NAME_MAX - 1, "axis",
            nodes ? "  nodes" : "");
    for (int i = 0; i < mesh->naxes; i++) {
        const struct hkt_mesh_axis *axis = &mesh->axis[i];

        fprintf(file, "%s%-*s  %4d  %6d  %5d  ", axis->of < 0 ? "" : "  ",
                HKT_MESH_NAME_MAX - 1 - (axis->of < 0 ? 0 : 2), axis->name, axis->size, mesh->nranks / axis->size,
                axis->step);
        if (nodes)
            fprintf(file, "%5d  ", hkt_mesh_span(mesh, axis->name, opts->ranks_per_node));
        print_members(file, axis, 0);
    }
    for (int i = 0; opts->all_groups && i < mesh->naxes; i++)
        print_groups(file, mesh, i);
    if (ferror(file))
        return hkt__parallel_fail(HKT_ERR_SYSTEM, "the group map could not be written");
    return HKT_OK;
}

enum hkt_status hkt_mesh_attach(struct hkt_mesh *mesh, struct hkt_comm *comm)
{
    if (mesh == NULL || comm == NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "hkt_mesh_attach: mesh and comm must not be NULL");
    if (mesh->world != NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID, "mesh \"%s\" is tied to a communicator already", mesh->layout);
    if (hkt_comm_size(comm) != mesh->nranks)
        return hkt__parallel_fail(HKT_ERR_INVALID, "mesh \"%s\" is for %d ranks, the communicator has %d", mesh->layout,
                                  mesh->nranks, hkt_comm_size(comm));
    mesh->world = comm;
    return HKT_OK;
}

enum hkt_status hkt_mesh_comm(struct hkt_mesh *mesh, const char *axes, struct hkt_comm **out_comm)
{
    struct hkt_config config = HKT_CONFIG_INIT;
    struct hkt_comm *comm = NULL;
    uint32_t mask;

    if (mesh == NULL || axes == NULL || out_comm == NULL || mesh->world == NULL)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "hkt_mesh_comm: a NULL, or the mesh is not tied to a communicator; call "
                                  "hkt_mesh_attach first");
    enum hkt_status rc = hkt__mesh_mask(mesh, axes, &mask);

    if (rc < 0)
        return rc;
    for (int i = 0; i < mesh->ncomms; i++)
        if (mesh->comms[i].mask == mask) {
            *out_comm = mesh->comms[i].comm;
            return HKT_OK;
        }
    if (mesh->ncomms == HKT_MESH_COMMS_MAX)
        return hkt__parallel_fail(HKT_ERR_UNSUPPORTED, "a mesh has at most %d communicators; \"%s\" is one more",
                                  HKT_MESH_COMMS_MAX, axes);
    const struct group group = group_of(mesh, mask, hkt_comm_rank(mesh->world), NULL);

    config.name = axes;
    rc = hkt_comm_split(mesh->world, group.lowest, group.index, &config, &comm);
    if (rc < 0)
        return hkt__parallel_pass(rc, "communicator of a mesh");
    mesh->comms[mesh->ncomms].mask = mask;
    mesh->comms[mesh->ncomms++].comm = comm;
    *out_comm = comm;
    return HKT_OK;
}

void hkt_mesh_destroy(struct hkt_mesh *mesh)
{
    if (mesh == NULL)
        return;
    /* A failure of an outstanding operation was told to whoever issued it. */
    for (int i = 0; i < mesh->ncomms; i++)
        hkt_comm_destroy(mesh->comms[i].comm);
    hkt__parallel_free(mesh);
}
