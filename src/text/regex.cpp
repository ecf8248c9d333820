#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <array>

#include <pcre2.h>

#include "text/unicode.h"
#include "util/error.h"
#include "util/text.h"

namespace cbench {
namespace {

constexpr size_t kMaxPattern = 64 << 10;
constexpr uint32_t kMatchLimit = 5'000'000;
constexpr uint32_t kHeapLimitKib = 256 << 10;
constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMax = 64u << 20;

/// Match data and JIT stack of one thread; every match uses group 0 only.
struct ThreadState {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);

  ThreadState() {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;
  ~ThreadState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
};

ThreadState& thread_state() {
  thread_local ThreadState state;
  return state;
}

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

struct Regex::Code {
  pcre2_code* compiled = nullptr;
  std::string pattern;
  ~Code() { pcre2_code_free(compiled); }
};

Regex::Regex(std::string_view pattern, Syntax syntax) : code_(std::make_unique<Code>()) {
  if (pattern.size() > kMaxPattern) {
    throw UsageError("regex", "regular expression of " + std::to_string(pattern.size()) +
                                  " bytes; at most " + std::to_string(kMaxPattern) +
                                  " are allowed");
  }
  code_->pattern = pattern;
  const std::string text =
      syntax == Syntax::kOniguruma ? translate_oniguruma(pattern) : std::string(pattern);
  std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  constexpr uint32_t kOptions =
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | PCRE2_NO_UTF_CHECK;
  int error = 0;
  size_t offset = 0;
  code_->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), kOptions,
                                  &error, &offset, context.get());
  if (code_->compiled == nullptr) {
    throw UsageError("regex", "regular expression \"" + printable(pattern) +
                                  "\" does not compile: " + pcre2_message(error));
  }
  // Without JIT (a kernel that forbids it) the interpreter does the same, slower.
  (void)pcre2_jit_compile(code_->compiled, PCRE2_JIT_COMPLETE);
}

Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

bool Regex::find(std::string_view text, size_t from, size_t& begin, size_t& end) const {
  ThreadState& state = thread_state();
  const int result = pcre2_match(code_->compiled, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                 text.size(), from, PCRE2_NO_UTF_CHECK, state.data, state.context);
  if (result == PCRE2_ERROR_NOMATCH) return false;
  if (result < 0) {
    throw UsageError("regex_limit", "regular expression \"" + printable(code_->pattern) +
                                        "\" gave up on a text of " + std::to_string(text.size()) +
                                        " bytes: " + pcre2_message(result));
  }
  const size_t* offsets = pcre2_get_ovector_pointer(state.data);
  begin = offsets[0];
  end = offsets[1];
  // \K inside a lookaround can report a start behind the end or before the search start.
  if (begin > end || begin < from) {
    throw UsageError("regex", "regular expression \"" + printable(code_->pattern) +
                                  "\" moves the start of its match (\\K); that is not supported");
  }
  return true;
}

size_t Regex::next_char(std::string_view text, size_t at) {
  return at < text.size() ? at + utf8_length(text[at]) : at + 1;
}

bool Regex::search(std::string_view text) const {
  size_t begin = 0;
  size_t end = 0;
  return find(text, 0, begin, end);
}

}  // namespace cbench
