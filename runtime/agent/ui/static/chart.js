// @ts-check
// Charts of one value over time.

import { h, svg } from "./dom.js";

const width = 300, height = 100; // units of the picture, which is stretched to the size of its element

const longestGap = 30e3; // milliseconds between two live values that are connected

// chart creates a chart. format(value) returns the text of a value. base is the base of round numbers of the axis: 10, or
// 1024 for bytes. limits are the dashed lines: [{ name, value }], of which those without a value are omitted. The result has
// the element, setHistory(history) with {start, end, interval, times, values} in milliseconds, which replaces all values up to the
// end of the history, add(time, value) and a getter "isEmpty". undefined and null are gaps. add removes values that are older
// than the period of the last history.
export function chart(title, { format, base = 10, limits = [] }) {
  const shownLimits = limits.filter((limit) => limit.value > 0);
  let points = [], period = 15 * 60e3, step = 0, selected = -1, maximum = 0, ends = [0, 1];
  const line = svg("path", { class: "chart-line" }), area = svg("path", { class: "chart-area" }), grid = svg("path", { class: "chart-grid" });
  const limitLine = svg("path", { class: "chart-limit" }), cursor = svg("path", { class: "chart-cursor" });
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, grid, area, line, limitLine, cursor);
  const now = h("strong"), axis = h("div", { class: "chart-axis", "aria-hidden": "true" }), times = h("div", { class: "chart-times", "aria-hidden": "true" });
  const limitNames = h("div", { "aria-hidden": "true" });
  const plot = h("div", {
    class: "chart-plot", tabindex: "0", role: "slider", "aria-readonly": "true", "aria-label": title + " over time", "aria-valuemin": "0", "aria-valuemax": "0", "aria-valuenow": "0",
    "aria-valuetext": "no value yet", onpointermove: (event) => select(nearest(event)), onpointerleave: () => select(-1), onblur: () => select(-1), onkeydown: onKey,
  }, picture, axis, limitNames);
  const element = h("figure", { class: "chart" }, h("figcaption", null, title, " ", now, shownLimits.map((limit) => h("span", { class: "dim" }, ` · ${limit.name} ${format(limit.value)}`))), plot, times);

  // known are the indexes of the points with a value.
  const known = () => points.flatMap((p, i) => (p.value == null ? [] : [i]));
  const x = (time) => ((time - ends[0]) / (ends[1] - ends[0])) * width;
  const y = (value) => height - 1 - (value / maximum) * (height - 2);

  function nearest(event) {
    const box = plot.getBoundingClientRect();
    const time = ends[0] + ((event.clientX - box.left) / box.width) * (ends[1] - ends[0]);
    let best = -1;
    for (const i of known()) if (best < 0 || Math.abs(points[i].time - time) < Math.abs(points[best].time - time)) best = i;
    return best;
  }

  function onKey(event) {
    const indexes = known(), at = indexes.indexOf(selected), last = indexes.length - 1;
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowDown: -1, ArrowUp: 1, PageDown: -10, PageUp: 10, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") return select(-1);
    if (!(event.key in moves) || last < 0) return;
    event.preventDefault();
    select(indexes[at < 0 ? (event.key === "Home" ? 0 : last) : Math.max(0, Math.min(last, at + moves[event.key]))]);
  }

  function select(index) {
    selected = index;
    drawSelection();
  }

  // drawSelection shows the selected value, or the newest one.
  function drawSelection() {
    const point = points[selected] ?? points.at(-1);
    const isSelected = selected >= 0 && points[selected];
    now.textContent = point?.value == null ? "–" : format(point.value) + (isSelected ? " at " + clock(point.time, true) : "");
    cursor.setAttribute("d", isSelected ? `M${x(point.time).toFixed(1)} 0V${height}` : "");
    if (point?.value != null) {
      plot.setAttribute("aria-valuenow", Number(point.value.toPrecision(6)));
      plot.setAttribute("aria-valuetext", `${format(point.value)} at ${clock(point.time, true)}`);
    }
  }

  function draw() {
    const values = known().map((i) => points[i].value);
    const highest = values.length ? Math.max(...values) : 0;
    const drawnLimits = shownLimits.filter((limit) => values.length > 0 && limit.value <= 4 * highest);
    maximum = roundUp(Math.max(highest, ...drawnLimits.map((limit) => limit.value)) * 1.05, base) || (base === 1024 ? 1024 : 1);
    ends = points.length > 1 ? [points[0].time, points.at(-1).time] : [Date.now() - 60e3, Date.now()];
    if (ends[1] - ends[0] < 60e3) ends[0] = ends[1] - 60e3;
    let path = "", fill = "", previous = null;
    const end = () => { if (previous) fill += `L${x(previous.time).toFixed(1)} ${height}Z`; };
    for (const p of points) {
      if (p.value == null) {
        end();
        previous = null;
        continue;
      }
      const isConnected = previous && p.time - previous.time <= Math.max(longestGap, 2.5 * (p.isLive ? 0 : step));
      const place = `${x(p.time).toFixed(1)} ${y(p.value).toFixed(1)}`;
      if (!isConnected) end();
      path += (isConnected ? "L" : "M") + place;
      fill += isConnected ? "L" + place : `M${x(p.time).toFixed(1)} ${height}L${place}`;
      previous = p;
    }
    end();
    line.setAttribute("d", path);
    area.setAttribute("d", fill);
    grid.setAttribute("d", `M0 ${y(maximum / 2)}H${width}`);
    limitLine.setAttribute("d", drawnLimits.map((limit) => `M0 ${y(limit.value).toFixed(1)}H${width}`).join(""));
    const labels = (parent, texts, className) => parent.replaceChildren(...texts.map(({ text, top }) => {
      const label = h("span", { class: className }, text);
      label.style.top = top.toFixed(1) + "%";
      return label;
    }));
    labels(axis, values.length ? [{ text: format(maximum), top: 0 }, { text: format(maximum / 2), top: 50 }, { text: "0", top: 100 }] : []);
    labels(limitNames, drawnLimits.map((limit) => ({ text: limit.name, top: (y(limit.value) / height) * 100 })), "chart-limit-name");
    times.replaceChildren(...(values.length ? [0, 0.5, 1].map((part) => h("span", null, clock(ends[0] + part * (ends[1] - ends[0]), ends[1] - ends[0] < 10 * 60e3))) : []));
    plot.setAttribute("aria-valuemax", Number(maximum.toPrecision(6)));
    plot.setAttribute("aria-label", values.length ? `${title} over time, from ${clock(ends[0], true)} to ${clock(ends[1], true)}: lowest ${format(Math.min(...values))}, highest ${format(highest)}` +
      shownLimits.map((limit) => `, ${limit.name} ${format(limit.value)}`).join("") + ". The arrow keys read single values." : title + " over time: no value yet");
    drawSelection();
  }

  return {
    element,
    get isEmpty() { return known().length === 0; },
    setHistory({ start, end, interval, times: historyTimes, values }) {
      const selectedTime = points[selected]?.time;
      [period, step] = [end - start, interval];
      const last = historyTimes.length ? historyTimes.at(-1) + interval : start;
      const live = points.filter((p) => p.isLive && p.time > last);
      points = historyTimes.map((time, i) => ({ time, value: values[i] ?? undefined })).concat(live);
      selected = selectedTime === undefined ? -1 : points.findIndex((p) => p.time >= selectedTime);
      draw();
    },
    add(time, value) {
      points.push({ time, value, isLive: true });
      const removed = points.findIndex((p) => p.time >= time - period);
      points.splice(0, removed);
      selected = Math.max(-1, selected < 0 ? -1 : selected - removed);
      draw();
    },
  };
}

// roundUp returns the next number that is 1, 2 or 5 times a power of 10, or a power of 2 for the base 1024.
function roundUp(value, base) {
  if (value <= 0) return 0;
  if (base === 1024) return 2 ** Math.ceil(Math.log2(value));
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((factor) => factor * power >= value) * power;
}

// clock returns the time of day in the time zone of the browser.
function clock(time, withSeconds) {
  return new Date(time).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: withSeconds ? "2-digit" : undefined, hour12: false });
}

// sparkline creates a small chart without text, which is decoration: the text beside it has the value. null is a gap.
export function sparkline(values) {
  const wide = 60, high = 16;
  const highest = Math.max(...values.filter((v) => v != null), 0) || 1;
  let path = "", previous = false;
  values.forEach((value, i) => {
    if (value == null) { previous = false; return; }
    const place = `${((i / Math.max(1, values.length - 1)) * wide).toFixed(1)} ${(high - 1 - (value / highest) * (high - 2)).toFixed(1)}`;
    path += previous ? "L" + place : values[i + 1] == null ? `M${place}h2` : "M" + place; // a single value is a dot
    previous = true;
  });
  return svg("svg", { class: "sparkline", viewBox: `0 0 ${wide} ${high}`, "aria-hidden": "true" }, svg("path", { class: "chart-line", d: path }));
}
