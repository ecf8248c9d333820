#include "report/html.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "util/markup.h"
#include "util/text.h"
#include "util/units.h"

namespace cbench {
namespace {

constexpr const char* kStyle =
    "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 "
    "1em;color:#222}"
    "table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.3em .7em;"
    "border-bottom:1px solid #ddd;white-space:nowrap}td.n,th.n{text-align:right;"
    "font-variant-numeric:tabular-nums}td.r{white-space:normal;color:#666}"
    "tr.off{color:#888}svg{background:#fafafa;border:1px solid #ddd;margin:.5em 1em .5em 0}"
    "figure{display:inline-block;margin:0 1em 1em 0}figcaption{font-size:13px;color:#555}";

std::string escape(std::string_view raw) { return escape_markup(repair_utf8(raw)); }

std::string fixed(const Figure& value, int places) {
  if (!value || !std::isfinite(*value)) return "–";
  std::array<char, 64> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%.*f", places, *value);
  return buffer.data();
}

std::string bytes(const Figure& value) {
  return value ? format_size(static_cast<int64_t>(*value)) : "–";
}

std::string numeric(const std::string& text) { return "<td class=n>" + text + "</td>"; }

std::string interval(const VerdictFigures& v) {
  if (!v.ln_f_low || !v.ln_f_high) return "–";
  return fixed(std::exp(*v.ln_f_low), 4) + "–" + fixed(std::exp(*v.ln_f_high), 4);
}

std::string row(const RankedRun& ranked) {
  const RunRecord& run = ranked.run;
  const VerdictFigures& v = run.final;
  const Figure accuracy = v.accuracy ? Figure(*v.accuracy * 100) : std::nullopt;
  std::string out = ranked.rank > 0 ? "<tr>" : "<tr class=off>";
  out += numeric(ranked.rank > 0 ? std::to_string(ranked.rank) : "–");
  out += "<td>" + escape(run.agent + (run.agent_model.empty() ? "" : " / " + run.agent_model)) +
         "</td><td>" + escape(run.run_id) + "</td><td>" + escape(v.status) + "</td>";
  out += numeric(fixed(v.reward, 3)) + numeric(interval(v)) + numeric(fixed(v.ppl, 4)) +
         numeric(fixed(accuracy, 1)) + numeric(bytes(v.package_bytes)) +
         numeric(bytes(v.resident_bytes)) + numeric(fixed(v.bits_per_parameter, 2)) +
         numeric(fixed(v.tokens_per_second, 1)) + numeric(fixed(run.hours_used, 2)) +
         numeric(fixed(run.cost_usd, 2));
  return out + "<td class=r>" + escape(ranked.rank > 0 ? "" : printable(v.reason, 160)) +
         "</td></tr>\n";
}

struct Point {
  double x, y;
  std::string label;
};

/// Dots, optionally joined, in a box with its extremes written beside the axes.
std::string plot(const std::vector<Point>& points, const std::string& caption, bool joined) {
  if (points.empty()) return "";
  const auto [left, right] = std::minmax_element(
      points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  const auto [low, high] = std::minmax_element(
      points.begin(), points.end(), [](const Point& a, const Point& b) { return a.y < b.y; });
  const double width = std::max(right->x - left->x, 1e-9);
  const double height = std::max(high->y - low->y, 1e-9);
  std::string dots, line;
  for (const Point& point : points) {
    const std::string x = fixed(60 + 320 * (point.x - left->x) / width, 1);
    const std::string y = fixed(160 - 140 * (point.y - low->y) / height, 1);
    line += x + "," + y + " ";
    dots += "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"4\" fill=\"#0a58ca\"><title>" +
            escape(point.label) + "</title></circle>";
  }
  std::string out = "<figure><svg width=\"400\" height=\"200\">";
  if (joined) out += "<polyline fill=\"none\" stroke=\"#9bf\" points=\"" + line + "\"/>";
  const auto label = [&](int x, int y, double value, const char* anchor) {
    out += "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) +
           "\" font-size=\"11\" text-anchor=\"" + anchor + "\">" + fixed(value, 3) + "</text>";
  };
  out += dots;
  label(52, 24, high->y, "end");
  label(52, 164, low->y, "end");
  label(60, 185, left->x, "start");
  label(380, 185, right->x, "end");
  return out + "</svg><figcaption>" + escape(caption) + "</figcaption></figure>\n";
}

std::string figures(const std::vector<RankedRun>& runs, const std::string& task) {
  std::vector<Point> quality;
  std::string out;
  for (const RankedRun& ranked : runs) {
    const RunRecord& run = ranked.run;
    if (run.task != task) continue;
    if (ranked.rank > 0 && run.final.bits_per_parameter) {
      quality.push_back({*run.final.bits_per_parameter, *run.final.reward, run.run_id});
    }
    std::vector<Point> versions;
    for (const auto& [name, verdict] : run.version_verdicts) {
      if (!verdict.reward) continue;
      versions.push_back({static_cast<double>(versions.size() + 1), *verdict.reward,
                          name + ": " + fixed(verdict.reward, 3)});
    }
    out += plot(versions, run.run_id + ": reward of each version", true);
  }
  return plot(quality, "reward against bits per parameter", false) + out;
}

constexpr const char* kHead =
    "<table><tr><th class=n>rank</th><th>agent</th><th>run</th><th>status</th><th "
    "class=n>reward</th>"
    "<th class=n>F, 95 %</th><th class=n>PPL</th><th class=n>accuracy %</th><th "
    "class=n>package</th>"
    "<th class=n>resident</th><th class=n>bits/parameter</th><th class=n>tok/s</th>"
    "<th class=n>hours</th><th class=n>USD</th><th>reason</th></tr>\n";

}  // namespace

std::string report_html(const std::vector<RankedRun>& runs) {
  std::string out =
      "<!doctype html><html lang=en><meta charset=utf-8><title>cbench report</title>"
      "<style>" +
      std::string(kStyle) +
      "</style>\n<h1>cbench report</h1>\n"
      "<p>Ranks count the runs that are better beyond the noise of the text blocks; "
      "equal ranks are ties.</p>\n";
  for (size_t i = 0; i < runs.size();) {
    const std::string task = runs[i].run.task;
    out += "<h2>" + escape(task) + "</h2>\n" + kHead;
    for (; i < runs.size() && runs[i].run.task == task; ++i) out += row(runs[i]);
    out += "</table>\n" + figures(runs, task);
  }
  return out + "</html>\n";
}

}  // namespace cbench
