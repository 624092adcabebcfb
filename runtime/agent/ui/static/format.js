// @ts-check
// Formats of values for people.

// milliseconds converts a time of the API: nanoseconds since 1970, or text.
export function milliseconds(time) {
  return typeof time === "number" ? time / 1e6 : Date.parse(time);
}

// isSet reports whether a time of the API is set: 0, "" and the year 1 are not.
export function isSet(time) {
  return Boolean(time) && !String(time).startsWith("0001-");
}

// address joins a host and a port, 0 for none.
export function address(host, port) {
  if (!port) return host;
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

// age returns the time since a time of the API: "5m12s".
export function age(time) {
  return time ? duration(Date.now() - milliseconds(time)) : "";
}

// duration formats milliseconds as package duration of the agent does: "0.05ms", "250ms", "4.21s", "5m12s", "3d".
export function duration(ms) {
  if (ms < 60e3) {
    let precision = 1e-3;
    while (ms >= 1000 * precision) precision *= 10;
    ms = Math.round(Math.max(ms, 0) / precision) * precision;
  }
  if (ms === 0) return "0s";
  if (ms < 1000) return Number(ms.toPrecision(3)) + "ms";
  if (ms < 60e3) return Number((ms / 1000).toPrecision(3)) + "s";
  const units = /** @type {[string, number][]} */ ([["y", 31536e6], ["mo", 2592e6], ["d", 86400e3], ["h", 3600e3], ["m", 60e3], ["s", 1e3]]);
  const first = units.findIndex(([, size]) => ms >= size);
  const [[unit, size], [next, nextSize]] = units.slice(first);
  const rest = Math.floor(ms % size / nextSize);
  return Math.floor(ms / size) + unit + (rest > 0 ? rest + next : "");
}

// bytes formats a number of bytes: "1.5 MiB".
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  for (; count >= 1024 && i < units.length - 1; i++) count /= 1024;
  return (i === 0 ? count : count.toFixed(1)) + " " + units[i];
}

// megahertz formats a use of processors in MHz.
export function megahertz(mhz) {
  return mhz.toFixed(mhz < 10 ? 1 : 0) + " MHz";
}

// clock formats a time of the API in the time zone of the browser: date and time, or the time with milliseconds.
export function clock(time, withMilliseconds) {
  if (!time) return "";
  return new Date(milliseconds(time)).toLocaleString(undefined, withMilliseconds
    ? { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hour12: false }
    : { dateStyle: "short", timeStyle: "medium" });
}

// shortID returns the first eight characters of a UUID, as the command line does.
export function shortID(id) {
  return String(id ?? "").slice(0, 8);
}
