// Runs one Generate call and prints it as it comes: the text on stdout, the usage on stderr; or one
// JSON object a line. Of several samples each is printed under a heading when it has finished.
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
  bool show_context = false;   // the handle of a cache that was kept
  double timeout_s = 0;        // 0: none
  bool interruptible = false;  // Ctrl-C cancels the request: CANCELLED
  int resume = 0;              // times that a stream which was lost may be taken up again
};

// Takes a stream that was lost up where it ended, perhaps from another replica; not one of several
// samples. Prints an error, too. `text` (may be null) receives the whole answer of a single sample.
grpc::Status GenerateAndPrint(Connection* connection, const v1::GenerateRequest& request,
                              const PrintOptions& options, std::string* text);

void PrintJson(const google::protobuf::Message& message);

// A size as text: "12 KiB", "1.4 MiB".
std::string SizeText(uint64_t bytes);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_EVENT_PRINTER_H_
