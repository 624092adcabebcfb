// @ts-check
// Ids in the addresses of pages.

import { APIError, get } from "./api.js";

const idLength = 36; // characters of a UUID

// fullID returns the id of the object that an id in the address of a page means: that of the object whose id starts with
// it, as on the command line. kind is the word for the objects, and list the path of their list. The address of the page
// changes to the full id. fullID throws an APIError with the status 404 if no object, or more than one, has such an id.
export async function fullID(id, kind, list, signal) {
  if (id.length === idLength) return id;
  const found = /^[0-9a-f-]+$/i.test(id) ? await get(list + (list.includes("?") ? "&" : "?") + new URLSearchParams({ prefix: id, namespace: "*" }), signal) : [];
  const matches = found.filter((object) => object.ID.replaceAll("-", "").startsWith(id.replaceAll("-", "").toLowerCase()));
  if (matches.length === 0) throw new APIError(404, `There is no ${kind} ${id}.`);
  if (matches.length > 1) throw new APIError(404, `The ids of ${matches.length} ${kind}s start with ${id}: enter more of the id.`);
  if (!signal.aborted) history.replaceState(null, "", (location.pathname + location.search).replace(encodeURIComponent(id), matches[0].ID));
  return matches[0].ID;
}
