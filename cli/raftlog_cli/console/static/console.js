// Script of the console: keys, plots, and the notice of a broker that does not respond.
"use strict";

(() => {
  const ROWS_MAX = 500; // of followed records
  let paused = false;
  let failedSince = null;

  const byId = (id) => document.getElementById(id);

  // -- updates: htmx requests the page again and replaces #live

  const connection = (text) => {
    const bar = byId("connection");
    bar.hidden = !text;
    bar.textContent = text;
  };

  const failed = () => {
    if (!failedSince) failedSince = new Date();
    const since = failedSince.toISOString().slice(11, 19);
    connection(`No response from this broker since ${since} UTC. The page shows the last state; retrying.`);
  };

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (paused || document.hidden) event.preventDefault();
  });
  document.addEventListener("htmx:sendError", failed);
  document.addEventListener("htmx:timeout", failed);
  document.addEventListener("htmx:responseError", failed);
  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.successful) {
      failedSince = null;
      if (!paused) connection("");
    }
  });
  document.addEventListener("htmx:afterSettle", () => {
    drawAll();
    const rows = byId("rows");
    if (rows) {
      while (rows.children.length > ROWS_MAX) rows.lastElementChild.remove();
      const none = byId("no-records");
      if (none && rows.children.length) none.remove();
    }
  });

  const pause = () => {
    paused = !paused;
    connection(paused ? "Updates are paused. Press p to continue." : "");
  };

  // -- following new records

  const follow = byId("follow");
  if (follow) {
    follow.addEventListener("click", () => {
      const tail = byId("tail");
      const on = follow.getAttribute("aria-pressed") !== "true";
      follow.setAttribute("aria-pressed", String(on));
      follow.textContent = on ? "Following" : "Follow";
      if (on && !tail.hasAttribute("hx-get")) {
        tail.setAttribute("hx-get", follow.dataset.tail);
        tail.setAttribute("hx-trigger", "load, every 1s");
        tail.setAttribute("hx-swap", "outerHTML");
        htmx.process(tail);
      }
      paused = !on;
    });
  }

  // -- plots

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const draw = (box) => {
    const data = JSON.parse(box.dataset.plot);
    box.replaceChildren();
    const hint = box.nextElementSibling;
    const enough = data[0].length > 1;
    if (hint) hint.hidden = enough;
    box.hidden = !enough;
    if (!enough || typeof uPlot === "undefined") return;
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const options = {
      width: box.clientWidth - 16,
      height: 148,
      legend: { show: false },
      cursor: { y: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "UTC"),
      scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [
        { ...axis, size: 28, incrs: [1, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200], values: (_plot, ticks) => ticks.map((tick) => new Date(tick * 1000).toISOString().slice(11, 19)), space: 90 },
        { ...axis, size: 64, values: (_plot, ticks) => ticks.map((tick) => tick.toLocaleString("en")) },
      ],
      series: [{}, { stroke: colour("--accent"), width: 1.5, fill: `color-mix(in srgb, ${colour("--accent")} 12%, transparent)`, points: { show: false } }],
    };
    new uPlot(options, data, box);
    box.setAttribute("role", "img");
    const last = data[1][data[1].length - 1];
    box.setAttribute("aria-label", `${Math.round(last).toLocaleString("en")} ${box.dataset.unit}, last of ${data[0].length} points`);
  };

  const drawAll = () => document.querySelectorAll("[data-plot]").forEach(draw);

  // -- tables: in a narrow window, each cell shows the name of its column

  const label = (table) => {
    const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
    table.querySelectorAll("tbody tr").forEach((row) => [...row.cells].forEach((cell, at) => {
      if (names[at] && cell.colSpan === 1) cell.dataset.label = names[at];
    }));
  };

  const labelAll = () => document.querySelectorAll(".wide table").forEach(label);

  // -- keys

  const go = (link) => { if (link) link.click(); };

  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("input, select, textarea, dialog[open]");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = document.querySelector(`header nav a[data-key="${CSS.escape(event.key)}"]`);
    if (page) go(page);
    else if (event.key === "/") { const box = document.querySelector("[data-search]"); if (box) box.focus(); }
    else if (event.key === "[") go(document.querySelector('a[rel="prev"]'));
    else if (event.key === "]") go(document.querySelector('a[rel="next"]'));
    else if (event.key === "p") pause();
    else if (event.key === "?") byId("help").showModal();
    else return;
    event.preventDefault();
  });

  byId("help-button").addEventListener("click", () => byId("help").showModal());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  addEventListener("resize", drawAll);
  drawAll();
  labelAll();
  // Before the next frame, so updates do not flicker.
  new MutationObserver(labelAll).observe(document.body, { childList: true, subtree: true });
})();
