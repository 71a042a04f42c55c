// A group of command line options in --help, each with its default.
#ifndef HYDRANT_TOOLS_LOAD_RUN_OPTION_GROUP_H_
#define HYDRANT_TOOLS_LOAD_RUN_OPTION_GROUP_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <utility>

namespace hydrant::load {

class OptionGroup {
 public:
  // Borrowed: the app outlives the group.
  OptionGroup(CLI::App* app, std::string heading) : app_(app), heading_(std::move(heading)) {}

  // The value is borrowed until the command line has been parsed, and holds the option's default.
  template <typename T>
  CLI::Option* Option(const std::string& name, T& value, const std::string& what) const {
    CLI::Option* option = app_->add_option(name, value, what)->group(heading_);
    if constexpr (requires { value.has_value(); }) {
      return option;  // without a default
    } else {
      if constexpr (requires { value.empty(); }) {
        if (value.empty()) return option;  // an empty default is not shown
      }
      return option->capture_default_str();
    }
  }
  // A number of bytes, such as 512M.
  CLI::Option* Bytes(const std::string& name, uint64_t& value, const std::string& what) const {
    return Option(name, value, what)->transform(CLI::AsSizeValue(/*kb_is_1000=*/false));
  }
  CLI::Option* Flag(const std::string& name, bool& value, const std::string& what) const {
    return app_->add_flag(name, value, what)->group(heading_);
  }

 private:
  CLI::App* app_;
  std::string heading_;
};

}  // namespace hydrant::load

#endif  // HYDRANT_TOOLS_LOAD_RUN_OPTION_GROUP_H_
