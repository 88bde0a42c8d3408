/* What could break: a stranger gets the descriptor; garbage, silent or very many clients stall the honest ones; the server
 * cannot be stopped; a killed process leaves its socket behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "transport/fdpass.h"

static const unsigned char key[16] = "the job's secret", wrong_key[16] = "another secret..";

static int make_file(void)
{
    const int fd = memfd_create("test", MFD_CLOEXEC);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, "hello", 5), 5);
    return fd;
}

static enum hkt_status fetch(const unsigned char *name, const unsigned char *with_key, int64_t wait_ms, int *out_fd)
{
    const struct hkt__fdfetch request = { .name = name, .key = with_key, .deadline_ns = hkt__now_ns() + wait_ms * 1000000 };
    pid_t pid = -1;
    const enum hkt_status rc = hkt__fdfetch(&request, out_fd, &pid);

    if (rc == HKT_OK)
        assert_int_equal(pid, getpid());
    return rc;
}

static void the_descriptor_arrives(void **state)
{
    const int fd = make_file();
    struct hkt__fdserver *server = NULL;

    (void)state;
    assert_int_equal(hkt__fdserver_start(fd, key, &server), HKT_OK);
    for (int i = 0; i < 200; i++) {
        char text[5];
        int copy = -1;

        assert_int_equal(fetch(hkt__fdserver_name(server), key, 20000, &copy), HKT_OK);
        assert_int_equal(pread(copy, text, sizeof text, 0), 5);
        assert_memory_equal(text, "hello", 5);
        close(copy);
    }
    hkt__fdserver_stop(server);
    close(fd);
}

static void a_wrong_token_is_refused(void **state)
{
    const int fd = make_file();
    struct hkt__fdserver *server = NULL;
    int copy = -1;

    (void)state;
    assert_int_equal(hkt__fdserver_start(fd, key, &server), HKT_OK);
    assert_int_equal(fetch(hkt__fdserver_name(server), wrong_key, 20000, &copy), HKT_ERR_AUTH);
    assert_int_equal(copy, -1);
    assert_int_equal(fetch(hkt__fdserver_name(server), key, 20000, &copy), HKT_OK);
    close(copy);
    hkt__fdserver_stop(server);
    close(fd);
}

static void nobody_there_is_no_failure_of_the_system(void **state)
{
    const unsigned char name[HKT__FDPASS_NAME_BYTES] = { 1, 2, 3 };
    int copy = -1;

    (void)state;
    assert_int_equal(fetch(name, key, 20000, &copy), HKT_ERR_UNSUPPORTED);
    assert_int_equal(copy, -1);
}

/* As the server names itself: see make_address in fdpass.c. */
static socklen_t address_of(const unsigned char *name, struct sockaddr_un *out_address)
{
    char text[sizeof out_address->sun_path] = "hocket-";
    size_t used = strlen(text);

    for (int i = 0; i < HKT__FDPASS_NAME_BYTES; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%02x", name[i]);
    memset(out_address, 0, sizeof *out_address);
    out_address->sun_family = AF_UNIX;
    memcpy(out_address->sun_path + 1, text, used);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + used);
}

static int connect_raw(const unsigned char *name)
{
    struct sockaddr_un address;
    const socklen_t bytes = address_of(name, &address);
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, bytes), 0);
    return fd;
}

static void garbage_and_silence_disturb_nobody(void **state)
{
    enum { SILENT = 100 }; /* more than the server's table holds */
    const int fd = make_file();
    struct hkt__fdserver *server = NULL;
    int silent[SILENT], copy = -1;
    unsigned char garbage[300];

    (void)state;
    memset(garbage, 0xa5, sizeof garbage);
    assert_int_equal(hkt__fdserver_start(fd, key, &server), HKT_OK);
    for (int i = 0; i < 50; i++) {
        const int stranger = connect_raw(hkt__fdserver_name(server));

        (void)send(stranger, garbage, 1 + (size_t)(i * 7 % 300), MSG_NOSIGNAL);
        if (i % 2 == 0) {
            char byte;

            assert_int_equal(recv(stranger, &byte, 1, 0), 0); /* the door, not the descriptor */
        }
        close(stranger);
    }
    for (int i = 0; i < SILENT; i++)
        silent[i] = connect_raw(hkt__fdserver_name(server));
    assert_int_equal(fetch(hkt__fdserver_name(server), key, 20000, &copy), HKT_OK);
    close(copy);
    for (int i = 0; i < SILENT; i++)
        close(silent[i]);
    hkt__fdserver_stop(server);
    close(fd);
}

/* A server that is there but does not answer (its process is stopped) costs the deadline and no more. */
static void a_deadline_and_an_abort_end_the_wait(void **state)
{
    unsigned char name[HKT__FDPASS_NAME_BYTES] = { 9, 9, 9 };
    struct sockaddr_un address;
    _Atomic int abort_word = 1;
    const struct hkt__fdfetch request = { .name = name, .key = key, .deadline_ns = hkt__now_ns() + INT64_C(60000000000),
                                          .abort_word = &abort_word };
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    pid_t pid;
    int copy = -1;

    (void)state;
    name[3] = (unsigned char)getpid();
    name[4] = (unsigned char)(getpid() >> 8);
    const socklen_t bytes = address_of(name, &address);

    assert_int_equal(bind(listener, (struct sockaddr *)&address, bytes), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(fetch(name, key, 100, &copy), HKT_ERR_TIMEOUT);
    assert_int_equal(hkt__fdfetch(&request, &copy, &pid), HKT_ERR_ABORTED);
    assert_int_equal(copy, -1);
    close(listener);
}

static int is_in_proc(const unsigned char *name)
{
    struct sockaddr_un address;
    char line[512];
    int is_found = 0;
    FILE *file = fopen("/proc/net/unix", "re");

    assert_non_null(file);
    (void)address_of(name, &address);
    while (fgets(line, sizeof line, file) != NULL)
        is_found |= strstr(line, address.sun_path + 1) != NULL;
    fclose(file);
    return is_found;
}

static void a_killed_process_leaves_nothing(void **state)
{
    unsigned char name[HKT__FDPASS_NAME_BYTES];
    int pipes[2], status;

    (void)state;
    assert_int_equal(pipe(pipes), 0);
    const pid_t child = fork();

    if (child == 0) {
        struct hkt__fdserver *server = NULL;
        const int fd = memfd_create("test", MFD_CLOEXEC);

        if (hkt__fdserver_start(fd, key, &server) == HKT_OK)
            (void)!write(pipes[1], hkt__fdserver_name(server), sizeof name);
        for (;;)
            pause();
    }
    assert_int_equal(read(pipes[0], name, sizeof name), sizeof name);
    assert_true(is_in_proc(name));
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(is_in_proc(name));
    close(pipes[0]);
    close(pipes[1]);
}

static void a_stopped_server_leaves_nothing(void **state)
{
    const int fd = make_file();
    unsigned char name[HKT__FDPASS_NAME_BYTES];
    struct hkt__fdserver *server = NULL;

    (void)state;
    assert_int_equal(hkt__fdserver_start(fd, key, &server), HKT_OK);
    memcpy(name, hkt__fdserver_name(server), sizeof name);
    assert_true(is_in_proc(name));
    const int silent = connect_raw(name);

    hkt__fdserver_stop(server);
    assert_false(is_in_proc(name));
    close(silent);
    close(fd);
    hkt__fdserver_stop(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_descriptor_arrives),
        cmocka_unit_test(a_wrong_token_is_refused),
        cmocka_unit_test(nobody_there_is_no_failure_of_the_system),
        cmocka_unit_test(garbage_and_silence_disturb_nobody),
        cmocka_unit_test(a_deadline_and_an_abort_end_the_wait),
        cmocka_unit_test(a_killed_process_leaves_nothing),
        cmocka_unit_test(a_stopped_server_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
