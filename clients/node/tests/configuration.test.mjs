import assert from "node:assert/strict";
import { test } from "node:test";

import { ConfigurationError } from "mail-appliance";

import { settings } from "../dist/configuration.js";

const URL_ = "http://mail.example.com";
const PAIR = { username: "ada", password: "pä:ß€" };
const BASIC = "Basic YWRhOnDDpDrDn+KCrA==";
const refused = (options, environment, pattern) =>
  assert.throws(
    () => settings(options, environment),
    (error) => error instanceof ConfigurationError && pattern.test(error.message),
  );

test("options give the settings, with defaults", () => {
  const defaults = { retries: 3, connectTimeout: 5000, timeout: 30_000 };
  assert.deepEqual(settings({ baseUrl: URL_, ...PAIR }, {}), { baseUrl: URL_, authorization: BASIC, ...defaults });
  const given = { retries: 0, connectTimeout: 1, timeout: 2 };
  assert.deepEqual(settings({ baseUrl: URL_, token: "t", ...given }, {}), {
    baseUrl: URL_,
    authorization: "Bearer t",
    ...given,
  });
});

test("the URL keeps its path and loses trailing slashes", () => {
  const urls = [`${URL_}///`, "https://mail.example.com:8443/mail/v2/", new URL("http://[::1]:80/")];
  const read = urls.map((baseUrl) => settings({ baseUrl, token: "t" }, {}).baseUrl);
  assert.deepEqual(read, [URL_, "https://mail.example.com:8443/mail/v2", "http://[::1]"]);
});

test("URLs that could not be meant are refused", () => {
  const wrong = [
    "mail.example.com",
    "ftp://a",
    "http://",
    "http:///a",
    "http:a",
    "http://u@a",
    "http://u:p@a",
    "http://a/?",
    "http://a/#x",
  ];
  for (const baseUrl of wrong) refused({ baseUrl, token: "t" }, {}, /MAIL_APPLIANCE_URL/);
});

test("what is absent or empty comes from the environment, where a token wins", () => {
  const environment = { MAIL_APPLIANCE_URL: URL_, MAIL_APPLIANCE_USERNAME: "ada", MAIL_APPLIANCE_PASSWORD: "pä:ß€" };
  assert.equal(settings({ baseUrl: "", token: "" }, environment).authorization, BASIC);
  assert.equal(settings({}, { ...environment, MAIL_APPLIANCE_TOKEN: "t" }).authorization, "Bearer t");
  assert.equal(settings({}, { ...environment, MAIL_APPLIANCE_TOKEN: "" }).authorization, BASIC);
});

test("given credentials win over all of the environment's", () => {
  const environment = { MAIL_APPLIANCE_TOKEN: "e", MAIL_APPLIANCE_USERNAME: "e", MAIL_APPLIANCE_PASSWORD: "e" };
  assert.equal(settings({ baseUrl: URL_, ...PAIR }, environment).authorization, BASIC);
  assert.equal(settings({ baseUrl: URL_, token: "t" }, environment).authorization, "Bearer t");
});

test("what is missing, given twice or malformed is named", () => {
  refused({ token: "t" }, {}, /baseUrl.*MAIL_APPLIANCE_URL/);
  refused({ baseUrl: URL_ }, {}, /MAIL_APPLIANCE_TOKEN.*MAIL_APPLIANCE_USERNAME.*MAIL_APPLIANCE_PASSWORD/);
  refused({ baseUrl: URL_, username: "ada" }, {}, /^password.*MAIL_APPLIANCE_PASSWORD/);
  refused({ baseUrl: URL_, password: "x" }, {}, /^username.*MAIL_APPLIANCE_USERNAME/);
  refused({ baseUrl: URL_, token: "t", username: "ada" }, {}, /token.*username/);
  refused({ baseUrl: URL_, token: "t\nX: y" }, {}, /token/);
  refused({ baseUrl: URL_, username: "a:b", password: "x" }, {}, /username.*colon/);
  for (const retries of [-1, 1.5, Number.NaN]) refused({ baseUrl: URL_, token: "t", retries }, {}, /retries/);
  for (const timeout of [0, -1, Number.NaN, 2 ** 31]) refused({ baseUrl: URL_, token: "t", timeout }, {}, /timeout/);
  refused({ baseUrl: URL_, token: "t", connectTimeout: 0 }, {}, /connectTimeout/);
});
