// The page of `--explain-cache`: the prompt of a request, shaded by the entries that its cache kept
// (GenerateResponse.kept_entries). One HTML file that needs no network.
#ifndef HYDRANT_CLIENT_EXPLAIN_PAGE_H_
#define HYDRANT_CLIENT_EXPLAIN_PAGE_H_

#include <string>

#include "hydrant/v1/hydrant.pb.h"

namespace hydrant {

class ExplainPage {
 public:
  // Ignores other events.
  void Add(const v1::GenerateResponse& response);
  // Whether the server has reported entries.
  bool HasEntries() const { return entries_.heads_size() > 0; }
  // REQUIRES: HasEntries()
  std::string Html(const v1::GenerateRequest& request) const;

 private:
  v1::KeptEntries entries_;
  v1::Usage usage_;
};

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_EXPLAIN_PAGE_H_
