/* From the words of a layout to a mesh, and the arithmetic on it. */
#include "parallel/mesh.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/divisors.h"
#include "parallel/fail.h"

#define SIZE_REST 0 /* of an axis whose size is to follow from the others */

/* Reading a layout: where we are in it, and the whole for errors. */
struct reader {
    const char *text, *at;
    struct hkt_mesh *mesh;
};

static enum hkt_status wrong(const struct reader *reader, const char *what)
{
    return hkt__parallel_fail(
        HKT_ERR_INVALID,
        "mesh \"%s\": %s at \"%.20s\"; write axes as NAME:SIZE from the fastest to the slowest, for "
        "instance \"tp:4 dp:8 pp:2\" or \"tp:2 dp:8=ep:4*edp:2\"",
        reader->text, what, reader->at);
}

/* NAME:SIZE as the next axis of the mesh. */
static enum hkt_status read_axis(struct reader *reader, int of)
{
    struct hkt_mesh *mesh = reader->mesh;
    size_t length = 0;

    while (islower((unsigned char)reader->at[length]) || isdigit((unsigned char)reader->at[length])
           || reader->at[length] == '_')
        length++;
    if (length == 0 || !islower((unsigned char)reader->at[0]))
        return wrong(reader, "no name");
    if (length >= HKT_MESH_NAME_MAX)
        return wrong(reader, "a name of more than 15 letters");
    if (mesh->naxes == HKT_MESH_AXES_MAX)
        return wrong(reader, "more than 16 axes and parts");
    struct hkt_mesh_axis *axis = &mesh->axis[mesh->naxes];

    memcpy(axis->name, reader->at, length);
    axis->name[length] = '\0';
    axis->of = of;
    if (hkt_mesh_axis_find(mesh, axis->name) >= 0)
        return wrong(reader, "a name for the second time");
    if (reader->at[length] != ':')
        return wrong(reader, "a name without \":SIZE\"");
    reader->at += length + 1;
    if (strncmp(reader->at, "rest", 4) == 0) {
        axis->size = SIZE_REST;
        reader->at += 4;
    } else {
        char *end;
        const long size = strtol(reader->at, &end, 10);

        if (!isdigit((unsigned char)reader->at[0]) || size < 1 || size > HKT_RANKS_MAX)
            return wrong(reader, "no size (1 to 65536, or \"rest\")");
        axis->size = (int)size;
        reader->at = end;
    }
    mesh->naxes++;
    return HKT_OK;
}

/* "8*4*3", of the axes that are not SIZE_REST among [first, end) with this `of`. Returns their product. */
static int64_t product_text(const struct hkt_mesh *mesh, int first, int of, char *out_text, size_t bytes)
{
    int64_t product = 1;
    size_t used = 0;

    snprintf(out_text, bytes, "1");
    for (int i = first; i < mesh->naxes; i++) {
        if (mesh->axis[i].of != of || mesh->axis[i].size == SIZE_REST)
            continue;
        if (used < bytes)
            used += (size_t)snprintf(out_text + used, bytes - used, used == 0 ? "%d" : "*%d", mesh->axis[i].size);
        product *= mesh->axis[i].size;
        if (product > INT32_MAX)
            product = INT32_MAX; /* far more than HKT_RANKS_MAX: wrong whatever follows */
    }
    return product;
}

/* "; pp:2 fits" for the last axis whose change alone would make the product right. */
static void suggest(const struct hkt_mesh *mesh, int first, int total, char *out_text, size_t bytes)
{
    snprintf(out_text, bytes, "; no change of a single size fits");
    for (int i = mesh->naxes - 1; i >= first; i--) {
        int64_t others = 1;

        for (int j = first; j < mesh->naxes; j++)
            others *= mesh->axis[j].of == mesh->axis[first].of && j != i && others <= total ? mesh->axis[j].size : 1;
        if (mesh->axis[i].of == mesh->axis[first].of && others <= total && total % others == 0) {
            snprintf(out_text, bytes, "; %s:%d fits", mesh->axis[i].name, (int)(total / others));
            return;
        }
    }
}

/* The axes from `first` on with the `of` of the first are to multiply to `total`: fills in "rest", sets their steps. */
static enum hkt_status close_list(const struct reader *reader, int first, int total, const char *total_is)
{
    struct hkt_mesh *mesh = reader->mesh;
    const int of = mesh->axis[first].of;
    int rest = -1, nrest = 0, step = of < 0 ? 1 : mesh->axis[of].step;
    char product[128], hint[64];
    const int64_t known = product_text(mesh, first, of, product, sizeof product);

    for (int i = first; i < mesh->naxes; i++)
        if (mesh->axis[i].of == of && mesh->axis[i].size == SIZE_REST) {
            rest = i;
            nrest++;
        }
    if (nrest > 1)
        return wrong(reader, "a second \"rest\"");
    if (nrest == 1 && (known > total || total % known != 0))
        return hkt__parallel_fail(
            HKT_ERR_INVALID, "mesh \"%s\": %s = %d does not divide %d %s, so nothing is left for %s; products of %s do",
            reader->text, product, (int)known, total, total_is, mesh->axis[rest].name,
            hkt__either(hkt__divisor_below(total, known), hkt__divisor_above(total, known)).text);
    if (nrest == 1) {
        mesh->axis[rest].size = (int)(total / known);
    } else if (known != total) {
        suggest(mesh, first, total, hint, sizeof hint);
        return hkt__parallel_fail(HKT_ERR_INVALID, "mesh \"%s\": %s = %lld places, but there are %d %s%s", reader->text,
                                  product, (long long)known, total, total_is, hint);
    }
    for (int i = first; i < mesh->naxes; i++)
        if (mesh->axis[i].of == of) {
            mesh->axis[i].step = step;
            step *= mesh->axis[i].size;
        }
    return HKT_OK;
}

/* The views of an axis, "=NAME:SIZE*NAME:SIZE", read over but not yet closed: sizes may depend on "rest". */
static enum hkt_status read_views(struct reader *reader, int of)
{
    while (*reader->at == '=') {
        do {
            reader->at++;
            const enum hkt_status rc = read_axis(reader, of);

            if (rc < 0)
                return rc;
        } while (*reader->at == '*');
    }
    return HKT_OK;
}

static enum hkt_status read_layout(struct reader *reader)
{
    while (*reader->at == ' ')
        reader->at++;
    while (*reader->at != '\0') {
        const int axis = reader->mesh->naxes;
        enum hkt_status rc = read_axis(reader, -1);

        if (rc == HKT_OK)
            rc = read_views(reader, axis);
        if (rc < 0)
            return rc;
        if (*reader->at != ' ' && *reader->at != '\0')
            return wrong(reader, "something after a size");
        while (*reader->at == ' ')
            reader->at++;
    }
    if (reader->mesh->naxes == 0)
        return wrong(reader, "no axis");
    return HKT_OK;
}

/* Second pass over the text, now that every axis has its size: each view must multiply to its axis. The mesh holds
 * axes and parts in the order of the text, so a view is cut out by counting its parts there. */
static enum hkt_status close_views(const struct reader *reader)
{
    struct hkt_mesh *mesh = reader->mesh;
    const int naxes = mesh->naxes;
    int next = 0;
    enum hkt_status rc = HKT_OK;

    for (const char *at = reader->text; *at != '\0' && rc == HKT_OK;) {
        int first = next, nparts = 0;
        const bool is_view = *at == '=';

        if (*at == ' ' || is_view)
            at++;
        while (*at != '\0' && *at != ' ' && *at != '=')
            nparts += *at++ == ':';
        next += nparts;
        if (!is_view)
            continue;
        const struct hkt_mesh_axis *whole = &mesh->axis[mesh->axis[first].of];

        mesh->naxes = next; /* close_list looks at the parts of this view alone */
        rc = close_list(reader, first, whole->size, whole->name);
        mesh->naxes = naxes;
    }
    return rc;
}

/* The text again, numbers for "rest". */
static void write_layout(struct hkt_mesh *mesh)
{
    size_t used = 0;
    int left = 1;

    for (int i = 0; i < mesh->naxes && used < sizeof mesh->layout; i++) {
        const struct hkt_mesh_axis *axis = &mesh->axis[i];
        const char *before = i == 0 ? "" : " ";

        if (axis->of >= 0) {
            const struct hkt_mesh_axis *whole = &mesh->axis[axis->of];

            before = axis->step == whole->step && left <= 1 ? "=" : "*";
            left = (before[0] == '=' ? whole->size : left) / axis->size;
        }
        used += (size_t)snprintf(mesh->layout + used, sizeof mesh->layout - used, "%s%s:%d", before, axis->name,
                                 axis->size);
    }
}

enum hkt_status hkt_mesh_create(const char *layout, int nranks, struct hkt_mesh **out_mesh)
{
    if (layout == NULL || out_mesh == NULL || nranks < 1 || nranks > HKT_RANKS_MAX)
        return hkt__parallel_fail(HKT_ERR_INVALID,
                                  "hkt_mesh_create: layout and out_mesh must not be NULL, and there are 1 "
                                  "to %d ranks, not %d",
                                  HKT_RANKS_MAX, nranks);
    struct hkt_mesh *mesh = hkt__parallel_calloc(1, sizeof *mesh);

    if (mesh == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for a mesh");
    struct reader reader = { layout, layout, mesh };
    enum hkt_status rc = read_layout(&reader);

    mesh->nranks = nranks;
    if (rc == HKT_OK)
        rc = close_list(&reader, 0, nranks, "ranks");
    if (rc == HKT_OK)
        rc = close_views(&reader);
    if (rc < 0) {
        hkt_mesh_destroy(mesh);
        return rc;
    }
    write_layout(mesh);
    *out_mesh = mesh;
    return HKT_OK;
}

int hkt_mesh_nranks(const struct hkt_mesh *mesh)
{
    return mesh->nranks;
}

const char *hkt_mesh_layout(const struct hkt_mesh *mesh)
{
    return mesh->layout;
}

int hkt_mesh_axis_count(const struct hkt_mesh *mesh)
{
    return mesh->naxes;
}

const struct hkt_mesh_axis *hkt_mesh_axis_get(const struct hkt_mesh *mesh, int index)
{
    return index >= 0 && index < mesh->naxes ? &mesh->axis[index] : NULL;
}

int hkt_mesh_axis_find(const struct hkt_mesh *mesh, const char *name)
{
    for (int i = 0; i < mesh->naxes; i++)
        if (strcmp(mesh->axis[i].name, name) == 0)
            return i;
    return -1;
}

int hkt_mesh_size(const struct hkt_mesh *mesh, const char *axis)
{
    const int index = hkt_mesh_axis_find(mesh, axis);

    return index < 0 ? 1 : mesh->axis[index].size;
}

int hkt_mesh_coord(const struct hkt_mesh *mesh, const char *axis, int rank)
{
    const int index = hkt_mesh_axis_find(mesh, axis);

    return index < 0 ? 0 : hkt__mesh_coord(mesh, index, rank);
}

int hkt_mesh_moved(const struct hkt_mesh *mesh, const char *axis, int rank, int coord)
{
    const int index = hkt_mesh_axis_find(mesh, axis), size = index < 0 ? 1 : mesh->axis[index].size;

    if (rank < 0 || rank >= mesh->nranks || coord < 0 || coord >= size)
        return -1;
    return index < 0 ? rank : rank + (coord - hkt__mesh_coord(mesh, index, rank)) * mesh->axis[index].step;
}

/* Do they share a direction? Axis i covers the steps [step, step * size). */
static bool overlap(const struct hkt_mesh_axis *a, const struct hkt_mesh_axis *b)
{
    const int64_t a_end = (int64_t)a->step * a->size, b_end = (int64_t)b->step * b->size;

    return (a->step > b->step ? a->step : b->step) < (a_end < b_end ? a_end : b_end);
}

static enum hkt_status add_axis(const struct hkt_mesh *mesh, const char *axes, int index, uint32_t *mask)
{
    for (int i = 0; i < mesh->naxes; i++)
        if ((*mask >> i & 1) != 0 && (i == index || overlap(&mesh->axis[i], &mesh->axis[index])))
            return hkt__parallel_fail(HKT_ERR_INVALID, "group over \"%s\": %s and %s overlap; name one of them", axes,
                                      mesh->axis[i].name, mesh->axis[index].name);
    *mask |= 1u << index;
    return HKT_OK;
}

enum hkt_status hkt__mesh_mask(const struct hkt_mesh *mesh, const char *axes, uint32_t *out_mask)
{
    uint32_t mask = 0;

    for (const char *at = axes;; at++) {
        const size_t length = strcspn(at, "+");
        char name[HKT_MESH_NAME_MAX] = "";

        if (length < sizeof name)
            memcpy(name, at, length);
        const int index = hkt_mesh_axis_find(mesh, name);

        if (index < 0)
            return hkt__parallel_fail(HKT_ERR_INVALID, "group over \"%s\": mesh \"%s\" has no axis \"%.*s\"", axes,
                                      mesh->layout, (int)length, at);
        const enum hkt_status rc = add_axis(mesh, axes, index, &mask);

        if (rc < 0)
            return rc;
        at += length;
        if (*at == '\0')
            break;
    }
    *out_mask = mask;
    return HKT_OK;
}
