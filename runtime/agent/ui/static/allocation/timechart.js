// @ts-check
// The chart of a time line: one axis, lanes of spans, zoom and pan.

import { h, replace, svg } from "../dom.js";
import { kinds, lanes, textOf } from "./spans.js";

const rowHeight = 20, headHeight = 24, axisHeight = 26;
const minSpan = 0.5; // milliseconds of the narrowest view
const charWidth = 6.6;
const imageLine = 20; // height of a line of text above the chart of an image
const styled = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight"];

// timeChart creates a chart. select(span) is called when the user selects a span. changed(mode) is called with "custom"
// when the user zooms or pans, and with "all" when the user wants to see all spans. The result has the element,
// update(spans, now), view(from, to), selectSpan(span), zoom(factor), move(parts of the view), range, and image(lines), which returns
// the picture that the chart shows, below lines of text, as the text of an SVG file.
export function timeChart({ select, changed }, signal) {
  const tip = h("div", { class: "tip", hidden: true });
  const picture = svg("svg", {
    class: "timeline", tabindex: "0", role: "group", onkeydown, onpointerdown, onpointermove, onpointerup: endDrag, onpointercancel: endDrag,
    onpointerleave: () => { tip.hidden = true; },
    "aria-label": "Time line. Left and right select a span, shift with left and right moves, plus and minus zoom, 0 shows all. The table below has the same spans.",
  });
  picture.addEventListener("wheel", onwheel, { passive: false });
  const element = h("div", { class: "timeline-box" }, picture, tip);
  let spans = [], now = 0, from = 0, to = 1, selected = "", width = 600, drag;
  const resized = new ResizeObserver(() => { width = Math.max(300, element.clientWidth); draw(); });
  resized.observe(element);
  signal.addEventListener("abort", () => resized.disconnect());

  const gutter = () => (width < 600 ? 74 : 110);
  const x = (time) => gutter() + ((time - from) / (to - from)) * (width - gutter());
  const timeAt = (px) => from + ((px - gutter()) / (width - gutter())) * (to - from);

  function draw() {
    const parts = [svg("g", null, axis())];
    let y = axisHeight, task;
    for (const lane of lanes(spans)) {
      if (lane.task !== task) {
        task = lane.task;
        parts.push(svg("rect", { x: 0, y, width, height: headHeight, class: "lane-head" }), svg("text", { x: 4, y: y + 16, class: "lane-title" }, task === "" ? "allocation" : "task " + task));
        y += headHeight;
      }
      parts.push(svg("text", { x: 10, y: y + 14, class: "lane-kind" }, kinds[lane.kind]));
      for (const row of lane.rows) {
        parts.push(row.map((s, i) => spanElement(s, row[i + 1], y)));
        y += rowHeight;
      }
      parts.push(svg("line", { x1: 0, x2: width, y1: y, y2: y, class: "lane-line" }));
    }
    if (now >= from && now <= to) parts.push(svg("line", { x1: x(now), x2: x(now), y1: axisHeight, y2: y, class: "now" }));
    picture.setAttribute("height", y + 2);
    picture.setAttribute("width", width);
    picture.setAttribute("viewBox", `0 0 ${width} ${y + 2}`);
    replace(picture, parts);
  }

  // spanElement draws a span; next is the one after it in the same row.
  function spanElement(s, next, y) {
    const end = s.end ?? now;
    if (end < from || s.start > to) return null;
    const limit = next ? Math.min(width, x(next.start)) : width;
    const left = Math.max(gutter(), x(s.start)), right = Math.min(width, Math.max(x(end), left + 3));
    const state = [(s.error || s.failed) && "has-error", s.end === undefined && "lasts", s.unknownEnd && "unknown", s.id === selected && "selected"].filter(Boolean).join(" ");
    const attributes = { class: `span kind-${s.kind} ${state}`, "data-id": s.id };
    if (s.kind === "event") {
      return svg("g", attributes, svg("path", { d: `M${left} ${y + 4}l5 6l-5 6l-5 -6z` }), svg("text", { x: left + 7, y: y + 14 }, shorten(s.title, limit - left - 14)));
    }
    const text = (s.error || s.failed ? "✕ " : "") + s.title + (s.end === undefined ? " …" : "");
    const room = right - left > 24 ? right - left - 8 : 0;
    return svg("g", attributes, svg("rect", { x: left, y: y + 2, width: right - left, height: rowHeight - 4, rx: 2 }),
      room > 0 && svg("text", { x: left + 4, y: y + 14 }, shorten(text, room)),
      // The title of a short span is beside it, if nothing else is there.
      room === 0 && limit - right > 40 && svg("text", { x: right + 4, y: y + 14, class: "outside" }, shorten(text, limit - right - 8)));
  }

  function axis() {
    const target = (to - from) / Math.max(2, Math.floor((width - gutter()) / 110));
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 30e3, 60e3, 300e3, 900e3, 3600e3, 4 * 3600e3, 86400e3].find((n) => n >= target) ?? 7 * 86400e3;
    const ticks = [];
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      ticks.push(svg("line", { x1: x(t), x2: x(t), y1: axisHeight - 6, y2: 5000, class: "tick" }), svg("text", { x: x(t) + 3, y: 14, class: "tick-label" }, tickLabel(t, step)));
    }
    return ticks;
  }

  function onwheel(event) {
    const isZoom = event.ctrlKey || document.activeElement === picture;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      move((event.deltaX / (width - gutter())) * (to - from));
    } else if (isZoom) {
      event.preventDefault();
      zoom(event.deltaY < 0 ? 1 / 1.25 : 1.25, timeAt(event.clientX - picture.getBoundingClientRect().left));
    }
  }

  function onpointerdown(event) {
    drag = { x: event.clientX, from, to, moved: false, id: event.target.closest?.(".span")?.getAttribute("data-id") };
  }

  function onpointermove(event) {
    if (drag && event.buttons) {
      const pixels = event.clientX - drag.x;
      if (!drag.moved && Math.abs(pixels) < 4) return;
      if (!drag.moved) picture.setPointerCapture(event.pointerId);
      drag.moved = true;
      const time = (-pixels / (width - gutter())) * (drag.to - drag.from);
      setView(drag.from + time, drag.to + time);
      return;
    }
    const span = spanOf(event.target);
    tip.hidden = !span;
    if (!span) return;
    tip.textContent = [span.title, textOf(span, now), span.error || span.result].filter(Boolean).join(" – ");
    const box = element.getBoundingClientRect();
    tip.style.left = Math.min(event.clientX - box.left + 12, Math.max(0, box.width - 280)) + "px";
    tip.style.top = event.clientY - box.top + 16 + "px";
  }

  function endDrag(event) {
    const span = drag && !drag.moved && event.type === "pointerup" && spans.find((s) => s.id === drag.id);
    drag = undefined;
    if (span) choose(span);
  }

  function spanOf(target) {
    const id = target.closest?.(".span")?.getAttribute("data-id");
    return id && spans.find((s) => s.id === id);
  }

  function onkeydown(event) {
    const step = (to - from) / 5, middle = (from + to) / 2;
    const actions = {
      "+": () => zoom(1 / 1.5, focusTime(middle)), "=": () => zoom(1 / 1.5, focusTime(middle)), "-": () => zoom(1.5, focusTime(middle)), 0: () => changed("all"),
      ArrowLeft: () => (event.shiftKey ? move(-step) : neighbour(-1)), ArrowRight: () => (event.shiftKey ? move(step) : neighbour(1)),
      Home: () => choose(spans[0]), End: () => choose(spans.at(-1)),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  const focusTime = (middle) => { const s = spans.find((o) => o.id === selected); return s && s.start >= from && s.start <= to ? s.start : middle; };

  function neighbour(direction) {
    const i = spans.findIndex((s) => s.id === selected);
    choose(spans[Math.min(spans.length - 1, Math.max(0, i < 0 ? 0 : i + direction))]);
  }

  function choose(span) {
    if (!span) return;
    selectSpan(span);
    select(span);
  }

  function selectSpan(span) {
    selected = span.id;
    const end = span.end ?? now, size = to - from;
    if (end < from || span.start > to) setView(span.start - size / 2, span.start + size / 2);
    draw();
  }

  function zoom(factor, around) {
    if ((to - from) * factor < minSpan) return;
    setView(around - (around - from) * factor, around + (to - around) * factor);
  }

  const move = (time) => setView(from + time, to + time);

  function setView(a, b) {
    view(a, b);
    changed("custom");
  }

  // view selects the times at the left and the right side.
  function view(a, b) {
    [from, to] = [a, Math.max(b, a + minSpan)];
    draw();
  }

  function image(lines) {
    const top = lines.length * imageLine + 12, height = Number(picture.getAttribute("height"));
    const chart = picture.cloneNode(true);
    const copies = [chart, ...chart.querySelectorAll("*")];
    [picture, ...picture.querySelectorAll("*")].forEach((original, i) => inlineStyle(original, copies[i]));
    const colours = getComputedStyle(document.body);
    const file = svg("svg", { xmlns: "http://www.w3.org/2000/svg", width, height: top + height, viewBox: `0 0 ${width} ${top + height}`, "font-family": "sans-serif" },
      svg("rect", { width, height: top + height, fill: colours.backgroundColor }),
      lines.map((line, i) => svg("text", { x: 8, y: (i + 1) * imageLine, fill: colours.color, "font-size": i === 0 ? 14 : 12, "font-weight": i === 0 ? "bold" : "normal" }, shorten(line, width - 16))),
      svg("g", { transform: `translate(0 ${top})` }, [...chart.childNodes]));
    return new XMLSerializer().serializeToString(file);
  }

  return {
    element, view, image, selectSpan, zoom: (factor) => zoom(factor, focusTime((from + to) / 2)), move: (parts) => move((to - from) * parts),
    update(all, time) { [spans, now] = [all, time]; },
    get range() { return [from, to]; },
  };
}

// inlineStyle gives a copy of an element the style of the original, which a file has without style.css.
function inlineStyle(original, copy) {
  const style = getComputedStyle(original);
  for (const name of styled) copy.setAttribute(name, style.getPropertyValue(name));
  for (const name of ["class", "data-id"]) copy.removeAttribute(name);
}

function shorten(text, pixels) {
  const count = Math.floor(Math.max(0, pixels) / charWidth);
  return text.length <= count ? text : count < 3 ? "" : text.slice(0, count - 1) + "…";
}

function tickLabel(time, step) {
  if (step >= 86400e3) return new Date(time).toLocaleDateString();
  return new Date(time).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", hour12: false, ...(step < 60e3 && { second: "2-digit" }), ...(step < 1000 && { fractionalSecondDigits: 3 }) });
}
