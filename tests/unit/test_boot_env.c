/* What could break: a launcher's variables are misread or taken in the wrong order, a value that is no number passes,
 * two ranks derive different ports or tokens, two jobs the same ones, an error does not name the variable to mend. */
#include "comm/boot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#define VARIABLES_MAX 16

/* The environment of the case at hand: "NAME=value" texts. */
static const char *const *environment;

static char *table_getenv(const char *name)
{
    const size_t length = strlen(name);

    for (int i = 0; i < VARIABLES_MAX && environment[i] != NULL; i++)
        if (strncmp(environment[i], name, length) == 0 && environment[i][length] == '=')
            return (char *)(uintptr_t)(environment[i] + length + 1);
    return NULL;
}

static enum hkt_status find(const char *const *variables, struct hkt__boot_env *out_env)
{
    environment = variables;
    return hkt__boot_env_find(table_getenv, out_env);
}

struct good_case {
    const char *variables[VARIABLES_MAX];
    const char *launcher, *host;
    int rank, nranks, local_rank, local_nranks;
    int port; /* 0: derived, in 20000..32000; -1: none */
};

static const struct good_case good_cases[] = {
    {{NULL}, "none", "", -1, 1, -1, -1, -1},
    {{"PATH=/bin", "RANK=", "WORLD_SIZE="}, "none", "", -1, 1, -1, -1, -1},
    {{"HOCKET_RANK=3", "HOCKET_SIZE=4", "HOCKET_LOCAL_RANK=1", "HOCKET_LOCAL_SIZE=2", "HOCKET_ROOT=10.0.0.7:4711",
      "HOCKET_TOKEN=abc"}, "hocket run", "10.0.0.7", 3, 4, 1, 2, 4711},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_ROOT=[::1]:65535"}, "hocket run", "::1", 0, 2, -1, -1, 65535},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_ROOT=node-1.example:1"}, "hocket run", "node-1.example", 0, 2, -1,
     -1, 1},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=1"}, "hocket run", "", 0, 1, -1, -1, -1},
    {{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=1", "MASTER_ADDR=a.b", "MASTER_PORT=29500"},
     "torchrun", "a.b", 1, 2, 0, 1, 29500},
    /* torchrun's own store listens on MASTER_PORT. */
    {{"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=a.b", "MASTER_PORT=29500", "TORCHELASTIC_RUN_ID=none"}, "torchrun", "a.b",
     1, 2, -1, -1, 0},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=1",
      "OMPI_COMM_WORLD_LOCAL_SIZE=4", "PMIX_NAMESPACE=1234567"}, "Open MPI", "127.0.0.1", 1, 4, 1, 4, 0},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2", "HOCKET_ROOT=h:1"},
     "Open MPI", "h", 1, 4, -1, 2, 1},
    /* mpirun inside a Slurm allocation of several hosts. */
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=77",
      "SLURM_JOB_NODELIST=gpu[08-11]", "SLURM_JOB_ID=5"}, "Open MPI", "gpu08", 1, 4, -1, 2, 0},
    {{"PMI_RANK=2", "PMI_SIZE=3", "MPI_LOCALRANKID=2", "MPI_LOCALNRANKS=3", "PMI_PORT=h:99"}, "PMI", "127.0.0.1", 2, 3,
     2, 3, 0},
    {{"PMI_RANK=2", "PMI_SIZE=3", "SLURM_JOB_ID=5", "SLURM_STEP_ID=0", "SLURM_STEP_NODELIST=n[3-4]",
      "SLURM_STEP_NUM_NODES=2", "SLURM_LOCALID=1"}, "PMI", "n3", 2, 3, 1, -1, 0},
    {{"SLURM_PROCID=7", "SLURM_STEP_NUM_TASKS=8", "SLURM_NTASKS=16", "SLURM_LOCALID=3", "SLURM_JOB_ID=5",
      "SLURM_STEP_ID=1", "SLURM_JOB_NODELIST=n[0-3]", "SLURM_STEP_NODELIST=n[2-3]", "SLURM_STEP_NUM_NODES=2"}, "Slurm",
     "n2", 7, 8, 3, -1, 0},
    {{"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_JOB_ID=5", "SLURM_STEP_ID=1", "SLURM_JOB_NODELIST=n0",
      "SLURM_STEP_NUM_NODES=1"}, "Slurm", "127.0.0.1", 1, 2, -1, 2, 0},
    /* A batch script is no step: it runs alone. */
    {{"SLURM_PROCID=0", "SLURM_NTASKS=8", "SLURM_JOB_ID=5", "SLURM_JOB_NODELIST=n0"}, "none", "", -1, 1, -1, -1, -1},
    {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_JOB_ID=5", "SLURM_STEP_ID=0", "SLURM_JOB_NUM_NODES=1"}, "Slurm",
     "127.0.0.1", 1, 2, -1, 2, 0},
    {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "HOCKET_ROOT=h:9"}, "Slurm", "h", 1, 2, -1, -1, 9},
    /* The order of launchers; and half a torchrun does not hide a whole mpirun. */
    {{"HOCKET_RANK=1", "HOCKET_SIZE=2", "HOCKET_ROOT=h:5", "RANK=0", "WORLD_SIZE=9", "OMPI_COMM_WORLD_RANK=4",
      "OMPI_COMM_WORLD_SIZE=5"}, "hocket run", "h", 1, 2, -1, -1, 5},
    {{"RANK=0", "WORLD_SIZE=9", "MASTER_ADDR=h", "MASTER_PORT=7", "PMI_RANK=4", "PMI_SIZE=5"}, "torchrun", "h", 0, 9,
     -1, -1, 7},
    {{"RANK=0", "OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=1"},
     "Open MPI", "127.0.0.1", 1, 2, -1, 2, 0},
    {{"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID=0", "MASTER_ADDR=h", "MASTER_PORT=7"}, "Slurm", "h", 1,
     2, -1, -1, 7},
};

static void env_finds_each_launcher(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof good_cases / sizeof good_cases[0]; i++) {
        const struct good_case *c = &good_cases[i];
        struct hkt__boot_env env;

        if (find(c->variables, &env) != HKT_OK)
            fail_msg("case %zu: %s", i, hkt_last_error());
        if (strcmp(env.launcher, c->launcher) != 0 || strcmp(env.id.host, c->host) != 0 || env.rank != c->rank ||
            env.nranks != c->nranks || env.local_rank != c->local_rank || env.local_nranks != c->local_nranks)
            fail_msg("case %zu: %s \"%s\" rank %d/%d local %d/%d", i, env.launcher, env.id.host, env.rank, env.nranks,
                     env.local_rank, env.local_nranks);
        if (c->port == 0 ? env.id.port < 20000 || env.id.port > 32000 : env.id.port != (c->port < 0 ? 0 : c->port))
            fail_msg("case %zu: port %u", i, env.id.port);
    }
}

struct bad_case {
    const char *variables[VARIABLES_MAX];
    const char *names[3]; /* must all be in the text */
};

static const struct bad_case bad_cases[] = {
    {{"HOCKET_RANK=1"}, {"HOCKET_RANK", "HOCKET_SIZE"}},
    {{"WORLD_SIZE=2"}, {"WORLD_SIZE", "RANK"}},
    {{"HOCKET_RANK=x", "HOCKET_SIZE=2"}, {"HOCKET_RANK", "\"x\"", "0 to 1"}},
    {{"HOCKET_RANK=-1", "HOCKET_SIZE=2"}, {"HOCKET_RANK", "\"-1\""}},
    {{"HOCKET_RANK=+1", "HOCKET_SIZE=2"}, {"HOCKET_RANK", "\"+1\""}},
    {{"HOCKET_RANK= 1", "HOCKET_SIZE=2"}, {"HOCKET_RANK", "\" 1\""}},
    {{"HOCKET_RANK=1 ", "HOCKET_SIZE=2"}, {"HOCKET_RANK", "\"1 \""}},
    {{"HOCKET_RANK=0x1", "HOCKET_SIZE=2"}, {"HOCKET_RANK", "\"0x1\""}},
    {{"HOCKET_RANK=2", "HOCKET_SIZE=2"}, {"HOCKET_RANK", "\"2\"", "0 to 1"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=0"}, {"HOCKET_SIZE", "\"0\""}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=99999999999999999999"}, {"HOCKET_SIZE"}},
    {{"HOCKET_RANK=4294967296", "HOCKET_SIZE=2"}, {"HOCKET_RANK", "4294967296"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2"}, {"HOCKET_ROOT"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_LOCAL_RANK=y", "HOCKET_ROOT=h:1"}, {"HOCKET_LOCAL_RANK", "\"y\""}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_LOCAL_RANK=1", "HOCKET_LOCAL_SIZE=1", "HOCKET_ROOT=h:1"},
     {"HOCKET_LOCAL_RANK", "\"1\""}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_LOCAL_SIZE=3", "HOCKET_ROOT=h:1"}, {"HOCKET_LOCAL_SIZE", "\"3\""}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_ROOT=h"}, {"HOCKET_ROOT", "\"h\"", "host:port"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_ROOT=h:"}, {"HOCKET_ROOT", "\"h:\"", "port"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_ROOT=:1"}, {"HOCKET_ROOT"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_ROOT=h:0"}, {"HOCKET_ROOT", "65535"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_ROOT=h:65536"}, {"HOCKET_ROOT", "65535"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_ROOT=::1:5"}, {"HOCKET_ROOT", "[address]:port"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_ROOT=[::1]"}, {"HOCKET_ROOT", "[address]:port"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_ROOT=[]:1"}, {"HOCKET_ROOT"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2", "HOCKET_ROOT=[:1"}, {"HOCKET_ROOT"}},
    {{"HOCKET_RANK=0", "HOCKET_SIZE=2",
      "HOCKET_ROOT=0123456789012345678901234567890123456789012345678901234567890123:1"},
     {"HOCKET_ROOT", "63"}},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=1"}, {"MASTER_ADDR"}},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h"}, {"MASTER_PORT"}},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=h", "MASTER_PORT=http"}, {"MASTER_PORT", "http"}},
    {{"OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2", "PMIX_NAMESPACE=77"},
     {"Open MPI", "several hosts", "HOCKET_ROOT"}},
    {{"PMI_RANK=0", "PMI_SIZE=2"}, {"PMI", "HOCKET_ROOT"}},
    {{"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID=0", "SLURM_JOB_ID=1", "SLURM_STEP_NODELIST=n[0-1"},
     {"SLURM_STEP_NODELIST", "n[0-1", "HOCKET_ROOT"}},
    {{"SLURM_PROCID=9", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID=0"}, {"SLURM_PROCID", "\"9\"", "Slurm"}},
};

static void env_names_what_is_wrong(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_cases / sizeof bad_cases[0]; i++) {
        struct hkt__boot_env env = {.rank = 4242};

        if (find(bad_cases[i].variables, &env) != HKT_ERR_INVALID || env.rank != 4242)
            fail_msg("case %zu was taken: rank %d of %d, %s:%u", i, env.rank, env.nranks, env.id.host, env.id.port);
        for (int k = 0; k < 3 && bad_cases[i].names[k] != NULL; k++)
            if (strstr(hkt_last_error(), bad_cases[i].names[k]) == NULL)
                fail_msg("case %zu: \"%s\" is not in: %s", i, bad_cases[i].names[k], hkt_last_error());
    }
}

static void env_reads_host_lists(void **state)
{
    static const char *const lists[][2] = {
        {"n0", "n0"}, {"n0,n1", "n0"}, {"n[0-1]", "n0"}, {"n[008-011,3]", "n008"}, {"n[7,9]", "n7"},
        {"r[1-2]c[3-4]", "r1c3"}, {"rack1-[5-6]-ib,x", "rack1-5-ib"}, {"a[2-3],b[1-9]", "a2"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        char list[64];
        const char *const variables[VARIABLES_MAX] = {"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID=0",
                                                      "SLURM_JOB_ID=1", list};
        struct hkt__boot_env env;

        snprintf(list, sizeof list, "SLURM_STEP_NODELIST=%s", lists[i][0]);
        assert_int_equal(find(variables, &env), HKT_OK);
        assert_string_equal(env.id.host, lists[i][1]);
    }
}

/* Same job: same port and token on every rank. Another job, or another secret: another token. */
static void env_keeps_jobs_apart(void **state)
{
    static const char *const rank0[VARIABLES_MAX] = {"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID=0",
                                                     "SLURM_JOB_ID=81", "SLURM_STEP_NUM_NODES=1"};
    static const char *const rank1[VARIABLES_MAX] = {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID=0",
                                                     "SLURM_JOB_ID=81", "SLURM_STEP_NUM_NODES=1"};
    static const char *const step1[VARIABLES_MAX] = {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID=1",
                                                     "SLURM_JOB_ID=81", "SLURM_STEP_NUM_NODES=1"};
    static const char *const secret[VARIABLES_MAX] = {"SLURM_PROCID=1", "SLURM_STEP_NUM_TASKS=2", "SLURM_STEP_ID=0",
                                                      "SLURM_JOB_ID=81", "SLURM_STEP_NUM_NODES=1", "HOCKET_TOKEN=s"};
    struct hkt__boot_env a, b, c, d;

    (void)state;
    assert_int_equal(find(rank0, &a), HKT_OK);
    assert_int_equal(find(rank1, &b), HKT_OK);
    assert_int_equal(find(step1, &c), HKT_OK);
    assert_int_equal(find(secret, &d), HKT_OK);
    assert_memory_equal(&a.id, &b.id, sizeof a.id);
    assert_int_not_equal(a.id.port, c.id.port);
    assert_memory_not_equal(a.id.token, c.id.token, sizeof a.id.token);
    assert_int_equal(a.id.port, d.id.port);
    assert_memory_not_equal(a.id.token, d.id.token, sizeof a.id.token);
}

/* Rank 0 may know its own host as "localhost" while others use its name. */
static void env_token_does_not_depend_on_the_host_name(void **state)
{
    static const char *const rank0[VARIABLES_MAX] = {"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=localhost",
                                                     "MASTER_PORT=500"};
    static const char *const rank1[VARIABLES_MAX] = {"RANK=1", "WORLD_SIZE=2", "MASTER_ADDR=node0", "MASTER_PORT=500"};
    struct hkt__boot_env a, b;

    (void)state;
    assert_int_equal(find(rank0, &a), HKT_OK);
    assert_int_equal(find(rank1, &b), HKT_OK);
    assert_memory_equal(a.id.token, b.id.token, sizeof a.id.token);
}

/* MPICH's launcher names no job; the process behind PMI_FD stands for it. */
static void env_tells_hydra_jobs_by_their_proxy(void **state)
{
    int pair[2];
    char fd[32];
    const char *const ours[VARIABLES_MAX] = {"PMI_RANK=1", "PMI_SIZE=2", "MPI_LOCALNRANKS=2", fd};
    struct hkt__boot_env env;

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    snprintf(fd, sizeof fd, "PMI_FD=%d", pair[0]);
    assert_int_equal(find(ours, &env), HKT_OK);
    assert_string_equal(env.id.host, "127.0.0.1");
    assert_in_range(env.id.port, 20000, 32000);
    close(pair[0]);
    close(pair[1]);
    assert_int_equal(find(ours, &env), HKT_ERR_INVALID);
    assert_non_null(strstr(hkt_last_error(), "HOCKET_ROOT"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(env_finds_each_launcher),
        cmocka_unit_test(env_names_what_is_wrong),
        cmocka_unit_test(env_reads_host_lists),
        cmocka_unit_test(env_keeps_jobs_apart),
        cmocka_unit_test(env_tells_hydra_jobs_by_their_proxy),
        cmocka_unit_test(env_token_does_not_depend_on_the_host_name),
    };

    return cmocka_run_group_tests_name("boot_env", tests, NULL, NULL);
}
