// Dialogs that confirm actions.

import { h } from "./dom.js";

// ask opens a dialog. content: nodes and texts below the title. action: the text of the button, which calls act() and
// closes the dialog when its promise is fulfilled; an error of act is shown in the dialog. danger marks the button of
// an action that destroys something.
export function ask({ title, content, action, danger, act }) {
  const error = h("p", { role: "alert", class: "error" });
  const submit = h("button", { class: danger && "danger" }, action);
  const dialog = h("dialog", { class: "ask", "aria-labelledby": "ask-title", onclose: () => dialog.remove() },
    h("form", {
      onsubmit: async (event) => {
        event.preventDefault();
        submit.disabled = true;
        try {
          await act();
          dialog.close();
        } catch (err) {
          error.textContent = err.message;
          submit.disabled = false;
        }
      },
    }, h("h2", { id: "ask-title" }, title), content, error,
    h("div", { class: "toolbar" }, submit, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"))));
  document.body.append(dialog);
  dialog.showModal();
}
