// A compiler that does not hold the page up. The first message is the module; each later one is a
// request with its number.
let compiler;
onmessage = async ({ data }) => {
  if (data.module) {
    compiler = compilerOf(await WebAssembly.instantiate(data.module, {}));
    postMessage({ ready: true });
    return;
  }
  try {
    const begin = performance.now();
    const answer = compiler(data.request);
    postMessage({ number: data.number, answer, milliseconds: performance.now() - begin });
  } catch (error) {
    postMessage({ number: data.number, trap: String(error) });
  }
};
