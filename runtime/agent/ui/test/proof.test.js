import assert from "node:assert/strict";
import { createHmac } from "node:crypto";
import test from "node:test";
import "./document.js";

const stored = new Map();
Object.assign(globalThis, {
  sessionStorage: { getItem: (key) => stored.get(key) ?? null, setItem: (key, value) => stored.set(key, value), removeItem: (key) => stored.delete(key) },
  location: { protocol: "http:", hostname: "127.0.0.1", port: "4646", pathname: "/ui/", search: "" },
});
const { APIError, requireProof, send, token } = await import("../static/api.js");
const { agentKnows } = await import("../static/proof.js");

const mac = (key, ...parts) => createHmac("sha256", key).update(parts.join("\n")).digest("hex");

// prove returns the proof of an agent for a path.
function prove(path, key, Agent = "127.0.0.1:4646", Client = "127.0.0.1:50000") {
  const nonce = new URL(path, "http://x").searchParams.get("nonce");
  return new Response(JSON.stringify({ Proof: mac(key, "nomad-lite agent proof v1: connection", nonce, Agent, Client), Agent, Client }));
}

// Listeners, which reply to a request.
const isProof = (path) => path.startsWith("/v1/agent/lite-proof?");
const agent = (path) => (isProof(path) ? prove(path, "operator") : new Response("[]"));
const squatter = () => new Response("{}");
const relay = (path) => (isProof(path) ? prove(path, "operator", "[::1]:4646") : new Response("{}"));
const nobody = () => { throw new TypeError("connection refused"); };

// listen replaces the listener, and returns the tokens that it gets.
function listen(listener) {
  const tokens = [];
  globalThis.fetch = /** @type {any} */ (async (path, options) => {
    const sent = options?.headers?.get("X-Nomad-Token");
    if (sent) tokens.push(sent);
    return listener(path);
  });
  return tokens;
}

test("the MACs are those of the agent", async () => {
  const keyID = "73ad112f6219aff91dafb683f6991bacf938937e0347d35a42f9d18cedba81da", nonce = "0".repeat(64);
  assert.equal(mac("operator", "nomad-lite agent proof v1: key id"), keyID);
  assert.equal(mac("operator", "nomad-lite agent proof v1: connection", nonce, "127.0.0.1:4646", "127.0.0.1:50000"), "bd91466b9be4962af831ea65c2005d350870d76ed4db0c7eda41faac3526cd99");
  let asked = "";
  listen((path) => { asked = path; return agent(path); });
  assert.equal(await agentKnows("operator"), true);
  assert.match(asked, new RegExp(`key=${keyID}&nonce=[0-9a-f]{64}$`));
});

test("a proof is valid for the token and the address of the page", async () => {
  listen(agent);
  assert.equal(await agentKnows("another"), false);
  listen(relay);
  assert.equal(await agentKnows("operator"), false);
  listen(squatter);
  assert.equal(await agentKnows("operator"), false);
  listen(() => new Response("none", { status: 404 }));
  assert.equal(await agentKnows("operator"), false);
});

test("a listener that has never proved anything gets the token, also after a loss", async () => {
  token.set("operator");
  assert.deepEqual((await tokensOf(squatter)).tokens, ["operator"]);
  assert.equal((await tokensOf(nobody)).status, 0);
  assert.deepEqual((await tokensOf(squatter)).tokens, ["operator"]);
});

test("after a loss of the connection, the listener must prove that it knows the token", async () => {
  token.set("other"); // asks for another proof than the test before
  await tokensOf((path) => (isProof(path) ? prove(path, "other") : new Response("[]")));
  assert.equal((await tokensOf(nobody)).status, 0);
  for (const listener of [squatter, relay, agent]) {
    const { tokens, status } = await tokensOf(listener);
    assert.deepEqual(tokens, []);
    assert.equal(status, 403);
  }
  assert.equal((await tokensOf(nobody)).status, 0);
  await assert.rejects(requireProof(), { status: 0 });
  token.set("operator"); // as from the form, after a start of the agent with another token
  assert.deepEqual((await tokensOf(squatter)).tokens, []);
  assert.deepEqual((await tokensOf(agent)).tokens, ["operator"]);
  await requireProof();
});

// tokensOf sends a request to a listener, and returns the tokens that it got, and the status of the error.
async function tokensOf(listener) {
  const tokens = listen(listener);
  let status;
  try {
    await send("/v1/jobs");
  } catch (err) {
    if (!(err instanceof APIError)) throw err;
    status = err.status;
  }
  return { tokens, status };
}
