// A hub on loopback for tests: the API's responses, and a second server for large files in the role
// of the hub's CDN. Serves one repository from construction to destruction; set its contents before
// the first request. Handlers run on their own threads.
#ifndef HYDRANT_TESTS_ENGINE_MODEL_HUB_HUB_STAND_IN_H_
#define HYDRANT_TESTS_ENGINE_MODEL_HUB_HUB_STAND_IN_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace httplib {
struct Request;
struct Response;
}  // namespace httplib

namespace hydrant::hub {

class HubStandIn {
 public:
  static constexpr char kRepo[] = "some-org/tiny";
  static constexpr char kCommit[] = "0123456789abcdef0123456789abcdef01234567";

  struct Seen {
    bool at_cdn;
    std::string path, authorization, range;
  };
  // Replaces the stand-in's response if it returns true.
  using Hook = std::function<bool(const httplib::Request& request, httplib::Response* response)>;

  HubStandIn();
  ~HubStandIn();

  // `large`: stored in Git LFS, behind a redirect to the CDN.
  void Add(const std::string& name, std::string bytes, bool large = false);
  void set_page_size(size_t files) { page_size_ = files; }
  Hook hub_hook, cdn_hook;

  std::string endpoint() const;
  std::string TreePage(size_t first, size_t count) const;  // the API's JSON
  std::string BlobName(const std::string& name) const;
  const std::string& bytes(const std::string& name) const { return files_.at(name).bytes; }
  std::vector<Seen> seen() const;
  size_t CountSeen(const std::string& path_part) const;

 private:
  struct File {
    std::string bytes;
    bool large;
  };
  struct Servers;

  void AnswerAtHub(const httplib::Request& request, httplib::Response* response);
  void AnswerAtCdn(const httplib::Request& request, httplib::Response* response);
  void AnswerTree(const httplib::Request& request, httplib::Response* response) const;
  void AnswerFile(const std::string& name, httplib::Response* response) const;

  std::map<std::string, File> files_;
  size_t page_size_ = 1000;
  std::unique_ptr<Servers> servers_;
};

// Sends `bytes` and drops the connection after the first `count` of them.
void CompactionAfter(const std::string& bytes, size_t count, httplib::Response* response);

}  // namespace hydrant::hub

#endif  // HYDRANT_TESTS_ENGINE_MODEL_HUB_HUB_STAND_IN_H_
