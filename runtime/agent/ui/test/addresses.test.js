import assert from "node:assert/strict";
import test from "node:test";
import "./document.js";
import { decode, encode } from "../static/base64.js";
import { allocationPath, editPath, execPath, jobAPI, jobPath, servicePath } from "../static/paths.js";

const { fullID } = await import("../static/ids.js");

test("paths escape names of jobs, groups and tasks", () => {
  assert.equal(jobPath("a/b c", "default"), "/ui/jobs/a%2Fb%20c@default");
  assert.equal(jobPath("a", "ns", "my group"), "/ui/jobs/a@ns/my%20group");
  assert.equal(jobAPI("a/b", "x&y", ""), "/v1/job/a%2Fb?namespace=x%26y");
  assert.equal(jobAPI("a", "default", "versions", { diffs: true }), "/v1/job/a/versions?diffs=true&namespace=default");
  assert.equal(allocationPath("id", "task one", "logs"), "/ui/allocations/id/task%20one/logs");
  assert.equal(editPath({ ID: "a", Namespace: "n" }), "/ui/jobs/run?job=a&namespace=n");
  assert.equal(editPath({ ID: "a", Namespace: "n" }, 0), "/ui/jobs/run?job=a&namespace=n&version=0");
  assert.equal(servicePath("web", "default"), "/ui/services/web");
  assert.equal(servicePath("web", "other"), "/ui/services/web?namespace=other");
  assert.equal(execPath({ ID: "id", JobID: "a/b", TaskGroup: "g", Namespace: "n" }, "t"), "/ui/exec/a%2Fb/g/t?allocation=id&namespace=n");
});

test("base64 has all bytes", () => {
  const all = Uint8Array.from({ length: 256 }, (_, i) => i);
  assert.deepEqual(decode(encode(all)), all);
  assert.equal(encode(new TextEncoder().encode("é")), "w6k=");
  assert.throws(() => decode("not base64!"));
});

const first = "01234567-89ab-cdef-0123-456789abcdef", second = "01234568-89ab-cdef-0123-456789abcdef";

// withAgent runs a function with an agent that has objects with the two ids. It returns the requests, and the addresses of
// the tab.
async function withAgent(run) {
  const requests = [], addresses = [];
  Object.assign(globalThis, {
    sessionStorage: { getItem: () => null },
    location: { pathname: "/ui/allocations/0123456789", search: "?x=1" },
    history: { replaceState: (_, __, path) => addresses.push(path) },
    fetch: async (path) => { requests.push(path); return new Response(JSON.stringify([{ ID: first }, { ID: second }])); },
  });
  await run();
  return { requests, addresses };
}

test("a short id becomes the id of the only object that has it", async () => {
  const { requests, addresses } = await withAgent(async () => {
    assert.equal(await fullID(first, "allocation", "/v1/allocations", new AbortController().signal), first);
    assert.equal(await fullID("0123456789", "allocation", "/v1/allocations", new AbortController().signal), first);
  });
  assert.deepEqual(requests, ["/v1/allocations?prefix=0123456789&namespace=*"]);
  assert.deepEqual(addresses, [`/ui/allocations/${first}?x=1`]);
});

test("an id without one object is an error", async () => {
  const { requests } = await withAgent(async () => {
    const reject = (id, message) => assert.rejects(fullID(id, "evaluation", "/v1/evaluations", new AbortController().signal), { status: 404, message });
    await reject("012345", "The ids of 2 evaluations start with 012345: enter more of the id.");
    await reject("ff", "There is no evaluation ff.");
    await reject("WRONG", "There is no evaluation WRONG.");
  });
  assert.equal(requests.length, 2, "text that is no id is not sent");
});
