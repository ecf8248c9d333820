// The convolution of a gated delta net: q|k|v, with the L2 norm of q and k.
#include "conv.h"
#include "delta.h"

namespace cbench::cuda {
namespace {

ConvCall conv_call(const DeltaCall& call, void* out) {
  const DeltaNetSpec& s = *call.spec;
  ConvCall c;
  c.in = call.in, c.out = out, c.weight = s.conv_weight;
  c.state = call.state.conv, c.batch = call.batch;
  c.channels = s.conv_rows(), c.taps = s.conv, c.width = call.width();
  c.key_heads = s.key_heads, c.key_dim = s.key_dim, c.value_dim = s.value_dim;
  return c;
}

}  // namespace

void delta_conv(const DeltaCall& call, const DeltaScratch& scratch) {
  conv(conv_call(call, scratch.conv), call.stream);
}

void delta_conv_state(const DeltaCall& call) { conv_state(conv_call(call, nullptr), call.stream); }

}  // namespace cbench::cuda
