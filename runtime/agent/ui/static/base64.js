// @ts-check
// Base64, in which the API has bytes.

// encode encodes bytes.
export function encode(bytes) {
  return btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
}

// decode decodes bytes. It throws an error if the text is not base64.
export function decode(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}
