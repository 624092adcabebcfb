// @ts-check
// The resource usage of tasks, of jobs and of the node in the last hours, which the agent records.

import { access, get, poll } from "./api.js";
import { chart, sparkline } from "./chart.js";
import { h } from "./dom.js";
import { bytes, megahertz } from "./format.js";

const periods = [["15m", "15 minutes", 15 * 60e3], ["1h", "1 hour", 3600e3], ["6h", "6 hours", 6 * 3600e3]];
let shownPeriod = periods[1]; // of all pages of the tab

// usageCharts creates the charts of one object. limits: {cpu, memory, disk}, each a list for chart. The result has the elements,
// setHistory(history, period) with a history of the API, and addLive({cpu, memory}).
export function usageCharts({ cpu = [], memory = [], disk = [] } = {}) {
  const charts = {
    CPU: chart("CPU", { format: megahertz, limits: cpu }), Memory: chart("Memory", { format: bytes, base: 1024, limits: memory }),
    Disk: chart("Disk", { format: bytes, base: 1024, limits: disk }), Restarts: chart("Restarts", { format: (n) => String(Math.round(n * 10) / 10) }),
  };
  charts.Disk.element.hidden = charts.Restarts.element.hidden = true; // until there is something to show
  return {
    elements: Object.values(charts).map((c) => c.element),
    setHistory: (history, [, , length]) => {
      const end = Date.now(), interval = history.Interval / 1e6;
      for (const [name, c] of Object.entries(charts)) c.setHistory({ start: end - length, end, interval, times: history.Times, values: history[name] });
      charts.Disk.element.hidden = charts.Disk.isEmpty;
      charts.Restarts.element.hidden = !history.Restarts.some((n) => n > 0);
    },
    addLive: ({ cpu: mhz, memory: size }) => {
      charts.CPU.add(Date.now(), mhz);
      charts.Memory.add(Date.now(), size);
    },
  };
}

// followHistory reads a history of the API at once, after each interval, and when the user selects another period, until
// the signal ends. show(history, period) shows it. It returns the element by which the user selects the period, and when the
// first history is shown: values that are added before would be removed.
export function followHistory(path, interval, signal, show) {
  const note = h("span", { class: "dim", role: "status" });
  const select = h("select", { "aria-label": "Period of the charts", onchange: () => { shownPeriod = periods[select.selectedIndex]; read().catch(fail); } },
    periods.map((p) => h("option", { value: p[0], selected: p === shownPeriod }, "last " + p[1])));
  async function read() {
    const period = shownPeriod;
    const history = await get(`${path}${path.includes("?") ? "&" : "?"}period=${period[0]}`, signal);
    if (period !== shownPeriod || signal.aborted) return;
    note.textContent = "";
    show(history, period);
  }
  const fail = (err) => { if (!signal.aborted) note.textContent = "No history: " + err.message; };
  if (access.readOnly) return { element: h("span"), shown: Promise.resolve() };
  const shown = read().catch(fail);
  shown.then(() => new Promise((resolve) => setTimeout(resolve, interval))).then(() => poll(interval, signal, read)).catch(fail);
  return { element: h("span", { class: "toolbar" }, select, note), shown };
}

const listInterval = 60e3; // milliseconds

// jobUsageColumns creates the columns of a liveTable of jobs that show the CPU and memory of the last hour. onChange is called
// when there are new values.
export function jobUsageColumns(signal, onChange) {
  let byJob = new Map();
  const usage = (job, name) => byJob.get(job.Namespace + "/" + job.ID)?.[name];
  // latest returns the value of the last steps, and -1 if the tasks of the job do not run.
  const latest = (job, name) => usage(job, name)?.slice(-2).findLast((v) => v != null) ?? -1;
  const column = (title, name, format) => ({
    title, class: "number usage", descendingFirst: true, sort: (job) => latest(job, name),
    cell: (job) => {
      const values = usage(job, name);
      const known = values?.filter((v) => v != null) ?? [];
      if (known.length === 0) return "";
      return h("span", { title: `highest in the last hour: ${format(Math.max(...known))}` }, sparkline(values), " ", latest(job, name) < 0 ? "–" : format(latest(job, name)));
    },
  });
  if (!access.readOnly) {
    poll(listInterval, signal, async () => {
      const history = await get("/v1/jobs/history?namespace=*", signal);
      byJob = new Map(history.Jobs.map((job) => [job.Namespace + "/" + job.ID, job]));
      onChange();
    }).catch(() => {}); // without it, the columns are empty
  }
  return [column("CPU", "CPU", megahertz), column("Memory", "Memory", bytes)];
}
