// What the fetch tests share: a fake Hub, a folder, quick options, and the registry of named cases.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "fetch/fake_hub.h"
#include "fetch/plan.h"
#include "fetch/sources.h"
#include "util/error.h"
#include "util/file.h"
#include "util/json.h"

namespace cbench {

using CaseTable = std::map<std::string, std::function<void()>>;
inline CaseTable& case_table() {
  static CaseTable table;
  return table;
}

/// FETCH_CASE(id) { ... } is the test of the line of cases.jsonl with this id.
#define FETCH_CASE(id)                                        \
  static void case_##id();                                    \
  [[maybe_unused]] static const bool registered_##id =        \
      ::cbench::case_table().emplace(#id, &case_##id).second; \
  static void case_##id()

/// The code of the Error that `run` throws, "" for none.
inline std::string code_of(const std::function<void()>& run, std::string* message = nullptr) {
  try {
    run();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  return "";
}

inline FetchOptions quick_options(const std::string& endpoint) {
  ::unsetenv("http_proxy");
  ::unsetenv("HTTP_PROXY");
  ::unsetenv("all_proxy");
  FetchOptions options;
  options.hub.endpoint = endpoint;
  options.hub.rows_endpoint = endpoint;
  options.http.time_scale = 0.002;
  options.http.stall_seconds = 5;  // a loaded machine is not a stalled server
  options.http.connect_seconds = 2;
  options.http.exchange_seconds = 30;
  options.quiet = true;
  return options;
}

struct Rig {
  FakeHub hub;
  TempDir dir{"cbench-fetch"};
  FetchOptions options = quick_options(hub.url());

  std::string root() const { return dir.path() + "/out"; }
  FetchPlan repo_plan() {
    FetchPlan plan;
    plan.root = root();
    HubRepoItem item;
    item.repo = {hub.type == "models" ? RepoType::kModel : RepoType::kDataset, hub.repo};
    plan.items.push_back({"", item});
    return plan;
  }
  FetchPlan url_plan(const std::string& url, const std::string& sha256 = "") {
    FetchPlan plan;
    plan.root = root();
    plan.items.push_back({"file", UrlItem{url, sha256}});
    return plan;
  }
  FetchReport fetch() { return fetch_all(repo_plan(), options); }
  std::string content(const std::string& name) const { return read_file(root() + "/" + name); }
  bool exists(const std::string& name) const {
    return std::filesystem::exists(root() + "/" + name);
  }
};

/// A client with the quick options, for tests below the level of plans.
struct ClientRig : Rig {
  HttpContext context{options.http};
  HttpClient client{context};
  Hub protocol() { return Hub(client, options.hub); }
  HubRepo repo{RepoType::kModel, "org/name"};
};

}  // namespace cbench
