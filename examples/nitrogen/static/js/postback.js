// SPDX-License-Identifier: Apache-2.0
// Clicking a button sends its postback to the server, whose response describes what to change on the page.
"use strict";
document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-postback]");
  if (!button) return;
  const answer = await fetch("/postback", { method: "POST", body: new URLSearchParams({ postback: button.dataset.postback }) });
  if (!answer.ok) return;
  for (const { replace, html, effect } of await answer.json()) {
    const old = document.getElementById(replace);
    if (!old) continue;
    old.insertAdjacentHTML("afterend", html);
    if (effect) old.nextElementSibling.classList.add(effect);
    old.remove();
  }
});
