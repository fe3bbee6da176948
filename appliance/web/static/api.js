// Client of /v1. The token exists only in this module's memory.

const EARLY = 60_000; // milliseconds before expiry at which a token is renewed
const KEPT = 40; // responses cached with their ETag

let token = null;
let expires = 0;
let renewing = null;
let whenEnded = () => {};
const kept = new Map(); // by path: the last response and its ETag
let news = 0;

/** Number of responses that differed from the previous one. */
export const fresh = () => news;

/** An error response: text, code, field at fault and request id. */
export class ApiError extends Error {
	constructor(status, body, headers) {
		super(body.error);
		this.status = status;
		this.code = body.code;
		this.requestId = body.request_id;
		this.retryAfter = Number(headers?.get("Retry-After")) || null;
		this.secondFactor = headers?.has("Second-Factor");
		const [, field, rest] = /^([a-z_]+)(?:\[[^\]]*\])?[.\w]*: (.*)$/s.exec(body.error) ?? [];
		this.field = field;
		this.detail = rest;
	}
}

export function unreachable() {
	const error = "The server does not respond. It may be restarting. Retry in a few seconds.";
	throw new ApiError(0, { error, code: "unreachable" });
}

async function answer(response, as, path) {
	if (response.status === 304) return response.last.body;
	let body;
	try {
		body = response.ok && as === "body" ? response.body : await response[(response.ok && as) || "json"]();
	} catch {
		body = { error: `The server responded with status ${response.status} and no readable body.`, code: "unreadable" };
	}
	if (!response.ok) throw new ApiError(response.status, body, response.headers);
	const etag = response.headers.get("ETag");
	if (etag) {
		news += 1;
		kept.set(path, { etag, body });
		if (kept.size > KEPT) kept.delete(kept.keys().next().value);
	}
	return body;
}

async function send(method, path, body, signal, more) {
	const headers = token ? { ...more, Authorization: `Bearer ${token}` } : {};
	if (body !== undefined) headers["Content-Type"] = "application/json";
	const last = method === "GET" && kept.get(path);
	if (last) headers["If-None-Match"] = last.etag;
	body &&= JSON.stringify(body);
	try {
		return Object.assign(await fetch(path, { method, headers, signal, body }), { last });
	} catch (error) {
		if (error.name === "AbortError") throw error;
		unreachable();
	}
}

function keep(given) {
	token = given.token;
	expires = Date.parse(given.expires_at);
	return given.account;
}

export const login = async (values) => keep(await answer(await send("POST", "/v1/auth/login", values)));

// A cookie works once, so one window renews at a time. A started request outlives its page.
function withCookie() {
	const ask = async () => {
		try {
			return await fetch("/v1/auth/refresh", { method: "POST", keepalive: true });
		} catch {
			unreachable();
		}
	};
	return navigator.locks ? navigator.locks.request("session", ask) : ask();
}

/** Resume this browser's session. Returns the user. */
export function resume() {
	renewing ??= withCookie()
		.then(answer)
		.then(keep)
		.finally(() => (renewing = null));
	return renewing;
}

/** Whether an error means that the session ended, not only that the request failed. */
export const isOver = (error) => error.status === 401 || error.status === 403;

/** Called when the session ends. The returned promise resolves after a new login and rejects without one. */
export const onEnded = (callback) => (whenEnded = callback);

async function ended(error) {
	if (!isOver(error)) throw error;
	token = null;
	await whenEnded(error);
}

async function call(method, path, body, signal, more, as) {
	if (token && Date.now() > expires - EARLY) await resume().catch(ended);
	try {
		return await answer(await send(method, path, body, signal, more), as, path);
	} catch (error) {
		if (error.status !== 401) throw error;
		await resume().catch(ended);
		return answer(await send(method, path, body, signal, more), as, path);
	}
}

export const get = (path, signal) => call("GET", path, undefined, signal);
export const stream = (path, signal) => call("GET", path, undefined, signal, {}, "body");
export const file = (path, signal) => call("GET", path, undefined, signal, {}, "blob");
export const post = (path, body, headers) => call("POST", path, body, undefined, headers);
export const patch = (path, body) => call("PATCH", path, body);
export const put = (path, body) => call("PUT", path, body);
export const del = (path, body) => call("DELETE", path, body);
