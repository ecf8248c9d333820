// Reads what a Harbor task directory says about itself (task.toml, schemas 1.0 to 1.4).
#pragma once

#include <string>
#include <vector>

namespace cbench {

struct HarborMetadata {
  std::string json;                   ///< one object, schema cbench.harbor.v1 (docs/contract.md)
  std::vector<std::string> warnings;  ///< keys that are not understood, old spellings
};

/// Both spellings of version, sizes and network are read; what is not understood is kept under
/// "x_harbor" and warned of, never dropped. Throws UsageError ("harbor") for files that are no such
/// task: syntax, wrong types, a name that is none, no instruction or test script.
HarborMetadata import_harbor(const std::string& directory);

}  // namespace cbench
