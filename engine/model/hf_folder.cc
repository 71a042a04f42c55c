#include "engine/model/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/hf_config.h"
#include "engine/model/hf_quantized_tensors.h"
#include "engine/model/json_text.h"
#include "engine/model/mapped_file.h"
#include "engine/model/model_tensors.h"
#include "engine/model/safetensors.h"
#include "engine/model/text.h"
#include "kernels/status_macros.h"

namespace hydrant {
namespace {

constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";
constexpr size_t kMaxShards = 4096;

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// The weights of a folder, in one or several files.
struct Shards {
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files;  // by file name
  std::map<std::string, std::string> file_of;                     // tensor name to file name
  HfQuantization quantization;

  // Borrows this.
  RawTensors Raw() const {
    return {.has = [this](const std::string& name) { return file_of.contains(name); },
            .find = [this](const std::string& name) -> absl::StatusOr<RawTensor> {
              const auto it = file_of.find(name);
              if (it == file_of.end())
                return absl::NotFoundError(absl::StrCat("tensor ", Quoted(name), " is missing"));
              return files.at(it->second)->FindRaw(name);
            }};
  }
  // `name` is the family's tensor name.
  bool Has(const std::string& name) const { return HasTensor(quantization, Raw(), name); }
  absl::StatusOr<TensorView> Find(const std::string& name) const {
    absl::StatusOr<TensorView> view = FindTensorOf(quantization, Raw(), name);
    const auto it = file_of.find(name);
    if (!view.ok() && it != file_of.end()) return WithContext(view.status(), Quoted(it->second));
    return view;
  }
  absl::StatusOr<std::vector<std::string>> Names() const {
    std::vector<std::string> present;
    for (const auto& [name, file] : file_of) present.push_back(name);
    return FamilyNames(quantization, Raw(), present);
  }
};

absl::StatusOr<Shards> OpenSingle(const std::string& folder) {
  HYDRANT_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file,
                           SafetensorsFile::Open(absl::StrCat(folder, "/", kSingleFile)));
  Shards shards;
  for (const std::string& name : file->Names()) shards.file_of[name] = kSingleFile;
  shards.files[kSingleFile] = std::move(file);
  return shards;
}

// tensor name → file name; a file name must stay inside the folder.
absl::StatusOr<std::map<std::string, std::string>> ReadWeightMap(const std::string& path) {
  HYDRANT_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const std::span<const uint8_t> bytes = file->bytes();
  const absl::StatusOr<nlohmann::json> root =
      ParseJsonObject(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  if (!root.ok()) return WithContext(root.status(), Quoted(path));
  const auto map = root->find("weight_map");
  if (map == root->end() || !map->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted(path), ": weight_map is missing or not an object"));
  }
  std::map<std::string, std::string> result;
  for (const auto& [tensor, value] : map->items()) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    if (!name.ends_with(".safetensors") || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted(path), ": weight_map[", Quoted(tensor),
                                                     "] is ", Quoted(name),
                                                     ", wanted the name of a .safetensors file"));
    }
    result[tensor] = name;
  }
  return result;
}

absl::StatusOr<Shards> OpenIndexed(const std::string& folder) {
  const std::string index = absl::StrCat(folder, "/", kIndexFile);
  HYDRANT_ASSIGN_OR_RETURN(auto map, ReadWeightMap(index));
  Shards shards;
  shards.file_of = std::move(map);
  for (const auto& [tensor, name] : shards.file_of) {
    if (shards.files.contains(name)) continue;
    if (shards.files.size() == kMaxShards) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted(index), " names more than ", kMaxShards, " files"));
    }
    HYDRANT_ASSIGN_OR_RETURN(shards.files[name],
                             SafetensorsFile::Open(absl::StrCat(folder, "/", name)));
  }
  return shards;
}

absl::StatusOr<Shards> OpenShards(const std::string& folder) {
  if (Exists(absl::StrCat(folder, "/", kSingleFile))) return OpenSingle(folder);
  if (Exists(absl::StrCat(folder, "/", kIndexFile))) return OpenIndexed(folder);
  return absl::NotFoundError(
      absl::StrCat("folder ", Quoted(folder), " has neither ", kSingleFile, " nor ", kIndexFile));
}

// A file may hold an output matrix although its config.json ties it to the embedding. If the two
// differ, transformers uses the file's matrix.
absl::Status UntieWhereTheyDiffer(const TensorNames& names, const Shards& shards,
                                  ModelConfig* config) {
  if (!config->tied_embeddings || !shards.Has(names.output)) return absl::OkStatus();
  HYDRANT_ASSIGN_OR_RETURN(const TensorView embedding, shards.Find(names.embedding));
  HYDRANT_ASSIGN_OR_RETURN(const TensorView output, shards.Find(names.output));
  config->tied_embeddings = embedding.dtype == output.dtype && embedding.shape == output.shape &&
                            output.maker == nullptr &&
                            std::ranges::equal(embedding.bytes, output.bytes);
  return absl::OkStatus();
}

class HfFolderSource final : public ModelSource {
 public:
  HfFolderSource(std::string folder, ModelConfig config, Shards shards, ModelTensors tensors)
      : folder_(std::move(folder)),
        config_(std::move(config)),
        shards_(std::move(shards)),
        tensors_(std::move(tensors)) {}

  const ModelConfig& config() const override { return config_; }
  absl::StatusOr<TensorView> Embedding() const override { return tensors_.outer.embedding; }
  absl::StatusOr<TensorView> Positions() const override { return tensors_.outer.positions; }
  absl::StatusOr<TensorView> FinalNorm() const override { return tensors_.outer.final_norm; }
  absl::StatusOr<TensorView> FinalNormBias() const override {
    return tensors_.outer.final_norm_bias;
  }
  absl::StatusOr<TensorView> Output() const override { return tensors_.outer.output; }
  absl::StatusOr<LayerTensors> Layer(int layer) const override { return tensors_.Layer(layer); }
  absl::Status CheckUnchanged() const override {
    absl::Status status;
    for (const auto& [name, file] : shards_.files) status.Update(file->CheckUnchanged());
    return status;
  }
  void ReleasePages() const override {
    for (const auto& [name, file] : shards_.files) file->ReleasePages();
  }
  std::string folder() const override { return folder_; }

 private:
  const std::string folder_;
  const ModelConfig config_;
  const Shards shards_;
  const ModelTensors tensors_;  // views into shards_
};

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSource>> OpenHfFolder(const std::string& folder) {
  HYDRANT_ASSIGN_OR_RETURN(HfConfig config, ReadHfConfig(absl::StrCat(folder, "/config.json")));
  HYDRANT_ASSIGN_OR_RETURN(Shards shards, OpenShards(folder));
  shards.quantization = config.quantization;
  TensorNames names = HuggingFaceNames(config.model);
  if (const TensorNames bare = names.WithoutOuterModule(); shards.file_of.contains(bare.embedding))
    names = bare;
  const absl::StatusOr<std::vector<std::string>> present = shards.Names();
  if (!present.ok()) return WithContext(present.status(), Quoted(folder));
  if (absl::Status s = UntieWhereTheyDiffer(names, shards, &config.model); !s.ok())
    return WithContext(s, Quoted(folder));
  const bool tied = config.model.tied_embeddings;
  const auto ignored = [&](const std::string& name) { return tied && name == names.output; };
  if (absl::Status s = CheckNoUnknownTensors(config.model, names, *present, ignored); !s.ok()) {
    return WithContext(s, Quoted(folder));
  }
  absl::StatusOr<ModelTensors> tensors = GatherTensors(
      config.model, names, [&](const std::string& name) { return shards.Find(name); });
  if (!tensors.ok()) return WithContext(tensors.status(), Quoted(folder));
  return std::make_unique<HfFolderSource>(folder, std::move(config.model), std::move(shards),
                                          *std::move(tensors));
}

}  // namespace hydrant
