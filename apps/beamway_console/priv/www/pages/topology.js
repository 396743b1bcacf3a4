// SPDX-License-Identifier: Apache-2.0
// Shows communication times as a heat map, next to it the tree, and how well the tree fits. Starts measurements.

import { h, s, replace, card, empty, ask, lastAsked, toast, showTip, hideTip, table } from "../lib/dom.js";
import { micros, percent, day, ago } from "../lib/format.js";

// From near (dark teal) to far (warm yellow), in perceptually even steps, on light and dark backgrounds.
const ramp = [[18, 52, 86], [22, 105, 122], [42, 157, 143], [138, 190, 105], [233, 196, 106], [244, 162, 97], [222, 82, 60]];
function colour(share) {
  const at = Math.max(0, Math.min(0.9999, share)) * (ramp.length - 1);
  const [low, high] = [ramp[Math.floor(at)], ramp[Math.floor(at) + 1]];
  return low.map((value, one) => Math.round(value + (high[one] - value) * (at % 1)));
}
const gradient = `linear-gradient(90deg, ${ramp.map((one) => `rgb(${one})`).join(", ")})`;

function segments(name, options, value, onPick) {
  return h("div", { class: "segments", role: "group", "aria-label": name }, options.map(([key, text, disabled]) =>
    h("button", { type: "button", "aria-pressed": String(key === value), disabled, onclick: () => onPick(key) }, text)));
}

function open(root, context) {
  const askView = lastAsked();
  const choice = { mode: "best", statistic: "median", order: "tree", scale: "log", tree: "free", alpha: 1.6 };
  const box = h("div", { class: "columns" });
  const job = h("div");
  let view = null, allow = false, timer = null, running = false, measuredAt = 0;
  root.append(h("div", { class: "head" }, h("h1", null, "Topology"), h("span", { class: "sub" }, "Round-trip times between all pairs of nodes, and the tree that they make.")), job, box);

  const query = () => new URLSearchParams({ mode: choice.mode, statistic: choice.statistic, ...(choice.tree === "alpha" ? { alpha: choice.alpha } : {}) });

  async function load() {
    try {
      const told = await askView(`api/topology?${query()}`);
      if (!told) return;
      view = told;
      draw();
    } catch (error) { toast(error.message); }
  }

  function set(change) {
    Object.assign(choice, change);
    if ("order" in change || "scale" in change) return draw();
    clearTimeout(timer);
    timer = setTimeout(load, "alpha" in change ? 120 : 0);
  }

  function draw() {
    if (!view) return;
    if (view.none) return replace(box, card(null, null, empty("No times yet", view.none === "nothing was measured yet"
      ? allow ? "“Measure now” times every pair of nodes: some seconds for a few nodes." : "This console only shows. Start it with --allow to measure from here, or with --times FILE to show what beamway topology measure has stored."
      : view.none)));
    const order = choice.order === "tree" ? view.by_tree : view.nodes.map((_, at) => at);
    // Math.min(...values) would not work, because that many arguments do not fit on the stack.
    let low = Infinity, high = 0;
    view.rows.forEach((row, i) => row.forEach((value, j) => { if (i !== j && value > 0) [low, high] = [Math.min(low, value), Math.max(high, value)]; }));
    const share = (value) => high - low < 1e-9 ? 0 : choice.scale === "log" ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
    replace(box, card(null, null, controls(low, high), drawing(order, share)), h("div", { class: "columns half" }, fit(), exports()));
  }

  function controls(low, high) {
    return [h("div", { class: "bar" },
      segments("Times", [["quiet", "Quiet", !view.modes.includes("quiet")], ["loaded", "Loaded", !view.modes.includes("loaded")]], view.mode, (mode) => set({ mode })),
      segments("Statistic", [["min", "Fastest"], ["median", "Median"], ["p90", "90th percentile"]], choice.statistic, (statistic) => set({ statistic })),
      segments("Order", [["tree", "By cluster"], ["name", "By name"]], choice.order, (order) => set({ order })),
      segments("Scale", [["log", "Log"], ["linear", "Linear"]], choice.scale, (scale) => set({ scale })),
      segments("Tree", [["free", "Parameter-free"], ["alpha", "α"]], choice.tree, (tree) => set({ tree })),
      choice.tree === "alpha" ? h("label", { style: "flex:1;min-width:180px;max-width:340px" }, "α", h("input", { type: "range", id: "alpha", min: 1, max: 6, step: 0.1, value: choice.alpha, "aria-label": "alpha",
        oninput: (event) => { choice.alpha = event.target.value; event.target.nextSibling.textContent = Number(choice.alpha).toFixed(1); set({ alpha: choice.alpha }); } }), h("b", { class: "n" }, Number(choice.alpha).toFixed(1))) : null),
    h("div", { class: "bar", style: "margin:.8rem 0" }, h("span", { class: "muted" }, micros(low)), h("div", { class: "ramp", style: `background:${gradient}` }), h("span", { class: "muted" }, micros(high)),
      h("span", { class: "muted" }, `${choice.scale === "log" ? "logarithmic" : "linear"}; ${view.nodes.length} nodes`))];
  }

  function drawing(order, share) {
    const count = order.length;
    const cell = Math.max(6, Math.min(58, Math.floor((Math.min(root.clientWidth - 60, 660) - 90) / count)));
    const left = 16 + Math.min(130, 8 * Math.max(...view.names.map((name) => name.length)));
    const head = left - 6;
    const side = count * cell;
    const step = Math.max(1, Math.ceil(11 / cell));
    const canvas = h("canvas", { width: left + side, height: head + side, role: "img", "aria-label": `Heat map of ${count} nodes` });
    const ratio = devicePixelRatio || 1;
    canvas.style.width = `${left + side}px`;
    canvas.style.height = `${head + side}px`;
    canvas.width = (left + side) * ratio;
    canvas.height = (head + side) * ratio;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    order.forEach((i, row) => order.forEach((j, column) => {
      pen.fillStyle = i === j || view.rows[i][j] === null ? style.getPropertyValue("--line") : `rgb(${colour(share(view.rows[i][j]))})`;
      pen.fillRect(left + column * cell, head + row * cell, cell > 10 ? cell - 1 : cell, cell > 10 ? cell - 1 : cell);
    }));
    pen.fillStyle = style.getPropertyValue("--muted");
    pen.font = `${Math.min(13, Math.max(9, cell - 3))}px system-ui, sans-serif`;
    pen.textBaseline = "middle";
    order.forEach((i, at) => {
      if (at % step !== 0) return;
      pen.textAlign = "right";
      pen.fillText(view.names[i], left - 6, head + (at + 0.5) * cell, left - 10);
      pen.save();
      pen.translate(left + (at + 0.5) * cell, head - 6);
      pen.rotate(-Math.PI / 2);
      pen.textAlign = "left";
      pen.fillText(view.names[i], 0, 0, head - 8);
      pen.restore();
    });
    canvas.addEventListener("pointermove", (event) => {
      const bounds = canvas.getBoundingClientRect();
      const column = Math.floor((event.clientX - bounds.left - left) / cell), row = Math.floor((event.clientY - bounds.top - head) / cell);
      if (row < 0 || column < 0 || row >= count || column >= count || row === column) return hideTip();
      showTip(event, `${view.names[order[row]]} – ${view.names[order[column]]}: ${view.rows[order[row]][order[column]] === null ? "not measured" : micros(view.rows[order[row]][order[column]])}`);
    });
    canvas.addEventListener("pointerleave", hideTip);
    return h("div", { class: "topo" }, canvas, choice.order === "tree" ? dendrogram(order, cell, head, left) : null);
  }

  // Leaves are aligned with the rows of the heat map, groups are placed at their median time, and the root is on the right.
  function dendrogram(order, cell, head, left) {
    const rows = new Map(order.map((place, row) => [view.nodes[place], head + (row + 0.5) * cell]));
    const times = [];
    (function collect(vertex) { if (vertex.median_us > 0) times.push(vertex.median_us); (vertex.children ?? []).forEach(collect); })(view.tree);
    const depth = (vertex) => vertex.children ? 1 + Math.max(...vertex.children.map(depth)) : 0;
    const [low, high] = [Math.min(...times) * 0.8, Math.max(...times)];
    const levels = depth(view.tree);
    const wide = Math.max(180, Math.min(460, root.clientWidth - left - order.length * cell - 60));
    const x = (vertex) => vertex.node ? 10 : times.length > 0 && vertex.median_us > 0 && high > low ? 34 + (wide - 70) * Math.log(vertex.median_us / low) / Math.log(high / low) : 34 + (wide - 70) * depth(vertex) / levels;
    const parts = [];
    function draw(vertex, least) {
      if (vertex.node) return [10, rows.get(vertex.node)];
      const at = Math.max(x(vertex), 0);
      const ends = vertex.children.map((child) => draw(child));
      const ys = ends.map(([, y]) => y);
      for (const [from, y] of ends) parts.push(s("path", { d: `M${Math.min(from, at)} ${y}H${at}` }));
      parts.push(s("path", { d: `M${at} ${Math.min(...ys)}V${Math.max(...ys)}` }));
      const mid = (Math.min(...ys) + Math.max(...ys)) / 2;
      parts.push(s("circle", { cx: at, cy: mid, r: 4, fill: "var(--accent)", tabindex: 0, "aria-label": `group of ${vertex.size}, median ${micros(vertex.median_us)}`,
        onpointermove: (event) => showTip(event, `${vertex.name}: ${vertex.size} nodes, median ${micros(vertex.median_us)}, at most ${micros(vertex.max_us)}`), onpointerleave: hideTip }));
      return [at, mid];
    }
    const [end, y] = draw(view.tree);
    parts.push(s("path", { d: `M${end} ${y}H${wide - 12}` }));
    const ticks = times.length > 0 && high > low ? [Math.min(...times), high] : [];
    return s("svg", { width: wide, height: head + order.length * cell, role: "img", "aria-label": "Dendrogram" },
      ticks.map((time) => s("text", { x: x({ median_us: time, children: [] }), y: head - 8, "text-anchor": "middle" }, micros(time))), parts);
  }

  function fit() {
    const verdicts = { good: "good", fair: "warn", poor: "bad", one_cluster: "" };
    return card("How well the tree fits", null,
      h("dl", { class: "facts" }, h("dt", null, "Explained"), h("dd", null, h("span", { class: `badge ${verdicts[view.verdict]}` }, percent(view.explained)), " of the variance of the times' logarithms"),
        h("dt", null, "Verdict"), h("dd", null, view.verdict === "one_cluster" ? "one cluster" : view.verdict),
        h("dt", null, "Advice"), h("dd", { class: "advice" }, view.advice),
        h("dt", null, "Measured"), h("dd", null, `${day(view.measured_at)}; ${view.messages} messages in a batch${view.seconds > 0 ? `, ${view.seconds.toFixed(1)} s` : ""}${view.failed > 0 ? `; ${view.failed} pairs failed` : ""}`),
        view.dropped.length > 0 ? [h("dt", null, "Left out"), h("dd", { class: "warn" }, view.dropped.join(", "))] : null),
      h("h3", null, "Slow nodes"), view.slow.length === 0 ? h("p", { class: "muted" }, "No node is slower than the level of its groups.")
        : table(["Node", ["Times its group's level"]], view.slow.map(({ node, factor }) => h("tr", null, h("td", null, node), h("td", { class: "n warn" }, factor.toFixed(2))))));
  }

  const exports = () => card("Export", null, h("p", { class: "muted" }, "The tree as it is shown above."), h("div", { class: "chips" },
    view.formats.map(({ name, what }) => h("a", { class: "button", href: `api/topology/export/${name}?${query()}`, download: name, title: what }, name))));

  async function measure(mode) {
    try { await ask("api/topology/measure", { mode }); } catch (error) { toast(error.message); }
  }

  function drawJob({ running: jobs = {}, last = {}, measured_at: at }) {
    const now = jobs.measure;
    const before = last.measure;
    if ((running && !now) || at !== measuredAt) load();
    measuredAt = at;
    running = Boolean(now);
    replace(job, card(null, null, now
      ? h("div", { class: "bar" }, h("b", null, "Measuring"), h("span", { class: "muted" }, now.mode ?? "connecting"), h("div", { class: "progress", role: "progressbar", "aria-valuenow": now.done ?? 0, "aria-valuemax": now.total ?? 1 },
          h("i", { style: `width:${now.total ? (100 * now.done / now.total).toFixed(0) : 0}%` })), h("span", null, now.total ? `${now.done} of ${now.total} pairs` : ""),
          h("span", { class: "muted" }, now.left_s > 0 ? `about ${now.left_s} s left` : ""), h("button", { type: "button", onclick: () => ask("api/topology/stop", {}).catch((error) => toast(error.message)) }, "Stop"))
      : h("div", { class: "bar" }, h("button", { type: "button", class: "main", id: "measure", disabled: !allow, title: allow ? "" : "this console only shows: start it with --allow", onclick: () => measure("both") }, "Measure now"),
          h("button", { type: "button", disabled: !allow, onclick: () => measure("quiet") }, "Quiet only"),
          h("span", { class: before?.ok === false ? "bad" : "muted" }, before ? before.ok ? `measured ${ago(Date.now() - before.ended_at * 1000)}${before.failed > 0 ? `, ${before.failed} pairs failed` : ""}` : `failed: ${before.why}`
            : allow ? "Times each pair of nodes, quiet and loaded." : "This console only shows; start it with --allow to measure from here."))));
  }

  function on(kind, data) {
    if (kind === "cluster" && allow !== data.allow) { allow = data.allow; ask("api/jobs").then(drawJob, () => {}); draw(); }
    if (kind === "jobs") drawJob(data);
  }
  const themed = () => draw();
  addEventListener("themechange", themed);
  context.watch("jobs");
  ask("api/jobs").then((state) => { drawJob(state); if (!view) load(); }, (error) => toast(error.message));
  return { on, end: () => { clearTimeout(timer); removeEventListener("themechange", themed); } };
}

export default { id: "topology", title: "Topology", open };
