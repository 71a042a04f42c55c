// Measurements of a benchmark, for other programs: a file of JSON lines, one object per
// measurement. tools/benchmarks/gpu_table.py joins them with measurements of other engines.
#ifndef HYDRANT_TESTS_MEASUREMENT_LOG_H_
#define HYDRANT_TESTS_MEASUREMENT_LOG_H_

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace hydrant {

class MeasurementLog {
 public:
  class Field {
   public:
    template <typename Number, typename = std::enable_if_t<std::is_arithmetic_v<Number>>>
    Field(const char* name, Number number) : name_(name) {
      char text[32];
      std::snprintf(text, sizeof(text), "%.10g", static_cast<double>(number));
      value_ = std::isfinite(static_cast<double>(number)) ? text : "null";
    }
    Field(const char* name, const std::string& text) : name_(name) {
      for (const char c : text) {
        if (c == '"' || c == '\\') value_ += '\\';
        value_ += c;
      }
      value_ = '"' + value_ + '"';
    }
    std::string Json() const { return '"' + std::string(name_) + "\": " + value_; }

   private:
    const char* name_;
    std::string value_;
  };

  // Replaces the file; with an empty path writes nothing. Ends the process if it cannot open it.
  explicit MeasurementLog(const std::string& path) {
    if (path.empty()) return;
    file_.reset(std::fopen(path.c_str(), "w"));
    if (file_ == nullptr) {
      std::perror(path.c_str());
      std::exit(1);
    }
  }

  // Flushes the line, so that an aborted run keeps its earlier measurements.
  void Write(const std::string& what, const std::vector<Field>& fields) {
    WriteAs("hydrant", what, fields);
  }
  // Writes a measurement of a peer.
  void WriteAs(const std::string& who, const std::string& what, const std::vector<Field>& fields) {
    if (file_ == nullptr) return;
    std::string line = '{' + Field("what", what).Json() + ", " + Field("who", who).Json();
    for (const Field& field : fields) line += ", " + field.Json();
    std::fprintf(file_.get(), "%s}\n", line.c_str());
    std::fflush(file_.get());
  }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_MEASUREMENT_LOG_H_
