// SPDX-License-Identifier: Apache-2.0
// Visits sites in Chromium as a person would. usage: node visit.js CHROMIUM SITES-PORT SOCKETS-PORT TLS-PORT
// Prints a line for each check that passes, and exits with a message at the first one that fails.
"use strict";
const assert = require("node:assert");
const { chromium } = require("playwright-core");

const [program, sites, sockets, secure] = process.argv.slice(2);

async function click(browser, name) {
  const page = await browser.newPage();
  const failures = [];
  page.on("pageerror", (error) => failures.push(String(error)));
  await page.goto(`http://${name}.localhost:${sites}/`);
  assert.strictEqual(await page.title(), `Welcome to site ${name}`);
  await page.getByRole("button", { name: "Click me!" }).click();
  await page.getByText(`You clicked the button of site ${name}!`).waitFor();
  assert.strictEqual(await page.getByRole("button").count(), 0);
  assert.strictEqual(await page.locator("#answer.highlight").count(), 1);
  assert.deepStrictEqual(failures, []);
  await page.close();
  console.log(`clicked in site ${name}`);
}

// Runs in the page.
async function talk(url) {
  const socket = new WebSocket(url);
  const next = (kind) => new Promise((done, failed) => {
    socket.addEventListener(kind, done, { once: true });
    socket.addEventListener("error", () => failed(new Error("the socket failed")), { once: true });
  });
  socket.binaryType = "arraybuffer";
  await next("open");
  for (const text of ["hello", "", "ü".repeat(100000)]) {
    const answer = next("message");
    socket.send(text);
    if ((await answer).data !== text) throw new Error("another text came back");
  }
  const bytes = crypto.getRandomValues(new Uint8Array(65536));
  const answer = next("message");
  socket.send(bytes);
  const back = new Uint8Array((await answer).data);
  if (back.length !== bytes.length || back.some((byte, at) => byte !== bytes[at])) throw new Error("other bytes came back");
  const end = next("close");
  socket.send("close");
  const { code, reason, wasClean } = await end;
  return { code, reason, wasClean, extensions: socket.extensions };
}

async function events(url) {
  const source = new EventSource(url);
  const seen = [];
  await new Promise((done) => {
    source.onmessage = ({ data, lastEventId }) => {
      seen.push([data, lastEventId]);
      if (seen.length === 3) done();
    };
  });
  source.close();
  return seen;
}

// Over TLS the browser uses HTTP/2. Tests many concurrent requests, large bodies in both directions, events, and a WebSocket on the same connection.
async function overHttp2(browser, goodbye) {
  const page = await browser.newPage({ ignoreHTTPSErrors: true });
  await page.goto(`https://localhost:${secure}/`);
  const protocols = () => page.evaluate(() => ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind)).map((entry) => entry.nextHopProtocol));
  const answers = await page.evaluate(async () => {
    const texts = await Promise.all(Array.from({ length: 50 }, (_, n) => fetch(`/text?${n}`).then((answer) => answer.text())));
    const large = await (await fetch("/large")).arrayBuffer();
    const sent = await (await fetch("/count", { method: "POST", body: new Uint8Array(3000000) })).text();
    return { texts: texts.map((text) => text.length), large: large.byteLength, sent };
  });
  assert.deepStrictEqual(answers, { texts: Array(50).fill(5000), large: 8 * 1024 * 1024, sent: "3000000" });
  assert.deepStrictEqual([...new Set(await protocols())], ["h2"]);
  assert.deepStrictEqual(await page.evaluate(events, `https://localhost:${secure}/events`), [["a\nb", "1"], ["a\nb", "2"], ["a\nb", "3"]]);
  assert.deepStrictEqual(await page.evaluate(talk, `wss://localhost:${secure}/ws`), { ...goodbye, extensions: "" });
  await page.close();
  console.log("HTTP/2: 53 requests, events, a WebSocket");
}

async function visit() {
  const browser = await chromium.launch({ executablePath: program, args: ["--no-sandbox"] });
  try {
    for (const name of ["one", "two"]) await click(browser, name);
    const page = await browser.newPage();
    await page.goto(`http://localhost:${sockets}/`);
    const goodbye = { code: 3001, reason: "as you wish", wasClean: true };
    const plain = await page.evaluate(talk, `ws://localhost:${sockets}/ws`);
    assert.deepStrictEqual(plain, { ...goodbye, extensions: "" });
    console.log("a WebSocket");
    const { extensions, ...deflated } = await page.evaluate(talk, `ws://localhost:${sockets}/ws_deflate`);
    assert.deepStrictEqual(deflated, goodbye);
    assert.match(extensions, /^permessage-deflate/);
    console.log("a WebSocket with compression");
    assert.deepStrictEqual(await page.evaluate(events, `http://localhost:${sockets}/events`), [["a\nb", "1"], ["a\nb", "2"], ["a\nb", "3"]]);
    console.log("events");
    await overHttp2(browser, goodbye);
  } finally {
    await browser.close();
  }
}

visit().then(() => console.log("all seen"), (error) => {
  console.error(error);
  process.exit(1);
});
