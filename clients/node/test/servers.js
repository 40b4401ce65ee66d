// The real tidegate, and servers that misbehave.

import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const TESTING = fileURLToPath(new URL("../../testing", import.meta.url));
export const TOKEN = "a-token-of-the-tests-0001";

/** What a server inherits: a TIDEGATE_ variable that it does not know is an error. */
const env = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("TIDEGATE_")));

function binary() {
  const path = process.env.TIDEGATE_BINARY ?? join(TESTING, "../../target/debug/tidegate");
  if (!existsSync(path)) throw new Error(`${path} is missing: run \`cargo build -p tidegate-cli\`, or set TIDEGATE_BINARY`);
  return path;
}

export function folder() {
  const path = mkdtempSync(join(tmpdir(), "tidegate-node-"));
  process.on("exit", () => rmSync(path, { recursive: true, force: true }));
  return path;
}

/** A server on free ports. `extra` is YAML of its configuration. */
export async function tidegate(extra = "", scheme = "http", rules = `${TESTING}/rules.yaml`) {
  const dir = folder();
  const config = join(dir, "tidegate.yaml");
  writeFileSync(
    config,
    `listen: { http: '127.0.0.1:0', grpc: off, resp: off, admin: '127.0.0.1:0' }
rules: { paths: ['${rules}'] }
data: '${dir}/data'
${extra}`,
  );
  const child = spawn(binary(), ["serve", "--config", config], { stdio: ["ignore", "pipe", "ignore"], env });
  const stop = () => child.kill("SIGKILL");
  process.on("exit", stop);
  const lines = createInterface(child.stdout);
  const url = await new Promise((resolve, reject) => {
    lines.on("line", (line) => line.startsWith("listening http ") && resolve(`${scheme}://${line.split(" ")[2]}`));
    lines.on("close", () => reject(new Error("tidegate ended before it listened")));
  });
  // A test that fails before it stops its server must not keep the runner waiting.
  child.unref();
  child.stdout.unref();
  return { url, stop };
}

/** A self-signed certificate for 127.0.0.1, and its key. */
export function certificate(dir) {
  const [cert, key] = [join(dir, "cert.pem"), join(dir, "cert.key")];
  const words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test -addext subjectAltName=IP:127.0.0.1";
  execFileSync("openssl", [...words.split(" "), "-keyout", key, "-out", cert], { stdio: "ignore" });
  return { cert, key };
}

/** Takes connections and never answers; with `says`, sends that and no more. `received` has the requests. */
export async function silent(says) {
  const sockets = [];
  const received = [];
  const server = createServer((socket) => {
    sockets.push(socket);
    socket.unref();
    socket.on("error", () => {});
    // fetch may open a connection that it then does not use.
    socket.on("data", (data) => {
      received.push(String(data));
      if (says !== undefined) socket.write(says);
    });
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  const stop = () => {
    sockets.forEach((socket) => socket.destroy());
    return new Promise((resolve) => server.close(resolve));
  };
  return { url: `http://127.0.0.1:${server.address().port}`, received, stop };
}

/** The address of a server that is down. */
export async function nobody() {
  const server = await silent();
  await server.stop();
  return server.url;
}
