#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/step.hpp"
#include "host/busy.hpp"
#include "service/background.hpp"
#include "service/machine.hpp"

namespace numalease::service {

/// Of these processes those that are in no lease and have busy threads on the CPUs of one, the busiest first; of one
/// that is on two leases' CPUs, an entry each.  Shape: lease, pid, uid, command, threads, percent (of a CPU), cpus.
model::Value::Dicts squatters_of(const core::State& state, const std::vector<host::BusyProcess>& busy);

/// "busy on its CPUs without a lease: stress (pid 12, bob), 285 % of a CPU on CPUs 4,6; and 2 more"; empty for none.
std::string squatters_text(const model::Value::Dicts& squatters, const model::LeaseId& lease,
                           const std::function<std::string(unsigned)>& user_name);

/// Looks who is busy on leased CPUs: two readings of all threads, a fifth of a second apart, in the background. Once
/// for each lease when it is granted, and when somebody asks; not again within two seconds.
class Squatters {
public:
    using Answer = std::function<void(const model::Value::Dicts&)>;

    Squatters(Background& background, const Machine& machine, std::function<const core::State&()> state,
              std::function<std::string(unsigned)> user_name);

    /// At once where nothing is leased, or the last look is young.
    void ask(Answer answer);
    /// Looks on behalf of leases that have just become active.
    void changed(const core::State& before, const core::State& after);
    /// Who was there when the lease was granted; empty for nobody.
    [[nodiscard]] std::string note_of(const model::LeaseId& id) const;

private:
    void look(model::Micros pause = {});
    void seen(const std::vector<host::BusyProcess>& busy);

    Background& background_;
    const Machine& machine_;
    std::function<const core::State&()> state_;
    std::function<std::string(unsigned)> user_name_;
    bool looking_ = false;
    std::vector<Answer> asked_;
    std::set<model::LeaseId> granted_;        ///< for whom the look is
    std::set<model::LeaseId> granted_later_;  ///< came when it had begun
    std::map<model::LeaseId, std::string> notes_;
    model::Value::Dicts last_;
    model::Micros last_at_{0};
};

}  // namespace numalease::service
