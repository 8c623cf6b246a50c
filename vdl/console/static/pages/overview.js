// The first page: health, servers, plots.

import { get } from "../api.js";
import { Chart } from "../chart.js";
import { h, keep, render } from "../dom.js";
import { brief, bytesPerSecond, count, counted, duration, perSecond, short, visible } from "../format.js";
import { Poll } from "../poll.js";
import { to } from "../route.js";
import { badge, failure, figure, figures, head, link, loading, section } from "../ui.js";
import { serverTable } from "./servers.js";

const SERIES_SECONDS = 2;
const PROBLEM_TEXTS_MAX = 3;
const percent = (share) => (share === null ? "–" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`);

const PLOTS = [
  ["Records in", [["records", "records_in_per_second"]], perSecond],
  ["Bytes", [["in", "bytes_in_per_second"], ["out", "bytes_out_per_second"]], bytesPerSecond],
  ["Produce latency", [["median", "produce_seconds_p50"], ["99 %", "produce_seconds_p99"]], duration, brief],
  ["Append to delivery", [["median", "delivery_seconds_p50"], ["99 %", "delivery_seconds_p99"]], duration, brief],
  ["Requests", [["requests", "requests_per_second"]], perSecond],
  ["Load", [["CPU", "cpu_ratio"], ["event loop late", "loop_late_ratio"]], percent],
  ["Client connections", [["connections", "client_connections"]], short],
];

export function showOverview({ root, health, session }) {
  const plots = new Plots();
  const draw = () => {
    const { overview, error } = health;
    if (!overview) render(root, error ? failure(error, health.now) : loading());
    else render(root, view(overview, session, plots));
  };
  root.dataset.page = "overview";
  draw();
  const endListening = health.listen(draw);
  plots.start();
  return () => {
    endListening();
    plots.stop();
  };
}

function view(overview, session, plots) {
  const { counts, rates } = overview;
  const down = counts.servers - counts.servers_up;
  return [
    head("Overview"),
    healthBox(overview),
    figures(
      figure("Servers up", `${counts.servers_up} of ${counts.servers}`, { address: to(["servers"]), state: down ? "bad" : "" }),
      figure("Topics", count(counts.topics), {
        address: to(["topics"]),
        note: counts.internal_topics ? `and ${count(counts.internal_topics)} internal` : "",
      }),
      figure("Partitions", count(counts.partitions)),
      figure("Without leader", count(counts.partitions_without_leader), { state: counts.partitions_without_leader ? "bad" : "" }),
      figure("Under-replicated", count(counts.under_replicated), { state: counts.under_replicated ? "warn" : "" }),
      figure("Consumer groups", count(counts.groups), { address: to(["groups"]) }),
      figure("Records in", perSecond(rates?.records_in_per_second ?? null)),
      figure("Bytes in", bytesPerSecond(rates?.bytes_in_per_second ?? null)),
      figure("Bytes out", bytesPerSecond(rates?.bytes_out_per_second ?? null)),
    ),
    section("Servers", serverTable(overview.servers)),
    section(`Server ${session.server} in the last ten minutes`, keep(plots.node)),
  ];
}

function healthBox(overview) {
  const { problems, is_ok: isOk } = overview;
  const scope =
    overview.problems_of === "server"
      ? h("p", { class: "note" }, "These are the problems that this server sees: the other servers could not be asked.")
      : null;
  if (!problems.length && isOk) {
    return h("div", { class: "box ok health" }, h("p", {}, badge("ok", "all is well"), " The servers report no problem."), scope);
  }
  return h(
    "div",
    { class: `box ${isOk ? "ok" : "bad"} health` },
    isOk ? h("p", {}, badge("ok", "all is well")) : h("p", {}, badge("bad", counted(problems.filter((one) => one.is_wrong).length, "problem"))),
    h(
      "ul",
      { class: "lines" },
      problems.flatMap((one) =>
        (one.texts.length ? one.texts.slice(0, PROBLEM_TEXTS_MAX) : [one.meaning]).map((text) =>
          h("li", {}, link(to(["problems"], { kind: one.kind }), h("code", {}, one.kind)), `: ${visible(text)}`),
        ),
      ),
    ),
    scope,
  );
}

// Plots of this server: new points are added to the ones that are there.
class Plots {
  #charts = PLOTS.map(([title, lines, format, axis]) =>
    new Chart(title, lines.map(([label, name]) => ({ label, name })), format, axis));
  #times = [];
  #values = {};
  #poll = null;
  #note = h("p", { class: "note", role: "status" });
  node = h("div", {}, h("div", { class: "charts" }, this.#charts.map((chart) => chart.node)), this.#note);

  start() {
    this.#poll = new Poll((signal) => this.#load(signal), SERIES_SECONDS);
  }

  stop() {
    this.#poll.stop();
  }

  async #load(signal) {
    try {
      this.#add(await get("series", { since: this.#times.at(-1) ?? null }, signal));
      this.#note.textContent = "";
    } catch (error) {
      if (signal.aborted) return false;
      this.#note.textContent = `The plots have stopped. ${error.message}`;
      return false;
    }
    for (const chart of this.#charts) chart.update(this.#times, this.#values);
    return true;
  }

  #add({ times, values, now_ms: now, keep_ms: kept }) {
    const known = this.#times.at(-1) ?? -1;
    const from = times.findIndex((time) => time > known);
    const old = this.#times.findIndex((time) => time >= now - kept);
    const keptFrom = old < 0 ? this.#times.length : old;
    const joined = (before, after) => [...before.slice(keptFrom), ...(from < 0 ? [] : after.slice(from))];
    for (const [name, list] of Object.entries(values)) {
      this.#values[name] = joined(this.#values[name] ?? [], list);
    }
    this.#times = joined(this.#times, times);
  }
}
