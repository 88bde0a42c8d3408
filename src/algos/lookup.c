/* Finding a row and building from it. */
#include <stdio.h>
#include <string.h>

#include "algos/levels.h"
#include "algos/registry.h"
#include "core/error.h"

/* The names of a collective's rows, separated by commas. */
static void list_names(enum hkt_coll coll, char *out_text, size_t bytes)
{
    size_t used = 0;

    out_text[0] = '\0';
    for (int i = 0; i < hkt__algo_count && used < bytes; i++) {
        if (hkt__algos[i].info.coll != coll)
            continue;
        const char *name = hkt__algos[i].info.name;
        const int wrote = snprintf(out_text + used, bytes - used, "%s%s", used > 0 ? ", " : "", name);

        used += wrote > 0 ? (size_t)wrote : 0;
    }
}

/* "bruck:2" is "bruck". */
static bool is_called(const struct hkt__algo *algo, const char *name)
{
    const size_t bytes = strlen(algo->info.name);

    return strncmp(name, algo->info.name, bytes) == 0
           && (name[bytes] == '\0' || (algo->radix == 2 && strcmp(name + bytes, ":2") == 0));
}

const struct hkt__algo *hkt__algo_find(enum hkt_coll coll, const char *name)
{
    char names[512];

    for (int i = 0; i < hkt__algo_count; i++)
        if (hkt__algos[i].info.coll == coll && name != NULL && is_called(&hkt__algos[i], name))
            return &hkt__algos[i];
    list_names(coll, names, sizeof names);
    if (names[0] == '\0')
        hkt__fail(HKT_ERR_INVALID, "%s has no algorithms", hkt_coll_name(coll));
    else
        hkt__fail(HKT_ERR_INVALID, "%s has no algorithm \"%s\"; there are: %s", hkt_coll_name(coll),
                  name != NULL ? name : "(null)", names);
    return NULL;
}

/* One rank owes nobody anything: the result is its input. */
static void build_alone(struct hkt__builder *b)
{
    if (b->coll != HKT_BARRIER)
        hkt__copy(b, 0, hkt__out_all(b), hkt__in_all(b));
}

enum hkt_status hkt__algo_build_case(const struct hkt__algo *algo, const struct hkt__algo_case *c,
                                     struct hkt__sched **out_sched)
{
    const struct hkt__build_args args = { algo->info.coll, algo->info.name, c->nranks,        c->rank,
                                          c->root,         c->in_place,     algo->user_direct };
    const char *why = algo->restriction != NULL ? algo->restriction(c->nranks, c->in_place) : "";
    struct hkt__builder b;
    enum hkt_status rc;

    if (why[0] != '\0')
        return hkt__fail(HKT_ERR_UNSUPPORTED, "%s %s on %d ranks%s: %s", hkt_coll_name(algo->info.coll),
                         algo->info.name, c->nranks, c->in_place ? ", in place" : "", why);
    rc = c->levels != NULL ? hkt__levels_check(c->levels, c->nranks) : HKT_OK;
    if (rc < 0)
        return rc;
    rc = hkt__builder_init(&b, &args);
    b.levels = c->levels;
    b.radix = algo->radix > 0 ? algo->radix : b.radix;
    if (rc == HKT_OK && c->nranks == 1)
        build_alone(&b);
    else if (rc == HKT_OK)
        algo->build(&b);
    return hkt__builder_finish(&b, out_sched);
}

enum hkt_status hkt__algo_build(const struct hkt__algo *algo, int nranks, int rank, int root, bool in_place,
                                struct hkt__sched **out_sched)
{
    return hkt__algo_build_case(algo, &(struct hkt__algo_case){ nranks, rank, root, in_place, NULL }, out_sched);
}
