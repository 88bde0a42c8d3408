#include "mutants.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "core/mem.h"

/* A schedule taken apart, so that steps, arguments and dependencies can be put in and out. */
enum { STEPS_MAX = 512, ARGS_MAX = 16, DEPS_MAX = 64 };

struct loose_step {
    struct hkt__step s;
    struct hkt__arg args[ARGS_MAX];
    int32_t deps[DEPS_MAX];
};

struct loose {
    int nsteps;
    struct loose_step steps[STEPS_MAX];
};

static uint32_t draw(uint64_t *rng, int below)
{
    *rng = *rng * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407); /* Knuth's MMIX */
    return (uint32_t)((*rng >> 33) % (uint32_t)below);
}

static struct loose *take_apart(const struct hkt__sched *sched)
{
    struct loose *loose = hkt__calloc(1, sizeof *loose);

    assert(loose != NULL && sched->nsteps < STEPS_MAX);
    loose->nsteps = sched->nsteps;
    for (int i = 0; i < sched->nsteps; i++) {
        struct loose_step *to = &loose->steps[i];
        const struct hkt__step *s = &sched->steps[i];

        assert(s->arg_count <= ARGS_MAX && s->dep_count <= DEPS_MAX);
        to->s = *s;
        for (int k = 0; k < s->arg_count; k++)
            to->args[k] = sched->args[s->arg_first + k];
        for (int k = 0; k < s->dep_count; k++)
            to->deps[k] = sched->deps[s->dep_first + k];
    }
    return loose;
}

/* Takes `loose`. */
static struct hkt__sched *put_together(struct loose *loose, const struct hkt__sched *like)
{
    struct hkt__sched *sched = hkt__calloc(1, sizeof *sched);

    assert(sched != NULL);
    *sched = *like;
    sched->nsteps = loose->nsteps;
    sched->nargs = sched->ndeps = 0;
    sched->steps = hkt__calloc(STEPS_MAX, sizeof *sched->steps);
    sched->args = hkt__calloc((size_t)loose->nsteps * ARGS_MAX, sizeof *sched->args);
    sched->deps = hkt__calloc((size_t)loose->nsteps * DEPS_MAX, sizeof *sched->deps);
    assert(sched->steps != NULL && sched->args != NULL && sched->deps != NULL);
    for (int i = 0; i < loose->nsteps; i++) {
        struct hkt__step *s = &sched->steps[i];

        *s = loose->steps[i].s;
        s->arg_first = sched->nargs;
        s->dep_first = sched->ndeps;
        memcpy(&sched->args[sched->nargs], loose->steps[i].args, (size_t)s->arg_count * sizeof *sched->args);
        memcpy(&sched->deps[sched->ndeps], loose->steps[i].deps, (size_t)s->dep_count * sizeof *sched->deps);
        sched->nargs += s->arg_count;
        sched->ndeps += s->dep_count;
    }
    hkt__free(loose);
    return sched;
}

static void drop_dep_at(struct loose_step *step, int k)
{
    memmove(&step->deps[k], &step->deps[k + 1], (size_t)(step->s.dep_count - k - 1) * sizeof *step->deps);
    step->s.dep_count--;
}

static void add_dep(struct loose_step *step, int32_t dep)
{
    for (int k = 0; k < step->s.dep_count; k++)
        if (step->deps[k] == dep)
            return;
    assert(step->s.dep_count < DEPS_MAX);
    step->deps[step->s.dep_count++] = dep;
}

/* Every mention of step i becomes one of place[i]; dependencies that would not be earlier any more are dropped. The
 * steps themselves lie at their new places already. */
static void renumber(struct loose *loose, const int32_t *place)
{
    for (int i = 0; i < loose->nsteps; i++) {
        struct loose_step *step = &loose->steps[i];

        for (int k = step->s.dep_count - 1; k >= 0; k--) {
            step->deps[k] = place[step->deps[k]];
            if (step->deps[k] >= i)
                drop_dep_at(step, k);
        }
        if (step->s.fused >= 0)
            step->s.fused = place[step->s.fused];
    }
}

static void unfuse(struct loose *loose, int step)
{
    if (loose->steps[step].s.fused < 0)
        return;
    loose->steps[loose->steps[step].s.fused].s.fused = -1;
    loose->steps[step].s.fused = -1;
}

/* --- choosing --- */

typedef bool suits_fn(const struct hkt__step *s);

/* A random step that suits; -1 when there is none. */
static int choose(const struct hkt__sched *sched, uint64_t *rng, suits_fn *suits)
{
    int count = 0;

    for (int i = 0; i < sched->nsteps; i++)
        count += suits(&sched->steps[i]);
    if (count == 0)
        return -1;
    int nth = (int)draw(rng, count), found = 0;

    while (!suits(&sched->steps[found]) || nth-- > 0)
        found++;
    return found;
}

static bool is_any(const struct hkt__step *s)
{
    return s->kind < HKT__STEP_KIND_COUNT;
}

static bool has_peer(const struct hkt__step *s)
{
    return s->peer >= 0;
}

static bool has_deps(const struct hkt__step *s)
{
    return s->dep_count > 0;
}

static bool is_recv_reduce(const struct hkt__step *s)
{
    return s->kind == HKT__RECV_REDUCE;
}

static bool is_reduce(const struct hkt__step *s)
{
    return s->kind == HKT__REDUCE && s->arg_count > 1;
}

static void note(struct mutant_site *site, const struct hkt__sched *sched, int step, const char *what)
{
    site->rank = sched->rank;
    site->step = step;
    site->other = -1;
    snprintf(site->what, sizeof site->what, "rank %d step %d (%s): %s", (int)sched->rank, step,
             hkt__step_kind_name(sched->steps[step].kind), what);
}

/* --- mutators --- */

/* What depended on the step now depends on what it depended on: only its effect is missing, not its order. */
static struct hkt__sched *drop_step(const struct hkt__sched *sched, uint64_t *rng, struct mutant_site *site)
{
    const int at = choose(sched, rng, is_any);
    int32_t place[STEPS_MAX];

    if (at < 0)
        return NULL;
    struct loose *loose = take_apart(sched);
    const struct loose_step gone = loose->steps[at];

    note(site, sched, at, "dropped");
    unfuse(loose, at);
    for (int i = at + 1; i < loose->nsteps; i++)
        for (int k = loose->steps[i].s.dep_count - 1; k >= 0; k--)
            if (loose->steps[i].deps[k] == at) {
                drop_dep_at(&loose->steps[i], k);
                for (int m = 0; m < gone.s.dep_count; m++)
                    add_dep(&loose->steps[i], gone.deps[m]);
                break;
            }
    memmove(&loose->steps[at], &loose->steps[at + 1], (size_t)(loose->nsteps - at - 1) * sizeof *loose->steps);
    loose->nsteps--;
    for (int i = 0; i < STEPS_MAX; i++)
        place[i] = i > at ? i - 1 : i;
    renumber(loose, place);
    return put_together(loose, sched);
}

/* Once more, right behind; everything later still depends on the first. */
static struct hkt__sched *duplicate_step(const struct hkt__sched *sched, uint64_t *rng, struct mutant_site *site)
{
    const int at = choose(sched, rng, is_any);
    int32_t place[STEPS_MAX];

    if (at < 0)
        return NULL;
    struct loose *loose = take_apart(sched);

    note(site, sched, at, "duplicated");
    memmove(&loose->steps[at + 1], &loose->steps[at], (size_t)(loose->nsteps - at) * sizeof *loose->steps);
    loose->nsteps++;
    for (int i = 0; i < STEPS_MAX; i++)
        place[i] = i > at ? i + 1 : i;
    loose->steps[at + 1].s.fused = -1;
    renumber(loose, place);
    return put_together(loose, sched);
}

static struct hkt__sched *retarget(const struct hkt__sched *sched, uint64_t *rng, struct mutant_site *site)
{
    const int at = choose(sched, rng, has_peer);

    if (at < 0 || sched->nranks < 3)
        return NULL;
    struct loose *loose = take_apart(sched);
    int32_t *peer = &loose->steps[at].s.peer;

    do
        *peer = (int32_t)draw(rng, sched->nranks);
    while (*peer == sched->rank || *peer == sched->steps[at].peer);
    note(site, sched, at, "another peer");
    return put_together(loose, sched);
}

static int side(const struct hkt__step *s)
{
    return s->peer < 0 ? 0 : s->kind == HKT__SEND || s->kind == HKT__SIGNAL ? 1 : 2;
}

/* The next step of the same queue; -1: none. */
static int next_of(const struct hkt__sched *sched, int at)
{
    const struct hkt__step *a = &sched->steps[at];

    for (int i = at + 1; i < sched->nsteps; i++) {
        const struct hkt__step *b = &sched->steps[i];

        if (side(a) == side(b) && a->lane == b->lane && a->peer == b->peer)
            return i;
    }
    return -1;
}

static bool depends(const struct loose_step *step, int32_t on)
{
    for (int k = 0; k < step->s.dep_count; k++)
        if (step->deps[k] == on)
            return true;
    return false;
}

/* Move a behind b: possible unless something between depends on a. A dependency of b on a is lost. */
static bool move_behind(struct loose *loose, int a, int b)
{
    int32_t place[STEPS_MAX];

    for (int i = a + 1; i < b; i++)
        if (depends(&loose->steps[i], a))
            return false;
    const struct loose_step moved = loose->steps[a];

    memmove(&loose->steps[a], &loose->steps[a + 1], (size_t)(b - a) * sizeof *loose->steps);
    loose->steps[b] = moved;
    for (int i = 0; i < STEPS_MAX; i++)
        place[i] = i == a ? b : i > a && i <= b ? i - 1 : i;
    renumber(loose, place);
    return true;
}

/* Move b before a: possible unless b depends on something between. */
static bool move_before(struct loose *loose, int a, int b)
{
    int32_t place[STEPS_MAX];

    for (int i = a + 1; i < b; i++)
        if (depends(&loose->steps[b], i))
            return false;
    const struct loose_step moved = loose->steps[b];

    memmove(&loose->steps[a + 1], &loose->steps[a], (size_t)(b - a) * sizeof *loose->steps);
    loose->steps[a] = moved;
    for (int i = 0; i < STEPS_MAX; i++)
        place[i] = i == b ? a : i >= a && i < b ? i + 1 : i;
    renumber(loose, place);
    return true;
}

static struct hkt__sched *swap_steps(const struct hkt__sched *sched, uint64_t *rng, struct mutant_site *site)
{
    for (int attempt = 0; attempt < 20; attempt++) {
        const int a = choose(sched, rng, is_any), b = a < 0 ? -1 : next_of(sched, a);

        if (b < 0)
            continue;
        struct loose *loose = take_apart(sched);

        if (move_behind(loose, a, b) || move_before(loose, a, b)) {
            note(site, sched, a, "swapped with the next of its queue");
            site->other = b;
            return put_together(loose, sched);
        }
        hkt__free(loose);
    }
    return NULL;
}

/* Shift an operand by one chunk, within its buffer. */
static bool shift(const struct hkt__sched *sched, struct hkt__operand *x)
{
    if (x->count == 0)
        return false;
    if (x->buf != HKT__SCRATCH) {
        if (x->count == x->at.modulus && x->count == 1)
            return false;
        x->at.start = (x->at.start + 1) % x->at.modulus;
        x->like = x->at;
        return true;
    }
    const int32_t places = sched->scratch_chunks - x->count + 1;

    if (places < 2)
        return false;
    x->at.start = (x->at.start + 1) % places;
    x->at.modulus = x->at.start + x->count;
    return true;
}

static struct hkt__sched *change_chunk(const struct hkt__sched *sched, uint64_t *rng, struct mutant_site *site)
{
    for (int attempt = 0; attempt < 20; attempt++) {
        const int at = choose(sched, rng, is_any);

        if (at < 0)
            return NULL;
        struct loose *loose = take_apart(sched);
        struct loose_step *step = &loose->steps[at];
        const int which = (int)draw(rng, step->s.arg_count + 1) - 1; /* -1: dst */

        if (shift(sched, which < 0 ? &step->s.dst : &step->args[which].x)) {
            note(site, sched, at, which < 0 ? "another chunk as result" : "another chunk as argument");
            return put_together(loose, sched);
        }
        hkt__free(loose);
    }
    return NULL;
}

static struct hkt__sched *receive_only(const struct hkt__sched *sched, uint64_t *rng, struct mutant_site *site)
{
    const int at = choose(sched, rng, is_recv_reduce);

    if (at < 0)
        return NULL;
    struct loose *loose = take_apart(sched);

    loose->steps[at].s.kind = HKT__RECV;
    loose->steps[at].s.arg_count = 0;
    note(site, sched, at, "received without reducing");
    return put_together(loose, sched);
}

static struct hkt__sched *copy_only(const struct hkt__sched *sched, uint64_t *rng, struct mutant_site *site)
{
    const int at = choose(sched, rng, is_reduce);

    if (at < 0)
        return NULL;
    struct loose *loose = take_apart(sched);

    loose->steps[at].s.arg_count = 1;
    note(site, sched, at, "copied instead of reduced");
    return put_together(loose, sched);
}

static struct hkt__sched *drop_argument(const struct hkt__sched *sched, uint64_t *rng, struct mutant_site *site)
{
    const int at = choose(sched, rng, is_reduce);

    if (at < 0)
        return NULL;
    struct loose *loose = take_apart(sched);
    struct loose_step *step = &loose->steps[at];
    const int which = (int)draw(rng, step->s.arg_count);

    memmove(&step->args[which], &step->args[which + 1], (size_t)(step->s.arg_count - which - 1) * sizeof *step->args);
    step->s.arg_count--;
    note(site, sched, at, "an argument dropped");
    return put_together(loose, sched);
}

static struct hkt__sched *swap_arguments(const struct hkt__sched *sched, uint64_t *rng, struct mutant_site *site)
{
    const int at = choose(sched, rng, is_reduce);

    if (at < 0)
        return NULL;
    struct loose *loose = take_apart(sched);
    struct loose_step *step = &loose->steps[at];
    const int which = (int)draw(rng, step->s.arg_count - 1);
    const struct hkt__arg arg = step->args[which];

    step->args[which] = step->args[which + 1];
    step->args[which + 1] = arg;
    note(site, sched, at, "two arguments swapped");
    site->other = which;
    return put_together(loose, sched);
}

static struct hkt__sched *drop_dependency(const struct hkt__sched *sched, uint64_t *rng, struct mutant_site *site)
{
    const int at = choose(sched, rng, has_deps);

    if (at < 0)
        return NULL;
    struct loose *loose = take_apart(sched);
    const int which = (int)draw(rng, loose->steps[at].s.dep_count);

    note(site, sched, at, "a dependency dropped");
    site->other = loose->steps[at].deps[which];
    drop_dep_at(&loose->steps[at], which);
    return put_together(loose, sched);
}

const struct mutator mutators[] = {
    { "drop a step", drop_step },
    { "duplicate a step", duplicate_step },
    { "retarget a peer", retarget },
    { "swap two steps", swap_steps },
    { "change a chunk", change_chunk },
    { "receive, not reduce", receive_only },
    { "copy, not reduce", copy_only },
    { "drop an argument", drop_argument },
    { "swap two arguments", swap_arguments },
    { "drop a dependency", drop_dependency },
};
const int mutator_count = sizeof mutators / sizeof *mutators;
