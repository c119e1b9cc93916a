#pragma once

#include <span>
#include <string_view>

#include "model/request.hpp"

namespace numalease::model {

/// A request field by which kernel state changes that others feel, too.
struct KernelLever {
    std::string_view field;
    bool (*pulled)(const Request&);  ///< by this request
};

/// All of them. `required`, what a user is allowed, and what polkit is asked go by this.
std::span<const KernelLever> kernel_levers();

bool is_kernel_lever(std::string_view field);

}  // namespace numalease::model
