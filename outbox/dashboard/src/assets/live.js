// Shows the page anew every five seconds, while somebody looks and nothing is being filled in.
"use strict";
(() => {
  const here = document.querySelector("header nav [aria-current]");
  if (here) here.scrollIntoView({ block: "nearest", inline: "center" });
  const address = new URL(location.href);
  if (address.searchParams.has("did")) {
    // A result is told once: not again when the page is loaded again.
    address.searchParams.delete("did");
    history.replaceState(null, "", address);
  }
  const every = 5000;
  const main = () => document.querySelector("main[data-live]");
  if (!main()) return;
  const note = () => document.querySelectorAll(".live").forEach((it) => { it.hidden = false; });
  const stale = (is) => document.querySelectorAll(".stale").forEach((it) => { it.hidden = !is; });
  const busy = () => {
    const active = document.activeElement;
    const chosen = document.querySelector("main input:checked");
    const selected = String(getSelection() || "");
    return document.hidden || chosen || selected || (active && active.matches("input, select, textarea"));
  };
  const spots = (of) => [...of.querySelectorAll("a, button, summary")];
  // Names a link by where it leads, and a button by what its form sends.
  const name = (it) => it.href || [it, ...(it.form ? it.form.elements : [])].map((part) => part.textContent + part.value).join();
  const refresh = async () => {
    if (busy()) return;
    const answer = await fetch(address, { credentials: "same-origin", redirect: "error", headers: { accept: "text/html" } });
    if (!answer.ok) throw new Error(answer.status);
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main[data-live]");
    if (!fresh || busy()) return;
    const old = main();
    const open = [...old.querySelectorAll("details")].map((it) => it.open);
    fresh.querySelectorAll("details").forEach((it, at) => { it.open = open[at] ?? it.open; });
    const focused = spots(old).find((it) => it === document.activeElement);
    old.replaceWith(fresh);
    // Who moves by keyboard stays where they were.
    if (focused) spots(fresh).find((it) => name(it) === name(focused))?.focus({ preventScroll: true });
    note();
  };
  note();
  setInterval(() => refresh().catch(() => stale(true)), every);
})();
