#include <cstdint>
#include <cstdlib>
#include <string>

#include "policies/loader.hpp"

/// Any bytes as a policy, an engine and a site configuration: a value or one line with its place, never a crash.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    using namespace numalease;
    const std::string text(reinterpret_cast<const char*>(data), size);
    const auto check = [](const auto& result) {
        if (!result && !result.error().detail.starts_with("f.yaml:")) std::abort();
    };
    const auto policy = policies::parse_policy(text, "f.yaml");
    check(policy);
    if (policy) {
        model::Request request;
        for (const auto& [name, value] : policy->fields)
            if (!model::set_field(request, name, value)) std::abort();
    }
    check(policies::parse_engine(text, "f.yaml"));
    check(policies::parse_site_config(text, "f.yaml"));
    return 0;
}
