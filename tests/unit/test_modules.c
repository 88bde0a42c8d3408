/* Transports that are opened at run time. What could break: a module that is absent, no module at all, or of another
 * version is opened anyway, or ends the program, or is refused without a word that helps; an error recorded in a module
 * does not reach the thread that asked. misfit_module.c plays the module; each case is a process of its own, since a
 * process tries a module once. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/settings.h"
#include "transport/transport.h"

static char misfit[PATH_MAX]; /* path of the module */

/** What probing says with HOCKET_MODULES=folder; the status goes in front of the text. */
static void ask(const char *folder, const char *role, char *out_text, size_t bytes)
{
    int ends[2], status;
    size_t used = 0;

    assert_int_equal(pipe(ends), 0);
    const pid_t child = fork();

    if (child == 0) {
        const struct hkt__settings *settings;

        setenv("HOCKET_MODULES", folder, 1);
        setenv("MISFIT", role, 1);
        hkt__settings_reset();
        if (hkt__settings_get(&settings) < 0)
            _exit(1);
        for (int i = 0; i < 2; i++) { /* the second answer must be like the first */
            const enum hkt_status rc = hkt__transport_find("ucx")->probe(settings);

            dprintf(ends[1], "%d %s\n", (int)rc, rc < 0 ? hkt_last_error() : "");
        }
        struct hkt__tp_caps caps = {0};

        hkt__transport_find("ucx")->query(NULL, &caps);
        _exit(caps.latency_ns > 0 ? 0 : 1);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], out_text + used, bytes - 1 - used)) > 0;)
        used += (size_t)got;
    out_text[used] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    char *second = strchr(out_text, '\n') + 1;

    assert_int_equal(strncmp(out_text, second, (size_t)(second - out_text)), 0);
    *second = '\0';
}

static void modules_are_admitted_or_refused_with_a_reason(void **state)
{
    static const struct {
        const char *role;    /* "-": no file; "text": a file that is no library; else what the module plays */
        enum hkt_status status;
        const char *says;
    } rows[] = {
        {"-", HKT_ERR_UNSUPPORTED, "libucx-dev"},          {"text", HKT_ERR_UNSUPPORTED, "libucx-dev"},
        {"silent", HKT_ERR_UNSUPPORTED, "another version"}, {"abi", HKT_ERR_UNSUPPORTED, "another version"},
        {"ops", HKT_ERR_UNSUPPORTED, "another version"},   {"version", HKT_ERR_UNSUPPORTED, "another version"},
        {"name", HKT_ERR_UNSUPPORTED, "its name is wrong"}, {"fits", HKT_OK, ""},
        {"unfit", HKT_ERR_UNSUPPORTED, "no fabric in the misfit"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char folder[] = "/tmp/hocket-modules-XXXXXX", path[PATH_MAX], text[4096];

        assert_non_null(mkdtemp(folder));
        snprintf(path, sizeof path, "%s/hocket_ucx.so", folder);
        if (strcmp(rows[i].role, "text") == 0) {
            FILE *file = fopen(path, "we");

            assert_non_null(file);
            fputs("not a library\n", file);
            fclose(file);
        } else if (strcmp(rows[i].role, "-") != 0) {
            assert_int_equal(symlink(misfit, path), 0);
        }
        ask(folder, rows[i].role, text, sizeof text);
        unlink(path);
        rmdir(folder);
        assert_int_equal((int)strtol(text, NULL, 10), rows[i].status);
        if (strstr(text, rows[i].says) == NULL)
            fail_msg("as %s: \"%s\" does not say \"%s\"", rows[i].role, text, rows[i].says);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(modules_are_admitted_or_refused_with_a_reason)};

    if (argc < 2 || realpath(argv[1], misfit) == NULL) {
        fprintf(stderr, "usage: test_modules MISFIT_MODULE\n");
        return 2;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
