// Lines of standard input. At a terminal they can be edited and called back (where the build has
// libedit), behind a prompt on standard error. Nothing of them is stored. Not thread safe.
#ifndef HYDRANT_CLIENT_LINE_READER_H_
#define HYDRANT_CLIENT_LINE_READER_H_

#include <optional>
#include <string>

namespace hydrant {

class LineReader {
 public:
  LineReader();

  // Whether a person types them.
  bool IsTyped() const { return is_typed_; }
  // nullopt: there are no more.
  std::optional<std::string> Next();

 private:
  const bool is_typed_;
};

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_LINE_READER_H_
