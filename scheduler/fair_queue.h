// Who waits, and whose turn it is: of the tenants that have somebody waiting, the one that has been
// served least for its weight (weighted virtual token counters: Sheng et al., "Fairness in Serving
// Large Language Models", OSDI 2024, section 4, with time of the machine for tokens); among its
// requests the order of priorities and arrivals. One tenant alone is served as if there were none.
// Owned by the scheduler.
#ifndef HYDRANT_SCHEDULER_FAIR_QUEUE_H_
#define HYDRANT_SCHEDULER_FAIR_QUEUE_H_

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/sequence.h"

namespace hydrant {

struct Tenant {
  std::string name{};
  double weight = 1;
  // Microseconds: of steps what its sequences took, and of the pool's time the share that they
  // held; over its weight.
  double served_us = 0;
  int num_sequences = 0;  // waiting and live
  std::map<QueueOrder, Sequence*> waiting{};

  void Charge(double us) { served_us += us / weight; }
};

class FairQueue {
 public:
  // By name; who is not named has weight 1.
  explicit FairQueue(std::map<std::string, double> weights = {}) : weights_(std::move(weights)) {}

  // A sequence begins or ends; in between `sequence->tenant` is its tenant. One that has had none
  // begins where the least served is, so that nobody saves turns up by staying away.
  void Open(const std::string& name, Sequence* sequence);
  void Close(Sequence* sequence);
  void ForgetIdle();  // tenants without sequences

  void Add(Sequence* sequence);
  void Erase(Sequence* sequence);
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // Whether it matters who is served what.
  bool HasSeveralTenants() const { return tenants_.size() > 1; }
  // Those that wait, by their order alone.
  std::vector<Sequence*> InOrder() const;

  // Goes through those that wait as they are to be admitted. Who was named may be erased; nobody is
  // added and no tenant forgotten meanwhile.
  class Turns {
   public:
    explicit Turns(FairQueue* queue);
    // The next one; null: there is none. Each is named once.
    Sequence* Next();

   private:
    struct Line {
      const Tenant* tenant;
      std::map<QueueOrder, Sequence*>::iterator next, end;
    };
    std::vector<Line> lines_;
  };

 private:
  const std::map<std::string, double> weights_;
  std::map<std::string, Tenant> tenants_;
  size_t size_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SCHEDULER_FAIR_QUEUE_H_
