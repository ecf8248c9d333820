// cbench tokenize: text on stdin to a JSON array of token ids, or back. Without flags the two are
// inverse to each other: nothing is added to the text and no token is hidden.
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include <unistd.h>

#include "cli/commands.h"
#include "text/tokenizer.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {
namespace {

struct TokenizeOptions {
  std::string tokenizer;
  bool decode = false;
  bool add_special = false;
  bool no_special = false;
};

std::string read_stdin(size_t max_bytes) {
  const Fd fd(dup(0));
  if (!fd.valid()) throw_errno("dup", "standard input");
  std::string input;
  std::string block(256 << 10, '\0');
  while (const size_t got = read_some(fd, block.data(), block.size(), "standard input")) {
    input.append(block, 0, got);
    if (input.size() > max_bytes) {
      throw UsageError("too_large", "standard input: more than " + std::to_string(max_bytes) +
                                        " bytes; feed it in parts");
    }
  }
  return input;
}

std::vector<int32_t> parse_ids(const std::string& input) {
  const Json list = parse_json(input, "standard input", {.max_bytes = Tokenizer::kMaxText});
  if (!list.is_array()) {
    throw UsageError("json_type", "standard input: expected a JSON array of token ids");
  }
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX) {
      throw UsageError("token_id", "standard input: element " + std::to_string(ids.size()) +
                                       " is not a token id (an integer from 0)");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

std::string format_ids(const std::vector<int32_t>& ids) {
  std::string out = "[";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(ids[i]);
  }
  return out + "]\n";
}

void tokenize(const TokenizeOptions& options) {
  const Tokenizer tokenizer = Tokenizer::load(options.tokenizer);
  const std::string input = read_stdin(Tokenizer::kMaxText);
  const std::string output = options.decode
                                 ? tokenizer.decode(parse_ids(input), options.no_special)
                                 : format_ids(tokenizer.encode(input, options.add_special));
  std::cout << output << std::flush;
  if (!std::cout) throw EnvironmentError("io", "standard output: cannot write");
}

}  // namespace

void add_tokenize(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App* command = app.add_subcommand(
      "tokenize", "Text on stdin to a JSON array of token ids, or ids back to text");
  command->add_option("--tokenizer", options->tokenizer, "tokenizer.json (or .zst)")
      ->required()
      ->type_name("FILE");
  command->add_flag("--decode", options->decode, "Read a JSON array of ids, write its text");
  CLI::Option* add = command->add_flag("--add-special", options->add_special,
                                       "Encode with what the file adds to a text, such as <bos>");
  command
      ->add_flag("--no-special", options->no_special,
                 "Decode without showing special tokens; encoding adds none unless asked")
      ->excludes(add);
  command->callback([options, &exit_code] {
    tokenize(*options);
    exit_code = 0;
  });
}

}  // namespace cbench
