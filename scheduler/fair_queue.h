// The waiting requests in the order of admission: next is the waiting tenant served least for its
// weight (weighted virtual token counters: Sheng et al., "Fairness in Serving Large Language
// Models", OSDI 2024, section 4, with machine time instead of tokens); within a tenant, requests
// are ordered by priority and arrival. With a single tenant this is a plain priority queue. Owned
// by the scheduler.
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
  // Microseconds: its sequences' share of step time and of the pool over time, divided by
  // its weight.
  double served_us = 0;
  int num_sequences = 0;  // waiting and live
  std::map<QueueOrder, Sequence*> waiting{};

  void Charge(double us) { served_us += us / weight; }
};

class FairQueue {
 public:
  // By name; other tenants have weight 1.
  explicit FairQueue(std::map<std::string, double> weights = {}) : weights_(std::move(weights)) {}

  // Called when a sequence begins or ends; in between `sequence->tenant` is set. A tenant that had
  // no sequences starts at the least served value, so that idle time earns no credit.
  void Open(const std::string& name, Sequence* sequence);
  void Close(Sequence* sequence);
  void ForgetIdle();  // removes tenants without sequences

  void Add(Sequence* sequence);
  void Erase(Sequence* sequence);
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // Whether fairness matters.
  bool HasSeveralTenants() const { return tenants_.size() > 1; }
  // All waiting sequences, ordered by priority and arrival only.
  std::vector<Sequence*> InOrder() const;

  // Iterates over waiting sequences in the order of admission. Returned sequences may be erased
  // meanwhile; adding sequences and forgetting tenants is not allowed.
  class Turns {
   public:
    explicit Turns(FairQueue* queue);
    // The next one; null at the end. Each is returned once.
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
