/* What could break: blocks that overlap; a block that comes back with old bytes in it; address space lost by freeing in an
 * odd order; a mapping that goes while somebody uses it; a file that could shrink under us accepted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/error.h"
#include "core/mem.h"
#include "transport/arena.h"

#define MIB ((size_t)1 << 20)

static struct hkt__arena *create(size_t bytes)
{
    struct hkt__arena *arena = NULL;

    assert_int_equal(hkt__arena_create(bytes, &arena), HKT_OK);
    return arena;
}

/* Bytes of memory the arena really holds. */
static size_t resident(const struct hkt__arena *arena)
{
    struct stat status;

    assert_int_equal(fstat(arena->fd, &status), 0);
    return (size_t)status.st_blocks * 512;
}

static void an_arena_is_sparse_sealed_and_close_on_exec(void **state)
{
    struct hkt__arena *arena = create((size_t)16 << 30);

    (void)state;
    assert_int_equal(resident(arena), 0);
    assert_true(fcntl(arena->fd, F_GETFD) & FD_CLOEXEC);
    assert_true(fcntl(arena->fd, F_GET_SEALS) & F_SEAL_SHRINK);
    assert_int_equal(ftruncate(arena->fd, 4096), -1);
    arena->base[((size_t)16 << 30) - 1] = 1;
    assert_int_equal(resident(arena), 4096);
    hkt__arena_drop(arena);
}

static void blocks_do_not_overlap_and_gaps_are_used_again(void **state)
{
    enum { COUNT = 64 };
    struct hkt__arena *arena = create(4 * MIB);
    struct hkt__block blocks[COUNT];
    uint64_t random = 12345;

    (void)state;
    memset(blocks, 0, sizeof blocks);
    for (int round = 0; round < 3000; round++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        struct hkt__block *block = &blocks[random >> 58];
        const unsigned char mark = (unsigned char)((block - blocks) + 1);

        if (block->bytes > 0) {
            for (size_t at = 0; at < block->bytes; at += 512)
                assert_int_equal(arena->base[block->offset + at], mark);
            hkt__arena_free(arena, block);
            block->bytes = 0;
        } else if (hkt__arena_alloc(arena, 1 + (random >> 20) % 150000, block) == HKT_OK) {
            assert_int_equal(block->offset % HKT__ARENA_ALIGN, 0);
            for (size_t at = 0; at < block->bytes; at += 512)
                assert_int_equal(arena->base[block->offset + at], 0);
            memset(arena->base + block->offset, mark, block->bytes);
        } else {
            block->bytes = 0;
        }
    }
    for (int i = 0; i < COUNT; i++)
        if (blocks[i].bytes > 0)
            hkt__arena_free(arena, &blocks[i]);
    assert_int_equal(hkt__arena_used(arena), 0);
    assert_int_equal(resident(arena), 0);
    /* No crumbs: the whole of it can be had in one piece again. */
    assert_int_equal(hkt__arena_alloc(arena, 4 * MIB, &blocks[0]), HKT_OK);
    hkt__arena_free(arena, &blocks[0]);
    hkt__arena_drop(arena);
}

static void a_full_arena_says_what_to_do(void **state)
{
    struct hkt__arena *arena = create(MIB);
    struct hkt__block first, second = { .bytes = 77 };

    (void)state;
    assert_int_equal(hkt__arena_alloc(arena, MIB / 2 + 1, &first), HKT_OK);
    assert_int_equal(hkt__arena_alloc(arena, MIB / 2, &second), HKT_ERR_NOMEM);
    assert_int_equal(second.bytes, 77);
    assert_non_null(strstr(hkt_last_error(), "HOCKET_SHM_BYTES"));
    assert_int_equal(hkt__arena_alloc(arena, SIZE_MAX, &second), HKT_ERR_NOMEM);
    assert_int_equal(hkt__arena_alloc(arena, SIZE_MAX - 10, &second), HKT_ERR_NOMEM);
    hkt__arena_free(arena, &first);
    assert_int_equal(hkt__arena_alloc(arena, MIB, &second), HKT_OK);
    hkt__arena_free(arena, &second);
    hkt__arena_drop(arena);
}

static void an_arena_lives_until_its_last_user_drops_it(void **state)
{
    struct hkt__arena *arena = create(MIB);
    unsigned char id[HKT__ARENA_ID_BYTES];

    (void)state;
    memcpy(id, arena->id, sizeof id);
    struct hkt__arena *other = hkt__arena_find(id);

    assert_ptr_equal(other, arena);
    hkt__arena_drop(arena);
    other->base[100] = 7; /* still mapped */
    assert_int_equal(other->base[100], 7);
    hkt__arena_drop(other);
    assert_null(hkt__arena_find(id));
    hkt__arena_drop(NULL);
}

static void a_mapping_sees_the_same_memory(void **state)
{
    struct hkt__arena *arena = create(MIB), *mapping = NULL;

    (void)state;
    assert_int_equal(hkt__arena_map(arena->fd, MIB, &mapping), HKT_OK);
    assert_ptr_not_equal(mapping->base, arena->base);
    arena->base[12345] = 9;
    assert_int_equal(mapping->base[12345], 9);
    hkt__arena_drop(arena);
    assert_int_equal(mapping->base[12345], 9);
    hkt__arena_drop(mapping);
}

/* Touching a page beyond the end of a file kills the process: such files are refused. */
static void files_that_could_kill_us_are_refused(void **state)
{
    struct hkt__arena *mapping = NULL, *arena = create(MIB);
    const int unsealed = memfd_create("test", MFD_CLOEXEC);
    const int other = open("/dev/null", O_RDWR | O_CLOEXEC);

    (void)state;
    assert_int_equal(ftruncate(unsealed, (off_t)MIB), 0);
    assert_int_equal(hkt__arena_map(unsealed, MIB, &mapping), HKT_ERR_SYSTEM);
    assert_int_equal(hkt__arena_map(other, MIB, &mapping), HKT_ERR_SYSTEM);
    assert_int_equal(hkt__arena_map(-1, MIB, &mapping), HKT_ERR_SYSTEM);
    assert_int_equal(hkt__arena_map(arena->fd, 2 * MIB, &mapping), HKT_ERR_SYSTEM);
    assert_int_equal(hkt__arena_map(arena->fd, 0, &mapping), HKT_ERR_SYSTEM);
    assert_null(mapping);
    close(unsealed);
    close(other);
    hkt__arena_drop(arena);
}

static void no_memory_leaves_nothing_behind(void **state)
{
    struct hkt__arena *arena = NULL;

    (void)state;
    hkt__mem_fail_at(1);
    assert_int_equal(hkt__arena_create(MIB, &arena), HKT_ERR_NOMEM);
    hkt__mem_fail_at(0);
    assert_null(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_arena_is_sparse_sealed_and_close_on_exec),
        cmocka_unit_test(blocks_do_not_overlap_and_gaps_are_used_again),
        cmocka_unit_test(a_full_arena_says_what_to_do),
        cmocka_unit_test(an_arena_lives_until_its_last_user_drops_it),
        cmocka_unit_test(a_mapping_sees_the_same_memory),
        cmocka_unit_test(files_that_could_kill_us_are_refused),
        cmocka_unit_test(no_memory_leaves_nothing_behind),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
