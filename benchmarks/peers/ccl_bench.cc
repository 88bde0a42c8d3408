// oneCCL under benchmarks/peers/run: its CPU build, buffers of plain memory. Ranks find each other by an address that rank 0
// leaves in a file of the benchmark's directory; rank and size come from the environment of Intel MPI's mpirun.
#include <oneapi/ccl.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "bench_loop.h"

namespace
{

int run(void *context, const bench_call *call)
{
    const ccl::communicator &comm = *static_cast<ccl::communicator *>(context);
    const auto type = ccl::datatype::float32;

    try {
        switch (call->coll) {
        case BENCH_ALL_REDUCE:
            ccl::allreduce(call->send, call->recv, call->count, type, ccl::reduction::sum, comm).wait();
            break;
        case BENCH_REDUCE_SCATTER:
            ccl::reduce_scatter(call->send, call->recv, call->count, type, ccl::reduction::sum, comm).wait();
            break;
        case BENCH_ALL_GATHER:
            ccl::allgather(call->send, call->recv, call->count, type, comm).wait();
            break;
        case BENCH_BROADCAST:
            ccl::broadcast(call->recv, call->count, type, 0, comm).wait();
            break;
        case BENCH_ALL_TO_ALL:
            ccl::alltoall(call->send, call->recv, call->count, type, comm).wait();
            break;
        case BENCH_BARRIER:
            ccl::barrier(comm);
            break;
        case BENCH_COLL_COUNT:
            break;
        }
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
        throw std::runtime_error(std::string(name) + " is not set: start this with mpirun");
    return std::stoi(text);
}

// The address of the key-value store that rank 0 makes: written under another name first, so that who sees it sees all of it.
ccl::shared_ptr_class<ccl::kvs> meet(int rank, const std::filesystem::path &folder)
{
    const std::filesystem::path path = folder / "ccl_address";
    ccl::kvs::address_type address;

    if (rank == 0) {
        auto kvs = ccl::create_main_kvs();

        address = kvs->get_address();
        std::ofstream(path.string() + ".new", std::ios::binary).write(address.data(), address.size());
        std::filesystem::rename(path.string() + ".new", path);
        return kvs;
    }
    for (int i = 0; !std::filesystem::exists(path); i++) {
        if (i == 12000)
            throw std::runtime_error("rank 0 has left no " + path.string() + " for 120 s");
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    std::ifstream(path, std::ios::binary).read(address.data(), address.size());
    return ccl::create_kvs(address);
}

} // namespace

int main(int argc, char **argv)
{
    try {
        const int rank = environment("PMI_RANK"), nranks = environment("PMI_SIZE");

        ccl::init();
        auto comm = ccl::create_communicator(nranks, rank, meet(rank, argc > 1 ? argv[1] : "."));
        bench_driver driver = {};

        driver.rank = rank;
        driver.nranks = nranks;
        driver.context = &comm;
        driver.call = run;
        return bench_serve(&driver, argc, argv);
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
