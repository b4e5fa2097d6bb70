#include "client/cpp/load/report.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/cpp/cli/table.h"
#include "fmt/format.h"

namespace nibble::load {
namespace {

using cli::Json;

// A generator that sends so late, against the latency that it measures, measures itself.
constexpr double kWorstLagShare = 0.1;

struct Percentile {
  const char* name;
  double share;
};
constexpr Percentile kPercentiles[] = {
    {"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p99_9", 0.999}, {"max", 1.0}};

double Micros(int64_t ns) { return static_cast<double>(ns) / 1e3; }
double Rounded(double value) { return std::round(value * 1000.0) / 1000.0; }

std::string Time(int64_t ns) { return cli::FormatMicros(Micros(ns)); }

std::string Rate(double rate) {
  return rate < 100.0 ? fmt::format("{:.1f}", rate) : fmt::format("{:.0f}", rate);
}

std::string LoadOf(const Entry& entry) {
  if (entry.callers == 0) return fmt::format("{}/s", Rate(entry.rate));
  return cli::Plural(entry.callers, "caller");
}

std::string StableText(const RunResult& result) {
  if (result.windows.size() < Stability::kWindows) return "too short";
  if (result.stability.stable) return "yes";
  return fmt::format("NO (rate {:.0f} %, p99 {:.0f} %)", result.stability.rate_spread_percent,
                     result.stability.p99_spread_percent);
}

std::vector<std::string> Row(const std::string& load, const std::string& rpc,
                             const RunResult& result) {
  const Tally& total = result.total;
  std::vector<std::string> cells = {load, rpc, Rate(result.answer_rate()), Rate(result.row_rate())};
  for (const Percentile& percentile : kPercentiles) {
    cells.push_back(Time(total.latency_ns.Quantile(percentile.share)));
  }
  cells.push_back(fmt::format("{}", total.failures() + total.mismatches));
  const bool executed = !total.kernels.empty();
  cells.push_back(executed ? fmt::format("{:.1f}", total.batch_rows.mean()) : "-");
  cells.push_back(executed ? cli::FormatMicros(total.queue_us.mean()) : "-");
  cells.push_back(executed ? cli::FormatMicros(total.compute_us.mean()) : "-");
  cells.push_back(fmt::format("{}/s", cli::FormatBytes(std::llround(result.request_bytes_rate()))));
  cells.push_back(fmt::format("{}/s", cli::FormatBytes(std::llround(result.reply_bytes_rate()))));
  cells.push_back(StableText(result));
  return cells;
}

double Share(double value, double of) { return of > 0.0 ? value / of : 0.0; }

std::string EchoShares(const std::string& load, const RunResult& result, const RunResult& echo) {
  const auto ratio = [&](double share) {
    return Share(static_cast<double>(result.total.latency_ns.Quantile(share)),
                 static_cast<double>(echo.total.latency_ns.Quantile(share)));
  };
  return fmt::format("{}: {:.0f} % of echo's rate; p50 {:.2f} and p99 {:.2f} times echo's\n", load,
                     100.0 * Share(result.answer_rate(), echo.answer_rate()), ratio(0.5),
                     ratio(0.99));
}

std::string NotesOf(const Entry& entry) {
  const RunResult& result = entry.result;
  const Tally& total = result.total;
  const std::string load = LoadOf(entry);
  std::string notes;
  for (const auto& [code, error] : total.errors) {
    notes += fmt::format("{}: {} {}: {}\n", load, error.count, code, error.message);
  }
  if (total.mismatches > 0) {
    notes += fmt::format("{}: {} WRONG ANSWERS; the first: {}\n", load, total.mismatches,
                         total.first_mismatch);
  }
  if (total.checked > 0) notes += fmt::format("{}: {} answers checked\n", load, total.checked);
  const int64_t lag_ns = total.send_lag_ns.Quantile(0.99);
  if (static_cast<double>(lag_ns) >
      kWorstLagShare * static_cast<double>(total.latency_ns.Quantile(0.99))) {
    notes += fmt::format(
        "{}: SEND LAG: 1 % of the requests were sent {} late or more: --max-in-flight held them "
        "back, or this machine is too slow for the load; latency includes it\n",
        load, Time(lag_ns));
  }
  if (result.given_up) notes += fmt::format("{}: GIVEN UP: the server fell behind\n", load);
  if (entry.callers == 0 && result.answer_rate() < 0.95 * result.offered_rate) {
    notes += fmt::format("{}: only {:.0f} % of the offered rate was answered in time\n", load,
                         100.0 * Share(result.answer_rate(), result.offered_rate));
  }
  if (entry.echo.has_value()) {
    const RunResult& echo = *entry.echo;
    if (echo.arrived.answers > 0) notes += EchoShares(load, result, echo);
    for (const auto& [code, error] : echo.total.errors) {
      notes += fmt::format("{}: echo: {} {}: {}{}\n", load, error.count, code, error.message,
                           code == "UNIMPLEMENTED" ? "(nibbled --enable-echo turns it on)" : "");
    }
  }
  return notes;
}

Json MicrosJson(const Histogram& ns) {
  Json json = {{"mean", Rounded(ns.mean() / 1e3)}};
  for (const Percentile& percentile : kPercentiles) {
    json[percentile.name] = Rounded(Micros(ns.Quantile(percentile.share)));
  }
  return json;
}

Json ValuesJson(const Histogram& values) {
  Json json = {{"mean", Rounded(values.mean())}};
  for (const Percentile& percentile : kPercentiles) {
    json[percentile.name] = values.Quantile(percentile.share);
  }
  return json;
}

Json ResultJson(const RunResult& result) {
  const Tally& total = result.total;
  Json errors = Json::object();
  for (const auto& [code, error] : total.errors) {
    errors[code] = {{"count", error.count}, {"message", error.message}};
  }
  Json windows = Json::array();
  for (const Window& window : result.windows) {
    windows.push_back({{"seconds", Rounded(window.seconds)},
                       {"answers_per_s", Rounded(window.rate())},
                       {"p99_us", Rounded(Micros(window.p99_ns))},
                       {"errors", window.failures}});
  }
  Json kernels = Json::object();
  for (const auto& [kernel, count] : total.kernels) kernels[kernel] = count;
  return {{"seconds", Rounded(result.seconds)},
          {"requests", total.requests},
          {"offered_per_s", Rounded(result.offered_rate)},
          {"answers_per_s", Rounded(result.answer_rate())},
          {"rows_per_s", Rounded(result.row_rate())},
          {"request_bytes_per_s", Rounded(result.request_bytes_rate())},
          {"reply_bytes_per_s", Rounded(result.reply_bytes_rate())},
          {"latency_us", MicrosJson(total.latency_ns)},
          {"send_lag_us", MicrosJson(total.send_lag_ns)},
          {"queue_us", ValuesJson(total.queue_us)},
          {"compute_us", ValuesJson(total.compute_us)},
          {"batch_rows", ValuesJson(total.batch_rows)},
          {"kernels", std::move(kernels)},
          {"error_share", Rounded(result.error_share())},
          {"errors", std::move(errors)},
          {"checked", total.checked},
          {"mismatches", total.mismatches},
          {"first_mismatch", total.first_mismatch},
          {"given_up", result.given_up},
          {"stable", result.stability.stable},
          {"rate_spread_percent", Rounded(result.stability.rate_spread_percent)},
          {"p99_spread_percent", Rounded(result.stability.p99_spread_percent)},
          {"windows", std::move(windows)}};
}

Json EntryJson(const Entry& entry) {
  Json json = {{"callers", entry.callers},
               {"rate", entry.rate},
               {"connections", entry.connections},
               {"threads", entry.threads}};
  json.update(ResultJson(entry.result));
  if (!entry.echo.has_value()) return json;
  json["echo"] = ResultJson(*entry.echo);
  Json shares = {{"rate", Rounded(Share(entry.result.answer_rate(), entry.echo->answer_rate()))}};
  for (const Percentile& percentile : kPercentiles) {
    shares[percentile.name] = Rounded(
        Share(static_cast<double>(entry.result.total.latency_ns.Quantile(percentile.share)),
              static_cast<double>(entry.echo->total.latency_ns.Quantile(percentile.share))));
  }
  json["over_echo"] = std::move(shares);
  return json;
}

Json StepJson(const FindMaxStep& step) {
  return {{"rate", Rounded(step.rate)},
          {"achieved_per_s", Rounded(step.probe.achieved_rate)},
          {"p99_ms", Rounded(step.probe.p99_ms)},
          {"error_share", Rounded(step.probe.error_share)},
          {"passed", step.passed},
          {"reason", step.reason}};
}

// A value as a cell of RFC 4180.
std::string CsvCell(const Json& value) {
  if (!value.is_string() && !value.is_array()) return value.dump();
  std::string text;
  if (value.is_array()) {
    for (const Json& item : value) {
      if (!text.empty()) text += ' ';
      text += item.get<std::string>();
    }
  } else {
    text = value.get<std::string>();
  }
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

// The numbers of an object, those of inner objects under "OUTER_INNER"; lists and counts by name,
// which differ from run to run, are left to the JSON report.
void Flatten(const Json& object, const std::string& prefix,
             std::vector<std::pair<std::string, std::string>>& cells) {
  for (const auto& [name, value] : object.items()) {
    if (name == "kernels" || name == "errors" || name == "windows") continue;
    if (value.is_object()) {
      Flatten(value, prefix + name + "_", cells);
    } else {
      cells.emplace_back(prefix + name, CsvCell(value));
    }
  }
}

}  // namespace

std::string TextOf(const Report& report) {
  std::string text;
  for (const Layer& layer : report.layers) {
    text += fmt::format("{} [{}, {}] on {}\n", layer.name, layer.n, layer.k, layer.device);
  }
  cli::Table table({"<LOAD", "<RPC", ">ANSWERS/s", ">ROWS/s", ">p50", ">p90", ">p99", ">p99.9",
                    ">MAX", ">ERRORS", ">BATCH", ">QUEUE", ">COMPUTE", ">IN", ">OUT", "<STABLE"});
  std::string notes;
  const bool stream = report.parameters.value("transport", "") == "stream";
  for (const Entry& entry : report.entries) {
    table.AddRow(Row(LoadOf(entry), stream ? "stream" : "matmul", entry.result));
    if (entry.echo.has_value()) table.AddRow(Row(LoadOf(entry), "echo", *entry.echo));
    notes += NotesOf(entry);
  }
  text += table.ToString() + notes;
  if (report.find_max.has_value()) {
    const FindMaxResult& found = *report.find_max;
    const double target_ms = report.parameters.value("p99_ms", 0.0);
    if (found.rate == 0.0) {
      text += fmt::format("no rate has its p99 within {:g} ms\n", target_ms);
    } else {
      text +=
          fmt::format("highest rate with p99 within {:g} ms: {}/s{}\n", target_ms, Rate(found.rate),
                      found.failed_rate > 0.0 ? "" : ", and no higher one was tried that failed");
    }
  }
  return text;
}

Json JsonOf(const Report& report) {
  Json layers = Json::array();
  for (const Layer& layer : report.layers) {
    layers.push_back(
        {{"name", layer.name}, {"n", layer.n}, {"k", layer.k}, {"device", layer.device}});
  }
  Json runs = Json::array();
  for (const Entry& entry : report.entries) runs.push_back(EntryJson(entry));
  Json json = {{"parameters", report.parameters}, {"layers", layers}, {"runs", runs}};
  if (report.find_max.has_value()) {
    Json steps = Json::array();
    for (const FindMaxStep& step : report.find_max->steps) steps.push_back(StepJson(step));
    json["find_max"] = {{"rate", Rounded(report.find_max->rate)},
                        {"failed_rate", Rounded(report.find_max->failed_rate)},
                        {"steps", std::move(steps)}};
  }
  return json;
}

std::string CsvOf(const Report& report) {
  std::string csv;
  for (const Entry& entry : report.entries) {
    std::vector<std::pair<std::string, std::string>> cells;
    Flatten(report.parameters, "flag_", cells);
    Flatten(EntryJson(entry), "", cells);
    std::string head;
    std::string line;
    for (const auto& [name, value] : cells) {
      if (!head.empty()) {
        head += ',';
        line += ',';
      }
      head += name;
      line += value;
    }
    if (csv.empty()) csv = head + "\r\n";
    csv += line + "\r\n";
  }
  return csv;
}

std::string TextOf(const FindMaxStep& step) {
  return fmt::format("{}/s: {}/s answered, p99 {}: {}", Rate(step.rate),
                     Rate(step.probe.achieved_rate), cli::FormatMicros(step.probe.p99_ms * 1e3),
                     step.passed ? "passed" : step.reason);
}

std::string TextOf(const Window& window, const Tally& so_far) {
  return fmt::format("{}/s  p99 {}  {} answers, {} failed so far", Rate(window.rate()),
                     Time(window.p99_ns), so_far.volume.answers,
                     so_far.failures() + so_far.mismatches);
}

}  // namespace nibble::load
