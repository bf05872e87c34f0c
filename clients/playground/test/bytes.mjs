// The module gives the same CUDA C as the command, byte for byte, for every built-in kernel on
// every architecture asked for.
//   node test/bytes.mjs MODULE COMMAND KERNELS [--schedule TEXT] [--arch A,B] [--only NAME,..]
// The schedules are the defaults and, for sm_75, those of its instructions, unless one is given;
// `--schedule ""` is the cost model's choice. The element type is bf16, or f16 for sm_75, which has
// no bf16. A kernel that has no code on an architecture must be refused by both, for the same
// reasons.
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { parseArgs } from "node:util";
import { load } from "./module.mjs";

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    schedule: { type: "string" },
    arch: { type: "string", default: "sm_75,sm_80,sm_90a" },
    only: { type: "string" },
  },
});
const [module, command, kernels] = positionals;
const call = await load(module);
const only = flags.only?.split(",");
let [passed, failed, refused] = [0, 0, 0];
const OF_SM_75 = "defaults,tensor_op=mma_m16n8k8,copy=sync";
let slowest = 0;

for (const file of readdirSync(kernels).filter((f) => f.endsWith(".rs")).sort()) {
  const name = basename(file, ".rs");
  if (only && !only.includes(name)) continue;
  const text = readFileSync(join(kernels, file), "utf8");
  for (const arch of flags.arch.split(",")) {
    const old = arch === "sm_75";
    const [dtype, schedule] = [old ? "f16" : "bf16", flags.schedule ?? (old ? OF_SM_75 : "defaults")];
    const begin = performance.now();
    const answer = call({ do: "compile", text, file, dtype, arch, schedule });
    slowest = Math.max(slowest, performance.now() - begin);
    const ours = answer.error?.message ?? answer.stages.find((s) => s.name === "cuda").text;
    const { theirs, ok } = inspect(name, dtype, arch, schedule);
    const against = answer.error?.reasons.every((reason) => theirs.includes(reason));
    const same = answer.error ? !ok && answer.error.reasons.length > 0 && against : ok && theirs.trimEnd() === ours.trimEnd();
    refused += answer.error ? 1 : 0;
    if (same) {
      passed += 1;
    } else {
      failed += 1;
      console.log(`${name} on ${arch}: ${difference(ours, theirs)}`);
    }
  }
}

/** What the command prints for a built-in, or says against it. */
function inspect(name, dtype, arch, schedule) {
  const args = ["inspect", name, "--dtype", dtype, "--arch", arch, "--emit", "cuda", "--explain"];
  if (schedule) args.push("--schedule", schedule);
  try {
    const options = { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], maxBuffer: 1 << 28 };
    return { theirs: execFileSync(command, args, options), ok: true };
  } catch (error) {
    return { theirs: String(error.stderr), ok: false };
  }
}

function difference(ours, theirs) {
  const [a, b] = [ours.split("\n"), theirs.split("\n")];
  const at = a.findIndex((line, n) => line !== b[n]);
  return `line ${at + 1}:\n  module:  ${a[at]}\n  command: ${b[at]}`;
}

console.log(`${refused} refused by both; the slowest took ${slowest.toFixed(0)} ms`);
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed || !passed ? 1 : 0);
