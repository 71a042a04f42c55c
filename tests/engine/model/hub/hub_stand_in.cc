#include "tests/engine/model/hub/hub_stand_in.h"

#include <httplib.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "engine/model/hub/blob_digest.h"
#include "engine/model/hub/repo_listing.h"

namespace hydrant::hub {
namespace {

using Json = nlohmann::json;

constexpr char kBytes[] = "application/octet-stream";

// The name of a blob, as on the hub; blob_digest_test checks it with published hashes.
std::string HashOf(const std::string& bytes, bool sha256) {
  RepoFile file;
  file.size = static_cast<int64_t>(bytes.size());
  file.sha256 = sha256 ? "yes" : "";
  BlobDigest digest(file);
  digest.Add(bytes);
  return digest.Finish();
}

void Refuse(int status, const char* code, httplib::Response* response) {
  response->status = status;
  response->set_header("X-Error-Code", code);
}

}  // namespace

struct HubStandIn::Servers {
  httplib::Server hub, cdn;
  int hub_port = 0, cdn_port = 0;
  std::thread hub_thread, cdn_thread;
  mutable std::mutex mutex;
  std::vector<Seen> seen;  // guarded by mutex

  void See(bool at_cdn, const httplib::Request& request) {
    const std::lock_guard lock(mutex);
    seen.push_back({at_cdn, request.target, request.get_header_value("Authorization"),
                    request.get_header_value("Range")});
  }
};

HubStandIn::HubStandIn() : servers_(std::make_unique<Servers>()) {
  Servers& servers = *servers_;
  servers.hub.Get(".*", [this](const httplib::Request& request, httplib::Response& response) {
    servers_->See(false, request);
    if (!hub_hook || !hub_hook(request, &response)) AnswerAtHub(request, &response);
  });
  servers.cdn.Get(".*", [this](const httplib::Request& request, httplib::Response& response) {
    servers_->See(true, request);
    if (!cdn_hook || !cdn_hook(request, &response)) AnswerAtCdn(request, &response);
  });
  for (httplib::Server* server : {&servers.hub, &servers.cdn}) server->set_tcp_nodelay(true);
  servers.hub_port = servers.hub.bind_to_any_port("127.0.0.1");
  servers.cdn_port = servers.cdn.bind_to_any_port("127.0.0.1");
  servers.hub_thread = std::thread([this] { servers_->hub.listen_after_bind(); });
  servers.cdn_thread = std::thread([this] { servers_->cdn.listen_after_bind(); });
  // Stopping a server that does not run yet has no effect.
  while (!servers.hub.is_running() || !servers.cdn.is_running()) std::this_thread::yield();
}

HubStandIn::~HubStandIn() {
  servers_->hub.stop();
  servers_->cdn.stop();
  servers_->hub_thread.join();
  servers_->cdn_thread.join();
}

void HubStandIn::Add(const std::string& name, std::string bytes, bool large) {
  files_[name] = {.bytes = std::move(bytes), .large = large};
}

std::string HubStandIn::endpoint() const {
  return "http://127.0.0.1:" + std::to_string(servers_->hub_port);
}

std::string HubStandIn::BlobName(const std::string& name) const {
  const File& file = files_.at(name);
  return HashOf(file.bytes, file.large);
}

std::vector<HubStandIn::Seen> HubStandIn::seen() const {
  const std::lock_guard lock(servers_->mutex);
  return servers_->seen;
}

size_t HubStandIn::CountSeen(const std::string& path_part) const {
  const std::vector<Seen> all = seen();
  return static_cast<size_t>(std::count_if(all.begin(), all.end(), [&](const Seen& one) {
    return one.path.find(path_part) != std::string::npos;
  }));
}

std::string HubStandIn::TreePage(size_t first, size_t count) const {
  Json page = Json::array();
  size_t index = 0;
  for (const auto& [name, file] : files_) {
    if (index >= first && index < first + count) {
      Json entry = {{"type", "file"},
                    {"path", name},
                    {"size", file.bytes.size()},
                    {"oid", HashOf(file.bytes, false)}};
      if (file.large) {
        entry["lfs"] = {
            {"oid", HashOf(file.bytes, true)}, {"size", file.bytes.size()}, {"pointerSize", 134}};
      }
      page.push_back(std::move(entry));
    }
    ++index;
  }
  return page.dump();
}

void HubStandIn::AnswerTree(const httplib::Request& request, httplib::Response* response) const {
  const size_t first =
      request.has_param("cursor") ? std::stoul(request.get_param_value("cursor")) : 0;
  const size_t next = first + page_size_;
  if (next < files_.size()) {
    // Like a mirror that forwards the hub's own links.
    response->set_header("Link", "<https://huggingface.co/api/anything?recursive=true&cursor=" +
                                     std::to_string(next) + ">; rel=\"next\"");
  }
  response->set_content(TreePage(first, page_size_), "application/json");
}

void HubStandIn::AnswerFile(const std::string& name, httplib::Response* response) const {
  const auto found = files_.find(name);
  if (found == files_.end()) return Refuse(404, "EntryNotFound", response);
  response->set_header("X-Repo-Commit", kCommit);
  if (!found->second.large) {
    response->set_header("ETag", "\"" + BlobName(name) + "\"");
    response->set_content(found->second.bytes, kBytes);
    return;
  }
  response->set_header("X-Linked-Etag", "\"" + BlobName(name) + "\"");
  response->set_header("X-Linked-Size", std::to_string(found->second.bytes.size()));
  response->set_redirect("http://127.0.0.1:" + std::to_string(servers_->cdn_port) + "/blobs/" +
                         BlobName(name) + "?signature=abc");
}

void HubStandIn::AnswerAtHub(const httplib::Request& request, httplib::Response* response) {
  const std::string api = std::string("/api/models/") + kRepo;
  const std::string files = std::string("/") + kRepo + "/resolve/" + kCommit + "/";
  if (request.path == api + "/revision/main" || request.path == api + "/revision/" + kCommit) {
    response->set_content(Json{{"id", kRepo}, {"sha", kCommit}}.dump(), "application/json");
  } else if (request.path.rfind(api + "/revision/", 0) == 0) {
    Refuse(404, "RevisionNotFound", response);
  } else if (request.path == api + "/tree/" + kCommit) {
    AnswerTree(request, response);
  } else if (request.path.rfind(files, 0) == 0) {
    AnswerFile(request.path.substr(files.size()), response);
  } else {
    Refuse(401, "RepoNotFound", response);
  }
}

void HubStandIn::AnswerAtCdn(const httplib::Request& request, httplib::Response* response) {
  for (const auto& [name, file] : files_) {
    if (request.path == "/blobs/" + BlobName(name))
      return response->set_content(file.bytes, kBytes);
  }
  response->status = 404;
}

void CompactionAfter(const std::string& bytes, size_t count, httplib::Response* response) {
  response->set_content_provider(bytes.size(), kBytes,
                                 [bytes, count](size_t offset, size_t, httplib::DataSink& sink) {
                                   if (offset >= count) return false;
                                   return sink.write(bytes.data() + offset, count - offset);
                                 });
}

}  // namespace hydrant::hub
