#pragma once

#include "service/event.hpp"

namespace numalease::service {

/// Answers to method calls. What cannot be sent (the caller left) is nobody's loss.
void reply_error(const Held& call, const model::Error& error);
void reply_empty(const Held& call);
void reply_dict(const Held& call, const model::Dict& dict);
void reply_dicts(const Held& call, const model::Value::Dicts& list);
void reply_named_dict(const Held& call, const std::string& name, const model::Dict& dict);

}  // namespace numalease::service
