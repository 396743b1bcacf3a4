// SPDX-License-Identifier: Apache-2.0
// Shows nodes, hosts and links as a graph, and next to it the details and history of the selected item.

import { h, replace, card, empty, table, ask, kindBadge } from "../lib/dom.js";
import { bytes, rate, perSecond, span, count, shortNames, micros } from "../lib/format.js";
import { Chart } from "../lib/chart.js";
import { Graph } from "../lib/graph.js";

const kinds = { shm: "shared memory", rdma: "RDMA", tcp: "TCP", inet: "TCP, OTP's port", tls: "TLS" };
const tile = (name, value, more, bad) => h("div", { class: `tile ${bad ? "bad" : ""}` }, h("span", null, name), h("b", null, value), more ? h("small", null, more) : null);

function open(root, context, route) {
  const tiles = h("div", { class: "tiles" });
  const state = { selected: null, detail: null };
  const graph = new Graph((what) => context.go(what.link ? `#/cluster/link/${what.link.map(encodeURIComponent).join("/")}` : `#/cluster/node/${encodeURIComponent(what.node)}`));
  const note = h("b");
  const legend = h("div", { class: "legend" }, Object.entries(kinds).map(([kind, name]) => h("span", null, h("i", { style: `background:var(--${kind})` }), name)),
    h("span", null, "width: bytes a second · ring: processors in use"), note);
  const side = h("div", { class: "side" });
  const nodes = h("div");
  root.append(h("div", { class: "head" }, h("h1", null, "Cluster"), h("span", { class: "sub" }, "Choose a link or a node to see more of it.")), tiles,
    h("div", { class: "columns side" }, card(null, { class: "stays" }, graph.element, legend), card(null, null, side)),
    card("Nodes", null, nodes));

  function select(parts) {
    state.detail?.end();
    const [what, a, b] = parts;
    if (what === "link" && a && b) state.detail = linkDetail([a, b]);
    else if (what === "node" && a) state.detail = nodeDetail(a);
    else state.detail = { element: empty("Nothing chosen", "Click a line for bytes, frames, doorbells, stalls, ring fill and queue over time, and why this link was chosen. Tab and Enter do the same."), topics: [], on() {}, end() {}, selected: null };
    state.selected = state.detail.selected;
    replace(side, state.detail.element);
    context.watch(...state.detail.topics);
    if (context.frame()) on("cluster", context.frame());
  }

  function drawTiles({ nodes, links, all }) {
    const up = nodes.filter(({ state: is }) => is === "up").length;
    const by = Object.keys(kinds).filter((kind) => all.kinds[kind]).map((kind) => `${all.kinds[kind]} ${kind}`);
    const total = Object.values(all.kinds).reduce((sum, n) => sum + n, 0);
    const gone = nodes.length - up;
    replace(tiles, tile("Nodes", up, gone > 0 ? `${gone} not up` : "all up", gone > 0), tile("Hosts", new Set(nodes.map(({ host }) => host)).size),
      tile("Links", total, by.join(", ")), tile("Throughput", rate(all.bytes)),
      tile("Frames", perSecond(all.frames)), tile("Full rings", perSecond(all.stalls), all.stalls > 0 ? "senders wait" : "nobody waits"));
    replace(note, links.length < total ? `The ${links.length} busiest of ${total} links are drawn.` : "");
  }

  function drawNodes({ nodes: all }) {
    const label = shortNames(all.map(({ name }) => name));
    replace(nodes, all.length === 0 ? empty("No nodes", "No node has answered yet.") : table(
      ["Node", "Host", "State", ["Processors"], ["Memory"], ["Processes"], ["Run queue"], "Carrier", "Runs", ["A sample takes"]],
      all.map((node) => h("tr", { class: `pick ${state.selected?.node === node.name ? "picked" : ""}`, onclick: () => graph.onSelect({ node: node.name }) },
        h("td", null, h("a", { href: `#/cluster/node/${encodeURIComponent(node.name)}`, title: node.name }, label(node.name))), h("td", null, node.host),
        h("td", null, h("span", { class: `badge ${node.state}` }, node.state), " ", h("span", { class: "muted" }, node.why)),
        h("td", { class: "n" }, node.cpu === undefined ? "" : node.cpu.toFixed(2)), h("td", { class: "n" }, node.memory === undefined ? "" : bytes(node.memory)),
        h("td", { class: "n" }, node.processes ?? ""), h("td", { class: "n" }, node.run_queue ?? ""), h("td", null, node.carrier ?? ""),
        h("td", null, (node.apps ?? []).join(", ")), h("td", { class: "n" }, node.collector_us === undefined ? "" : micros(node.collector_us))))));
  }

  function on(kind, data) {
    if (kind === "cluster") {
      graph.draw(data, state.selected);
      drawTiles(data);
      drawNodes(data);
    } else state.detail?.on(kind, data);
  }

  select(route);
  return { on, route: select, end: () => { state.detail?.end(); graph.destroy(); } };
}

// ---- a link

function linkDetail([a, b]) {
  const label = shortNames([a, b]);
  const charts = [
    new Chart("Bytes a second", [{ label: `${label(a)} → ${label(b)}`, color: "--one", fill: true }, { label: `${label(b)} → ${label(a)}`, color: "--two" }], { format: rate }),
    new Chart("Frames and doorbells a second", [{ label: "frames", color: "--one" }, { label: "doorbells", color: "--three" }], { format: count, height: 110 }),
    new Chart("Ring fill and queue", [{ label: "unread", color: "--four", fill: true }, { label: "not yet taken", color: "--two" }, { label: "queue", color: "--three" }], { format: bytes, height: 110 }),
    new Chart("Full rings a second", [{ label: "stalls", color: "--bad" }], { format: count, height: 90 })];
  const facts = h("div");
  const record = h("div");
  const senders = h("div");
  const element = h("div", null, h("h2", null, `${label(a)} ↔ ${label(b)}`), facts, senders, charts.map((chart) => chart.element), record);
  let from = null, wasUp = null, askedAt = 0;
  // Numbers are taken from one end that reports the link. Those of the other end are the same with the directions swapped.
  const points = (v) => [[v.bytes_out, v.bytes_in], [v.frames_in + v.frames_out, v.doorbells_in + v.doorbells_out], [v.ring_fill_in, v.ring_fill_out, v.queue_bytes], [v.stalls]];

  async function past(node, peer) {
    from = node;
    try {
      const { fields, points: rows } = await ask(`api/history?of=link&node=${encodeURIComponent(node)}&peer=${encodeURIComponent(peer)}`);
      const all = rows.map((row) => ({ t: row[0] / 1000, v: points(Object.fromEntries(fields.map((field, at) => [field, row[at]]))) }));
      charts.forEach((chart, at) => chart.set([all.map(({ t }) => t), ...(all[0]?.v[at] ?? chart.series.map(() => 0)).map((_, one) => all.map(({ v }) => (node === a || at > 0) ? v[at][one] : v[at][1 - one]))]));
    } catch { /* the stream continues */ }
  }

  // Both ends are queried when the link comes up or goes down, because either may know something that the other cannot.
  async function explain() {
    const told = await Promise.all([[a, b], [b, a]].map(([node, peer]) =>
      ask(`api/why?node=${encodeURIComponent(node)}&peer=${encodeURIComponent(peer)}`).catch(() => ({ node, links: [] }))));
    replace(record, told.flatMap(({ node, links }) => recordsOf(node, links, label)));
  }

  async function who() {
    const told = await Promise.all([[a, b], [b, a]].map(([node, peer]) =>
      ask(`api/senders?node=${encodeURIComponent(node)}&peer=${encodeURIComponent(peer)}`).catch(() => ({ node, senders: [] }))));
    replace(senders, sendersOf(told, label));
  }

  function on(kind, data) {
    if (kind !== "link" || data.a !== a || data.b !== b) return;
    const side = data.sides.find(({ up }) => up);
    if (wasUp !== Boolean(side)) explain();
    wasUp = Boolean(side);
    if (data.t - askedAt > 5000) {
      askedAt = data.t;
      who();
    }
    replace(facts, facts.childElementCount && !side ? [h("p", { class: "bad" }, "This link is not up.")] : side ? factsOf(data, side, label) : empty("Not linked", "No node tells of such a link."));
    if (!side) return;
    if (from === null) past(side.from, side.to);
    const zero = { bytes_in: 0, bytes_out: 0, frames_in: 0, frames_out: 0, doorbells_in: 0, doorbells_out: 0, stalls: 0, ring_fill_in: 0, ring_fill_out: 0, queue_bytes: 0 };
    const values = points({ ...zero, ...side.rates, ring_fill_in: side.now.ring_fill_in ?? 0, ring_fill_out: side.now.ring_fill_out ?? 0, queue_bytes: side.now.queue_bytes ?? 0 });
    charts.forEach((chart, at) => chart.add(data.t / 1000, at === 0 && side.from !== a ? [...values[0]].reverse() : values[at]));
  }
  return { element, on, topics: [`link:${encodeURIComponent(a)}:${encodeURIComponent(b)}`], selected: { link: [a, b] }, end: () => charts.forEach((chart) => chart.destroy()) };
}

// Shows what one end has recorded about the current link and about the last one that ended.
function recordsOf(node, links, label) {
  const shown = [...links.filter(({ ended }) => ended).slice(0, 1), ...links.filter(({ ended }) => !ended)];
  const one = ({ short, facts, ended }) => [h("p", { class: ended ? "bad" : "" }, ended ? `Down for ${span(ended.ago_ms)}: ${short}` : short),
    table(["When", "What"], facts.map(({ ago_ms, text }) => h("tr", null, h("td", null, ago_ms ? `${span(ago_ms)} ${ended ? "before the end" : "ago"}` : ended ? "at the end" : "now"), h("td", null, text))))];
  return shown.length ? [h("h3", null, `What ${label(node)} has recorded`), ...shown.flatMap(one)] : [];
}

// The processes on both ends that sent the most in the last ten seconds.
function sendersOf(told, label) {
  const rows = told.flatMap(({ node, senders }) => senders.map((one) => h("tr", null, h("td", null, label(node)), h("td", null, one.process), h("td", null, one.pid),
    h("td", null, one.class), h("td", { class: "n" }, rate(one.bytes_per_s)), h("td", { class: "n" }, bytes(one.waiting)))));
  return rows.length ? [h("h3", null, "Who sends"), table(["From", "Process", "Pid", "Class", ["Sent"], ["Waiting"]], rows)] : [];
}

// What compression has saved in the output of each end.
function compressionOf(sides, label) {
  const rows = sides.filter(({ up, now }) => up && now.uncompressed_out).map(({ from, now }) =>
    h("dd", null, `${label(from)} sent ${bytes(now.uncompressed_out)} as ${bytes(now.compressed_out)}, which took ${(now.compress_us / 1e6).toFixed(1)} s of a processor`));
  return rows.length ? [h("dt", null, "Compressed"), ...rows] : null;
}

// The load that a node has reported to its peer with ticks and acknowledgements.
function loadsOf(sides, label) {
  const loads = sides.filter(({ up, now }) => up && now.peer_cpu_percent !== undefined).map(({ to, now }) =>
    h("dd", null, `${label(to)} used ${now.peer_cpu_percent} % of its processors, ${now.peer_run_queue} waiting${now.peer_mem_available === undefined ? "" : `, ${bytes(now.peer_mem_available)} of memory available`}, ${span(now.peer_load_age_ms)} ago`));
  return loads.length ? [h("dt", null, "Load"), ...loads] : null;
}

function factsOf({ t, sides }, side, label) {
  const fill = (part, whole) => h("div", { class: `fill ${part / whole > 0.8 ? "warn" : ""}`, title: `${bytes(part)} of ${bytes(whole)}` }, h("i", { style: `width:${(100 * part / whole).toFixed(1)}%` }));
  const row = ({ from, up, now, rates }) => up ? h("tr", null, h("td", null, label(from)), h("td", { class: "n" }, rate(rates.bytes_out ?? 0)), h("td", { class: "n" }, perSecond(rates.frames_out ?? 0)),
    h("td", { class: "n" }, perSecond(rates.doorbells_out ?? 0)), h("td", { class: "n" }, perSecond(rates.stalls ?? 0)), h("td", { class: "n" }, bytes(now.queue_bytes ?? 0)),
    h("td", null, now.ring_bytes ? fill(now.ring_fill_in ?? 0, now.ring_bytes) : h("span", { class: "muted" }, "no ring"))) : null;
  return [h("dl", { class: "facts" },
    h("dt", null, "Kind"), h("dd", null, kindBadge(side.link, kinds[side.link] ?? side.link)),
    h("dt", null, "Why"), h("dd", { class: "why" }, side.reason || "not told"),
    sides.filter(({ fault }) => fault).map(({ from, fault: { left_ms, ...fault } }) => [h("dt", null, "Fault"),
      h("dd", { class: "bad" }, `set on ${label(from)} for ${span(left_ms)} more: ${Object.entries(fault).map(([key, value]) => `${key} ${value}`).join(", ")}`)]),
    side.address ? [h("dt", null, "Address"), h("dd", null, side.address)] : null,
    side.since ? [h("dt", null, "Up for"), h("dd", null, span(t - side.since * 1000))] : null,
    h("dt", null, "Carried"), h("dd", null, `${bytes(side.now.bytes_out ?? 0)} from ${label(side.from)}, ${bytes(side.now.bytes_in ?? 0)} to it`),
    loadsOf(sides, label), compressionOf(sides, label)),
  h("h3", null, "Each end sends"),
  table(["From", ["Bytes"], ["Frames"], ["Doorbells"], ["Stalls"], ["Queue"], "Unread in its ring"], sides.map(row))];
}

// ---- a node

function nodeDetail(name) {
  const charts = [new Chart("Processors in use", [{ label: "processors", color: "--one", fill: true }], { format: (value) => value.toFixed(2) }),
    new Chart("Memory", [{ label: "memory", color: "--four", fill: true }], { format: bytes, height: 110 }),
    new Chart("Run queue", [{ label: "waiting", color: "--three" }], { format: count, height: 90 })];
  const facts = h("div");
  const element = h("div", null, h("h2", null, name), facts, charts.map((chart) => chart.element));
  const values = ([cpu, memory, , queue]) => [cpu / 1000, memory, queue];
  ask(`api/history?of=node&node=${encodeURIComponent(name)}`).then(({ points }) => {
    const all = points.map(([t, ...rest]) => [t / 1000, ...values(rest)]);
    charts.forEach((chart, at) => chart.set([all.map(([t]) => t), all.map((row) => row[at + 1])]));
  }, () => {});
  function on(kind, data) {
    if (kind !== "node" || data.name !== name) return;
    replace(facts, h("dl", { class: "facts" },
      h("dt", null, "State"), h("dd", null, h("span", { class: `badge ${data.state}` }, data.state), data.why ? ` ${data.why}` : "", data.since ? h("span", { class: "muted" }, ` for ${span(data.t - data.since)}`) : null),
      h("dt", null, "Host"), h("dd", null, data.host ?? "not known"),
      data.otp ? [h("dt", null, "Runs"), h("dd", null, `OTP ${data.otp}, ${data.schedulers} schedulers, process ${data.os_pid}`)] : null,
      data.started ? [h("dt", null, "Up for"), h("dd", null, span(data.t - data.started * 1000))] : null,
      data.carrier ? [h("dt", null, "Carrier"), h("dd", null, data.carrier, data.beamway ? `, Beamway ${data.beamway}` : "")] : null,
      data.apps ? [h("dt", null, "Applications"), h("dd", null, data.apps.join(", ") || "none of Beamway")] : null,
      data.leases !== undefined ? [h("dt", null, "Leases"), h("dd", null, data.leases)] : null));
    if (data.cpu !== undefined) charts.forEach((chart, at) => chart.add(data.t / 1000, [[data.cpu, data.memory, data.run_queue][at]]));
  }
  return { element, on, topics: [`node:${encodeURIComponent(name)}`], selected: { node: name }, end: () => charts.forEach((chart) => chart.destroy()) };
}

export default { id: "cluster", title: "Cluster", open };
