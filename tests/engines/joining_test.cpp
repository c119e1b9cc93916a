#include "engines/joining.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace numalease::client {
namespace {

using testing::HasSubstr;
using testing::Not;

model::Lease lease(const std::string& name) {
    model::Lease out{.id = "c3"};
    out.request.name = name;
    out.placement.cpus = model::CpuSet{2, 3};
    out.placement.nodes = model::NodeSet{1};
    return out;
}

std::string text(const model::Lease& of, std::string_view as) {
    return joining_text(of, as, "/run/numa-lease", "NUMA_LEASE_ID=c3\n").value();
}

TEST(Joining, AContainerJoinsTheSliceAndFindsTheEnvironment) {
    const auto docker = text(lease("llama"), "docker");
    EXPECT_THAT(docker, HasSubstr("docker run --cgroup-parent=numalease-llama.slice "
                                  "--env-file=/run/numa-lease/env/llama IMAGE\n"));
    EXPECT_THAT(docker, HasSubstr("--cpuset-cpus=2-3 --cpuset-mems=1"));
    EXPECT_THAT(docker, HasSubstr("not bound to the lease's life"));
    EXPECT_THAT(docker, Not(HasSubstr("gpu"))) << "none is leased";
    const auto compose = text(lease("llama"), "compose");
    EXPECT_THAT(compose, HasSubstr("  llama:\n    cgroup_parent: numalease-llama.slice\n"));
    EXPECT_THAT(compose, HasSubstr("    env_file:\n      - path: /run/numa-lease/env/llama\n        required: false"));
    for (const auto& lines : {docker, compose})
        EXPECT_THAT(lines, HasSubstr("# while the lease is held: by numa-leasectl hold llama, or a unit with "
                                     "BindsTo=numa-lease@llama.service\n"));
    const auto quadlet = text(lease("llama"), "quadlet");
    EXPECT_THAT(quadlet, HasSubstr("BindsTo=numa-lease@llama.service\nAfter=numa-lease@llama.service\n"));
    EXPECT_THAT(quadlet, HasSubstr("[Service]\nSlice=numalease-llama.slice\n"));
    EXPECT_EQ(text(lease("llama"), "env"), "NUMA_LEASE_ID=c3\n");
}

TEST(Joining, GpusGoByUuid) {
    auto of = lease("llama");
    of.placement.gpus = {{.pci = "0000:81:00.0", .uuid = "GPU-a", .vendor = "nvidia"},
                         {.pci = "0000:82:00.0", .uuid = "GPU-b", .vendor = "nvidia"}};
    EXPECT_THAT(text(of, "docker"),
                HasSubstr("--env-file=/run/numa-lease/env/llama --gpus '\"device=GPU-a,GPU-b\"' IMAGE\n"));
    EXPECT_THAT(text(of, "docker"), HasSubstr("--cpuset-mems=1 --gpus '\"device=GPU-a,GPU-b\"' --env-file"));
    EXPECT_THAT(text(of, "compose"), HasSubstr("  llama:\n    deploy:\n      resources:\n        reservations:\n"
                                               "          devices:\n            - driver: nvidia\n"
                                               "              device_ids: [\"GPU-a\", \"GPU-b\"]\n"
                                               "              capabilities: [gpu]\n    cgroup_parent:"));
    EXPECT_THAT(text(of, "quadlet"), HasSubstr("[Container]\nEnvironmentFile=/run/numa-lease/env/llama\n"
                                               "AddDevice=nvidia.com/gpu=GPU-a\nAddDevice=nvidia.com/gpu=GPU-b\n"));
    of.placement.gpus = {{.pci = "0000:83:00.0", .uuid = "GPU-00000000000000ff", .vendor = "amd"},
                         {.pci = "0000:84:00.0", .vendor = "nvidia"}};
    EXPECT_THAT(text(of, "docker"), HasSubstr("# GPU 0000:83:00.0: give it --device /dev/kfd --device /dev/dri;"));
    EXPECT_THAT(text(of, "docker"), HasSubstr("# GPU 0000:84:00.0: has no UUID"));
    EXPECT_THAT(text(of, "docker"), Not(HasSubstr("--gpus")));
}

TEST(Joining, ALeaseWithoutANameHasNoSliceToJoin) {
    EXPECT_THAT(text(lease(""), "docker"), HasSubstr("--cpuset-cpus=2-3 --cpuset-mems=1"));
    EXPECT_THAT(text(lease(""), "docker"), HasSubstr("not bound to the lease's life"));
    EXPECT_FALSE(joining_text(lease(""), "quadlet", "/run/numa-lease", ""));
    EXPECT_EQ(joining_text(lease("llama"), "lxc", "/run/numa-lease", "").error().code, model::Errc::invalid_request);
}

TEST(Joining, TheEnvironmentIsThatOfOneEngineWithoutQuotes) {
    policies::Library library;
    library.engines["llama.cpp"] = {
        .name = "llama.cpp",
        .programs = {"llama-server"},
        .options = {{"threads", {.flags = {"-t"}, .env = "LLAMA_ARG_THREADS", .value = "${threads}"}}},
        .env = {{"ODD", "it's \"odd\""}}};
    const LeaseFacts facts{
        .id = "c3", .cpus = model::CpuSet{2, 3}, .nodes = model::NodeSet{1}, .cores = 2, .threads = 2};
    EXPECT_EQ(joining_environment(library, nullptr, "llama.cpp", facts).value(),
              "LLAMA_ARG_THREADS=2\nNUMA_LEASE_CORES=2\nNUMA_LEASE_CPUS=2-3\nNUMA_LEASE_ID=c3\nNUMA_LEASE_NODES=1\n"
              "NUMA_LEASE_THREADS=2\n");
    auto with_gpu = facts;
    with_gpu.gpus = {{.pci = "0000:81:00.0", .uuid = "GPU-a", .vendor = "nvidia"}};
    EXPECT_THAT(joining_environment(library, nullptr, "llama.cpp", with_gpu).value(),
                HasSubstr("CUDA_DEVICE_ORDER=PCI_BUS_ID\nCUDA_VISIBLE_DEVICES=GPU-a\n"));
    // A fork with the same programs, known by its folder only.
    library.engines["fork"] = {.name = "fork", .programs = {"llama-server"}, .folders = {"fork"}, .env = {{"F", "1"}}};
    EXPECT_THAT(joining_environment(library, nullptr, "fork", facts).value(), HasSubstr("F=1\n"));
    EXPECT_EQ(joining_environment(library, nullptr, "lama", facts).error().code, model::Errc::unreadable);
}

}  // namespace
}  // namespace numalease::client
