// Charts answer to the pointer and to the arrow keys.
//
// A chart is an <svg class="plot"> that the server has drawn. What can be asked of it are its marks:
// parts with a <title> of their own (bars, dots, bands, links), or the points in its attribute
// data-marks, a JSON list of [x, y, text] in the coordinates of its viewBox. Nothing is drawn twice:
// this module reads what is there and shows its text beside it. Without it, the browser shows the
// titles, and the table beside each chart has the numbers.
"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("role", "status");
  const charts = new WeakMap();

  // Marks of a chart, in the order of its drawing; titles become texts of ours, for a browser would
  // show them a second time.
  function marksOf(svg) {
    const points = JSON.parse(svg.dataset.marks || "[]");
    if (points.length) return points.map(([x, y, text]) => ({ x, y, text }));
    const marks = [];
    for (const title of svg.querySelectorAll(":scope * > title")) {
      const part = title.parentElement;
      // The plot says in words what it shows; only its links need words of their own.
      if (part.localName === "a") part.setAttribute("aria-label", title.textContent);
      const box = part.getBBox();
      marks.push({ part, text: title.textContent, x: box.x + box.width / 2, y: box.y });
      title.remove();
    }
    return marks;
  }

  function enhance(svg) {
    if (charts.has(svg) || svg.getAttribute("aria-hidden") === "true") return;
    const marks = marksOf(svg);
    if (!marks.length) return;
    svg.querySelector(":scope > title")?.remove();
    charts.set(svg, { marks, at: -1, cursor: null });
    // Of thousands of links none is reached by the tab key, but the chart is, and its marks by arrows.
    if (!svg.querySelector('a:not([tabindex="-1"])')) svg.setAttribute("tabindex", "0");
  }

  function place(x, y) {
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(x + 12, room))}px`;
    tip.style.top = `${Math.max(8, y - tip.offsetHeight - 12)}px`;
  }

  function show(svg, at) {
    const chart = charts.get(svg);
    hide();
    const mark = chart.marks[at];
    chart.at = at;
    tip.textContent = mark.text;
    tip.hidden = false;
    if (mark.part) mark.part.classList.add("pointed");
    else {
      const height = svg.viewBox.baseVal.height;
      chart.cursor = document.createElementNS(SVG, "line");
      const ends = { x1: mark.x, x2: mark.x, y1: 0, y2: height, class: "cursor" };
      for (const [name, value] of Object.entries(ends)) chart.cursor.setAttribute(name, value);
      svg.append(chart.cursor);
    }
    shown = svg;
    const spot = new DOMPoint(mark.x, mark.y).matrixTransform(svg.getScreenCTM());
    place(spot.x, spot.y);
  }

  let shown = null;
  function hide() {
    const chart = shown && charts.get(shown);
    if (chart) {
      chart.cursor?.remove();
      chart.marks[chart.at]?.part?.classList.remove("pointed");
    }
    shown = null;
    tip.hidden = true;
  }

  // The mark under the pointer; of a chart of points the nearest one by x.
  function markAt(svg, event) {
    const { marks } = charts.get(svg);
    if (marks[0].part) return marks.findIndex(({ part }) => part.contains(event.target));
    const { x } = new DOMPoint(event.clientX, event.clientY).matrixTransform(
      svg.getScreenCTM().inverse(),
    );
    const far = marks.map((mark) => Math.abs(mark.x - x));
    return far.indexOf(Math.min(...far));
  }

  const chartOf = (target) => {
    const svg = target.closest?.("svg.plot");
    return svg && charts.has(svg) ? svg : null;
  };
  document.addEventListener("pointermove", (event) => {
    const svg = chartOf(event.target);
    const at = svg ? markAt(svg, event) : -1;
    if (at >= 0) show(svg, at);
    else if (shown && shown !== document.activeElement) hide();
  });
  document.addEventListener("keydown", (event) => {
    const svg = chartOf(event.target);
    if (event.key === "Escape") hide();
    if (!svg || event.target !== svg) return;
    const { marks, at } = charts.get(svg);
    const last = marks.length - 1;
    const link = marks[at]?.part?.closest("a");
    if (event.key === "Enter" && link) location.assign(link.href.baseVal);
    const next = {
      ArrowRight: Math.min(at + 1, last),
      ArrowLeft: at < 0 ? last : Math.max(at - 1, 0),
      Home: 0,
      End: last,
    }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    show(svg, next);
  });
  document.addEventListener("focusin", (event) => {
    const link = event.target.closest?.("svg.plot a");
    const svg = link && chartOf(link);
    if (svg) show(svg, charts.get(svg).marks.findIndex(({ part }) => part === link || link.contains(part)));
  });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", hide, { passive: true });

  // An address says what was chosen, and nothing of what was left open.
  document.addEventListener("htmx:configRequest", ({ detail }) => {
    for (const [name, value] of [...detail.formData]) {
      if (value === "" && detail.verb === "get") detail.formData.delete(name);
    }
  });
  const look = (root) => root.querySelectorAll("svg.plot").forEach(enhance);
  document.addEventListener("htmx:load", ({ detail }) => look(detail.elt));
  document.body.append(tip);
  look(document);
})();
