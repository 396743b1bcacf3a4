// SPDX-License-Identifier: Apache-2.0
// Formats numbers for people.

const round = (value) => value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);

function scaled(value, step, units) {
  let at = 0;
  while (Math.abs(value) >= step && at + 1 < units.length) { value /= step; at += 1; }
  return [at === 0 ? String(Math.round(value * 10) / 10) : round(value), units[at]];
}

export const bytes = (value) => scaled(value, 1000, ["B", "kB", "MB", "GB", "TB"]).join(" ");
export const rate = (value) => `${bytes(value)}/s`;
export const count = (value) => scaled(value, 1000, ["", "k", "M", "G"]).join("");
export const perSecond = (value) => `${count(value)}/s`;
export const percent = (share) => `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;

export function micros(us) {
  if (us === null || us === undefined) return "–";
  if (us >= 1e6) return `${round(us / 1e6)} s`;
  if (us >= 1e3) return `${round(us / 1e3)} ms`;
  return `${us >= 100 ? us.toFixed(0) : round(us)} µs`;
}

export function span(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(seconds / 86400)} days`;
}

export const ago = (ms) => ms < 1500 ? "now" : `${span(ms)} ago`;
export const day = (seconds) => new Date(seconds * 1000).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });

export function number(value) {
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) >= 10000) return value.toLocaleString("en");
  return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(4)));
}

export const short = (name) => name.split("@")[0];

// Shortens names by removing what they all have in common after the @.
export function shortNames(names) {
  const hosts = new Set(names.map((name) => name.split("@")[1]));
  const firsts = new Set(names.map(short));
  return hosts.size === 1 || firsts.size === names.length ? (name) => short(name) : (name) => name;
}
