// Sets environment variables for the test and its subprocesses during its lifetime. Not
// thread safe.
#ifndef HYDRANT_TESTS_SERVER_ENVIRONMENT_H_
#define HYDRANT_TESTS_SERVER_ENVIRONMENT_H_

#include <cstdlib>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace hydrant {

class EnvironmentForNow {
 public:
  using Variable = std::pair<std::string, std::string>;
  EnvironmentForNow(std::initializer_list<Variable> variables) {
    for (const auto& [name, value] : variables) {
      const char* before = std::getenv(name.c_str());
      before_[name] = before == nullptr ? std::nullopt : std::optional<std::string>(before);
      setenv(name.c_str(), value.c_str(), 1);
    }
  }
  ~EnvironmentForNow() {
    for (const auto& [name, value] : before_) {
      if (value.has_value())
        setenv(name.c_str(), value->c_str(), 1);
      else
        unsetenv(name.c_str());
    }
  }
  EnvironmentForNow(const EnvironmentForNow&) = delete;
  EnvironmentForNow& operator=(const EnvironmentForNow&) = delete;

 private:
  std::map<std::string, std::optional<std::string>> before_;
};

}  // namespace hydrant

#endif  // HYDRANT_TESTS_SERVER_ENVIRONMENT_H_
