// `hydrant context`: compresses, lists, saves, loads and deletes contexts of a server.
#ifndef HYDRANT_CLIENT_CONTEXT_COMMAND_H_
#define HYDRANT_CLIENT_CONTEXT_COMMAND_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "client/connection.h"
#include "client/request_flags.h"

namespace hydrant {

struct ContextFlags {
  std::string action;  // compress, list, show, save, load, delete
  std::string handle;
  // For compress: the input is a prompt, token ids, or a system message.
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::vector<uint32_t> ids;
  std::string system;
  std::optional<double> ttl_s;
  bool pinned = false;
  RequestFlags request;  // only the cache fields and cache_salt
};

// Adds the subcommands. REQUIRES: the flags outlive the app's parsing.
void AddContextCommands(CLI::App* app, ContextFlags* flags);

// Prints the result to stdout, or with `json` the response. `read` returns the text of a prompt
// file, or of stdin if the name is empty; nullopt: it cannot be read. Returns the exit code.
int RunContextCommand(
    Connection* connection, const ContextFlags& flags, bool json, bool quiet,
    const std::function<std::optional<std::string>(const std::string& file)>& read);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_CONTEXT_COMMAND_H_
