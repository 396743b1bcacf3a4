// SPDX-License-Identifier: Apache-2.0
// The frame around all pages: page selection, the page's event stream, light and dark theme, keyboard shortcuts.

import { h, replace, hideTip } from "./lib/dom.js";
import { Live } from "./lib/live.js";
import cluster from "./pages/cluster.js";
import topology from "./pages/topology.js";
import placement from "./pages/placement.js";
import http from "./pages/http.js";
import pipes from "./pages/pipes.js";

const pages = { cluster, topology, placement, http, pipes };
const main = document.getElementById("main");
const root = document.documentElement;
let page = null;
let last = null;

const live = new Live((kind, data) => {
  if (kind === "cluster") last = data;
  page?.on(kind, data);
}, (state) => {
  const pill = document.getElementById("live");
  pill.className = `pill ${state}`;
  pill.textContent = state === "live" ? "live" : "reconnecting";
});

const context = {
  frame: () => last,
  // The page's own topics, in addition to that of the cluster.
  watch: (...topics) => live.watch(topics),
  go: (hash) => { location.hash = hash; },
};

function shown() {
  const [, name = "cluster", ...rest] = location.hash.split("/");
  const make = pages[name] ?? cluster;
  hideTip();
  if (page?.make === make && page.route) return page.route(rest.map(decodeURIComponent));
  page?.end?.();
  page = null;
  replace(main);
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.page === make.id) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${make.title} – Beamway console`;
  const next = make.open(main, context, rest.map(decodeURIComponent));
  next.make = make;
  page = next;
  if (last) page.on("cluster", last);
}

function themed(name) {
  root.dataset.theme = name;
  dispatchEvent(new Event("themechange"));
}
const dark = matchMedia("(prefers-color-scheme: dark)");
const chosen = () => localStorage.getItem("theme") ?? (dark.matches ? "dark" : "light");
themed(chosen());
dark.addEventListener("change", () => themed(chosen()));
function turn() {
  localStorage.setItem("theme", root.dataset.theme === "dark" ? "light" : "dark");
  themed(chosen());
}
document.getElementById("theme").addEventListener("click", turn);

replace(document.getElementById("nav"), Object.entries(pages).map(([name, { title }], at) =>
  h("a", { href: `#/${name}`, "data-page": name, title: `${title} (${at + 1})` }, title)));

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
  const name = Object.keys(pages)[Number(event.key) - 1];
  if (name) context.go(`#/${name}`);
  else if (event.key === "t") turn();
  else if (event.key === "Escape") hideTip();
});
addEventListener("hashchange", () => { shown(); main.focus({ preventScroll: true }); });
shown();
