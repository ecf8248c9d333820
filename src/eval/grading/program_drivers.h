// The two Python programs around a generated one: the candidate's side and the test's side.
#pragma once

#include <string>

namespace cbench {

/// Runs in the candidate's box. stdin: JSON {source, entry_point}; descriptor 3: the connection.
std::string candidate_driver();

/// Runs in the test's box. stdin: JSON {prompt, test, entry_point, nonce}; descriptor 3: the
/// connection; descriptor 4: takes "<nonce> <verdict>\n".
std::string judge_driver();

}  // namespace cbench
