// `hydrant context`: contexts that a server keeps: compressed, listed, saved, loaded and deleted.
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
  // Of compress: what is read is a prompt, token ids, or a system message.
  std::optional<std::string> prompt;
  std::string prompt_file;
  std::vector<uint32_t> ids;
  std::string system;
  std::optional<double> ttl_s;
  bool pinned = false;
  RequestFlags request;  // of these the cache's and cache_salt
};

// Adds the subcommands. REQUIRES: the flags outlive the app's parsing.
void AddContextCommands(CLI::App* app, ContextFlags* flags);

// Prints to stdout what there is, or with `json` the response. `read` gives the text of a prompt
// file, or what is piped in where the name is empty; unset: it cannot be read. Returns the exit
// code.
int RunContextCommand(
    Connection* connection, const ContextFlags& flags, bool json, bool quiet,
    const std::function<std::optional<std::string>(const std::string& file)>& read);

}  // namespace hydrant

#endif  // HYDRANT_CLIENT_CONTEXT_COMMAND_H_
