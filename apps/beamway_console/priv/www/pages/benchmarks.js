// SPDX-License-Identifier: Apache-2.0
// Shows stored and new results next to their baselines, with their spread and the command that produced them.

import { h, replace, card, empty, ask, lastAsked, toast } from "../lib/dom.js";
import { number, day, ago } from "../lib/format.js";

const verdicts = { wins: "good", loses: "bad" };
const contender = { tcp: "stock TCP", tcp_tuned: "tuned TCP", beamway: "Beamway" };

function open(root, context, route) {
  const askResult = lastAsked();
  const list = h("div");
  const shown = h("div", { class: "columns" });
  const fresh = h("div");
  let allow = false, known = null, chosen = null, running = null;
  const pick = h("select", { "aria-label": "Benchmark" });
  root.append(h("div", { class: "head" }, h("h1", null, "Benchmarks"), h("span", { class: "sub" }, "Beamway beside what it is compared with, in the same run.")),
    fresh, h("div", { class: "columns list" }, card("Stored", null, list), shown));

  async function load() {
    try {
      known = await ask("api/bench");
      replace(pick, known.startable.map(({ name, what }) => h("option", { value: name, title: what }, `${name}: ${what}`)));
      drawList();
      const first = route[0] ?? known.results[0]?.file;
      if (first) show(first);
      else replace(shown, card(null, null, empty("No results", "No stored results were found; beamway bench NAME makes one.")));
    } catch (error) { toast(error.message); }
  }

  function drawList() {
    if (known.results.length === 0) return replace(list, h("p", { class: "muted" }, "None."));
    replace(list, h("table", null, h("tbody", null, known.results.map((one) => h("tr", { class: `pick ${one.file === chosen ? "picked" : ""}`, onclick: () => context.go(`#/benchmarks/${encodeURIComponent(one.file)}`) },
      h("td", null, h("a", { href: `#/benchmarks/${encodeURIComponent(one.file)}` }, one.file.replace(/\.json$/, "")), h("div", { class: "muted", style: "font-size:.78rem" }, day(one.measured_at ?? one.stored_at))),
      h("td", { class: "n muted" }, `${one.count}`))))));
  }

  async function show(file) {
    chosen = file;
    if (known) drawList();
    try {
      const stored = await askResult(`api/bench/${file.split("/").map(encodeURIComponent).join("/")}`);
      if (stored) replace(shown, result(stored, file.replace(/\.json$/, "")));
    } catch (error) { replace(shown, card(null, null, empty("Cannot be shown", error.message))); }
  }

  function drawJob({ running: jobs = {}, last = {} }) {
    const now = jobs.bench, before = last.bench;
    if (running && !now && before?.ok) replace(shown, result(before.result, `${before.name}, just now`));
    running = now;
    const run = h("button", { type: "button", class: "main", id: "run", disabled: !allow || Boolean(now), title: allow ? "" : "this console only shows: start it with --allow",
      onclick: () => ask("api/bench/run", { name: pick.value }).catch((error) => toast(error.message)) }, "Quick run");
    replace(fresh, card(null, null, h("div", { class: "bar" }, run, pick, now ? [h("b", null, now.name), h("span", { class: "muted" }, `runs since ${ago(Date.now() - now.began_at * 1000)}; under a minute`),
      h("button", { type: "button", onclick: () => ask("api/bench/stop", {}).catch((error) => toast(error.message)) }, "Stop")]
      : h("span", { class: before && !before.ok ? "bad" : "muted" }, before ? before.ok ? `${before.name} ran ${ago(Date.now() - before.ended_at * 1000)}` : `${before.name}: ${before.why}`
        : allow ? "On the console's host, with nodes of its own." : "This console only shows; start it with --allow to run benchmarks from here.")),
    now || (before && !before.ok) ? h("pre", { class: "log", "aria-live": "polite" }, [...(now ?? before).lines ?? []].reverse().join("\n") || "starting") : null));
  }

  function on(kind, data) {
    if (kind === "cluster" && data.allow !== allow) { allow = data.allow; ask("api/jobs").then(drawJob, () => {}); }
    if (kind === "jobs") drawJob(data);
  }
  context.watch("jobs");
  ask("api/jobs").then((state) => { drawJob(state); return load(); }, (error) => toast(error.message));
  return { on, route: ([file]) => { if (file) show(file); }, end() {} };
}

function result({ bench, commit, command, machine, metrics, warnings, versions, measured_at, stored_at }, title) {
  const groups = new Map();
  for (const metric of metrics) {
    if (!groups.has(metric.name)) groups.set(metric.name, []);
    groups.get(metric.name).push(metric);
  }
  return [card(title ?? bench, null,
    h("dl", { class: "facts" }, h("dt", null, "Command"), h("dd", null, h("code", null, command ?? "not told")),
      h("dt", null, "Commit"), h("dd", null, h("code", null, commit ?? "not told")),
      machine ? [h("dt", null, "Machine"), h("dd", null, [machine.processors ? `${machine.processors} × ${machine.processor ?? "processor"}` : null, machine.system, machine.kernel].filter(Boolean).join(", "))] : null,
      versions?.otp ? [h("dt", null, "Versions"), h("dd", null, `OTP ${versions.otp}${versions.beamway ? `, Beamway ${versions.beamway}` : ""}`)] : null,
      h("dt", null, "When"), h("dd", null, measured_at || stored_at ? day(measured_at ?? stored_at) : "just now")),
    warnings.length > 0 ? h("details", { style: "margin-top:.6rem" }, h("summary", { class: "warn" }, `${warnings.length} warning${warnings.length === 1 ? "" : "s"}: read before you trust these`), h("ul", null, warnings.map((text) => h("li", { class: "muted" }, text)))) : null),
  card("Figures", null, h("p", { class: "muted" }, "Medians; the thin line is the spread. The ratio is Beamway's figure over the baseline's in the same repeat, the median of all repeats."), [...groups.values()].map(metric))];
}

function metric(all) {
  const { key, name, unit, better, beamway, spread, direction } = all[0];
  const bars = [{ who: contender[all[0].contender] ?? all[0].contender ?? "Beamway", value: beamway, spread, own: true },
    ...all.filter(({ baseline }) => typeof baseline === "number").map((one) => ({ who: contender[one.baseline_name] ?? one.baseline_name, value: one.baseline, spread: one.baseline_spread, ratio: one.ratio, interval: one.interval, verdict: one.verdict }))];
  const most = Math.max(...bars.map(({ value, spread: about }) => Math.abs(value) * (1 + (about ?? 0) / 2))) || 1;
  const wide = (value) => `${Math.max(0, Math.min(100, 100 * value / most)).toFixed(2)}%`;
  return h("div", { class: "metric" }, h("div", { class: "what" }, h("b", null, key ?? name), h("span", null, `${unit}, ${better === "lower" ? "less is better" : "more is better"}${direction && direction !== "forward" ? `, ${direction}` : ""}`)),
    h("div", { class: "bars" }, bars.map(({ who, value, spread: about, ratio, interval, verdict, own }) => [h("span", null, who),
      h("div", { class: "track", title: `${number(value)} ${unit}${about ? `, spread ${(about * 100).toFixed(0)} %` : ""}` }, h("div", { class: `value ${own ? "own" : ""}`, style: `width:${wide(value)}` }),
        about ? h("div", { class: "err", style: `left:${wide(value * (1 - about / 2))};width:calc(${wide(value * (1 + about / 2))} - ${wide(value * (1 - about / 2))})` }) : null),
      h("span", { class: "n" }, number(value), typeof ratio === "number" ? [" ", h("span", { class: `badge ${verdicts[verdict] ?? ""}`, title: interval ? `${verdict}; 95 % interval ${interval.map((end) => end.toFixed(2)).join(" to ")}` : "too few repeats for an interval" }, `× ${ratio.toFixed(2)}`)] : null)])));
}

export default { id: "benchmarks", title: "Benchmarks", open };
