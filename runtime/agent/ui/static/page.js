// @ts-check
// The page that the element main shows, and how another page or an error replaces it. main.js has the table of pages.

import { access, readAccess } from "./api.js";
import { h, replace } from "./dom.js";
import * as login from "./views/login.js";

const main = document.getElementById("main");
let current = new AbortController();
let retry; // the timer of showError
let fill; // set by start

// start shows the page of the address. fillMain(main, signal) fills the element main with the page of the present
// address, now and whenever that page is shown. The signal ends when another page is shown.
export function start(fillMain) {
  fill = fillMain;
  return showPage();
}

// go shows the page of a path, adds it to the history of the browser, and moves the focus to it.
export function go(path) {
  history.pushState(null, "", path);
  showPage();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
}

// showPage shows the page of the address. Before the call of start, it does nothing.
export async function showPage() {
  if (!fill) return;
  leavePage();
  current = new AbortController();
  const { signal } = current;
  try {
    await fill(main, signal);
  } catch (err) {
    if (!signal.aborted) showError(err);
  }
}

// leavePage ends the requests of the page that is shown.
export function leavePage() {
  clearTimeout(retry);
  current.abort();
}

// showError replaces the page with an error; with the form for the token if the agent requires one. It ends the
// requests of the page, so that a later error does not replace a form that is being filled in. A page for which the
// agent did not answer is shown as soon as it does.
export function showError(err) {
  current.abort();
  if (err.status === 403) {
    replace(main);
    login.showForm(main, showPage);
    return;
  }
  if (main.querySelector("[role=alert]")?.textContent !== err.message) { // a screen reader says it once
    replace(main, h("h1", null, "This page cannot be shown"), h("p", { role: "alert" }, err.message),
      h("p", null, h("button", { onclick: showPage }, "Try again")));
  }
  if (err.status === 0) retry = setTimeout(showPage, 1000);
}

// showForbidden handles the error of an action with the status 403. If the tab has a token without all rights, its page is shown
// again, without what this token does not permit; otherwise the form for the token is shown.
export async function showForbidden(err) {
  const { signal } = current;
  await readAccess();
  if (signal.aborted) return;
  if (!access.all) showPage();
  else showError(err);
}
