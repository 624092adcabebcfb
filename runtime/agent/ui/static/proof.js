// @ts-check
// The proof of the agent that it knows a token, which package agentproof describes.

const keyIDDomain = "nomad-lite agent proof v1: key id";
const proofDomain = "nomad-lite agent proof v1: connection";

const hex = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");

async function mac(token, ...parts) {
  const encoder = new TextEncoder();
  const key = await crypto.subtle.importKey("raw", encoder.encode(token), { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return hex(new Uint8Array(await crypto.subtle.sign("HMAC", key, encoder.encode(parts.join("\n")))));
}

// agentKnows asks the listener at the address of the page for a proof that it knows a token, and reports whether the proof is
// valid. It rejects if there is no reply. A page sees neither end of its connections, so it checks the address of the agent
// only if its own has an IP address, and cannot check that of the client. It returns false over HTTPS, which proves more, and
// over HTTP beyond loopback addresses, where browsers have no crypto.subtle.
export async function agentKnows(token) {
  if (location.protocol !== "http:" || !globalThis.crypto?.subtle) return false;
  const nonce = hex(crypto.getRandomValues(new Uint8Array(32)));
  const response = await fetch(`/v1/agent/lite-proof?key=${await mac(token, keyIDDomain)}&nonce=${nonce}`);
  if (!response.ok) return false;
  const { Proof, Agent, Client } = await response.json();
  const isAddress = /^\[|^[\d.]+$/.test(location.hostname);
  if (isAddress && Agent !== `${location.hostname}:${location.port || 80}`) return false;
  return Proof === await mac(token, proofDomain, nonce, Agent, Client);
}
