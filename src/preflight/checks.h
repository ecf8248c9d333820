// Inside the preflight: the checks by what they look at. Each adds at least one line.
#pragma once

#include "preflight/preflight.h"

namespace cbench {

bool needs_cuda(const Contract& contract, const PreflightOptions& options);

// machine_checks.cpp
void check_build(const Contract& contract, const PreflightOptions& options, CheckLines& lines);
void check_compilers(const Contract& contract, const PreflightOptions& options, CheckLines& lines);
void check_clock(const Contract& contract, CheckLines& lines);
void check_disk(const Contract& contract, const PreflightOptions& options, CheckLines& lines);
/// Free bytes where `path` is or would be. Throws EnvironmentError.
int64_t free_bytes(const std::string& path);

// gpu_checks.cpp
void check_gpu(const Contract& contract, const PreflightOptions& options, CheckLines& lines);

// box_checks.cpp
void check_box(const PreflightOptions& options, CheckLines& lines);
void check_isolation(const PreflightOptions& options, CheckLines& lines);
void check_python(const PreflightOptions& options, CheckLines& lines);
void check_docker(const Contract& contract, const PreflightOptions& options, CheckLines& lines);
void check_leftovers(const PreflightOptions& options, CheckLines& lines);

// agent_checks.cpp
void check_route(const PreflightOptions& options, CheckLines& lines);
void check_agent_start(const PreflightOptions& options, CheckLines& lines);
void check_agent_run(const PreflightOptions& options, CheckLines& lines);

// task_checks.cpp
void check_checkpoint(const Contract& contract, CheckLines& lines);
void check_fetched(const Contract& contract, const PreflightOptions& options, CheckLines& lines);
void check_token(const Contract& contract, CheckLines& lines);
void check_selection(const Contract& contract, CheckLines& lines);
void check_reference(const Contract& contract, CheckLines& lines);
void check_model(const Contract& contract, const PreflightOptions& options, CheckLines& lines);

}  // namespace cbench
