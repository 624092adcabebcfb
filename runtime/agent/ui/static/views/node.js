// @ts-check
// The node: its resources, what it can run, and its drain.

import { allocationColumns, allocationTable } from "../allocationtable.js";
import { APIError, get, has, ignoreForbidden, poll, put, watch } from "../api.js";
import { ask } from "../dialog.js";
import { ago, badge, checkbox, facts, h, hideUntilComplete, table, update, valueList } from "../dom.js";
import { bytes, clock, duration } from "../format.js";
import { hostVolumeTable } from "../hostvolumetable.js";
import { showError } from "../page.js";
import { isActive } from "../status.js";
import { followHistory, usageCharts } from "../usage.js";

const statsInterval = 2000, historyInterval = 5 * 60e3; // milliseconds
const megabyte = 1 << 20;

export async function show(main, { id }, signal) {
  document.title = "Node – nomad-lite";
  const stubs = await get("/v1/nodes", signal);
  const stub = id ? stubs.find((n) => n.ID.startsWith(id)) : stubs[0];
  if (!stub) throw new APIError(404, id ? "This agent has no such node." : "The node is not ready yet.");
  let node = null, active = [], stats = null;
  const top = h("div"), usage = h("div"), charts = h("div", { class: "charts" }), rest = h("div"), none = h("p", { hidden: true }, "No allocation is running or pending.");
  const list = allocationTable(columns, signal);
  list.element.hidden = true;
  let used = null; // the charts, which need the size of the memory
  const page = h("div", null, top, usage, charts, h("h2", null, "Allocations"), none, list.element, rest);
  const arrived = hideUntilComplete(page, ["node", "allocations", "statistics"], () => list.show(active));
  main.append(page);

  function drawState() {
    if (!node) return;
    update(top, drawTop(node, stats));
    update(usage, h("h2", null, "Resources"), resources(node, active, stats));
  }

  function addStats(value) {
    stats = value;
    drawState();
    if (used) return used.addLive({ cpu: stats.CPUTicksConsumed, memory: stats.Memory.Used });
    used = usageCharts({
      cpu: [{ name: "all processors", value: stub.NodeResources?.Cpu?.CpuShares ?? 0 }], memory: [{ name: "installed", value: stats.Memory.Total }],
      disk: [{ name: "size", value: stats.AllocDirStats?.Size ?? 0 }],
    });
    charts.append(...used.elements);
    const history = followHistory("/v1/client/history", historyInterval, signal, used.setHistory);
    charts.before(history.element);
    return history.shown;
  }

  return Promise.all([
    poll(statsInterval, signal, async () => {
      try {
        await addStats(await get("/v1/client/stats", signal));
      } finally {
        arrived("statistics");
      }
    }).catch(ignoreForbidden),
    watch(`/v1/node/${stub.ID}`, signal, (value) => {
      node = value;
      drawState();
      update(rest, drawRest(node));
      arrived("node");
    }, showError),
    watch("/v1/allocations?namespace=*&resources=true&task_states=false", signal, (allocs) => {
      active = allocs.filter(isActive);
      none.hidden = active.length > 0;
      list.element.hidden = active.length === 0;
      list.show(active);
      drawState();
      arrived("allocations");
    }, showError),
  ]);
}

const columns = [
  allocationColumns.id, allocationColumns.job, allocationColumns.group, allocationColumns.status,
  { title: "CPU", class: "number", cell: (a) => allocated([a], "Cpu", "CpuShares") + " MHz" },
  { title: "Memory", class: "number", cell: (a) => bytes(allocated([a], "Memory", "MemoryMB") * megabyte) },
  allocationColumns.created,
];

// cpuUsage returns the part of the processors that is used.
/** @param {API.Stats} stats */
function cpuUsage(stats) {
  return stats.CPU.reduce((sum, cpu) => sum + cpu.TotalPercent, 0) / Math.max(1, stats.CPU.length) / 100;
}

/** @param {API.nodeView} node */
function drawTop(node, stats) {
  return [
    h("h1", null, node.Name, " ", badge(node.Status)),
    node.StatusDescription && h("p", null, node.StatusDescription),
    actions(node),
    facts([
      ["ID", h("code", null, node.ID)], ["Address", node.HTTPAddr], ["Datacenter", node.Datacenter], ["Node pool", node.NodePool],
      node.NodeClass && ["Class", node.NodeClass], ["Version", node.Attributes?.["nomad.version"]],
      ["System", [node.Attributes?.["os.name"], node.Attributes?.["os.version"], node.Attributes?.["kernel.version"], node.Attributes?.["cpu.arch"]].filter(Boolean).join(" ")],
      stats && ["Uptime of the machine", duration(stats.Uptime * 1000)],
      ["Eligibility", badge(node.SchedulingEligibility)],
      node.DrainStrategy && ["Drain", drainText(node.DrainStrategy)],
      node.LastDrain && ["Last drain", [node.LastDrain.Status, ", ", ago(node.LastDrain.UpdatedAt)]],
    ]),
  ];
}

/** @param {API.nodeView} node */
function drawRest(node) {
  return [
    h("h2", null, "Drivers"), drivers(node),
    devices(node), hostVolumes(node), networks(node), events(node),
    pairs("Metadata", node.Meta), pairs("Attributes", node.Attributes),
  ];
}

/** @param {API.DrainStrategy} strategy */
function drainText(strategy) {
  const system = strategy.IgnoreSystemJobs ? ", system jobs continue" : "";
  if (strategy.Deadline < 0) return "all allocations stop at once" + system;
  if (!strategy.Deadline) return "without a deadline" + system;
  return "until " + clock(strategy.ForceDeadline) + system;
}

/** @param {API.nodeView} node */
function actions(node) {
  const eligible = node.SchedulingEligibility === "eligible";
  const path = `/v1/node/${node.ID}/`;
  return h("div", { class: "toolbar" },
    node.DrainStrategy
      ? h("button", { permitted: has("node:write"), onclick: () => ask({
        title: "Stop the drain?", text: "Allocations that still run continue, and the node accepts new ones.", action: "Stop the drain",
        run: () => put(path + "drain", { DrainSpec: null, MarkEligible: true }),
      }) }, "Stop the drain")
      : h("button", { class: "danger", permitted: has("node:write"), onclick: () => askDrain(path) }, "Drain"),
    !node.DrainStrategy && h("button", { permitted: has("node:write"), onclick: () => ask({
      title: eligible ? "Accept no new allocations?" : "Accept new allocations?",
      text: eligible ? "Allocations that run continue. Further ones wait until the node is eligible again." : "Allocations that wait for the node start.",
      action: eligible ? "Make ineligible" : "Make eligible",
      run: () => put(path + "eligibility", { Eligibility: eligible ? "ineligible" : "eligible" }),
    }) }, eligible ? "Make ineligible" : "Make eligible"));
}

function askDrain(path) {
  const kind = h("select", { id: "drain-kind", onchange: () => { minutes.disabled = kind.value !== "deadline"; } },
    h("option", { value: "deadline" }, "until a deadline, then the rest at once"), h("option", { value: "none" }, "without a deadline"), h("option", { value: "force" }, "all at once"));
  const minutes = h("input", { id: "drain-minutes", type: "number", min: "1", max: "100000", value: "60", required: true });
  ask({
    title: "Drain this node?", text: "All allocations stop, and there is no other node for them: their jobs wait until the node is eligible again.",
    fields: [
      h("p", null, h("label", { for: "drain-kind" }, "Stop allocations "), kind),
      h("p", null, h("label", { for: "drain-minutes" }, "Deadline in minutes "), minutes),
      checkbox("System jobs continue", "ignoreSystem"),
    ],
    action: "Drain", danger: true,
    run: (form) => {
      const deadline = { deadline: minutes.valueAsNumber * 60e9, none: 0, force: -1 }[kind.value];
      return put(path + "drain", { DrainSpec: { Deadline: deadline, IgnoreSystemJobs: form.has("ignoreSystem") } });
    },
  });
}

// allocated adds up a resource of the tasks of allocations.
function allocated(allocs, kind, field) {
  return allocs.flatMap((a) => Object.values(a.AllocatedResources?.Tasks ?? {})).reduce((sum, task) => sum + (task[kind]?.[field] ?? 0), 0);
}

/** @param {API.nodeView} node */
function resources(node, allocs, stats) {
  const total = node.NodeResources, reserved = node.ReservedResources;
  const disk = allocs.reduce((sum, a) => sum + (a.AllocatedResources?.Shared?.DiskMB ?? 0), 0);
  const size = (megabytes) => bytes(megabytes * megabyte);
  const rows = [
    { name: "CPU", total: total.Cpu.CpuShares, reserved: reserved?.Cpu?.CpuShares ?? 0, allocated: allocated(allocs, "Cpu", "CpuShares"), format: (mhz) => Math.round(mhz) + " MHz",
      used: stats && Math.round(cpuUsage(stats) * 100) + "% of the machine" },
    { name: "Memory", total: total.Memory.MemoryMB, reserved: reserved?.Memory?.MemoryMB ?? 0, allocated: allocated(allocs, "Memory", "MemoryMB"), format: size,
      used: stats && `${bytes(stats.Memory.Used)} of ${bytes(stats.Memory.Total)}` },
    { name: "Disk", total: total.Disk.DiskMB, reserved: reserved?.Disk?.DiskMB ?? 0, allocated: disk, format: size,
      used: stats?.AllocDirStats && `${bytes(stats.AllocDirStats.Used)} of ${bytes(stats.AllocDirStats.Size)}` },
  ];
  return table("Resources", [
    { title: "Resource", cell: (r) => r.name },
    { title: "Total", class: "number", cell: (r) => r.format(r.total) },
    { title: "Reserved", class: "number", cell: (r) => r.format(r.reserved) },
    { title: "Allocated", class: "number", cell: (r) => r.format(r.allocated) },
    { title: "Part allocated", cell: (r) => h("meter", { min: "0", max: Math.max(1, r.total - r.reserved), value: r.allocated, "aria-label": r.name + " allocated" }) },
    { title: "Used by the machine", cell: (r) => r.used ?? "unknown" },
  ], rows, (r) => r.name);
}

/** @param {API.nodeView} node */
function drivers(node) {
  const rows = Object.entries(node.Drivers ?? {}).sort(byName);
  return table("Drivers", [
    { title: "Driver", cell: ([name]) => name },
    { title: "Health", cell: ([, d]) => badge(!d.Detected ? "undetected" : d.Healthy ? "healthy" : "unhealthy") },
    { title: "Description", cell: ([, d]) => d.HealthDescription },
    { title: "Changed", cell: ([, d]) => ago(d.UpdateTime) },
    { title: "Attributes", cell: ([, d]) => Object.entries(d.Attributes ?? {}).map(([name, value]) => h("div", null, h("code", null, name, " = ", value))) },
  ], rows, ([name]) => name);
}

/** @type {(a: [string, any], b: [string, any]) => number} */
const byName = ([a], [b]) => (a < b ? -1 : 1);

/** @param {API.nodeView} node */
function devices(node) {
  const rows = (node.NodeResources.Devices ?? []).flatMap((group) => group.Instances.map((device) => ({ group, device })));
  if (rows.length === 0) return null;
  return [h("h2", null, "Devices"), table("Devices", [
    { title: "Device", cell: ({ group }) => [group.Vendor, group.Type, group.Name].filter(Boolean).join("/") },
    { title: "ID", cell: ({ device }) => h("code", null, device.ID) },
    { title: "Health", cell: ({ device }) => badge(device.Healthy ? "healthy" : "unhealthy") },
    { title: "Description", cell: ({ device }) => device.HealthDescription },
  ], rows, ({ group, device }) => `${group.Vendor}/${group.Type}/${group.Name}/${device.ID}`)];
}

/** @param {API.nodeView} node */
function hostVolumes(node) {
  const rows = Object.entries(node.HostVolumes ?? {}).sort(byName);
  if (rows.length === 0) return null;
  return [h("h2", null, "Host volumes"), hostVolumeTable("Host volumes", rows)];
}

/** @param {API.nodeView} node */
function networks(node) {
  const rows = (node.NodeResources.NodeNetworks ?? []).flatMap((n) => (n.Addresses ?? []).map((address) => ({ device: n.Device, address })));
  if (rows.length === 0) return null;
  return [h("h2", null, "Networks"), table("Networks", [
    { title: "Network", cell: ({ address }) => address.Alias },
    { title: "Interface", cell: ({ device }) => device },
    { title: "Address", cell: ({ address }) => h("code", null, address.Address) },
    { title: "Reserved ports", cell: ({ address }) => address.ReservedPorts },
  ], rows, ({ device, address }) => device + address.Alias + address.Address)];
}

/** @param {API.nodeView} node */
function events(node) {
  const rows = [...(node.Events ?? [])].reverse();
  return [h("h2", null, "Events"), table("Events of the node", [
    { title: "Time", cell: (e) => clock(e.Timestamp) },
    { title: "Subsystem", cell: (e) => e.Subsystem },
    { title: "Message", cell: (e) => e.Message },
  ], rows)];
}

// pairs is a list of names and values that is closed at first.
function pairs(title, values) {
  const rows = Object.entries(values ?? {}).sort(byName);
  return h("details", { "data-key": title }, h("summary", null, h("h2", null, `${title} (${rows.length})`)), valueList(rows.map(([name, value]) => [h("code", null, name), value])));
}
