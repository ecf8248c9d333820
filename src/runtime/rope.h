// Rotary frequencies of a model.
#pragma once

#include <vector>

#include "model/config.h"

namespace cbench {

/// inv_freq [rotary / 2] = theta^(-2i / rotary), scaled as Llama 3 does when the config asks for it
/// (Hugging Face transformers, modeling_rope_utils: "llama3").
std::vector<float> rope_frequencies(const ModelConfig& config);

}  // namespace cbench
