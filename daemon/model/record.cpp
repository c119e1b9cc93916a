#include "model/record.hpp"

namespace numalease::model {

std::string to_line(const Record& record) {
    return record.type + ' ' + record.key + ' ' + (record.gone ? std::string("gone") : flatten(record.body));
}

Result<Record> record_from_line(std::string_view line) {
    const auto first = line.find(' ');
    const auto second = first == std::string_view::npos ? first : line.find(' ', first + 1);
    if (second == std::string_view::npos) return fail(Errc::invalid_request, "a record is 'type key body'");
    Record record{.type = std::string(line.substr(0, first)),
                  .key = std::string(line.substr(first + 1, second - first - 1))};
    const auto body = line.substr(second + 1);
    record.gone = body == "gone";
    if (record.gone) return record;
    auto dict = unflatten(body);
    if (!dict) return std::unexpected(dict.error());
    record.body = std::move(*dict);
    return record;
}

}  // namespace numalease::model
