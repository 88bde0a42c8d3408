/* What could break: a graph that comes back changed, a wrong file taken silently or refused without its line, an amount that
 * loses digits, a text that crashes or stalls the parser (mutated texts, deterministic; under the sanitizers in ./check). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/mem.h"
#include "topology/text.h"
#include "topology/units.h"

static const char *const machines[] = {
    "core:1",
    "package:2 numa:4 l3:2 core:2 pu:2",
    "package:2 numa:1 gpu:8 nvswitch:2@225GB/s,468ns nic:8@50GB/s,2us",
    "rack:2@1.2TB/s,1us host:3@12.5GB/s package:1@0.5GB/s,1ms core:2@1B/s,1ns nic:2",
    "host:5 gpu:3@63.015GB/s,500ns",
};

static struct hkt_topo *machine(const char *line)
{
    struct hkt_topo *topo = NULL;

    if (hkt_topo_synthetic(line, &topo) != HKT_OK)
        fail_msg("%s: %s", line, hkt_last_error());
    return topo;
}

/** The text of a graph; the caller frees it. */
static char *save(const struct hkt_topo *topo, size_t *out_bytes)
{
    char *text = NULL;
    FILE *file = open_memstream(&text, out_bytes);

    assert_non_null(file);
    assert_int_equal(hkt_topo_save(topo, file), HKT_OK);
    fclose(file);
    return text;
}

static void assert_comes_back(const struct hkt_topo *topo)
{
    struct hkt_topo *again = NULL;
    size_t bytes;
    char *text = save(topo, &bytes);

    if (hkt__topo_parse(text, bytes, "text", &again) != HKT_OK)
        fail_msg("%s in\n%s", hkt_last_error(), text);
    if (!hkt__topo_equal(topo, again))
        fail_msg("this comes back as another:\n%s", text);
    hkt_topo_destroy(again);
    free(text);
}

static void graphs_come_back(void **state)
{
    struct hkt_topo *topo = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof machines / sizeof machines[0]; i++) {
        topo = machine(machines[i]);
        assert_comes_back(topo);
        hkt_topo_destroy(topo);
    }
    assert_int_equal(hkt_topo_detect(&topo), HKT_OK);
    assert_comes_back(topo);
    hkt_topo_destroy(topo);
}

static void a_file_by_hand_is_taken(void **state)
{
    static const char text[] = "hocket-topology 1\n"
                               "# two hosts on a switch\n"
                               "\n"
                               "net 0\n"
                               "  host 1 name=beta id=00ff link=network:12.5GB/s:2.5us:measured\n"
                               "    numa 0 bytes=64GiB\n"
                               "        # a comment, indented as it likes\n"
                               "      l3 4 bytes=1.5MiB\n"
                               "        core 4\n"
                               "    nic 0   name=a=b\n"
                               "  host 0 name=alpha\n"
                               "    core 0\n"
                               "link net0 host1/nic0 network:12.5GB/s:-:given\n"
                               "link host0/core0 host1/l34 cache:-:3ms:assumed"; /* no newline at the end */
    struct hkt_topo *topo = NULL;

    (void)state;
    if (hkt__topo_parse(text, sizeof text - 1, "hand", &topo) != HKT_OK)
        fail_msg("%s", hkt_last_error());
    assert_int_equal(topo->nnodes, 8);
    assert_string_equal(topo->nodes[1].name, "alpha"); /* by number, not as written */
    assert_string_equal(topo->nodes[3].name, "beta");
    assert_int_equal(topo->nodes[3].id, 0xff);
    assert_int_equal(topo->nodes[4].bytes, UINT64_C(64) << 30);
    assert_int_equal(topo->nodes[5].bytes, 3 << 19);
    assert_int_equal(topo->nlinks, 3);
    assert_int_equal(topo->nuplinks, 1);
    assert_int_equal(topo->links[0].bytes_per_s, 12500000000);
    assert_int_equal(topo->links[0].latency_ns, 2500);
    assert_int_equal(topo->links[0].source, HKT_TOPO_MEASURED);
    assert_comes_back(topo);
    hkt_topo_destroy(topo);
}

/* The text is put behind the first two lines: 'hocket-topology 1' and 'net 0'. */
static const struct {
    const char *text;
    int line;
    const char *why;
} wrong[] = {
    { "host 0\n", 3, "lies in nothing" },
    { " host 0\n", 3, "indented by 1" },
    { "    host 0\n", 3, "indented by 4" },
    { "  host 0\n      core 0\n", 4, "indented by 6" },
    { "  host\n", 3, "comes its number" },
    { "  host x\n", 3, "comes its number" },
    { "  host -1\n", 3, "comes its number" },
    { "  host +1\n", 3, "comes its number" },
    { "  host 2147483648\n", 3, "comes its number" },
    { "  host 99999999999999999999\n", 3, "comes its number" },
    { "  hots 0\n", 3, "\"hots\" is no part of a machine" },
    { "  Host 0\n", 3, "\"Host\" is no part" },
    { "  host 0\n  host 0\n", 4, "two of host 0" },
    { "  host 0\n    core 1\n    core 1\n", 5, "two of core 1 in one host" },
    { "  host 0\n    net 1\n", 4, "a net cannot lie in a host" },
    { "  core 0\n", 3, "a core cannot lie in a net" },
    { "  host 0 nam=x\n", 3, "name=, id=, bytes=, link=" },
    { "  host 0 name\n", 3, "name=, id=" },
    { "  host 0 name=\n", 3, "1 to 63" },
    { "  host 0 name=x name=y\n", 3, "name= is given twice" },
    { "  host 0 id=\n", 3, "hexadecimal" },
    { "  host 0 id=0x1\n", 3, "hexadecimal" },
    { "  host 0 id=12345678123456781\n", 3, "hexadecimal" },
    { "  host 0\n    core 0 id=1\n", 4, "of hosts" },
    { "  host 0 id=a\n  host 1 id=b\n  host 2\n  host 3 id=0b\n  host 4 id=a\n", 6, "id=b is that of the host of line 4" },
    { "  host 0 bytes=1GiB\n", 3, "of numa and l3" },
    { "  host 0\n    numa 0 bytes=1GB\n", 4, "32MiB" },
    { "  host 0\n    numa 0 bytes=-1GiB\n", 4, "32MiB" },
    { "  host 0 link=network:1GB/s:1us\n", 3, "KIND:BANDWIDTH:LATENCY:SOURCE" },
    { "  host 0 link=netwrk:1GB/s:1us:given\n", 3, "link kind \"netwrk\"" },
    { "  host 0 link=network:1GB:1us:given\n", 3, "bandwidth \"1GB\"" },
    { "  host 0 link=network:1GB/s:1:given\n", 3, "latency \"1\"" },
    { "  host 0 link=network:1GB/s:101ms:given\n", 3, "latency \"101ms\"" },
    { "  host 0 link=network:1GB/s:1us:guess\n", 3, "source \"guess\"" },
    { "  host 0 link=network:1GB/s:1us:given:more\n", 3, "source \"given:more\"" },
    { "  host 0 link=network:1001TB/s:-:given\n", 3, "at most 1000TB/s" },
    { "\thost 0\n", 3, "byte 0x09" },
    { "  host 0 name=\xc3\xa9\n", 3, "byte 0xc3" },
    { "  host 0\r\n", 3, "byte 0x0d" },
    { "  host 0\n    core 0\nlink host0/core0\n", 5, "a link line is" },
    { "  host 0\n    core 0\nlink host0/core0 host0/core0 cache:-:-:given x\n", 5, "a link line is" },
    { "  host 0\n    core 0\nlink host0/core0 host0/core1 cache:-:-:given\n", 5, "\"host0/core1\" is no node" },
    { "  host 0\n    core 0\nlink host0/core0 host1/core0 cache:-:-:given\n", 5, "\"host1/core0\" is no node" },
    { "  host 0\n    core 0\nlink net0/core0 host0 cache:-:-:given\n", 5, "\"net0/core0\" is no node" },
    { "  host 0\n    core 0\nlink core0 host0 cache:-:-:given\n", 5, "\"core0\" is no node" },
    { "  host 0\n    core 0\nlink host0/ host0 cache:-:-:given\n", 5, "\"host0/\" is no node" },
    { "  host 0\n    core 0\nlink host0/core0 host0/core0 cache:-:-:given\n", 5, "itself" },
    { "  host 0\n    core 0\nlink net0 host0 network:-:-:given\n  host 1\n", 6, "nodes come before links" },
    { "net 1\n", 3, "one root" },
};

static void what_is_wrong_is_named_with_its_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct hkt_topo *topo = NULL;
        char text[512], where[32];

        snprintf(text, sizeof text, "hocket-topology 1\nnet 0\n%s", wrong[i].text);
        snprintf(where, sizeof where, "FILE:%d: ", wrong[i].line);
        if (hkt__topo_parse(text, strlen(text), "FILE", &topo) != HKT_ERR_INVALID)
            fail_msg("taken: %s", wrong[i].text);
        assert_null(topo);
        if (strncmp(hkt_last_error(), where, strlen(where)) != 0 || strstr(hkt_last_error(), wrong[i].why) == NULL)
            fail_msg("%s: wanted \"%s ... %s\", got \"%s\"", wrong[i].text, where, wrong[i].why, hkt_last_error());
    }
}

static void the_frame_of_a_file_is_checked(void **state)
{
    static const char *const texts[] = { "",
                                         "\n",
                                         "hocket-topology 2\nnet 0\n",
                                         "hocket-topology 1 \nnet 0\n",
                                         "net 0\n",
                                         " hocket-topology 1\n",
                                         "hocket-topology 1\n" };
    struct hkt_topo *topo = NULL;
    char text[1200] = "hocket-topology 1\nnet 0\n  host 0 name=";

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        assert_int_equal(hkt__topo_parse(texts[i], strlen(texts[i]), "FILE", &topo), HKT_ERR_INVALID);
    memset(text + strlen(text), 'x', 63);
    assert_int_equal(hkt__topo_parse(text, strlen(text), "FILE", &topo), HKT_OK);
    assert_int_equal(strlen(topo->nodes[1].name), 63);
    hkt_topo_destroy(topo);
    topo = NULL;
    text[strlen(text)] = 'x';
    assert_int_equal(hkt__topo_parse(text, strlen(text), "FILE", &topo), HKT_ERR_INVALID);
    memset(text + strlen(text), 'x', 1000);
    assert_int_equal(hkt__topo_parse(text, strlen(text), "FILE", &topo), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "FILE:3: a line has at most 511"));
    assert_int_equal(hkt__topo_parse("hocket-topology 1\nnet 0\0\n", 25, "FILE", &topo), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "FILE:2: byte 0x00"));
    assert_null(topo);
}

static void deep_nesting_ends(void **state)
{
    struct hkt_topo *topo = NULL;
    char text[2048] = "hocket-topology 1\nnet 0\n  host 0\n";

    (void)state;
    for (int i = 0; i < 40; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%*sswitch %d\n", 2 * i + 4, "", i);
    assert_int_equal(hkt__topo_parse(text, strlen(text), "FILE", &topo), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "FILE:18: "));
    assert_null(topo);
}

static void files_that_cannot_be_read(void **state)
{
    struct hkt_topo *topo = NULL;

    (void)state;
    assert_int_equal(hkt_topo_load("/nonexistent/topology", &topo), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "/nonexistent/topology"));
    assert_true(hkt_topo_load("/tmp", &topo) < 0);
    assert_int_equal(hkt_topo_load("/dev/zero", &topo), HKT_ERR_INVALID);
    assert_null(topo);
}

static void a_full_disk_is_no_success(void **state)
{
    struct hkt_topo *topo = machine("core:64");
    FILE *file = fopen("/dev/full", "w");

    (void)state;
    assert_non_null(file);
    setvbuf(file, NULL, _IONBF, 0);
    assert_int_equal(hkt_topo_save(topo, file), HKT_ERR_SYSTEM);
    fclose(file);
    hkt_topo_destroy(topo);
}

/* Mutated texts. */

static uint64_t seed;

static uint32_t pick(uint32_t below)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(seed >> 33) % below;
}

static size_t mutate(char *text, size_t bytes, size_t room)
{
    static const char *const snippets[] = { "link ",      "  ",          "\n",    "host0/", "=",    ":",
                                            "-",          "99999999999", "name=", "id=",    "GB/s", "net 0",
                                            "  host 0\n", "gpu",         "#",     "\xff",   " " };
    const size_t at = pick((uint32_t)bytes);
    const char *snippet = snippets[pick(sizeof snippets / sizeof snippets[0])];
    const size_t length = 1 + pick(12);

    size_t digit = at;

    switch (pick(6)) {
    case 0:
        text[at] = (char)pick(256);
        return bytes;
    case 1: /* cut */
        if (at + length >= bytes)
            return bytes;
        memmove(text + at, text + at + length, bytes - at - length);
        return bytes - length;
    case 2: /* put in */
        if (bytes + strlen(snippet) > room)
            return bytes;
        memmove(text + at + strlen(snippet), text + at, bytes - at);
        memcpy(text + at, snippet, strlen(snippet));
        return bytes + strlen(snippet);
    case 3: /* another digit */
    case 4:
        digit += strcspn(text + at, "0123456789");
        if (digit < bytes)
            text[digit] = (char)('0' + pick(10));
        return bytes;
    default: /* double a piece */
        if (at + length > bytes || bytes + length > room)
            return bytes;
        memmove(text + at + length, text + at, bytes - at);
        return bytes + length;
    }
}

static void mutated_texts_are_taken_or_refused(void **state)
{
    int taken = 0, refused = 0;

    (void)state;
    print_message("seeds 1 to 2000\n");
    for (uint64_t s = 1; s <= 2000; s++) {
        struct hkt_topo *topo = machine(machines[s % (sizeof machines / sizeof machines[0])]), *again = NULL;
        size_t bytes;
        char *saved = save(topo, &bytes), *text = malloc(bytes + 257); /* one more: searches end */

        memcpy(text, saved, bytes);
        memset(text + bytes, 0, 257);
        seed = s;
        size_t now = bytes;

        for (uint32_t i = 0, count = 1 + pick(3); i < count; i++)
            now = mutate(text, now, bytes + 256);
        const enum hkt_status rc = hkt__topo_parse(text, now, "F", &again);

        if (rc == HKT_OK) {
            assert_comes_back(again);
            hkt_topo_destroy(again);
            taken++;
        } else {
            if (rc != HKT_ERR_INVALID || strncmp(hkt_last_error(), "F:", 2) != 0)
                fail_msg("seed %llu: %s", (unsigned long long)s, hkt_last_error());
            assert_null(again);
            refused++;
        }
        hkt_topo_destroy(topo);
        free(saved);
        free(text);
    }
    print_message("%d taken, %d refused\n", taken, refused);
    /* Both happen, or the mutations are too tame or too wild to find anything. */
    assert_true(taken > 100 && refused > 1000);
}

static void reading_survives_every_failed_allocation(void **state)
{
    struct hkt_topo *topo = machine(machines[2]);
    size_t bytes;
    char *text = save(topo, &bytes);

    (void)state;
    for (int64_t k = 1;; k++) {
        struct hkt_topo *again = NULL;

        hkt__mem_fail_at(k);
        const enum hkt_status rc = hkt__topo_parse(text, bytes, "F", &again);

        hkt__mem_fail_at(0);
        hkt_topo_destroy(again);
        if (rc == HKT_OK)
            break;
        assert_int_equal(rc, HKT_ERR_NOMEM);
        assert_null(again);
    }
    hkt_topo_destroy(topo);
    free(text);
}

/* One line for a machine. */

static void wrong_lines_are_refused(void **state)
{
    static const struct {
        const char *line, *why;
    } cases[] = {
        { "", "no place for a rank" },
        { "host:4", "no place for a rank" },
        { "numa:2 package:2 core:1", "package comes before numa" },
        { "core:2 core:2", "core is given twice" },
        { "core", "write how many" },
        { "core:", "there can be 1 to" },
        { "core:0", "there can be 1 to" },
        { "core:-1", "there can be 1 to" },
        { "core:+1", "there can be 1 to" },
        { "core:2x", "there can be 1 to" },
        { "core:9999999999999999999999", "there can be 1 to" },
        { "cores:2", "\"cores\"" },
        { "pu:2", "no place for a rank" },
        { "pu:2 gpu:1", "a pu lies in a core" },
        { "core:2 nvswitch:1", "joins GPUs" },
        { "core:2@fast", "bandwidth \"fast\"" },
        { "core:2@", "bandwidth \"\"" },
        { "core:2@1GB/s,soon", "latency \"soon\"" },
        { "core:2@1GB/s,1s", "latency \"1s\"" },
        { "core:2@2000TB/s", "at most 1000TB/s" },
        { "host:1000 core:1000", "more than 262144 nodes" },
        { "rack:262144 host:262144 package:262144 numa:262144 l3:262144 core:262144 pu:262144", "more than 262144" },
        { "host:262143 gpu:262144", "more than 262144 nodes" },
    };
    struct hkt_topo *topo = NULL;
    char line[600] = "core:1";

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (hkt_topo_synthetic(cases[i].line, &topo) != HKT_ERR_INVALID)
            fail_msg("taken: %s", cases[i].line);
        if (strstr(hkt_last_error(), cases[i].why) == NULL)
            fail_msg("%s: \"%s\" does not say \"%s\"", cases[i].line, hkt_last_error(), cases[i].why);
    }
    memset(line + strlen(line), ' ', 593);
    assert_int_equal(hkt_topo_synthetic(line, &topo), HKT_ERR_INVALID);
    assert_null(topo);
}

static void lines_make_what_they_say(void **state)
{
    struct hkt_topo *topo = machine("rack:2 host:3 package:2 numa:2 l3:2 core:2 pu:2 gpu:6 nic:2@25GB/s,2us");
    int counts[HKT_TOPO_KIND_COUNT] = { 0 };
    static const int want[HKT_TOPO_KIND_COUNT] = { 1, 2, 6, 12, 24, 48, 96, 192, 0, 36, 12 };

    (void)state;
    for (int32_t i = 0; i < topo->nnodes; i++) {
        counts[topo->nodes[i].kind]++;
        if (topo->nodes[i].kind != HKT_TOPO_HOST)
            continue;
        assert_int_equal(topo->links[topo->nodes[i].uplink].bytes_per_s, 50000000000); /* what its NICs carry */
        assert_int_equal(topo->nodes[i].id, topo->nodes[i].index + 1);
    }
    assert_memory_equal(counts, want, sizeof want);
    /* 6 GPUs over 4 NUMA nodes: none has more than two, in order. */
    for (int g = 0; g < 6; g++) {
        const int32_t gpu = hkt__topo_find(topo, hkt__topo_find(topo, 0, HKT_TOPO_HOST, 4), HKT_TOPO_GPU, g);

        assert_int_equal(topo->nodes[hkt_topo_ancestor(topo, gpu, HKT_TOPO_NUMA)].index, g * 4 / 6);
    }
    hkt_topo_destroy(topo);
}

/* Amounts. */

static void amounts_are_exact(void **state)
{
    static const struct {
        const char *text;
        uint64_t value;
        bool canonical;
    } cases[] = {
        { "12.5GB/s", 12500000000, true },
        { "15.754GB/s", 15754000000, true },
        { "999B/s", 999, true },
        { "1kB/s", 1000, true },
        { "1000B/s", 1000, false },
        { "1.234567GB/s", 1234567000, false },
        { "1234.567MB/s", 1234567000, true },
        { "18446743TB/s", UINT64_C(18446743000000000000), true },
        { "0B/s", 0, true },
        { "0.001TB/s", 1000000000, false },
    };
    static const char *const refused[] = { "",
                                           "GB/s",
                                           "1",
                                           "1GB",
                                           "1 GB/s",
                                           "-1GB/s",
                                           "1.GB/s",
                                           ".5GB/s",
                                           "1.2345678GB/s",
                                           "1.5B/s",
                                           "0.0001kB/s",
                                           "18446745TB/s",
                                           "99999999999999999999B/s",
                                           "1GB/sx",
                                           "1e9B/s",
                                           "0x1B/s" };
    uint64_t value;
    char text[64];

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_true(hkt__parse_rate(cases[i].text, &value));
        assert_true(value == cases[i].value);
        hkt_topo_rate_text(value, text, sizeof text);
        assert_int_equal(strcmp(text, cases[i].text) == 0, cases[i].canonical);
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (hkt__parse_rate(refused[i], &value))
            fail_msg("\"%s\" was taken", refused[i]);
    assert_true(hkt__parse_time("2.5us", &value) && value == 2500);
    assert_true(hkt__parse_size("1.5KiB", &value) && value == 1536);
    assert_false(hkt__parse_size("1KB", &value));
}

static void every_amount_comes_back(void **state)
{
    (void)state;
    seed = 7;
    for (int i = 0; i < 20000; i++) {
        const uint64_t value = ((uint64_t)pick(UINT32_MAX) << 32 | pick(UINT32_MAX)) >> pick(64);
        uint64_t rate = 0, time = 0, size = 0;
        char text[3][64];

        hkt_topo_rate_text(value, text[0], sizeof text[0]);
        hkt_topo_time_text(value, text[1], sizeof text[1]);
        hkt_topo_size_text(value, text[2], sizeof text[2]);
        /* Of the largest numbers the text may be more than can be read. */
        if (value > UINT64_MAX - (UINT64_C(1) << 41))
            continue;
        if (!hkt__parse_rate(text[0], &rate) || !hkt__parse_time(text[1], &time) || !hkt__parse_size(text[2], &size)
            || rate != value || time != value || size != value)
            fail_msg("%llu: %s %s %s", (unsigned long long)value, text[0], text[1], text[2]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_come_back),
        cmocka_unit_test(a_file_by_hand_is_taken),
        cmocka_unit_test(what_is_wrong_is_named_with_its_line),
        cmocka_unit_test(the_frame_of_a_file_is_checked),
        cmocka_unit_test(deep_nesting_ends),
        cmocka_unit_test(files_that_cannot_be_read),
        cmocka_unit_test(a_full_disk_is_no_success),
        cmocka_unit_test(mutated_texts_are_taken_or_refused),
        cmocka_unit_test(reading_survives_every_failed_allocation),
        cmocka_unit_test(wrong_lines_are_refused),
        cmocka_unit_test(lines_make_what_they_say),
        cmocka_unit_test(amounts_are_exact),
        cmocka_unit_test(every_amount_comes_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
