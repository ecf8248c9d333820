// Makes the driver and the libraries take what they keep for good, before memory is first measured.
#pragma once

namespace cbench::cuda {

/// Runs a small random hybrid of the suite's head shapes through prefill, a step of several
/// sequences and recorded decoding, on backends of its own: loads the kernels' modules, cuBLASLt's
/// and the graph machinery. Nothing of it stays but those.
void warm_up_device(int device);

}  // namespace cbench::cuda
