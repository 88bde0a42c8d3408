/* A mesh: ranks arranged along named axes, as in "tp:4 dp:8 pp:2". Axes are listed from the fastest: neighbours in
 * rank are neighbours along the first axis. Rank and coordinates are functions of each other:
 *
 *     coordinate along an axis = rank / step % size        step = product of the sizes listed before
 *
 * An axis may also be seen as the product of parts, again from the fastest: in "tp:2 dp:8=ep:4*edp:2" the eight
 * data-parallel ranks are two replicas (edp) of four holders of experts (ep). Several views of one axis may stand
 * side by side: "dp:8=ep:4*edp:2=inner:2*outer:4". A part has step and size like any axis, so everything below takes
 * parts too.
 *
 * The group of a rank over some axes ("dp", "dp+tp") is the set of ranks that differ from it along these axes only. A
 * mesh does not change once it is made, except that hkt_mesh_comm adds communicators. */
#ifndef HOCKET_MESH_H
#define HOCKET_MESH_H

#include <stdio.h>

#include "hocket/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HKT_MESH_AXES_MAX 16  /* parts included */
#define HKT_MESH_NAME_MAX 16  /* bytes of a name, its end included */
#define HKT_MESH_COMMS_MAX 32 /* different sets of axes with a communicator */

struct hkt_mesh;

struct hkt_mesh_axis {
    char name[HKT_MESH_NAME_MAX];
    int size;
    int step; /* distance in rank of neighbours along the axis */
    int of;   /* index of the axis this is a part of; -1: an axis of its own */
};

/** Make a mesh of nranks from a layout: words NAME:SIZE, each with any number of views =NAME:SIZE*NAME:SIZE... Names
 *  are lower-case letters, digits and '_', and begin with a letter. The size of one axis, and of one part in each
 *  view, may be "rest": what is left of the ranks, or of the axis.
 *  Owns     gives *out_mesh, released by hkt_mesh_destroy
 *  Errors   INVALID: the text names the product and the ranks, and an axis that would fit; NOMEM */
HKT_API HKT_NODISCARD enum hkt_status hkt_mesh_create(const char *layout, int nranks, struct hkt_mesh **out_mesh);
/** Destroys the communicators of hkt_mesh_comm, not the one it was attached to. NULL is allowed. */
HKT_API void hkt_mesh_destroy(struct hkt_mesh *mesh);

HKT_API int hkt_mesh_nranks(const struct hkt_mesh *mesh);
/** The layout, with every "rest" replaced by its number. Lives as long as the mesh. */
HKT_API const char *hkt_mesh_layout(const struct hkt_mesh *mesh);
HKT_API int hkt_mesh_axis_count(const struct hkt_mesh *mesh);
/** Axes in the order of the layout, parts after their axis. NULL past the end. */
HKT_API const struct hkt_mesh_axis *hkt_mesh_axis_get(const struct hkt_mesh *mesh, int index);
/** Index of the axis of that name, -1: none. */
HKT_API int hkt_mesh_axis_find(const struct hkt_mesh *mesh, const char *name);

/** Size along an axis; 1 for a name the mesh has not: what is not named is not cut. */
HKT_API int hkt_mesh_size(const struct hkt_mesh *mesh, const char *axis);
/** Coordinate of a rank along an axis; 0 for a name the mesh has not. */
HKT_API int hkt_mesh_coord(const struct hkt_mesh *mesh, const char *axis, int rank);
/** The rank that `rank` becomes when its coordinate along an axis is `coord` (0 <= coord < size); -1: no such place. */
HKT_API int hkt_mesh_moved(const struct hkt_mesh *mesh, const char *axis, int rank, int coord);

/** The group of `rank` over `axes`, names joined by '+', in ascending order. out_ranks (NULL: just count) has room
 *  for the product of the sizes.
 *  Errors   INVALID: no such axis, or two of them overlap ("dp+ep") */
HKT_API HKT_NODISCARD enum hkt_status hkt_mesh_group(const struct hkt_mesh *mesh, const char *axes, int rank,
                                                     int *out_ranks, int *out_count);
/** Most nodes that one group over an axis touches, when ranks fill nodes of ranks_per_node in order; 1: every group
 *  is inside a node. */
HKT_API int hkt_mesh_span(const struct hkt_mesh *mesh, const char *axis, int ranks_per_node);

/** How hkt_mesh_print prints. */
struct hkt_mesh_print_opts {
    int ranks_per_node; /* 0: nodes are not known, no column for them */
    int all_groups;     /* 1: every group of every axis, not just that of rank 0 */
};
/** The group map: a line per axis with size, number of groups, step and the group of rank 0. opts NULL: all zero.
 *  Errors   SYSTEM: the file could not be written */
HKT_API HKT_NODISCARD enum hkt_status hkt_mesh_print(const struct hkt_mesh *mesh, FILE *file,
                                                     const struct hkt_mesh_print_opts *opts);

/** Tie the mesh to a communicator of nranks ranks, which is borrowed until hkt_mesh_destroy.
 *  Errors   INVALID: their sizes differ, or the mesh is tied already */
HKT_API HKT_NODISCARD enum hkt_status hkt_mesh_attach(struct hkt_mesh *mesh, struct hkt_comm *comm);
/** The communicator of this rank's group over `axes` ("dp", "dp+tp"); it is made at the first call and kept. Even
 *  where the group holds all ranks it is one of its own, so it can be used on another stream than the attached one.
 *  Owns     the communicator stays the mesh's
 *  Threads  the first call for a set of axes is collective over all ranks of the mesh
 *  Errors   INVALID, UNSUPPORTED (more than HKT_MESH_COMMS_MAX), those of hkt_comm_split */
HKT_API HKT_NODISCARD enum hkt_status hkt_mesh_comm(struct hkt_mesh *mesh, const char *axes,
                                                    struct hkt_comm **out_comm);

#ifdef __cplusplus
}
#endif
#endif
