/** The compiler of an instance of the module: a function from a request to its answer. */
export function compilerOf(instance) {
  const { memory, flashtile_alloc, flashtile_call, flashtile_free } = instance.exports;
  return (request) => {
    const bytes = new TextEncoder().encode(JSON.stringify(request));
    const room = flashtile_alloc(bytes.length);
    new Uint8Array(memory.buffer, room, bytes.length).set(bytes);
    const answer = flashtile_call(room, bytes.length);
    const length = new DataView(memory.buffer).getUint32(answer, true);
    const text = new TextDecoder().decode(new Uint8Array(memory.buffer, answer + 4, length));
    flashtile_free(answer);
    return JSON.parse(text);
  };
}
