/** The ES module face of dev.ts. */
export * from "./dev.js";
