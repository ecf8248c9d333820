// Rotary frequencies of a model.
#pragma once

#include <vector>

#include "model/config.h"

namespace cbench {

/// inv_freq [rotary / 2] = theta^(-2i / rotary) for the pairs that turn, 0 for the others; divided
/// by the factor, or scaled as Llama 3 does when the config asks for it (Hugging Face transformers,
/// modeling_rope_utils: "default", "proportional", "llama3").
std::vector<float> rope_frequencies(const RopeConfig& rope);

}  // namespace cbench
