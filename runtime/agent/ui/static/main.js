// @ts-check
// The table of pages, and the frame around them: navigation, search, the state of the connection.

import { access, can, connection, has, load, pause, readAccess } from "./api.js";
import { showConditions } from "./conditions.js";
import { h, link, replace, update } from "./dom.js";
import { mayEdit } from "./jobactions.js";
import { openHelp, startKeys } from "./keys.js";
import { go, leavePage, showError, showPage, start } from "./page.js";
import * as search from "./search.js";
import * as login from "./views/login.js";

// pages: the first pattern that matches a path below /ui/ selects the module in views/, whose function
// show(main, parameters, signal) fills the element main. parameters has the named groups of the pattern,
// decoded, and query, a URLSearchParams. The signal ends when another page is shown. The paths are the same as in Nomad's page.
/** @type {[RegExp, string][]} */
const pages = [
  [/^$/, "jobs"],
  [/^jobs$/, "jobs"],
  [/^jobs\/run$/, "run"],
  [/^jobs\/(?<job>.+)@(?<namespace>[^@/]+)\/(?<tab>definition|versions|deployments|allocations|evaluations|services|logs|dispatch)$/, "job"],
  [/^jobs\/(?<job>.+)@(?<namespace>[^@/]+)(\/(?<group>[^/]+))?$/, "job"],
  [/^jobs\/(?<job>[^@]+?)(\/(?<tab>definition|versions|deployments|allocations|evaluations|services|logs))?$/, "job"],
  [/^allocations$/, "allocations"],
  [/^allocations\/(?<id>[^/]+)(\/(?<path>.*))?$/, "allocation"],
  [/^exec\/(?<job>[^/]+)(\/(?<group>[^/]+)(\/(?<task>[^/]+))?)?$/, "exec"],
  [/^(clients(\/(?<id>[^/]+))?|topology|servers)(\/.*)?$/, "node"],
  [/^plugins$/, "plugins"],
  [/^(storage|csi)(\/(?<path>.*))?$/, "volumes"],
  [/^services(\/(?<service>[^/]+))?$/, "services"],
  [/^variables(\/(?<path>.*))?$/, "variables"],
  [/^evaluations(\/(?<id>[^/]+))?$/, "evaluations"],
  [/^events$/, "events"],
  [/^settings\/tokens$/, "login"],
];

// permits has, for the modules whose pages the token may not permit, whether it does.
const permits = {
  events: () => access.readOnly || can("*", "read-job", "host-volume-read") || has("node:read") || has("variables"),
  exec: () => can("*", "alloc-exec"), node: () => has("node:read"), plugins: () => has("agent:read") && !access.readOnly, run: () => mayEdit("*"),
  variables: () => has("variables"), volumes: () => can("*", "host-volume-read"),
};

// navigation has the links of the frame: what people look at, and smaller what explains it.
const navigation = [
  ["/ui/jobs", "Jobs"],
  ["/ui/allocations", "Allocations"],
  ["/ui/clients", "Node"],
  ["/ui/services", "Services"],
  ["/ui/storage", "Volumes"],
  ["/ui/variables", "Variables"],
  ["/ui/plugins", "Plugins", "minor"],
  ["/ui/evaluations", "Evaluations", "minor"],
  ["/ui/events", "Events", "minor"],
  ["/ui/settings/tokens", "Token", "minor"],
];

// fillMain fills the element main with the page of the present address.
async function fillMain(main, signal) {
  if (!access.isKnown) await readAccess();
  if (signal.aborted) return;
  const path = location.pathname.replace(/^\/ui\/?/, "").replace(/\/$/, "");
  showFrame();
  markCurrent();
  const found = pages.map(([pattern, view]) => ({ match: pattern.exec(path), view })).find(({ match }) => match);
  document.title = "nomad-lite";
  if (!found) {
    replace(main, h("h1", null, "No such page"), h("p", null, link("/ui/jobs", "All jobs")));
    return;
  }
  if (permits[found.view]?.() === false) {
    showError({ status: 403 });
    return;
  }
  /** @type {Record<string, any>} */
  const parameters = Object.fromEntries(Object.entries(found.match.groups ?? {}).map(([name, value]) => [name, value && decodeURIComponent(value)]));
  parameters.query = new URLSearchParams(location.search);
  const view = views[found.view] ??= await load(`./views/${found.view}.js`);
  if (signal.aborted) return;
  replace(main);
  const shown = view.show(main, parameters, signal);
  loadViews();
  await shown;
}

// views are the modules of pages that are loaded, by their names.
const views = { login };
let isLoadingViews = false;

// loadViews loads the modules of all pages after the first page has sent its requests, so that each page can be opened
// while the agent is away.
async function loadViews() {
  if (isLoadingViews) return;
  isLoadingViews = true;
  await Promise.all(pages.map(async ([, name]) => {
    while (!views[name]) {
      try {
        views[name] = await import(`./views/${name}.js`);
      } catch {
        await pause(1000);
      }
    }
  }));
}

function markCurrent() {
  for (const a of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll("#top nav a"))) {
    const isCurrent = location.pathname.startsWith(a.getAttribute("href"));
    a.toggleAttribute("aria-current", isCurrent);
    if (!isCurrent) continue;
    a.setAttribute("aria-current", "page");
    const line = a.parentElement; // it scrolls on a phone
    line.scrollLeft = a.offsetLeft - (line.clientWidth - a.offsetWidth) / 2;
  }
}

// Links to pages are shown without a reload.
document.addEventListener("click", (event) => {
  const a = /** @type {any} */ (event.target).closest?.("a[href^='/ui/']");
  if (!a || event.defaultPrevented || event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || a.target || a.hasAttribute("download")) return;
  event.preventDefault();
  go(a.getAttribute("href"));
});
addEventListener("popstate", showPage);

// A page that the browser keeps for its "back" button must not hold connections.
addEventListener("pagehide", leavePage);
addEventListener("pageshow", (event) => { if (event.persisted) showPage(); });

startKeys(go);

const label = document.getElementById("label");
label.style.backgroundColor = label.dataset.background ?? "";
label.style.color = label.dataset.text ?? "";

const status = document.getElementById("connection");
connection.addEventListener("lost", () => {
  status.textContent = "The connection to the agent is lost. This page tries again each second.";
  status.hidden = false;
});
connection.addEventListener("restored", () => { status.hidden = true; });

// showFrame shows the navigation and what the token does not permit.
function showFrame() {
  const isPermitted = (path) => permits[pages.find(([pattern]) => pattern.test(path.slice("/ui/".length)))[1]]?.() ?? true;
  update(document.getElementById("top"),
    link("/ui/jobs", h("strong", null, "nomad-lite")),
    h("nav", { "aria-label": "Pages" }, navigation.map(([path, title, className]) => h("a", { href: path, class: className, permitted: isPermitted(path) }, title))),
    h("button", { id: "search-button", permitted: !access.readOnly, onclick: search.open, "aria-keyshortcuts": "/" }, "Search ", h("kbd", null, "/")),
    h("button", { id: "keys-button", onclick: openHelp, "aria-keyshortcuts": "?", "aria-label": "Keys", title: "Keys" }, "?"));
  document.getElementById("read-only").hidden = !access.readOnly;
}

login.logInByFragment().then(readAccess).then(() => {
  start(fillMain);
  showConditions(document.getElementById("conditions"));
});
