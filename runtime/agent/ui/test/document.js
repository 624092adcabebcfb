// What modules that create elements need of a browser: a document whose elements have a name, attributes and children.
// A test imports this file before such a module.

class TextNode {
  constructor(text) { this.textContent = text; }
}

class TestElement {
  constructor(name) { Object.assign(this, { nodeName: name, attributes: {}, childNodes: [], style: {} }); }
  setAttribute(name, value) { this.attributes[name] = String(value); }
  getAttribute(name) { return this.attributes[name] ?? null; }
  addEventListener() {}
  append(...children) { this.childNodes.push(...children.map((child) => (typeof child === "string" ? new TextNode(child) : child))); }
  replaceChildren(...children) { this.childNodes = []; this.append(...children); }
  get textContent() { return this.childNodes.map((child) => child.textContent).join(""); }
  set textContent(text) { this.replaceChildren(text); }

  // all returns the elements below this one with a name, in the order of the document.
  all(name) { return this.childNodes.flatMap((child) => [...(child.nodeName === name ? [child] : []), ...(child.all?.(name) ?? [])]); }
}

const create = (name) => new TestElement(name);
Object.assign(globalThis, {
  document: { addEventListener() {}, createElement: create, createElementNS: (_, name) => create(name) },
  Node: Object.defineProperty(class {}, Symbol.hasInstance, { value: (value) => value instanceof TestElement || value instanceof TextNode }),
  setInterval() {}, // ages are not updated
});

// A channel of Node.js keeps the process running until it is closed.
globalThis.BroadcastChannel = /** @type {any} */ (class extends EventTarget {
  postMessage() {}
});
