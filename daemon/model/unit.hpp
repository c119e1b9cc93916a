#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/index_set.hpp"
#include "model/units.hpp"
#include "model/value.hpp"

namespace numalease::model {

/// What a lease may set on a systemd unit (a scope of its own, a service, a slice).
enum class UnitProperty { cpus, nodes, memory };

/// One row a property. A mask travels as `ay` and is a list in text ("0-3,8"), bytes travel as `t` and are decimal.
/// Empty text: not set; for bytes: no limit.
struct UnitPropertyRow {
    UnitProperty property;
    std::string_view name;
    unsigned mask_limit;  ///< of a mask: no index at or above; 0: bytes
};
inline constexpr std::array kUnitProperties{UnitPropertyRow{UnitProperty::cpus, "AllowedCPUs", kCpuLimit},
                                            UnitPropertyRow{UnitProperty::nodes, "AllowedMemoryNodes", kNodeLimit},
                                            UnitPropertyRow{UnitProperty::memory, "MemoryMax", 0}};
constexpr const UnitPropertyRow& row_of(UnitProperty property) {
    return kUnitProperties.at(static_cast<std::size_t>(property));
}

/// Where what was in force before us came from.
enum class PriorSource {
    none,        ///< not set
    runtime,     ///< a drop-in of `systemctl set-property --runtime`: written back into it
    persistent,  ///< a unit file or drop-in: in force again once ours is gone
};

/// What a lease makes of one property of its unit.
struct UnitSetting {
    UnitProperty property = UnitProperty::cpus;
    std::string value;  ///< what we set
    std::string prior;  ///< what was in force before
    PriorSource source = PriorSource::none;

    bool operator==(const UnitSetting&) const = default;
};

/// The setting of one property, or null.
const UnitSetting* find_setting(const std::vector<UnitSetting>& settings, UnitProperty property);

Dict to_dict(const UnitSetting& setting);
/// Empty for a property that this version does not know.
std::optional<UnitSetting> unit_setting_from_dict(const Dict& dict);

}  // namespace numalease::model
