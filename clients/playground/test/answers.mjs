// What a page is told: of errors, sizes, masks, knobs, and of requests that make no sense.
//   node test/answers.mjs MODULE KERNELS
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { load } from "./module.mjs";

const [module, kernels] = process.argv.slice(2);
const call = await load(module);
const causal = readFileSync(join(kernels, "causal_attention.rs"), "utf8");
const asked = { text: causal, file: "causal.rs", dtype: "bf16", arch: "sm_90a", schedule: "defaults" };

test("an error is at its token, in the units of a browser", () => {
  const text = "/// \u{1f680}\n" + causal.replace("rowmax", "rowmix");
  const { diagnostics, kernels } = call({ do: "check", text });
  assert.equal(kernels.length, 0);
  const [error] = diagnostics;
  assert.equal(error.severity, "error");
  assert.equal(text.slice(error.start, error.end), "rowmix");
});

test("a kernel says what it is called with", () => {
  const [kernel] = call({ do: "check", text: causal }).kernels;
  assert.equal(kernel.name, "causal_attention");
  const size = (name) => kernel.sizes.find((s) => s.name === name);
  assert.deepEqual(size("D"), { name: "D", const: true, walked: false, default: 64 });
  assert.deepEqual(size("N"), { name: "N", const: false, walked: true, default: 4096 });
  assert.deepEqual(kernel.scalars, [{ name: "scale", type: "f32" }]);
});

test("a causal mask hides above the diagonal, cuts on it, and leaves the rest", () => {
  const sizes = { M: 512, N: 512 };
  const [picture] = call({ do: "compile", ...asked, sizes, schedule: "defaults,block_m=64,block_n=64" }).pictures;
  const expected = [...Array(8)].map((_, row) => "#".repeat(row) + "/" + ".".repeat(7 - row));
  assert.deepEqual(picture.tiles, expected);
  const longer = call({ do: "compile", ...asked, sizes: { M: 128, N: 512 }, schedule: "defaults,block_m=64,block_n=64" });
  assert.deepEqual(longer.pictures[0].tiles, ["######/.", "#######/"]);
});

test("a mask over data has no picture and says why", () => {
  const text = readFileSync(join(kernels, "document_attention.rs"), "utf8");
  const { pictures } = call({ do: "compile", ...asked, text });
  assert.match(pictures[0].why, /depends on data/);
});

test("a knob's values come with the reasons against them", () => {
  const { values } = call({ do: "knob", ...asked, arch: "sm_80", knob: "tensor_op" });
  const wgmma = values.find((v) => v.value === "wgmma");
  assert.ok(wgmma.reasons.length > 0, JSON.stringify(values));
  assert.equal(values.filter((v) => v.current).length, 1);
  assert.deepEqual(values.find((v) => v.current).reasons, []);
});

test("what cannot be is told, and the next request is answered", () => {
  const message = (request) => call(request).error.message;
  assert.match(message({ do: "compile", ...asked, arch: "sm_42" }), /`sm_42` is not an architecture; expected sm_75/);
  assert.match(message({ do: "compile", ...asked, sizes: { X: 1 } }), /`X` is not a size; expected/);
  assert.match(message({ do: "compile", ...asked, sizes: { N: -1 } }), /size `N` cannot be -1/);
  assert.match(message({ do: "compile", ...asked, schedule: "block_mm=1" }), /block_mm/);
  assert.match(message({ do: "compile", ...asked, text: "" }), /no kernel/);
  assert.match(message({ do: "nothing" }), /not a request/);
  assert.equal(call({ do: "about" }).archs[0], "sm_75");
});

test("the layouts, the graph and the stages are there", () => {
  const answer = call({ do: "compile", ...asked });
  for (const stage of answer.stages) assert.ok(stage.text.length > 40, stage.name);
  assert.ok(answer.layouts.every((layout) => layout.svg.startsWith("<svg")) && answer.layouts.length > 0);
  const { statements, edges } = answer.graph;
  assert.ok(edges.some((edge) => edge.carried === "j") && edges.every((edge) => statements[edge.to]), JSON.stringify(edges));
  assert.match(answer.command, /--schedule defaults/);
  const { limits, predicted } = answer.roofline;
  assert.ok(limits.every((limit) => predicted >= limit.seconds && limit.seconds > 0), JSON.stringify(answer.roofline));
});

test("a shell takes the command as words, whatever the file is called", () => {
  for (const file of ["a b.rs", "$(exit 7).rs", "`x`;x.rs", "it's.rs", "a\nb.rs", "<>&|*?~#!.rs", ""]) {
    const { command } = call({ do: "compile", ...asked, file });
    const words = execFileSync("sh", ["-c", `flashtile() { printf '%s\\0' "$@"; }; ${command}`], { encoding: "utf8" }).split("\0");
    assert.deepEqual(words.slice(0, 4), ["inspect", `${file}:causal_attention`, "--dtype", "bf16"]);
  }
  assert.match(call({ do: "compile", ...asked }).command, /^flashtile inspect causal.rs:causal_attention [\w,.= -]+$/);
});

test("the interpreter computes what the text means", () => {
  const text = `pub fn twice<const N: usize>(x: &Tensor<f32, (M, N)>, by: f32, y: &mut Tensor<f32, (M, N)>, s: &mut Tensor<f32, (M)>) {
    let i = program(tiles(M));
    let t = load(x, [i, ..]);
    store(y, [i, ..], t + t);
    store(s, [i], rowsum(t - t) + by);
}`;
  const { outputs } = call({ do: "run", ...asked, text, sizes: { M: 3, N: 20 } });
  assert.deepEqual(outputs.map((o) => [o.name, o.type, o.shape]), [["y", "f32", [3, 20]], ["s", "f32", [3]]]);
  assert.equal(outputs[0].rows.length, 3);
  assert.ok(outputs[0].rows.every((row) => row.length === 8 && row.some((x) => x !== 0)));
  assert.equal(outputs[0].error, 0);
  const attention = call({ do: "run", ...asked, sizes: { H: 5, G: 5, D: 16 } });
  assert.deepEqual(attention.sizes, { D: 16, B: 2, H: 2, M: 24, G: 2, N: 24 });
  assert.ok(attention.outputs[0].error > 0 && attention.outputs[0].error < 0.02, JSON.stringify(attention.outputs[0].error));
  const large = call({ do: "run", ...asked, sizes: { D: 1 << 20 } });
  assert.match(large.error.message, /give smaller ones/);
});

test("every kernel that one may start from runs on small tensors", () => {
  for (const file of readdirSync(kernels)) {
    const text = readFileSync(join(kernels, file), "utf8");
    const answer = call({ do: "run", ...asked, text });
    assert.ok(answer.outputs?.every((o) => o.rows.length > 0), `${file}: ${answer.error?.message}`);
  }
});
