// SPDX-License-Identifier: Apache-2.0
// Creates elements without a framework. Text always becomes a text node, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
}

export const h = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// A kind of link is shown in its colour, which style.css defines under the kind's name.
export const kindBadge = (kind, text) => h("span", { class: "badge colored", style: `--color: var(--${kind || "muted"}, var(--muted))` }, text);

export function replace(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

export function card(title, attributes, ...children) {
  return h("section", { ...attributes, class: `card ${attributes?.class ?? ""}` }, title ? h("h2", null, title) : null, children);
}

export const empty = (title, ...text) => h("div", { class: "empty" }, h("strong", null, title), h("p", null, text));

// A tooltip under the pointer; the element's own label gives the same text to people who do not use a pointer.
const tip = () => document.getElementById("tip");
export function showTip(event, ...content) {
  const box = replace(tip(), content);
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  box.style.left = `${Math.max(4, Math.min(innerWidth - width - 8, event.clientX + 14))}px`;
  box.style.top = `${event.clientY + height + 24 > innerHeight ? event.clientY - height - 12 : event.clientY + 16}px`;
}
export const hideTip = () => { tip().hidden = true; };

export function toast(text, kind = "bad") {
  const line = h("div", { class: `toast ${kind}` }, text);
  document.getElementById("toasts").append(line);
  setTimeout(() => line.remove(), 6000);
}

export async function ask(path, body) {
  const options = body === undefined ? {} : { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Error("the console does not answer");
  }
  if (response.status === 401) location.reload();
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error), { status: response.status });
  return answer;
}

// Like ask(), but for a part of a page. A later request replaces an earlier one, whose answer or error then becomes undefined.
export function lastAsked() {
  let last = 0;
  return async (path, body) => {
    const mine = last += 1;
    try {
      const answer = await ask(path, body);
      return mine === last ? answer : undefined;
    } catch (error) {
      if (mine === last) throw error;
      return undefined;
    }
  };
}

export const table = (heads, rows, attributes) =>
  h("div", { class: "scroll" }, h("table", attributes,
    h("thead", null, h("tr", null, heads.map((head) => typeof head === "string" ? h("th", { scope: "col" }, head) : h("th", { scope: "col", class: "n" }, head[0])))),
    h("tbody", null, rows)));
