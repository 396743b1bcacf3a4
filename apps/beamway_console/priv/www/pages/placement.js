// SPDX-License-Identifier: Apache-2.0
// Evaluates placement queries and shows for each node why it was chosen or not; lists attributes with their age, and leases.

import { h, replace, card, empty, lastAsked, toast, table } from "../lib/dom.js";
import { bytes, number, span, ago, shortNames } from "../lib/format.js";

const examples = [["Least loaded", "{load_per_core1, low}"], ["4 GiB free", "{mem_available, ge, {4, gib}}"], ["Near, and idle", "{dist, near}, {load_per_core1, lt, 0.5}"], ["Everything", "[]"]];
const plain = { byte: 1, kib: 1024, mib: 1048576, gib: 1073741824, tib: 1099511627776 };

function shownValue({ value, unit, unknown }) {
  if (unknown !== undefined) return h("span", { class: "muted" }, unknown);
  if (unit in plain && typeof value === "number") return bytes(value * plain[unit]);
  return `${number(value)}${unit && unit !== "ratio" ? ` ${unit}` : ""}`;
}

function open(root, context) {
  const askView = lastAsked(), askChoice = lastAsked();
  const editor = h("textarea", { id: "query", spellcheck: "false", autocomplete: "off", "aria-label": "Query", "aria-autocomplete": "list", value: "{load_per_core1, low}" });
  const hints = h("ul", { class: "hints", role: "listbox", hidden: true });
  const count = h("input", { type: "number", min: 1, max: 999, placeholder: "all", "aria-label": "How many", style: "width:5.5rem" });
  const asker = h("select", { "aria-label": "Asked node" });
  const answer = h("div");
  const attributes = h("div");
  const leases = h("div");
  const filter = h("input", { type: "text", placeholder: "Filter attributes", "aria-label": "Filter attributes", oninput: () => drawAttributes() });
  let view = null, marked = 0, found = [], timer = null, loading = 0, ended = false;
  const choose = h("button", { type: "button", class: "main", id: "choose", onclick: () => run() }, "Choose");
  root.append(h("div", { class: "head" }, h("h1", null, "Placement"), h("span", { class: "sub" }, "Which nodes suit, and why not the others.")),
    card("Query", null, h("div", { class: "editor" }, editor, hints),
      h("div", { class: "bar", style: "margin-top:.6rem" }, choose, h("label", null, "nodes", count), h("label", null, "asked", asker),
        h("span", { class: "chips" }, examples.map(([name, text]) => h("button", { type: "button", title: text, onclick: () => { editor.value = text; run(); } }, name))),
        h("span", { class: "muted" }, "Ctrl-Enter chooses, Tab completes."))),
    answer, card("Attributes", null, h("div", { class: "bar", style: "margin-bottom:.6rem" }, filter, h("button", { type: "button", onclick: () => load() }, "Ask again")), attributes), card("Leases", null, leases));

  // ---- completion of the word before the cursor

  const wordAt = () => /[a-z][A-Za-z0-9_@]*$/.exec(editor.value.slice(0, editor.selectionStart))?.[0] ?? "";
  function complete() {
    const word = wordAt();
    const all = view && !view.none ? [...view.names.map((name) => [name, "attribute"]), ...view.words.map((name) => [name, "word"]), ...view.units.map((name) => [name, "unit"])] : [];
    found = word.length < 1 ? [] : all.filter(([name]) => name !== word && name.includes(word)).sort(([a], [b]) => b.startsWith(word) - a.startsWith(word) || (a < b ? -1 : 1)).slice(0, 9);
    marked = 0;
    showHints();
  }
  function showHints() {
    hints.hidden = found.length === 0;
    replace(hints, found.map(([name, kind], at) => h("li", { role: "option", "aria-selected": String(at === marked), onpointerdown: (event) => { event.preventDefault(); take(at); } }, name, h("span", { class: "muted" }, kind))));
  }
  function take(at) {
    const word = wordAt(), end = editor.selectionStart;
    editor.setRangeText(found[at][0], end - word.length, end, "end");
    found = [];
    showHints();
    editor.focus();
  }
  editor.addEventListener("input", complete);
  editor.addEventListener("blur", () => { found = []; showHints(); });
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); run(); return; }
    if (found.length === 0) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") { event.preventDefault(); marked = (marked + (event.key === "ArrowDown" ? 1 : found.length - 1)) % found.length; showHints(); }
    else if (event.key === "Tab" || event.key === "Enter") { event.preventDefault(); take(marked); }
    else if (event.key === "Escape") { found = []; showHints(); }
  });

  // ---- asking

  async function run() {
    choose.disabled = true;
    try {
      const body = { query: editor.value, ...(asker.value ? { node: asker.value } : {}), ...(Number(count.value) > 0 ? { count: Number(count.value) } : {}) };
      const chosen = await askChoice("api/placement/choose", body);
      if (chosen) drawAnswer(chosen);
    } catch (error) { toast(error.message); }
    choose.disabled = false;
  }

  function drawAnswer({ wrong, chosen, conflict, reports }) {
    if (wrong) return replace(answer, card("Not understood", null, h("p", { class: "bad", role: "alert" }, wrong)));
    const label = shortNames(reports.map(({ node }) => node));
    const others = reports.filter(({ node }) => !chosen.includes(node));
    replace(answer, card(chosen.length === 1 ? "One node" : `${chosen.length === 0 ? "No" : chosen.length} nodes`, { class: "answer" },
      conflict ? h("pre", { class: "log" }, conflict) : null,
      h("div", { class: "grid" }, [...chosen.map((node) => reports.find((report) => report.node === node) ?? { node, suitable: true, why: [] }), ...others].map(({ node, suitable, status, why }) =>
        h("div", { class: `verdict ${chosen.includes(node) ? "yes" : suitable ? "" : "no"}` }, h("b", { title: node }, label(node)),
          h("span", { class: `badge ${chosen.includes(node) ? "good" : suitable ? "" : "bad"}` }, chosen.includes(node) ? "chosen" : suitable ? "suits, not needed" : status === "ok" ? "not suitable" : status),
          why.length > 0 ? h("ul", null, why.map((line) => h("li", null, line))) : null)))));
  }

  async function load() {
    loading += 1;
    try {
      const told = await askView(`api/placement${asker.value ? `?node=${encodeURIComponent(asker.value)}` : ""}`);
      if (ended || !told) return;
      view = told;
      if (!view.none && asker.childElementCount !== view.nodes.length) {
        const now = asker.value || view.asker;
        replace(asker, view.nodes.map(({ node }) => h("option", { value: node }, node)));
        asker.value = now;
      }
      drawAttributes();
    } catch (error) { toast(error.message); } finally { loading -= 1; }
  }

  function drawAttributes() {
    if (!view) return;
    if (view.none) { replace(attributes, empty("No placement", view.none)); replace(leases, empty("No leases", "")); return; }
    const label = shortNames(view.nodes.map(({ node }) => node));
    const names = view.names.filter((name) => name.includes(filter.value.trim()));
    replace(attributes, table(["Attribute", ...view.nodes.map(({ node }) => label(node))], names.map((name) => h("tr", null, h("td", { class: "mono" }, name),
      view.nodes.map(({ attributes: known }) => { const one = known[name] ?? { unknown: "not known" };
        return h("td", { class: "value", title: one.age_ms === undefined ? "" : `${span(one.age_ms)} old` }, shownValue(one), one.age_ms === undefined ? null : h("div", { class: "muted", style: "font-size:.76rem" }, one.age_ms < 1000 ? `${one.age_ms} ms` : ago(one.age_ms))); })))));
    replace(leases, view.leases.length === 0 ? h("p", { class: "muted" }, "No node has granted a lease that still holds.")
      : table(["Node", "Holder", "Claims", ["Left"]], view.leases.map(({ node, holder, holder_node, claims, left_ms }) => h("tr", null, h("td", null, label(node)), h("td", null, `${holder} on ${label(holder_node)}`),
        h("td", { class: "mono" }, claims), h("td", { class: "n" }, typeof left_ms === "number" ? span(left_ms) : left_ms)))));
  }

  asker.addEventListener("change", load);
  context.watch();
  load();
  // Refreshes the page unless the tab is hidden. No request is sent while one is pending, because a node that does not answer may take longer than
  // the interval, and a browser only has six connections.
  timer = setInterval(() => { if (!document.hidden && loading === 0) load(); }, 10000);
  return { on() {}, end: () => { ended = true; clearInterval(timer); } };
}

export default { id: "placement", title: "Placement", open };
