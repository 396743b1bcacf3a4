// SPDX-License-Identifier: Apache-2.0
// Shows every yucan server in the cluster with its requests per second, latency, statuses and connections.

import { h, replace, card, empty, table, ask } from "../lib/dom.js";
import { perSecond, rate, count, micros, shortNames } from "../lib/format.js";
import { Chart } from "../lib/chart.js";

const tile = (name, value, more) => h("div", { class: "tile" }, h("span", null, name), h("b", null, value), more ? h("small", null, more) : null);

function open(root, context, route) {
  const tiles = h("div", { class: "tiles" });
  const list = h("div");
  const detail = h("div");
  let chosen = route.length === 2 ? route : null, charts = [];
  root.append(h("div", { class: "head" }, h("h1", null, "HTTP"), h("span", { class: "sub" }, "All web servers of the cluster that are yucan, this console's own among them.")), tiles,
    card("Servers", null, list), card(null, null, detail));

  function choose(node, name) {
    chosen = [node, name];
    charts.forEach((chart) => chart.destroy());
    charts = [new Chart("Requests a second", [{ label: "requests", color: "--one", fill: true }], { format: count }),
      new Chart("Time to answer", [{ label: "median", color: "--two" }, { label: "99th percentile", color: "--three" }], { format: micros, height: 120 }),
      new Chart("Answers a second by status", [{ label: "2xx", color: "--two" }, { label: "3xx", color: "--one" }, { label: "4xx", color: "--three" }, { label: "5xx", color: "--bad" }], { format: count, height: 120 }),
      new Chart("Open connections", [{ label: "open", color: "--four", fill: true }], { format: count, height: 90 })];
    replace(detail, h("h2", null, `${name} on ${node}`), h("div", { class: "columns half", style: "gap:.4rem 1.6rem" }, charts.map((chart) => chart.element)), h("p", { class: "muted" }, "Of each connection the first request and every 16th are timed; streams and WebSockets are not."));
    ask(`api/history?of=http&node=${encodeURIComponent(node)}&server=${encodeURIComponent(name)}`).then(({ points }) => {
      const columns = [[1], [3, 4], [6, 7, 8, 9], [2]];
      charts.forEach((chart, at) => chart.set([points.map(([t]) => t / 1000), ...columns[at].map((column) => points.map((row) => (at === 1 && row[column] === 0 ? null : row[column])))]));
    }, () => {});
  }

  function on(kind, data) {
    if (kind !== "http") return;
    const { servers, t } = data;
    const sum = (key) => servers.reduce((total, { rates }) => total + (rates[key] ?? 0), 0);
    const worst = Math.max(0, ...servers.map(({ latency_us: { p99 } }) => p99 ?? 0));
    replace(tiles, tile("Servers", servers.length), tile("Requests", perSecond(sum("requests"))), tile("Slowest 99th percentile", worst > 0 ? micros(worst) : "–"),
      tile("Open connections", count(servers.reduce((total, { totals }) => total + totals.open_connections, 0))), tile("Errors", perSecond(sum("status_5xx")), `${perSecond(sum("status_4xx"))} 4xx`), tile("Bodies", rate(sum("bytes_out"))));
    const label = shortNames([...new Set(servers.map(({ node }) => node))]);
    replace(list, servers.length === 0 ? empty("No servers", "No yucan runs on a node of this cluster.") : table(
      ["Server", "Node", ["Requests"], ["Median"], ["90 %"], ["99 %"], ["2xx"], ["3xx"], ["4xx"], ["5xx"], ["Open"], ["Answered"]],
      servers.map(({ node, name, rates, totals, latency_us: latency }) => h("tr", { class: `pick ${chosen?.[0] === node && chosen?.[1] === name ? "picked" : ""}`, onclick: () => { choose(node, name); on(kind, data); } },
        h("td", null, h("a", { href: `#/http/${encodeURIComponent(node)}/${encodeURIComponent(name)}` }, name)), h("td", { title: node }, label(node)), h("td", { class: "n" }, perSecond(rates.requests)),
        h("td", { class: "n" }, micros(latency.p50)), h("td", { class: "n" }, micros(latency.p90)), h("td", { class: "n" }, micros(latency.p99)),
        ["status_2xx", "status_3xx", "status_4xx", "status_5xx"].map((key) => h("td", { class: `n ${key === "status_5xx" && totals[key] > 0 ? "bad" : ""}`, title: `${totals[key]} in all` }, perSecond(rates[key]))),
        h("td", { class: "n" }, totals.open_connections), h("td", { class: "n" }, count(totals.requests))))));
    if (!chosen && servers.length > 0) {
      const busiest = [...servers].sort((a, b) => b.rates.requests - a.rates.requests)[0];
      choose(busiest.node, busiest.name);
    }
    const mine = servers.find(({ node, name }) => node === chosen?.[0] && name === chosen?.[1]);
    if (!mine) return;
    const { rates, totals, latency_us: latency } = mine;
    [[rates.requests], [latency.p50, latency.p99], [rates.status_2xx, rates.status_3xx, rates.status_4xx, rates.status_5xx], [totals.open_connections]].forEach((values, at) => charts[at]?.add(t / 1000, values));
  }
  if (chosen) choose(...chosen);
  else replace(detail, empty("No server chosen", "Choose one to see its last five minutes."));
  context.watch("http");
  return { on, route: ([node, name]) => { if (node && name) choose(node, name); }, end: () => charts.forEach((chart) => chart.destroy()) };
}

export default { id: "http", title: "HTTP", open };
