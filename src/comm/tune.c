/* Measured choices: the file, what it must say to be valid here, and how all ranks of a job come to know the same. Rank 0's
 * file counts, so that ranks on other hosts, with other files or none, choose as it does. */
#include "hocket/tune.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/comm_int.h"
#include "core/log.h"
#include "core/mem.h"

_Static_assert(HKT_PRICE_COUNT == HKT__PRICE_COUNT, "the public list is the model's");

/** The processor's name, as Linux calls it; "unknown" elsewhere. */
static void find_cpu(char *out_cpu, size_t bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[256];

    snprintf(out_cpu, bytes, "unknown");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        const char *value = strstr(line, ": ");

        if (strncmp(line, "model name", 10) != 0 || value == NULL)
            continue;
        snprintf(out_cpu, bytes, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
        break;
    }
    if (file != NULL)
        fclose(file);
}

void hkt__tune_key_make(int host_ranks, int cores, struct hkt__tune_key *out_key)
{
    struct hkt__prices prices;

    hkt__prices_init(&prices, 0, 0, true, 1);
    *out_key = (struct hkt__tune_key){.cores = cores, .l2_bytes = (int64_t)prices.l2_bytes,
                                      .llc_bytes = (int64_t)prices.llc_bytes, .host_ranks = host_ranks};
    snprintf(out_key->version, sizeof out_key->version, "%d.%d.%d", HKT_VERSION_MAJOR, HKT_VERSION_MINOR, HKT_VERSION_PATCH);
    find_cpu(out_key->cpu, sizeof out_key->cpu);
}

void hkt__job_tune_key(const struct hkt__job *job, struct hkt__tune_key *out_key)
{
    hkt__tune_key_make(job->host_ranks, job->cores, out_key);
}

/** A whole file as text. Gives *out_text; NULL when there is no such file. */
static enum hkt_status read_file(const char *path, char **out_text)
{
    FILE *file = fopen(path, "re");
    char *text;
    size_t used;

    *out_text = NULL;
    if (file == NULL)
        return errno == ENOENT || errno == ENOTDIR ? HKT_OK : hkt__fail_sys(HKT_ERR_SYSTEM, "cannot read %s", path);
    text = hkt__calloc(HKT__TUNE_FILE_MAX + 1, 1);
    if (text == NULL) {
        fclose(file);
        return hkt__fail(HKT_ERR_NOMEM, "no memory to read %s", path);
    }
    used = fread(text, 1, HKT__TUNE_FILE_MAX + 1, file);
    const bool failed = ferror(file) != 0;

    if (failed)
        (void)hkt__fail_sys(HKT_ERR_SYSTEM, "cannot read %s", path);
    fclose(file);
    if (failed || used > HKT__TUNE_FILE_MAX || memchr(text, '\0', used) != NULL) {
        hkt__free(text);
        return failed ? HKT_ERR_SYSTEM
                      : hkt__fail(HKT_ERR_INVALID, "%s: expected a text of at most %d bytes, as `hocket tune` writes it", path,
                                  HKT__TUNE_FILE_MAX);
    }
    *out_text = text;
    return HKT_OK;
}

enum hkt_status hkt__tune_load(const struct hkt__settings *settings, const struct hkt__tune_key *key,
                               struct hkt__tune **out_tune)
{
    const char *path = hkt__settings_tune_path();
    const bool is_given = settings->tune[0] != '\0';
    struct hkt__tune *tune = NULL;
    char *text = NULL;
    int skipped = 0;
    enum hkt_status rc = path[0] != '\0' ? read_file(path, &text) : HKT_OK;

    *out_tune = NULL;
    if (rc == HKT_OK && text == NULL && is_given && path[0] != '\0')
        rc = hkt__fail(HKT_ERR_INVALID, "HOCKET_TUNE=%s: there is no such file; `hocket tune --output` writes it", path);
    if (rc == HKT_OK && text != NULL)
        rc = hkt__tune_parse(text, path, key, &tune, &skipped);
    hkt__free(text);
    if (rc == HKT_ERR_NOMEM || (rc < 0 && is_given))
        return rc;
    if (rc < 0) { /* what lies in a cache may not keep a job from running */
        hkt__log(HKT__SUB_PLAN, HKT__LOG_WARN, "measured choices are not used: %s", hkt_last_error());
        return HKT_OK;
    }
    if (skipped > 0)
        hkt__log(HKT__SUB_PLAN, is_given && tune->ntables == 0 ? HKT__LOG_WARN : HKT__LOG_INFO, "%s: %d of %d tables are for other machines or numbers of ranks, and not used",
                 path, skipped, skipped + tune->ntables);
    if (tune != NULL && tune->ntables == 0) {
        hkt__free(tune);
        tune = NULL;
    }
    *out_tune = tune;
    return HKT_OK;
}

/** What rank 0 says first. */
struct announcement {
    int32_t status;
    int32_t has_tune;
    char text[512];
};

enum hkt_status hkt__job_share_tune(struct hkt__job *job)
{
    struct announcement said = {0};
    struct hkt__tune *tune = NULL;
    enum hkt_status rc;

    if (job->rank == 0) {
        struct hkt__tune_key key;

        hkt__job_tune_key(job, &key);
        said.status = hkt__tune_load(job->settings, &key, &tune);
        said.has_tune = tune != NULL;
        if (said.status < 0)
            snprintf(said.text, sizeof said.text, "%s", hkt_last_error());
    }
    rc = hkt__boot_broadcast(job->boot, &said, sizeof said);
    if (rc == HKT_OK && said.status < 0)
        rc = hkt__fail_peer((enum hkt_status)said.status, 0, "rank 0 cannot use measured choices: %.*s",
                            (int)sizeof said.text, said.text);
    if (rc == HKT_OK && said.has_tune && tune == NULL) {
        tune = hkt__calloc(1, sizeof *tune);
        if (tune == NULL) /* the ranks beyond this one in the tree see it go, and why */
            rc = hkt__fail(HKT_ERR_NOMEM, "no memory for measured choices");
    }
    if (rc == HKT_OK && said.has_tune)
        rc = hkt__boot_broadcast(job->boot, tune, sizeof *tune);
    if (rc == HKT_OK && said.has_tune)
        rc = hkt__tune_check(tune);
    if (rc < 0) {
        hkt__free(tune);
        return rc;
    }
    job->tune = tune;
    return HKT_OK;
}

enum hkt_status hkt_price_get(int index, struct hkt_price *out_price)
{
    if (index < 0 || index >= HKT__PRICE_COUNT || out_price == NULL)
        return hkt__fail(HKT_ERR_INVALID, "hkt_price_get: there is no price %d, or no place for it; there are %d", index,
                         HKT_PRICE_COUNT);
    *out_price = (struct hkt_price){.name = hkt__price_infos[index].name, .help = hkt__price_infos[index].help};
    return HKT_OK;
}

void hkt_comm_prices(const struct hkt_comm *comm, double out_prices[HKT_PRICE_COUNT])
{
    memcpy(out_prices, comm->routes.prices.price, sizeof comm->routes.prices.price);
}

const char *hkt_comm_route(const struct hkt_comm *comm)
{
    return comm->routes.label;
}

int hkt_comm_is_tuned(const struct hkt_comm *comm)
{
    return hkt__comm_tuned(comm) != NULL;
}

const char *hkt_tune_path(void)
{
    const struct hkt__settings *settings;

    return hkt__settings_get(&settings) < 0 ? "" : hkt__settings_tune_path();
}

static enum hkt_status fill_rows(const struct hkt_comm *comm, const struct hkt_tuned *choices, int count,
                                 struct hkt__tune_table *table)
{
    if (count < 0 || count > HKT__TUNE_ROWS_MAX)
        return hkt__fail(HKT_ERR_INVALID, "hkt_tune_save: %d choices; a table holds %d", count, HKT__TUNE_ROWS_MAX);
    for (int i = 0; i < count; i++) {
        const struct hkt__algo *algo = choices[i].algo == NULL ? NULL : hkt__algo_find(choices[i].coll, choices[i].algo);

        if (algo == NULL)
            return hkt__error_context(HKT_ERR_INVALID, "hkt_tune_save: choice %d", i);
        table->rows[i] = (struct hkt__tune_row){
            .coll = (uint8_t)choices[i].coll, .in_place = choices[i].in_place != 0,
            .registered = choices[i].registered != 0 || comm->routes.all_user, .algo = (int32_t)(algo - hkt__algos),
            .nranks = comm->nranks, .bytes_from = choices[i].bytes_from, .bytes_to = choices[i].bytes_to,
            .measured_us = choices[i].measured_us};
    }
    table->nrows = count;
    return HKT_OK;
}

/** The folders above a file: made where they are missing. */
static void make_folders(const char *path)
{
    char folder[1024];

    snprintf(folder, sizeof folder, "%s", path);
    for (char *at = strchr(folder + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        (void)mkdir(folder, 0777); /* what fails here shows when the file is opened */
        *at = '/';
    }
}

static enum hkt_status replace_file(const char *path, const char *text)
{
    char aside[1100];
    FILE *file;

    make_folders(path);
    snprintf(aside, sizeof aside, "%s.%ld.tmp", path, (long)getpid());
    file = fopen(aside, "we");
    if (file == NULL)
        return hkt__fail_sys(HKT_ERR_SYSTEM, "cannot write %s", aside);
    bool ok = fputs(text, file) >= 0 && fputc('\n', file) >= 0 && fflush(file) == 0 && fsync(fileno(file)) == 0;

    ok &= fclose(file) == 0;
    if (ok && rename(aside, path) == 0)
        return HKT_OK;
    (void)hkt__fail_sys(HKT_ERR_SYSTEM, "cannot write %s", path);
    unlink(aside);
    return HKT_ERR_SYSTEM;
}

enum hkt_status hkt_tune_save(const struct hkt_comm *comm, const char *path, const double prices[HKT_PRICE_COUNT],
                              const struct hkt_tuned *choices, int count)
{
    struct hkt__tune_table *table;
    struct hkt__tune_key key;
    char *old = NULL, *text = NULL;
    enum hkt_status rc;

    if (comm == NULL || path == NULL || path[0] == '\0' || strlen(path) >= 1000 || prices == NULL ||
        (choices == NULL && count > 0))
        return hkt__fail(HKT_ERR_INVALID, "hkt_tune_save: needs a communicator, the path of a file of less than 1000 bytes, "
                         "prices, choices");
    hkt__job_tune_key(comm->job, &key);
    snprintf(key.transport, sizeof key.transport, "%s", comm->routes.label);
    table = hkt__calloc(1, sizeof *table);
    if (table == NULL)
        return hkt__fail(HKT_ERR_NOMEM, "no memory for a table of %d choices", count);
    memcpy(table->price, prices, sizeof table->price);
    rc = fill_rows(comm, choices, count, table);
    if (rc == HKT_OK)
        rc = read_file(path, &old);
    if (rc == HKT_OK)
        rc = hkt__tune_print(old, path, &key, table, &text);
    if (rc == HKT_OK && strlen(text) >= HKT__TUNE_FILE_MAX)
        rc = hkt__fail(HKT_ERR_INVALID, "%s would have more than %d bytes, which nobody reads: take old tables out, or another file",
                       path, HKT__TUNE_FILE_MAX);
    if (rc == HKT_OK)
        rc = replace_file(path, text);
    hkt__free(old);
    hkt__free(text);
    hkt__free(table);
    return rc;
}
