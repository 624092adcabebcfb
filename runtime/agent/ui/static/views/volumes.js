// @ts-check
// Host volumes, and the allocations that use them.

import { allocationColumns } from "../allocationtable.js";
import { send, watch } from "../api.js";
import { ask } from "../dialog.js";
import { ago, badge, checkbox, clockAndAge, facts, h, link, table, update } from "../dom.js";
import { bytes } from "../format.js";
import { hostVolumeTable } from "../hostvolumetable.js";
import { fullID } from "../ids.js";
import { go, showError } from "../page.js";

const prefix = "volumes/dynamic/";

export async function show(main, parameters, signal) {
  const path = parameters.path ?? "";
  if (!path.startsWith(prefix)) return showList(main, signal);
  const [id, namespace = "default"] = path.slice(prefix.length).split("@");
  return showVolume(main, await fullID(id, "volume", "/v1/volumes?type=host", signal), namespace, signal);
}

function volumePath(volume) {
  return `/ui/storage/${prefix}${encodeURIComponent(volume.ID)}@${encodeURIComponent(volume.Namespace)}`;
}

function showList(main, signal) {
  document.title = "Volumes – nomad-lite";
  const dynamic = h("div"), configured = h("div");
  main.append(h("h1", null, "Volumes"), dynamic, configured);
  return Promise.all([
    watch("/v1/volumes?type=host&namespace=*", signal, (volumes) => update(dynamic, h("h2", null, "Created through the API"), drawVolumes(volumes)), showError),
    watch("/v1/nodes", signal, (nodes) => update(configured, drawConfigured(nodes[0]?.HostVolumes ?? {})), showError),
  ]);
}

function drawVolumes(volumes) {
  if (volumes.length === 0) return h("p", null, "No volumes. ", h("code", null, "nomad-lite volume create"), " creates one.");
  return table("Volumes", [
    { title: "Name", cell: (v) => link(volumePath(v), v.Name) },
    { title: "Namespace", cell: (v) => v.Namespace },
    { title: "State", cell: (v) => badge(v.State) },
    { title: "Plugin", cell: (v) => v.PluginID },
    { title: "Capacity", class: "number", cell: (v) => (v.CapacityBytes ? bytes(v.CapacityBytes) : "") },
    { title: "Created", cell: (v) => ago(v.CreateTime) },
  ], volumes, (v) => v.Namespace + "/" + v.ID);
}

// drawConfigured lists the volumes of the agent's configuration. Dynamic volumes have an ID.
function drawConfigured(volumes) {
  const rows = Object.entries(volumes).filter(([, v]) => !v.ID);
  return rows.length > 0 && [h("h2", null, "In the configuration of the agent"), hostVolumeTable("Configured volumes", rows)];
}

function showVolume(main, id, namespace, signal) {
  document.title = "Volume – nomad-lite";
  const page = h("div");
  main.append(page);
  const path = `/v1/volume/host/${encodeURIComponent(id)}?namespace=${encodeURIComponent(namespace)}`;
  return watch(path, signal, (volume) => update(page, drawVolume(volume, path)), showError);
}

function drawVolume(volume, path) {
  const allocs = volume.Allocations ?? [];
  return [
    h("h1", null, volume.Name, " ", badge(volume.State)),
    h("div", { class: "toolbar" }, h("button", { class: "danger", onclick: () => askDelete(volume, allocs, path) }, "Delete")),
    facts([
      ["ID", h("code", null, volume.ID)], ["Namespace", volume.Namespace], ["Path", h("code", null, volume.HostPath)], ["Plugin", volume.PluginID || "none: a registered directory"],
      volume.CapacityBytes && ["Capacity", bytes(volume.CapacityBytes)],
      ["Access", (volume.RequestedCapabilities ?? []).map((c) => [c.AttachmentMode, c.AccessMode].filter(Boolean).join(", ")).join("; ") || "any"],
      ["Created", clockAndAge(volume.CreateTime)],
      Object.keys(volume.Parameters ?? {}).length > 0 && ["Parameters", Object.entries(volume.Parameters).map(([name, value]) => h("div", null, h("code", null, name, " = ", value)))],
    ]),
    h("h2", null, "Allocations"),
    allocs.length === 0 ? h("p", null, "No allocation uses this volume.") : table("Allocations",
      [allocationColumns.id, allocationColumns.job, allocationColumns.group, allocationColumns.status], allocs, (a) => a.ID),
  ];
}

function askDelete(volume, allocs, path) {
  ask({
    title: `Delete the volume ${volume.Name}?`,
    text: volume.PluginID ? "The plugin deletes the files of the volume." : "The directory and its files stay on the disk.",
    fields: [
      allocs.length > 0 && h("p", { class: "error" }, `Allocations use this volume: ${allocs.length}.`),
      checkbox("Also if a group has claimed the volume, or its plugin fails", "force"),
    ],
    action: "Delete", danger: true,
    run: async (form, closed) => {
      await send(path + (form.has("force") ? "&force=true" : ""), { method: "DELETE" });
      if (!closed.aborted) go("/ui/storage");
    },
  });
}
