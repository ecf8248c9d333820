#include "package/version_manifest.h"

#include "package/path_rules.h"
#include "util/error.h"
#include "util/hash.h"
#include "util/json.h"

namespace cbench {
namespace {

[[noreturn]] void corrupt(const std::string& source, const std::string& what) {
  throw InvalidError("version_corrupt", source + ": " + what + "; restore it from a copy");
}

bool is_sha256(const std::string& text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

VersionFile read_entry(const Json& json, const std::string& source) {
  VersionFile file;
  file.path = json_string(json, "path", source);
  file.sha256 = json_string(json, "sha256", source);
  const int64_t size = json_int(json, "size", source);
  const int64_t mode = json_int(json, "mode", source);
  if (!is_plain_path(file.path)) corrupt(source, "a path leaves the tree");
  if (!is_sha256(file.sha256)) corrupt(source, "a hash is malformed");
  if (size < 0 || mode < 0 || mode > 0777) corrupt(source, "a size or mode is out of range");
  file.size = static_cast<uint64_t>(size);
  file.mode = static_cast<mode_t>(mode);
  return file;
}

Version read_version(const Json& json, const std::string& source) {
  Version version;
  version.number = static_cast<int>(json_int(json, "number", source));
  version.note = json_string(json, "note", source);
  version.utc = json_string(json, "utc", source);
  version.bytes = static_cast<uint64_t>(json_int(json, "bytes", source));
  version.package_hash = json_string(json, "package_hash", source);
  const Json& files = json_member(json, "files", source);
  if (!files.is_array()) corrupt(source, "\"files\" is not a list");
  std::vector<TreeFile> hashed;
  for (const Json& item : files) {
    version.files.push_back(read_entry(item, source));
    const VersionFile& file = version.files.back();
    TreeFile& copy = hashed.emplace_back();
    copy.path = file.path;
    copy.size = file.size;
    copy.sha256 = file.sha256;
  }
  if (sha256_hex(hash_manifest_of(hashed)) != version.package_hash) {
    corrupt(source, "the files do not give the package hash");
  }
  return version;
}

}  // namespace

std::string version_to_json(const Version& version) {
  Json files = Json::array();
  for (const VersionFile& file : version.files) {
    files.push_back(
        {{"path", file.path}, {"size", file.size}, {"sha256", file.sha256}, {"mode", file.mode}});
  }
  const Json json = {{"schema", "cbench.version.1"}, {"number", version.number},
                     {"note", version.note},         {"utc", version.utc},
                     {"bytes", version.bytes},       {"package_hash", version.package_hash},
                     {"files", std::move(files)}};
  return dump_json(json, 1) + "\n";
}

Version version_from_json(std::string_view text, const std::string& source) {
  try {
    return read_version(parse_json(text, source), source);
  } catch (const UsageError& error) {
    throw InvalidError("version_corrupt", std::string(error.what()) + "; restore it from a copy");
  }
}

}  // namespace cbench
