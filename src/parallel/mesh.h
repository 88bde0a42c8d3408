/* The public mesh, opened. Axes and parts alike are (step, size); a set of axes is a mask of their indices. */
#ifndef HOCKET_PARALLEL_MESH_H
#define HOCKET_PARALLEL_MESH_H

#include <stdint.h>

#include "hocket/mesh.h"

#define HKT__MESH_TEXT_MAX 512

struct hkt_mesh {
    int nranks, naxes;
    struct hkt_mesh_axis axis[HKT_MESH_AXES_MAX];
    char layout[HKT__MESH_TEXT_MAX];
    struct hkt_comm *world; /* borrowed; NULL until attached */
    int ncomms;
    struct {
        uint32_t mask;
        struct hkt_comm *comm;
    } comms[HKT_MESH_COMMS_MAX];
};

/** Coordinate of a rank along axis `index`. */
static inline int hkt__mesh_coord(const struct hkt_mesh *mesh, int index, int rank)
{
    return rank / mesh->axis[index].step % mesh->axis[index].size;
}

/** Mask of "dp+tp"; INVALID names what is wrong. */
HKT_NODISCARD enum hkt_status hkt__mesh_mask(const struct hkt_mesh *mesh, const char *axes, uint32_t *out_mask);

#endif
