"use strict";
// Draws the charts that the page's data describe. discorl has its own because a page must work from
// one file, without network, and stay small. Every series has a colour, a dash and a marker, so that
// none of them is needed to tell two apart.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const shown = data.series.map(() => true);
  const SHAPES = [
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", "M-3.6 -3.6h7.2v7.2h-7.2z", "M0 -4.6L4.4 3.4H-4.4z",
    "M0 -5L5 0L0 5L-5 0z", "M0 4.6L4.4 -3.4H-4.4z",
    "M-1.5 -4.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z", "M-4.5 -2.5l2 -2l2.5 2.5l2.5 -2.5l2 2l-2.5 2.5l2.5 2.5l-2 2l-2.5 -2.5l-2.5 2.5l-2 -2l2.5 -2.5z",
  ];
  const colour = (s) => "var(--s" + (s % 7) + ")";
  const other = (s) => (s + Math.floor(s / 7)) % 7; // as discorl.runs.palette has it
  const dashes = (s) => data.dashes[other(s)].map((length) => 2 * length).join(" ");
  const look = (line) => (line.style === undefined ? line.series : line.style);
  const name = (line) => line.label || data.series[line.series];

  function node(name, attributes, parent, text) {
    const made = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const key in attributes) made.setAttribute(key, attributes[key]);
    if (text !== undefined) made.textContent = text;
    if (parent) parent.appendChild(made);
    return made;
  }
  const marker = (parent, s, x, y) =>
    node("path", { d: SHAPES[other(s)], transform: "translate(" + x + " " + y + ")", style: "fill:" + colour(s), class: "mark" }, parent);

  function short(value) {
    const size = Math.abs(value);
    if (size >= 1e9) return +(value / 1e9).toPrecision(3) + "G";
    if (size >= 1e6) return +(value / 1e6).toPrecision(3) + "M";
    if (size >= 1e3) return +(value / 1e3).toPrecision(3) + "k";
    if (size > 0 && size < 1e-3) return value.toExponential(1);
    return String(+value.toPrecision(4));
  }
  // With as many digits as tell them apart.
  function labelled(values) {
    const found = values.map(short);
    return new Set(found).size === values.length ? found : values.map((value) => String(+value.toPrecision(7)));
  }
  const exact = (value) => (Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(+value.toPrecision(4)));

  function ticks(low, high, wanted) {
    const rough = (high - low) / wanted, power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.7);
    const found = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(+(i * step).toPrecision(12));
    return found;
  }
  function extent(values, margin) {
    let low = Infinity, high = -Infinity;
    for (const v of values) if (v !== null) { low = Math.min(low, v); high = Math.max(high, v); }
    if (low > high) { low = 0; high = 1; }
    if (low === high) { const pad = Math.abs(low) * 0.05 || 0.5; low -= pad; high += pad; }
    // Changes of a fraction of a percent should not look large.
    const lacking = margin ? Math.max(Math.abs(low), Math.abs(high)) * 0.02 - (high - low) : 0;
    const pad = (high - low) * margin + Math.max(0, lacking) / 2;
    return [low - pad, high + pad];
  }

  // Linear, logarithmic, or both: linear up to one and logarithmic beyond.
  const SCALES = { linear: (v) => v, log: Math.log10, symlog: (v) => Math.sign(v) * Math.log10(1 + Math.abs(v)) };
  function ticksOn(scale, low, high) {
    if (scale === "linear") return ticks(low, high, 5);
    const found = scale === "symlog" ? [0] : [];
    const digits = scale === "log" && high - low < 2 ? [1, 2, 5] : [1];
    for (let power = scale === "symlog" ? 0 : -12; power <= 12; power++)
      for (const digit of digits) found.push(digit * Math.pow(10, power), -digit * Math.pow(10, power));
    const inside = found.filter((t) => (scale === "symlog" || t > 0) && SCALES[scale](t) >= low && SCALES[scale](t) <= high);
    if (scale === "log" && inside.length < 2) return ticks(Math.pow(10, low), Math.pow(10, high), 4).filter((t) => t > 0);
    const every = Math.ceil(inside.length / 7);
    return inside.sort((a, b) => a - b).filter((_, i) => i % every === 0);
  }

  function drawLines(figure, chart) {
    const lines = chart.lines.filter((line) => shown[line.series]);
    const width = figure.clientWidth, height = figure.closest(".grid") ? 210 : 290;
    const left = 52, right = 18, top = 22, bottom = 40;
    const svg = node("svg", { width: width, height: height, viewBox: "0 0 " + width + " " + height, role: "img", "aria-label": chart.title });
    // All lines count for the scale, so that toggling moves nothing.
    const all = (keys) => chart.lines.flatMap((line) => keys.flatMap((key) => line[key] || []));
    const scaled = (y) => (y === null ? null : SCALES[chart.scale](y));
    const [x0, x1] = extent(all(["x"]), 0), [y0, y1] = extent(all(["y", "low", "high"]).map(scaled), 0.04);
    const px = (x) => left + ((x - x0) / (x1 - x0)) * (width - left - right);
    const py = (y) => height - bottom - ((scaled(y) - y0) / (y1 - y0)) * (height - top - bottom);
    const marks = ticksOn(chart.scale, y0, y1), labels = labelled(marks);
    marks.forEach((t, i) => {
      node("line", { x1: left, x2: width - right, y1: py(t), y2: py(t), class: "axis" }, svg);
      node("text", { x: left - 6, y: py(t) + 4, "text-anchor": "end" }, svg, labels[i]);
    });
    for (const t of ticks(x0, x1, Math.max(2, Math.floor(width / 110))))
      node("text", { x: px(t), y: height - bottom + 16, "text-anchor": "middle" }, svg, short(t));
    node("text", { x: 2, y: 11 }, svg, chart.y_label);
    node("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle" }, svg, chart.x_label);
    for (const line of lines) {
      if (!line.low) continue;
      const known = line.x.map((_, i) => i).filter((i) => line.low[i] !== null && line.high[i] !== null);
      const up = known.map((i) => px(line.x[i]) + " " + py(line.high[i]));
      const down = known.map((i) => px(line.x[i]) + " " + py(line.low[i])).reverse();
      if (known.length) node("path", { d: "M" + up.concat(down).join("L") + "z", style: "fill:" + colour(look(line)), class: "band" }, svg);
    }
    const path = (line, values) => {
      const known = line.x.map((_, i) => i).filter((i) => values[i] !== null);
      return known.length ? "M" + known.map((i) => px(line.x[i]) + " " + py(values[i])).join("L") : "";
    };
    for (const line of lines)
      for (const seed of line.seeds || []) node("path", { d: path(line, seed), class: "seed", style: "stroke:" + colour(look(line)) }, svg);
    for (const line of lines) {
      const known = line.x.map((_, i) => i).filter((i) => line.y[i] !== null);
      if (!known.length) continue;
      node("path", { d: path(line, line.y), class: "line", "data-series": line.series,
        style: "stroke:" + colour(look(line)), "stroke-dasharray": dashes(look(line)) }, svg);
      const every = Math.max(1, Math.round(known.length / 6)), offset = Math.floor((every * (look(line) % 3)) / 3);
      known.forEach((i, k) => { if (k % every === offset) marker(svg, look(line), px(line.x[i]), py(line.y[i])); });
    }
    const cross = node("line", { y1: top, y2: height - bottom, class: "cross", visibility: "hidden" }, svg);
    put(figure, svg);
    keyOf(figure, lines);
    hover(figure, svg, chart, lines, cross, px, left, right, width);
  }

  function hover(figure, svg, chart, lines, cross, px, left, right, width) {
    const points = Array.from(new Set(lines.flatMap((line) => line.x))).sort((a, b) => a - b);
    let at = -1;
    function show(index) {
      if (!points.length) return;
      at = Math.max(0, Math.min(points.length - 1, index));
      const x = points[at], tip = tipOf(figure);
      tip.replaceChildren();
      const head = document.createElement("b");
      head.textContent = chart.x_label + " " + exact(x);
      tip.append(head);
      for (const line of lines) {
        let i = 0;
        line.x.forEach((value, k) => { if (Math.abs(value - x) < Math.abs(line.x[i] - x)) i = k; });
        if (line.y[i] === null) continue;
        const row = document.createElement("div"), patch = document.createElement("i");
        patch.style.background = colour(look(line));
        const band = line.low && line.low[i] !== null ? " [" + exact(line.low[i]) + ", " + exact(line.high[i]) + "]" : "";
        row.append(patch, name(line) + " " + exact(line.y[i]) + band);
        tip.append(row);
      }
      tip.hidden = false;
      const place = px(x);
      cross.setAttribute("x1", place); cross.setAttribute("x2", place); cross.setAttribute("visibility", "visible");
      const room = width - tip.offsetWidth;
      tip.style.left = Math.max(0, Math.min(room, place > width / 2 ? place - tip.offsetWidth - 12 : place + 12)) + "px";
      tip.style.top = below(figure, svg) + 8 + "px";
    }
    function hide() { tipOf(figure).hidden = true; cross.setAttribute("visibility", "hidden"); at = -1; }
    function nearest(event) {
      const x = event.clientX - svg.getBoundingClientRect().left;
      let best = 0;
      points.forEach((p, i) => { if (Math.abs(px(p) - x) < Math.abs(px(points[best]) - x)) best = i; });
      show(best);
    }
    svg.onpointermove = nearest; svg.onpointerdown = nearest; svg.onpointerleave = hide;
    figure.tabIndex = 0; figure.onblur = hide;
    figure.onkeydown = (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) { event.preventDefault(); show(at < 0 ? (step > 0 ? 0 : points.length - 1) : at + step); }
    };
  }

  function drawIntervals(figure, chart) {
    const width = figure.clientWidth, names = chart.panels[0].rows.map((row) => row.label);
    const longest = Math.max(4, ...names.map((name) => name.length));
    // Long names stand above their rows where they would leave too little room beside them.
    const above = longest * 6.6 + 14 > width * 0.42;
    const columns = above ? 1 : Math.max(1, Math.min(chart.panels.length, Math.floor((width - longest * 6.5) / 190)));
    const margin = above ? 8 : longest * 6.6 + 14, gap = 22, row = above ? 40 : 26, head = 26, foot = 26;
    const panel = (width - margin - gap * (columns - 1) - 14) / columns;
    const visible = chart.panels.map((p) => p.rows.filter((r) => shown[r.series]));
    const tall = head + Math.max(1, ...visible.map((r) => r.length)) * row + foot;
    const lines = Math.ceil(chart.panels.length / columns);
    const svg = node("svg", { width: width, height: tall * lines, viewBox: "0 0 " + width + " " + tall * lines, role: "img", "aria-label": chart.title });
    // All panels share a scale, so that a place means the same in each of them.
    const values = chart.panels.flatMap((p) => p.rows.flatMap((r) => [r.low, r.high, r.value]));
    const [low, high] = extent(chart.reference === null ? values : [0, 1, ...values], 0.06);
    chart.panels.forEach((p, n) => {
      const column = n % columns, left = margin + column * (panel + gap), top = Math.floor(n / columns) * tall;
      const px = (x) => left + ((x - low) / (high - low)) * panel;
      node("text", { x: left, y: top + 14, class: "name" }, svg, p.title);
      const bottom = top + head + visible[n].length * row;
      for (const t of ticks(low, high, Math.max(2, Math.floor(panel / 60)))) {
        node("line", { x1: px(t), x2: px(t), y1: top + head - 4, y2: bottom, class: "axis" }, svg);
        node("text", { x: px(t), y: bottom + 14, "text-anchor": "middle" }, svg, short(t));
      }
      if (chart.reference !== null) node("line", { x1: px(chart.reference), x2: px(chart.reference), y1: top + head - 4, y2: bottom, class: "reference" }, svg);
      visible[n].forEach((r, k) => {
        const y = top + head + k * row + row - 13;
        if (column === 0) {
          const place = above ? { x: margin, y: y - 11 } : { x: margin - 10, y: y + 4, "text-anchor": "end" };
          const label = node("text", { ...place, class: "name" }, svg, clip(r.label, above ? width / 6.4 : longest));
          node("title", {}, label, r.label);
        }
        const group = node("g", { "data-series": r.series, class: "row" }, svg);
        node("line", { x1: px(r.low), x2: px(r.high), y1: y, y2: y, class: "range", style: "stroke:" + colour(r.series) }, group);
        marker(group, r.series, px(r.value), y);
        node("rect", { x: left, width: panel, y: y + 13 - row, height: row, fill: "transparent" }, group);
        group.onpointerenter = group.onpointerdown = () => {
          const tip = tipOf(figure);
          tip.textContent = r.label + ": " + r.value.toFixed(3) + " [" + r.low.toFixed(3) + ", " + r.high.toFixed(3) + "]";
          tip.hidden = false;
          tip.style.left = Math.max(0, Math.min(width - tip.offsetWidth, px(r.value) - tip.offsetWidth / 2)) + "px";
          tip.style.top = below(figure, svg) + y + 13 + "px";
        };
        group.onpointerleave = () => { tipOf(figure).hidden = true; };
      });
    });
    put(figure, svg);
  }
  const clip = (text, room) => (text.length > room ? text.slice(0, Math.max(3, room - 1)) + "…" : text);

  function sample(s, parent) {
    const svg = node("svg", { width: 34, height: 12, "aria-hidden": "true" }, parent);
    node("path", { d: "M1 6H33", class: "line", style: "stroke:" + colour(s), "stroke-dasharray": dashes(s) }, svg);
    marker(svg, s, 17, 6);
  }
  // What the lines of a chart are, where they have names of their own.
  function keyOf(figure, lines) {
    const old = figure.querySelector(".key");
    if (old) old.remove();
    const named = lines.filter((line) => line.label);
    if (named.length < 2) return;
    const key = document.createElement("div");
    key.className = "key";
    for (const line of named) {
      const entry = document.createElement("span");
      sample(look(line), entry);
      entry.append(line.label);
      key.append(entry);
    }
    figure.insertBefore(key, figure.querySelector("figcaption"));
  }
  function put(figure, svg) {
    const old = figure.querySelector(":scope > svg");
    if (old) old.replaceWith(svg); else figure.insertBefore(svg, figure.querySelector("figcaption"));
  }
  // How far a chart is below the top of its figure; SVG has no offsetTop.
  const below = (figure, svg) => svg.getBoundingClientRect().top - figure.getBoundingClientRect().top;
  function tipOf(figure) {
    let tip = figure.querySelector(".tip");
    if (!tip) { tip = document.createElement("div"); tip.className = "tip"; tip.hidden = true; figure.append(tip); }
    return tip;
  }

  function draw() {
    document.querySelectorAll(".scroll, .pan").forEach((box) => box.classList.toggle("more", box.scrollWidth > box.clientWidth + 1));
    for (const chart of data.charts) {
      const figure = document.getElementById("chart-" + chart.name);
      if (!figure || !figure.clientWidth) continue;
      const tip = figure.querySelector(".tip");
      if (tip) tip.hidden = true;
      (chart.kind === "lines" ? drawLines : drawIntervals)(figure, chart);
    }
  }
  function legend() {
    const bar = document.getElementById("legend");
    if (!bar) return;
    data.series.forEach((name, s) => {
      const button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      sample(s, button);
      button.append(name);
      button.onclick = () => {
        shown[s] = !shown[s];
        button.setAttribute("aria-pressed", String(shown[s]));
        draw();
      };
      bar.append(button);
    });
  }
  // A command breaks between words, not after the hyphens of an option.
  document.querySelectorAll("pre[id], .command").forEach((box) => {
    box.replaceChildren(...box.textContent.split(/(\s+)/).map((part, i) => {
      if (i % 2) return part;
      const word = document.createElement("span");
      word.textContent = part;
      return word;
    }));
  });
  legend();
  draw();
  addEventListener("load", draw); // only now have pictures a width
  let waiting = 0;
  addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(draw); });
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = Array.from(document.querySelectorAll("details:not([open])"));
    folded.forEach((d) => { d.open = true; });
    document.documentElement.classList.add("paper");
    draw();
  });
  addEventListener("afterprint", () => {
    folded.forEach((d) => { d.open = false; });
    document.documentElement.classList.remove("paper");
    draw();
  });
  document.querySelectorAll("details").forEach((d) => d.addEventListener("toggle", draw));
})();
