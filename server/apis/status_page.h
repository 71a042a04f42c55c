// The status page at / of the metrics port: a live view of the pool and of the requests that hold
// its pages. It is one file; its only request is a poll of /status.json while the page is
// visible. It shows no prompt or text: only sizes, and the names that clients gave their requests
// and tenants.
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

// `view`: null if there is none yet. Invalid UTF-8 in the view's names is replaced.
std::string StatusJson(const ServingState& serving, const Health& health, const ServingView* view,
                       TimeUs now);

// Not thread safe: for the HTTP server's thread.
class StatusPage {
 public:
  HttpAnswer Page() const;
  // Returns the last view and requests the next. The view is absent after a while without polls,
  // because it is out of date.
  HttpAnswer Status(const ServingState& serving, const Health& health, TimeUs now);

 private:
  std::unique_ptr<ServingView> view_;
  TimeUs requested_at_ = 0;
};

}  // namespace hydrant

#endif  // HYDRANT_SERVER_APIS_STATUS_PAGE_H_
