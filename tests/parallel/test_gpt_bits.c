/* What could break: what must not change a single bit does: the schedule, recompute, the way tokens reach experts, a second
 * run, parameters that are there only while they are used (as ZeRO 3 has them), gradients taken out after every micro-batch.
 * And what crosses ranks: more collectives than the formulas say, or fewer, or of another kind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "gpt_rig.h"

static struct rig_result *first, *second;

static void schedules_and_recompute(void **state)
{
    (void)state;
    for (int sp = 0; sp <= 1; sp++) {
        struct rig_case run = { .layout = "tp:2 pp:2", .config = tiny_modern(), .schedule = HKT_PIPE_GPIPE, .micros = 3 };

        run.config.sequence_parallel = sp;
        run.config.dropout = run.config.attention_dropout = 0.1;
        rig_run(&run, 4, first);
        for (int kind = HKT_PIPE_GPIPE; kind < HKT_PIPE_KIND_COUNT; kind++)
            for (int recompute = 0; recompute <= HKT_RECOMPUTE_FULL; recompute++) {
                run.schedule = (enum hkt_pipe_kind)kind;
                run.config.chunks = kind == HKT_PIPE_INTERLEAVED ? 2 : 1;
                run.config.recompute = (enum hkt_recompute)recompute;
                run.config.overlap = (kind + recompute) % 2;
                if (ranks_small() && (kind + recompute + sp) % 3 != 0)
                    continue;
                rig_run(&run, 4, second);
                rig_compare(hkt_pipe_kind_name(run.schedule), second, first, 0);
            }
    }
}

/* Messages on a stream while stages compute. */
static void messages_on_a_stream(void **state)
{
    (void)state;
    for (int kind = HKT_PIPE_GPIPE; kind < HKT_PIPE_KIND_COUNT; kind++) {
        struct rig_case run = { .layout = "pp:4",
                                .config = tiny(),
                                .schedule = (enum hkt_pipe_kind)kind,
                                .micros = 6,
                                .steps = 2 };

        if (kind == HKT_PIPE_INTERLEAVED) {
            run.layout = "pp:2 dp:2";
            run.config.chunks = 2;
        }
        rig_run(&run, 4, first);
        run.config.overlap = 1;
        rig_run(&run, 4, second);
        rig_compare(hkt_pipe_kind_name(run.schedule), second, first, 0);
    }
}

static void experts_by_all_gather(void **state)
{
    struct rig_case run = { .layout = "dp:4=ep:2*edp:2", .config = tiny_experts(), .schedule = HKT_PIPE_1F1B, .micros = 2 };

    (void)state;
    for (int recompute = 0; recompute <= HKT_RECOMPUTE_FULL; recompute++) {
        run.config.recompute = (enum hkt_recompute)recompute;
        run.config.dispatch = HKT__MOE_ALL_TO_ALL;
        rig_run(&run, 4, first);
        run.config.dispatch = HKT__MOE_ALL_GATHER;
        rig_run(&run, 4, second);
        rig_compare("all-gather", second, first, 0);
    }
}

static void gradients_of_each_micro_batch(void **state)
{
    static const char *const layouts[] = { "tp:4", "tp:2 pp:2" };

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct rig_case run = { .layout = layouts[i / 2], .config = tiny(), .schedule = HKT_PIPE_ZB_H1, .micros = 3 };

        run.config.sequence_parallel = i % 2;
        rig_run(&run, 4, first);
        run.reduces_every = 1;
        rig_run(&run, 4, second);
        rig_compare("every micro-batch", second, first, 1e-13);
    }
}

/* ---- parameters that come and go ---- */

struct visits {
    struct rig *rig;
    int bound[8];
    int reported[8];
};

static void bind(struct visits *visits, int unit, int is_there)
{
    struct hkt__gpt *gpt = visits->rig->gpt;

    for (int f = 0; f < HKT__FLAT_COUNT; f++) {
        const size_t at = (size_t)hkt__gpt_unit_range(gpt, unit, f).first * sizeof(double);

        hkt__gpt_bind_unit(gpt, unit, f, is_there ? (char *)visits->rig->param[f] + at : NULL,
                           (char *)visits->rig->grad[f] + at);
    }
}

static enum hkt_status use(void *arg, int unit, enum hkt__gpt_use what)
{
    struct visits *visits = arg;

    if (visits->bound[unit]++ == 0 && what != HKT__GPT_WEIGHT)
        bind(visits, unit, 1);
    return HKT_OK;
}

static enum hkt_status done(void *arg, int unit, enum hkt__gpt_use what)
{
    struct visits *visits = arg;

    (void)what;
    if (--visits->bound[unit] == 0)
        bind(visits, unit, 0);
    return visits->bound[unit] < 0 ? HKT_ERR_BUG : HKT_OK;
}

static enum hkt_status grad(void *arg, int unit, int micro, int is_last)
{
    struct visits *visits = arg;

    (void)micro;
    visits->reported[unit] += is_last ? 100 : 1;
    return HKT_OK;
}

static void units_come_and_go(void **state)
{
    static const enum hkt_pipe_kind kinds[] = { HKT_PIPE_GPIPE, HKT_PIPE_ZB_H1 };

    (void)state;
    for (int i = 0; i < 6; i++) {
        struct rig_case run = { .config = tiny(), .schedule = kinds[i % 2], .micros = 3 };
        struct rig_data *data = calloc(1, sizeof *data);
        struct rig rig = { 0 };
        struct visits visits = { .rig = &rig };
        struct hkt_pipe *pipe = NULL;
        struct hkt__gpt_result result;
        const struct hkt_pipe_opts opts = { .kind = run.schedule, .stages = 1, .micros = 3 };
        const struct hkt__gpt_hooks hooks = { &visits, use, done, grad };

        assert_non_null(data);
        run.config.recompute = (enum hkt_recompute)(i / 2);
        rig_run(&run, 1, first);
        assert_int_equal(hkt_mesh_create("tp:1", 1, &rig.mesh), HKT_OK);
        hkt__memory_init(&rig.memory, 0);
        assert_int_equal(hkt__gpt_create(&run.config, rig.mesh, 0, &rig.memory, &rig.gpt), HKT_OK);
        assert_int_equal(rig_bind(&rig), HKT_OK);
        rig_disturb(&rig);
        rig_data(&run, 0, data);
        assert_int_equal(hkt_pipe_create(&opts, &pipe), HKT_OK);
        for (int unit = 0; unit < hkt__gpt_units(rig.gpt); unit++)
            bind(&visits, unit, 0);
        const struct hkt__gpt_step step = { .pipe = pipe, .micros = data->micros, .scale = 1, .hooks = &hooks };

        assert_int_equal(hkt__gpt_forward_backward(rig.gpt, &step, &result), HKT_OK);
        for (int unit = 0; unit < hkt__gpt_units(rig.gpt); unit++) {
            assert_int_equal(visits.bound[unit], 0);
            assert_int_equal(visits.reported[unit], 102);
        }
        rig_collect(&rig, second->grad, 0);
        for (int64_t e = 0; e < first->elems; e++)
            assert_true(first->grad[e] == second->grad[e]);
        hkt_pipe_destroy(pipe);
        hkt__gpt_destroy(rig.gpt);
        for (int f = 0; f < HKT__FLAT_COUNT; f++) {
            hkt__memory_free(&rig.memory, rig.param[f]);
            hkt__memory_free(&rig.memory, rig.grad[f]);
        }
        assert_int_equal(hkt__memory_fini(&rig.memory), HKT_OK);
        hkt_mesh_destroy(rig.mesh);
        free(data);
    }
}

/* ---- what crosses ranks ---- */

enum { LAYERS = 4, MICROS = 3, REAL = sizeof(double) };

static void expect(const char *what, uint64_t got, int64_t want)
{
    if (got != (uint64_t)want)
        fail_msg("%s: %llu, expected %lld", what, (unsigned long long)got, (long long)want);
}

/* Two all-reduces forward and two backward in a layer; besides, one for the embedding, one for the gradient of the head's
 * input, and three numbers a token for the softmax. */
static void tensor_parallel_traffic(void **state)
{
    struct rig_case run = { .layout = "tp:2", .config = tiny_modern(), .schedule = HKT_PIPE_GPIPE, .micros = MICROS };
    const int64_t rows = run.config.seq * run.config.micro_batch, message = rows * run.config.shape.hidden * REAL;
    const struct hkt__traffic *traffic = &first->rank[1].traffic;

    (void)state;
    rig_run(&run, 2, first);
    expect("all-reduces", traffic->calls[HKT__TRAFFIC_TP][HKT_ALL_REDUCE], MICROS * (4 * LAYERS + 2 + 2));
    expect("bytes", traffic->bytes[HKT__TRAFFIC_TP][HKT_ALL_REDUCE],
           MICROS * ((4 * LAYERS + 2) * message + 3 * rows * REAL));
    assert_true(hkt__traffic_wire(traffic, HKT__TRAFFIC_TP, 2)
                == MICROS * (LAYERS * hkt_tp_layer_bytes((double)message, 2, 4)
                             + hkt_wire_all_reduce((double)(2 * message + 3 * rows * REAL), 2)));
    run.config.recompute = HKT_RECOMPUTE_FULL; /* attention's once more; the MLP's result is not needed */
    rig_run(&run, 2, first);
    expect("all-reduces", traffic->calls[HKT__TRAFFIC_TP][HKT_ALL_REDUCE], MICROS * (5 * LAYERS + 2 + 2));
}

/* A gather and a scatter in the place of each: the same bytes. Norms are added up once a step, not once a micro-batch. */
static void sequence_parallel_traffic(void **state)
{
    struct rig_case run = { .layout = "tp:2", .config = tiny(), .schedule = HKT_PIPE_GPIPE, .micros = MICROS };
    const int64_t rows = run.config.seq * run.config.micro_batch, hidden = run.config.shape.hidden;
    const int64_t message = rows * hidden * REAL;
    const struct hkt__traffic *traffic = &first->rank[0].traffic;

    (void)state;
    run.config.sequence_parallel = 1;
    rig_run(&run, 2, first);
    for (int i = 0; i < HKT_COLL_COUNT; i++)
        expect("tp", traffic->calls[HKT__TRAFFIC_TP][i], 0);
    expect("all-gathers", traffic->calls[HKT__TRAFFIC_SP][HKT_ALL_GATHER], MICROS * (4 * LAYERS + 2));
    expect("gathered", traffic->bytes[HKT__TRAFFIC_SP][HKT_ALL_GATHER], MICROS * (4 * LAYERS + 2) * message);
    expect("reduce-scatters", traffic->calls[HKT__TRAFFIC_SP][HKT_REDUCE_SCATTER], MICROS * (4 * LAYERS + 2));
    expect("scattered", traffic->bytes[HKT__TRAFFIC_SP][HKT_REDUCE_SCATTER], MICROS * (4 * LAYERS + 2) * message);
    expect("all-reduces", traffic->calls[HKT__TRAFFIC_SP][HKT_ALL_REDUCE], MICROS * 2 + LAYERS + 2);
    expect("reduced", traffic->bytes[HKT__TRAFFIC_SP][HKT_ALL_REDUCE],
           MICROS * 3 * rows * REAL + (LAYERS * 6 + 2 + run.config.shape.positions) * hidden * REAL);
}

/* Each boundary, each way, one message per micro-batch: cut by tp when rows are. A tied embedding's gradient once. */
static void pipeline_traffic(void **state)
{
    (void)state;
    for (int sp = 0; sp <= 1; sp++)
        for (int chunks = 1; chunks <= 2; chunks++) {
            struct rig_case run = { .layout = "tp:2 pp:2", .config = tiny(), .micros = MICROS };
            const int64_t rows = run.config.seq * run.config.micro_batch, hidden = run.config.shape.hidden;
            const double message = hkt_pp_message_bytes((double)(rows * hidden * REAL), 2, sp);

            run.config.sequence_parallel = sp;
            run.config.chunks = chunks;
            run.schedule = chunks == 1 ? HKT_PIPE_1F1B : HKT_PIPE_INTERLEAVED;
            rig_run(&run, 4, first);
            for (int rank = 0; rank < 4; rank++) {
                /* Stage 0 sends activations of each of its chunks, and gradients of all but the first. */
                const int sends = MICROS * (2 * chunks - 1);
                const int64_t words = rank % 2 == 0 ? 51 : 50;

                expect("messages", first->rank[rank].traffic.calls[HKT__TRAFFIC_PP][HKT_SEND_RECV], sends + 1);
                expect("bytes", first->rank[rank].traffic.bytes[HKT__TRAFFIC_PP][HKT_SEND_RECV],
                       (int64_t)(sends * message) + words * hidden * REAL);
            }
        }
}

/* There and back, forward and backward, every pair that was kept. */
static void expert_traffic(void **state)
{
    struct rig_case run = { .layout = "dp:2=ep:2*edp:1", .config = tiny_experts(), .micros = MICROS };
    int64_t kept = 0, bytes = 0, calls = 0;

    (void)state;
    run.schedule = HKT_PIPE_GPIPE;
    rig_run(&run, 2, first);
    for (int rank = 0; rank < 2; rank++) {
        const struct rig_rank *r = &first->rank[rank];

        kept += r->routed - r->dropped;
        bytes += (int64_t)r->traffic.bytes[HKT__TRAFFIC_EP][HKT_ALL_TO_ALL_V];
        calls += (int64_t)r->traffic.calls[HKT__TRAFFIC_EP][HKT_ALL_TO_ALL_V];
    }
    const int64_t routings = 2 * MICROS * (LAYERS - 1); /* the first layer is dense */

    expect("calls", (uint64_t)calls, routings * 5);
    expect("bytes", (uint64_t)bytes,
           4 * kept * run.config.shape.hidden * REAL + routings * run.config.shape.experts * (int64_t)sizeof(int64_t));
}

/* The other way to the experts, by the formula of a step. */
static void gathered_expert_traffic(void **state)
{
    struct rig_case run = { .layout = "dp:2=ep:2*edp:1", .config = tiny_experts(), .micros = MICROS, .schedule = HKT_PIPE_GPIPE };
    const int64_t batch = run.config.micro_batch;
    struct hkt_coll_bytes want = { 0 };
    double gathered = 0, counts = 0;

    (void)state;
    for (int recompute = 0; recompute <= HKT_RECOMPUTE_FULL; recompute += HKT_RECOMPUTE_FULL) {
        run.config.dispatch = HKT__MOE_ALL_GATHER;
        run.config.recompute = (enum hkt_recompute)recompute;
        rig_run(&run, 2, first);
        for (int rank = 0; rank < 2; rank++) {
            const struct rig_rank *r = &first->rank[rank];
            const struct hkt_step_opts opts = {
                .shape = run.config.shape, .layout = { .nranks = 2, .dp = 2, .ep = 2, .global_batch = 2 * MICROS * batch,
                                                       .micro_batch = batch, .seq = run.config.seq, .schedule = run.schedule },
                .recompute = run.config.recompute, .gathers_pairs = 1, .element_bytes = REAL, .real_bytes = REAL,
                .layers = LAYERS, .expert_layers = LAYERS - 1, .pairs = (double)(r->routed - r->dropped),
            };
            struct hkt_step_bytes bytes;

            assert_int_equal(hkt_count_step(&opts, &bytes), HKT_OK);
            want.all_gather += bytes.ep.all_gather;
            want.all_to_all += bytes.ep.all_to_all;
            gathered += (double)(r->traffic.bytes[HKT__TRAFFIC_EP][HKT_ALL_GATHER] + r->traffic.bytes[HKT__TRAFFIC_EP][HKT_ALL_GATHER_V]);
            counts += (double)r->traffic.bytes[HKT__TRAFFIC_EP][HKT_ALL_TO_ALL_V];
        }
        assert_true(gathered == want.all_gather && gathered > 0);
        assert_true(counts == want.all_to_all && counts > 0);
    }
}

/* What stages hold: 1F1B as many micro-batches as there are stages to come, GPipe all. */
static void memory_of_schedules(void **state)
{
    uint64_t peak[2][2];

    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (int more = 0; more < 2; more++) {
            struct rig_case run = { .layout = "pp:2",
                                    .config = tiny(),
                                    .schedule = kind == 0 ? HKT_PIPE_GPIPE : HKT_PIPE_1F1B,
                                    .micros = more ? 8 : 4 };

            rig_run(&run, 2, first);
            peak[kind][more] = first->rank[0].peak;
        }
    assert_int_equal(peak[1][0], peak[1][1]);
    assert_true(peak[0][1] > peak[0][0] * 17 / 10);
}

static int setup(void **state)
{
    (void)state;
    first = rig_alloc();
    second = rig_alloc();
    return first == NULL || second == NULL;
}

static int teardown(void **state)
{
    (void)state;
    rig_free(first);
    rig_free(second);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_and_recompute),
        cmocka_unit_test(messages_on_a_stream),
        cmocka_unit_test(experts_by_all_gather),
        cmocka_unit_test(gradients_of_each_micro_batch),
        cmocka_unit_test(units_come_and_go),
        cmocka_unit_test(tensor_parallel_traffic),
        cmocka_unit_test(sequence_parallel_traffic),
        cmocka_unit_test(pipeline_traffic),
        cmocka_unit_test(expert_traffic),
        cmocka_unit_test(gathered_expert_traffic),
        cmocka_unit_test(memory_of_schedules),
    };

    return cmocka_run_group_tests_name("gpt_bits", tests, setup, teardown);
}
