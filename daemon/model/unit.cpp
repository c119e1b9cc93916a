#include "model/unit.hpp"

#include <algorithm>

namespace numalease::model {

namespace {

constexpr std::array<std::string_view, 3> kSources{"none", "runtime", "persistent"};

}  // namespace

const UnitSetting* find_setting(const std::vector<UnitSetting>& settings, UnitProperty property) {
    const auto found = std::ranges::find(settings, property, &UnitSetting::property);
    return found == settings.end() ? nullptr : &*found;
}

Dict to_dict(const UnitSetting& it) {
    return {{"property", row_of(it.property).name},
            {"value", it.value},
            {"prior", it.prior},
            {"prior_source", kSources.at(static_cast<std::size_t>(it.source))}};
}

std::optional<UnitSetting> unit_setting_from_dict(const Dict& dict) {
    const auto row = std::ranges::find(kUnitProperties, get_text(dict, "property"), &UnitPropertyRow::name);
    if (row == kUnitProperties.end()) return std::nullopt;
    UnitSetting out{
        .property = row->property, .value = get_text(dict, "value"), .prior = get_text(dict, "prior"), .source = {}};
    const auto source = std::ranges::find(kSources, get_text(dict, "prior_source"));
    if (source != kSources.end()) out.source = static_cast<PriorSource>(source - kSources.begin());
    return out;
}

}  // namespace numalease::model
