// Gloo under benchmarks/peers/run: TCP on loopback, its only transport for host memory. Ranks find each other in
// files of the benchmark's directory; rank and size come from the environment of `hocket run`. Options objects are
// made once per turn and used again, as Gloo's own benchmark does. Where there are two ways, a few calls before each
// turn find the faster: all_reduce by ring or bcube; reduce_scatter by its own class or as an all_reduce of which
// each rank keeps its block (as PyTorch does). Both ways work in place.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bench_loop.h"

namespace
{

using Options = gloo::AllreduceOptions;

// One ready-made operation; the members that the collective does not need stay empty.
struct Bench {
    std::shared_ptr<gloo::rendezvous::Context> context;
    std::unique_ptr<gloo::AllreduceOptions> all_reduce;
    std::unique_ptr<gloo::ReduceScatterHalvingDoubling<float>> reduce_scatter; // empty: by all_reduce
    std::unique_ptr<gloo::AllgatherOptions> all_gather;
    std::unique_ptr<gloo::BroadcastOptions> broadcast;
    std::unique_ptr<gloo::AlltoallOptions> all_to_all;
    std::unique_ptr<gloo::BarrierOptions> barrier;
};

void sum(void *out, const void *a, const void *b, size_t count)
{
    gloo::sum<float>(static_cast<float *>(out), static_cast<const float *>(a), static_cast<const float *>(b), count);
}

// The mean of eight calls after one, in microseconds (the mean: some calls wait 40 ms for an acknowledgement of TCP);
// the greatest of these over the ranks, so that all ranks decide alike.
float try_out(const Bench &bench, const std::function<void()> &call)
{
    call();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 8; i++)
        call();
    float mean = std::chrono::duration<float, std::micro>(std::chrono::steady_clock::now() - start).count() / 8;
    Options greatest(bench.context);
    greatest.setOutput(&mean, 1);
    greatest.setReduceFunction([](void *out, const void *a, const void *b, size_t count) {
        gloo::max<float>(static_cast<float *>(out), static_cast<const float *>(a), static_cast<const float *>(b),
                         count);
    });
    gloo::allreduce(greatest);
    return mean;
}

// Leaves the faster algorithm in bench.all_reduce and returns its time. send == recv: in place.
float make_all_reduce(Bench &bench, float *send, float *recv, size_t count)
{
    float best_us = 1e30F;

    for (const auto algorithm : { Options::Algorithm::RING, Options::Algorithm::BCUBE }) {
        auto options = std::make_unique<Options>(bench.context);

        options->setAlgorithm(algorithm);
        if (send != recv)
            options->setInput(send, count);
        options->setOutput(recv, count);
        options->setReduceFunction(sum);
        const float us = try_out(bench, [&] { gloo::allreduce(*options); });
        if (us < best_us)
            bench.all_reduce = std::move(options);
        best_us = std::min(us, best_us);
    }
    return best_us;
}

void make_reduce_scatter(Bench &bench, const bench_call &call)
{
    const size_t nranks = static_cast<size_t>(bench.context->size);

    bench.reduce_scatter.reset(); // before the next takes its place
    bench.reduce_scatter = std::make_unique<gloo::ReduceScatterHalvingDoubling<float>>(
        bench.context, std::vector<float *>{ call.send }, static_cast<int>(call.count * nranks),
        std::vector<int>(nranks, static_cast<int>(call.count)));
    const float own_us = try_out(bench, [&] { bench.reduce_scatter->run(); });
    if (make_all_reduce(bench, call.send, call.send, call.count * nranks) < own_us)
        bench.reduce_scatter.reset();
}

void run_reduce_scatter(Bench &bench, const bench_call &call)
{
    if (bench.reduce_scatter) {
        bench.reduce_scatter->run();
        return;
    }
    gloo::allreduce(*bench.all_reduce);
    std::memmove(call.send, call.send + call.count * static_cast<size_t>(bench.context->rank),
                 call.count * sizeof(float));
}

void make(Bench &bench, const bench_call &call)
{
    const auto &context = bench.context;
    const size_t nranks = static_cast<size_t>(context->size);

    switch (call.coll) {
    case BENCH_ALL_REDUCE:
        make_all_reduce(bench, call.send, call.recv, call.count);
        break;
    case BENCH_REDUCE_SCATTER:
        make_reduce_scatter(bench, call);
        break;
    case BENCH_ALL_GATHER:
        bench.all_gather = std::make_unique<gloo::AllgatherOptions>(context);
        bench.all_gather->setInput(call.send, call.count);
        bench.all_gather->setOutput(call.recv, call.count * nranks);
        break;
    case BENCH_BROADCAST:
        bench.broadcast = std::make_unique<gloo::BroadcastOptions>(context);
        bench.broadcast->setOutput(call.recv, call.count);
        bench.broadcast->setRoot(0);
        break;
    case BENCH_ALL_TO_ALL:
        bench.all_to_all = std::make_unique<gloo::AlltoallOptions>(context);
        bench.all_to_all->setInput(call.send, call.count * nranks);
        bench.all_to_all->setOutput(call.recv, call.count * nranks);
        break;
    case BENCH_BARRIER:
        bench.barrier = std::make_unique<gloo::BarrierOptions>(context);
        break;
    case BENCH_COLL_COUNT:
        break;
    }
}

void run(Bench &bench, const bench_call &call)
{
    switch (call.coll) {
    case BENCH_ALL_REDUCE:
        gloo::allreduce(*bench.all_reduce);
        break;
    case BENCH_REDUCE_SCATTER:
        run_reduce_scatter(bench, call);
        break;
    case BENCH_ALL_GATHER:
        gloo::allgather(*bench.all_gather);
        break;
    case BENCH_BROADCAST:
        gloo::broadcast(*bench.broadcast);
        break;
    case BENCH_ALL_TO_ALL:
        gloo::alltoall(*bench.all_to_all);
        break;
    case BENCH_BARRIER:
        gloo::barrier(*bench.barrier);
        break;
    case BENCH_COLL_COUNT:
        break;
    }
}

template <void (*function)(Bench &, const bench_call &)> int guarded(void *context, const bench_call *call)
{
    try {
        function(*static_cast<Bench *>(context), *call);
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return -1;
    }
}

int environment(const char *name)
{
    const char *text = std::getenv(name);

    if (!text)
        throw std::runtime_error(std::string(name) + " is not set: start this with hocket run");
    return std::stoi(text);
}

} // namespace

int main(int argc, char **argv)
{
    try {
        Bench bench;
        const char *address = std::getenv("PEERS_ADDRESS"); // of this host; else all ranks are on one
        gloo::transport::tcp::attr where(address ? address : "127.0.0.1");
        auto device = gloo::transport::tcp::CreateDevice(where);
        gloo::rendezvous::FileStore store(argc > 1 ? argv[1] : ".");

        bench.context = std::make_shared<gloo::rendezvous::Context>(environment("RANK"), environment("WORLD_SIZE"));
        bench.context->setTimeout(std::chrono::seconds(120));
        bench.context->connectFullMesh(store, device);

        bench_driver driver = {};
        driver.rank = bench.context->rank;
        driver.nranks = bench.context->size;
        driver.context = &bench;
        driver.prepare = guarded<make>;
        driver.call = guarded<run>;
        driver.reduce_scatter_in_place = 1;
        return bench_serve(&driver, argc, argv);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
