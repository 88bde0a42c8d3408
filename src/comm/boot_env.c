/* Who am I, and where is rank 0: read from the environment that launchers set. One row per launcher; the first whose
 * rank and size are both set is taken. Nothing is guessed from a value that does not parse.
 *
 * Sources of the names: torchrun: PyTorch documentation, "torchrun (Elastic Launch)"; Open MPI: mpirun(1), "Exported
 * Environment Variables"; PMI: as set by MPICH's Hydra and Slurm's pmi2 plugin; Slurm: srun(1), "OUTPUT ENVIRONMENT
 * VARIABLES". */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "comm/boot_int.h"
#include "core/siphash.h"

/* Derived ports lie below the ephemeral range of Linux (32768 and up), where no connection takes them by chance. */
#define PORT_FIRST 20000
#define PORT_LAST 32000
#define JOB_VARIABLES_MAX 3

struct launcher {
    const char *name;
    const char *rank, *size;
    const char *local_rank[2], *local_size; /* the first that is set; NULL: it sets none */
    const char *also;                       /* must be set, too, unless HOCKET_ROOT is; NULL: nothing */
    bool is_address_due;                    /* it sets MASTER_ADDR and MASTER_PORT: their absence is a mistake */
    bool is_hydra;                          /* see hydra_key */
    const char *job[JOB_VARIABLES_MAX];     /* together they tell this job from others */
};

/* Slurm's variables count only within a step (srun): a batch script has SLURM_PROCID=0, too, but no other ranks. Within
 * a step, SLURM_NTASKS may be that of the whole job if someone exported it; SLURM_STEP_NUM_TASKS is asked first. */
static const struct launcher launchers[] = {
    {"hocket run", "HOCKET_RANK", "HOCKET_SIZE", {"HOCKET_LOCAL_RANK"}, "HOCKET_LOCAL_SIZE", NULL, false, false,
     {NULL}},
    {"torchrun", "RANK", "WORLD_SIZE", {"LOCAL_RANK"}, "LOCAL_WORLD_SIZE", NULL, true, false,
     {"TORCHELASTIC_RUN_ID", "MASTER_PORT"}},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", {"OMPI_COMM_WORLD_LOCAL_RANK"},
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL, false, false, {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"}},
    {"PMI", "PMI_RANK", "PMI_SIZE", {"MPI_LOCALRANKID", "SLURM_LOCALID"}, "MPI_LOCALNRANKS", NULL, false, true,
     {"SLURM_JOB_ID", "SLURM_STEP_ID", "PMI_PORT"}},
    {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", {"SLURM_LOCALID"}, NULL, "SLURM_STEP_ID", false, false,
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
    {"Slurm", "SLURM_PROCID", "SLURM_NTASKS", {"SLURM_LOCALID"}, NULL, "SLURM_STEP_ID", false, false,
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};

/* ---- values ---- */

typedef char *getenv_function(const char *name);

/* A variable's value; NULL when unset or empty. */
static const char *value_of(getenv_function *getenv_fn, const char *name)
{
    const char *value = name != NULL ? getenv_fn(name) : NULL;

    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Decimal digits only: no sign, no space, nothing behind. */
static bool parse_number(const char *text, int *out_number)
{
    int64_t number = 0;

    for (const char *at = text; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || at - text >= 10)
            return false;
        number = 10 * number + (*at - '0');
    }
    if (text[0] == '\0' || number > INT_MAX)
        return false;
    *out_number = (int)number;
    return true;
}

static enum hkt_status number_of(getenv_function *getenv_fn, const char *name, int least, int most, int *out_number)
{
    const char *value = value_of(getenv_fn, name);
    int number = 0;

    if (value == NULL)
        return hkt__fail(HKT_ERR_INVALID, "%s is not set: a whole number from %d to %d is needed", name, least, most);
    if (!parse_number(value, &number) || number < least || number > most)
        return hkt__fail(HKT_ERR_INVALID, "%s is \"%.64s\": a whole number from %d to %d is needed", name, value, least,
                         most);
    *out_number = number;
    return HKT_OK;
}

/* ---- rank and size ---- */

/* The launcher, NULL: none. A launcher with half of its variables is a mistake worth a word, unless another is whole.
 * */
static enum hkt_status find_launcher(getenv_function *getenv_fn, const struct launcher **out_launcher)
{
    const char *set = NULL, *unset = NULL;

    *out_launcher = NULL;
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const struct launcher *row = &launchers[i];
        const bool has_rank = value_of(getenv_fn, row->rank) != NULL, has_size = value_of(getenv_fn, row->size) != NULL;

        if (row->also != NULL && value_of(getenv_fn, row->also) == NULL && value_of(getenv_fn, "HOCKET_ROOT") == NULL)
            continue;
        if (has_rank && has_size) {
            *out_launcher = row;
            return HKT_OK;
        }
        if ((has_rank || has_size) && set == NULL) {
            set = has_rank ? row->rank : row->size;
            unset = has_rank ? row->size : row->rank;
        }
    }
    if (set != NULL)
        return hkt__fail(HKT_ERR_INVALID, "%s is set (\"%.64s\"), but %s is not: set both, or neither for a process "
                         "that runs alone", set, value_of(getenv_fn, set), unset);
    return HKT_OK;
}

/* Is the whole job on this host, as far as its launcher says? */
static bool is_one_host(getenv_function *getenv_fn, const struct hkt__boot_env *env)
{
    const char *nodes = value_of(getenv_fn, "SLURM_STEP_NUM_NODES");

    if (env->local_nranks == env->nranks)
        return true;
    if (nodes == NULL)
        nodes = value_of(getenv_fn, "SLURM_JOB_NUM_NODES");
    return nodes != NULL && strcmp(nodes, "1") == 0 && value_of(getenv_fn, "SLURM_STEP_ID") != NULL;
}

static enum hkt_status find_ranks(getenv_function *getenv_fn, const struct launcher *launcher,
                                  struct hkt__boot_env *env)
{
    enum hkt_status status = number_of(getenv_fn, launcher->size, 1, HKT__BOOT_NRANKS_MAX, &env->nranks);

    if (status == HKT_OK)
        status = number_of(getenv_fn, launcher->rank, 0, env->nranks - 1, &env->rank);
    if (status == HKT_OK && value_of(getenv_fn, launcher->local_size) != NULL)
        status = number_of(getenv_fn, launcher->local_size, 1, env->nranks, &env->local_nranks);
    if (status == HKT_OK && env->local_nranks < 0 && is_one_host(getenv_fn, env))
        env->local_nranks = env->nranks;
    for (int i = 0; i < 2 && status == HKT_OK && env->local_rank < 0; i++)
        if (value_of(getenv_fn, launcher->local_rank[i]) != NULL)
            status = number_of(getenv_fn, launcher->local_rank[i], 0,
                               (env->local_nranks > 0 ? env->local_nranks : env->nranks) - 1, &env->local_rank);
    return status;
}

/* ---- address ---- */

static enum hkt_status set_host(const char *name, const char *host, size_t length, struct hkt__boot_id *id)
{
    if (length == 0 || length >= sizeof id->host)
        return hkt__fail(HKT_ERR_INVALID, "%s names the host \"%.*s\": 1 to %zu characters are possible, a numeric "
                         "address will do", name, (int)(length < 200 ? length : 200), host, sizeof id->host - 1);
    memcpy(id->host, host, length);
    id->host[length] = '\0';
    return HKT_OK;
}

static enum hkt_status set_port(const char *name, const char *value, const char *port, struct hkt__boot_id *id)
{
    int number = 0;

    if (!parse_number(port, &number) || number < 1 || number > 65535)
        return hkt__fail(HKT_ERR_INVALID, "%s is \"%.200s\": its port must be a whole number from 1 to 65535", name,
                         value);
    id->port = (uint16_t)number;
    return HKT_OK;
}

/* host:port, with the host in brackets when it holds colons itself. */
static enum hkt_status parse_root(const char *value, struct hkt__boot_id *id)
{
    const char *host = value, *colon = strrchr(value, ':');
    size_t length = colon != NULL ? (size_t)(colon - value) : 0;

    if (value[0] == '[' && length >= 2 && colon[-1] == ']') {
        host++;
        length -= 2;
    } else if (colon == NULL || memchr(value, ':', length) != NULL || value[0] == '[') {
        return hkt__fail(HKT_ERR_INVALID, "HOCKET_ROOT is \"%.200s\": host:port is needed, for IPv6 [address]:port",
                         value);
    }
    const enum hkt_status status = set_host("HOCKET_ROOT", host, length, id);

    return status < 0 ? status : set_port("HOCKET_ROOT", value, colon + 1, id);
}

/* The first host of a list in Slurm's notation: "n[04-07,9],gpu2" begins with n04. */
static enum hkt_status first_host(const char *name, const char *list, struct hkt__boot_id *id)
{
    char host[256];
    size_t used = 0;

    for (const char *at = list; *at != '\0' && *at != ',' && used < sizeof host - 1; at++) {
        if (*at != '[') {
            host[used++] = *at;
            continue;
        }
        for (at++; *at >= '0' && *at <= '9' && used < sizeof host - 1; at++)
            host[used++] = *at;
        at += strcspn(at, "]");
        if (*at == '\0')
            return hkt__fail(HKT_ERR_INVALID, "%s is \"%.200s\": a bracket is not closed; set HOCKET_ROOT=host:port",
                             name, list);
    }
    return set_host(name, host, used, id);
}

/* ---- job ---- */

/* MPICH's launcher exports no name of the job, but each rank has a socket to its proxy, one per host and job, whose pid
 * the kernel tells. Good for a job on one host, which is all that can be derived here. */
static void hydra_key(getenv_function *getenv_fn, char *out_key, size_t key_bytes)
{
    const char *value = value_of(getenv_fn, "PMI_FD");
    struct ucred peer = {.pid = 0};
    socklen_t bytes = sizeof peer;
    int fd;

    if (value != NULL && parse_number(value, &fd) && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 &&
        peer.pid > 0)
        snprintf(out_key, key_bytes, "proxy=%d;", (int)peer.pid);
}

/* Text that is the same on all ranks of the job and differs from other jobs'; "" when there is none. */
static void job_key(getenv_function *getenv_fn, const struct launcher *launcher, char *out_key, size_t key_bytes)
{
    size_t used = 0;

    out_key[0] = '\0';
    for (int i = 0; i < JOB_VARIABLES_MAX; i++) {
        const char *value = value_of(getenv_fn, launcher->job[i]);

        if (value == NULL)
            continue;
        const int n = snprintf(out_key + used, key_bytes - used, "%s=%s;", launcher->job[i], value);

        if (n < 0 || (size_t)n >= key_bytes - used)
            return;
        used += (size_t)n;
    }
    if (used == 0 && launcher->is_hydra)
        hydra_key(getenv_fn, out_key, key_bytes);
}

static uint16_t port_of_key(const char *key)
{
    static const unsigned char port_key[16] = "hocket job port";

    return (uint16_t)(PORT_FIRST + hkt__siphash(port_key, key, strlen(key)) % (PORT_LAST - PORT_FIRST + 1));
}

/* No address was given: rank 0's host as the launcher places ranks, and a port that all ranks can work out. */
static enum hkt_status derive_root(getenv_function *getenv_fn, const struct launcher *launcher, const char *key,
                                   struct hkt__boot_env *env)
{
    static const char *const lists[] = {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"};

    if (key[0] == '\0')
        return hkt__fail(HKT_ERR_INVALID, "%s gives rank %d of %d, but nothing gives the address of rank 0: set "
                         "HOCKET_ROOT=host:port (and HOCKET_TOKEN) on all ranks", launcher->name, env->rank,
                         env->nranks);
    env->id.port = port_of_key(key);
    if (is_one_host(getenv_fn, env)) {
        snprintf(env->id.host, sizeof env->id.host, "127.0.0.1");
        return HKT_OK;
    }
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        const char *list = value_of(getenv_fn, lists[i]);

        if (list != NULL)
            return first_host(lists[i], list, &env->id);
    }
    return hkt__fail(HKT_ERR_INVALID, "%s runs this job on several hosts, and nothing gives the address of rank 0: set "
                     "HOCKET_ROOT=host:port on all ranks, host being that of rank 0 (mpirun -x HOCKET_ROOT=...)",
                     launcher->name);
}

/* MASTER_ADDR and MASTER_PORT. Under torchrun itself its own store already listens on that port of that host, so the
 * port is derived from it; set by hand, the port is meant. */
static enum hkt_status master_root(getenv_function *getenv_fn, const char *host, const char *port,
                                   struct hkt__boot_env *env)
{
    char key[512];
    enum hkt_status status = set_host("MASTER_ADDR", host, strlen(host), &env->id);

    if (status == HKT_OK)
        status = set_port("MASTER_PORT", port, port, &env->id);
    if (status == HKT_OK && value_of(getenv_fn, "TORCHELASTIC_RUN_ID") != NULL) {
        snprintf(key, sizeof key, "torchrun %s %s", value_of(getenv_fn, "TORCHELASTIC_RUN_ID"), port);
        env->id.port = port_of_key(key);
    }
    return status;
}

static enum hkt_status find_root(getenv_function *getenv_fn, const struct launcher *launcher, const char *key,
                                 struct hkt__boot_env *env)
{
    const char *root = value_of(getenv_fn, "HOCKET_ROOT");
    const char *host = value_of(getenv_fn, "MASTER_ADDR"), *port = value_of(getenv_fn, "MASTER_PORT");

    if (root != NULL)
        return parse_root(root, &env->id);
    if (host != NULL && port != NULL)
        return master_root(getenv_fn, host, port, env);
    if (launcher->is_address_due)
        return hkt__fail(HKT_ERR_INVALID, "%s is not set: the address of rank 0 is needed, as MASTER_ADDR and "
                         "MASTER_PORT or as HOCKET_ROOT=host:port", host == NULL ? "MASTER_ADDR" : "MASTER_PORT");
    return derive_root(getenv_fn, launcher, key, env);
}

/* Without HOCKET_TOKEN the token keeps jobs apart, but is no secret: whoever may read the environment can guess it. */
static void find_token(getenv_function *getenv_fn, const char *key, struct hkt__boot_id *id)
{
    const char *secret = value_of(getenv_fn, "HOCKET_TOKEN");
    char text[1100];

    /* The host is no part of it: ranks may know it by different names. */
    if (secret != NULL)
        hkt__boot_token_of(secret, id->token);
    else {
        snprintf(text, sizeof text, "%s%u", key, id->port);
        hkt__boot_token_of(text, id->token);
    }
}

enum hkt_status hkt__boot_env_find(char *(*getenv_fn)(const char *), struct hkt__boot_env *out_env)
{
    struct hkt__boot_env env = {.rank = -1, .nranks = 1, .local_rank = -1, .local_nranks = -1, .launcher = "none"};
    const struct launcher *launcher;
    char key[1024];
    enum hkt_status status = find_launcher(getenv_fn, &launcher);

    if (status < 0)
        return status;
    if (launcher == NULL) {
        *out_env = env;
        return HKT_OK;
    }
    env.launcher = launcher->name;
    job_key(getenv_fn, launcher, key, sizeof key);
    status = find_ranks(getenv_fn, launcher, &env);
    if (status == HKT_OK && env.nranks > 1) {
        status = find_root(getenv_fn, launcher, key, &env);
        find_token(getenv_fn, key, &env.id);
    }
    if (status < 0)
        return hkt__error_context(status, "started by %s", launcher->name);
    *out_env = env;
    return HKT_OK;
}
