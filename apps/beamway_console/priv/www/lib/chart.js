// SPDX-License-Identifier: Apache-2.0
// Line charts over time, drawn by uPlot in the colours of the theme.

import { h } from "./dom.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const charts = new Set();
addEventListener("themechange", () => charts.forEach((chart) => chart.remake()));

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("en-GB");

// series: [{ label, color: "--name", format, fill }]; keep: the maximum number of points.
export class Chart {
  constructor(title, series, { format, height = 140, keep = 300 } = {}) {
    Object.assign(this, { series, format, height, keep });
    this.data = [[], ...series.map(() => [])];
    this.box = h("div", { class: "plot" });
    this.values = series.map((one) => h("b", null, "–"));
    this.element = h("figure", { class: "chart" },
      h("figcaption", null, h("span", null, title),
        h("span", { class: "keys" }, series.map((one, at) => h("span", { class: "key" }, h("i", { style: `background:var(${one.color})` }), one.label, " ", this.values[at])))),
      this.box);
    charts.add(this);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.box);
  }

  make() {
    const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    this.plot = new uPlot({
      width: Math.max(80, this.box.clientWidth), height: this.height,
      cursor: { y: false, points: { size: 6 } }, legend: { show: false },
      scales: { y: { range: (self, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, values: (self, ticks) => ticks.map((tick) => clock(tick).slice(0, 8)), space: 90, size: 26 },
             { ...axis, size: 66, values: (self, ticks) => ticks.map((tick) => this.format(tick)), space: 24 }],
      series: [{}, ...this.series.map(({ label, color, fill }) =>
        ({ label, stroke: css(color), width: 1.8, fill: fill ? `${css(color)}22` : undefined, points: { show: false }, spanGaps: true }))],
      hooks: { setCursor: [(self) => this.shown(self.cursor.idx)] },
    }, this.data, this.box);
  }

  remake() {
    this.plot?.destroy();
    this.plot = null;
    if (this.box.clientWidth > 0) this.make();
  }

  resize() {
    if (this.box.clientWidth === 0) return;
    if (!this.plot) this.make();
    else if (Math.abs(this.plot.width - this.box.clientWidth) > 1) this.plot.setSize({ width: this.box.clientWidth, height: this.height });
  }

  set(data) {
    this.data = data;
    this.plot?.setData(data);
    this.shown(null);
  }

  add(seconds, values) {
    const times = this.data[0];
    if (times.length > 0 && seconds <= times.at(-1)) return;
    [seconds, ...values].forEach((value, at) => {
      this.data[at].push(value);
      if (this.data[at].length > this.keep) this.data[at].shift();
    });
    this.plot?.setData(this.data);
    this.shown(this.plot?.cursor.idx);
  }

  shown(index) {
    this.values.forEach((value, at) => {
      const all = this.data[at + 1];
      const one = all[index ?? all.length - 1];
      value.textContent = one === undefined || one === null ? "–" : this.format(one);
    });
  }

  destroy() {
    this.observer.disconnect();
    charts.delete(this);
    this.plot?.destroy();
    this.plot = null;
  }
}
