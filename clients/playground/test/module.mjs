// The compiler as a module, for tests in Node.js.
import { readFileSync } from "node:fs";
import { compilerOf } from "../page/call.mjs";

/** Instantiates the module of `file`; the answer is a function from a request to an answer. */
export async function load(file) {
  const { instance } = await WebAssembly.instantiate(readFileSync(file), {});
  return compilerOf(instance);
}
