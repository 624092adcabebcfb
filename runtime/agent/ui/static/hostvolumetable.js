// @ts-check
// The table of the host volumes of the node.

import { h, table } from "./dom.js";

// hostVolumeTable creates a table of host volumes: pairs of the name and the volume of the API.
export function hostVolumeTable(label, volumes) {
  return table(label, [
    { title: "Name", cell: ([name]) => name },
    { title: "Path", cell: ([, v]) => h("code", null, v.Path) },
    { title: "Access", cell: ([, v]) => (v.ReadOnly ? "read only" : "read and write") },
  ], volumes, ([name]) => name);
}
