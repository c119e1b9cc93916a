#pragma once

#include "service/event.hpp"

namespace numalease::service {

/// Answers to method calls. What cannot be sent (the caller left) is nobody's loss.
void reply_error(const Held& call, const model::Error& error);
void reply_empty(const Held& call);
void reply_dict(const Held& call, const model::Dict& dict);
void reply_dicts(const Held& call, const model::Value::Dicts& list);
void reply_named_dict(const Held& call, const std::string& name, const model::Dict& dict);

/// Hangs up on a peer that asks and never reads, once more than `most` messages wait for it: sd-bus would keep them
/// all. A broker has limits of its own.
void drop_if_deaf(sd_bus* connection, std::uint64_t most);

}  // namespace numalease::service
