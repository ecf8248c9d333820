#include "text/tokenizer_load.h"

#include <algorithm>

#include "text/tokenizer_json.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

class Loader {
 public:
  Loader(std::string_view json, std::string_view source)
      : source_(source), file_(read_tokenizer_json(json, source)) {}

  TokenizerParts load() {
    check_version();
    parts_.normalizer = make_normalizer(member("normalizer"), source_);
    parts_.pre_tokenizers = make_pre_tokenizers(member("pre_tokenizer"), source_);
    parts_.post_processor = make_post_processor(member("post_processor"), source_);
    parts_.decoder = Decoder::from_json(member("decoder"), source_);
    const Json& model = json_member(file_.root, "model", source_);
    check_model(model);
    const std::vector<AddedToken> added = read_added();
    check_ids(added);
    add_vocab();
    parts_.model = std::make_unique<Bpe>(*parts_.vocabulary, file_, read_options(model), source_);
    for (const AddedToken& token : added) add_added(token);
    check_post_processor();
    return std::move(parts_);
  }

 private:
  [[noreturn]] void fail(std::string_view code, const std::string& message) const {
    throw UsageError(code, source_ + ": " + message);
  }

  const Json& member(const char* key) const {
    static const Json null;
    const auto found = file_.root.find(key);
    return found == file_.root.end() ? null : *found;
  }

  void check_version() const {
    if (!file_.root.is_object()) fail("json_type", "expected an object");
    if (file_.root.contains("version") && file_.root["version"] != "1.0") {
      fail("version", "unknown tokenizer version; this program reads \"1.0\"");
    }
  }

  void check_model(const Json& model) const {
    if (!model.is_object()) fail("json_type", "\"model\" must be an object");
    if (model.contains("type") && json_string(model, "type", source_) != "BPE") {
      unsupported_component("model", json_string(model, "type", source_), "BPE", source_);
    }
    if (!file_.has_vocab) fail("vocab", "\"model\" has no \"vocab\" object");
    if (!file_.has_merges) fail("merges", "\"model\" has no \"merges\" array");
    if (file_.vocab.empty()) fail("vocab", "the vocabulary is empty");
    const auto dropout = model.find("dropout");
    if (dropout != model.end() && !dropout->is_null() &&
        !(dropout->is_number() && dropout->get<double>() == 0)) {
      fail("dropout", "\"dropout\" must be null or 0: encoding must not be random");
    }
  }

  static bool given(const Json& object, const char* key) {
    return object.contains(key) && !object[key].is_null();
  }
  bool flag(const Json& object, const char* key, bool otherwise = false) const {
    return given(object, key) ? json_bool(object, key, source_) : otherwise;
  }
  std::string text(const Json& object, const char* key) const {
    return given(object, key) ? json_string(object, key, source_) : std::string();
  }

  BpeOptions read_options(const Json& model) const {
    BpeOptions options;
    options.fuse_unk = flag(model, "fuse_unk");
    options.byte_fallback = flag(model, "byte_fallback");
    options.ignore_merges = flag(model, "ignore_merges");
    options.prefix = text(model, "continuing_subword_prefix");
    options.suffix = text(model, "end_of_word_suffix");
    if (given(model, "unk_token")) {
      const std::string unk = json_string(model, "unk_token", source_);
      options.unk = parts_.vocabulary->find(unk);
      if (!options.unk) {
        fail("vocab", "unk_token \"" + printable(unk) + "\" is not in the vocabulary");
      }
    }
    return options;
  }

  std::vector<AddedToken> read_added() const {
    std::vector<AddedToken> added;
    const Json& list = member("added_tokens");
    if (list.is_null()) return added;
    if (!list.is_array()) fail("json_type", "\"added_tokens\" must be an array");
    for (const Json& entry : list) {
      AddedToken token;
      const int64_t id = json_int(entry, "id", source_);
      if (id < 0 || id > INT32_MAX) fail("added_tokens", "ids must be from 0 to 2^31-1");
      token.id = static_cast<int32_t>(id);
      token.content = json_string(entry, "content", source_);
      token.single_word = flag(entry, "single_word");
      token.lstrip = flag(entry, "lstrip");
      token.rstrip = flag(entry, "rstrip");
      token.special = flag(entry, "special");
      token.normalized = flag(entry, "normalized", !token.special);
      if (token.content.empty()) continue;  // the reference implementation ignores them
      if (token.content.size() > AddedTokenMatcher::kMaxContent) {
        fail("added_tokens", "added token \"" + printable(token.content, 40) +
                                 "\" is longer than " +
                                 std::to_string(AddedTokenMatcher::kMaxContent) + " bytes");
      }
      added.push_back(std::move(token));
    }
    return added;
  }

  /// Makes the empty tables. Ids may have gaps, but not so large that a table by id would be
  /// absurd.
  void check_ids(const std::vector<AddedToken>& added) {
    int32_t model_highest = 0;
    int32_t highest = 0;
    for (const auto& token : file_.vocab) model_highest = std::max(model_highest, token.id);
    for (const AddedToken& token : added) highest = std::max(highest, token.id);
    highest = std::max(highest, model_highest);
    const auto count = static_cast<int64_t>(file_.vocab.size() + added.size());
    if (highest > 8 * count + 65536) {
      fail("vocab", "ids up to " + std::to_string(highest) + " for only " + std::to_string(count) +
                        " tokens: the gaps are too large");
    }
    parts_.vocabulary = std::make_unique<Vocabulary>(file_.vocab.size(), model_highest);
    parts_.added = std::make_unique<Vocabulary>(added.size(), highest);
  }

  void add_vocab() {
    for (const auto& entry : file_.vocab) {
      const std::string_view token = file_.text(entry.offset, entry.length);
      const auto added = parts_.vocabulary->add(token, entry.id);
      if (added == Vocabulary::Added::kNew) continue;
      if (added == Vocabulary::Added::kIdTaken) {
        fail("vocab", "tokens \"" + printable(parts_.vocabulary->token(entry.id)) + "\" and \"" +
                          printable(token) + "\" share id " + std::to_string(entry.id));
      }
      fail("duplicate_key", "token \"" + printable(token) + "\" appears twice in the vocabulary");
    }
  }

  void add_added(const AddedToken& token) {
    const std::string quoted = "added token \"" + printable(token.content) + "\"";
    const auto known = parts_.vocabulary->find(token.content);
    if (known != token.id) {
      if (known) fail("added_tokens", quoted + " has another id in the vocabulary");
      const bool taken = parts_.vocabulary->has(token.id);
      const auto added =
          taken ? Vocabulary::Added::kIdTaken : parts_.added->add(token.content, token.id);
      if (added == Vocabulary::Added::kIdTaken) {
        fail("added_tokens",
             quoted + " has id " + std::to_string(token.id) + ", which another token has already");
      }
      if (added == Vocabulary::Added::kOtherId) {
        fail("added_tokens", quoted + " appears twice with different ids");
      }
    }
    if (token.special) parts_.special.insert(token.id);
    if (!token.normalized) {
      parts_.raw_tokens.add(token.content, token);
      return;
    }
    std::string content = token.content;
    bool at_start = true;
    if (parts_.normalizer != nullptr) parts_.normalizer->apply(content, at_start);
    if (content.size() > AddedTokenMatcher::kMaxContent) {
      fail("added_tokens", quoted + " is too long after normalization");
    }
    parts_.normalized_tokens.add(content, token);
    if (content != token.content) parts_.decoded_as.emplace(token.id, std::move(content));
  }

  void check_post_processor() const {
    for (const auto* side : {&parts_.post_processor.before, &parts_.post_processor.after}) {
      for (const int32_t id : *side) {
        if (!parts_.vocabulary->has(id) && !parts_.added->has(id)) {
          fail("post_processor",
               "adds token id " + std::to_string(id) + ", which is not in the vocabulary");
        }
      }
    }
  }

  std::string source_;
  TokenizerJson file_;
  TokenizerParts parts_;
};

}  // namespace

TokenizerParts load_tokenizer_parts(std::string_view json, std::string_view source) {
  return Loader(json, source).load();
}

}  // namespace cbench
