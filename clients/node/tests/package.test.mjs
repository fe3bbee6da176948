/** The package as it is published: its files, its two module systems, its types. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const MANIFEST = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8"));
const ENTRIES = ["mail-appliance", "mail-appliance/testing", "mail-appliance/nodemailer"];
const project = mkdtempSync(join(tmpdir(), "mail-appliance-package-"));
let files;

/** A project that has the packed package, and the types of this one's development. */
before(() => {
  const packed = execFileSync("npm", ["pack", "--ignore-scripts", "--json", "--pack-destination", project], {
    cwd: ROOT,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "ignore"],
  });
  const tarball = JSON.parse(packed)[0];
  files = tarball.files.map(({ path }) => path);
  const installed = join(project, "node_modules", "mail-appliance");
  mkdirSync(installed, { recursive: true });
  execFileSync("tar", ["-xzf", join(project, tarball.filename), "--strip-components=1", "-C", installed]);
  for (const name of ["@types", "undici-types", "nodemailer"])
    symlinkSync(join(ROOT, "node_modules", name), join(project, "node_modules", name));
  writeFileSync(join(project, "package.json"), '{"private": true}');
});

after(() => rmSync(project, { recursive: true }));

test("the version is the one of all libraries", async () => {
  const { VERSION } = await import("mail-appliance");
  const common = readFileSync(join(ROOT, "..", "VERSION"), "utf8").trim();
  assert.deepEqual([VERSION, MANIFEST.version], [common, common]);
});

test("the package has the build, the README and nothing else", () => {
  const others = files.filter((path) => !/^dist\/[a-z]+(\.d)?\.m?[jt]s$/.test(path));
  assert.deepEqual(others.sort(), ["CHANGELOG.md", "LICENSE", "README.md", "package.json"]);
  for (const entry of ["index", "testing", "nodemailer"]) {
    for (const kind of ["js", "mjs", "d.ts", "d.mts"]) assert.ok(files.includes(`dist/${entry}.${kind}`));
  }
  assert.equal(MANIFEST.dependencies, undefined);
});

test("import and require give the same exports and the same classes", () => {
  const script = `
    import { createRequire } from "node:module";
    const require = createRequire(import.meta.url);
    for (const entry of ${JSON.stringify(ENTRIES)}) {
      const [imported, required] = [await import(entry), require(entry)];
      const names = Object.keys(required).filter((name) => name !== "__esModule");
      if (names.length === 0) throw new Error(entry + " exports nothing");
      for (const name of names) if (imported[name] !== required[name]) throw new Error(entry + ": " + name);
      console.log(entry, names.length);
    }`;
  const printed = execFileSync(process.execPath, ["--input-type=module", "--eval", script], {
    cwd: project,
    encoding: "utf8",
  });
  assert.deepEqual(printed.match(/\S+(?= \d+\n)/g), ENTRIES);
});

/** Compiles sources of the project, strictly. */
function compile(name, sources, options) {
  const compilerOptions = { target: "es2022", strict: true, skipLibCheck: false, noEmit: true, types: ["node"], ...options };
  const config = join(project, `tsconfig.${name}.json`);
  writeFileSync(config, JSON.stringify({ compilerOptions, files: sources }));
  const tsc = join(ROOT, "node_modules", "typescript", "bin", "tsc");
  try {
    execFileSync(process.execPath, [tsc, "-p", config], { encoding: "utf8" });
  } catch ({ stdout }) {
    assert.fail(stdout);
  }
}

for (const [module, moduleResolution, extensions, lib] of [
  ["node16", "node16", ["mts", "cts"], ["es2022"]],
  ["esnext", "bundler", ["ts"], ["es2022", "dom"]],
]) {
  test(`the types compile strictly with moduleResolution ${moduleResolution}`, () => {
    const sources = extensions.map((extension) => `${moduleResolution}.${extension}`);
    for (const source of sources) copyFileSync(join(ROOT, "tests", "consumer.ts"), join(project, source));
    const strictness = { exactOptionalPropertyTypes: true, noUncheckedIndexedAccess: true };
    compile(moduleResolution, sources, { module, moduleResolution, lib, ...strictness });
  });
}

test("the README's examples compile strictly", () => {
  const readme = readFileSync(join(ROOT, "README.md"), "utf8");
  const examples = [...readme.matchAll(/^```js\n(.*?)^```/gms)].map(([, code]) => code);
  assert.equal(examples.length, 11);
  const sources = examples.map((_, number) => `readme${number}.mts`);
  examples.forEach((code, number) => writeFileSync(join(project, sources[number]), code));
  compile("readme", sources, { module: "node16", moduleResolution: "node16", lib: ["es2022"] });
});
