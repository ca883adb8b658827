// A client that knows only the relay protocol's first form, in another language and by another hand.
//
//     node bare_client.mjs SOCKET PROJECT KEY < script
//
// Where bare_client.py waits, this one does not: its first request leaves with the header, requests
// are written in pieces and under way side by side, ids are text, and nothing is given that need not
// be. Each line of its input is a JSON array; each line that it prints is [place, answer].
//
//     [METHOD, PARAMS]           one request, at once
//     ["message", TEXT, ID]      session_message, then session_events until the turn is over
//     ["configs"]                every caller_tools_config so far, when all else has been answered
import net from "node:net";
import readline from "node:readline";

const [path, project, key] = process.argv.slice(2);
const socket = net.connect(path);
const waiting = new Map();
const configs = [];
let last = 0;
socket.setNoDelay(true);

function send(method, params) {
  const id = `call-${++last}`;
  const line = JSON.stringify({ jsonrpc: "2.0", id, method, params }) + "\n";
  const half = Math.floor(line.length / 2);
  socket.write(last === 1 ? `OUBLIETTE-DOWNSTREAM ${project}\n${line}` : line.slice(0, half));
  if (last > 1) socket.write(line.slice(half));
  return new Promise((resolve) => waiting.set(id, resolve));
}

readline.createInterface({ input: socket }).on("line", (line) => {
  const message = JSON.parse(line);
  if (message.id == null) {
    if (message.type === "caller_tools_config") configs.push(message.params);
    return;
  }
  const { result, error } = message;
  waiting.get(message.id)?.(error ? { error: error.message, code: error.code } : result);
  waiting.delete(message.id);
});
socket.on("close", () => process.exit(waiting.size ? 1 : 0));

async function turn(message, session_id) {
  const spawned = await send("session_message", { message, session_id });
  if (spawned.error) return spawned;
  const { session_id: child } = spawned;
  for (;;) {
    const page = await send("session_events", { session_id: child });
    const found = page.events?.filter(({ type, role }) => type === "message" && role === "assistant");
    if (page.error || page.failed) {
      const why = page.events?.find(({ type }) => type === "error");
      return { child, error: page.error ?? why?.text };
    }
    if (page.completed) return { child, spawned: spawned.spawned, said: found.map((e) => e.text) };
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

function act([what, ...rest]) {
  if (what === "message") return turn(rest[0], rest[1] ?? "");
  const params = what.startsWith("oubliette_") ? { api_key: key, ...rest[0] } : rest[0];
  return send(what, params);
}

const steps = [];
for await (const line of readline.createInterface({ input: process.stdin })) {
  steps.push(JSON.parse(line));
}
const print = (place, answer) => console.log(JSON.stringify([place, answer ?? null]));
const asked = steps.map(([what]) => what !== "configs");
await Promise.all(steps.map(async (step, n) => asked[n] && print(n, await act(step))));
steps.forEach((_, n) => asked[n] || print(n, configs));
socket.end();
