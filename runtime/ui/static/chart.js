// Small charts of values over time.

import { svg } from "./dom.js";

const width = 300, height = 48;

// maxSamples is the number of samples in a chart.
export const maxSamples = 60;

// chart draws samples, numbers from 0 to 1, the latest at the right edge. label describes the chart for screen readers.
export function chart(label, samples) {
  const x = (i) => ((maxSamples - samples.length + i) * width / (maxSamples - 1)).toFixed(1);
  const y = (value) => ((1 - Math.min(1, Math.max(0, value))) * (height - 2) + 1).toFixed(1);
  return svg("svg", { class: "sparkline", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label },
    svg("polyline", { points: samples.map((value, i) => `${x(i)},${y(value)}`).join(" ") }));
}
