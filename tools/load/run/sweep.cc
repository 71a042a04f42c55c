#include "tools/load/run/sweep.h"

#include <algorithm>

namespace hydrant::load {
namespace {

std::optional<ProbeRecord> Known(const std::vector<SweptArm>& known, const std::string& arm,
                                 double rate) {
  for (const SweptArm& of : known) {
    if (of.name != arm) continue;
    const auto found = std::find_if(of.probes.begin(), of.probes.end(),
                                    [&](const ProbeRecord& probe) { return probe.rate == rate; });
    if (found != of.probes.end()) return *found;
  }
  return std::nullopt;
}

}  // namespace

bool Sweep(const RateSearchOptions& search, const std::vector<SweptArm>& known,
           const SweepCalls& calls, std::vector<SweptArm>* arms) {
  for (size_t i = 0; i < arms->size(); ++i) {
    SweptArm& arm = (*arms)[i];
    RateSearch rates(search);
    while (const std::optional<double> rate = rates.Next()) {
      std::optional<ProbeRecord> probe = Known(known, arm.name, *rate);
      const bool is_new = !probe.has_value();
      if (is_new) probe = calls.probe(i, *rate);
      if (!probe) return false;
      rates.Add(*rate, probe->met);
      arm.probes.push_back(*std::move(probe));
      arm.highest_met = rates.highest_met();
      arm.lowest_failed = rates.lowest_failed();
      arm.finished = !rates.Next().has_value();
      if (is_new && calls.on_probe) calls.on_probe(*arms);
    }
  }
  return true;
}

}  // namespace hydrant::load
