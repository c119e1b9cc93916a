// Prints, as one line of JSON, what llama.cpp itself says that a model and its context will take, in bytes:
// llama-server's options in, `{"model":…,"context":…,"compute":…,"trained":…,"gpu":{"model":…,…}}` out, the first of
// main memory, `gpu` of all devices together. Nothing is loaded or allocated (common_get_device_memory_data, which
// --fit uses), so the model may be a sparse file larger than the machine.

#include <arg.h>
#include <common.h>
#include <fit.h>
#include <llama.h>

#include <cstdio>
#include <exception>
#include <vector>

int main(int argc, char** argv) try {
    common_init();
    common_params params;
    params.fit_params = false;
    if (!common_params_parse(argc, argv, params, LLAMA_EXAMPLE_SERVER)) return 1;
    if (params.n_parallel < 0) {  // as llama-server does
        params.n_parallel = 4;
        params.kv_unified = true;
    }
    llama_backend_init();
    const auto model = common_model_params_to_llama(params);
    const auto context = common_context_params_to_llama(params);
    std::vector<ggml_backend_dev_t> devices;
    unsigned layers = 0;
    unsigned trained = 0;
    unsigned experts = 0;
    const auto data = common_get_device_memory_data(params.model.path.c_str(), &model, &context, devices, layers,
                                                    trained, experts, GGML_LOG_LEVEL_ERROR);
    common_device_memory_data gpu{};
    for (std::size_t i = 0; i + 1 < data.size(); ++i) {
        gpu.model += data[i].model;
        gpu.context += data[i].context;
        gpu.compute += data[i].compute;
    }
    const auto& host = data.back();
    std::printf(R"({"model":%zu,"context":%zu,"compute":%zu,"trained":%u,)"
                R"("gpu":{"model":%zu,"context":%zu,"compute":%zu}})"
                "\n",
                host.model, host.context, host.compute, trained, gpu.model, gpu.context, gpu.compute);
    return 0;
} catch (const std::exception& error) {
    std::fprintf(stderr, "llama-memory: %s\n", error.what());
    return 1;
}
