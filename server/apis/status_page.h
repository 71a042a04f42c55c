// The page at / of the metrics port: the pool and who holds it, live, for people. It is one file
// without network but for /status.json beside it, which it polls while somebody looks. No prompt,
// no text: sizes, and the names that clients gave their requests and tenants.
#ifndef HYDRANT_SERVER_APIS_STATUS_PAGE_H_
#define HYDRANT_SERVER_APIS_STATUS_PAGE_H_

#include <memory>
#include <string>

#include "scheduler/request.h"
#include "scheduler/serving_view.h"
#include "server/observe/health.h"
#include "server/observe/http_server.h"
#include "server/observe/serving_state.h"

namespace hydrant {

// `view`: null: none has come. Any bytes in the view's names make valid JSON.
std::string StatusJson(const ServingState& serving, const Health& health, const ServingView* view,
                       TimeUs now);

// Not thread safe: on the HTTP server's thread.
class StatusPage {
 public:
  HttpAnswer Page() const;
  // The last view, and asks for the next. Without one where nobody has looked for a while: what was
  // then says nothing of now.
  HttpAnswer Status(const ServingState& serving, const Health& health, TimeUs now);

 private:
  std::unique_ptr<ServingView> view_;
  TimeUs asked_at_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_STATUS_PAGE_H_
