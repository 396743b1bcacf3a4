// SPDX-License-Identifier: Apache-2.0
// Shows the pipes that run on this host, hop by hop.

import { h, replace, card, empty, kindBadge } from "../lib/dom.js";
import { bytes, rate, span } from "../lib/format.js";

function open(root, context) {
  const box = h("div", { class: "columns" });
  let before = new Map();
  root.append(h("div", { class: "head" }, h("h1", null, "Pipes"), h("span", { class: "sub" }, "Transfers of rdpipe that were started on the console's host by its user.")), box);

  function on(kind, data) {
    if (kind !== "pipes") return;
    const now = new Map();
    const cards = data.pipes.map((pipe) => {
      const speeds = pipe.hops.map((hop, at) => {
        const key = `${pipe.pid}/${at}`, old = before.get(key);
        // The file is written once a second, so the speed is computed from its last change.
        const one = old && old.bytes === hop.bytes && data.t - old.t < 3000 ? old : { t: data.t, bytes: hop.bytes, speed: old ? Math.max(0, (hop.bytes - old.bytes) * 1000 / Math.max(1, data.t - old.t)) : 0 };
        now.set(key, one);
        return one.speed;
      });
      const slowest = pipe.hops.length > 1 ? speeds.indexOf(Math.min(...speeds)) : -1;
      return card(null, null, h("div", { class: "head" }, h("h2", null, `Process ${pipe.pid}`), h("span", { class: "muted" }, pipe.started_at ? `for ${span(data.t - pipe.started_at * 1000)}` : "")),
        h("div", { class: "hops" }, pipe.hops.flatMap((hop, at) => [at === 0 ? h("div", { class: "stop" }, hop.from || "this host") : null,
          h("div", { class: `hop ${at === slowest && speeds.some((speed) => speed > 0) ? "slow" : ""}` }, h("div", null, h("b", null, rate(speeds[at]))), h("div", { class: "arrow" }),
            h("span", { class: "muted" }, bytes(hop.bytes), " "), kindBadge(hop.carrier, hop.carrier || "connecting")),
          h("div", { class: "stop" }, hop.to || "this host")])));
    });
    before = now;
    replace(box, cards.length > 0 ? cards : card(null, null, empty("No pipes run", "A running ", h("code", null, "rdpipe host1:'cmd' host2:'cmd'"), " of this user shows here what each of its hops carries.")));
  }
  context.watch("pipes");
  return { on, end() {} };
}

export default { id: "pipes", title: "Pipes", open };
