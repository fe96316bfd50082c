#include "plan/pack.h"

#include <cstdio>
#include <cstring>

#include "plan/failure.h"
#include "plan/files.h"
#include "plan/sha256.h"

namespace tracea {
namespace {

constexpr char kMagic[8] = {'T', 'R', 'A', 'C', 'E', 'A', 'P', 'K'};

struct Head {
  char magic[8];
  uint32_t version, reserved;
  uint64_t header_bytes, blob_bytes;
  uint8_t sha256[32];
};
static_assert(sizeof(Head) == 64, "the pack's head is 64 bytes");

struct File {
  explicit File(const std::string& path) : f(open_file(path, "rb")) {}
  ~File() {
    if (f) fclose(f);
  }
  FILE* f;
};

std::vector<Border> border(const Json& list, bool outputs) {
  std::vector<Border> out;
  for (const Json& v : list.array("list of values"))
    out.push_back(
        {v.at("name").text("name"), v.at("dtype").integer("dtype"),
         outputs ? int64_t(v.at("dims").array("dims").size()) : v.at("rank").integer("rank")});
  return out;
}

}  // namespace

std::shared_ptr<const Pack> Pack::parse(const void* data, size_t n, bool keep) {
  Head head;
  if (n < sizeof head || memcmp(data, kMagic, sizeof kMagic) != 0)
    throw Failure(
        "this is not a tracea-onnx pack; make one with `tracea-onnx optimize MODEL --pack FILE`");
  memcpy(&head, data, sizeof head);
  if (head.version != Pack::kVersion)
    throw Failure("pack version " + std::to_string(head.version) + " is not version " +
                  std::to_string(kVersion) +
                  "; make the pack again with this version of tracea-onnx");
  const size_t body = n - sizeof head;
  const char* p = static_cast<const char*>(data) + sizeof head;
  if (head.header_bytes > body || head.blob_bytes != body - head.header_bytes)
    throw Failure("the pack is truncated or damaged; make it again");
  const auto digest = Sha256().add(p, body).digest();
  if (memcmp(digest.data(), head.sha256, 32) != 0)
    throw Failure("the pack is damaged (its checksum does not match); make it again");

  auto pack = std::make_shared<Pack>();
  pack->sha256_ = Sha256::hex(digest);
  if (keep) pack->bytes_.assign(static_cast<const char*>(data), n);
  pack->header_ = Json::parse(p, head.header_bytes);
  pack->payload_ = Memory(head.blob_bytes + kSlack);
  if (head.blob_bytes) memcpy(pack->payload_.data(), p + head.header_bytes, head.blob_bytes);
  for (const Json& row : pack->header_.at("blobs").array("blobs")) {
    const auto& pair = row.array("blob");
    if (pair.size() != 2) throw Failure("a blob of the pack is not [offset, bytes]");
    const int64_t offset = pair[0].integer("blob offset"), bytes = pair[1].integer("blob size");
    if (offset < 0 || bytes < 0 || uint64_t(offset) > head.blob_bytes ||
        uint64_t(bytes) > head.blob_bytes - uint64_t(offset))
      throw Failure("a blob lies outside the pack");
    pack->blobs_.push_back({pack->payload_.data() + offset, size_t(bytes)});
  }
  for (const Json& row : pack->header_.at("entries").array("entries")) {
    Entry e;
    for (const Json& key : row.at("nodes").array("nodes")) e.nodes.push_back(key.text("node key"));
    e.plan = &row.at("plan");
    e.inputs = border(e.plan->at("inputs"), false);
    e.outputs = border(e.plan->at("outputs"), true);
    e.backend = e.plan->at("backend").text("backend");
    if (const Json* arch = e.plan->find("arch")) e.arch = arch->integer("arch");
    if (const Json* sms = e.plan->find("sms")) e.sms = sms->integer("sms");
    if (e.nodes.empty()) throw Failure("an entry of the pack names no nodes");
    pack->entries_.push_back(std::move(e));
  }
  if (const Json* left = pack->header_.find("left"))
    for (const Json& line : left->array("left")) pack->left_.push_back(line.text("sentence"));
  return pack;
}

std::shared_ptr<const Pack> Pack::read(const std::string& path, const std::string& sha256,
                                       bool keep) {
  const File file(path);
  if (!file.f) throw Failure("cannot open the pack file '" + path + "'");
  std::vector<char> bytes;
  char buffer[1 << 16];
  size_t n;
  do {
    n = fread(buffer, 1, sizeof buffer, file.f);
    bytes.insert(bytes.end(), buffer, buffer + n);
  } while (n == sizeof buffer);
  if (ferror(file.f)) throw Failure("cannot read the pack file '" + path + "'");
  if (!sha256.empty()) {
    const std::string found = Sha256().add(bytes.data(), bytes.size()).hex();
    if (found != sha256)
      throw Failure("the pack file '" + path + "' has the SHA-256 " + found +
                    ", the provider option kernel_pack_sha256 asks for " + sha256 +
                    "; it is not the file that was checked");
  }
  try {
    return parse(bytes.data(), bytes.size(), keep);
  } catch (const Failure& e) {
    throw Failure("'" + path + "': " + e.what());
  }
}

}  // namespace tracea
