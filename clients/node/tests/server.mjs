/** A loopback server for tests: each request gets the next of the given handlers, the last one again and again. */

import { once } from "node:events";
import { createServer as createHttpServer } from "node:http";

export const ACCEPTED = { id: "msg_1", status: "queued", source: "api", request_id: "req_1" };
export const EMAIL = { from: "shop@example.com", to: "ada@example.net", subject: "Hello", text: "Hi" };

/** A handler that answers with JSON. */
export function json(status, body, headers = {}) {
  return (_request, response) => {
    response.writeHead(status, { "Content-Type": "application/json", ...headers });
    response.end(JSON.stringify(body));
  };
}

/** A handler that answers with an error object. */
export function error(status, code, headers = {}) {
  return json(status, { error: `about ${code}`, code, request_id: "req_e" }, headers);
}

/** A handler that resets the connection. */
export function reset(request) {
  request.socket.resetAndDestroy();
}

/** Starts a server that ends with the test. */
export async function serve(test, handlers, server = createHttpServer()) {
  const requests = [];
  let connections = 0;
  server.on("connection", () => connections++);
  server.on("request", async (request, response) => {
    const record = { method: request.method, url: request.url, headers: request.headers, body: "" };
    const handler = handlers[Math.min(requests.push(record), handlers.length) - 1];
    for await (const chunk of request.setEncoding("utf8")) record.body += chunk;
    handler(request, response);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  test.after(() => {
    server.closeAllConnections?.();
    server.close();
  });
  const protocol = server.setSecureContext ? "https" : "http";
  return { url: `${protocol}://127.0.0.1:${server.address().port}`, requests, connections: () => connections };
}
