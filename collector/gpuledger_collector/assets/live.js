// Pages about now follow what happens, without being loaded anew.
//
// The collector says at data-stream, as server-sent events, that something has changed. Then the page
// fetches its own address, as a reload would, and takes over what differs: what has the focus, is open
// or was scrolled stays so, and what changed is marked for a moment. It is off for a past range, on
// paper, while nobody looks at the tab, and when it is paused.
"use strict";
(() => {
  const mark = document.getElementById("live");
  if (!mark || !window.EventSource) return;
  const [button, state, news] = mark.querySelectorAll("button, .live-state, .live-news");
  const LEAST_MS = 10_000; // between two renewals
  const MOST_MS = 60_000; // after which the numbers of a page are renewed that nothing was said of
  const SOON_MS = 15_000; // what changed is said with the renewal, or before one that is not near
  const MOST_FAILED_MS = 30_000;
  const JITTER_MS = 2_000; // so that those who watch do not all ask at once
  const PATIENCE_MS = 6_000; // how long a stream may take to come back before it counts as lost
  const SILENT_MS = 30_000;
  const MARKED_MS = 4_000;
  const now = () => performance.now();

  let source = null;
  let isPaused = false;
  let isPrinting = false;
  let lostAt = null; // when the stream broke, by the clock of performance.now()
  let refusal = ""; // why the collector has no place for the stream
  let heardAt = now();
  let asOf = Date.now(); // the instant of the last look, by the collector's clock
  let newest = null;
  let tries = 0;
  let timer = 0;
  let again = 0;
  let renewedAt = now();
  let tookMs = 0;
  let rest = 10; // times of that between two renewals: all who watch draw one page at a time
  let sentences = [];

  const clock = (ms) => `${new Date(ms).toISOString().slice(11, 19)} UTC`;
  const streamOf = () => document.querySelector("[data-stream]")?.dataset.stream;
  const isOn = () => Boolean(streamOf()) && !isPrinting;

  function show() {
    mark.classList.toggle("on", isOn());
    const isLost = !isPaused && lostAt !== null && now() - lostAt > PATIENCE_MS;
    const isRefused = !isPaused && refusal !== "";
    mark.dataset.state = isPaused ? "paused" : isRefused ? "refused" : isLost ? "lost" : "live";
    button.textContent = isPaused ? "Resume" : "Pause";
    const seen = newest === null ? "" : `: newest reading ${clock(newest)}`;
    const text = isPaused
      ? `Paused: as of ${clock(asOf)}`
      : isRefused
        ? `Not live: ${refusal}; as of ${clock(asOf)}`
        : isLost
          ? `Connection lost: as of ${clock(asOf)}`
          : `Live${seen}`;
    if (state.textContent !== text) state.textContent = text;
  }

  function close() {
    source?.close();
    source = null;
    clearTimeout(again);
    clearTimeout(timer);
    timer = 0;
  }

  function open() {
    close();
    show();
    if (!isOn() || isPaused || document.hidden) return;
    const address = streamOf();
    source = new EventSource(address);
    source.watched = address;
    heardAt = now();
    source.addEventListener("look", hear);
    source.addEventListener("change", hear);
    source.addEventListener("error", () => {
      lostAt ??= now();
      // A refusal is final for the browser, not for us.
      if (source?.readyState === EventSource.CLOSED) {
        const wait = Math.min(60_000, 5_000 * 2 ** tries++);
        again = setTimeout(open, wait * (1 + Math.random() / 5));
        learnRefusal(source);
      }
      show();
    });
  }

  // An EventSource does not say why it was refused, so the same is asked for once more.
  async function learnRefusal(refused) {
    const asking = new AbortController();
    let reason = "";
    try {
      const answer = await fetch(refused.watched, { cache: "no-store", signal: asking.signal });
      if (answer.status === 429) reason = "too many open pages";
      else if (answer.status === 503) reason = (await answer.json()).detail ?? "";
    } catch {
      // Without an answer of the collector, the connection is lost.
    }
    asking.abort();
    if (source !== refused) return;
    refusal = reason;
    show();
  }

  function hear(event) {
    const facts = JSON.parse(event.data);
    const wasLost = lostAt !== null;
    const hasNewer = facts.newest_ms === undefined || facts.newest_ms !== newest;
    refusal = "";
    [heardAt, lostAt, tries, asOf, newest] = [now(), null, 0, facts.at_ms, facts.newest_ms ?? null];
    rest = facts.rest;
    if (facts.text) sentences.push(facts.text);
    if (event.type === "change" || wasLost || (hasNewer && now() - renewedAt > MOST_MS)) plan();
    show();
  }

  function plan() {
    if (timer || !isOn()) return;
    const wait = Math.max(LEAST_MS, rest * tookMs) - (now() - renewedAt);
    if (wait > SOON_MS) tell();
    timer = setTimeout(renew, Math.max(0, wait) + Math.random() * JITTER_MS);
  }

  function tell() {
    if (sentences.length) news.textContent = `${clock(asOf)}: ${sentences.slice(-3).join("; ")}`;
    sentences = [];
  }

  async function renew() {
    const [began, here] = [now(), location.href];
    const isCurrent = () =>
      source && location.href === here && !document.querySelector(".htmx-request");
    let fresh = null;
    try {
      const answer = await fetch(here, { cache: "no-store", headers: { Accept: "text/html" } });
      if (answer.ok) fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    } catch {
      // The stream says whether the connection is lost.
    }
    timer = 0;
    if (!source) return;
    if (!fresh || !isCurrent()) {
      renewedAt = now();
      // Too many may ask at once: each failure doubles the wait.
      if (!fresh) tookMs = Math.min(MOST_FAILED_MS, Math.max(1_000, 2 * tookMs));
      plan();
      return;
    }
    takeOver(fresh);
    [tookMs, renewedAt] = [now() - began, now()];
    tell();
  }

  // What differs between the page and a fresh one.
  const drawn = new WeakMap(); // charts as the collector drew them, before charts.js takes their titles
  const note = (root) => {
    for (const plot of root.querySelectorAll("svg.plot")) {
      if (!drawn.has(plot)) drawn.set(plot, plot.outerHTML);
    }
  };
  const keyOf = (node) => node.id || node.dataset?.key || "";
  const looks = (plot) => [...plot.querySelectorAll("[class]")].map((part) => part.getAttribute("class")).join();

  function takeOver(fresh) {
    const focused = document.activeElement;
    const link = focused?.getAttribute?.("href");
    for (const part of ["#heading", "#progress", "#main", "footer"]) {
      const [old, wanted] = [document, fresh].map((root) => root.querySelector(part));
      if (old && wanted) change(old, wanted);
    }
    if (!focused.isConnected && link) {
      const same = document.querySelector(`#main a[href="${CSS.escape(link)}"]`);
      same?.focus({ preventScroll: true });
    }
  }

  function change(old, wanted) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data === wanted.data) return;
      old.data = wanted.data;
      point(old.parentElement.closest(".tag, [data-watch]"));
    } else if (old.matches("svg.plot")) {
      if ((drawn.get(old) ?? old.outerHTML) === wanted.outerHTML) return;
      const [isOther, parent] = [looks(old) !== looks(wanted), old.parentElement];
      old.replaceWith(enter(wanted, parent));
      if (isOther) point(parent.closest("[data-key], figure"));
    } else if (!old.isEqualNode(wanted) && !(old.matches("form") && old.contains(document.activeElement))) {
      changeAttributes(old, wanted);
      changeChildren(old, wanted);
    }
  }

  function changeAttributes(old, wanted) {
    for (const { name, value } of [...wanted.attributes]) {
      if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
    for (const { name } of [...old.attributes]) {
      if (!wanted.hasAttribute(name) && !(name === "open" && old.localName === "details")) {
        old.removeAttribute(name);
      }
    }
  }

  function changeChildren(old, wanted) {
    const kept = new Set([...wanted.children].map(keyOf));
    for (const child of [...old.children]) if (keyOf(child) && !kept.has(keyOf(child))) child.remove();
    const named = new Map([...old.children].map((child) => [keyOf(child), child]));
    let at = old.firstChild;
    for (const next of wanted.childNodes) {
      const key = keyOf(next);
      let same = key ? named.get(key) : at;
      named.delete(key);
      if (same && (same.nodeName !== next.nodeName || keyOf(same) !== key)) same = null;
      if (!same) {
        const added = enter(next, old);
        old.insertBefore(added, at);
        if (key) point(added);
        continue;
      }
      if (same === at) at = at.nextSibling;
      else old.insertBefore(same, at);
      change(same, next);
    }
    while (at) {
      const next = at.nextSibling;
      at.remove();
      at = next;
    }
  }

  // A node of the fresh page for this one, which charts and forms then find as after a swap.
  function enter(node, parent) {
    const added = document.importNode(node, true);
    if (added.nodeType === Node.ELEMENT_NODE) {
      queueMicrotask(() => {
        window.htmx?.process(added);
        document.dispatchEvent(new CustomEvent("htmx:load", { detail: { elt: parent } }));
      });
    }
    return added;
  }

  function point(part) {
    if (!part) return;
    part.classList.add("changed");
    setTimeout(() => part.classList.remove("changed"), MARKED_MS);
  }

  button.addEventListener("click", () => {
    isPaused = !isPaused;
    [lostAt, refusal] = [null, ""];
    open();
    if (!isPaused) plan();
  });
  document.addEventListener("visibilitychange", () => {
    const lastHeardAt = heardAt; // before open() sets it anew
    open();
    if (!document.hidden && !isPaused && now() - lastHeardAt > LEAST_MS) plan();
  });
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", ({ persisted }) => persisted && (open(), plan()));
  for (const name of ["beforeprint", "afterprint"]) {
    window.addEventListener(name, () => {
      isPrinting = name === "beforeprint";
      open();
    });
  }
  document.addEventListener("htmx:load", ({ detail }) => {
    note(detail.elt.parentElement ?? detail.elt);
    // A form may have led from now to a past hour, or back.
    if (streamOf() !== source?.watched) open();
  });
  setInterval(() => {
    if (source && now() - heardAt > SILENT_MS) lostAt ??= heardAt;
    show();
  }, 2_000);
  note(document);
  open();
})();
