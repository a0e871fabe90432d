/** Drives a live service from an upload to a posterior; arguments: address, an admin's key, an annotator's key, a folder with PNG files. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { ApiError, addCase, connect, image, need, pages, predict, take } from "../src/index.ts";

const [address = "", leadKey = "", annaKey = "", folder = ""] = process.argv.slice(2);
const picture = (number: number) => new Blob([readFileSync(`${folder}/${number}.png`)], { type: "image/png" });
const lead = connect(address, { apiKey: leadKey });
const anna = connect(address, { apiKey: annaKey });

const prediction = await predict(lead, picture(0));
const total = Object.values(prediction.class_probs).reduce((sum, probability) => sum + probability, 0);
assert.ok(Math.abs(total - 1) < 1e-6);

const ids: string[] = [];
for (let number = 0; number < 5; number += 1) {
  ids.push((await addCase(lead, picture(number), { external_id: `west-${number}`, site: "west" })).id);
}
const listed: string[] = [];
const query = { limit: 2, site: "west" };
for await (const shown of pages((cursor) => lead.GET("/v1/cases", { params: { query: { ...query, cursor } } }))) {
  listed.push(shown.id);
}
assert.deepEqual(listed, ids.toReversed());
const same: number[] = [];
for await (const entry of pages(() => Promise.resolve({ data: { items: [1], next_cursor: "again" } }))) same.push(entry);
assert.deepEqual(same, [1, 1]); // a cursor that comes again leads nowhere new

// the answers to the first two requests are lost on the way: one case is stored all the same
let sent = 0;
const losing = connect(address, {
  apiKey: leadKey,
  wait: 1,
  fetch: async (request) => {
    const answer = await fetch(request);
    sent += 1;
    if (sent <= 2) throw new TypeError("the connection broke");
    return answer;
  },
});
const policy = { rule: "disagreement", threshold: 0.21, reason: "as agreed" } as const;
const before = (await need(lead.GET("/v1/policies"))).items.length;
await need(losing.POST("/v1/policies", { body: policy }));
assert.equal(sent, 3);
assert.equal((await need(lead.GET("/v1/policies"))).items.length, before + 1);

let labels = 0;
for (;;) {
  const read = await take(anna.POST("/v1/reads"));
  if (read === undefined) break;
  const bytes = new Uint8Array(await (await image(anna, read.case_id)).arrayBuffer());
  assert.deepEqual([...bytes.slice(1, 4)], [...Buffer.from("PNG")]);
  const label = read.classes[0]?.code ?? "";
  const path = { read_id: read.id };
  const stored = await need(anna.POST("/v1/reads/{read_id}/labels", { params: { path }, body: { label, confidence: 0.8 } }));
  assert.equal(stored.label.label, label);
  labels += 1;
}
assert.ok(labels >= 5);
let counted = 0;
for (const case_id of ids) {
  counted += (await need(lead.GET("/v1/cases/{case_id}/posterior", { params: { path: { case_id } } }))).n_labels;
}
assert.ok(counted >= 5);

const refused = async (answer: Promise<unknown>, status: number, words: RegExp) =>
  assert.rejects(answer, (error) => error instanceof ApiError && error.status === status && words.test(error.message));
await refused(lead.GET("/v1/cases", { params: { query: { limit: 1000 } } }), 422, /query\.limit: .*less than or equal to 200/);
await refused(anna.GET("/v1/metrics"), 403, /needs the scope metrics:read/);
await refused(addCase(lead, picture(1), { external_id: "west-0" }), 409, /external-id-taken/);
console.log(`${ids.length} cases, ${labels} labels`);
