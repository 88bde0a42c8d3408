/* Units that come and go: parameters that ZeRO 3 gathers, gradients that stages 2 and 3 reduce and free. The rules are the engine's
 * (engine_comm.c): a use gathers its unit and the next ones; gradients are there from their first use to the end of their
 * reduction, of which two may be behind the computation where it has a stream. */
#include <string.h>

#include "parallel/alloc.h"
#include "parallel/fail.h"
#include "parallel/formulas_memory.h"

static double elems_of(const struct hkt__books *b, int kind, int unit)
{
    return kind == 0 ? b->o->units[unit].dense : b->o->units[unit].experts;
}

enum hkt_status hkt__books_init(struct hkt__books *b, const struct hkt_step_memory_opts *o)
{
    const struct hkt_layout *l = &o->step.layout;
    const size_t n = (size_t)o->step.shape.layers + 2;

    memset(b, 0, sizeof *b);
    b->o = o;
    b->nunits = (int)n;
    b->backward_first = o->step.stage == 0 && l->schedule != HKT_PIPE_ZB_H1 ? 0 : 1;
    b->has_stream = o->overlap && (l->dp > 1 || l->tp > 1 || l->pp > 1);
    b->unit[0] = hkt__parallel_calloc(HKT__BOOKS_KINDS * n, sizeof *b->unit[0]);
    b->uses = hkt__parallel_calloc(n, sizeof *b->uses);
    b->reducing = hkt__parallel_calloc(HKT__BOOKS_KINDS * n, sizeof *b->reducing);
    if (b->unit[0] == NULL || b->uses == NULL || b->reducing == NULL)
        return hkt__parallel_fail(HKT_ERR_NOMEM, "no memory for the books of %zu units", n);
    b->unit[1] = b->unit[0] + n;
    return HKT_OK;
}

void hkt__books_fini(struct hkt__books *b)
{
    hkt__parallel_free(b->unit[0]);
    hkt__parallel_free(b->uses);
    hkt__parallel_free(b->reducing);
}

/* ---- parameters ---- */

/* Whether the unit has elements here. */
static bool gather(struct hkt__books *b, int number)
{
    for (int kind = 0; kind < HKT__BOOKS_KINDS; kind++) {
        if (b->unit[kind][number].has_param || elems_of(b, kind, number) == 0)
            continue;
        hkt__take(&b->comm, elems_of(b, kind, number) * b->o->step.element_bytes);
        b->unit[kind][number].has_param = true;
    }
    return b->unit[0][number].has_param || b->unit[1][number].has_param;
}

static void gather_ahead(struct hkt__books *b, int number, bool is_backward)
{
    const int step = is_backward ? -1 : 1, first = is_backward ? b->backward_first : 0;
    int ahead = b->uses_all > 1 ? b->o->prefetch : 0;

    for (int u = number + step; ahead < b->o->prefetch && u >= first && u < b->nunits; u += step)
        ahead += gather(b, u);
}

static void free_params(struct hkt__books *b, int number)
{
    for (int kind = 0; kind < HKT__BOOKS_KINDS; kind++) {
        if (b->unit[kind][number].has_param)
            hkt__drop(&b->comm, elems_of(b, kind, number) * b->o->step.element_bytes);
        b->unit[kind][number].has_param = false;
    }
}

/* ---- gradients ---- */

static void reap(struct hkt__books *b)
{
    const int kind = b->reducing[0] / b->nunits, number = b->reducing[0] % b->nunits;
    struct hkt__books_unit *unit = &b->unit[kind][number];

    hkt__drop(&b->grad, elems_of(b, kind, number) * b->o->step.real_bytes);
    unit->has_grad = unit->is_reducing = false;
    memmove(b->reducing, b->reducing + 1, (size_t)--b->nreducing * sizeof *b->reducing);
}

static void use_grads(struct hkt__books *b, int kind, int number)
{
    struct hkt__books_unit *unit = &b->unit[kind][number];

    while (b->nreducing > 1 || unit->is_reducing)
        reap(b);
    if (unit->has_grad || elems_of(b, kind, number) == 0)
        return;
    hkt__take(&b->grad, elems_of(b, kind, number) * b->o->step.real_bytes);
    unit->has_grad = true;
}

static void reduce(struct hkt__books *b, int kind, int number)
{
    struct hkt__books_unit *unit = &b->unit[kind][number];

    use_grads(b, kind, number);
    if (elems_of(b, kind, number) == 0)
        return;
    unit->is_reducing = unit->was_reduced = true;
    b->reducing[b->nreducing++] = kind * b->nunits + number;
    if (!b->has_stream)
        reap(b);
}

/* ---- uses ---- */

void hkt__books_begin(struct hkt__books *b, int unit, unsigned use)
{
    const int zero = b->o->step.layout.zero;

    if ((use & HKT__BOOKS_PARAM) != 0 && zero == 3) {
        b->uses[unit]++;
        b->uses_all++;
        (void)gather(b, unit);
        gather_ahead(b, unit, (use & HKT__BOOKS_BACKWARD) != 0);
    }
    for (int kind = 0; kind < HKT__BOOKS_KINDS && (use & HKT__BOOKS_GRAD) != 0 && zero >= 2; kind++)
        use_grads(b, kind, unit);
}

void hkt__books_end(struct hkt__books *b, int unit, unsigned use)
{
    if ((use & HKT__BOOKS_PARAM) == 0 || b->o->step.layout.zero < 3)
        return;
    b->uses_all--;
    if (--b->uses[unit] == 0 && ((use & HKT__BOOKS_BACKWARD) != 0 || !b->o->step.keep_gathered))
        free_params(b, unit);
}

void hkt__books_final(struct hkt__books *b, int unit)
{
    for (int kind = 0; kind < HKT__BOOKS_KINDS && b->o->step.layout.zero >= 2; kind++)
        reduce(b, kind, unit);
}

void hkt__books_finish(struct hkt__books *b)
{
    for (int kind = 0; kind < HKT__BOOKS_KINDS && b->o->step.layout.zero >= 2; kind++)
        for (int u = b->nunits - 1; u >= 0; u--) {
            const struct hkt__books_unit *unit = &b->unit[kind][u];

            if (!unit->was_reduced || (unit->has_grad && !unit->is_reducing))
                reduce(b, kind, u);
        }
    while (b->nreducing > 0)
        reap(b);
    for (int u = 0; u < b->nunits && b->o->step.layout.zero == 3; u++)
        free_params(b, u);
}
