// SPDX-License-Identifier: Apache-2.0
// Draws nodes, hosts and links. The nodes of a host form a ring, and a d3 force simulation positions the hosts.

import { s, showTip, hideTip, replace } from "./dom.js";
import { rate, shortNames, perSecond } from "./format.js";

const GAP = 104;
const ringRadius = (size) => size === 1 ? 0 : Math.max(60, (size * GAP) / (2 * Math.PI));

function hostsOf(nodes) {
  const hosts = new Map();
  for (const node of nodes) {
    if (!hosts.has(node.host)) hosts.set(node.host, { name: node.host, nodes: [] });
    hosts.get(node.host).nodes.push(node.name);
  }
  return [...hosts.values()];
}

// Returns the positions of all nodes and hosts, in abstract coordinates. The same set of nodes always gets the same positions.
export function layout(nodes, wide) {
  const hosts = hostsOf(nodes);
  const across = hosts.length === 1 ? 0 : 1;
  hosts.forEach((host, at) => {
    host.ring = ringRadius(host.nodes.length);
    host.radius = host.ring + 64;
    // Two hosts are next to each other where there is room, because one above the other they would be drawn smaller.
    const angle = (2 * Math.PI * at) / hosts.length - (wide && hosts.length === 2 ? Math.PI : Math.PI / 2);
    host.x = across * Math.cos(angle) * 220 * Math.sqrt(hosts.length) * (wide ? 1.5 : 0.8);
    host.y = across * Math.sin(angle) * 220 * Math.sqrt(hosts.length) * (wide ? 0.6 : 1.3);
  });
  if (hosts.length > 1) {
    d3.forceSimulation(hosts).stop()
      .force("apart", d3.forceCollide((host) => host.radius + 24).strength(1).iterations(3))
      .force("x", d3.forceX(0).strength(wide ? 0.04 : 0.1)).force("y", d3.forceY(0).strength(wide ? 0.1 : 0.04))
      .tick(240);
  }
  const places = new Map();
  for (const host of hosts) {
    // The first node of each of several hosts is on the outer side. If it were at the top, links between two hosts would cover links within them.
    const first = hosts.length > 1 ? Math.atan2(host.y, host.x) : -Math.PI / 2;
    host.nodes.forEach((name, at) => {
      const angle = (2 * Math.PI * at) / host.nodes.length + first;
      places.set(name, { x: host.x + host.ring * Math.cos(angle), y: host.y + host.ring * Math.sin(angle), angle, alone: host.nodes.length === 1 });
    });
  }
  return { hosts, places };
}

const width = (bytesPerSecond) => bytesPerSecond <= 0 ? 1.2 : 1.2 + Math.min(9, Math.max(0, Math.log10(bytesPerSecond) - 2) * 1.55);

export class Graph {
  constructor(onSelect) {
    this.onSelect = onSelect;
    this.hulls = s("g");
    this.lines = s("g");
    this.dots = s("g");
    this.element = s("svg", { class: "graph", role: "group", "aria-label": "Nodes and links" }, this.hulls, this.lines, this.dots);
    this.key = "";
    this.links = new Map();
    this.nodes = new Map();
    this.observer = new ResizeObserver(() => { this.key = ""; if (this.last) this.draw(this.last, this.selected); });
    this.observer.observe(this.element);
  }

  destroy() { this.observer.disconnect(); }

  draw(frame, selected) {
    this.last = frame;
    this.selected = selected;
    const wide = this.element.clientWidth > 560;
    const key = JSON.stringify([wide, frame.nodes.map(({ name, host }) => [name, host])]);
    if (key !== this.key) this.place(frame.nodes, key, wide);
    this.drawLinks(frame);
    for (const node of frame.nodes) this.drawNode(node);
  }

  place(nodes, key, wide) {
    this.key = key;
    const { hosts, places } = layout(nodes, wide);
    this.places = places;
    this.label = shortNames(nodes.map(({ name }) => name));
    this.links.clear();
    this.nodes.clear();
    replace(this.lines);
    replace(this.dots);
    replace(this.hulls, hosts.map((host) => s("g", { class: "host" },
      s("circle", { cx: host.x, cy: host.y, r: host.radius }),
      s("text", { x: host.x, y: host.y - host.radius - 8, "text-anchor": "middle" }, host.name))));
    const xs = hosts.flatMap((host) => [host.x - host.radius - 30, host.x + host.radius + 30]);
    const ys = hosts.flatMap((host) => [host.y - host.radius - 34, host.y + host.radius + 14]);
    if (hosts.length === 0) return;
    const box = [Math.min(...xs), Math.min(...ys), Math.max(...xs) - Math.min(...xs), Math.max(...ys) - Math.min(...ys)];
    // Small clusters are not enlarged much: a unit corresponds to at most 1.4 pixels.
    [[0, 2, this.element.clientWidth], [1, 3, this.element.clientHeight]].forEach(([from, size, pixels]) => {
      const more = Math.max(0, pixels / 1.4 - box[size]);
      box[from] -= more / 2;
      box[size] += more;
    });
    this.element.setAttribute("viewBox", box.map(Math.round).join(" "));
  }

  drawLinks(frame) {
    const seen = new Set();
    for (const link of frame.links) {
      const a = frame.nodes[link.a].name, b = frame.nodes[link.b].name;
      const id = `${a}|${b}`;
      seen.add(id);
      let line = this.links.get(id);
      if (!line) {
        const [from, to] = [this.places.get(a), this.places.get(b)];
        const path = `M${from.x.toFixed(1)} ${from.y.toFixed(1)}L${to.x.toFixed(1)} ${to.y.toFixed(1)}`;
        line = s("g", { class: "link", tabindex: frame.links.length <= 120 ? 0 : -1, role: "button",
                        onclick: () => this.onSelect({ link: [a, b] }), onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.onSelect({ link: [a, b] }); } },
                        onpointermove: (event) => showTip(event, line.text()), onpointerleave: hideTip },
          s("path", { d: path, class: "touch" }), s("path", { d: path, class: "wire" }));
        this.links.set(id, line);
        this.lines.append(line);
      }
      const flow = link.ab + link.ba;
      line.text = () => `${this.label(a)} – ${this.label(b)}: ${link.kind}, ${rate(link.ab)} there, ${rate(link.ba)} back, ${perSecond(link.frames)} frames`;
      line.style.color = `var(--${link.kind}, var(--tcp))`;
      line.setAttribute("class", `link ${link.kind} ${link.busy ? "busy" : ""} ${this.selected?.link?.join("|") === id ? "selected" : ""} ${flow > 0 ? "" : "idle"}`);
      line.setAttribute("aria-label", line.text());
      line.lastChild.style.strokeWidth = width(flow);
    }
    for (const [id, line] of this.links) if (!seen.has(id)) { line.remove(); this.links.delete(id); }
  }

  drawNode(node) {
    let dot = this.nodes.get(node.name);
    if (!dot) {
      const { x, y, angle, alone } = this.places.get(node.name);
      const out = alone ? { x, y: y + 34 } : { x: x + 29 * Math.cos(angle), y: y + 29 * Math.sin(angle) + 4 };
      const anchor = alone || Math.abs(Math.cos(angle)) < 0.35 ? "middle" : Math.cos(angle) > 0 ? "start" : "end";
      dot = s("g", { tabindex: 0, role: "button", onclick: () => this.onSelect({ node: node.name }),
                     onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.onSelect({ node: node.name }); } } },
        s("circle", { cx: x, cy: y, r: 17, class: "body" }), s("circle", { cx: x, cy: y, r: 17, class: "load", pathLength: 100, transform: `rotate(-90 ${x} ${y})` }),
        s("text", { x, y: y + 4, "text-anchor": "middle", class: "inside" }),
        s("text", { x: out.x, y: out.y + (anchor === "middle" && !alone ? (Math.sin(angle) > 0 ? 6 : -6) : 0), "text-anchor": anchor, class: "name" }, this.label(node.name)));
      this.nodes.set(node.name, dot);
      this.dots.append(dot);
    }
    dot.setAttribute("class", `node ${node.state} ${this.selected?.node === node.name ? "selected" : ""}`);
    dot.setAttribute("aria-label", `${node.name}, ${node.state}`);
    const share = Math.min(1, (node.cpu ?? 0) / (node.schedulers ?? 1));
    dot.children[1].setAttribute("stroke-dasharray", `${(share * 100).toFixed(1)} 100`);
    dot.children[2].textContent = node.state === "up" ? `${Math.round(share * 100)}%` : node.state === "down" ? "✕" : "…";
  }
}
