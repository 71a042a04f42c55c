// Runs one Generate call and prints its output as it arrives: the text on stdout, the usage on
// stderr; or one JSON object a line. With several samples, each is printed under a heading when it
// has finished.
#ifndef HYDRANT_CLIENT_EVENT_PRINTER_H_
#define HYDRANT_CLIENT_EVENT_PRINTER_H_

#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>

#include "client/connection.h"
#include "hydrant/v1/hydrant.pb.h"

namespace hydrant {

struct PrintOptions {
  bool json = false;
  bool quiet = false;          // no usage line
  bool show_context = false;   // print the handle of a kept cache
  double timeout_s = 0;        // 0: none
  bool interruptible = false;  // Ctrl-C cancels the request: CANCELLED
  int resume = 0;              // times that a lost stream may be resumed
  std::string explain_file;    // where to write the page of explain_page.h; "": nowhere
};

// The whole answer of a single sample.
struct Reply {
  std::string text;
  std::string context;  // handle of the kept cache; "": none was kept
};

// Resumes a lost stream, possibly on another replica, but not with several samples. Prints errors,
// too. `reply` may be null.
grpc::Status GenerateAndPrint(Connection* connection, const v1::GenerateRequest& request,
                              const PrintOptions& options, Reply* reply);

void PrintJson(const google::protobuf::Message& message);

// A size as text: "12 KiB", "1.4 MiB".
std::string SizeText(uint64_t bytes);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_EVENT_PRINTER_H_
