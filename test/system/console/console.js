// SPDX-License-Identifier: Apache-2.0
// Opens the console's pages in Chromium, clicks through them and takes screenshots. usage: node console.js CHROMIUM URL PICTURES VICTIM-PID VICTIM-NODE
// Prints a line for each check that passes, and exits with a message at the first one that fails.
"use strict";
const assert = require("node:assert");
const os = require("node:os");
const path = require("node:path");
const { chromium } = require("playwright-core");

const [program, url, pictures, victimPid, victim] = process.argv.slice(2);
// These limits are for an idle machine. They are multiplied if the load exceeds the number of
// processors.
const patience = () => Number(process.env.BEAMWAY_TEST_SLOWNESS ?? 1) * Math.max(1, (2 * os.loadavg()[0]) / os.cpus().length);
const LOADED_MS = 1000;
const SHOWN_MS = 2000;
const failures = [];

async function opened(browser, options, hash) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(30000 * Math.min(4, patience()));
  page.on("pageerror", (error) => failures.push(`${hash}: ${error}`));
  page.on("console", (message) => { if (["error", "warning"].includes(message.type())) failures.push(`${hash}: ${message.text()}`); });
  await page.goto(`${url}#/${hash}`);
  return page;
}

const picture = (page, name) => page.screenshot({ path: path.join(pictures, `${name}.png`), fullPage: true });
const heading = (page, name) => page.getByRole("heading", { name, level: 1 }).waitFor();

// Measures the time from the request until the cluster is drawn, with an empty cache. The first run includes the start of the browser, so the best time counts.
async function quick(browser) {
  const times = [];
  for (let turn = 0; turn < 4; turn += 1) {
    const page = await opened(browser, { viewport: { width: 1280, height: 900 } }, "cluster");
    times.push(Math.round(await page.evaluate(() => new Promise((done) => {
      const look = () => { if (document.querySelectorAll(".node").length > 0) done(performance.now()); else setTimeout(look, 5); };
      look();
    }))));
    await page.context().close();
  }
  assert.ok(Math.min(...times) < LOADED_MS * patience(), `the cluster was drawn ${times} ms after the page was asked for`);
  console.log(`the first page is drawn after ${times.join(", ")} ms`);
}

async function cluster(browser) {
  const page = await opened(browser, { viewport: { width: 1280, height: 900 }, colorScheme: "light" }, "cluster");
  await page.locator(".node.up").nth(5).waitFor();
  // Playwright considers an exactly vertical line hidden, because its box has no width.
  for (const kind of ["shm", "tcp"]) await page.locator(`.link.${kind}`).first().waitFor({ state: "attached" });
  // What the screenshot's captions say.
  await page.locator(".tile").filter({ hasText: "Hosts" }).getByText("2", { exact: true }).waitFor();
  await page.getByText("6 shm, 9 tcp").waitFor();
  await page.waitForTimeout(4000);
  await picture(page, "cluster");
  await page.locator(".link.shm").first().focus();
  await page.keyboard.press("Enter");
  await page.locator(".why").getByText("same host").waitFor();
  await page.getByText("Frames and doorbells a second").waitFor();
  await page.locator("figure .uplot").nth(3).waitFor();
  await page.waitForTimeout(3500);
  await page.getByText("the link came up").first().waitFor(); // what both ends have recorded
  await picture(page, "cluster-link");
  // The size of a typical window, for the guide (scripts/console-picture).
  await page.screenshot({ path: path.join(pictures, "console.png") });
  await page.getByRole("button", { name: "Light or dark" }).click();
  assert.strictEqual(await page.evaluate(() => document.documentElement.dataset.theme), "dark");
  await page.waitForTimeout(300);
  await picture(page, "cluster-link-dark");
  await page.getByRole("link", { name: "bob" }).first().click();
  await page.getByText("Processors in use", { exact: true }).waitFor();
  await page.waitForTimeout(2500);
  await picture(page, "cluster-node-dark");
  await page.keyboard.press("2");
  await heading(page, "Topology");
  console.log("the cluster's page: graph, link, node, both themes, keys");
  await page.context().close();
}

// Tests a cluster that has more links than the console sends to a page.
async function crowd(browser) {
  const page = await opened(browser, { viewport: { width: 1280, height: 900 } }, "pipes");
  const said = await page.evaluate(async () => {
    const { default: cluster } = await import("./pages/cluster.js");
    const root = document.body.appendChild(document.createElement("div"));
    const shown = cluster.open(root, { go() {}, watch() {}, frame: () => null }, []);
    const nodes = ["a@h", "b@h", "c@h"].map((name) => ({ name, host: "h", state: "up", why: "" }));
    shown.on("cluster", { t: 1, nodes, links: [{ a: 0, b: 2, kind: "shm", ab: 5, ba: 5, frames: 1, stalls: 0 }], all: { kinds: { shm: 2, tcp: 1 }, bytes: 12, frames: 1, stalls: 0 } });
    shown.end();
    return root.innerText;
  });
  for (const words of ["2 shm, 1 tcp", "12 B/s", "The 1 busiest of 3 links are drawn."]) assert.ok(said.includes(words), said);
  console.log("the cluster's page says of how many links the busiest are drawn");
  await page.context().close();
}

async function topology(browser) {
  const page = await opened(browser, { viewport: { width: 1280, height: 900 }, colorScheme: "light" }, "topology");
  // The first times were passed to the console by the suite, and the next ones are measured between
  // the suite's own nodes.
  await page.getByRole("img", { name: "Heat map of 400 nodes" }).waitFor();
  await page.locator("#measure").click();
  await page.getByRole("progressbar").waitFor();
  await picture(page, "topology-measuring");
  await page.getByRole("img", { name: "Heat map of 6 nodes" }).waitFor({ timeout: 120000 });
  await page.getByText("How well the tree fits").waitFor();
  await picture(page, "topology");
  for (const name of ["Quiet", "Fastest", "By name", "Linear", "By cluster", "Log", "α"]) await page.locator(".segments").getByRole("button", { name, exact: true }).click();
  await page.locator("#alpha").fill("2.5");
  await page.waitForTimeout(800);
  await picture(page, "topology-alpha");
  const files = await page.locator("a[download]").evaluateAll((links) => links.map((link) => link.href));
  assert.strictEqual(files.length, 11);
  for (const file of files) {
    const answer = await page.request.get(file);
    assert.ok(answer.ok() && (await answer.body()).length > 10, `${file}: ${answer.status()}`);
  }
  console.log("the topology's page: 400 nodes, measured now, every switch, every export");
  await page.context().close();
}

async function placement(browser) {
  const page = await opened(browser, { viewport: { width: 1280, height: 900 }, colorScheme: "dark" }, "placement");
  await page.getByRole("cell", { name: "load_per_core1", exact: true }).waitFor();
  const editor = page.locator("#query");
  await editor.fill("");
  await editor.pressSequentially("{ra");
  await page.getByRole("option", { name: "rack" }).waitFor();
  await picture(page, "placement-completion");
  await page.keyboard.press("Tab");
  await editor.pressSequentially(", eq, left}");
  assert.strictEqual(await editor.inputValue(), "{rack, eq, left}");
  await page.locator("#choose").click();
  await page.getByText("chosen").first().waitFor();
  await page.getByText("not suitable").first().waitFor();
  await picture(page, "placement");
  await editor.fill("{no_such_thing_at_all, true}");
  await page.keyboard.press("Control+Enter");
  await page.getByRole("alert").getByText("no_such_thing_at_all").waitFor();
  await page.getByRole("columnheader", { name: "Holder" }).waitFor();
  await last(page);
  console.log("the placement's page: completion, why not, a wrong word, ages, leases, the node that was asked last");
  await page.context().close();
}

// Selects two nodes one after the other. The response for the first node arrives last.
async function last(page) {
  const asker = page.getByLabel("Asked node");
  const nodes = await asker.locator("option").evaluateAll((options) => options.map(({ value }) => value));
  const [early, late] = nodes.slice(-2);
  let go;
  const held = new Promise((done) => { go = done; });
  await page.route(/api\/placement\?node=/, async (route) => {
    const isEarly = route.request().url().endsWith(encodeURIComponent(early));
    if (isEarly) await held;
    const view = { asker: early, names: [isEarly ? "told_by_early" : "told_by_late"], nodes: nodes.map((node) => ({ node, status: "ok", attributes: {} })), leases: [], words: [], units: [] };
    await route.fulfill({ contentType: "application/json", body: JSON.stringify(view) });
  });
  await asker.selectOption(early);
  await asker.selectOption(late);
  await page.getByRole("cell", { name: "told_by_late", exact: true }).waitFor();
  const answered = page.waitForResponse((response) => response.url().endsWith(encodeURIComponent(early)));
  go();
  await (await answered).finished();
  await page.waitForTimeout(500);
  assert.strictEqual(await page.getByRole("cell", { name: "told_by_late", exact: true }).count(), 1);
}

async function http(browser) {
  const page = await opened(browser, { viewport: { width: 1280, height: 900 }, colorScheme: "dark" }, "http");
  await page.getByRole("link", { name: "shop" }).click();
  await page.getByRole("heading", { name: /^shop on/ }).waitFor();
  await page.waitForTimeout(4000);
  await picture(page, "http");
  console.log("the page of HTTP: servers, one server's past");
  await page.context().close();
}

async function pipes(browser) {
  const page = await opened(browser, { viewport: { width: 1280, height: 900 }, colorScheme: "light" }, "pipes");
  await page.locator(".hop").first().waitFor();
  await page.waitForTimeout(3000);
  await picture(page, "pipes");
  console.log("the page of pipes: a running pipe, hop by hop");
  await page.context().close();
}

// On a phone, no page may be wider than the screen.
async function phone(browser) {
  for (const name of ["cluster", "topology", "placement", "http", "pipes"]) {
    const page = await opened(browser, { viewport: { width: 390, height: 844 }, deviceScaleFactor: 2, isMobile: true, hasTouch: true, colorScheme: "dark" }, name);
    await page.locator("h1").waitFor();
    await page.waitForTimeout(1500);
    const wide = await page.evaluate(() => document.documentElement.scrollWidth);
    assert.ok(wide <= 390, `${name} is ${wide} pixels wide on a phone`);
    await picture(page, `phone-${name}`);
    await page.context().close();
  }
  console.log("all pages fit a phone");
}

async function death(browser) {
  const page = await opened(browser, { viewport: { width: 1280, height: 900 }, colorScheme: "light" }, "cluster");
  await page.locator(".node.up").nth(5).waitFor();
  const shown = page.evaluate(() => new Promise((done) => {
    const look = () => { if (document.querySelector(".node.down")) done(Date.now()); else setTimeout(look, 5); };
    look();
  }));
  const killed = Date.now();
  process.kill(Number(victimPid), "SIGKILL");
  const took = await shown - killed;
  assert.ok(took < SHOWN_MS * patience(), `the death of ${victim} was shown after ${took} ms`);
  await page.waitForTimeout(1200);
  await picture(page, "cluster-down");
  console.log(`a killed node is shown after ${took} ms`);
  await page.context().close();
}

async function visit() {
  const browser = await chromium.launch({ executablePath: program, args: ["--no-sandbox"] });
  try {
    for (const part of [quick, cluster, crowd, topology, placement, http, pipes, phone, death]) await part(browser);
    assert.deepStrictEqual(failures, []);
    console.log("no message of the browser's own");
  } finally {
    await browser.close();
  }
}

visit().then(() => console.log("all seen"), (error) => {
  if (failures.length > 0) console.error(failures.join("\n"));
  console.error(error);
  process.exit(1);
});
