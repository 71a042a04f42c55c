#include "kernels/ops/revise_scores.h"

#include <cstddef>

#include "kernels/reference/ops.h"
#include "kernels/victim.h"

namespace hydrant::reference {
namespace {

// One KV head of one row.
struct RevisedHead {
  const ReviseScoresArgs& args;
  int row;
  int index;

  int slot() const { return args.slots[row]; }
  const DecodeRule& rule() const { return args.tables.rules[slot()]; }
  size_t head_index() const { return args.tables.HeadIndex(slot(), args.layer, index); }
  int32_t length() const { return args.tables.lengths[head_index()]; }
  int32_t cap() const { return args.tables.caps[head_index()]; }
  const PageIds* blocks() const { return args.tables.HeadBlocks(slot(), args.layer, index); }
  int32_t next_position() const { return args.positions[row] + 1; }
  size_t State(int32_t entry) const { return StateIndex(args.pages.layout, blocks(), entry); }
  float& Score(int32_t entry) const { return args.pages.scores[State(entry)]; }
  int32_t Position(int32_t entry) const {
    return args.pages.positions[PageIndex(args.pages.layout, blocks(), entry)];
  }
};

void AverageHeads(const ReviseScoresArgs& args, int row) {
  const int heads = args.tables.num_kv_heads;
  const int32_t length = RevisedHead{args, row, 0}.length();
  for (int32_t entry = 0; entry < length; ++entry) {
    double sum = 0.0;
    for (int h = 0; h < heads; ++h) sum += RevisedHead{args, row, h}.Score(entry);
    const auto mean = static_cast<float>(sum / heads);
    for (int h = 0; h < heads; ++h) RevisedHead{args, row, h}.Score(entry) = mean;
  }
}

void Draw(const RevisedHead& head) {
  for (int32_t entry = 0; entry < head.length(); ++entry) {
    head.Score(entry) = RandomScore(head.rule().seed, head.args.layer, head.index,
                                    head.next_position(), head.Position(entry));
  }
}

void CountBelowMean(const RevisedHead& head) {
  const int32_t length = head.length();
  const int32_t steps = StepsCounted(head.rule(), length, head.cap());
  for (int32_t entry = 0; entry < length; ++entry) {
    float& count = BelowMeanCountOf(head.args.pages, head.blocks(), entry);
    const bool is_new = head.Position(entry) == head.args.positions[head.row];
    if (steps <= 1 || is_new) count = 0.0f;
    if (steps >= 1 && IsBelowMean(head.Score(entry), length)) count += 1.0f;
    head.Score(entry) = -count;
  }
}

}  // namespace

void ReviseScores(const ReviseScoresArgs& args) {
  for (int row = 0; row < args.num_rows; ++row) {
    if (args.slots[row] < 0) continue;
    const Revision revision = args.tables.rules[args.slots[row]].revision;
    if (revision == Revision::kNone) continue;
    if (revision == Revision::kLayerMean) AverageHeads(args, row);
    for (int h = 0; h < args.tables.num_kv_heads; ++h) {
      const RevisedHead head{args, row, h};
      if (revision == Revision::kRandom) Draw(head);
      if (revision == Revision::kBelowMean) CountBelowMean(head);
      if (head.length() != head.cap()) continue;
      args.tables.victims[head.head_index()] =
          PickVictim(args.pages, head.blocks(), head.length(), head.rule(), head.next_position());
    }
  }
}

}  // namespace hydrant::reference
