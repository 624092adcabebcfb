// @ts-check
// Paths of pages.

// jobPath returns the path of the page of a job, or of one of its tabs or groups.
export function jobPath(id, namespace, part) {
  return `/ui/jobs/${encodeURIComponent(id)}@${encodeURIComponent(namespace)}${part ? "/" + encodeURIComponent(part) : ""}`;
}

// jobAPI returns the path of a route of the API for a job: "evaluations", or "" for the job itself. query has
// further parameters.
/** @template {string} [Route=""] @param {string} id @param {string} namespace @param {Route} [route] @param {Object} [query] @returns {Route extends "" ? `/v1/job/${string}?${string}` : `/v1/job/${string}/${Route}?${string}`} */
export function jobAPI(id, namespace, route, query) {
  return /** @type {any} */ (`/v1/job/${encodeURIComponent(id)}${route ? "/" + route : ""}?${new URLSearchParams({ ...query, namespace })}`);
}

// editPath returns the path of the page that edits a job of the API, or one of its versions.
export function editPath({ ID, Namespace }, version) {
  return "/ui/jobs/run?" + new URLSearchParams({ job: ID, namespace: Namespace, ...(version !== undefined && { version }) });
}

// allocationPath returns the path of the page of an allocation; further parts are encoded.
export function allocationPath(id, ...parts) {
  return ["/ui/allocations", id, ...parts.map(encodeURIComponent)].join("/");
}

// actionPath returns the path of the page that runs an action of a task of a job of the API.
export function actionPath({ ID, Namespace }, group, task, action) {
  return `/ui/exec/${[ID, group, task].map(encodeURIComponent).join("/")}?${new URLSearchParams({ action, namespace: Namespace })}`;
}

// servicePath returns the path of the page of a service.
export function servicePath(name, namespace) {
  return `/ui/services/${encodeURIComponent(name)}${namespace === "default" ? "" : "?" + new URLSearchParams({ namespace })}`;
}

// rememberFilter puts the values of filters into the address of the page, so that they are kept by a reload and by a link.
export function rememberFilter(values) {
  const query = new URLSearchParams(Object.entries(values).filter(([, value]) => value)).toString();
  const path = location.pathname + (query && "?" + query);
  if (path !== location.pathname + location.search) history.replaceState(null, "", path);
}

export function evaluationPath(id) {
  return "/ui/evaluations/" + encodeURIComponent(id);
}

// execPath returns the path of the terminal of a task.
export function execPath(alloc, task) {
  return `/ui/exec/${[alloc.JobID, alloc.TaskGroup, task].map(encodeURIComponent).join("/")}?${new URLSearchParams({ allocation: alloc.ID, namespace: alloc.Namespace })}`;
}
