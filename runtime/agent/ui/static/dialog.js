// @ts-check
// Dialogs that confirm an action or ask for its parameters.

import { h } from "./dom.js";
import { showForbidden } from "./page.js";

// ask opens a dialog with a form and a button that runs an action. options: title; text; fields, elements of the
// form; action, the text of the button; danger, whether the action destroys something; run(form data, closed), which
// returns a promise. While it runs, the button is disabled. An error is shown in the dialog, which can then be sent again.
// The dialog closes when run has finished, or with Escape. The signal closed ends then: after it, run must send no further
// request and show no other page. A request in progress continues, because its effect is unknown.
/** @param {{ title: any, text?: any, fields?: any, action: string, danger?: boolean, run: (form: FormData, closed: AbortSignal) => Promise<any> }} options */
export function ask({ title, text, fields, action, danger, run }) {
  const closed = new AbortController();
  const error = h("p", { role: "alert", class: "error" });
  const button = h("button", { class: danger ? "danger" : "primary" }, action);
  const dialog = h("dialog", { class: "ask", "aria-labelledby": "ask-title", onclose: () => { closed.abort(); dialog.remove(); } },
    h("form", {
      onsubmit: async (event) => {
        event.preventDefault();
        button.disabled = true;
        error.textContent = "";
        try {
          await run(new FormData(event.target), closed.signal);
          dialog.close();
        } catch (err) {
          if (closed.signal.aborted) return;
          if (err.status === 403) {
            dialog.close();
            showForbidden(err);
          }
          error.textContent = err.message;
        }
        button.disabled = false;
      },
    }, h("h2", { id: "ask-title" }, title), text && h("p", null, text), fields, error,
    h("div", { class: "toolbar" }, button, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"))));
  addEventListener("popstate", () => dialog.close(), { signal: closed.signal });
  document.body.append(dialog);
  dialog.showModal();
}

// field creates an input with its label and the attributes. The attribute name is the key of the form data; tag is the
// name of the element if it is not an input.
export function field(label, attributes) {
  const { tag = "input", value, ...others } = attributes;
  const id = "field-" + others.name;
  const input = h(tag, { id, ...others });
  if (value !== undefined) input.value = value;
  return h("div", { class: "field" }, h("label", { for: id }, label), input);
}

// actionButton creates a button that changes something at once. An error is shown in a dialog.
export function actionButton(text, run, attributes) {
  return h("button", {
    "data-key": text, ...attributes,
    onclick: async (event) => {
      const button = event.currentTarget;
      button.disabled = true;
      try {
        await run();
      } catch (err) {
        showFailure(err);
      }
      button.disabled = false;
    },
  }, text);
}

// showFailure shows the error of an action in a dialog; the form for the token if the agent requires one.
function showFailure(err) {
  if (err.status === 403) {
    showForbidden(err);
    return;
  }
  const dialog = h("dialog", { class: "ask", role: "alertdialog", "aria-labelledby": "failure-title", onclose: () => dialog.remove() },
    h("h2", { id: "failure-title" }, "The agent rejects the action"), h("p", { class: "error lines" }, err.message),
    h("button", { onclick: () => dialog.close() }, "Close"));
  document.body.append(dialog);
  dialog.showModal();
}
