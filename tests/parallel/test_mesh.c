/* What could break: a layout is read as another one; a wrong product passes or is refused without its numbers; ranks,
 * coordinates and groups disagree; a group misses a member or holds one of another group; the map shows something
 * else than the mesh is; memory is lost when an allocation fails. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "hocket/parallel.h"
#include "parallel/alloc.h"

static struct hkt_mesh *make(const char *layout, int nranks)
{
    struct hkt_mesh *mesh = NULL;

    if (hkt_mesh_create(layout, nranks, &mesh) != HKT_OK)
        fail_msg("\"%s\": %s", layout, hkt_parallel_last_error());
    return mesh;
}

static void refuse(const char *layout, int nranks, const char *part)
{
    struct hkt_mesh *mesh = (struct hkt_mesh *)&mesh;

    if (hkt_mesh_create(layout, nranks, &mesh) != HKT_ERR_INVALID)
        fail_msg("\"%s\" for %d ranks must be refused", layout, nranks);
    if (strstr(hkt_parallel_last_error(), part) == NULL)
        fail_msg("\"%s\": \"%s\" is not in \"%s\"", layout, part, hkt_parallel_last_error());
    assert_ptr_equal(mesh, &mesh);
}

/* Group of `rank` over axes is `want`: numbers, as text. */
static void has_group(const struct hkt_mesh *mesh, const char *axes, int rank, const char *want)
{
    int ranks[64], count = 0;
    char text[512] = "";
    size_t used = 0;

    assert_int_equal(hkt_mesh_group(mesh, axes, rank, NULL, &count), HKT_OK);
    assert_in_range(count, 1, 64);
    assert_int_equal(hkt_mesh_group(mesh, axes, rank, ranks, &count), HKT_OK);
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, i == 0 ? "%d" : " %d", ranks[i]);
    assert_string_equal(text, want);
}

static void published_maps(void **state)
{
    struct hkt_mesh *mesh = make("tp:4 dp:8 pp:2", 64);

    (void)state;
    has_group(mesh, "tp", 0, "0 1 2 3");
    has_group(mesh, "dp", 0, "0 4 8 12 16 20 24 28");
    has_group(mesh, "pp", 0, "0 32");
    has_group(mesh, "pp", 63, "31 63");
    has_group(mesh, "tp", 38, "36 37 38 39");
    assert_int_equal(hkt_mesh_size(mesh, "dp"), 8);
    assert_int_equal(hkt_mesh_coord(mesh, "dp", 28), 7);
    hkt_mesh_destroy(mesh);

    mesh = make("tp:4 pp:2 dp:8", 64);
    has_group(mesh, "pp", 0, "0 4");
    has_group(mesh, "dp", 0, "0 8 16 24 32 40 48 56");
    hkt_mesh_destroy(mesh);

    mesh = make("tp:4 pp:4 dp:4", 64);
    has_group(mesh, "pp", 0, "0 4 8 12");
    has_group(mesh, "dp", 0, "0 16 32 48");
    assert_int_equal(hkt_mesh_span(mesh, "tp", 8), 1); /* every tensor-parallel group in one node of 8 */
    assert_int_equal(hkt_mesh_span(mesh, "pp", 8), 2);
    assert_int_equal(hkt_mesh_span(mesh, "dp", 8), 4);
    hkt_mesh_destroy(mesh);

    mesh = make("tp:4 dp:4 pp:4", 64);
    has_group(mesh, "dp", 0, "0 4 8 12");
    has_group(mesh, "pp", 0, "0 16 32 48");
    hkt_mesh_destroy(mesh);
}

static void parts_of_an_axis(void **state)
{
    struct hkt_mesh *mesh = make("tp:2 dp:8=ep:4*edp:2=inner:2*outer:4 pp:2", 32);

    (void)state;
    has_group(mesh, "dp", 1, "1 3 5 7 9 11 13 15");
    has_group(mesh, "ep", 0, "0 2 4 6");
    has_group(mesh, "ep", 12, "8 10 12 14");
    has_group(mesh, "edp", 0, "0 8");
    has_group(mesh, "inner", 6, "4 6");
    has_group(mesh, "outer", 6, "2 6 10 14");
    has_group(mesh, "ep+tp", 0, "0 1 2 3 4 5 6 7");
    has_group(mesh, "ep+edp", 16, "16 18 20 22 24 26 28 30");
    has_group(mesh, "pp+tp", 3, "2 3 18 19");
    assert_int_equal(hkt_mesh_axis_get(mesh, hkt_mesh_axis_find(mesh, "ep"))->of, hkt_mesh_axis_find(mesh, "dp"));
    assert_int_equal(hkt_mesh_axis_count(mesh), 7);
    assert_null(hkt_mesh_axis_get(mesh, 7));
    int count;

    for (int i = 0; i < 5; i++) {
        const char *overlapping[] = { "dp+ep", "edp+dp", "ep+inner", "ep+outer", "dp+dp" };

        assert_int_equal(hkt_mesh_group(mesh, overlapping[i], 0, NULL, &count), HKT_ERR_INVALID);
        assert_non_null(strstr(hkt_parallel_last_error(), "overlap"));
    }
    assert_int_equal(hkt_mesh_group(mesh, "dp+cp", 0, NULL, &count), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_parallel_last_error(), "no axis \"cp\""));
    assert_int_equal(hkt_mesh_size(mesh, "cp"), 1);
    assert_int_equal(hkt_mesh_coord(mesh, "cp", 3), 0);
    assert_int_equal(hkt_mesh_moved(mesh, "cp", 3, 0), 3);
    hkt_mesh_destroy(mesh);
}

static void rest_is_what_is_left(void **state)
{
    struct hkt_mesh *mesh = make("  tp:2  dp:rest=ep:2*edp:rest pp:4 ", 64);

    (void)state;
    assert_string_equal(hkt_mesh_layout(mesh), "tp:2 dp:8=ep:2*edp:4 pp:4");
    struct hkt_mesh *again = make(hkt_mesh_layout(mesh), 64);

    assert_string_equal(hkt_mesh_layout(again), hkt_mesh_layout(mesh));
    hkt_mesh_destroy(again);
    hkt_mesh_destroy(mesh);
    mesh = make("dp:1=a:1*b:1 tp:4=x:1*y:4=z:4*w:1 pp:rest", 4);
    assert_int_equal(hkt_mesh_size(mesh, "pp"), 1);
    again = make(hkt_mesh_layout(mesh), 4);
    hkt_mesh_destroy(again);
    hkt_mesh_destroy(mesh);
}

static void wrong_layouts_are_refused_with_their_numbers(void **state)
{
    (void)state;
    refuse("dp:8 tp:4 pp:3", 64, "8*4*3 = 96 places, but there are 64 ranks; pp:2 fits");
    refuse("dp:8 tp:5 pp:2", 64, "8*5*2 = 80 places, but there are 64 ranks; tp:4 fits");
    refuse("dp:3 tp:3", 8, "3*3 = 9 places, but there are 8 ranks; no change of a single size fits");
    refuse("tp:3 dp:rest", 64, "3 = 3 does not divide 64 ranks, so nothing is left for dp; products of 2 or 4 do");
    refuse("tp:2 dp:8=ep:3*edp:2", 16, "3*2 = 6 places, but there are 8 dp; ep:4 fits");
    refuse("tp:65536 dp:65536 pp:65536", 64, "no change of a single size fits");
    refuse("tp:rest dp:rest", 8, "a second \"rest\"");
    refuse("", 1, "no axis");
    refuse("tp", 1, "a name without");
    refuse("tp:", 1, "no size");
    refuse("tp:0", 1, "no size");
    refuse("tp:-1", 1, "no size");
    refuse("tp: 2", 2, "no size");
    refuse("tp:70000", 1, "no size");
    refuse("Tp:1", 1, "no name");
    refuse("2p:1", 1, "no name");
    refuse("tp:2,dp:2", 4, "something after a size");
    refuse("tp:2 tp:2", 4, "for the second time");
    refuse("tp:2 dp:2=tp:2", 4, "for the second time");
    refuse("abcdefghijklmnop:2", 2, "more than 15 letters");
    refuse("a:1 b:1 c:1 d:1 e:1 f:1 g:1 h:1 i:1 j:1 k:1 l:1 m:1 n:1 o:1 p:1 q:1", 1, "more than 16");
    refuse("tp:1", 0, "not 0");
}

/* For every rank and axis: the coordinates name the rank, the groups partition the ranks, and every member of a group
 * sees the same group. */
static void coordinates_and_groups_agree(void **state)
{
    static const struct {
        const char *layout;
        int nranks;
    } meshes[] = {
        { "tp:3 dp:5 pp:2", 30 }, { "pp:2 dp:6=ep:2*edp:3=in:3*out:2 tp:2", 24 }, { "dp:7", 7 }, { "a:1 b:1", 1 }
    };

    (void)state;
    for (size_t m = 0; m < sizeof meshes / sizeof meshes[0]; m++) {
        struct hkt_mesh *mesh = make(meshes[m].layout, meshes[m].nranks);

        for (int rank = 0; rank < meshes[m].nranks; rank++) {
            int sum = 0;

            for (int i = 0; i < hkt_mesh_axis_count(mesh); i++) {
                const struct hkt_mesh_axis *axis = hkt_mesh_axis_get(mesh, i);
                const int coord = hkt_mesh_coord(mesh, axis->name, rank);
                int ranks[64], others[64], count, other_count;

                sum += axis->of < 0 ? coord * axis->step : 0;
                assert_int_equal(hkt_mesh_moved(mesh, axis->name, rank, coord), rank);
                assert_int_equal(hkt_mesh_moved(mesh, axis->name, rank, axis->size), -1);
                assert_int_equal(hkt_mesh_group(mesh, axis->name, rank, ranks, &count), HKT_OK);
                assert_int_equal(count, axis->size);
                for (int c = 0; c < count; c++) {
                    assert_int_equal(hkt_mesh_moved(mesh, axis->name, rank, c), ranks[c]);
                    assert_int_equal(hkt_mesh_coord(mesh, axis->name, ranks[c]), c);
                    assert_int_equal(hkt_mesh_group(mesh, axis->name, ranks[c], others, &other_count), HKT_OK);
                    assert_memory_equal(others, ranks, (size_t)count * sizeof ranks[0]);
                }
            }
            assert_int_equal(sum, rank);
        }
        hkt_mesh_destroy(mesh);
    }
}

static void the_map_is_printed(void **state)
{
    static const char want[] = "mesh tp:4 dp:8=ep:4*edp:2 pp:2: 64 ranks, the first axis varies fastest\n"
                               "axis             size  groups   step  nodes  group of rank 0\n"
                               "tp                  4      16      1      1  {0,1,2,3}\n"
                               "dp                  8       8      4      4  {0,4,..,28}\n"
                               "  ep                4      16      4      2  {0,4,8,12}\n"
                               "  edp               2      32     16      2  {0,16}\n"
                               "pp                  2      32     32      2  {0,32}\n";
    const struct hkt_mesh_print_opts opts = { 8, 0 }, all = { 0, 1 };
    struct hkt_mesh *mesh = make("tp:4 dp:8=ep:4*edp:2 pp:2", 64);
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    (void)state;
    assert_int_equal(hkt_mesh_print(mesh, file, &opts), HKT_OK);
    fclose(file);
    assert_string_equal(text, want);
    free(text);
    file = open_memstream(&text, &bytes);
    assert_int_equal(hkt_mesh_print(mesh, file, &all), HKT_OK);
    fclose(file);
    assert_null(strstr(text, "nodes"));
    assert_non_null(strstr(text, "\ntp 15: 60 61 62 63\n"));
    assert_non_null(strstr(text, "\nedp 31: 47 63\n"));
    assert_non_null(strstr(text, "\npp 31: 31 63\n"));
    free(text);
    file = fopen("/dev/full", "we");
    assert_non_null(file);
    setvbuf(file, NULL, _IONBF, 0);
    assert_int_equal(hkt_mesh_print(mesh, file, NULL), HKT_ERR_SYSTEM);
    fclose(file);
    hkt_mesh_destroy(mesh);
}

static void no_memory_is_an_error(void **state)
{
    struct hkt_mesh *mesh = NULL;

    (void)state;
    hkt__parallel_alloc_fail_at(1);
    assert_int_equal(hkt_mesh_create("tp:2", 2, &mesh), HKT_ERR_NOMEM);
    assert_null(mesh);
    assert_int_equal(hkt_mesh_create(NULL, 2, &mesh), HKT_ERR_INVALID);
    hkt_mesh_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_maps),
        cmocka_unit_test(parts_of_an_axis),
        cmocka_unit_test(rest_is_what_is_left),
        cmocka_unit_test(wrong_layouts_are_refused_with_their_numbers),
        cmocka_unit_test(coordinates_and_groups_agree),
        cmocka_unit_test(the_map_is_printed),
        cmocka_unit_test(no_memory_is_an_error),
    };

    return cmocka_run_group_tests_name("mesh", tests, NULL, NULL);
}
