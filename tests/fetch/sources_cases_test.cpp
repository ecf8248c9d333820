// Cases of the data sources: rows, document shards, papers.
#include <sstream>

#include <zlib.h>
#include <zstd.h>

#include "fetch/line_decoder.h"
#include "fetch/rig.h"

namespace cbench {
namespace {

FakeReply json(std::string body) {
  return {200, {{"Content-Type", "application/json"}}, std::move(body)};
}

std::string query_value(const FakeRequest& request, const std::string& key) {
  std::istringstream fields(request.query);
  for (std::string field; std::getline(fields, field, '&');) {
    if (field.starts_with(key + "=")) return field.substr(key.size() + 1);
  }
  return "";
}

/// /rows of a data set with `total` rows {"n": i}.
FakeReply rows_answer(const FakeRequest& request, int64_t total, bool partial = false) {
  const int64_t offset = std::stoll(query_value(request, "offset"));
  const int64_t length = std::stoll(query_value(request, "length"));
  if (length > 100) return {422, {}, "{\"error\":\"length must not be greater than 100\"}"};
  std::string rows;
  for (int64_t i = offset; i < std::min(total, offset + length); ++i) {
    rows += (rows.empty() ? "" : ",") + std::string("{\"row_idx\":") + std::to_string(i) +
            ",\"row\":{\"n\":" + std::to_string(i) + "},\"truncated_cells\":[]}";
  }
  FakeReply reply =
      json("{\"features\":[],\"rows\":[" + rows + "],\"num_rows_total\":" + std::to_string(total) +
           ",\"partial\":" + (partial ? "true" : "false") + "}");
  reply.headers.emplace_back("X-Revision", std::string(40, 'c'));
  return reply;
}

FetchPlan rows_plan(const Rig& rig, int64_t count, uint64_t seed = 0) {
  FetchPlan plan;
  plan.root = rig.root();
  plan.items.push_back({"data/rows.jsonl", RowsItem{"org/set", "main", "train", 0, count, seed}});
  return plan;
}

std::string zstd_frame(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::vector<std::string> lines_of(LineDecoder::Format format, const std::string& bytes,
                                  size_t chunk, size_t max_line = 1000) {
  std::vector<std::string> lines;
  LineDecoder decoder(format, "test", max_line, [&](std::string_view line, bool too_long) {
    lines.push_back(too_long ? "<long>" : std::string(line));
    return true;
  });
  for (size_t at = 0; at < bytes.size(); at += chunk)
    decoder.feed(std::string_view(bytes).substr(at, chunk));
  decoder.end();
  return lines;
}

std::string document(const std::string& id, const std::string& text) {
  return "{\"id\":\"" + id + "\",\"text\":\"" + text +
         "\",\"source\":\"web\",\"warcinfo\":{\"a\":[1,2]},\"sa_remove_ranges\":[[0,1]]}\n";
}

/// A Dolma-like hub: two families of two shards with 50 documents each.
struct DolmaRig : Rig {
  DolmaRig() {
    hub.type = "datasets";
    for (const std::string shard : {"web/0", "web/1", "math/0", "math/1"}) {
      std::string text;
      for (int i = 0; i < 50; ++i) {
        text +=
            document(shard + "-" + std::to_string(i), "text " + shard + " " + std::to_string(i));
      }
      hub.add("data/" + shard + ".jsonl.zst", zstd_frame(text), true);
    }
    hub.add("README.md", "not a shard", false);
  }
  FetchPlan plan(int64_t count = 5, uint64_t seed = 1) {
    FetchPlan out;
    out.root = root();
    DolmaItem item;
    item.repo.id = hub.repo;
    item.families = {{"web", {"*web*"}, count}, {"math", {"*math*"}, count}};
    item.seed = seed;
    item.window = 3;
    out.items.push_back({"documents.jsonl", item});
    return out;
  }
  std::vector<Json> documents() {
    std::vector<Json> out;
    std::istringstream lines(content("documents.jsonl"));
    for (std::string line; std::getline(lines, line);) out.push_back(parse_json(line, "documents"));
    return out;
  }
};

constexpr const char* kPdf =
    "%PDF-1.1\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n2 0 obj<</Type/Pages/Kids[3 0 R]/Count "
    "1>>endobj\n"
    "3 0 obj<</Type/Page/Parent 2 0 R/MediaBox[0 0 300 300]/Contents 4 0 R/Resources<</Font<</F1 5 "
    "0 R>>>>>>"
    "endobj\n4 0 obj<</Length 50>>stream\nBT /F1 12 Tf 20 200 Td (Quantize every weight) Tj "
    "ET\nendstream endobj\n"
    "5 0 obj<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>endobj\ntrailer<</Root 1 0 R>>\n";

FetchPlan papers_plan(const Rig& rig, const std::string& base) {
  FetchPlan plan;
  plan.root = rig.root();
  plan.items.push_back({"papers", PapersItem{{{base + "/good.pdf", "A Good Paper", "", ""},
                                              {base + "/denied.pdf", "Denied", "", ""},
                                              {base + "/later.pdf", "Later", "", ""}}}});
  return plan;
}

}  // namespace

FETCH_CASE(rows_100) {
  Rig rig;
  rig.hub.before = [&](const FakeRequest& request) { return rows_answer(request, 250); };
  const FetchReport report = fetch_all(rows_plan(rig, 0), rig.options);
  std::string expected;
  for (int i = 0; i < 250; ++i) expected += "{\"n\":" + std::to_string(i) + "}\n";
  EXPECT_EQ(rig.content("data/rows.jsonl"), expected);
  EXPECT_EQ(report.items[0].revision, std::string(40, 'c'));
  EXPECT_EQ(rig.hub.server.requests().size(), 1u + 3u);
  fetch_all(rows_plan(rig, 0), rig.options);
  EXPECT_EQ(rig.hub.server.requests().size(), 4u) << "a second run asks nothing";

  Rig sampled;
  sampled.hub.before = [&](const FakeRequest& request) { return rows_answer(request, 100000); };
  fetch_all(rows_plan(sampled, 150, 7), sampled.options);
  const std::string first = sampled.content("data/rows.jsonl");
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 150);
  EXPECT_NE(first.substr(0, 8), "{\"n\":0}\n");
  std::filesystem::remove_all(sampled.root());
  fetch_all(rows_plan(sampled, 150, 7), sampled.options);
  EXPECT_EQ(sampled.content("data/rows.jsonl"), first) << "the seed decides";

  Rig bad;
  bad.hub.before = [&](const FakeRequest& request) { return rows_answer(request, 250, true); };
  EXPECT_EQ(code_of([&] { fetch_all(rows_plan(bad, 10), bad.options); }), "rows_partial");
  bad.hub.before = [&](const FakeRequest& request) { return rows_answer(request, 5); };
  EXPECT_EQ(code_of([&] { fetch_all(rows_plan(bad, 10), bad.options); }), "rows_short");
  int pages = 0;
  bad.hub.before = [&](const FakeRequest& request) { return rows_answer(request, 250 + pages++); };
  EXPECT_EQ(code_of([&] { fetch_all(rows_plan(bad, 0), bad.options); }), "rows_changed");
  bad.hub.before = [&](const FakeRequest&) { return FakeReply{200, {}, "<html>busy</html>"}; };
  EXPECT_EQ(code_of([&] { fetch_all(rows_plan(bad, 0), bad.options); }), "not_json");
}

FETCH_CASE(rows_not_ready) {
  Rig rig;
  int asked = 0;
  const FakeReply not_ready{500, {{"X-Error-Code", "ResponseNotReady"}}, "{}"};
  rig.hub.before = [&](const FakeRequest& request) {
    return asked++ < 3 ? not_ready : rows_answer(request, 3);
  };
  fetch_all(rows_plan(rig, 3), rig.options);
  EXPECT_EQ(rig.content("data/rows.jsonl"), "{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n");
  Rig never;
  never.hub.before = [&](const FakeRequest&) { return not_ready; };
  EXPECT_EQ(code_of([&] { fetch_all(rows_plan(never, 3), never.options); }), "rows_not_ready");
}

FETCH_CASE(jsonl_zst_frames) {
  using Format = LineDecoder::Format;
  const std::vector<std::string> expected = {"one", "two", "", "last"};
  const std::string frames = zstd_frame("one\ntw") + zstd_frame("o\n\n") + zstd_frame("last");
  for (const size_t chunk : {1, 7, 1000})
    EXPECT_EQ(lines_of(Format::kZstd, frames, chunk), expected);
  EXPECT_EQ(lines_of(Format::kPlain, "one\ntwo\n\nlast", 2), expected);
  EXPECT_EQ(lines_of(Format::kPlain, "a\n" + std::string(5000, 'x') + "\nb\n", 100),
            (std::vector<std::string>{"a", "<long>", "b"}));
  // A frame whose plain size is a multiple of the output block ends exactly there.
  const std::string big(512 << 10, '\n');
  EXPECT_EQ(lines_of(Format::kZstd, zstd_frame(big), 1 << 20).size(), big.size());
  EXPECT_EQ(code_of([&] { lines_of(Format::kZstd, frames.substr(0, frames.size() - 3), 5); }),
            "truncated");
  EXPECT_EQ(code_of([&] { lines_of(Format::kZstd, "not zstd at all", 5); }), "damaged");
  // A window of 256 MiB is refused before it is allocated.
  const std::string huge_window("\x28\xb5\x2f\xfd\x00\x90\x00\x00\x00", 9);
  EXPECT_EQ(code_of([&] { lines_of(Format::kZstd, huge_window, 9); }), "damaged");
  std::string gzip(200, '\0');
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string text = "one\ntwo\n\nlast";
  stream.next_in = reinterpret_cast<Bytef*>(text.data());
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(gzip.data());
  stream.avail_out = static_cast<uInt>(gzip.size());
  deflate(&stream, Z_FINISH);
  gzip.resize(gzip.size() - stream.avail_out);
  deflateEnd(&stream);
  for (const size_t chunk : {1, 100}) EXPECT_EQ(lines_of(Format::kGzip, gzip, chunk), expected);
  EXPECT_EQ(code_of([&] { lines_of(Format::kGzip, gzip.substr(0, gzip.size() - 9), 5); }),
            "truncated");
}

FETCH_CASE(jsonl_schema_drift) {
  DolmaRig rig;
  fetch_all(rig.plan(), rig.options);
  const std::vector<Json> documents = rig.documents();
  ASSERT_EQ(documents.size(), 10u);
  for (size_t i = 0; i < documents.size(); ++i) {
    const Json& doc = documents[i];
    EXPECT_EQ(doc["family"], i < 5 ? "web" : "math");
    EXPECT_EQ(doc["sha256"], sha256_hex(doc["text"].get<std::string>()));
    EXPECT_EQ(doc["source"], "web");
    EXPECT_FALSE(doc.contains("warcinfo"));
    EXPECT_LE(doc["line"].get<int>(), 15) << "only the window is read";
  }
  const std::string first = rig.content("documents.jsonl");
  std::filesystem::remove_all(rig.root());
  fetch_all(rig.plan(), rig.options);
  EXPECT_EQ(rig.content("documents.jsonl"), first) << "the seed decides";
  std::filesystem::remove_all(rig.root());
  fetch_all(rig.plan(5, 2), rig.options);
  EXPECT_NE(rig.content("documents.jsonl"), first);

  for (const auto& name : {"data/web/0.jsonl.zst", "data/web/1.jsonl.zst"}) {
    rig.hub.add(name, zstd_frame("{\"id\":\"x\",\"source\":\"s\"}\n"), true);
  }
  EXPECT_EQ(code_of([&] { fetch_all(rig.plan(5, 3), rig.options); }), "bad_document");
  for (const auto& name : {"data/web/0.jsonl.zst", "data/web/1.jsonl.zst"}) {
    rig.hub.add(name,
                zstd_frame(document("a", "t") + "{\"id\":\"b\",\"text\":\"\xff\"}\nnonsense\n" +
                           document("a", "again") + document("c", "")),
                true);
  }
  EXPECT_EQ(code_of([&] { fetch_all(rig.plan(2, 4), rig.options); }), "too_few")
      << "bad lines, duplicate ids and empty texts are passed over";
  for (const auto& name : {"data/web/0.jsonl.zst", "data/web/1.jsonl.zst"}) {
    rig.hub.add(name,
                zstd_frame("{\"language\":\"en\",\"text\":\"t\",\"warc_record_id\":\"w1\"}\n"
                           "{\"language\":\"en\",\"text\":\"u\",\"warc_record_id\":\"w2\"}\n"),
                true);
  }
  fetch_all(rig.plan(2, 6), rig.options);
  EXPECT_EQ(rig.documents()[0]["id"], "w1") << "web records name themselves otherwise";
  rig.hub.add("data/web/0.jsonl.zst", rig.hub.files["data/web/0.jsonl.zst"].content.substr(0, 20),
              true);
  rig.hub.add("data/web/1.jsonl.zst", rig.hub.files["data/web/0.jsonl.zst"].content, true);
  EXPECT_EQ(code_of([&] { fetch_all(rig.plan(2, 5), rig.options); }), "truncated");
}

FETCH_CASE(arxiv) {
  Rig rig;
  FakeServer publisher;
  std::vector<double> times;
  publisher.handle([&](const FakeRequest& request) {
    times.push_back(
        static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count()) * 1e-9);
    EXPECT_TRUE(request.header("user-agent").starts_with("cbench/"));
    if (request.path == "/good.pdf")
      return FakeReply{200, {{"Content-Type", "application/pdf"}}, kPdf};
    return FakeReply{200, {{"Content-Type", "text/html"}}, "<html><h1>Access Denied</h1></html>"};
  });
  rig.options.paper_interval = 50;  // 0.1 s at the tests' scale
  const FetchPlan plan = papers_plan(rig, publisher.url());
  FetchReport report = fetch_all(plan, rig.options);
  EXPECT_FALSE(report.complete());
  EXPECT_EQ(report.items[0].problems.size(), 2u);
  EXPECT_EQ(publisher.requests().size(), 2u) << "no further request after Access Denied";
  ASSERT_EQ(times.size(), 2u);
  EXPECT_GE(times[1] - times[0], 0.09);
  EXPECT_NE(rig.content("papers/text/a-good-paper.txt").find("Quantize every weight"),
            std::string::npos);
  const Json entry = parse_json(rig.content("papers/papers.jsonl"), "papers.jsonl");
  EXPECT_EQ(entry["title"], "A Good Paper");
  EXPECT_EQ(entry["words"], 3);
  EXPECT_NE(rig.content("papers/INDEX.txt").find("text/a-good-paper.txt"), std::string::npos);

  publisher.handle([&](const FakeRequest&) { return FakeReply{200, {}, kPdf}; });
  publisher.forget_requests();
  report = fetch_all(plan, rig.options);
  EXPECT_TRUE(report.complete());
  EXPECT_EQ(publisher.requests().size(), 2u) << "what was there is not asked for again";
  EXPECT_TRUE(fetch_all(plan, rig.options).unchanged());
}

/// A publisher of one good PDF under every name, and a program in place of pdftotext.
struct PaperRig : Rig {
  PaperRig() {
    publisher.handle([](const FakeRequest&) { return FakeReply{200, {}, kPdf}; });
    options.paper_interval = 0;
  }
  void program(const std::string& text) {
    std::filesystem::permissions(dir.path(), std::filesystem::perms(0755));
    write_file_atomic(dir.path() + "/converter", "#!/bin/sh\n" + text, 0755);
    options.pdftotext = dir.path() + "/converter";
  }
  FetchReport fetch_papers() { return fetch_all(papers_plan(*this, publisher.url()), options); }
  std::string problem() { return fetch_papers().items[0].problems.at(0); }
  FakeServer publisher;
};

TEST(Papers, APdfThatHangsIsKilled) {
  PaperRig rig;
  rig.program("sleep 60\n");
  rig.options.pdf_seconds = 0.2;
  const FetchReport report = rig.fetch_papers();
  ASSERT_EQ(report.items[0].problems.size(), 3u);
  EXPECT_NE(report.items[0].problems[0].find("was killed"), std::string::npos);
}

TEST(Papers, AGigabyteOfTextIsRefused) {
  PaperRig rig;
  rig.program("head -c 1073741824 /dev/zero\n");
  EXPECT_NE(rig.problem().find("more than 32 MiB"), std::string::npos);
  rig.program("head -c 1073741824 /dev/zero > /tmp/out && echo written\n");
  EXPECT_NE(rig.problem().find("pdftotext failed"), std::string::npos);
}

TEST(Papers, TheConverterSeesItsPdfAndNothingElse) {
  PaperRig rig;
  write_file_atomic(rig.dir.path() + "/secret", "hidden text\n", 0644);
  rig.program("head -c 5\nid -u\ncat " + rig.dir.path() + "/secret\nls /work /root /home\n" +
              "ls /sys/class/net\necho > /usr/here && echo wrote\ntrue\n");
  ASSERT_TRUE(rig.fetch_papers().complete());
  const std::string text = rig.content("papers/text/a-good-paper.txt");
  EXPECT_TRUE(text.starts_with("%PDF-65534\n")) << text;
  for (const char* word : {"hidden", "wrote", "eth0"})
    EXPECT_EQ(text.find(word), std::string::npos) << text;
}

TEST(Papers, WithoutPdftotextNoPublisherIsAsked) {
  PaperRig rig;
  for (const char* name : {"pdftotext-that-is-not-there", "/nowhere/pdftotext"}) {
    rig.options.pdftotext = name;
    std::string message;
    EXPECT_EQ(code_of([&] { rig.fetch_papers(); }, &message), "no_pdftotext");
    EXPECT_NE(message.find("poppler-utils"), std::string::npos) << message;
  }
  EXPECT_TRUE(rig.publisher.requests().empty());
}

}  // namespace cbench
