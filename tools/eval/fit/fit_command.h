// The command `hydrant-eval fit`: fits a model's score predictor and writes it beside the model.
#ifndef HYDRANT_TOOLS_EVAL_FIT_FIT_COMMAND_H_
#define HYDRANT_TOOLS_EVAL_FIT_FIT_COMMAND_H_

#include <string>
#include <vector>

#include "tools/eval/fit/fit.h"

namespace CLI {  // NOLINT(readability-identifier-naming): the name is the library's
class App;
}

namespace hydrant::eval {

struct FitFlags {
  std::string model;
  std::vector<std::string> texts;
  FitOptions fit;
  std::string out;
  std::string device = "cpu";
  std::string dtype = "stored";
  int threads = 2;
  bool force = false;
};

void AddFitFlags(CLI::App* app, FitFlags* flags);
// The process's exit code. Progress goes to stderr, the check's table to stdout.
int RunFit(const FitFlags& flags);

}  // namespace hydrant::eval

#endif  // HYDRANT_TOOLS_EVAL_FIT_FIT_COMMAND_H_
